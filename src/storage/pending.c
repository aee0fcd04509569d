/*-------------------------------------------------------------------------
 *
 * pending.c
 *	  Pending changes: what the open transaction did to messages.
 *
 * NOTES
 *	  message.c records each change to a message here before it makes it.  When
 *	  the transaction ends, the queue's availability map (availability.c)
 *	  learns from the records where something may be free now:
 *
 *	  - At commit: messages that are free (pushed, released), and messages
 *	  under a claim, which are due when that claim ends; and messages of a group
 *	  with a bound that were deleted or delayed, which leaves room for others.
 *
 *	  - At rollback, also of a subtransaction: messages that were locked,
 *	  changed or deleted, which may be as free as they were before.  A record
 *	  of a subtransaction that rolled back stays, and is returned once more
 *	  when the top-level transaction ends.
 *
 *	  - At PREPARE TRANSACTION: all of them, as uncertain, because no callback
 *	  reports the end of a prepared transaction.  A group in which that may
 *	  leave room gets a turn now, since it must not seem full then.
 *
 *	  Until then the map knows nothing of these changes.  The transaction
 *	  itself may claim what it has pushed or released; it finds that by its own
 *	  records (pending_next_own).
 *
 *	  A record holds a range of message numbers, and grows while changes follow
 *	  each other closely.  If there are too many records, those of pushes hold
 *	  messages of different groups, which claims find as what has no room in
 *	  lanes.  For any other change the maps of the database forget what they know
 *	  then, which costs their next claims a full scan.
 *
 *	  end_transaction() runs when the transaction has left the array of running
 *	  ones, so that other sessions see its end.  It takes these steps, in this
 *	  order:
 *
 *	  1.  It ends a wait that was interrupted.
 *
 *	  2.  It has the worker check segments from which messages were deleted.
 *
 *	  3.  It makes the maps forget what they know, and wakes sessions that wait,
 *	  if rows were written by other SQL.
 *
 *	  4.  It publishes what the worker's sweep has seen.  This comes before the
 *	  changes are returned, since a returned range removes the sweep's mark
 *	  from the ranges that it is united with.
 *
 *	  5.  It returns the changes.  This comes after the end is visible: if a
 *	  claim has passed a row as it was before, then its snapshot, and so its
 *	  reservation, is older than the end of this transaction, and the map
 *	  accepts what is returned (availability.c).
 *
 *	  6.  It closes the reservations of a claim that has failed, and the one
 *	  with which the worker has moved delayed messages, and then ends the move.
 *	  Claims that wait for these find the messages returned.
 *
 *	  Nothing here may fail once the transaction has ended: no memory is
 *	  allocated then, and no catalog is read.  Nor does the session attach to
 *	  memory that others have created since it has recorded its changes; if there
 *	  is any, the maps of the queues that were changed begin anew instead
 *	  (shmem_maps.c).
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
#include "map/availability_reserve.h"
#include "map/availability_visit.h"
#include "map/lanes.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "shmem/depth_state.h"
#include "shmem/segment_state.h"
#include "shmem/shmem.h"
#include "storage/pending.h"
#include "util/xact.h"

#define RECORDS_MAX		100000
#define COARSE_MAX		1000	/* records of pushes, above these */
#define EXTEND_DEPTH	32		/* how many of the latest records may grow */
#define EXTEND_GAP		32		/* message numbers that may lie between a
								 * record and what it grows by */
#define FIRST_HEADS		16

/* What a record is about. */
typedef enum PendingTarget
{
	TARGET_MESSAGES,			/* messages in the ring that claims scan */
	TARGET_DELAYED,				/* delayed messages */
	TARGET_ROOM,				/* messages of a group with a bound that are
								 * finished */
	TARGET_LESS,				/* ... or do not count toward the bound any
								 * more, for now */
	TARGET_QUEUE,				/* a queue as a whole, say one that was
								 * resumed */
	TARGET_DROP,				/* a queue that is dropped */
	TARGET_MOVE					/* one that comes from another server, or goes
								 * there */
} PendingTarget;

