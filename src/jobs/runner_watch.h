/*-------------------------------------------------------------------------
 *
 * runner_watch.h
 *	  What the worker does for runners while they work, and after them.
 *
 * src/jobs/runner_watch.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_RUNNER_WATCH_H
#define QUEUE_RUNNER_WATCH_H

#include "jobs/runner_pool.h"

extern TimestampTz runner_watch_next_due(void);
extern bool runner_watch_take_due(Runner *due);
extern void runner_watch_done(const Runner *done);
extern bool runner_watch_is_pending(void);

#endif							/* QUEUE_RUNNER_WATCH_H */
