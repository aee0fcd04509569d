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

#include "catalog/tables.h"

/* An error is stored in a column of this width. */
#define COUNTER_ERROR_LENGTH	1000	/* bytes */

/* What is to be added to the row of a queue */
typedef struct CounterAddition
{
	Oid			extension;
	int32		queue_id;
	bool		from_map;		/* add the counts of the queue's availability
								 * map, and set those to 0; n is not used */
	int64		n[JOB_COUNTERS];
	const char *error;			/* or NULL */
	TimestampTz error_at;
	TupleDesc	desc;			/* for counters_table.c */
} CounterAddition;

/* The effect of counters_table_add */
typedef enum CounterWrite
{
	COUNTERS_NOT_WRITTEN,		/* the row is locked; try again later */
	COUNTERS_WRITTEN,			/* whether or not the transaction commits */
	COUNTERS_WRITTEN_IF_COMMITTED
} CounterWrite;

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

extern CounterWrite counters_table_add(CounterAddition *add);
extern void counters_table_read(CounterRow *row);

#endif							/* QUEUE_COUNTERS_TABLE_H */