typedef struct PendingChange
{
	XactRecord	xact;
	Oid			extension;		/* OID of the table queue_data.queue */
	int32		queue_id;
	uint64		lane;			/* TARGET_MESSAGES: of the messages */
	int			previous;		/* earlier record with the same hash, or -1 */
	PendingTarget target;
	PendingKind kind;
	bool		scanned;		/* a claim of this transaction has scanned it
								 * since */
	TimestampTz expires_at;		/* when the first of the messages expires, or
								 * earlier */
	TimestampTz delayed_from;	/* TARGET_DELAYED: the first due time of the
								 * messages */
	MessageRange range;			/* due: when they are free after a commit;
								 * DT_NOEND: not because of this */
} PendingChange;

/*
 * A hash table of the records, so that the changes to one queue are found in a
 * transaction that has changed many: the latest record for each hash of a
 * queue's id, or -1.  Allocated in TopTransactionContext.
 */
static int *heads = NULL;
static int	nheads = 0;			/* a power of two, at least pending.n */

static bool too_many = false;	/* some changes were not recorded */

/*
 * After the end of the transaction: is this session attached to all maps and
 * lanes?
 */
static bool attached = false;

/* The extension whose tables other SQL has written, if any. */
static Oid	restored = InvalidOid;

static void init_record(PendingChange *record, int32 queue_id);
static void record_any(const MessageForm *form, PendingTarget target,
					   uint64 lane, TimestampTz delayed_from, TimestampTz due,
					   PendingKind kind);
static void record_whole(int32 queue_id, PendingTarget target);
static void add(const PendingChange *new);
static bool extend(PendingChange *record, const PendingChange *new);
static PendingChange *record_at(int i);
static int *head_of(int32 queue_id);
static void link_record(int i);
static void link_all(void);
static void enlarge_heads(void);
static PendingChange *next_of_queue(int32 queue_id,
									const PendingChange *after);
static bool has_queues(void);
static void return_record(const PendingChange *record, TimestampTz now,
						  TimestampTz due, bool uncertain);
static void return_all(XactEvent event);
static void forget_maps(void);
static bool uses_maps(void);
static void hold_maps(void);
static void release_maps(void);
static void return_restored(void);
static void begin_all_maps_anew(void);
static void return_to_maps(XactEvent event);
static void attach_shared(void);
static void before_end(XactEvent event);
static void end_transaction(XactEvent event);
static void roll_back(int first);
static void return_rolled_back(int first);

static XactList pending = {
	.record_size = sizeof(PendingChange),
	.before_end = before_end,
	.end = end_transaction,
	.roll_back = roll_back
};

/* To be called as the postmaster loads the library. */
void
pending_init(void)
{
	xact_register(&pending);
}

/* --- Recording --- */

/* A record of this queue, by the current subtransaction. */
static void
init_record(PendingChange *record, int32 queue_id)
{
	database_join();

	/* An abort may come at any time, and then it is too late. */
	shmem_maps_attach();
	memset(record, 0, sizeof(PendingChange));
	record->extension = catalog_queue_oid();
	record->queue_id = queue_id;
	record->xact.nest_level = GetCurrentTransactionNestLevel();
}

static void
record_any(const MessageForm *form, PendingTarget target, uint64 lane,
		   TimestampTz delayed_from, TimestampTz due, PendingKind kind)
{
	PendingChange new;

	if (!shmem_exists())
		return;
	init_record(&new, form->queue_id);
	new.target = target;
	new.lane = lane;
	new.kind = kind;
	new.delayed_from = delayed_from;
	new.range.priority = form->priority;
	new.range.first = new.range.last = message_id_number(form->id);
	new.range.due = due;
	new.expires_at = form->expires_at;
	add(&new);
}

/*
 * Record that a message is about to be changed.  After a commit it is free at
 * the time due; DT_NOEND means that the change does not make it free.
 */
