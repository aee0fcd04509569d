/*-------------------------------------------------------------------------
 *
 * pending.c
 *	  Pending changes: what the open transaction did to messages.
 *
 * NOTES
 *	  message.c records each change to a message here before it makes it.
 *	  When the transaction ends, we return the records to the queue's
 *	  availability map (availability.c), which learns from them where
 *	  something may be free now.  Until then the map knows nothing of these
 *	  changes.  The transaction itself may claim what it has pushed or
 *	  released; it finds that by its own records (pending_next_own).
 *
 *	  A record says when its messages are free if the transaction commits
 *	  ("due") and if it does not ("due_before"):
 *
 *		End of the transaction	What becomes of a record
 *
 *		commit					It is returned as free from "due" on; not if
 *								that is DT_NOEND: the change frees nothing.
 *		rollback				It is returned as free from "due_before" on;
 *								not if that is DT_NOEND: an insertion.
 *		rollback of a			As at a rollback; and a change is kept, and
 *		subtransaction			returned once more when the top-level
 *								transaction ends.
 *		PREPARE TRANSACTION		It is left to the worker (prepared.c).
 *
 *	  A claim that runs out meanwhile is due before a rollback, and not free at
 *	  once: the worker sweeps only what is due, and counts its end
 *	  (claim_ends.c).
 *
 *	  pending_list.c keeps the records.
 *
 *	  pending_end() runs when the transaction has left the array of running
 *	  ones, so that other sessions see its end.  It takes these steps, in this
 *	  order:
 *
 *	  1.  It ends a wait that was interrupted.
 *
 *	  2.  It has the worker check segments from which messages were deleted.
 *
 *	  3.  It makes the maps begin anew if they cannot know what has changed.
 *
 *	  4.  It returns the changes.  This comes after the end is visible: if a
 *	  claim has passed a row as it was before, then its snapshot, and so its
 *	  reservation, is older than the end of this transaction, and the map
 *	  accepts what is returned (availability.c).
 *
 *	  5.  It closes the reservation with which the worker has moved delayed
 *	  messages, and those of a claim that has failed, and then ends the move.
 *	  Claims that wait for these find the messages returned.
 *
 *	  Nothing here may fail once the transaction has ended: no memory is
 *	  allocated then, and no catalog is read.
 *
 * src/storage/pending.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/relations.h"
#include "map/availability.h"
#include "map/availability_groups.h"
#include "map/availability_reserve.h"
#include "map/availability_visit.h"
#include "map/lanes.h"
#include "map/lanes_table.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "shmem/depth_state.h"
#include "shmem/segment_state.h"
#include "storage/batches.h"
#include "storage/message.h"
#include "storage/pending.h"
#include "storage/pending_internal.h"
#include "storage/prepared.h"

static bool too_many = false;	/* some changes were not recorded */

/* The extension whose tables other SQL has written, if any. */
static Oid	restored = InvalidOid;

static void record_change(const MessageForm *form, PendingTarget target,
						  LaneId lane, TimestampTz due_before,
						  TimestampTz due);
static void record_queue_change(int32 queue_id, PendingTarget target);
static void return_record(const PendingChange *record, TimestampTz now,
						  TimestampTz due);
static void return_at_end(const PendingChange *record, bool commit,
						  TimestampTz now);
static void prepare_record(const PendingChange *record);
static void return_all_records(XactEvent event);
static bool all_is_recorded(void);
static void forget_all_maps(void);
static bool end_uses_maps(void);
static void return_to_maps(XactEvent event);
static void pending_end(XactEvent event);
static void pending_roll_back(int first);

/* To be called as the postmaster loads the library. */
void
pending_init(void)
{
	pending_list.end = pending_end;
	pending_list.roll_back = pending_roll_back;

	/* What is undone of the scans first is that of records that still are. */
	xact_register(&own_scans);
	xact_register(&pending_list);
}

/* --- Recording --- */

static void
record_change(const MessageForm *form, PendingTarget target, LaneId lane,
			  TimestampTz due_before, TimestampTz due)
{
	PendingChange new = {0};

	database_join();
	new.xact.nest_level = GetCurrentTransactionNestLevel();
	new.extension = catalog_queue_oid();
	new.queue_id = form->queue_id;
	new.lane = lane;
	new.target = target;
	new.scanned_to = PG_INT64_MIN;
	new.expires_at = message_expires_at(form);
	new.due_before = due_before;
	new.range.priority = form->priority;
	new.range.first = new.range.last = message_id_number(form->id);
	new.range.due = due;

	/*
	 * If there is no room for it, which takes changes to very many queues,
	 * the change is not recorded.  So the maps of the database forget what
	 * they know when the transaction ends (forget_all_maps), which costs
	 * their next claims a full scan.
	 */
	too_many |= !pending_list_add(&new);
}

/*
 * Record that a message is about to be changed.  After a commit it is free at
 * the time due, after a rollback at due_before.  DT_NOEND means that the change
 * does not make it free, and that it was not there before.
 */
