/*-------------------------------------------------------------------------
 *
 * execute.c
 *	  Running jobs: calling handlers with the messages of their queues.
 *
 * NOTES
 *	  Background processes (runner.c) and sessions in job_run
 *	  (session_runner.c) run jobs in the same way.  A job is a message of a
 *	  queue that has a handler.  Each attempt to run a job takes these steps:
 *
 *	  1. Claim.  One transaction claims a batch of messages, so that the
 *		 attempt is counted in their claim_count whatever happens next.  It
 *		 checks the handler first.  If that cannot run (JOB_STOPPED), the
 *		 queue is paused instead.
 *
 *	  2. Slot.  The transaction of the claim also takes one of the handler's
 *		 slots, a session-level lock that is held until the batch is done.
 *		 An aborted transaction releases it, so each job takes one again if
 *		 necessary.  If there is none (JOB_NO_SLOT), the rest of the batch is
 *		 given back.
 *
 *	  3. Call.  Each job has a transaction of its own, in which the handler's
 *		 function is called and, if it returns true, the message is deleted.
 *		 When that commits, the job is done (JOB_DONE).
 *
 *	  4. Failure.  If the function returns false, raises an error or exceeds
 *		 its time limit, that transaction is rolled back (JOB_FAILED, or
 *		 JOB_CANCELED if the user has canceled the session).  If the message
 *		 cannot be deleted because it is no longer under the claim
 *		 (JOB_CLAIM_LOST), that is rolled back too.
 *
 *	  5. Teardown.  Another transaction calls the teardown function, if there
 *		 is one, whether the job was done or has failed.  Its errors are
 *		 logged and change nothing.
 *
 *	  6. Retry.  After a failure a third transaction gives the message back
 *		 with the error (claim_retry_job), so that it is retried after a
 *		 delay or goes to the dead letter queue.
 *
 *	  7. The end of the batch.  Messages that were not attempted are given
 *		 back; their attempt does not count.
 *
 *	  A process may end at any point.  Before step 3 has committed, nothing of
 *	  the job's effects exists; the worker gives the messages back that a
 *	  runner has left (runner_pool.c), and after a crash of the server the
 *	  claims run out.
 *
 *	  Slots are locks, so they limit the concurrency of all sessions, also
 *	  without shared memory, and a crash releases them.  No other lock is held
 *	  while a handler's function runs.  So its queue may be dropped or purged;
 *	  then the deletion finds the claim gone, and the job is rolled back.
 *
 *	  The worker renews the claim of a message whose job runs.  Where there is
 *	  no worker, the claim is made for as long as the job may run.
 *
 *	  With synchronous_commit off, a crash loses the last commits.  If the
 *	  claim of a job that crashes the server were among them each time, its
 *	  attempts would never be counted and it would do so forever.  So two kinds
 *	  of claims are flushed to disk before their jobs begin, whatever the
 *	  setting: those of a runner's first second (SYNC_TIME), and those of
 *	  messages that were attempted before, which are claimed alone.  After each
 *	  restart the server gets further, until such a job is among these.
 *
 * src/jobs/execute.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "jobs/execute.h"
#include "jobs/handler.h"
#include "jobs/handler_check.h"
#include "jobs/job_call.h"
#include "jobs/job_log.h"
#include "jobs/job_timeout.h"
#include "jobs/job_transaction.h"
#include "jobs/runner_pool.h"
#include "queue/claim.h"
#include "queue/claim_message.h"
#include "queue/claim_update.h"
#include "queue/message_result.h"
#include "queue/queue_lock.h"
#include "queue/registry.h"
#include "shmem/shmem.h"
#include "util/clock.h"
#include "util/errcodes.h"

/*
 * The size of batches: it doubles when a batch was quick, and halves when it
 * was slow.  A batch ends early when it takes too long, so that others get the
 * rest of its messages.
 */
#define BATCH_MAX			64
#define BATCH_QUICK			(5 * 1000)	/* usec */
#define BATCH_SLOW			(50 * 1000)
#define BATCH_TOO_SLOW		USECS_PER_SEC

