/*-------------------------------------------------------------------------
 *
 * segment.c
 *	  Which segments hold messages, the active ones, and snapshots.
 *
 * NOTES
 *	  The tables of messages are called segments.  There are two rings of them,
 *	  one of messages that claims scan, and one of delayed messages.  In each
 *	  ring one segment is active: new messages are inserted into it.  The
 *	  others hold what is left of earlier rounds.
 *
 *	  Which segment may hold a message is known from the range of numbers in
 *	  each segment that shared memory has (segment_state.c).  A trigger has what
 *	  plain SQL writes published there, too (pending_record_restore).  Where
 *	  nothing is published, as on a standby, a segment without pages is empty.
 *
 *	  Switching.  A segment can only be recycled (segment_recycle.c) if no new
 *	  messages arrive in it.  So when enough was written to the active segment
 *	  of a ring, the worker makes the next one active that is empty.  It does
 *	  so in these steps:
 *
 *	  1.  It chooses a segment that shared memory knows to be empty.
 *
 *	  2.  It locks that segment as a writer does, which fails if the table has
 *	  been changed so that messages cannot be inserted.
 *
 *	  3.  It writes the segment's number into the only row of queue_data.ring,
 *	  and sends an invalidation message for that table.  A session that inserts
 *	  opens the segment that the row names, and reads the row again once it has
 *	  the lock (segment_open_active).
 *
 *	  4.  It updates the shared state: sessions take numbers for their messages
 *	  from a new block of the sequence then (availability_take_numbers), so
 *	  that messages in a later segment have higher numbers in all queues.
 *
 *	  Only space depends on switching.  If no segment is free, the active one
 *	  grows.  Each switch updates a catalog-like row and has all sessions read
 *	  it again, so there is a pause between two of them.
 *
 *	  Snapshots.  A segment is only truncated under a lock that excludes all
 *	  users.  But a session may take its snapshot first and lock the table
 *	  after the truncation.  It would find the segment empty, and its snapshot
 *	  may be older than the transaction that moved the last messages out.  So a
 *	  session that looks for messages proceeds in this order:
 *
 *	  1.  segment_push_snapshot() reads how often segments were emptied, which
 *	  is the token of the snapshot that it then takes.
 *
 *	  2.  The session locks all tables that it needs.
 *
 *	  3.  segment_snapshot_is_stale() compares the number.  If it has changed,
 *	  the session scans again with a new snapshot.
 *
 *	  REPACK (CONCURRENTLY) in PostgreSQL 19 also replaces a table, by one whose
 *	  rows an older snapshot does not see.  The table's invalidation message says
 *	  so.
 *
 * src/storage/segment.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "access/table.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/message_table.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "shmem/database_state.h"
#include "shmem/segment_state.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/xact.h"

#define RETRY_PAUSE		USECS_PER_SEC	/* until a free segment is looked for
										 * again */

/* For the worker: bytes in the active segment when last none was free */
static uint64 written_then[RING_KINDS];

static int	next_free_segment(RingKind kind);
static void make_segment_active(RingKind kind, int segment, RingState *state);
static uint64 emptied_count(void);

/* --- Which segments may hold messages --- */

/*
 * Returns whether the segment may hold messages with these numbers that are
 * visible in a snapshot which was taken before.
 */
bool
segment_may_hold(int segment, int64 first, int64 last)
{
	RingState  *ring = segment_state();
	int64		low;
	int64		high;

	/* Nothing is published. */
	if (ring == NULL)
		return catalog_has_pages(catalog_segment_oid(segment));
	low = (int64) pg_atomic_read_u64(&ring->segments[segment].low);
	high = (int64) pg_atomic_read_u64(&ring->segments[segment].high);
	return low <= high && low <= last && high >= first;
}

/* --- Opening the active segment --- */

/*
 * Open the active segment of a ring, for inserting.  Returns false if "wait"
 * is not set, and it cannot be locked at once.
 */
bool
segment_open_active(MessageTable *table, RingKind kind, bool wait)
{
	for (;;)
	{
		int			active = catalog_active_table(kind);

		if (wait)
			message_table_open(table, active, RowExclusiveLock);
		else if (!message_table_try_open(table, active, RowExclusiveLock))
			return false;

		/*
		 * While we waited for the lock, the ring may have switched, and the
		 * worker may have truncated this segment.  With the lock held it
		 * cannot do that any more, so we only have to check that it is still
		 * active.
		 */
		if (catalog_active_table(kind) == active)
			return true;
		message_table_close(table, false);
	}
}

/* --- Switching --- */

/*
 * A worker has started, or finds another extension: count what was written to
 * the active segments before, which only the sizes of the tables show.
 */
void
segment_switch_begin(RingState *state)
{
	for (RingKind kind = 0; kind < RING_KINDS; kind++)
	{
		Oid			active = catalog_segment_oid(catalog_active_table(kind));
		Datum		bytes = DirectFunctionCall1(pg_table_size,
												ObjectIdGetDatum(active));
		uint64		written = 0;

		/* Half of each page is free; see segment_is_full(). */
		uint64		size = DatumGetInt64(bytes) / 2;

		/* Not if sessions, or an earlier worker, have counted already. */
		pg_atomic_compare_exchange_u64(&state->written[kind], &written, size);
	}
}

/*
 * Returns the next empty segment after the active one, or NO_SEGMENT.  One that
 * is locked against readers counts as in use, since we would wait for it.
 */