void
pending_record_message(const MessageForm *form, uint64 lane, TimestampTz due,
					   PendingKind kind)
{
	record_any(form, TARGET_MESSAGES, lane, DT_NOBEGIN, due, kind);
}

/* The same for a delayed message; delayed_from is when it is due. */
void
pending_record_delayed(const MessageForm *form, TimestampTz delayed_from,
					   TimestampTz due, PendingKind kind)
{
	record_any(form, TARGET_DELAYED, 0, delayed_from, due, kind);
}

/*
 * Record that a message of a group with a bound is being deleted, or else
 * delayed.  A commit leaves room for another one.
 */
void
pending_record_room(const MessageForm *form, uint64 lane, bool is_finished)
{
	record_any(form, is_finished ? TARGET_ROOM : TARGET_LESS, lane,
			   DT_NOBEGIN, DT_NOBEGIN, PENDING_INSERT);
}

/*
 * Record that the end of the transaction unlocks a group with a bound, of which
 * other claims may take something then.
 */
void
pending_record_unlock(int32 queue_id, uint64 lane)
{
	MessageForm form = {.queue_id = queue_id};

	pending_record_room(&form, lane, false);
}

/* Record what the commit does to a queue as a whole. */
static void
record_whole(int32 queue_id, PendingTarget target)
{
	PendingChange new;

	if (!shmem_exists())
		return;
	init_record(&new, queue_id);
	new.target = target;
	new.kind = PENDING_INSERT;
	new.scanned = true;
	new.range.due = DT_NOBEGIN;
	new.expires_at = DT_NOEND;
	add(&new);
}

/*
 * Record that something may become claimable in a queue for another reason, so
 * that the worker examines it after the commit.
 */
void
pending_record_queue(int32 queue_id)
{
	record_whole(queue_id, TARGET_QUEUE);
}

/* Record that a queue is dropped: its lanes are not needed after the commit. */
void
pending_record_drop(int32 queue_id)
{
	record_whole(queue_id, TARGET_DROP);
}

/*
 * Record that a queue comes from another server, or goes there: after the commit
 * nothing that is known of it holds.
 */
void
pending_record_move(int32 queue_id)
{
	record_whole(queue_id, TARGET_MOVE);
}

/*
 * Record that a table of the extension was written by other SQL than its
 * functions.  When that commits, sessions and the worker have to forget what
 * they know of the tables.
 */
void
pending_record_restore(Oid relid)
{
	if (!shmem_exists())
		return;
	restored = catalog_queue_oid();
	database_record_change(CHANGE_HANDLERS);
	for (int i = 0; i < ALL_SEGMENTS; i++)
		if (catalog_segment_oid(i) == relid)
			segment_found_rows(i);
}

/* Let the record grow by a new one; false: they do not fit together. */
static bool
extend(PendingChange *record, const PendingChange *new)
{
	int64		gap = EXTEND_GAP;

	if (new->target == TARGET_ROOM)
		gap = 1;
	if (record->queue_id != new->queue_id ||
		record->xact.nest_level != new->xact.nest_level ||
		record->target != new->target ||
		record->lane != new->lane ||
		record->kind != new->kind ||
		record->scanned || new->scanned ||
		record->range.priority != new->range.priority ||
		record->range.due != new->range.due ||
		record->extension != new->extension ||
		new->range.first > record->range.last + gap ||
		new->range.last < record->range.first - gap)
		return false;
	record->range.first = Min(record->range.first, new->range.first);
	record->range.last = Max(record->range.last, new->range.last);
	record->expires_at = Min(record->expires_at, new->expires_at);
	record->delayed_from = Min(record->delayed_from, new->delayed_from);
	return true;
}

