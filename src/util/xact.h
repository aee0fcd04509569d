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

/* Every record of an XactList begins with this. */
typedef struct XactRecord
{
	int			nest_level;		/* of the subtransaction */
} XactRecord;

/*
 * Records of the current transaction.  A callback may be NULL; end and
 * roll_back run when the (sub)transaction is over, and must not fail.
 */
typedef struct XactList
{
	Size		record_size;
	void		(*before_end) (XactEvent event);	/* commit or prepare */
	void		(*end) (XactEvent event);	/* commit, prepare or abort */
	void		(*roll_back) (int first);	/* of a subtransaction, with the
											 * records from first on; NULL:
											 * they are removed */
	int			n;
	int			size;			/* there is room for so many */
	void	   *records;
} XactList;

static inline void *
xact_record(const XactList *list, int i)
{
	return (char *) list->records + i * list->record_size;
}

extern void xact_register(XactList *list);
extern void *xact_add(XactList *list);

#endif							/* QUEUE_XACT_H */
