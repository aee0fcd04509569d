/*-------------------------------------------------------------------------
 *
 * runner_dispatch.h
 *	  Calling and starting runners for queues that have jobs, and looking after
 *	  them.
 *
 * src/jobs/runner_dispatch.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_RUNNER_DISPATCH_H
#define QUEUE_RUNNER_DISPATCH_H

#include "jobs/handler.h"
#include "jobs/runner_pool.h"

extern void runner_dispatch(HandlerSummary *const *handlers, int n,
							bool has_more);

/* Runners that need the worker */
extern TimestampTz runner_watch_next_due(void);
extern bool runner_watch_take_due(Runner *due);
extern void runner_watch_done(const Runner *done);
extern bool runner_watch_is_pending(void);

#endif							/* QUEUE_RUNNER_DISPATCH_H */
