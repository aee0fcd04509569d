/*-------------------------------------------------------------------------
 *
 * job_attempt.c
 *	  An attempt to run one job.
 *
 * NOTES
 *	  execute.c describes the steps of an attempt.  This file takes those from
 *	  the slot (2) to the retry (6), each in a transaction of its own, for the
 *	  current message of a batch.
 *
 * src/jobs/job_attempt.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "claim/cancel.h"
#include "claim/claim_message.h"
#include "claim/claim_update.h"
#include "jobs/handler_check.h"
#include "jobs/job_attempt.h"
#include "jobs/job_transaction.h"
#include "jobs/runner_pool.h"
#include "queue/queue_lock.h"
#include "util/errcodes.h"

#define DELETE_TIMEOUT		"1s"	/* then the attempt has failed */
#define TERMINATE_MARGIN	5	/* seconds, from cancel to termination */

/* The batch whose current job runs, while its handler's function may */
static Batch *running = NULL;

static void prepare_functions(Batch *batch);
static void run_handler(Batch *batch);
static void run_teardown(Batch *batch);
static void open_for_retry(Batch *batch, Queue *queue);
static void retry_message(Batch *batch);
static void bury_message(Batch *batch);
static JobOutcome classify_attempt(const Batch *batch);
static void record_failure(Batch *batch);
static void tear_down_job(Batch *batch);
static bool end_claim_of_job(Batch *batch, void (*step) (Batch *batch),
							 JobLogEvent event);
static void retry_after_lost_claim(Batch *batch);
static void report_job(const Batch *batch);

/* --- In transactions --- */

/*
 * Get ready to call the handler's functions.  Sets batch->stopped if they
 * must not be called any more.
 */
static void
prepare_functions(Batch *batch)
{
	Handler    *handler = batch->handler;
	JobFunctions *functions = &batch->functions;
	MemoryContext context = batch->run->transaction.error_context;

	/* A function was altered or dropped, perhaps by the job before. */
	if (!handler_is_same(handler))
	{
		const char *problem = handler_check(handler);

		functions->is_valid = false;
		if (problem != NULL)
		{
			batch->stopped = MemoryContextStrdup(context, problem);
			return;
		}
	}
	if (functions->is_valid)
		return;
	fmgr_info_cxt(handler->function.oid, &functions->function, context);
	if (handler_has_teardown(handler))
		fmgr_info_cxt(handler->teardown.oid, &functions->teardown, context);
	functions->is_valid = true;
}

/* Steps 2 and 3: run the current job and delete its message. */
static void
run_handler(Batch *batch)
{
	Run		   *run = batch->run;
	Datum		id = Int64GetDatum(batch_current_message(batch)->id);
	Queue		queue;

	/* The run has no slot if the transaction before was rolled back. */
	batch->no_slot = !run_acquire_slot(run, batch->handler);
	if (batch->no_slot)
		return;
	prepare_functions(batch);
	if (batch->stopped != NULL)
		return;

	/*
	 * A cancel that came since pool_set_message() may have sent its signal
	 * before this transaction, which ignored it.  One that came before has
	 * only set a flag.
	 */
	if (pool_has_canceled() &&
		cancel_is_pending(batch->handler->row.queue_id,
						  batch_current_message(batch)->id))
		ereport(ERROR,
				(errcode(ERRCODE_MESSAGE_CANCELED),
				 errmsg("message was canceled")));
	batch->was_begun = true;
	if (!job_call_function(&run->transaction, batch->handler,
						   &batch->functions, false,
						   batch_current_message(batch)))
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
				 errmsg("handler returned false")));

	/*
	 * From here on, that the claim is not live is our own error.  A handler
	 * may raise the same one for another claim.
	 */
	batch->is_deleting = true;
	if (cancel_is_own(batch->handler->row.queue_id,
					  batch_current_message(batch)->id))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("handler has canceled its own message"),
				 errhint("To end a job without a retry, return true, or raise an error with the SQLSTATE QU005.")));

	/* Do not wait for long for a session that alters or drops the queue. */
	if (!queue_lock_try(batch->handler->row.queue_id))
		batch_limit_lock_wait(batch, DELETE_TIMEOUT);
	if (!batch_open_queue(batch, &queue) ||
		claim_delete_messages(&queue, &id, 1, &batch->result.claim, false,
							  batch->job_result) == 0)
		claim_not_live();
	job_timeout_end();
}

