/*-------------------------------------------------------------------------
 *
 * message.c
 *	  Messages: find, insert, lock, update, delete and move them.
 *
 * NOTES
 *	  Each function here that locks or changes a message takes these steps,
 *	  in this order:
 *
 *	  1.  It records the pending change (pending.c).  When the transaction
 *	  ends, the queue's availability map learns from the record that the
 *	  message may be free.  The record comes first because the next steps can
 *	  fail halfway, and then the rollback has to return the message.
 *
 *	  2.  It publishes the message's number for the segment
 *	  (segment_state.c), so that each session that can see the row also scans
 *	  the segment.
 *
 *	  3.  It locks or changes the row, and inserts index entries.
 *
 *	  4.  It counts the change, if there was one (counts.c).
 *
 *	  message_lock() and message_delete() report a message that another
 *	  transaction has changed, since only the caller knows what to do with it:
 *	  a claim skips it, a delete reads it again.  Neither follows an update.
 *	  So TM_Ok from message_lock() means that the row is as the snapshot
 *	  showed it, and what the caller decided on that version holds until the
 *	  transaction ends.
 *
 *	  message_update_as_seen() and message_delete_as_seen() are for a message
 *	  that was not locked, but chosen with message_record_change().  They
 *	  change the row only if it is still as the snapshot showed it.
 *
 *	  The caller has checked privileges, and calls CommandCounterIncrement()
 *	  after a change, before anything reads the table again.
 *
 * src/storage/message.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heaptoast.h"
#include "access/xact.h"
#include "utils/snapmgr.h"

#include "catalog/message_id.h"
#include "catalog/row_check.h"
#include "map/availability_reserve.h"
#include "shmem/depth_state.h"
#include "shmem/segment_state.h"
#include "storage/batches.h"
#include "storage/counts.h"
#include "storage/hot_update.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "storage/pending.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/compat.h"

static TimestampTz due_of_row(MessageTable *table, HeapTuple tuple);
static TimestampTz due_after_rollback(MessageTable *table, HeapTuple tuple);
static void record_change(MessageTable *table, HeapTuple tuple,
						  TimestampTz due_before, TimestampTz due);
static uint64 position_of_row(const MessageTable *table, HeapTuple tuple);
static QueueDepth depth_of_old_row(MessageTable *table, HeapTuple tuple);
static void count_update(MessageTable *table, HeapTuple old, HeapTuple new);
static void read_depth_of_row(HeapTuple tuple, void *arg);
static bool find_in_segment(int32 queue_id, int64 low, int64 high,
							LOCKMODE lockmode, FoundMessage *message,
							int segment);
static bool find_message(int32 queue_id, int64 low, int64 high,
						 LOCKMODE lockmode, FoundMessage *found);

/* --- Before a change --- */

/*
 * Returns when a message is due: to be moved if it is delayed, else free,
 * DT_NOBEGIN for at once.  A claim that has ended, but was not counted as such
 * (counts_end_claim), is due when it has ended.
 */
static TimestampTz
due_of_row(MessageTable *table, HeapTuple tuple)
{
	TimestampTz until;

	if (segment_is_delayed(table->segment))
		return message_due_at(table, tuple);
	return message_row_is_held(tuple, &until) ? until : DT_NOBEGIN;
}

/*
 * Returns when a message that this transaction changes is due after a rollback.
 * Of a version that it has written itself there is an earlier record, of what
 * there was before; to return it as free at once costs a scan.
 */
static TimestampTz
due_after_rollback(MessageTable *table, HeapTuple tuple)
{
	if (TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data)))
		return DT_NOBEGIN;
	return due_of_row(table, tuple);
}

/* Take steps 1 and 2 for a message.  The times are those of pending.c. */
static void
record_change(MessageTable *table, HeapTuple tuple, TimestampTz due_before,
			  TimestampTz due)
{
	MessageForm form = message_read(tuple);

	if (segment_is_delayed(table->segment))
		pending_record_change(&form, TARGET_DELAYED, LANE_WITHOUT_KEY,
							  due_before, due);
	else
		pending_record_change(&form, TARGET_MESSAGES,
							  message_lane(RelationGetDescr(table->heap),
										   tuple),
							  due_before, due);
	segment_publish(table->segment, message_id_number(form.id));
}

/*
 * Take steps 1 and 2 for a message that is to be locked or deleted, or that
 * the caller has chosen to be changed later.
 */
