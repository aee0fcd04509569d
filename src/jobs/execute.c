/*-------------------------------------------------------------------------
 *
 * execute.c
 *	  Running jobs: calling handlers with the messages of their queues.
 *
 * NOTES
 *	  Background processes (runner.c) and sessions in job_run run jobs in the
 *	  same way.  A job is a message of a queue that has a handler.  Each attempt
 *	  to run a job takes these steps, of which 2 to 6 are in job_attempt.c:
 *
 *	  1. Claim.  One transaction claims a batch of messages, so that the
 *		 attempt is counted in their claim_count whatever happens next.  It
 *		 checks the handler first.  If that cannot run, nothing is claimed,
 *		 and it is tried again after a while.
 *
 *	  2. Slot.  The transaction of the claim also takes one of the handler's
 *		 slots, which limit its concurrency (run.c), and holds it until the
 *		 batch is done.  If there is none (JOB_NOT_RUN), the rest of the batch
 *		 is given back.
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
 *		 with the error (claim_retry_message), so that it is retried after a
 *		 delay or goes to the dead letter queue.  After QU005 it goes there at
 *		 once.
 *
 *	  7. The end of the batch.  Messages that were not attempted are given
 *		 back; their attempt does not count.
 *
 *	  A process may end at any point.  Before step 3 has committed, nothing of
 *	  the job's effects exists; the worker gives the messages back that a
 *	  runner has left (worker_jobs.c), and after a crash of the server the
 *	  claims run out.
 *
 *	  No lock but the slot is held while a handler's function runs.  So its
 *	  queue may be dropped or purged; then the deletion finds the claim gone,
 *	  and the job is rolled back.
 *
 *	  A session in CALL job_run() goes round its queues and runs jobs of each
 *	  for a moment, until no queue has any or a limit is reached.  It has an
 *	  entry in the pool of runners (runner_pool.c) while it does so, by which
 *	  the database's worker renews its claims.  It is connected to SPI, and has
 *	  no snapshot between two jobs.
 *
 * src/jobs/execute.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "claim/claim.h"
#include "claim/claim_scan.h"
#include "claim/claim_update.h"
#include "jobs/execute.h"
#include "jobs/handler.h"
#include "jobs/handler_check.h"
#include "jobs/job_attempt.h"
#include "jobs/run.h"
#include "jobs/runner_pool.h"
#include "map/shmem_maps.h"
#include "queue/acl.h"
#include "queue/registry.h"
#include "shmem/database_state.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/settings.h"

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
#define EMPTY_PAUSE			(20 * 1000) /* when it is flagged as ready, but
										 * nothing could be claimed */
#define EMPTY_FACTOR		10	/* ... and so many times as long as that took */
#define ERROR_PAUSE			USECS_PER_SEC
#define STOPPED_PAUSE		USECS_PER_SEC	/* when the handler cannot run */

/* Times of claims, in seconds */
#define TTL_MARGIN			5	/* beyond the time limit */
#define TTL_RENEWED			30	/* when the worker renews it */
#define GRACE				3600

/* The queues that the caller has named; names is NULL for all of them. */
typedef struct QueueNames
{
	const char **names;
	int			n;
} QueueNames;

static int	max_messages(Batch *batch);
static void claim_jobs(Batch *batch);
static void release_rest(Batch *batch);
static void run_batch(Batch *batch);
static int	claim_ttl(const Run *run, const Handler *handler);
static void claim_batch(Batch *batch);
static void put_off_handler(Batch *batch);
static bool is_wanted_queue(const QueueNames *queues, const char *name);
static void check_queue_names(const QueueNames *queues);
static void read_wanted_handlers(Run *run, const QueueNames *queues);
static RunEnd run_until_limit(Run *run, const QueueNames *queues);

/* --- In transactions --- */

/*
 * Returns how many messages may be claimed, by the size of batches, the limit
 * of the run and the rate.  If the rate allows none, this sets how long the
 * handler is to be left alone.
 */
