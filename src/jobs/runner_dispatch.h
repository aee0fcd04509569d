/*-------------------------------------------------------------------------
 *
 * runner_dispatch.h
 *	  Calling and starting runners for queues that have jobs.
 *
 * src/jobs/runner_dispatch.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_RUNNER_DISPATCH_H
#define QUEUE_RUNNER_DISPATCH_H

#include "jobs/handler.h"

extern void runner_dispatch(HandlerSummary *const *handlers, int n,
							bool has_more);
extern int64 runner_dispatch_due(void);

#endif							/* QUEUE_RUNNER_DISPATCH_H */