void
message_record_change(MessageTable *table, HeapTuple tuple)
{
	record_change(table, tuple, due_after_rollback(table, tuple), DT_NOEND);
}

/* --- Counting --- */

/*
 * Returns the depth for which a row counts; see counts.c.  Of a claimed one
 * *until is when its claim ends.
 */
QueueDepth
message_depth(const MessageTable *table, HeapTuple tuple, TimestampTz *until)
{
	if (segment_is_delayed(table->segment))
		return DEPTH_DELAYED;
	return message_row_is_held(tuple, until) ? DEPTH_CLAIMED : DEPTH_READY;
}

/* Returns the position of a row for recounts (depth_state.c). */
static uint64
position_of_row(const MessageTable *table, HeapTuple tuple)
{
	return depth_position(table->segment,
						  ItemPointerGetBlockNumber(&tuple->t_self));
}

/*
 * Count a version that this transaction has written; also for one that other
 * SQL has written in it.
 */
void
message_count(const MessageTable *table, HeapTuple tuple)
{
	TimestampTz until;

	counts_add_rows(message_row_queue(tuple), position_of_row(table, tuple),
					message_depth(table, tuple, &until), 1);
}

/*
 * Returns the depth for which a version counts that this transaction has
 * replaced or deleted.
 */
static QueueDepth
depth_of_old_row(MessageTable *table, HeapTuple tuple)
{
	TimestampTz until;
	QueueDepth	depth = message_depth(table, tuple, &until);

	/*
	 * Since we have read the version, another session may have counted the
	 * end of its claim, and marked it.  By now none marks it any more, so we
	 * look once more.
	 */
	if (depth == DEPTH_CLAIMED && depth_end_may_be_counted(until))
		row_peek(table->heap, &tuple->t_self, read_depth_of_row, &depth);
	return depth;
}

/* Count a version that this transaction has replaced by a new one. */
static void
count_update(MessageTable *table, HeapTuple old, HeapTuple new)
{
	TimestampTz until;
	QueueDepth	from = depth_of_old_row(table, old);

	/* A recount may read the one with another snapshot than the other. */
	if (from == message_depth(table, new, &until) &&
		position_of_row(table, old) == position_of_row(table, new))
		return;
	counts_add_rows(message_row_queue(old), position_of_row(table, old), from,
					-1);
	message_count(table, new);
}

/* Callback of row_peek */
static void
read_depth_of_row(HeapTuple tuple, void *arg)
{
	TimestampTz until;

	if (!message_row_is_held(tuple, &until))
		*(QueueDepth *) arg = DEPTH_READY;
}

/* --- Locking --- */

/* Lock the version of a message that is in the slot, and no other. */
TM_Result
message_lock(MessageTable *table, TupleTableSlot *slot, LockTupleMode mode,
			 LockWaitPolicy wait)
{
	TM_FailureData failure;
	ItemPointerData tid = slot->tts_tid;

	Assert(wait != LockWaitBlock || availability_may_wait());
	message_record_change(table, row_tuple(slot));
	return table_tuple_lock(table->heap, &tid, GetActiveSnapshot(), slot,
							GetCurrentCommandId(true), mode, wait, 0,
							&failure);
}

/*
 * Lock the version of a message that the slot was filled with, for a caller
 * that skips a message which is not as the snapshot showed it.  Returns true
 * if it is locked, and in the slot.
 */
bool
message_lock_as_seen(MessageTable *table, TupleTableSlot *slot,
					 LockTupleMode mode, LockWaitPolicy wait)
{
	return row_succeeded(message_lock(table, slot, mode, wait));
}

/* The same for a message that was found by its id */
bool
message_lock_found(FoundMessage *found, LockTupleMode mode,
				   LockWaitPolicy wait)
{
	if (!message_lock_as_seen(&found->table, found->slot, mode, wait))
		return false;
	found->tuple = row_tuple(found->slot);
	found->form = message_read(found->tuple);
	return true;
}

/*
 * This transaction has locked the message and leaves it as it is.  Claims
 * skip it until the transaction ends, so they have to find it again after the
 * commit.
 */
void
message_return_at_commit(MessageTable *table, HeapTuple tuple)
{
	record_change(table, tuple, due_after_rollback(table, tuple),
				  due_of_row(table, tuple));
}

/* --- Writing --- */