#define SLICE				(100 * 1000)	/* usec for a queue before the
											 * next one */
#define SYNC_TIME			USECS_PER_SEC

/* How long a queue is left alone, in usec */
#define SLOT_PAUSE			(50 * 1000) /* when all slots are taken */
#define EMPTY_PAUSE			(20 * 1000) /* when it is flagged as ready, but
										 * nothing could be claimed */
#define ERROR_PAUSE			USECS_PER_SEC

/* Times of claims, in seconds */
#define TTL_MARGIN			5	/* beyond the time limit */
#define TTL_RENEWED			30	/* when the worker renews it */
#define GRACE				3600
#define TERMINATE_MARGIN	5	/* from the cancel to the termination */

#define LOCK_TIMEOUT		"100ms"
#define DELETE_TIMEOUT		"1s"	/* then the attempt has failed */

/* What became of an attempt; the numbers are those of the steps above. */
typedef enum JobOutcome
{
	JOB_NO_SLOT,				/* 2: not run, no slot is free */
	JOB_STOPPED,				/* 2: not run, the handler cannot run */
	JOB_DONE,					/* 3 */
	JOB_FAILED,					/* 4 */
	JOB_CANCELED,				/* 4: the session was canceled */
	JOB_CLAIM_LOST				/* 4: the message is not under the claim */
} JobOutcome;

/* Messages that were claimed at once, and their jobs */
typedef struct Batch
{
	Run		   *run;
	Handler    *handler;

	/* the request */
	int			limit;			/* messages */
	int			ttl;			/* of the claim, in seconds */
	int64		claimed_at;		/* monotonic clock */

	/* what was claimed */
	MessageResult result;
	bool		has_more;		/* as many were claimed as wanted */
	const char *stopped;		/* why the handler cannot run, or NULL */

	/* the jobs */
	JobFunctions functions;
	int			current;		/* the index of the current job's message */
	bool		no_slot;		/* there was none for the current job */
	bool		is_deleting;	/* its function has returned true */
	bool		was_retried;	/* its message was given back */
	const char *reason;			/* of its failure, or NULL */
	ErrorData  *error;			/* with which it was rolled back, or NULL */
} Batch;

static ErrorData *attempt(Batch *batch, JobAction action);
static void log_failure(Batch *batch, JobLogEvent event,
						const ErrorData *error);
static ResultMessage *current_message(Batch *batch);
static bool open_queue(const Batch *batch, Queue *queue);
static bool take_slot(Run *run, const Handler *handler);

static void stop_handler(Batch *batch, const char *reason);
static int	limit_by_rate(Batch *batch);
static void claim(void *arg);
static void prepare(Batch *batch);
static void delete_message(Batch *batch);
static void run_handler(void *arg);
static void run_teardown(void *arg);
static void retry_message(void *arg);
static void release_rest(void *arg);
static void pause_queue(void *arg);

static void set_deadline(Batch *batch);
static bool was_canceled_by_user(const Run *run, const ErrorData *error);
static JobOutcome classify(const Batch *batch);
static void fail(Batch *batch);
static void tear_down(Batch *batch);
static void retry(Batch *batch);
static void retry_lost(Batch *batch);
static JobOutcome run_job(Batch *batch);
static bool must_end_early(const Batch *batch);
static void run_batch(Batch *batch);
static void adapt_batch_size(const Batch *batch);
static int	claim_ttl(const Run *run, const Handler *handler);
static void claim_batch(Batch *batch);
static void pause_stopped_queue(Batch *batch);

/* --- Helpers --- */

/* Execute an action on a batch in a transaction of its own. */
static ErrorData *
attempt(Batch *batch, JobAction action)
{
	Run		   *run = batch->run;
	ErrorData  *error = job_transaction_run(&run->transaction,
											batch->handler, action, batch);

	if (run->transaction.lost_locks)
		run->slot.number = -1;
	return error;
}