static int
max_messages(Batch *batch)
{
	Run		   *run = batch->run;
	Handler    *handler = batch->handler;
	TimestampTz now = GetCurrentTimestamp();
	int			limit = (int) Min(handler->batch_size,
								  run->limits.max_jobs -
								  run->counts.ok - run->counts.failed);

	if (handler->row.options.rate > 0)
	{
		limit = Min(limit, handler_allowance(handler, now));

		/* next_at is by the clock that may be set, and not_before is not. */
		if (limit == 0)
			handler->not_before = batch->claimed_at +
				(handler->row.next_at - now);
	}
	return limit;
}

/* Step 1 and 2: claim messages, if the handler can run, and may run now. */
static void
claim_jobs(Batch *batch)
{
	Run		   *run = batch->run;
	Handler    *handler = batch->handler;
	MessageResult *result = &batch->result;
	Queue		queue;
	ClaimTerms	terms = {0};
	const char *problem;
	int			limit;

	batch_limit_lock_wait(batch, RUNNER_LOCK_TIMEOUT);
	batch->claimed_at = clock_monotonic();
	problem = handler_check(handler);
	if (problem != NULL)
	{
		/* execute_queue() then puts it off. */
		batch->stopped = MemoryContextStrdup(run->transaction.error_context,
											 problem);
		return;
	}
	handler->is_stopped = false;
	run->stopped = list_delete_int(run->stopped, handler->row.queue_id);

	/*
	 * We checked the handler before we opened the queue.  It may have been
	 * bound anew since; then the caller reads the handlers again.
	 */
	if (!batch_open_queue(batch, &queue) || queue.paused ||
		!handler_is_current(&run->handlers.version))
		return;

	/* No process tells us when a slot comes free, so we try again later. */
	if (!run_acquire_slot(run, handler))
		return;
	limit = max_messages(batch);
	if (limit == 0)
		return;

	memset(result, 0, sizeof(MessageResult));
	result->context = run->transaction.error_context;
	result->messages = MemoryContextAlloc(result->context,
										  limit * sizeof(ResultMessage));
	terms.ttl = batch->ttl;
	terms.grace = GRACE;
	terms.limit = limit;
	batch->has_more = claim_for_handler(&queue, &terms, result) == limit;
	if (result->n == 0)
		return;
	if (handler->row.options.rate > 0)
		handler_spend(handler, result->n);

	/*
	 * With synchronous_commit off, a crash loses the last commits.  If the
	 * claim of a job that crashes the server were among them each time, its
	 * attempts would never be counted, and it would crash the server for
	 * ever.  So we flush the claims of a runner's first second, and those of
	 * messages that were attempted before, which are claimed alone.  After
	 * each restart the server gets further, until such a job is among these.
	 */
	if (batch->claimed_at < run->began_at + SYNC_TIME ||
		result->messages[0].claim_count > 1)
		ForceSyncCommit();
}

/* Step 7: give back the messages that are still under the claim. */
static void
release_rest(Batch *batch)
{
	Queue		queue;

	batch_limit_lock_wait(batch, RUNNER_LOCK_TIMEOUT);

	/* The messages of a queue that was dropped are gone. */
	if (batch_open_queue(batch, &queue))
		claim_keep_only(&queue, &batch->result.claim, 0, 0);
}

/* --- Batches --- */

/* Run the jobs that were claimed: steps 2 to 7. */
static void
run_batch(Batch *batch)
{
	int			n = batch->result.n;
	JobOutcome	outcome = JOB_DONE;

	pool_set_claim(batch->handler->row.queue_id, &batch->result.claim,
				   batch->ttl, n > 1, batch->has_more);
	for (batch->current = 0; batch->current < n; batch->current++)
	{
		/*
		 * We leave the rest of the messages to others, but run the first job
		 * in any case, so that even a claim that took long makes progress.
		 */
		if (batch->current > 0 &&
			(run_is_over(batch->run) || batch->run->is_orphan ||
			 pool_must_leave() || ProcDiePending ||
			 clock_monotonic() > batch->claimed_at + BATCH_TOO_SLOW))
			break;
		outcome = job_attempt(batch);
		if (outcome == JOB_CANCELED || outcome == JOB_NOT_RUN ||
			batch->stopped != NULL)
			break;
	}

	/*
	 * The rest was not attempted.  If this fails, these messages come free
	 * when the claim runs out.
	 */
	if (batch->current < n)
	{
		ErrorData  *error = batch_execute(batch, release_rest);

		if (error != NULL)
			batch_log(batch, JOB_LOG_RELEASE, error);
	}
	pool_clear_claim();

	/* The cancel was meant for CALL job_run() as a whole. */
	if (outcome == JOB_CANCELED)
		ReThrowError(batch->error);
}