void
message_insert(MessageTable *table, HeapTuple tuple)
{
	TupleTableSlot *slot = ExecStoreHeapTuple(tuple, table->out, false);

	/* When it is due is known of a message in a table of delayed ones. */
	Assert(segment_is_delayed(table->segment) ==
		   !message_row_is_null(tuple, Anum_message_due_at));
	record_change(table, tuple, DT_NOEND, due_of_row(table, tuple));
	table_tuple_insert(table->heap, slot, GetCurrentCommandId(true), 0, NULL);
	row_insert_index_entries(table->heap, &table->all, slot, NULL);
	batches_insert_entries(table, &tuple, &slot, 1);

	/* The slot has made a copy, which was written. */
	tuple->t_self = slot->tts_tid;
	ExecClearTuple(slot);
	segment_count_bytes(table->segment, tuple->t_len);
	message_count(table, tuple);
}

/*
 * Insert many new messages, of one queue after the other, with one WAL record
 * for each page.  This leaks into the current memory context, which the caller
 * resets, and which the tuples belong to.
 */
void
message_multi_insert(MessageTable *table, HeapTuple *tuples, int n)
{
	TupleTableSlot **slots;
	TupleDesc	desc;
	Size		bytes = 0;

	if (n == 1)
	{
		message_insert(table, tuples[0]);
		return;
	}

	slots = palloc(n * sizeof(TupleTableSlot *));

	/* Each slot would pin the table's own descriptor, but not a copy. */
	desc = CreateTupleDescCopy(RelationGetDescr(table->heap));
	for (int i = 0; i < n; i++)
	{
		record_change(table, tuples[i], DT_NOEND,
					  due_of_row(table, tuples[i]));
		bytes += tuples[i]->t_len;

		/*
		 * heap_multi_insert() would copy a tuple that the slot does not own.
		 * The caller frees it, as no slot is cleared.
		 */
		slots[i] = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
		ExecStoreHeapTuple(tuples[i], slots[i], true);
	}
	table_multi_insert(table->heap, slots, n, GetCurrentCommandId(true), 0,
					   NULL);
	for (int i = 0; i < n; i++)
		row_insert_index_entries(table->heap, &table->all, slots[i], NULL);
	batches_insert_entries(table, tuples, slots, n);
	segment_count_bytes(table->segment, bytes);
	for (int i = 0; i < n; i++)
	{
		/* It is not set in a tuple of which a copy was written. */
		tuples[i]->t_self = slots[i]->tts_tid;
		message_count(table, tuples[i]);
	}
}

/* Replace a version of a message that this transaction has locked. */
void
message_update_locked(MessageTable *table, HeapTuple old, HeapTuple new)
{
	TupleTableSlot *slot = ExecStoreHeapTuple(new, table->out, false);
	TM_FailureData failure;
	bool		new_entries = false;
	TM_Result	result;

	Assert(message_row_id(new) == message_row_id(old));
	record_change(table, new, due_after_rollback(table, old),
				  due_of_row(table, new));
	result = compat_table_tuple_update(table->heap, &old->t_self, slot,
									   GetCurrentCommandId(true),
									   GetActiveSnapshot(), &failure,
									   &new_entries);
	if (result != TM_Ok)
		elog(ERROR, "could not update a locked message: %d", (int) result);
	if (new_entries)
	{
		row_insert_index_entries(table->heap, &table->all, slot, NULL);
		batches_insert_entries(table, &new, &slot, 1);
	}

	/* The slot has made a copy, which was written. */
	new->t_self = slot->tts_tid;
	ExecClearTuple(slot);
	count_update(table, old, new);
}

/*
 * Replace a version of a message without waiting.  Returns false if another
 * transaction has locked or changed it.
 */
bool
message_update_as_seen(MessageTable *table, HeapTuple old, HeapTuple new)
{
	Assert(message_row_id(new) == message_row_id(old));
	record_change(table, new, due_after_rollback(table, old),
				  due_of_row(table, new));

	/*
	 * No column of our index changes.  But a second index, say one that an
	 * administrator has added, may be over any column.  If it is being built,
	 * it gets no entry yet, but a HOT update would hide the new version from
	 * it for good.
	 */
	if (table->all.nlive == 1 && hot_update(table->heap, &old->t_self, new))
	{
		count_update(table, old, new);
		return true;
	}

	/* heap_update() would wait for a transaction that has locked the row. */
	if (!row_lock(table->heap, &old->t_self, LockTupleNoKeyExclusive,
				  LockWaitSkip))
		return false;
	message_update_locked(table, old, new);
	return true;
}