/* Step 5: call the teardown function. */
static void
run_teardown(Batch *batch)
{
	prepare_functions(batch);
	if (batch->stopped != NULL)
		return;
	(void) job_call_function(&batch->run->transaction, batch->handler,
							 &batch->functions, true,
							 batch_current_message(batch));
	job_timeout_end();
}

/* Open the queue for step 6. */
static void
open_for_retry(Batch *batch, Queue *queue)
{
	batch_limit_lock_wait(batch, RUNNER_LOCK_TIMEOUT);
	if (!batch_open_queue(batch, queue))
		claim_not_live();
}

/* Step 6: give the message back after a failure. */
static void
retry_message(Batch *batch)
{
	RetryTerms	terms = {.error = batch->reason,.delay = -1,.for_job = true};
	Queue		queue;

	open_for_retry(batch, &queue);
	(void) claim_retry_message(&queue, batch_current_message(batch)->id,
							   &batch->result.claim, &terms);
}

/* Step 6, after an error that no retry mends: make it a dead letter. */
static void
bury_message(Batch *batch)
{
	RetryTerms	terms = {.error = batch->reason,.bury = true};
	Queue		queue;

	open_for_retry(batch, &queue);
	claim_prepare_bury(&queue);
	(void) claim_retry_message(&queue, batch_current_message(batch)->id,
							   &batch->result.claim, &terms);
}

/* --- The steps --- */

/*
 * Keep the result of the job whose handler's function runs.  Returns false if
 * none does.
 */
bool
job_attempt_set_result(const Jsonb *result)
{
	Jsonb	   *copy;

	if (running == NULL)
		return false;
	copy = MemoryContextAlloc(running->run->transaction.job_context,
							  VARSIZE(result));
	memcpy(copy, result, VARSIZE(result));
	if (running->job_result != NULL)
		pfree(running->job_result);
	running->job_result = copy;
	return true;
}

/* Returns what became of the attempt that has ended with batch->error. */
static JobOutcome
classify_attempt(const Batch *batch)
{
	const ErrorData *error = batch->error;

	if (error == NULL)
		return batch->no_slot || batch->stopped != NULL ? JOB_NOT_RUN :
			JOB_DONE;
	if (batch->is_deleting && error->sqlerrcode == ERRCODE_CLAIM_NOT_LIVE)
		return JOB_CLAIM_LOST;

	/*
	 * A user has canceled the session.  A handler, perhaps of another role,
	 * can raise an error of the same SQLSTATE, but not in that function of
	 * the server.
	 */
	if (batch->run->transaction.is_session && !job_timeout_has_fired() &&
		!batch->was_canceled &&
		error->sqlerrcode == ERRCODE_QUERY_CANCELED &&
		error->funcname != NULL &&
		strcmp(error->funcname, "ProcessInterrupts") == 0)
		return JOB_CANCELED;
	return JOB_FAILED;
}

/* Step 4: record that the attempt has failed. */
static void
record_failure(Batch *batch)
{
	ErrorData  *error = batch->error;

	/* The message would be that a user has canceled the statement. */
	if ((batch->was_canceled || job_timeout_has_fired()) &&
		error->sqlerrcode == ERRCODE_QUERY_CANCELED)
	{
		MemoryContext old =
		MemoryContextSwitchTo(batch->run->transaction.error_context);

		error->message = batch->was_canceled ?
			pstrdup("message was canceled") :
			psprintf("timeout of %d s", handler_time_limit(batch->handler));
		MemoryContextSwitchTo(old);
	}
	batch->run->counts.failed++;
	batch->reason = error->message;
	batch_log(batch, JOB_LOG_ATTEMPT, error);
}

static void
tear_down_job(Batch *batch)
{
	ErrorData  *error;

	if (!handler_has_teardown(batch->handler) || !batch->was_begun)
		return;
	pool_set_message(batch_current_message(batch)->id,
					 handler_time_limit(batch->handler) + TERMINATE_MARGIN);
	error = batch_execute(batch, run_teardown);
	if (error != NULL)
		batch_log(batch, JOB_LOG_TEARDOWN, error);
}

/*
 * Run a step that ends the claim of the message.  Returns false if it has
 * failed, which is logged as this event.
 */
