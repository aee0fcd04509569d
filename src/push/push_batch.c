/*-------------------------------------------------------------------------
 *
 * push_batch.c
 *	  New messages that are members of a batch, or wait for one.
 *
 * NOTES
 *	  A push locks the rows of the batches that it names (storage/batches.c),
 *	  so that they do not finish before its transaction has ended.
 *
 *	  A message that waits is a delayed message that is never due.  Its
 *	  created_at is the time until which it waits at most, so that it does not
 *	  expire before; when the batch finishes, it becomes the time of that, and
 *	  the message moves to where a push would have put it then.
 *
 * src/push/push_batch.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/fmgrprotos.h"

#include "push/push_batch.h"
#include "queue/shard.h"
#include "util/json.h"
#include "util/settings.h"

static void lock_batch(int64 id, const Queue *queue, Batch *batch);
static void join_batch(NewMessage *message, const Queue *queue, Batch *batch);
static void wait_for_batch(NewMessage *message, const Queue *queue,
						   Batch *batch);

/*
 * Get a batch that the current role may use.  Raises an error if it does not
 * exist, or belongs to another role.
 */
void
batch_open(int64 id, Batch *batch)
{
	if (!batches_fetch(id, batch))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("batch %lld does not exist", (long long) id),
				 errdetail("It was never created, or it finished more than 14 days ago."),
				 errhint("batch_list shows your batches.")));
	if (!has_privs_of_role(GetUserId(), batch->owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for batch %lld", (long long) id),
				 errhint("Only its owner, and members of that role, may use a batch.")));
}

/*
 * Open a batch for a push to a queue, and lock it so that it does not finish.
 */
static void
lock_batch(int64 id, const Queue *queue, Batch *batch)
{
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		batch_open(id, batch);

		/* It does not change any more. */
		if (batch->finished_at != DT_NOEND)
			return;

		/* It may have finished, or was closed, since it was fetched. */
		if (batches_lock(batch, LockTupleShare, LockWaitBlock))
			break;
	}
	batches_record_added(id, 0);
	if (batch->shard != NO_SHARD &&
		batch->shard != shard_of(setting_project, queue->name))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("queue \"%s\" is not of the shard of batch %lld",
						queue->name, (long long) id),
				 errhint("All queues of a batch must be of one shard, as those are whose names differ in trailing \".dead\" only; queue_shard() returns it.")));
}

static void
join_batch(NewMessage *message, const Queue *queue, Batch *batch)
{
	if (batch->id != message->batch)
		lock_batch(message->batch, queue, batch);
	if (batch->finished_at != DT_NOEND)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("batch %lld has finished", (long long) batch->id),
				 errdetail("No member can be added any more."),
				 errhint("Create the batch with keep_open => true, and close it with batch_close when all members are there.")));
}

static void
wait_for_batch(NewMessage *message, const Queue *queue, Batch *batch)
{
	/* So no two batches wait for each other. */
	if (message->batch != NO_BATCH && message->after >= message->batch)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a member of batch %lld cannot wait for batch %lld",
						(long long) message->batch, (long long) message->after),
				 errhint("It can wait for a batch that was created before its own.")));
	if (batch->id != message->after)
		lock_batch(message->after, queue, batch);
	if (batch->finished_at == DT_NOEND)
		return;

	/* It becomes a dead letter, as the worker frees it. */
	if (message->after_success && batch->failed > 0)
		batches_record_changed(batch->id);
	else
	{
		message->after = NO_BATCH;
		message->headers = push_batch_headers(message->headers, batch);
	}
}

/*
 * Check and lock the batches of new messages.  What waits for a batch that has
 * finished does not wait any more.
 */
void
push_use_batches(const Queue *queue, NewMessage *messages, int n)
{
	/* Most messages of a call have the same ones. */
	Batch		joined = {.id = NO_BATCH};
	Batch		awaited = {.id = NO_BATCH};

	for (int i = 0; i < n; i++)
	{
		if (messages[i].batch != NO_BATCH)
			join_batch(&messages[i], queue, &joined);
		if (messages[i].after != NO_BATCH)
			wait_for_batch(&messages[i], queue, &awaited);
	}
}

/*
 * Add a field that says how a batch has ended to headers, which may be NULL.
 * Returns the new headers.
 */
Jsonb *
push_batch_headers(Jsonb *headers, const Batch *batch)
{
	char	   *end;

	/* An array or a scalar has no fields. */
	if (headers != NULL && !JB_ROOT_IS_OBJECT(headers))
		return headers;
	end = psprintf("{\"batch\": {\"id\": %lld, \"completed\": %lld, \"failed\": %lld}}",
				   (long long) batch->id, (long long) batch->completed,
				   (long long) batch->failed);
	return json_merge(headers,
					  DatumGetJsonbP(DirectFunctionCall1(jsonb_in,
														 CStringGetDatum(end))));
}