/*
 * Delete a message.  Waits for a transaction that has locked it.  Returns
 * false if another transaction has changed it.
 */
bool
message_delete(MessageTable *table, HeapTuple tuple)
{
	message_record_change(table, tuple);
	return message_delete_as_seen(table, tuple, true);
}

/*
 * Take steps 3 and 4 of deleting a message, after message_record_change().  If
 * "wait" is not set, does not wait for a transaction that has locked it.
 * Returns false if another transaction has locked or changed it.
 */
bool
message_delete_as_seen(MessageTable *table, HeapTuple tuple, bool wait)
{
	TM_FailureData failure;

	segment_record_delete(table->segment);
	if (!row_succeeded(compat_table_tuple_delete(table->heap, &tuple->t_self,
												 GetCurrentCommandId(true),
												 GetActiveSnapshot(), wait,
												 &failure)))
		return false;
	counts_add_rows(message_row_queue(tuple), position_of_row(table, tuple),
					depth_of_old_row(table, tuple), -1);
	return true;
}

/* Delete a message that this transaction has locked. */
void
message_delete_locked(MessageTable *table, HeapTuple tuple)
{
	if (!message_delete(table, tuple))
		elog(ERROR, "could not delete a locked message");
}

/* --- Moving to another table --- */

/*
 * Returns a copy of a message for another table.  due_at only counts if that
 * is a table of delayed messages.
 */
HeapTuple
message_copy_to(MessageTable *from, MessageTable *to, HeapTuple tuple,
				TimestampTz due_at)
{
	TupleDesc	desc = RelationGetDescr(from->heap);
	MessageForm form = message_read(tuple);
	HeapTuple	whole = tuple;
	HeapTuple	copy;
	Datum		values[Natts_message];
	bool		isnull[Natts_message];

	/* The copy must not point into the TOAST table of the old table. */
	if (HeapTupleHasExternal(tuple))
		whole = toast_flatten_tuple(tuple, desc);

	/* From now on it can be claimed, and expire. */
	if (form.is_delayed && !segment_is_delayed(to->segment))
		message_keep_when_due(&form, GetCurrentTimestamp());

	heap_deform_tuple(whole, desc, values, isnull);
	values[Anum_message_due_at - 1] = TimestampTzGetDatum(due_at);
	isnull[Anum_message_due_at - 1] = !segment_is_delayed(to->segment);
	copy = message_row_form(RelationGetDescr(to->heap), &form, values, isnull);
	if (whole != tuple)
		heap_freetuple(whole);
	return copy;
}

/*
 * Move the message in the slot to another table, under the same id and claim,
 * and add its size to *bytes.  Returns false if another transaction has
 * locked or changed it.
 */
bool
message_move(MessageTable *from, TupleTableSlot *slot, MessageTable *to,
			 Size *bytes)
{
	HeapTuple	old;
	HeapTuple	new;

	(void) message_row_check(ERROR, from->heap, row_tuple(slot));

	/* In the mode that the delete needs, because it must not wait. */
	if (!message_lock_as_seen(from, slot, LockTupleExclusive, LockWaitSkip))
		return false;
	old = heap_copytuple(row_tuple(slot));
	new = message_copy_to(from, to, old, segment_is_delayed(from->segment) ?
						  message_due_at(from, old) : 0);
	*bytes += new->t_len;
	message_insert(to, new);
	message_delete_locked(from, old);
	heap_freetuple(old);
	heap_freetuple(new);
	return true;
}

/* --- Reading --- */

/* Returns the name of a state, or NULL if there is no such state. */
const char *
message_state_name(MessageState state)
{
	switch (state)
	{
		case STATE_FREE:
			return "free";
		case STATE_CLAIMED:
			return "claimed";
		case STATE_CANCELED:
			return "canceled";
		case STATE_DELAYED:
			return "delayed";
		case STATE_WAITING:
			return "waiting";
	}
	return NULL;
}