static void
add(const PendingChange *new)
{
	PendingChange coarse;
	PendingChange *added;

	if (pending.n >= RECORDS_MAX && new->kind == PENDING_INSERT &&
		new->target == TARGET_MESSAGES && new->range.due == DT_NOBEGIN)
	{
		coarse = *new;
		coarse.lane = LANE_OF_OVERFLOW;
		new = &coarse;
	}
	for (int i = pending.n - 1; i >= 0 && i >= pending.n - EXTEND_DEPTH; i--)
		if (extend(record_at(i), new))
			return;

	if (pending.n == RECORDS_MAX + COARSE_MAX ||
		(pending.n >= RECORDS_MAX && new->lane != LANE_OF_OVERFLOW))
	{
		too_many = true;
		return;
	}
	if (pending.n == nheads)
		enlarge_heads();
	added = xact_add(&pending);
	*added = *new;
	link_record(pending.n - 1);
}

/* --- The hash table --- */

static PendingChange *
record_at(int i)
{
	return xact_record(&pending, i);
}

static int *
head_of(int32 queue_id)
{
	return &heads[murmurhash32((uint32) queue_id) & (uint32) (nheads - 1)];
}

static void
link_record(int i)
{
	PendingChange *record = record_at(i);

	record->previous = *head_of(record->queue_id);
	*head_of(record->queue_id) = i;
}

/* Build the hash table anew: its size or the array of records has changed. */
static void
link_all(void)
{
	for (int i = 0; i < nheads; i++)
		heads[i] = -1;
	for (int i = 0; i < pending.n; i++)
		link_record(i);
}

static void
enlarge_heads(void)
{
	int			n = nheads == 0 ? FIRST_HEADS : nheads * 2;

	heads = heads == NULL ?
		MemoryContextAlloc(TopTransactionContext, n * sizeof(int)) :
		repalloc(heads, n * sizeof(int));
	nheads = n;
	link_all();
}

/*
 * The latest record of a queue, or the next earlier one than "after"; NULL:
 * there is none.
 */
static PendingChange *
next_of_queue(int32 queue_id, const PendingChange *after)
{
	int			i;

	if (pending.n == 0)
		return NULL;
	i = after == NULL ? *head_of(queue_id) : after->previous;
	while (i >= 0 && record_at(i)->queue_id != queue_id)
		i = record_at(i)->previous;
	return i < 0 ? NULL : record_at(i);
}

/* --- What the transaction itself may claim --- */

/*
 * The next queue after *queue_id, in the order of ids, in which this
 * transaction has changed anything.
 */
bool
pending_next_queue(int32 *queue_id)
{
	int32		next = PG_INT32_MAX;

	for (int i = 0; i < pending.n; i++)
		if (record_at(i)->queue_id > *queue_id)
			next = Min(next, record_at(i)->queue_id);
	*queue_id = next;
	return next != PG_INT32_MAX;
}

/*
 * A range of messages that this transaction has made free itself, and that
 * none of its claims has scanned since.  Each is returned once.
 */
bool
pending_next_own(int32 queue_id, TimestampTz now, MessageRange *range)
{
	PendingChange *record = NULL;

	while ((record = next_of_queue(queue_id, record)) != NULL)
		if (record->target == TARGET_MESSAGES && !record->scanned &&
			record->range.due <= now)
		{
			record->scanned = true;
			*range = record->range;
			return true;
		}
	return false;
}

/* The claim has not scanned them to the end: return them once more. */
void
pending_rescan_own(int32 queue_id)
{
	PendingChange *record = NULL;

	while ((record = next_of_queue(queue_id, record)) != NULL)
		record->scanned = false;
}

/*
 * Has this transaction changed a message of the queue, itself, so that it is
 * free then, or earlier?
 */
bool
pending_has_own(int32 queue_id, TimestampTz until)
{
	PendingChange *record = NULL;

	while ((record = next_of_queue(queue_id, record)) != NULL)
		if ((record->target == TARGET_MESSAGES ||
			 record->target == TARGET_DELAYED) &&
			!record->scanned && record->range.due <= until)
			return true;
	return false;
}

/*
 * The groups in which this transaction has made room may be full for others, but
 * not for its own claims.
 */
void
pending_give_turns(int32 queue_id)
{
	PendingChange *record = NULL;

	while ((record = next_of_queue(queue_id, record)) != NULL)
		if (record->target == TARGET_ROOM || record->target == TARGET_LESS)
			availability_give_turn(queue_id, record->lane);
}