static bool
end_claim_of_job(Batch *batch, void (*step) (Batch *batch), JobLogEvent event)
{
	ErrorData  *error = batch_execute(batch, step);

	/* If it is not under the claim any more, there is nothing to do. */
	if (error == NULL || error->sqlerrcode == ERRCODE_CLAIM_NOT_LIVE ||
		error->sqlerrcode == ERRCODE_MESSAGE_NOT_IN_CLAIM)
		return true;

	/* Only when it was to be buried: the retry removes it. */
	if (error->sqlerrcode != ERRCODE_MESSAGE_CANCELED)
		batch_log(batch, event, error);
	return false;
}

/*
 * The message was not under the claim.  If the handler itself has ended the
 * claim, that was rolled back, so the message can be given back now: the
 * attempt has failed.  Otherwise another session has ended it, or it ran out.
 */
static void
retry_after_lost_claim(Batch *batch)
{
	ErrorData  *lost = batch->error;

	batch->reason = "handler has ended the claim of its own message";
	if (batch_execute(batch, retry_message) == NULL)
	{
		batch->run->counts.failed++;
		lost->message = unconstify(char *, batch->reason);
		lost->detail = NULL;
		lost->hint = "A message is deleted when its handler returns true; do not delete it, or end its claim, in the handler.";
	}
	batch_log(batch, JOB_LOG_COMPLETION, lost);
}

/*
 * Show the current job in pg_stat_activity; a session shows its own command.
 *
 * We show it as the query, because PostgreSQL hides that from roles that have
 * nothing to do with the handler's.  It hides neither application_name nor the
 * role, the ids of transactions and the database, and names of queues and ids
 * of messages are not for everybody; so application_name remains "queue
 * runner".
 */
static void
report_job(const Batch *batch)
{
	const Handler *handler = batch->handler;
	char text[	64 + QUEUE_NAME_LENGTH + QUEUE_PROJECT_LENGTH];

	if (batch->run->transaction.is_session)
		return;
	snprintf(text, sizeof(text), handler->queue.project[0] == '\0' ?
			 "job %lld of queue \"%s\"" :
			 "job %lld of queue \"%s\", project \"%s\"",
			 (long long) batch_current_message(batch)->id, handler->queue.name,
			 handler->queue.project);
	pgstat_report_activity(STATE_RUNNING, text);
}

/* Run the current job: steps 2 to 6. */
JobOutcome
job_attempt(Batch *batch)
{
	JobOutcome	outcome;

	pool_set_message(batch_current_message(batch)->id,
					 handler_time_limit(batch->handler) + TERMINATE_MARGIN);
	report_job(batch);
	batch->no_slot = batch->was_begun = batch->is_deleting = false;
	batch->was_canceled = false;
	batch->job_result = NULL;
	running = batch;
	batch->error = batch_execute(batch, run_handler);
	running = NULL;

	/* If the job is done, its message is gone, and cannot be canceled. */
	if (batch->error != NULL || batch->no_slot || batch->stopped != NULL)
		batch->was_canceled = pool_end_cancel();
	outcome = classify_attempt(batch);
	switch (outcome)
	{
		case JOB_NOT_RUN:
			/* The message was not attempted: run_batch() gives it back. */
			return outcome;
		case JOB_DONE:
			batch->run->counts.ok++;
			tear_down_job(batch);
			break;
		case JOB_FAILED:
		case JOB_CANCELED:
			record_failure(batch);
			tear_down_job(batch);

			/*
			 * Bury the message if the handler's error says so.  If there is
			 * no way to the dead letter queue, it is as any error.
			 */
			if (batch->error->sqlerrcode != ERRCODE_BURY_JOB ||
				batch->was_canceled ||
				!end_claim_of_job(batch, bury_message, JOB_LOG_BURY))
				(void) end_claim_of_job(batch, retry_message, JOB_LOG_RETRY);
			break;
		case JOB_CLAIM_LOST:
			tear_down_job(batch);
			retry_after_lost_claim(batch);
			break;
	}

	/* What a job may leave in a session belongs to the session's own role. */
	if (!batch->run->transaction.is_session)
		job_call_discard();
	job_transaction_clean_session(&batch->run->transaction);
	MemoryContextReset(batch->run->transaction.job_context);
	return outcome;
}