static void
log_failure(Batch *batch, JobLogEvent event, const ErrorData *error)
{
	int64		id = batch->result.n == 0 ? 0 :
		current_message(batch)->id;

	job_log(&batch->run->log, event, batch->handler->name, id, error);
}

static ResultMessage *
current_message(Batch *batch)
{
	return &batch->result.messages[batch->current];
}

/* Open the batch's queue for claims.  Returns false if it was dropped. */
static bool
open_queue(const Batch *batch, Queue *queue)
{
	return queue_open(batch->handler->name, QUEUE_CLAIM, queue) &&
		queue->id == batch->handler->row.queue_id;
}

/*
 * Take one of the handler's slots, unless the run holds one.  Returns false if
 * all are taken.
 */
static bool
take_slot(Run *run, const Handler *handler)
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
run_give_slot(Run *run)
{
	if (run->slot.number >= 0)
		queue_lock_release_slot(run->extension, run->slot.queue_id,
							 run->slot.number);
	run->slot.number = -1;
}

/* --- What is done in transactions --- */

static void
stop_handler(Batch *batch, const char *reason)
{
	batch->stopped =
		MemoryContextStrdup(batch->run->transaction.error_context, reason);
}

/* How many messages may be claimed, by the batch's limit and the rate? */
static int
limit_by_rate(Batch *batch)
{
	Handler    *handler = batch->handler;
	TimestampTz now = GetCurrentTimestamp();
	int			limit = batch->limit;

	if (handler->row.options.rate > 0)
	{
		limit = Min(limit, handler_allowance(handler, now));
		if (limit == 0)
			handler->not_before = batch->claimed_at +
				(handler->row.next_at - now);
	}
	return limit;
}

/* Step 1 and 2: claim messages, if the handler can run, and may run now. */
static void
claim(void *arg)
{
	Batch	   *batch = (Batch *) arg;
	Run		   *run = batch->run;
	Handler    *handler = batch->handler;
	MessageResult *result = &batch->result;
	Queue		queue;
	ClaimTerms	terms;
	const char *problem;
	int			limit;

	job_transaction_limit_lock_wait(&run->transaction, LOCK_TIMEOUT);
	batch->claimed_at = clock_monotonic();
	problem = handler_check(handler);
	if (problem != NULL)
	{
		stop_handler(batch, problem);
		return;
	}

	/* With the queue open, check that the handler is still that of it. */
	if (!open_queue(batch, &queue) || queue.paused ||
		!handler_is_current(&run->handlers.version))
		return;
	if (!take_slot(run, handler))
	{
		handler->not_before = batch->claimed_at + SLOT_PAUSE;
		return;
	}
	limit = limit_by_rate(batch);
	if (limit == 0)
		return;

	message_result_to_array(result, run->transaction.error_context, limit);
	terms.ttl = batch->ttl;
	terms.grace = GRACE;
	terms.limit = limit;
	batch->has_more = claim_for_handler(&queue, &terms, result) == limit;
	if (result->n == 0)
		return;
	if (handler->row.options.rate > 0)
		handler_spend(handler, result->n);
	if (batch->claimed_at < run->began_at + SYNC_TIME ||
		result->messages[0].claim_count > 1)
		ForceSyncCommit();
}

/*
 * Get ready to call the handler's functions.  Sets batch->stopped if they
 * cannot be called any more.
 */
static void
prepare(Batch *batch)
{
	Handler    *handler = batch->handler;

	if (!handler_is_same(handler))
	{
		const char *problem = handler_check(handler);

		batch->functions.is_valid = false;
		if (problem != NULL)
		{
			stop_handler(batch, problem);
			return;
		}
	}
	if (!batch->functions.is_valid)
		job_call_prepare(handler, &batch->functions,
						 batch->run->transaction.error_context);
}

/* Delete the message of the current job. */
static void
delete_message(Batch *batch)
{
	Queue		queue;

	/* Do not wait for long for a session that alters or drops the queue. */
	if (!queue_lock_try(batch->handler->row.queue_id))
		job_transaction_limit_lock_wait(&batch->run->transaction,
										DELETE_TIMEOUT);
	if (!open_queue(batch, &queue) ||
		!claim_delete_message(&queue, current_message(batch)->id,
							  &batch->result.claim))
		claim_not_live();
}

