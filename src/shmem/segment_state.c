/*-------------------------------------------------------------------------
 *
 * segment_state.c
 *	  What the sessions of a database share about its segments.
 *
 * NOTES
 *	  Shared memory has the lowest and the highest number of the messages in
 *	  each segment.  An inserter publishes its numbers there before it
 *	  inserts.  A session that takes its snapshot before it reads them
 *	  therefore knows of each message that it can see, and a range of numbers
 *	  leads to one or two segments.  After a server start the first session
 *	  checks the sizes of the segments: one that is not empty, or active, may
 *	  hold any number.  Only the worker empties segments; it resets their numbers
 *	  afterwards.
 *
 *	  Sessions also leave the worker its work here: a segment that has grown
 *	  to its full size, and segments from which messages were deleted and
 *	  which may be empty now.
 *
 *	  Nothing is known on a standby, or while another incarnation of the
 *	  extension owns the state: then segment_state() returns NULL.
 *
 * src/shmem/segment_state.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "shmem/database_state.h"
#include "shmem/segment_state.h"
#include "shmem/shmem.h"
#include "util/compat.h"

#define PUBLISH_MARGIN	1024	/* numbers that are published at a time; a
								 * power of two */
#define MOVE_WAIT_MAX	1000	/* ms */
#define ANY_TIME		(DT_NOEND - 1)	/* the latest; DT_NOEND is never */

/* Segments from which this transaction has deleted messages, a bit for each */
static uint32 deleted = 0;

/* In a transaction that moves messages: where it has said so */
static RingState *moving = NULL;

/*
 * The numbers that this transaction has published.  They stay published until
 * the transaction ends, because its lock on the table keeps the worker from
 * emptying the segment.
 */
static struct
{
	int			segment;		/* -1 if there are none */
	LocalTransactionId xid;
	uint64		low;
	uint64		high;
}			published = {.segment = -1};

static void publish_numbers(int segment, uint64 low, uint64 high);
static void wake_ring_worker(RingState *ring, TimestampTz latest);

/* Initialize the state when shared memory is created. */
void
segment_state_init(RingState *ring)
{
	pg_atomic_init_u32(&ring->extension, InvalidOid);
	pg_atomic_init_u32(&ring->changed, 0);
	pg_atomic_init_u32(&ring->switches, 0);
	for (RingKind i = 0; i < RING_KINDS; i++)
	{
		pg_atomic_init_u32(&ring->active[i], 0);
		pg_atomic_init_u64(&ring->written[i], 0);
	}
	pg_atomic_init_u32(&ring->emptied, 0);
	pg_atomic_init_u32(&ring->moves, 0);
	pg_atomic_init_u64(&ring->due, (uint64) DT_NOEND);
	for (int i = 0; i < ALL_SEGMENTS; i++)
	{
		pg_atomic_init_u64(&ring->segments[i].low, PG_INT64_MAX);
		pg_atomic_init_u64(&ring->segments[i].high, 0);
	}
}

/*
 * Returns the state of this database's segments, or NULL if nothing is known.
 */
RingState *
segment_state(void)
{
	DatabaseState *mine = database_mine();

	/*
	 * The entry may describe an extension that was dropped.  On a standby
	 * nothing is published.
	 */
	if (mine == NULL || RecoveryInProgress() ||
		pg_atomic_read_u32(&mine->ring.extension) != catalog_queue_oid())
		return NULL;
	return &mine->ring;
}

/*
 * Returns the state of this database's segments, for a session that is about
 * to publish something, as before an insertion: makes this extension the
 * owner of the state if it is not.  Returns NULL if there is no room for a
 * state.
 */