/*
 * Has this transaction locked, changed or deleted a message of the lane, or a
 * delayed one of any lane?
 */
bool
pending_has_lane(int32 queue_id, uint64 lane)
{
	PendingChange *record = NULL;

	while ((record = next_of_queue(queue_id, record)) != NULL)
		if (record->target == TARGET_DELAYED ||
			(record->target == TARGET_MESSAGES && record->lane == lane))
			return true;
	return false;
}

/*
 * Has this transaction delayed a message that is due now?  *from: none of them
 * was due earlier.
 */
bool
pending_has_own_delayed(int32 queue_id, TimestampTz now, TimestampTz *from)
{
	bool		found = false;
	PendingChange *record = NULL;

	while ((record = next_of_queue(queue_id, record)) != NULL)
		if (record->target == TARGET_DELAYED && !record->scanned &&
			record->range.due <= now)
		{
			*from = found ? Min(*from, record->delayed_from) :
				record->delayed_from;
			found = true;
		}
	return found;
}

/* --- The end of a transaction --- */

static bool
has_queues(void)
{
	for (int i = 0; i < pending.n; i++)
		if (record_at(i)->target == TARGET_QUEUE ||
			record_at(i)->target == TARGET_MOVE)
			return true;
	return false;
}

/* Return the range of a record to the map, as free from "due" on. */
static void
return_record(const PendingChange *record, TimestampTz now, TimestampTz due,
			  bool uncertain)
{
	MessageRange range;

	if (!attached)
	{
		shmem_miss(record->extension, record->queue_id);
		return;
	}
	switch (record->target)
	{
		case TARGET_MESSAGES:
			range = record->range;
			range.due = due;
			range.uncertain = uncertain;
			range.scanned_at = DT_NOBEGIN;
			availability_return(record->extension, record->queue_id,
								record->lane, &range, record->expires_at,
								now);
			break;
		case TARGET_DELAYED:
			availability_return_delayed(record->extension, record->queue_id,
										record->delayed_from, due, uncertain,
										record->expires_at);
			break;
		case TARGET_ROOM:
		case TARGET_LESS:
			availability_make_room(record->extension, record->queue_id,
								   record->lane, &record->range,
								   record->target == TARGET_ROOM &&
								   !uncertain);
			break;
		case TARGET_DROP:
			if (!uncertain)
				availability_drop_queue(record->extension, record->queue_id);
			break;
		case TARGET_MOVE:
			if (!uncertain)
				availability_move_queue(record->extension, record->queue_id);
			break;
		case TARGET_QUEUE:
			/* After COMMIT PREPARED the worker examines all: before_end(). */
			if (!uncertain)
				availability_request_visit(record->extension, record->queue_id);
			break;
	}
}

/* Return all records, as free as this end of the transaction makes them. */
static void
return_all(XactEvent event)
{
	TimestampTz now = GetCurrentTimestamp();

	for (int i = 0; i < pending.n; i++)
	{
		const PendingChange *record = record_at(i);

		if (event == XACT_EVENT_PREPARE)
			return_record(record, now, availability_recheck_at(now), true);
		else if (event == XACT_EVENT_COMMIT && record->range.due != DT_NOEND)
			return_record(record, now, record->range.due, false);
		else if (event == XACT_EVENT_ABORT && record->kind == PENDING_CHANGE)
			return_record(record, now, DT_NOBEGIN, false);
	}
}

/* Some changes were not recorded: the maps must not rely on what they know. */
static void
forget_maps(void)
{
	if (!too_many || pending.n == 0)
		return;
	if (attached)
		shmem_for_each_map(record_at(0)->extension, availability_clear);
	else
		shmem_miss_all();
}

/* Has the end of this transaction, or a rollback, to use maps? */
static bool
uses_maps(void)
{
	return pending.n > 0 || OidIsValid(restored) || shmem_is_late() ||
		availability_is_reserving() || availability_has_sweep();
}

