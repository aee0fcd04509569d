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
 *	  changes.
 *
 *	  1. Records.  A record holds a range of message numbers, and grows while
 *	  changes follow each other closely.  It says when its messages are free if
 *	  the transaction commits ("due") and if it does not ("due_before"):
 *
 *		End of the transaction	What becomes of a record
 *
 *		commit					It is returned as free from "due" on; not if
 *								that is DT_NOEND: the change frees nothing.
 *		rollback, also of a		It is returned as free from "due_before" on;
 *		subtransaction			not if that is DT_NOEND: an insertion.
 *		PREPARE TRANSACTION		It is left to the worker (prepared.c).
 *
 *	  A claim that runs out meanwhile is due before a rollback, and not free at
 *	  once: the worker sweeps only what is due, and counts its end
 *	  (counts_end_claim).
 *
 *	  2. The memory of one transaction has to be bounded.  When it has
 *	  RECORDS_MAX records, and a change to messages fits into none of them, it
 *	  is not recorded: however the transaction, or a subtransaction, ends from
 *	  then on, the map of that queue begins anew.
 *
 *	  3. Own claims.  The transaction itself may claim what it has pushed or
 *	  released.  With its first claim of a queue we make a set of ranges from
 *	  the records, and add each later change to it.  A claim takes from the set
 *	  what is due, scans that together with ranges of the map, and returns what
 *	  it has not come to, or what may be free later (pending_return_own).  So a
 *	  message is scanned once, however many messages the transaction pushes and
 *	  claims.  A rollback to a savepoint puts back what claims have taken from
 *	  the set since.  If not all changes have a record, the set is made anew
 *	  then, and it is all of the queue.
 *
 *	  4. pending_end() runs when the transaction has left the array of running
 *	  ones, so that other sessions see its end.  It takes these steps, in this
 *	  order:
 *
 *	  -  It ends a wait that was interrupted.
 *
 *	  -  It has the worker check segments from which messages were deleted.
 *
 *	  -  It makes the maps begin anew if they cannot know what has changed.
 *
 *	  -  It returns the changes.  This comes after the end is visible: if a
 *	  claim has passed a row as it was before, then its snapshot, and so its
 *	  reservation, is older than the end of this transaction, and the map
 *	  accepts what is returned (availability.c).
 *
 *	  -  It closes the reservation with which the worker has moved delayed
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

#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/relations.h"
#include "map/availability.h"
#include "map/availability_groups.h"
#include "map/availability_reserve.h"
#include "map/availability_visit.h"
#include "map/lanes.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "shmem/depth_state.h"
#include "shmem/segment_state.h"
#include "storage/batches.h"
#include "storage/message.h"
#include "storage/pending.h"
#include "storage/prepared.h"
#include "util/hash.h"

#define RECORDS_MAX		100000	/* records of messages in a transaction */
#define EXTEND_DEPTH	32		/* how many of the latest records of a queue
								 * may grow */
#define EXTEND_GAP		32		/* message numbers that may lie between a
								 * record and what it grows by */

/* A queue that has records, or whose changes were not recorded */
typedef struct QueueRecords
{
	int32		queue_id;
	char		status;			/* for simplehash.h */
	bool		is_forgotten;	/* not all changes to it have a record */
	int			latest;			/* record, or -1 */
	MessageRanges *own;			/* what own claims have to scan, or NULL */
	uint32		own_epoch;		/* for which it was made */
} QueueRecords;

#define SH_PREFIX		queues
#define SH_ELEMENT_TYPE	QueueRecords
#define SH_KEY_TYPE		int32
#define SH_KEY			queue_id
#define SH_HASH_KEY(table, key)	murmurhash32((uint32) (key))
#define SH_EQUAL(table, a, b)	((a) == (b))
#define SH_SCOPE		static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static void pending_end(XactEvent event);
static void pending_roll_back(int first);

/* The records of the open transaction, the latest one last */
XactList	pending_changes = {
	.record_size = sizeof(PendingChange),
	.end = pending_end,
	.roll_back = pending_roll_back
};

/* Each queue that has records; in TopTransactionContext, as these are */
static queues_hash * queues = NULL;

