/*-------------------------------------------------------------------------
 *
 * counters_table.h
 *	  The rows of queue_data.job_counter.
 *
 * src/stats/counters_table.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_COUNTERS_TABLE_H
#define QUEUE_COUNTERS_TABLE_H

#include "access/tupdesc.h"

#include "nodes/pg_list.h"

#include "catalog/tables.h"

/* What is to be added to the row of a queue */
typedef struct CounterAddition
{
	Oid			extension;
	int32		queue_id;
	const char *error;			/* or NULL */
	TimestampTz error_at;

	/* Result: the counts of the queue's availability map, which were added */
	int64		n[JOB_COUNTERS];

	TupleDesc	desc;			/* for counters_table.c */
} CounterAddition;

/* The content of a row, together with counts that were not written yet */
typedef struct CounterRow
{
	Oid			extension;
	int32		queue_id;
	int64		n[JOB_COUNTERS];
	TimestampTz since;			/* 0 if the queue does not exist */
	char	   *error;			/* or NULL */
	TimestampTz error_at;
	TupleDesc	desc;			/* for counters_table.c */
} CounterRow;

extern bool counters_table_add(CounterAddition *add);
extern void counters_table_read(CounterRow *row);
extern List *counters_table_with_errors(void);

#endif							/* QUEUE_COUNTERS_TABLE_H */
