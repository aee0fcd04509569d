/*-------------------------------------------------------------------------
 *
 * run.h
 *	  A run of jobs: the life of a runner, or a call of job_run; and its
 *	  batches of messages.
 *
 * src/jobs/run.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_RUN_H
#define QUEUE_RUN_H

#include "nodes/pg_list.h"

#include "jobs/handler.h"
#include "jobs/job_transaction.h"
#include "queue/message_result.h"
#include "queue/registry.h"

/* What has failed */
typedef enum JobLogEvent
{
	JOB_LOG_ATTEMPT,			/* the handler's function */
	JOB_LOG_COMPLETION,			/* the function returned true, but its message
								 * could not be deleted */
	JOB_LOG_RETRY,				/* giving a message back after a failure */
	JOB_LOG_BURY,				/* making it a dead letter; it is retried */
	JOB_LOG_TEARDOWN,			/* the teardown function */
	JOB_LOG_CLAIM,				/* claiming jobs */
	JOB_LOG_RELEASE				/* giving back jobs that were not run */
} JobLogEvent;

/* What a process has logged */
typedef struct JobLog
{
	int			elevel;			/* LOG, or WARNING for the session's client */
	int64		interval_began; /* monotonic clock */
	int			logged;			/* failures in this interval */
	int64		suppressed;		/* more of them, which were not logged */
} JobLog;

/* When no more jobs are to begin */
typedef struct RunLimits
{
	int64		max_jobs;		/* attempts */
	int64		until;			/* monotonic clock */
} RunLimits;

/* Attempts to run jobs, so far */
typedef struct RunCounts
{
	int64		ok;
	int64		failed;
} RunCounts;

/* One of the slots of a queue, by which its concurrency is limited */
typedef struct RunSlot
{
	int32		queue_id;
	int			number;			/* -1 if none is held */
} RunSlot;

/* A runner's life, or a call of job_run */
typedef struct Run
{
	Oid			extension;		/* the OID of its table queue */
	bool		is_orphan;		/* the extension was found to be dropped */
	bool		is_renewed;		/* the worker renews the run's claims */
	int64		began_at;		/* monotonic clock */
	RunLimits	limits;
	RunCounts	counts;
	HandlerList handlers;
	List	   *stopped;		/* queues whose handler was reported to be
								 * unable to run; in the next field */
	MemoryContext context;
	RunSlot		slot;
	JobTransaction transaction;
	JobLog		log;
} Run;

extern void run_init(Run *run, bool is_session);
extern bool run_is_over(const Run *run);
extern bool run_acquire_slot(Run *run, const Handler *handler);
extern void run_release_slot(Run *run);

/* Logging failures */
extern void job_log_end_interval(JobLog *log);

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
extern void batch_log(Batch *batch, JobLogEvent event,
					  const ErrorData *error);

#endif							/* QUEUE_RUN_H */
