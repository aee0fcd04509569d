/*-------------------------------------------------------------------------
 *
 * segment.c
 *	  Which segments hold messages, and which one takes new ones.
 *
 * NOTES
 *	  Messages are inserted into the active segment; those in the others are
 *	  what is left of earlier turns (segment_recycle.c).  Those that are not to be handed
 *	  out yet have segments of their own, of which one is active too.
 *
 *	  Shared memory has the lowest and the highest number of the messages in
 *	  each segment.  An inserter publishes its numbers there before it inserts.
 *	  So a session that took its snapshot before it reads them knows of each
 *	  message that it can see, and a range of numbers leads to one or two
 *	  segments.  The highest number is published with a margin, so that few
 *	  inserts have to change it.  After a server start the first session looks
 *	  at the sizes of the segments: one that is not empty may hold any number.
 *	  The worker, which alone empties segments, resets the numbers when it has.
 *
 *	  Rows that were written by other SQL may lie outside.  A session that finds
 *	  such a segment not empty records that; and nothing answers "there is
 *	  none" before it has looked at the sizes of all segments, but for claims,
 *	  which do so now and then (availability_full_scan_is_due).
 *
 *	  Without shared memory an empty segment is one without pages: its size is
 *	  looked up when anything has changed a table, and before anything answers
 *	  "there is nothing".  The truncation of a segment sends an invalidation
 *	  message: one that we believe to be in use and is empty costs a look,
 *	  nothing else.
 *
 *	  A segment is only ever truncated under a lock that excludes every user.
 *	  But who took his snapshot before he has locked it may find it empty, and
 *	  not see what was moved out of it since.  So whoever looks for messages
 *	  asks, when he has locked all tables that he needs, whether a segment was
 *	  emptied since he took the snapshot, and takes another one then.
 *
 * src/storage/segment.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "shmem/availability.h"
#include "shmem/database_state.h"
#include "shmem/segment_state.h"
#include "shmem/shmem.h"
#include "storage/segment.h"
#include "util/compat.h"
#include "util/settings.h"

#define SLACK		1024		/* numbers that are told at a time; a power
								 * of two */
#define MOVE_MAX	1000		/* ms, to wait for messages to be moved */

static uint64 known_generation = 0;
static bool in_use[QUEUE_RELATIONS];

/* Where this transaction has deleted messages, a bit for each segment. */
static uint32 deleted = 0;

static bool moving = false;		/* this transaction moves messages */

/* What this transaction has told of a segment. */
static struct
{
	int			segment;
	LocalTransactionId xid;
	uint64		low;
	uint64		high;
}			notified = {.segment = -1};

/* Of the snapshot that was pushed last. */
static uint64 emptied_before = 0;

static bool look(bool all);
static void tell(int segment, uint64 low, uint64 high);
static bool open_active(MessageTable *table, RingKind kind, bool wait);
static RingState *segment_state(void);
static uint64 emptied(void);
static void wake_worker(RingState *ring);

/* Look at the sizes of all segments, or of those not yet known to be in use. */
static bool
look(bool all)
{
	uint64		generation = catalog_tables_generation();
	RingState  *ring = segment_state();
	bool		grown = false;

	for (int i = 0; i < QUEUE_RELATIONS; i++)
	{
		if (in_use[i] && !all)
			continue;
		in_use[i] = message_table_has_pages(i);
		grown |= in_use[i];
		if (in_use[i] && ring != NULL && segment_is_free(i))
			segment_found_rows(i);
	}

	known_generation = generation;
	return grown;
}

/*
 * May this segment hold messages?  The active one may at any time; of the
 * others, false is only as new as the last segment_refresh.
 */
bool
segment_in_use(int segment)
{
	if (known_generation != catalog_tables_generation())
		look(true);
	return in_use[segment] ||
		segment == catalog_active_segment(segment_kind(segment)) ||
		(segment_state() != NULL && !segment_is_free(segment));
}

/* Look for segments that have come into use; true when there are some. */
bool
segment_refresh(void)
{
	return look(known_generation != catalog_tables_generation());
}

/* Open the segment that new messages go to, for inserting. */
void
segment_open_active(MessageTable *table)
{
	(void) open_active(table, RING_MESSAGES, true);
}

/* The same without waiting for locks; false: it is locked. */
bool
segment_try_open_active(MessageTable *table)
{
	return open_active(table, RING_MESSAGES, false);
}

/* That for those which are not to be handed out yet. */
void
segment_open_delayed(MessageTable *table)
{
	(void) open_active(table, RING_DELAYED, true);
}

/*
 * Open the active segment; without waiting for a lock, if that is said.  False:
 * it is locked.
 */
static bool
open_active(MessageTable *table, RingKind kind, bool wait)
{
	for (;;)
	{
		int			active = catalog_active_segment(kind);

		if (wait)
			message_table_open(table, active, RowExclusiveLock);
		else if (!message_table_try_open(table, active, RowExclusiveLock))
			return false;

		/* Now that we hold the lock nobody can truncate it: is it still? */
		if (catalog_active_segment(kind) == active)
			break;
		message_table_close(table, false);
	}
	in_use[table->segment] = true;
	return true;
}