/* Returns the time for which messages are claimed, in seconds. */
static int
claim_ttl(const Run *run, const Handler *handler)
{
	int			limit = handler_time_limit(handler);
	int			ttl = limit + TTL_MARGIN;

	/* The worker renews the claim of a message while its job runs. */
	if (run->is_renewed)
		return Min(ttl, TTL_RENEWED);

	/* Nothing renews it, so it must last for the job and for its teardown. */
	return handler_has_teardown(handler) ? ttl + limit : ttl;
}

/*
 * Step 1.  If nothing was claimed, this may set how long the handler is to be
 * left alone.
 */
static void
claim_batch(Batch *batch)
{
	Run		   *run = batch->run;
	Handler    *handler = batch->handler;
	ErrorData  *error;

	batch->ttl = claim_ttl(run, handler);
	error = batch_execute(batch, claim_jobs);

	/*
	 * The user of a session sees the error at once; a runner goes on with the
	 * next queue.
	 */
	if (error != NULL && run->transaction.is_session)
		ReThrowError(error);
	if (error != NULL)
	{
		batch->result.n = 0;
		batch->has_more = false;
		handler->not_before = clock_monotonic() + ERROR_PAUSE;

		/*
		 * It is no failure that another session holds a lock for longer than
		 * RUNNER_LOCK_TIMEOUT, as queue_purge() does.
		 */
		if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			batch_log(batch, JOB_LOG_CLAIM, error);
	}

	/*
	 * Nothing was claimed although the queue is flagged as ready, say because
	 * all slots are taken, or other transactions have locked its messages. We
	 * leave it alone for a moment, or the runner would claim again and again
	 * without a pause.
	 */
	else if (batch->result.n == 0 && batch->stopped == NULL &&
			 handler->not_before <= batch->claimed_at &&
			 shmem_is_flagged(run->extension, handler->row.queue_id,
							  MAP_READY))
	{
		int64		now = clock_monotonic();

		handler->not_before =
			now + Max(EMPTY_PAUSE, EMPTY_FACTOR * (now - batch->claimed_at));
	}
}

/* The handler cannot run: leave it alone for a while. */
static void
put_off_handler(Batch *batch)
{
	Run		   *run = batch->run;
	Handler    *handler = batch->handler;

	/*
	 * The worker logs the reason once.  The user of a session sees it in each
	 * call.
	 */
	if (run->transaction.is_session &&
		!list_member_int(run->stopped, handler->row.queue_id))
	{
		MemoryContext old = MemoryContextSwitchTo(run->context);

		handler_report_stopped(handler, run->log.elevel, batch->stopped);
		run->stopped = lappend_int(run->stopped, handler->row.queue_id);
		MemoryContextSwitchTo(old);
	}
	handler->is_stopped = true;
	handler->not_before = clock_monotonic() + STOPPED_PAUSE;
}

/*
 * Run jobs of one queue for a while.  Returns false if there were none; then
 * handler->not_before may say how long to leave the queue alone.
 */
bool
execute_queue(Run *run, Handler *handler)
{
	int64		until = clock_monotonic() + SLICE;
	bool		result = false;
	bool		more;

	handler->batch_size = Max(handler->batch_size, 1);
	do
	{
		Batch		batch = {0};
		int64		elapsed;

		CHECK_FOR_INTERRUPTS();
		batch.run = run;
		batch.handler = handler;
		claim_batch(&batch);
		if (batch.result.n > 0)
		{
			result = true;
			run_batch(&batch);

			/*
			 * Set how many are claimed the next time.  A batch that was not
			 * full does not tell how long a full one takes.
			 */
			elapsed = clock_monotonic() - batch.claimed_at;
			if (elapsed > BATCH_SLOW)
				handler->batch_size = Max(handler->batch_size / 2, 1);
			else if (elapsed < BATCH_QUICK &&
					 batch.result.n == handler->batch_size)
				handler->batch_size = Min(handler->batch_size * 2, BATCH_MAX);
		}
		if (batch.stopped != NULL)
			put_off_handler(&batch);
		more = batch.has_more && batch.stopped == NULL && !batch.no_slot &&
			!run_is_over(run) && !pool_must_leave() &&
			clock_monotonic() < until;
		MemoryContextReset(run->transaction.error_context);
		MemoryContextReset(run->transaction.job_context);
	} while (more);
	run_release_slot(run);
	return result;
}

