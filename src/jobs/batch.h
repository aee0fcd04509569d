/*-------------------------------------------------------------------------
 *
 * batch.h
 *	  Messages that were claimed at once, and their jobs.
 *
 * src/jobs/batch.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_BATCH_H
#define QUEUE_BATCH_H

#include "jobs/handler.h"
#include "jobs/job_call.h"
#include "jobs/job_log.h"
#include "jobs/job_transaction.h"
#include "jobs/run.h"
#include "queue/message_result.h"
#include "queue/registry.h"

/* How long a runner waits for locks outside of the calls of handlers */
#define RUNNER_LOCK_TIMEOUT		"100ms"

/* Messages that were claimed at once, and their jobs; see JobAction */
struct Batch
{
	Run		   *run;
	Handler    *handler;

	/* the request */
	int			ttl;			/* of the claim, in seconds */
	int64		claimed_at;		/* monotonic clock */

	/* what was claimed */
	MessageResult result;
	bool		has_more;		/* as many messages were claimed as wanted */
	const char *stopped;		/* why the handler cannot run, or NULL */

	/* the jobs */
	JobFunctions functions;
	int			current;		/* the index of the current job's message */
	bool		no_slot;		/* all slots were taken, so the current job
								 * was not run */
	bool		was_begun;		/* its function was called */
	bool		is_deleting;	/* it has returned true */
	bool		was_canceled;	/* it was interrupted, since its message was
								 * canceled */
	Jsonb	   *job_result;		/* what it has called job_result with, or NULL */
	const char *reason;			/* of its failure, or NULL */
	ErrorData  *error;			/* with which it was rolled back, or NULL */
};

static inline ResultMessage *
batch_current_message(const Batch *batch)
{
	return &batch->result.messages[batch->current];
}

extern ErrorData *batch_execute(Batch *batch, JobAction action);
extern bool batch_open_queue(const Batch *batch, Queue *queue);
extern void batch_limit_lock_wait(const Batch *batch, const char *timeout);
extern void batch_stop(Batch *batch, const char *reason);
extern void batch_log(Batch *batch, JobLogEvent event,
					  const ErrorData *error);

#endif							/* QUEUE_BATCH_H */