/* --- With shared memory --- */

/*
 * What the sessions of this database tell each other; NULL: nothing, or not
 * of this extension.  On a standby nobody tells anything.
 */
static RingState *
segment_state(void)
{
	DatabaseState *mine = database_mine();

	if (mine == NULL || mine->database != MyDatabaseId ||
		RecoveryInProgress() ||
		pg_atomic_read_u32(&mine->ring.extension) != catalog_queue_oid())
		return NULL;
	return &mine->ring;
}

/* The same for who has something to tell: makes it ours if it is not. */
RingState *
segment_state_own(void)
{
	RingState  *ring;
	DatabaseState *mine;
	bool		has_rows[QUEUE_RELATIONS];

	if (!availability_is_shared())
		return NULL;
	database_join();
	ring = segment_state();
	mine = database_mine();
	if (ring != NULL || mine == NULL || RecoveryInProgress())
		return ring;

	/* A session that inserts comes here before it does. */
	for (int i = 0; i < QUEUE_RELATIONS; i++)
		has_rows[i] = message_table_has_pages(i);

	LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
	if (mine->database == MyDatabaseId)
	{
		ring = &mine->ring;
		if (pg_atomic_read_u32(&ring->extension) != catalog_queue_oid())
		{
			for (int i = 0; i < QUEUE_RELATIONS; i++)
			{
				pg_atomic_write_u64(&ring->segments[i].low,
									has_rows[i] ? 0 : PG_INT64_MAX);
				pg_atomic_write_u64(&ring->segments[i].high,
									has_rows[i] ? PG_INT64_MAX : 0);
			}
			for (RingKind i = 0; i < RING_KINDS; i++)
				pg_atomic_write_u64(&ring->written[i], 0);
			pg_write_barrier();
			pg_atomic_write_u32(&ring->extension, catalog_queue_oid());
		}
	}
	LWLockRelease(shmem_database_lock());
	return ring;
}

/*
 * May the segment hold messages with these numbers, of those that a snapshot
 * shows which was taken before?
 */
bool
segment_may_hold(int segment, int64 first, int64 last)
{
	RingState  *ring = segment_state();
	int64		low;
	int64		high;

	if (ring == NULL)
		return segment_in_use(segment);
	low = (int64) pg_atomic_read_u64(&ring->segments[segment].low);
	high = (int64) pg_atomic_read_u64(&ring->segments[segment].high);
	return low <= high && low <= last && high >= first;
}

/* Tell that the segment may hold messages with these numbers. */
static void
tell(int segment, uint64 low, uint64 high)
{
	RingState  *ring = segment_state_own();
	RingSegment *shared;
	uint64		old;

	if (ring == NULL)
		return;
	shared = &ring->segments[segment];
	old = pg_atomic_read_u64(&shared->low);
	while (low < old &&
		   !pg_atomic_compare_exchange_u64(&shared->low, &old, low))
		;
	old = pg_atomic_read_u64(&shared->high);
	while (high > old &&
		   !pg_atomic_compare_exchange_u64(&shared->high, &old, high))
		;
}

/*
 * A message with this number is, or is about to be, in the segment, on which
 * the caller has a lock until the end of the transaction.
 */
void
segment_publish(int segment, int64 number)
{
	uint64		low = (uint64) number;
	uint64		high = (uint64) number | (SLACK - 1);

	/* The segment cannot be emptied while we have the lock. */
	if (notified.segment == segment && notified.xid == my_local_xid() &&
		low >= notified.low && low <= notified.high)
		return;
	if (!availability_is_shared())
		return;
	tell(segment, low, high);
	if (notified.segment != segment || notified.xid != my_local_xid())
	{
		notified.segment = segment;
		notified.xid = my_local_xid();
		notified.low = notified.high = low;
	}
	notified.low = Min(notified.low, low);
	notified.high = Max(notified.high, low);
}

/*
 * The segment is not empty, although no message there was published: other
 * SQL has written to it.  The worker shall look whether it is still so.
 */
void
segment_found_rows(int segment)
{
	RingState  *ring = segment_state_own();

	if (ring == NULL)
		return;
	tell(segment, 0, PG_INT64_MAX);
	pg_atomic_fetch_or_u32(&ring->changed, (uint32) 1 << segment);
	wake_worker(ring);
}

/* A subtransaction was rolled back, perhaps one that took the lock. */
void
segment_forget_published(void)
{
	notified.segment = -1;
}

/*
 * What changes when a segment is emptied: told by the worker before, or else
 * known to who has locked a table since.
 */
static uint64
emptied(void)
{
	RingState  *ring = segment_state();

	return ring == NULL ? catalog_tables_generation() :
		((uint64) 1 << 63) | pg_atomic_read_u32(&ring->emptied);
}

