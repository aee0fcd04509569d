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

#include "catalog/tables.h"

/* What job_stats shows of a queue */
typedef struct CounterValues
{
	int64		n[JOB_COUNTERS];
	TimestampTz since;			/* counted since then; 0 for an unknown queue */
	text	   *last_error;		/* or NULL */
	TimestampTz last_error_at;
} CounterValues;

extern void counters_init(void);

/* Counting (see also counts.h), and reading what was counted */
extern void counters_set_error(int32 queue_id, const char *error);
extern void counters_read(int32 queue_id, CounterValues *values);

/* For the worker: moving the counts of availability maps to the table */
extern bool counters_flush_is_due(void);
extern bool counters_flush(uint32 *from, int max, int64 *expired);
extern void counters_flush_done(int64 began);
extern void counters_schedule_flush(void);

#endif							/* QUEUE_COUNTERS_H */