/* Steps 2 and 3: run the current job and delete its message. */
static void
run_handler(void *arg)
{
	Batch	   *batch = (Batch *) arg;
	Run		   *run = batch->run;

	batch->no_slot = !take_slot(run, batch->handler);
	if (batch->no_slot)
		return;
	prepare(batch);
	if (batch->stopped != NULL)
		return;
	if (!job_call_handler(&run->transaction, batch->handler,
						  &batch->functions, current_message(batch)))
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
				 errmsg("handler returned false")));
	batch->is_deleting = true;
	delete_message(batch);
	job_timeout_end();
}

/* Step 5 */
static void
run_teardown(void *arg)
{
	Batch	   *batch = (Batch *) arg;

	prepare(batch);
	if (batch->stopped == NULL)
		job_call_teardown(&batch->run->transaction, batch->handler,
						  &batch->functions, current_message(batch));
}

/* Step 6 */
static void
retry_message(void *arg)
{
	Batch	   *batch = (Batch *) arg;
	Queue		queue;
	TimestampTz due;

	job_transaction_limit_lock_wait(&batch->run->transaction, LOCK_TIMEOUT);
	batch->was_retried = false;
	if (!open_queue(batch, &queue))
		return;
	(void) claim_retry_job(&queue, current_message(batch)->id,
						   &batch->result.claim, batch->reason,
						   LockWaitBlock, &due);
	batch->was_retried = true;
}

/* Step 7: give back the messages that are still under the claim. */
static void
release_rest(void *arg)
{
	Batch	   *batch = (Batch *) arg;
	Queue		queue;

	job_transaction_limit_lock_wait(&batch->run->transaction, LOCK_TIMEOUT);
	if (open_queue(batch, &queue))
		claim_keep_only(&queue, &batch->result.claim, 0, 0, LockWaitBlock);
}

/* The handler cannot run. */
static void
pause_queue(void *arg)
{
	Batch	   *batch = (Batch *) arg;

	job_transaction_limit_lock_wait(&batch->run->transaction, LOCK_TIMEOUT);
	handler_stop(batch->handler, batch->stopped);
}

/* --- One job --- */

/* When is the worker to terminate this process, if it is still at work? */
static void
set_deadline(Batch *batch)
{
	pool_set_message(current_message(batch)->id,
					 handler_time_limit(batch->handler) + TERMINATE_MARGIN);
}

/*
 * Was the session canceled from outside?  A handler, perhaps of another role,
 * can raise the same SQLSTATE, but only the server raises it there.
 */
static bool
was_canceled_by_user(const Run *run, const ErrorData *error)
{
	return run->transaction.is_session && !job_timeout_has_fired() &&
		error->sqlerrcode == ERRCODE_QUERY_CANCELED &&
		error->funcname != NULL &&
		strcmp(error->funcname, "ProcessInterrupts") == 0;
}

/* What became of the attempt that batch->error is the end of? */
static JobOutcome
classify(const Batch *batch)
{
	if (batch->error == NULL)
		return batch->no_slot ? JOB_NO_SLOT :
			batch->stopped != NULL ? JOB_STOPPED : JOB_DONE;
	if (batch->is_deleting &&
		batch->error->sqlerrcode == ERRCODE_CLAIM_NOT_LIVE)
		return JOB_CLAIM_LOST;
	if (was_canceled_by_user(batch->run, batch->error))
		return JOB_CANCELED;
	return JOB_FAILED;
}

/* Step 4 */
static void
fail(Batch *batch)
{
	ErrorData  *error = batch->error;

	if (job_timeout_has_fired() &&
		error->sqlerrcode == ERRCODE_QUERY_CANCELED)
	{
		MemoryContext old =
			MemoryContextSwitchTo(batch->run->transaction.error_context);

		error->message = psprintf("timeout of %d s",
								  handler_time_limit(batch->handler));
		MemoryContextSwitchTo(old);
	}
	batch->run->counts.failed++;
	batch->reason = error->message;
	log_failure(batch, JOB_LOG_ATTEMPT, error);
}