RingState *
segment_state_own(void)
{
	RingState  *ring;
	DatabaseState *mine;
	bool		has_rows[ALL_SEGMENTS];

	database_join();
	ring = segment_state();
	mine = database_mine();
	if (ring != NULL || mine == NULL || RecoveryInProgress())
		return ring;

	/*
	 * Before the lock is taken: this opens tables.  A session that has found
	 * no room for a state may be inserting into an active segment.
	 */
	for (int i = 0; i < ALL_SEGMENTS; i++)
		has_rows[i] = catalog_has_pages(catalog_segment_oid(i)) ||
			i == catalog_active_table(segment_kind(i));

	shmem_lock(&databases->lock, LW_EXCLUSIVE);

	/* By now the entry may be another database's, or the state ours. */
	if (mine->database == MyDatabaseId)
		ring = &mine->ring;
	if (ring != NULL &&
		pg_atomic_read_u32(&ring->extension) != catalog_queue_oid())
	{
		/* Such a segment may hold any number. */
		for (int i = 0; i < ALL_SEGMENTS; i++)
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
	LWLockRelease(&databases->lock);
	return ring;
}

/* --- Which numbers a segment may hold --- */

/* Publish that the segment may hold messages with these numbers. */
static void
publish_numbers(int segment, uint64 low, uint64 high)
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
 * Publish that a message with this number is in the segment, or is about to
 * be inserted.  The caller holds a lock on the segment until the end of the
 * transaction.
 */
void
segment_publish(int segment, int64 number)
{
	uint64		low = (uint64) number;

	/* With a margin, so that few inserts have to change shared memory */
	uint64		high = (uint64) number | (PUBLISH_MARGIN - 1);

	/* What this transaction has published stays so until its end. */
	bool		has_published = (published.segment == segment &&
								 published.xid == my_local_xid());

	if (has_published && low >= published.low && low <= published.high)
		return;
	publish_numbers(segment, low, high);
	if (!has_published)
	{
		published.segment = segment;
		published.xid = my_local_xid();
		published.low = published.high = low;
	}
	published.low = Min(published.low, low);
	published.high = Max(published.high, low);
}

/*
 * A subtransaction was rolled back, perhaps the one that locked the segment.
 * Then nothing keeps the worker from emptying it any more, so this
 * transaction has to publish its numbers anew.
 */
void
segment_forget_published(void)
{
	published.segment = -1;
}

/*
 * The segment is not empty, although no number was published, because plain
 * SQL has written rows: publish that it may hold any number, and have the
 * worker check it.
 */
void
segment_found_rows(int segment)
{
	RingState  *ring = segment_state_own();

	if (ring == NULL)
		return;
	publish_numbers(segment, 0, PG_INT64_MAX);
	pg_atomic_fetch_or_u32(&ring->changed, (uint32) 1 << segment);
	wake_ring_worker(ring, ANY_TIME);
}

/*
 * Publish that the segment holds no messages.  The worker has found it empty,
 * and holds a lock that keeps all others out.
 */
void
segment_set_empty(int segment)
{
	RingState  *ring = segment_state_own();

	if (ring == NULL)
		return;

	/* First, or a scan that misses the segment could trust its snapshot. */
	pg_atomic_fetch_add_u32(&ring->emptied, 1);
	pg_atomic_write_u64(&ring->segments[segment].low, PG_INT64_MAX);
	pg_atomic_write_u64(&ring->segments[segment].high, 0);
}

/* Returns whether this segment is known to be empty. */
bool
segment_is_free(int segment)
{
	RingState  *ring = segment_state();

	return ring != NULL &&
		pg_atomic_read_u64(&ring->segments[segment].low) >
		pg_atomic_read_u64(&ring->segments[segment].high);
}

/* --- Work for the worker --- */

/*
 * Have the worker attend to the rings now, unless it is due to at "latest" or
 * earlier.
 */
static void
wake_ring_worker(RingState *ring, TimestampTz latest)
{
	if ((TimestampTz) pg_atomic_read_u64(&ring->due) <= latest)
		return;
	pg_atomic_write_u64(&ring->due, 0);
	database_wake(DT_NOEND, true);
}

/*
 * Returns how often the ring of messages has switched to its next segment.
 * Messages pushed after a switch get higher numbers than those pushed before,
 * in all queues.
 */
uint32
segment_switches(void)
{
	RingState  *ring = segment_state();

	return ring == NULL ? 0 : pg_atomic_read_u32(&ring->switches);
}

/* Count the bytes that were written to a segment. */
void
segment_count_bytes(int segment, Size bytes)
{
	RingState  *ring = segment_state();
	uint64		written;

	if (ring == NULL)
		return;
	written = pg_atomic_add_fetch_u64(&ring->written[segment_kind(segment)],
									  bytes);

	/*
	 * We wake the worker even if it is due already, since that may be only to
	 * survey a segment, up to a minute from now.
	 */
	if (segment_is_full(written))
		wake_ring_worker(ring, GetCurrentTimestamp() + SEGMENT_SWITCH_PAUSE);
}

/* Record that this transaction deletes a message of the segment. */
void
segment_record_delete(int segment)
{
	deleted |= (uint32) 1 << segment;
}

/*
 * After the end of the transaction, have the worker check the segments from
 * which it has deleted messages.  Reads no catalog.
 */
void
segment_end_transaction(bool commit)
{
	DatabaseState *mine = database_mine();
	uint32		what = commit ? deleted : 0;

	deleted = 0;
	if (what == 0 || mine == NULL)
		return;

	/* The worker checks an active segment when its ring has switched. */
	for (RingKind i = 0; i < RING_KINDS; i++)
		what &= ~((uint32) 1 << pg_atomic_read_u32(&mine->ring.active[i]));
	if ((pg_atomic_read_u32(&mine->ring.changed) & what) != what)
	{
		pg_atomic_fetch_or_u32(&mine->ring.changed, what);
		wake_ring_worker(&mine->ring, ANY_TIME);
	}
}

/* --- Moving messages --- */

/*
 * The worker is about to move messages in this transaction.  It locks them,
 * although they are as free as before, so a claim that meets only such
 * messages waits for the end of the move.
 */
void
segment_begin_move(void)
{
	RingState  *ring = segment_state_own();

	if (ring == NULL || moving != NULL)
		return;
	moving = ring;
	pg_atomic_fetch_add_u32(&ring->moves, 1);
}

/*
 * The transaction has ended, and the ranges of the messages that it moved were
 * returned to the availability maps.  Reads no catalog.
 */
void
segment_end_move(void)
{
	if (moving != NULL)
		pg_atomic_fetch_add_u32(&moving->moves, 1);
	moving = NULL;
}

/*
 * Returns a number that is odd while messages are moved, and changes with
 * each move.
 */
uint32
segment_moves(void)
{
	RingState  *ring = segment_state();

	return ring == NULL ? 0 : pg_atomic_read_u32(&ring->moves);
}

/*
 * A scan that began when segment_moves() returned "moves" has met only locked
 * messages.  If a move may have locked them, wait until it has ended, for a
 * second at most.  Returns true then, and the caller scans again.
 */
bool
segment_wait_for_move(uint32 moves)
{
	/* No move was under way at any time of the scan. */
	if (segment_moves() == moves && moves % 2 == 0)
		return false;
	for (int i = 0; i < MOVE_WAIT_MAX && segment_moves() % 2 == 1; i++)
	{
		CHECK_FOR_INTERRUPTS();
		pg_usleep(1000);
	}
	return true;
}