static int
next_free_segment(RingKind kind)
{
	const Ring *ring = &catalog_rings[kind];
	int			offset = catalog_active_table(kind) - ring->first;

	for (int i = 1; i < ring->n; i++)
	{
		int			segment = ring->first + (offset + i) % ring->n;

		if (segment_is_free(segment) &&
			!catalog_has_pages(catalog_segment_oid(segment)))
			return segment;
	}
	return NO_SEGMENT;
}

/*
 * Write which table of a ring is active, and that it is so from now on.  All
 * sessions read that again.
 */
void
segment_write_active(RingKind kind, int next)
{
	const Ring *ring = &catalog_rings[kind];
	Relation	rel = catalog_open(ring->row, RowExclusiveLock, NULL);
	int			columns[2] = {ring->active, ring->active + 1};
	Datum		values[2];
	ScanKeyData key;

	/*
	 * The history has a row for each of its rings.  queue_data.ring has one
	 * row, and after a superuser has written it anew it may name another
	 * table.
	 */
	ScanKeyInit(&key, ring->active, BTEqualStrategyNumber, F_INT2EQ,
				Int16GetDatum(catalog_active_table(kind)));
	values[0] = Int16GetDatum(next);
	values[1] = TimestampTzGetDatum(GetCurrentTimestamp());
	row_set_columns(rel, row_fetch(rel, InvalidOid, &key,
								   ring->row == CATALOG_RING ? 0 : 1),
					2, columns, values);

	/* An update of a row does not make sessions read the table again. */
	CacheInvalidateRelcache(rel);
	table_close(rel, NoLock);
}

/* Steps 2 to 4 of switching, see NOTES */
static void
make_segment_active(RingKind kind, int segment, RingState *state)
{
	MessageTable table;

	ereport(DEBUG1,
			(errmsg_internal("segment %d becomes active: about %llu bytes were written to segment %d",
							 segment,
							 (unsigned long long) pg_atomic_read_u64(&state->written[kind]),
							 catalog_active_table(kind))));
	message_table_open(&table, segment, RowExclusiveLock);
	segment_write_active(kind, segment);
	message_table_close(&table, true);

	pg_atomic_write_u32(&state->active[kind], (uint32) segment);
	pg_atomic_write_u64(&state->written[kind], 0);
	pg_atomic_fetch_add_u32(&state->switches, 1);

	/* Have all segments checked, above all the one that was active. */
	pg_atomic_write_u32(&state->changed, (1 << ALL_SEGMENTS) - 1);
	database_count(COUNT_SWITCHES, 1);
}

/*
 * Switch a ring to its next segment if it is time.  Returns false if it is
 * not, or no segment is free, and lowers *again to when to try again, if that
 * is known.
 */
bool
segment_switch(RingKind kind, RingState *state, TimestampTz *again)
{
	int			active = catalog_active_table(kind);
	TimestampTz switched_at = catalog_switched_at(kind);
	TimestampTz now = GetCurrentTimestamp();
	int			next;

	/* It is wrong after a server start, or a switch that has failed. */
	pg_atomic_write_u32(&state->active[kind], (uint32) active);
	if (!segment_is_full(pg_atomic_read_u64(&state->written[kind])))
		return false;

	/* If the last switch seems to be in the future, the clock was set back. */
	if (now >= switched_at && now < switched_at + SEGMENT_SWITCH_PAUSE)
	{
		*again = Min(*again, switched_at + SEGMENT_SWITCH_PAUSE);
		return false;
	}
	next = next_free_segment(kind);
	if (next != NO_SEGMENT)
	{
		make_segment_active(kind, next, state);
		return true;
	}

	/*
	 * Perhaps one has become empty and shared memory does not know it: have
	 * all segments checked.  Once is enough until more was written, so that a
	 * full ring to which nobody writes is left alone.  The session that
	 * writes wakes the worker.
	 */
	if (pg_atomic_read_u64(&state->written[kind]) != written_then[kind])
	{
		ereport(DEBUG1,
				(errmsg_internal("segment %d stays active: no other one is empty",
								 active)));
		written_then[kind] = pg_atomic_read_u64(&state->written[kind]);
		*again = Min(*again, now + RETRY_PAUSE);
		pg_atomic_write_u32(&state->changed, (1 << ALL_SEGMENTS) - 1);
	}
	return false;
}

/* --- Snapshots --- */

/*
 * Returns a number that changes when a segment is emptied or written anew.  The
 * worker changes its part of it before it releases its lock on the segment; and
 * a session that locks the table after that receives an invalidation message.
 */
static uint64
emptied_count(void)
{
	RingState  *ring = segment_state();

	return catalog_tables_generation() << 32 |
		(ring == NULL ? 0 : pg_atomic_read_u32(&ring->emptied));
}

/* Push the latest snapshot, to find messages with; see NOTES. */
SnapshotToken
segment_push_snapshot(void)
{
	SnapshotToken token;

	Assert(!xact_has_ended);

	/* In this order: what is emptied later makes the snapshot stale. */
	token = emptied_count();
	pg_memory_barrier();
	PushActiveSnapshot(GetLatestSnapshot());
	return token;
}

/*
 * Returns whether a segment was emptied since the snapshot was taken, which
 * then may not show where the last messages in there have gone.
 */
bool
segment_snapshot_is_stale(SnapshotToken token)
{
	pg_memory_barrier();
	return emptied_count() != token;
}