void
pending_record_message(const MessageForm *form, LaneId lane,
					   TimestampTz due_before, TimestampTz due)
{
	record_change(form, TARGET_MESSAGES, lane, due_before, due);
}

/*
 * Record that a delayed message is about to be changed, which the worker has to
 * move then.
 */
void
pending_record_delayed(const MessageForm *form, TimestampTz due_before,
					   TimestampTz due)
{
	record_change(form, TARGET_DELAYED, LANE_WITHOUT_KEY, due_before, due);
}

/*
 * Record that a message of a group with a bound is being deleted, or (if
 * is_finished is false) delayed, or that its group is unlocked.  A commit
 * leaves room for another one.
 */
void
pending_record_room(const MessageForm *form, LaneId lane, bool is_finished)
{
	/* A rollback makes no room. */
	record_change(form, is_finished ? TARGET_ROOM : TARGET_TURN, lane,
				  DT_NOEND, DT_NOBEGIN);
}

/*
 * Record that a commit unlocks a group with a bound, of which other claims
 * may take something then.  After a rollback they find it because the
 * messages that this transaction has claimed of the group are returned.
 */
void
pending_record_unlock(int32 queue_id, LaneId lane)
{
	MessageForm form = {.queue_id = queue_id};

	pending_record_room(&form, lane, false);
}

/* Record what the commit does to a queue as a whole. */
static void
record_queue_change(int32 queue_id, PendingTarget target)
{
	MessageForm form = {.queue_id = queue_id,.expires_at = DT_NOEND};

	record_change(&form, target, LANE_WITHOUT_KEY, DT_NOEND, DT_NOBEGIN);
}

/*
 * Record that something may become claimable in a queue for another reason, so
 * that the worker examines it after the commit.
 */
void
pending_record_queue(int32 queue_id)
{
	record_queue_change(queue_id, TARGET_QUEUE);
}

/*
 * Record that a queue is dropped: its lanes are not needed after the commit.
 */
void
pending_record_drop(int32 queue_id)
{
	record_queue_change(queue_id, TARGET_DROP);
}

/*
 * Record that a queue comes from another server, or goes there: after the
 * commit nothing that is known of it holds.
 */
void
pending_record_move(int32 queue_id)
{
	record_queue_change(queue_id, TARGET_MOVE);
}

/*
 * Record that a table of the extension (InvalidOid: any of them) was written by
 * other SQL than its functions.  When that commits, sessions and the worker
 * have to forget what they know of the tables.
 */
void
pending_record_restore(Oid relid)
{
	batches_record_changed(NO_BATCH);
	if (relid == catalog_oid(CATALOG_BATCH) ||
		relid == catalog_oid(CATALOG_BATCH_PART))
		return;
	restored = catalog_queue_oid();
	database_record_change(CHANGE_HANDLERS);
	for (int i = 0; i < ALL_SEGMENTS; i++)
		if (!OidIsValid(relid) || catalog_segment_oid(i) == relid)
			segment_found_rows(i);
}

/* --- The end of a transaction --- */

/* Return the range of a record to the map, as free from "due" on. */
static void
return_record(const PendingChange *record, TimestampTz now, TimestampTz due)
{
	MessageRange range;

	/*
	 * Records of several lanes were united.  Pushes are returned as overflow.
	 * Anything else must not: later messages of its group, which are in the
	 * lane, would overtake it, and the lane would not know what was delivered
	 * or that there is room.
	 */
	if (lane_equals(record->lane, LANE_OF_OVERFLOW) &&
		!pending_is_push(record))
		availability_clear_lanes(record->extension, record->queue_id);
	switch (record->target)
	{
		case TARGET_MESSAGES:
			range = record->range;
			range.due = due;
			availability_return(record->extension, record->queue_id,
								record->lane, &range, record->expires_at,
								now);
			break;
		case TARGET_DELAYED:
			availability_return_delayed(record->extension, record->queue_id,
										due, record->expires_at);
			break;
		case TARGET_ROOM:
		case TARGET_TURN:
			availability_make_room(record->extension, record->queue_id,
								   record->lane, &record->range,
								   record->target == TARGET_ROOM);
			break;
		case TARGET_QUEUE:
			availability_request_visit(record->extension, record->queue_id);
			break;
		case TARGET_DROP:
			availability_drop_queue(record->extension, record->queue_id);
			break;
		case TARGET_MOVE:
			availability_move_queue(record->extension, record->queue_id);
			break;
	}
}

/* Return a record, as free as this end of the transaction makes it. */
static void
return_at_end(const PendingChange *record, bool commit, TimestampTz now)
{
	/*
	 * A message that was pushed or released is free now, one that was claimed
	 * when the claim ends.  A lock or a deletion frees nothing.  After a
	 * rollback the message is as it was before.
	 */
	TimestampTz due = commit ? record->range.due : record->due_before;

	if (due != DT_NOEND)
		return_record(record, now, due);
}

