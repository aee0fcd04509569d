/*-------------------------------------------------------------------------
 *
 * xact.h
 *	  The transaction callbacks of the extension.
 *
 * src/util/xact.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_XACT_H
#define QUEUE_XACT_H

#include "access/xact.h"

/* The beginning of each record of an XactList */
typedef struct XactRecord
{
	int			nest_level;		/* of the subtransaction it belongs to */
} XactRecord;

/*
 * The records of the current transaction, and what to call at its end.  Each
 * function may be NULL.  before_end may raise an error.  end and roll_back are
 * called when the (sub)transaction has ended: they must not fail, allocate
 * memory or read catalogs.
 */
typedef struct XactList
{
	Size		record_size;
	void		(*before_end) (XactEvent event);	/* commit or prepare */
	void		(*end) (XactEvent event);	/* commit, prepare or abort */
	void		(*roll_back) (int first);	/* rollback of a subtransaction,
											 * with the records from "first"
											 * on; NULL to remove these */
	int			n;				/* number of records */
	int			size;			/* number of records that there is room for */
	void	   *records;
} XactList;

static inline void *
xact_record(const XactList *list, int i)
{
	return (char *) list->records + i * list->record_size;
}

/* The functions that must not fail, allocate or wait are running. */
extern bool xact_has_ended;

extern void xact_register(XactList *const *all, int n);
extern void *xact_add(XactList *list);

/* Subtransactions */
extern ErrorData *xact_try(void (*function) (void *arg), void *arg);

#endif							/* QUEUE_XACT_H */
