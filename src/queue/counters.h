/*-------------------------------------------------------------------------
 *
 * counters.h
 *	  Counts of what becomes of messages, and each queue's last error.
 *
 * src/queue/counters.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_COUNTERS_H
#define QUEUE_COUNTERS_H

#include "catalog/tables.h"

extern void counters_init(void);
extern void counters_add(int32 queue_id, JobCounter counter, int64 n);
extern void counters_set_error(int32 queue_id, const char *error);
extern bool counters_flush_is_due(void);
extern bool counters_flush(uint32 *from, int max);
extern void counters_flushed(int64 began);
extern void counters_flush_again(void);
extern void counters_drop(int32 queue_id);

#endif							/* QUEUE_COUNTERS_H */