/* The extension of queues whose changes are not all recorded, if any */
static Oid	forgotten = InvalidOid;

/* Counts rollbacks of subtransactions whose changes may not be recorded. */
static uint32 own_epoch = 0;

/* The extension whose tables other SQL has written, if any. */
static Oid	restored = InvalidOid;

static bool extend_record(PendingChange *record, const PendingChange *new);
static bool extend_latest(const QueueRecords *entry, const PendingChange *new);
static QueueRecords *find_records(int32 queue_id);
static QueueRecords *insert_records(int32 queue_id);
static void make_own(QueueRecords *entry, TimestampTz now);
static void add_own_range(OwnRanges *own, const MessageRange *range);
static void return_records(int first, XactEvent event);
static void forget_queues(void);
static bool all_is_recorded(void);

/* --- The records --- */

static inline PendingChange *
record_at(int i)
{
	return xact_record(&pending_changes, i);
}

/*
 * Let the record grow by a new one.  Returns false if they do not fit
 * together: one record is returned, or dropped at a rollback, as a whole.
 */
static bool
extend_record(PendingChange *record, const PendingChange *new)
{
	int64		gap = EXTEND_GAP;

	/*
	 * Numbers in between only cost a scan.  But those of a TARGET_ROOM are
	 * cut out of what was delivered of the lane (lanes_make_room), and then
	 * what is in between would not count toward the bound any more.
	 */
	if (new->target == TARGET_ROOM)
		gap = 1;
	if (record->queue_id != new->queue_id ||
		record->xact.nest_level != new->xact.nest_level ||
		record->target != new->target ||
		!lane_equals(record->lane, new->lane) ||
		(record->due_before == DT_NOBEGIN) != (new->due_before == DT_NOBEGIN) ||
		(record->due_before == DT_NOEND) != (new->due_before == DT_NOEND) ||
		record->range.priority != new->range.priority ||
		record->range.due != new->range.due ||
		record->extension != new->extension ||
		new->range.first > record->range.last + gap ||
		new->range.last < record->range.first - gap)
		return false;
	Assert(new->range.first <= new->range.last);
	record->range.first = Min(record->range.first, new->range.first);
	record->range.last = Max(record->range.last, new->range.last);
	record->expires_at = Min(record->expires_at, new->expires_at);
	record->due_before = Min(record->due_before, new->due_before);
	return true;
}

/*
 * Let one of the latest records of a queue grow by a new one.  Returns false
 * if it fits into none.
 */
static bool
extend_latest(const QueueRecords *entry, const PendingChange *new)
{
	int			i = entry->latest;

	for (int depth = 0; depth < EXTEND_DEPTH && i >= 0; depth++)
	{
		PendingChange *record = record_at(i);

		if (extend_record(record, new))
			return true;
		i = record->previous;
	}
	return false;
}

/* Returns what there is of a queue, or NULL. */
static QueueRecords *
find_records(int32 queue_id)
{
	/* An earlier transaction has taken its hash table with it. */
	return queues == NULL ? NULL : queues_lookup(queues, queue_id);
}

static QueueRecords *
insert_records(int32 queue_id)
{
	QueueRecords *entry;
	bool		found;

	if (queues == NULL)
		queues = queues_create(TopTransactionContext, 1, NULL);
	entry = queues_insert(queues, queue_id, &found);
	if (!found)
	{
		entry->is_forgotten = false;
		entry->latest = -1;
		entry->own = NULL;
	}
	return entry;
}

/* --- Recording --- */

/*
 * Record a change of a message that is about to be made.  After a commit it is
 * free at the time due, after a rollback at due_before.  DT_NOEND means that
 * the change does not make it free, and that it was not there before.
 */
