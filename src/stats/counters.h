/*-------------------------------------------------------------------------
 *
 * counters.h
 *	  Counts of what happens to messages, and each queue's last error.
 *
 * src/stats/counters.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_COUNTERS_H
#define QUEUE_COUNTERS_H

#include "access/tupdesc.h"
#include "nodes/pg_list.h"

#include "catalog/tables.h"

/*
 * The content of a row, together with counts that were not written yet; or what
 * is to be added to it
 */
typedef struct CounterRow
{
	Oid			extension;
	int32		queue_id;
	int64		n[JOB_COUNTERS];
	TimestampTz since;			/* 0 if the queue does not exist */
	const char *error;			/* or NULL */
	TimestampTz error_at;
	TupleDesc	desc;			/* for counters.c */
} CounterRow;

/* Reading what was counted (counts.h) */
extern void counters_read(int32 queue_id, CounterRow *row);
extern List *counters_with_errors(void);

/* For the worker: moving counts and errors to the table */
extern bool counters_are_pending(void);
extern bool counters_flush(uint32 *from, int max, int64 *expired);
extern void counters_flush_errors(int64 *expired);

#endif							/* QUEUE_COUNTERS_H */
