/*-------------------------------------------------------------------------
 *
 * unclaimed.c
 *	  Changing messages that no claim holds.
 *
 * NOTES
 *	  The caller names messages by their ids, which it may have read some time
 *	  ago.  So a message that is gone, or in another state by
 *	  now, is no error: it is left as it is, and does not count.
 *
 *	  As in all functions that change several messages, they are locked in one
 *	  order.  All are locked before the first one is changed: a push with a
 *	  deduplication key locks the message that has it first, and then the key,
 *	  which the end of a message changes.
 *
 * src/claim/unclaimed.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/message_table.h"
#include "claim/claim_message.h"
#include "claim/dead_letter.h"
#include "claim/unclaimed.h"
#include "push/dedup.h"
#include "storage/attributes.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/row.h"
#include "storage/segment.h"

/* What is done with a message that is locked */
typedef void (*UnclaimedChange) (const Queue *queue, FoundMessage *message,
								 const char *error);

static bool try_change(const Queue *queue, int64 id, int states,
					   UnclaimedChange change, const char *error,
					   bool *changed);
static int64 try_messages(const Queue *queue, const Datum *ids, int n,
						  int states, UnclaimedChange change,
						  const char *error);
static int64 change_messages(const Queue *queue, Datum *ids, int n, int states,
							 UnclaimedChange change, const char *error);
static void make_free(const Queue *queue, FoundMessage *message,
					  const char *error);
static void bury_unclaimed(const Queue *queue, FoundMessage *message,
						   const char *error);

/*
 * Lock a message if it is in one of these states, and change it, unless
 * "change" is NULL.  Returns false if another transaction has changed it
 * meanwhile.
 */
static bool
try_change(const Queue *queue, int64 id, int states, UnclaimedChange change,
		   const char *error, bool *changed)
{
	FoundMessage found;
	bool		locked = true;

	*changed = false;
	if (!message_find(queue->id, id, RowExclusiveLock, &found))
		return true;

	/* It does not wait for a message that it is not to change. */
	if (!message_is_expired(&found.form, GetCurrentTimestamp()) &&
		(states & message_state(RelationGetDescr(found.table.heap), found.tuple,
								&found.form, GetCurrentTimestamp())) != 0)
	{
		locked = message_lock_found(&found, LockTupleExclusive, LockWaitBlock);

		/* A duplicate is never handed out, nor is it a dead letter. */
		*changed = locked &&
			!dedup_is_duplicate(queue, &found.table, found.tuple);
	}
	if (*changed && change != NULL)
		change(queue, &found, error);
	message_close_found(&found);
	return locked;
}

/*
 * Lock messages, whose ids are sorted, and change them, unless "change" is
 * NULL.  Returns how many; a repeated id counts once.
 */
static int64
try_messages(const Queue *queue, const Datum *ids, int n, int states,
			 UnclaimedChange change, const char *error)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "change of a message",
												  ALLOCSET_DEFAULT_SIZES);
	int64		nchanged = 0;

	for (int i = 0; i < n; i++)
	{
		MemoryContext old = MemoryContextSwitchTo(context);
		bool		changed = false;
		bool		done = i > 0 && ids[i] == ids[i - 1];

		while (!done)
		{
			CHECK_FOR_INTERRUPTS();
			done = try_change(queue, DatumGetInt64(ids[i]), states, change,
							  error, &changed);
		}
		CommandCounterIncrement();
		if (changed)
			nchanged++;
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	return nchanged;
}

/* Change messages.  Returns how many; a repeated id counts once. */
static int64
change_messages(const Queue *queue, Datum *ids, int n, int states,
				UnclaimedChange change, const char *error)
{
	claim_sort_ids(ids, n);

	/* First lock all. */
	(void) try_messages(queue, ids, n, states, NULL, NULL);
	return try_messages(queue, ids, n, states, change, error);
}

/* Move a delayed message to those that claims scan. */
static void
make_free(const Queue *queue, FoundMessage *message, const char *error)
{
	MessageTable active;
	Size		bytes = 0;

	segment_open_active(&active, RING_MESSAGES, true);
	if (!message_move(&message->table, message->slot, &active, &bytes))
		elog(ERROR, "could not move a message that is locked");
	message_table_close(&active, true);
}

/* Returns how many of these messages were delayed, and are free now. */
int64
unclaimed_run_now(const Queue *queue, Datum *ids, int n)
{
	return change_messages(queue, ids, n, STATE_DELAYED, make_free, NULL);
}

static void
bury_unclaimed(const Queue *queue, FoundMessage *message, const char *error)
{
	HeapTuple	tuple = message->tuple;

	if (error != NULL)
		tuple = attributes_set_last_error(RelationGetDescr(message->table.heap),
										  tuple, error);
	dead_letter_check_move(queue);
	if (!dead_letter_move(queue, &message->table, tuple, DEAD_LETTER_BURIED))
		elog(ERROR, "could not bury a message that is locked");
}

/*
 * Make these messages dead letters, those that are free or delayed.  Returns
 * how many there were.  The caller has called claim_prepare_bury().
 */
int64
unclaimed_bury(const Queue *queue, Datum *ids, int n, const char *error)
{
	if (error != NULL)
		error = attributes_clip_error(error);
	return change_messages(queue, ids, n, STATE_FREE | STATE_DELAYED,
						   bury_unclaimed, error);
}
