/*-------------------------------------------------------------------------
 *
 * visibility.c
 *	  Visibility timeouts: messages that are hidden one by one.
 *
 * NOTES
 *	  SQS and pgmq have no claims.  A consumer that reads a message hides it
 *	  for a time, changes that time, and deletes the message by its id alone.
 *	  The extension queue_pgmq calls these functions for such consumers.
 *
 *	  Here a message that was read is in a claim of its own, or in one with
 *	  those that were read with it.  No consumer names it.  As each message has
 *	  the end of its claim in its row, it can get another end than the others.
 *	  One that was never read, or is free again, is hidden as a delayed
 *	  message.
 *
 *	  The ids in this file are pgmq's, which message_id.h describes.
 *
 *	  Reading waits for no other transaction; the other functions wait for one
 *	  that has locked the message.
 *
 * src/claim/visibility.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "claim/claim_update.h"
#include "claim/visibility.h"
#include "push/dedup.h"
#include "push/dedup_run.h"
#include "push/message_end.h"
#include "queue/group.h"
#include "queue/message_list.h"
#include "queue/options.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/limits.h"

static bool parse_id(const Queue *queue, int64 id, int64 *number,
					 int *priority);
static bool find_visible(const Queue *queue, int64 id, FoundMessage *found);
static bool is_free(const Queue *queue, FoundMessage *message,
					TimestampTz now);
static bool claim_one(const Queue *queue, int64 id, const ClaimTerms *terms,
					  Snapshot snapshot, MessageResult *result);
static HeapTuple set_end_of_claim(MessageTable *table, HeapTuple tuple,
								  TimestampTz until);
static HeapTuple move_message(MessageTable *table, HeapTuple tuple,
							  RingKind ring, TimestampTz due);
static bool try_set(const Queue *queue, int64 id, TimestampTz until,
					MessageResult *result);
static bool try_delete(const Queue *queue, int64 id, bool record,
					   Jsonb *result, bool *deleted, DedupRun **run);

/* --- Ids --- */

/*
 * Set the number and the priority of the message with an id of pgmq.  Returns
 * false if no message can have it: it may come from a user.
 */
static bool
parse_id(const Queue *queue, int64 id, int64 *number, int *priority)
{
	*number = message_id_of_pgmq_number(id, queue->pgmq_base);
	*priority = message_id_of_pgmq_priority(id);
	return id > 0 && *priority < QUEUE_PRIORITIES && *number > 0 &&
		*number < MESSAGE_ID_BLOCKS * MESSAGE_ID_BLOCK;
}

/* message_find() for an id of pgmq, to change the message */
static bool
find_visible(const Queue *queue, int64 id, FoundMessage *found)
{
	int64		number;
	int			priority;

	return parse_id(queue, id, &number, &priority) &&
		message_find_number(queue->id, number, priority, RowExclusiveLock,
							found);
}

/* --- Reading messages with known ids --- */

/* Returns whether the message can be claimed, as claim_scan_row.c says it. */
static bool
is_free(const Queue *queue, FoundMessage *message, TimestampTz now)
{
	return !message_is_claimed(&message->form, now) &&
		!message_is_expired(&message->form, now) &&
		!segment_is_delayed(message->table.segment) &&
		!dedup_is_duplicate(queue, &message->table, message->tuple) &&
		!options_is_exhausted(queue, &message->table, message->tuple);
}

/*
 * Claim one message, and add it to the result, unless it is not free or
 * another transaction has locked or changed it.
 */
static bool
claim_one(const Queue *queue, int64 id, const ClaimTerms *terms,
		  Snapshot snapshot, MessageResult *result)
{
	FoundMessage found;
	TimestampTz now = GetCurrentTimestamp();
	bool		claimed;

	if (!find_visible(queue, id, &found))
		return false;
	claimed = is_free(queue, &found, now) &&
		message_lock_found(&found, LockTupleNoKeyExclusive, LockWaitSkip);
	if (claimed)
	{
		ClaimId		claim = {
			.token = claim_id_new_token(),
			.first = message_id_number(found.form.id),
			.priorities = 1 << found.form.priority
		};
		ChosenMessage message = {
			.table = &found.table,
			.tuple = found.tuple,
			.form = found.form,
			.locked = true
		};
		HeapTuple	tuple = claim_mark_message(&message, &claim, now, terms,
											   snapshot);

		message_result_add(result, queue, RelationGetDescr(found.table.heap),
						   tuple, now);
		heap_freetuple(tuple);
	}
	message_close_found(&found);
	return claimed;
}

/*
 * Claim these messages, in this order.  One that cannot be claimed is skipped,
 * or without "skip" ends the claim.  The groups of the queue have no bounds:
 * these are kept only where a claim chooses the messages.
 */
void
visibility_claim(const Queue *queue, const Datum *ids, int n, bool skip,
				 const ClaimTerms *terms, MessageResult *result)
{
	/* A run of a message sees at least what this snapshot sees (dedup.c). */
	Snapshot	snapshot = GetActiveSnapshot();
	bool		claimed = true;

	Assert(queue->group_concurrency < 0);
	if (queue->paused)
		return;
	for (int i = 0; i < n && (claimed || skip); i++)
	{
		CHECK_FOR_INTERRUPTS();
		claimed = claim_one(queue, DatumGetInt64(ids[i]), terms, snapshot,
							result);
		CommandCounterIncrement();
		if (claimed)
			counts_add(queue->id, JOB_CLAIMED, 1);
	}
}

/* --- Hiding messages --- */

