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

#include "stats/counters_table.h"

extern void counters_init(void);

/* Counting (see also counts.h), and reading what was counted */
extern void counters_set_error(int32 queue_id, const char *error);
extern void counters_read(int32 queue_id, CounterRow *row);
extern List *counters_with_errors(void);

/* For the worker: moving counts and errors to the table */
extern bool counters_are_pending(void);
extern bool counters_flush(uint32 *from, int max, int64 *expired);
extern void counters_flush_errors(int64 *expired);

#endif							/* QUEUE_COUNTERS_H */