static void
hold_maps(void)
{
	attached = shmem_hold_maps();
}

static void
release_maps(void)
{
	/* The worker visits all queues, so that those that wait are woken. */
	if (!attached)
		database_map_evicted(database_mine(), DT_NOBEGIN);
	attached = false;
	shmem_release_maps();
}

/* Rows were written by other SQL. */
static void
return_restored(void)
{
	depth_lose_mine();
	if (attached)
		shmem_for_each_map(restored, availability_restored);
	else
		shmem_miss_all();
	database_map_evicted(database_of(MyDatabaseId), DT_NOBEGIN);
}

/*
 * This session has had no shared memory for a part of this transaction, so others
 * know nothing of that (shmem.c).
 */
static void
begin_all_maps_anew(void)
{
	depth_lose_mine();
	shmem_miss_all();
	database_map_evicted(database_mine(), DT_NOBEGIN);
	shmem_end_late();
}

/* Steps 3 to 6 of NOTES */
static void
return_to_maps(XactEvent event)
{
	bool		commit = event == XACT_EVENT_COMMIT;

	hold_maps();
	if (OidIsValid(restored) && commit)
		return_restored();
	if (shmem_is_late())
		begin_all_maps_anew();

	/* What a sweep has seen may be lost: it is seen again. */
	availability_publish_sweep(commit && attached);
	if (pending.n > 0)
	{
		forget_maps();
		return_all(event);
	}
	if (attached)
	{
		availability_close_all();
		availability_close_deferred();
	}
	else
		availability_abandon_all();
	release_maps();
}

/* Provide what the end of the transaction needs of shared memory. */
static void
attach_shared(void)
{
	int			n = 0;

	for (int i = 0; i < pending.n; i++)
		if (record_at(i)->lane != LANE_WITHOUT_KEY)
			n++;
	shmem_maps_attach();
	lanes_grow(n);
}

static void
before_end(XactEvent event)
{
	shmem_retry_before_end();

	/*
	 * A sweep, or a claim that has found nothing, records no change, but has
	 * to return what it has scanned: if the session were not attached then,
	 * the map would begin anew, and the worker would sweep it for ever.
	 */
	if (pending.n > 0 || availability_is_reserving() ||
		availability_has_sweep())
		attach_shared();
	if (event == XACT_EVENT_PRE_PREPARE && has_queues())
		catalog_lookup_changed();
}

/* In the order of NOTES. */
static void
end_transaction(XactEvent event)
{
	availability_end_wait(event == XACT_EVENT_ABORT);
	segment_end_transaction(event == XACT_EVENT_COMMIT);
	if (uses_maps())
		return_to_maps(event);
	restored = InvalidOid;
	heads = NULL;
	nheads = 0;
	too_many = false;
	segment_end_move();
}

/*
 * A subtransaction has rolled back; its records are those from "first" on.
 * Those of inserted messages are removed.  The others are returned now, and
 * kept for the end of the top-level transaction: until then, its own claims do
 * not scan them, because the map has them.
 */
static void
roll_back(int first)
{
	availability_end_wait(true);
	segment_forget_published();
	if (!uses_maps())
		return;
	hold_maps();
	if (pending.n > 0)
	{
		forget_maps();
		return_rolled_back(first);
	}
	if (attached)
		availability_close_all();
	else
		availability_abandon_all();
	release_maps();
}

static void
return_rolled_back(int first)
{
	TimestampTz now = GetCurrentTimestamp();
	int			kept = first;

	/* What it claimed of earlier changes is free again. */
	for (int i = 0; i < first; i++)
		record_at(i)->scanned = false;
	for (int i = first; i < pending.n; i++)
	{
		PendingChange *record = record_at(i);

		if (record->kind == PENDING_INSERT)
			continue;
		return_record(record, now, DT_NOBEGIN, false);
		record->range.due = DT_NOBEGIN;
		record->scanned = true;
		*record_at(kept++) = *record;
	}

	if (kept < pending.n)
	{
		pending.n = kept;
		link_all();
	}
}