static void
tear_down(Batch *batch)
{
	ErrorData  *error;

	if (!handler_has_teardown(batch->handler))
		return;
	set_deadline(batch);
	error = attempt(batch, run_teardown);
	if (error != NULL)
	{
		batch->functions.is_valid = false;
		log_failure(batch, JOB_LOG_TEARDOWN, error);
	}
}

/* Give the message back, unless it is not under the claim any more. */
static void
retry(Batch *batch)
{
	ErrorData  *error = attempt(batch, retry_message);

	if (error != NULL && error->sqlerrcode != ERRCODE_CLAIM_NOT_LIVE &&
		error->sqlerrcode != ERRCODE_MESSAGE_NOT_IN_CLAIM)
		log_failure(batch, JOB_LOG_RETRY, error);
}

/*
 * The message was not under the claim.  If the handler itself has ended the
 * claim, that was rolled back, so the message can be given back now: the
 * attempt has failed.  Otherwise another session has ended it, or it ran out.
 */
static void
retry_lost(Batch *batch)
{
	ErrorData  *lost = batch->error;

	batch->reason = "handler has ended the claim of its own message";
	if (attempt(batch, retry_message) == NULL && batch->was_retried)
	{
		batch->run->counts.failed++;
		lost->message = unconstify(char *, batch->reason);
		lost->detail = NULL;
		lost->hint = "A message is deleted when its handler returns true; do not delete it, or end its claim, in the handler.";
	}
	log_failure(batch, JOB_LOG_COMPLETION, lost);
}

/* Run the current job: steps 2 to 6. */
static JobOutcome
run_job(Batch *batch)
{
	JobOutcome	outcome;

	set_deadline(batch);
	batch->no_slot = batch->is_deleting = false;
	batch->error = attempt(batch, run_handler);
	outcome = classify(batch);
	switch (outcome)
	{
		case JOB_NO_SLOT:
		case JOB_STOPPED:
			return outcome;
		case JOB_DONE:
			batch->run->counts.ok++;
			tear_down(batch);
			break;
		case JOB_FAILED:
		case JOB_CANCELED:
			batch->functions.is_valid = false;
			fail(batch);
			tear_down(batch);
			retry(batch);
			break;
		case JOB_CLAIM_LOST:
			batch->functions.is_valid = false;
			tear_down(batch);
			retry_lost(batch);
			break;
	}
	if (!batch->run->transaction.is_session)
		job_call_discard();
	MemoryContextReset(batch->run->transaction.job_context);
	return outcome;
}

/* --- Batches --- */

/* May no other job begin? */
bool
run_is_over(const Run *run)
{
	return run->counts.ok + run->counts.failed >= run->limits.max_jobs ||
		clock_monotonic() >= run->limits.until;
}

/* Are the rest of the batch's messages to be left to others? */
static bool
must_end_early(const Batch *batch)
{
	return run_is_over(batch->run) || pool_must_leave() || ProcDiePending ||
		clock_monotonic() > batch->claimed_at + BATCH_TOO_SLOW;
}

/* Run the jobs that were claimed: steps 2 to 7. */
static void
run_batch(Batch *batch)
{
	int			n = batch->result.n;
	JobOutcome	outcome = JOB_DONE;

	pool_set_claim(batch->handler->row.queue_id, &batch->result.claim,
				   batch->ttl, n > 1);
	pool_set_more(batch->has_more);
	for (batch->current = 0; batch->current < n; batch->current++)
	{
		if (batch->current > 0 && must_end_early(batch))
			break;
		outcome = run_job(batch);
		if (outcome == JOB_CANCELED || outcome == JOB_NO_SLOT ||
			batch->stopped != NULL)
			break;
	}
	if (batch->current < n)
	{
		ErrorData  *error = attempt(batch, release_rest);

		if (error != NULL)
			log_failure(batch, JOB_LOG_RELEASE, error);
	}
	pool_clear_claim();
	if (outcome == JOB_CANCELED)
		ReThrowError(batch->error);
}