/* Returns the state of a message that has not expired. */
MessageState
message_state(TupleDesc desc, HeapTuple tuple, const MessageForm *form,
			  TimestampTz now)
{
	TimestampTz due_at;
	bool		isnull;

	if (message_is_claimed(form, now))
		return form->is_canceled ? STATE_CANCELED : STATE_CLAIMED;
	if (!form->is_delayed)
		return STATE_FREE;
	due_at = DatumGetTimestampTz(heap_getattr(tuple, Anum_message_due_at,
											  desc, &isnull));
	if (due_at <= now)
		return STATE_FREE;
	return due_at == DT_NOEND ? STATE_WAITING : STATE_DELAYED;
}

/* When a message in a table of delayed ones is due */
TimestampTz
message_due_at(MessageTable *table, HeapTuple tuple)
{
	return DatumGetTimestampTz(row_getattr(table->heap, tuple,
										   Anum_message_due_at));
}

/*
 * Look in one segment for a message with an id from low to high, which differ
 * in the segment only.  If that returns true, the table and the slot are open.
 */
static bool
find_in_segment(int32 queue_id, int64 low, int64 high, LOCKMODE lockmode,
				FoundMessage *message, int segment)
{
	MessageTable *table = &message->table;
	ScanKeyData keys[MESSAGE_KEYS_MAX];
	int			nkeys = message_scan_keys(keys, segment_is_delayed(segment),
										  queue_id, message_id_priority(low),
										  low, high);
	IndexScanDesc scan;
	bool		found;

	message_table_open(table, segment, lockmode);
	message->slot = table_slot_create(table->heap, NULL);
	scan = compat_index_beginscan(table->heap, table->index,
								  GetActiveSnapshot(), keys, nkeys);

	/*
	 * A message may have been replaced often while an old snapshot keeps its
	 * former versions.  The last one is the last one here, too, as a rule:
	 * rows are added at the end.
	 */
	found = index_getnext_slot(scan, BackwardScanDirection, message->slot);
	index_endscan(scan);
	if (found)
	{
		message->tuple = row_tuple(message->slot);
		(void) message_row_check(ERROR, table->heap, message->tuple);
		message->form = message_read(message->tuple);
	}
	else
	{
		ExecDropSingleTupleTableSlot(message->slot);
		message_table_close(table, false);
	}
	return found;
}

/*
 * Find a message with an id from low to high, which differ in the segment
 * only.  Looks first in the segment that it was pushed to, if there is only
 * one id, then where its number was published.
 */
static bool
find_message(int32 queue_id, int64 low, int64 high, LOCKMODE lockmode,
			 FoundMessage *found)
{
	int			guess = low == high ? message_id_segment(low) : -1;
	int64		number = message_id_number(low);

	/* The id may come from a user; no message has it. */
	if (guess >= ALL_SEGMENTS || message_id_priority(low) >= QUEUE_PRIORITIES)
		return false;
	for (;;)
	{
		SnapshotToken token = segment_push_snapshot();

		for (int i = -1; i < ALL_SEGMENTS; i++)
		{
			int			segment = i < 0 ? guess : i;

			if (i != guess && segment_may_hold(segment, number, number) &&
				find_in_segment(queue_id, low, high, lockmode, found, segment))
				return true;
		}
		PopActiveSnapshot();

		/* It may have been moved out of a segment that is empty now. */
		if (!segment_snapshot_is_stale(token))
			return false;
	}
}

/*
 * Find one message, with the latest snapshot.  If this returns true, the
 * snapshot is the active one until the caller closes the message.
 */
bool
message_find(int32 queue_id, int64 id, LOCKMODE lockmode, FoundMessage *found)
{
	return find_message(queue_id, id, id, lockmode, found);
}

/* Find one message whose segment is not known. */
bool
message_find_number(int32 queue_id, int64 number, int priority,
					LOCKMODE lockmode, FoundMessage *found)
{
	int64		low = message_id_make(number, priority, 0);

	return find_message(queue_id, low,
						low | ((1 << MESSAGE_ID_SEGMENT_BITS) - 1), lockmode,
						found);
}

/* Close a message that was found; the lock of its table is kept if it writes. */
void
message_close_found(FoundMessage *found)
{
	ExecDropSingleTupleTableSlot(found->slot);
	message_table_close(&found->table,
						found->table.lockmode != AccessShareLock);
	PopActiveSnapshot();
}

/* Returns whether a message with this id exists. */
bool
message_exists(int32 queue_id, int64 id)
{
	FoundMessage found;

	if (!message_find(queue_id, id, AccessShareLock, &found))
		return false;
	message_close_found(&found);
	return true;
}