void
pending_record_change(const MessageForm *form, PendingTarget target,
					  LaneId lane, TimestampTz due_before, TimestampTz due)
{
	PendingChange new = {0};
	QueueRecords *entry;

	Assert(!xact_has_ended);
	database_join();
	new.xact.nest_level = GetCurrentTransactionNestLevel();
	new.extension = catalog_queue_oid();
	new.queue_id = form->queue_id;
	new.lane = lane;
	new.target = target;
	new.expires_at = message_expires_at(form);
	new.due_before = due_before;
	new.range.priority = form->priority;
	new.range.first = new.range.last = message_id_number(form->id);
	new.range.due = due;

	entry = insert_records(form->queue_id);

	/* Own claims find it there, whether it is recorded or not. */
	if (target == TARGET_MESSAGES && due != DT_NOEND && entry->own != NULL)
		message_ranges_add(entry->own, &new.range,
						   GetCurrentStatementStartTimestamp());
	if (extend_latest(entry, &new))
		return;

	/* A queue as a whole has few records, which are needed in any case. */
	if (pending_changes.n < RECORDS_MAX || target >= TARGET_QUEUE)
	{
		new.previous = entry->latest;
		*(PendingChange *) xact_add(&pending_changes) = new;
		entry->latest = pending_changes.n - 1;
		return;
	}
	if (!entry->is_forgotten)
		ereport(DEBUG2,
				(errmsg_internal("the transaction has made %d records of changes to messages: it is to forget what is known of queue number %d",
								 pending_changes.n, form->queue_id)));
	entry->is_forgotten = true;
	forgotten = new.extension;
}

/*
 * Record what the commit does to a queue, or to one of its groups, as a whole.
 * After a rollback other claims find a group that was locked because the
 * messages that this transaction has claimed of it are returned.
 */
