/*-------------------------------------------------------------------------
 *
 * run.c
 *	  A run of jobs: the life of a runner, or a call of job_run; and its
 *	  batches of messages.
 *
 * NOTES
 *	  The number of jobs of a queue that run at the same time is limited by
 *	  slots.  Each is a session-level lock that a run holds while it works on
 *	  a batch of the queue's jobs.  So the limit covers all sessions, and the
 *	  slot is free when the process has ended, in whatever way
 *	  (session_lock.c).  An aborted transaction releases it too; then
 *	  slot.number is -1.
 *
 *	  A runner writes failures of jobs to the server's log; a session in job_run
 *	  sends them to its client as warnings.  A handler that always fails must
 *	  not fill the disk, so only LOG_MAX failures are logged in each
 *	  LOG_INTERVAL, and each part of a handler's error is clipped to LOG_LENGTH.
 *
 * src/jobs/run.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "datatype/timestamp.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "jobs/run.h"
#include "queue/queue_lock.h"
#include "util/args.h"
#include "util/clock.h"
#include "util/settings.h"

#define LOG_LENGTH			500 /* bytes */
#define LOG_MAX				20
#define LOG_INTERVAL		(10 * USECS_PER_SEC)

/* What is logged, of the queue's name, the error's message and the job's id */
static const char *const event_formats[] = {
	[JOB_LOG_ATTEMPT] = "job %3$lld of queue \"%1$s\" failed: %2$s",
	[JOB_LOG_COMPLETION] = "completion of job %3$lld of queue \"%1$s\" failed: %2$s",
	[JOB_LOG_RETRY] = "could not give back job %3$lld of queue \"%1$s\": %2$s",
	[JOB_LOG_BURY] = "job %3$lld of queue \"%1$s\" could not become a dead letter, and will be retried: %2$s",
	[JOB_LOG_TEARDOWN] = "teardown of job %3$lld of queue \"%1$s\" failed: %2$s",
	[JOB_LOG_CLAIM] = "could not claim jobs of queue \"%1$s\": %2$s",
	[JOB_LOG_RELEASE] = "could not release a claim of queue \"%1$s\": %2$s"
};

/* Get ready to run jobs, as the current role. */
void
run_init(Run *run, bool is_session)
{
	memset(run, 0, sizeof(Run));
	run->is_renewed = !is_session;
	run->began_at = clock_monotonic();
	run->limits.max_jobs = PG_INT64_MAX;
	run->limits.until = PG_INT64_MAX;
	run->slot.number = -1;
	run->context = CurrentMemoryContext;
	run->handlers.context = AllocSetContextCreate(CurrentMemoryContext,
												  "handlers",
												  ALLOCSET_DEFAULT_SIZES);
	job_transaction_init(&run->transaction, is_session);
	run->log.elevel = is_session ? WARNING : LOG;
	job_log_end_interval(&run->log);
}

/* Returns whether no other job may begin, because a limit is reached. */
bool
run_is_over(const Run *run)
{
	return run->counts.ok + run->counts.failed >= run->limits.max_jobs ||
		clock_monotonic() >= run->limits.until;
}

/*
 * Take one of the handler's slots, unless the run holds one.  Returns false if
 * all are taken.
 */
bool
run_acquire_slot(Run *run, const Handler *handler)
{
	if (run->slot.number < 0)
		run->slot.number =
			queue_lock_acquire_slot(handler->row.queue_id,
									handler->row.options.concurrency);
	run->slot.queue_id = handler->row.queue_id;
	return run->slot.number >= 0;
}

/* Release the slot that the run holds, if any. */
void
run_release_slot(Run *run)
{
	if (run->slot.number >= 0)
		queue_lock_release_slot(run->extension, run->slot.queue_id,
								run->slot.number);
	run->slot.number = -1;
}

/* --- The messages that were claimed at once --- */

/* Execute an action on a batch in a transaction of its own. */
ErrorData *
batch_execute(Batch *batch, JobAction action)
{
	Run		   *run = batch->run;
	ErrorData  *error = job_transaction_run(&run->transaction,
											batch->handler, action, batch);

	/* We do not rely on what an aborted call has left in fn_extra. */
	if (error != NULL)
		batch->functions.is_valid = false;

	/* The abort has released the slot, which is a session-level lock. */
	if (run->transaction.lost_locks)
		run->slot.number = -1;
	return error;
}

/*
 * Open the batch's queue for claims.  Returns false if it was dropped, even
 * if another queue has its name by now, or if it is on another server.
 */
bool
batch_open_queue(const Batch *batch, Queue *queue)
{
	return queue_open_local(batch->handler->queue.name, QUEUE_CLAIM, queue) &&
		queue->id == batch->handler->row.queue_id;
}

/*
 * Let a runner wait for locks no longer than this, until the transaction ends:
 * a role that holds a lock must not keep a runner from other roles.  A session
 * has its own lock_timeout.
 */
void
batch_limit_lock_wait(const Batch *batch, const char *timeout)
{
	if (!batch->run->transaction.is_session)
		settings_set("lock_timeout", timeout, false);
}

/* --- Logging failures --- */

/* Log a failure of the batch, or of its current job. */
void
batch_log(Batch *batch, JobLogEvent event, const ErrorData *error)
{
	JobLog	   *log = &batch->run->log;
	MemoryContext old = CurrentMemoryContext;
	bool		begin = !IsTransactionState();
	int64		id = batch->result.n == 0 ? 0 :
	batch_current_message(batch)->id;

	/*
	 * When the extension was dropped while jobs ran, nothing is left that
	 * could be done about the failure.
	 */
	if (begin)
		StartTransactionCommand();
	batch->run->is_orphan =
		!SearchSysCacheExists1(RELOID,
							   ObjectIdGetDatum(batch->run->extension));
	if (begin)
		CommitTransactionCommand();
	MemoryContextSwitchTo(old);
	if (batch->run->is_orphan)
		return;
	if (clock_monotonic() >= log->interval_began + LOG_INTERVAL)
		job_log_end_interval(log);
	if (log->logged >= LOG_MAX)
	{
		log->suppressed++;
		return;
	}
	log->logged++;

	/* errcontext() is two expressions, so it cannot stand behind the colon. */
	ereport(log->elevel,
			(errcode(error->sqlerrcode),
			 errmsg(event_formats[event], batch->handler->queue.name,
					arg_clip(error->message, LOG_LENGTH), (long long) id),
			 error->detail ?
			 errdetail_internal("%s", arg_clip(error->detail, LOG_LENGTH)) : 0,
			 error->hint ? errhint("%s", arg_clip(error->hint, LOG_LENGTH)) : 0,
			 error->context ?
			 errcontext("%s", arg_clip(error->context, LOG_LENGTH)) : 0));
}

/* Begin a new interval; report how many failures were not logged. */
void
job_log_end_interval(JobLog *log)
{
	if (log->suppressed > 0)
		ereport(log->elevel,
				(errmsg("%lld more failures of jobs were not logged",
						(long long) log->suppressed),
				 errdetail("At most %d are logged in %d seconds.", LOG_MAX,
						   (int) (LOG_INTERVAL / USECS_PER_SEC)),
				 errhint("job_stats shows the last error of a queue, and queue_dead_letters that of each dead letter.")));
	log->interval_began = clock_monotonic();
	log->logged = 0;
	log->suppressed = 0;
}