/* Give a message of a live claim, which is locked, another end of it. */
static HeapTuple
set_end_of_claim(MessageTable *table, HeapTuple tuple, TimestampTz until)
{
	MessageForm form = message_read(tuple);
	HeapTuple	new;

	message_hide(&form, form.claimed_at, Max(until, form.claimed_at),
				 form.claim_grace);
	new = message_row_change(RelationGetDescr(table->heap), tuple, &form);
	message_update_locked(table, tuple, new);
	return new;
}

/*
 * Move a message that is in no live claim, and is locked, to the ring of
 * delayed messages, due at that time, or to that of the others.
 */
static HeapTuple
move_message(MessageTable *table, HeapTuple tuple, RingKind ring,
			 TimestampTz due)
{
	MessageForm form = message_read(tuple);
	MessageTable to;
	HeapTuple	changed;
	HeapTuple	moved;

	/* It lives until it is due, and can be read then. */
	if (ring == RING_DELAYED)
		message_hide(&form, DT_NOBEGIN, due, SECS_PER_MINUTE);
	message_clear_claim(&form);
	changed = message_row_change(RelationGetDescr(table->heap), tuple, &form);
	segment_open_active(&to, ring, true);
	moved = message_copy_to(table, &to, changed, due);

	/* First, as it may be the same table, whose ids are unique. */
	message_delete_locked(table, tuple);
	message_insert(&to, moved);
	message_table_close(&to, true);
	heap_freetuple(changed);
	return moved;
}

/*
 * Find one message, hide it until that time, and add it to the result.
 * Returns false if another transaction has changed it meanwhile.
 */
static bool
try_set(const Queue *queue, int64 id, TimestampTz until, MessageResult *result)
{
	FoundMessage found;
	TimestampTz now;
	bool		locked;

	if (!find_visible(queue, id, &found))
		return true;
	locked = message_lock_found(&found, LockTupleExclusive, LockWaitBlock);
	now = GetCurrentTimestamp();

	/*
	 * One that waits for a batch is as it was promised to the caller of the
	 * push: delayed until the batch has finished.
	 */
	if (locked && !message_is_expired(&found.form, now) &&
		!found.form.is_canceled &&
		message_row_is_null(found.tuple, Anum_message_after_batch))
	{
		HeapTuple	tuple = found.tuple;
		bool		delayed = segment_is_delayed(found.table.segment);

		if (message_is_claimed(&found.form, now))
			tuple = set_end_of_claim(&found.table, tuple, until);
		else if (until > now)
			tuple = move_message(&found.table, tuple, RING_DELAYED, until);
		else if (delayed)
			tuple = move_message(&found.table, tuple, RING_MESSAGES, 0);
		group_make_room(queue, &found.table, found.tuple, false);
		message_result_add(result, queue, RelationGetDescr(found.table.heap),
						   tuple, now);
	}
	message_close_found(&found);
	return locked;
}

/*
 * Hide these messages until that time, or show them if it is not in the
 * future.  How often they were claimed stays as it is.
 */
void
visibility_set(const Queue *queue, const Datum *ids, int n, TimestampTz until,
			   MessageResult *result)
{
	for (int i = 0; i < n; i++)
	{
		bool		done;

		do
		{
			CHECK_FOR_INTERRUPTS();
			done = try_set(queue, DatumGetInt64(ids[i]), until, result);
			CommandCounterIncrement();
		} while (!done);
	}
}

/* --- Deleting messages --- */

/*
 * Find one message and delete it.  Sets *run if it has a run to finish.
 * Returns false if another transaction has changed it meanwhile.
 */
static bool
try_delete(const Queue *queue, int64 id, bool record, Jsonb *result,
		   bool *deleted, DedupRun **run)
{
	FoundMessage found;
	TimestampTz now = GetCurrentTimestamp();
	EndTerms	terms = {.result = result,.not_kept = !record};
	bool		is_claimed;
	bool		done = true;

	*deleted = false;
	*run = NULL;
	if (!find_visible(queue, id, &found))
		return true;
	is_claimed = message_is_claimed(&found.form, now);
	if (!message_is_expired(&found.form, now) && !found.form.is_canceled)
		*deleted = done = message_end(queue, &found.table, found.tuple,
									  is_claimed ? END_COMPLETED :
									  END_UNCLAIMED, &terms);
	if (*deleted && is_claimed)
		*run = dedup_run_of(RelationGetDescr(found.table.heap), found.tuple);
	message_close_found(&found);
	return done;
}

/*
 * Delete one message, whichever claim it is in.  With "record" the history has
 * it, with the result, as completed.  Returns false if there is no such
 * message.
 */
bool
visibility_delete(const Queue *queue, int64 id, bool record, Jsonb *result)
{
	DedupRun   *run;
	bool		deleted;
	bool		done;

	do
	{
		CHECK_FOR_INTERRUPTS();
		done = try_delete(queue, id, record, result, &deleted, &run);
		CommandCounterIncrement();
	} while (!done);
	if (run != NULL)
		dedup_finish_run(queue, run, RUN_COMPLETED);
	return deleted;
}

/* --- Showing messages --- */

/* Add the messages with these ids to the result, in their order. */
void
visibility_list(const Queue *queue, const Datum *ids, int n,
				MessageResult *result)
{
	for (int i = 0; i < n; i++)
	{
		FoundMessage found;
		int64		number;
		int			priority;

		CHECK_FOR_INTERRUPTS();
		if (parse_id(queue, DatumGetInt64(ids[i]), &number, &priority) &&
			message_find_number(queue->id, number, priority, AccessShareLock,
								&found))
			message_list_found(queue, &found, result);
	}
}