/* How many messages are to be claimed the next time? */
static void
adapt_batch_size(const Batch *batch)
{
	int64		elapsed = clock_monotonic() - batch->claimed_at;
	Handler    *handler = batch->handler;

	if (elapsed > BATCH_SLOW)
		handler->batch_size = Max(handler->batch_size / 2, 1);
	else if (elapsed < BATCH_QUICK &&
			 batch->result.n == handler->batch_size)
		handler->batch_size = Min(handler->batch_size * 2, BATCH_MAX);
}

/* The time for which messages are claimed; covers the teardown function. */
static int
claim_ttl(const Run *run, const Handler *handler)
{
	int			limit = handler_time_limit(handler);
	int			ttl = limit + TTL_MARGIN;

	if (run->is_renewed)
		return Min(ttl, TTL_RENEWED);
	return handler_has_teardown(handler) ? ttl + limit : ttl;
}

/* Step 1.  If nothing was claimed, the handler may be left alone for a while. */
static void
claim_batch(Batch *batch)
{
	Run		   *run = batch->run;
	Handler    *handler = batch->handler;
	ErrorData  *error;

	batch->limit = (int) Min(handler->batch_size,
							 run->limits.max_jobs -
							 run->counts.ok - run->counts.failed);
	batch->ttl = claim_ttl(run, handler);
	error = attempt(batch, claim);
	if (error != NULL && run->transaction.is_session)
		ReThrowError(error);
	if (error != NULL)
	{
		batch->result.n = 0;
		batch->has_more = false;
		handler->not_before = clock_monotonic() + ERROR_PAUSE;
		if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			log_failure(batch, JOB_LOG_CLAIM, error);
	}
	else if (batch->result.n == 0 && batch->stopped == NULL &&
			 pool_exists() && handler->not_before <= batch->claimed_at &&
			 shmem_is_flagged(run->extension, handler->row.queue_id,
							  MAP_READY))
		handler->not_before = batch->claimed_at + EMPTY_PAUSE;
}

static void
pause_stopped_queue(Batch *batch)
{
	ErrorData  *error;

	batch->handler->paused = true;
	error = attempt(batch, pause_queue);
	if (error != NULL)
	{
		log_failure(batch, JOB_LOG_PAUSE, error);
		batch->handler->paused = false;
		batch->handler->not_before = clock_monotonic() + ERROR_PAUSE;
	}
}

/*
 * Run jobs of one queue for a while.  Returns false if there was none; then
 * handler->not_before may say how long to leave the queue alone.
 */
bool
run_queue(Run *run, Handler *handler)
{
	int64		until = clock_monotonic() + SLICE;
	bool		result = false;
	bool		more;

	handler->batch_size = Max(handler->batch_size, 1);
	do
	{
		Batch		batch = {0};

		CHECK_FOR_INTERRUPTS();
		batch.run = run;
		batch.handler = handler;
		claim_batch(&batch);
		if (batch.result.n > 0)
		{
			result = true;
			run_batch(&batch);
			adapt_batch_size(&batch);
		}
		if (batch.stopped != NULL)
			pause_stopped_queue(&batch);
		more = batch.has_more && batch.stopped == NULL && !batch.no_slot &&
			!run_is_over(run) && !pool_must_leave() &&
			clock_monotonic() < until;
		MemoryContextReset(run->transaction.error_context);
		MemoryContextReset(run->transaction.job_context);
	} while (more);
	run_give_slot(run);
	return result;
}

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
	run->handlers.context = AllocSetContextCreate(CurrentMemoryContext,
												  "handlers",
												  ALLOCSET_DEFAULT_SIZES);
	job_transaction_init(&run->transaction, is_session);
	job_log_init(&run->log, is_session ? WARNING : LOG);
}