void
pending_record_queue(int32 queue_id, PendingTarget target, LaneId lane)
{
	MessageForm form = {.queue_id = queue_id,.expires_at = DT_NOEND};

	pending_record_change(&form, target, lane, DT_NOEND, DT_NOBEGIN);
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

/* --- Own claims --- */

/*
 * Set *queue_id to the next queue after it, in the order of ids, in which
 * this transaction has changed anything.  Returns false if there is none.
 */
bool
pending_next_queue(int32 *queue_id)
{
	int32		next = PG_INT32_MAX;
	queues_iterator iterator;
	QueueRecords *entry;

	if (queues == NULL)
		return false;
	queues_start_iterate(queues, &iterator);
	while ((entry = queues_iterate(queues, &iterator)) != NULL)
		if (entry->queue_id > *queue_id)
			next = Min(next, entry->queue_id);
	*queue_id = next;
	return next != PG_INT32_MAX;
}

/* Make the set of what own claims have to scan of a queue. */
static void
make_own(QueueRecords *entry, TimestampTz now)
{
	MessageRange all = {.last = NUMBERS_END - 1,.due = DT_NOBEGIN};

	if (entry->own == NULL)
		entry->own = MemoryContextAlloc(TopTransactionContext,
										sizeof(MessageRanges));
	entry->own->n = 0;
	entry->own_epoch = own_epoch;
	for (; entry->is_forgotten && all.priority < QUEUE_PRIORITIES;
		 all.priority++)
		message_ranges_add(entry->own, &all, now);
	for (int i = entry->latest; i >= 0 && !entry->is_forgotten;
		 i = record_at(i)->previous)
		if (record_at(i)->target == TARGET_MESSAGES &&
			record_at(i)->range.due != DT_NOEND)
			message_ranges_add(entry->own, &record_at(i)->range, now);
}

/*
 * Take the ranges of messages that this transaction has made free itself, and
 * that none of its claims has scanned since, because the caller is about to
 * scan them.
 */
void
pending_take_own(int32 queue_id, TimestampTz now, MessageRanges *taken)
{
	QueueRecords *entry = find_records(queue_id);

	taken->n = 0;
	if (entry == NULL)
		return;
	if (entry->own == NULL || entry->own_epoch != own_epoch)
		make_own(entry, now);
	for (int i = entry->own->n - 1; i >= 0; i--)
		if (entry->own->items[i].due <= now)
		{
			taken->items[taken->n++] = entry->own->items[i];
			message_ranges_remove(entry->own, i);
		}
}

/*
 * The claim has scanned the ranges that it has taken only up to this message
 * (0: nothing of them), in the order of claims: they are left to the next
 * claim from there on.  What it has skipped may be free later.
 */
void
pending_return_own(int32 queue_id, TimestampTz now, MessageRanges *taken,
				   const MessageRanges *skipped, int64 scanned_to)
{
	QueueRecords *entry = find_records(queue_id);

	for (int i = 0; i < taken->n; i++)
	{
		MessageRange range = taken->items[i];

		if (scanned_to != 0 &&
			range.priority > message_id_priority(scanned_to))
			continue;
		if (scanned_to != 0 &&
			range.priority == message_id_priority(scanned_to))
			range.first = Max(range.first, message_id_number(scanned_to) + 1);
		if (range.first <= range.last)
			message_ranges_add(entry->own, &range, now);
	}
	taken->n = 0;
	for (int i = 0; i < skipped->n; i++)
		message_ranges_add(entry->own, &skipped->items[i], now);
}

/*
 * Give a turn to the groups in which this transaction has made room, because
 * other sessions may have found them full, but its own claims will not.
 */
void
pending_give_turns(int32 queue_id)
{
	const QueueRecords *entry = find_records(queue_id);

	for (int i = entry == NULL ? -1 : entry->latest; i >= 0;
		 i = record_at(i)->previous)
		if (record_at(i)->target == TARGET_ROOM ||
			record_at(i)->target == TARGET_TURN)
			availability_make_room(record_at(i)->extension, queue_id,
								   record_at(i)->lane, NULL, 0);
}

/* Add a range to the list, whose items are allocated. */
static void
add_own_range(OwnRanges *own, const MessageRange *range)
{
	if (own->n == own->size)
	{
		own->size *= 2;
		own->items = repalloc_huge(own->items,
								   own->size * sizeof(MessageRange));
	}
	own->items[own->n++] = *range;
}

/*
 * Add the ranges of the messages of a lane that this transaction may have
 * locked, changed or deleted: all of the queue if not all changes have a
 * record.  The records of delayed messages do not have the lane, so these
 * ranges may hold messages of other lanes.
 */
void
pending_add_of_lane(int32 queue_id, LaneId lane, OwnRanges *own)
{
	const QueueRecords *entry = find_records(queue_id);
	MessageRange all = {.last = NUMBERS_END - 1,.due = DT_NOBEGIN};

	if (entry == NULL)
		return;
	for (; entry->is_forgotten && all.priority < QUEUE_PRIORITIES;
		 all.priority++)
		add_own_range(own, &all);
	for (int i = entry->latest; i >= 0 && !entry->is_forgotten;
		 i = record_at(i)->previous)
	{
		const PendingChange *record = record_at(i);

		/* What it has pushed was not delivered. */
		bool		is_push = record->due_before == DT_NOEND &&
		record->range.due == DT_NOBEGIN;

		if (record->target == TARGET_DELAYED ||
			(record->target == TARGET_MESSAGES && !is_push &&
			 lane_equals(record->lane, lane)))
			add_own_range(own, &record->range);
	}
}

/* --- The end of a transaction --- */

/* Return a record, as free as the end of its transaction makes it. */
void
pending_return(const PendingChange *record, bool commit)
{
	MessageRange range = record->range;

	/*
	 * A message that was pushed or released is free now, one that was claimed
	 * when the claim ends.  A lock or a deletion frees nothing.  After a
	 * rollback the message is as it was before.
	 */
	if (!commit)
		range.due = record->due_before;
	if (range.due == DT_NOEND)
		return;
	switch (record->target)
	{
		case TARGET_MESSAGES:
			availability_return(record->extension, record->queue_id,
								record->lane, &range, record->expires_at,
								GetCurrentTimestamp());
			break;
		case TARGET_DELAYED:
			availability_return_delayed(record->extension, record->queue_id,
										range.due, record->expires_at);
			break;
		case TARGET_ROOM:
		case TARGET_TURN:
			availability_make_room(record->extension, record->queue_id,
								   record->lane,
								   record->target == TARGET_ROOM ? &range : NULL,
								   range.last - range.first + 1);
			break;
		case TARGET_QUEUE:
			availability_request_visit(record->extension, record->queue_id,
									   false);
			break;
		case TARGET_DROP:
			availability_drop_queue(record->extension, record->queue_id);
			break;
		case TARGET_MOVE:
			availability_request_visit(record->extension, record->queue_id,
									   true);
			break;
	}
}

/*
 * Return the records from "first" on, or leave them to the worker, except for
 * those of messages in a queue that has been forgotten.
 */
static void
return_records(int first, XactEvent event)
{
	Assert(xact_has_ended);
	for (int i = first; i < pending_changes.n; i++)
	{
		const PendingChange *record = record_at(i);

		if (OidIsValid(forgotten) && record->target < TARGET_QUEUE &&
			find_records(record->queue_id)->is_forgotten)
			continue;
		if (event != XACT_EVENT_PREPARE)
			pending_return(record, event == XACT_EVENT_COMMIT);

		/*
		 * When the prepared transaction ends, it unlocks its groups at once,
		 * and until the worker has returned its changes, other claims have to
		 * count the messages that it may have claimed.
		 */
		else if (record->target == TARGET_MESSAGES)
			availability_prepare(record->extension, record->queue_id,
								 record->lane, &record->range);
	}
}

/* Forget what is known of the queues whose changes are not all recorded. */
static void
forget_queues(void)
{
	queues_iterator iterator;
	QueueRecords *entry;

	if (!OidIsValid(forgotten))
		return;
	queues_start_iterate(queues, &iterator);
	while ((entry = queues_iterate(queues, &iterator)) != NULL)
		if (entry->is_forgotten)
			availability_request_visit(forgotten, entry->queue_id, true);
}

/* Returns whether there are records of all that the transaction has changed. */
static bool
all_is_recorded(void)
{
	/*
	 * There are none of rows that other SQL has written, but for those that a
	 * move of a shard has copied: their queues are visited.
	 */
	if (OidIsValid(forgotten) || !OidIsValid(restored))
		return !OidIsValid(forgotten);
	for (int i = 0; i < pending_changes.n; i++)
		if (record_at(i)->target == TARGET_MOVE)
			return true;
	return false;
}

/*
 * Rows may have been written that are not recorded: make all maps of the
 * extension forget what they know, and wake the sessions that wait; the worker
 * visits all queues, and counts the messages anew.
 */
void
pending_forget_all(Oid extension)
{
	depth_lose();
	shmem_for_each_map(extension, availability_reset);

	/* This session may not have looked up its entry (database_mine). */
	database_map_missing(database_of(MyDatabaseId), DT_NOBEGIN);
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

	/* Rows were written by other SQL, which records no changes. */
	if (OidIsValid(restored) && event == XACT_EVENT_COMMIT)
		pending_forget_all(restored);
	forget_queues();
	return_records(0, event);
	availability_end_move(event == XACT_EVENT_COMMIT);

	/* A claim that has failed has left its reservation open. */
	availability_close_all();
	if (event == XACT_EVENT_PREPARE)
		prepared_add(all_is_recorded());
	Assert(!availability_is_reserving());
	restored = InvalidOid;
	forgotten = InvalidOid;
	queues = NULL;
	segment_end_move();
}

/*
 * Callback after the rollback of a subtransaction, whose records are those
 * from "first" on.  Where a parent has changed the same message, it has a
 * record of its own.
 */
static void
pending_roll_back(int first)
{
	availability_end_wait(true);
	segment_forget_published();

	/* Changes that are not recorded may be of this subtransaction. */
	forget_queues();
	if (OidIsValid(forgotten))
		own_epoch++;
	return_records(first, XACT_EVENT_ABORT);
	while (pending_changes.n > first)
	{
		const PendingChange *record = record_at(--pending_changes.n);
		QueueRecords *entry = find_records(record->queue_id);

		Assert(entry->latest == pending_changes.n);
		entry->latest = record->previous;

		/* A claim may have taken it from the set of what is to be scanned. */
		if (entry->own != NULL && record->target == TARGET_MESSAGES &&
			record->due_before != DT_NOEND)
		{
			MessageRange range = record->range;

			range.due = record->due_before;
			message_ranges_add(entry->own, &range,
							   GetCurrentStatementStartTimestamp());
		}
	}
	Assert(pending_changes.n == 0 ||
		   record_at(pending_changes.n - 1)->xact.nest_level <
		   GetCurrentTransactionNestLevel());
	availability_close_all();
}