/*
 * The transaction is prepared.  When it ends, it unlocks its groups at once,
 * and until the worker has returned its changes, other claims have to count
 * the messages that it may have claimed.
 */
static void
prepare_record(const PendingChange *record)
{
	if (lane_equals(record->lane, LANE_OF_OVERFLOW) &&
		!pending_is_push(record))
		availability_clear_lanes(record->extension, record->queue_id);
	else if (record->target == TARGET_MESSAGES)
		availability_prepare(record->extension, record->queue_id,
							 record->lane, &record->range);
}

/* Return all records, or leave them to the worker. */
static void
return_all_records(XactEvent event)
{
	TimestampTz now = GetCurrentTimestamp();

	for (int i = 0; i < pending_list.n; i++)
	{
		const PendingChange *record = pending_list_at(i);

		if (event == XACT_EVENT_PREPARE)
			prepare_record(record);
		else
			return_at_end(record, event == XACT_EVENT_COMMIT, now);
	}
}

/* Returns whether there are records of all that the transaction has changed. */
static bool
all_is_recorded(void)
{
	bool		moves = false;

	for (int i = 0; i < pending_list.n; i++)
		moves |= pending_list_at(i)->target == TARGET_MOVE;

	/*
	 * There are none of rows that other SQL has written, but for those that a
	 * move of a shard has copied: their queues are visited.
	 */
	return !too_many && (moves || !OidIsValid(restored));
}

/* For the worker: return a change of a transaction that was prepared. */
void
pending_return_prepared(const PendingChange *record, bool commit)
{
	return_at_end(record, commit, GetCurrentTimestamp());
}

/*
 * If some changes were not recorded, make all maps of the extension forget
 * what they know: they must not rely on it, since these changes are not
 * returned.
 */
static void
forget_all_maps(void)
{
	/* If all records were rolled back, pending_roll_back() has done this. */
	if (too_many && pending_list.n > 0)
		shmem_for_each_map(pending_list_at(0)->extension, availability_clear);
}

/*
 * Rows may have been written that are not recorded: make all maps of the
 * extension forget what they know, and wake the sessions that wait; the worker
 * visits all queues, and counts the messages anew.
 */
void
pending_forget_all(Oid extension)
{
	depth_lose_mine();
	shmem_for_each_map(extension, availability_restored);

	/* This session may not have looked up its entry (database_mine). */
	database_map_missing(database_of(MyDatabaseId), DT_NOBEGIN);
}

/* Returns whether the end of the (sub)transaction has to use maps. */
static bool
end_uses_maps(void)
{
	return pending_list.n > 0 || OidIsValid(restored) ||
		availability_is_reserving();
}

/* Steps 3 to 5 of NOTES */
static void
return_to_maps(XactEvent event)
{
	bool		commit = event == XACT_EVENT_COMMIT;

	/* Rows were written by other SQL, which records no changes. */
	if (OidIsValid(restored) && commit)
		pending_forget_all(restored);

	forget_all_maps();
	return_all_records(event);
	availability_end_move(commit);

	/* A claim that has failed has left its reservation open. */
	availability_close_all();
}

/* Callback after commit, prepare or abort; in the order of NOTES. */
static void
pending_end(XactEvent event)
{
	/*
	 * A wait that ends with an error may have been woken for a message that
	 * this session will not claim; so another one is woken.
	 */
	availability_end_wait(event == XACT_EVENT_ABORT);
	segment_end_transaction(event == XACT_EVENT_COMMIT);
	if (end_uses_maps())
		return_to_maps(event);
	if (event == XACT_EVENT_PREPARE)
		prepared_add(all_is_recorded());
	Assert(!availability_is_reserving());
	restored = InvalidOid;
	too_many = false;
	segment_end_move();
}

/*
 * Callback after the rollback of a subtransaction, whose records are those
 * from "first" on: return them as free at once, or drop them if they are of
 * inserted messages.
 */
static void
pending_roll_back(int first)
{
	TimestampTz now;
	int			n = pending_list.n;
	int			kept = first;

	availability_end_wait(true);
	if (!end_uses_maps())
		return;

	/* Those that were not recorded may be of this subtransaction. */
	forget_all_maps();

	now = GetCurrentTimestamp();
	pending_list_unlink(first);
	for (int i = first; i < n; i++)
	{
		PendingChange *record = pending_list_at(i);

		/* The message does not exist any more, or no room was made. */
		if (record->due_before == DT_NOEND)
			continue;

		/*
		 * We keep the record, since a parent may hold a lock on the message
		 * to the end of the top-level transaction.  Our own claims need not
		 * scan it, because the map has it.
		 */
		return_record(record, now, record->due_before);
		record->range.due = record->due_before;
		record->in_map = true;
		*pending_list_at(kept) = *record;
		pending_list_link(kept++);
	}
	pending_list.n = kept;
	availability_close_all();
}