/*
 * The latest snapshot, to find messages with.  Who has found the tables in
 * which to look, and locked them, asks whether it is stale: then a segment was
 * emptied meanwhile, and the snapshot may not show where its last messages
 * went to.
 */
void
segment_push_snapshot(void)
{
	emptied_before = emptied();
	pg_memory_barrier();
	PushActiveSnapshot(GetLatestSnapshot());
}

bool
segment_snapshot_is_stale(void)
{
	pg_memory_barrier();
	return emptied() != emptied_before;
}

/* Take a new one in its place. */
void
segment_renew_snapshot(void)
{
	PopActiveSnapshot();
	segment_push_snapshot();
}

/* The worker shall look at the ring, if it does not mean to. */
static void
wake_worker(RingState *ring)
{
	if (pg_atomic_read_u64(&ring->due) != (uint64) DT_NOEND)
		return;
	pg_atomic_write_u64(&ring->due, 0);
	database_wake(DT_NOEND, true);
}

/* So many bytes of messages were written to a segment. */
void
segment_count_bytes(int segment, Size bytes)
{
	RingState  *ring = segment_state();
	uint64		written;

	if (ring == NULL)
		return;
	written = pg_atomic_add_fetch_u64(&ring->written[segment_kind(segment)],
									  bytes);

	/* Half of each page stays free for the marks of claims. */
	if (setting_segment_size > 0 &&
		written >= (uint64) setting_segment_size * 1024 / 2)
		wake_worker(ring);
}

/* This transaction deletes a message of the segment. */
void
segment_record_delete(int segment)
{
	if (availability_is_shared())
		deleted |= (uint32) 1 << segment;
}

/*
 * The transaction is over: the worker shall look whether a segment is empty
 * now.  Not the active one: that is looked at when it was closed.  Reads no
 * catalog.
 */
void
segment_end_transaction(bool commit)
{
	DatabaseState *mine = database_mine();
	uint32		what = commit ? deleted : 0;

	deleted = 0;
	if (what == 0 || mine == NULL || mine->database != MyDatabaseId)
		return;
	for (RingKind i = 0; i < RING_KINDS; i++)
		what &= ~((uint32) 1 << pg_atomic_read_u32(&mine->ring.active[i]));
	if ((pg_atomic_read_u32(&mine->ring.changed) & what) != what)
	{
		pg_atomic_fetch_or_u32(&mine->ring.changed, what);
		wake_worker(&mine->ring);
	}
}

/*
 * The worker is about to move messages in this transaction.  It locks them,
 * but they are free as before.
 */
void
segment_begin_move(void)
{
	RingState  *ring = segment_state_own();

	if (ring == NULL || moving)
		return;
	moving = true;
	pg_atomic_fetch_add_u32(&ring->moves, 1);
}

/*
 * The transaction is over, and what it moved was returned to the availability maps.
 * Reads no catalog.
 */
void
segment_end_move(void)
{
	DatabaseState *mine = database_mine();

	if (moving && mine != NULL)
		pg_atomic_fetch_add_u32(&mine->ring.moves, 1);
	moving = false;
}

/* A number that is odd while messages are moved, and changes each time. */
uint32
segment_moves(void)
{
	RingState  *ring = segment_state();

	return ring == NULL ? 0 : pg_atomic_read_u32(&ring->moves);
}

/*
 * Somebody found only locked messages since there were so many moves: is that
 * because they are moved?  Then wait until they are, for a second at most, and
 * look again.
 */
bool
segment_wait_for_move(uint32 moves)
{
	if (segment_moves() == moves && moves % 2 == 0)
		return false;
	for (int i = 0; i < MOVE_MAX && segment_moves() % 2 == 1; i++)
	{
		CHECK_FOR_INTERRUPTS();
		pg_usleep(1000);
	}
	return true;
}

/*
 * The worker, which holds a lock that keeps all others out, has seen that a
 * segment holds nothing.
 */
void
segment_set_empty(int segment)
{
	RingState  *ring = segment_state_own();

	if (ring == NULL)
		return;
	pg_atomic_fetch_add_u32(&ring->emptied, 1);
	pg_atomic_write_u64(&ring->segments[segment].low, PG_INT64_MAX);
	pg_atomic_write_u64(&ring->segments[segment].high, 0);
}

/* Is this segment known to hold nothing? */
bool
segment_is_free(int segment)
{
	RingState  *ring = segment_state();

	return ring != NULL &&
		pg_atomic_read_u64(&ring->segments[segment].low) >
		pg_atomic_read_u64(&ring->segments[segment].high);
}

/*
 * How often the ring has turned.  What is pushed after a turn shall have
 * higher numbers than what was pushed before, in whatever queue.
 */
uint32
segment_switches(void)
{
	RingState  *ring = segment_state();

	return ring == NULL ? 0 : pg_atomic_read_u32(&ring->switches);
}
