/*-------------------------------------------------------------------------
 *
 * batch.c
 *	  Messages that were claimed at once, and their jobs.
 *
 * src/jobs/batch.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "jobs/batch.h"
#include "util/settings.h"

/* Execute an action on a batch in a transaction of its own. */
ErrorData *
batch_execute(Batch *batch, JobAction action)
{
	Run		   *run = batch->run;
	ErrorData  *error = job_transaction_run(&run->transaction,
											batch->handler, action, batch);

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
	return queue_open_local(batch->handler->name, QUEUE_CLAIM, queue) &&
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

/*
 * Record why the handler cannot run; execute_queue() then puts it off.
 */
void
batch_stop(Batch *batch, const char *reason)
{
	batch->stopped =
		MemoryContextStrdup(batch->run->transaction.error_context, reason);
}

/* Log a failure of the batch, or of its current job. */
void
batch_log(Batch *batch, JobLogEvent event, const ErrorData *error)
{
	int64		id = batch->result.n == 0 ? 0 :
	batch_current_message(batch)->id;

	/*
	 * When the extension was dropped while jobs ran, nothing is left that
	 * could be done about the failure.
	 */
	if (run_find_orphan(batch->run))
		return;
	job_log(&batch->run->log, event, batch->handler->name, id, error);
}