/* --- CALL job_run() --- */

static bool
is_wanted_queue(const QueueNames *queues, const char *name)
{
	if (queues->names == NULL)
		return true;
	for (int i = 0; i < queues->n; i++)
		if (strcmp(queues->names[i], name) == 0)
			return true;
	return false;
}

/*
 * Check that each queue that was named has a handler, and that the session's
 * user may act as its role.
 */
static void
check_queue_names(const QueueNames *queues)
{
	for (int i = 0; i < queues->n; i++)
	{
		const char *name = queues->names[i];
		Queue		queue;
		Handler		handler;

		if (!queue_open(name, QUEUE_DESCRIBE, &queue))
			queue_missing_error(name);
		if (!handler_read(queue.id, &handler))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("queue \"%s\" has no handler", name),
					 errhint("Bind one with job_handler.")));
		if (!compat_may_act_as(GetUserId(), handler.row.role))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied to run jobs of queue \"%s\"",
							name),
					 errdetail("Jobs are run as the role that bound the handler."),
					 errhint("A superuser can run: GRANT %s TO %s;",
							 acl_role_identifier(handler.row.role),
							 acl_role_identifier(GetUserId()))));
	}
}

/* Read the handlers again, and keep those that are to be run. */
static void
read_wanted_handlers(Run *run, const QueueNames *queues)
{
	HandlerList *handlers = &run->handlers;
	int			n = 0;

	handler_list_read(handlers, InvalidOid);
	for (int i = 0; i < handlers->n; i++)
	{
		const Handler *handler = &handlers->items[i];

		if (strcmp(handler->queue.project, setting_project) == 0 &&
			is_wanted_queue(queues, handler->queue.name) &&
			compat_may_act_as(run->transaction.user, handler->row.role))
			handlers->items[n++] = *handler;
	}
	handlers->n = n;
}

/* Go round the queues until none has jobs or a limit is reached. */
static RunEnd
run_until_limit(Run *run, const QueueNames *queues)
{
	HandlerList *handlers = &run->handlers;
	bool		progress;

	do
	{
		progress = false;
		if (!handler_is_current(&handlers->version))
		{
			read_wanted_handlers(run, queues);
			progress = handlers->n > 0;
		}
		for (int i = 0; i < handlers->n; i++)
		{
			Handler    *handler = &handlers->items[i];

			if (run_is_over(run))
				return run->counts.ok + run->counts.failed >=
					run->limits.max_jobs ? RUN_JOB_LIMIT : RUN_TIME_LIMIT;

			/* A job of another queue may have pushed to this one. */
			handler->not_before = 0;
			if (!handler->queue.paused && execute_queue(run, handler))
				progress = true;
		}
	} while (progress);
	return RUN_NONE_READY;
}

/*
 * Run jobs of some queues, or of all that have a handler whose role the
 * current one may act as if names is NULL, until a limit is reached.  The
 * caller is connected to SPI, outside of a transaction block.
 */
RunEnd
execute_in_session(const char **names, int nnames, const RunLimits *limits,
				   RunCounts *counts)
{
	QueueNames	queues = {names, nnames};
	volatile RunEnd end = RUN_NONE_READY;
	Run			run;

	run_init(&run, true);
	check_queue_names(&queues);
	run.limits = *limits;
	run.extension = catalog_queue_oid();

	/* The worker renews the claims of a session that is in the pool. */
	if (claim_scan_uses_map())
	{
		database_join();
		run.is_renewed = database_has_worker() &&
			pool_enter_session(run.transaction.user);
	}
	PG_TRY();
	{
		end = run_until_limit(&run, &queues);
		job_log_end_interval(&run.log);
	}
	PG_FINALLY();
	{
		run_release_slot(&run);
		job_transaction_clean_session(&run.transaction);
		pool_leave();
	}
	PG_END_TRY();
	*counts = run.counts;
	return end;
}
