/*-------------------------------------------------------------------------
 *
 * segment.c
 *	  Which segments hold messages, opening the active one, and snapshots.
 *
 * NOTES
 *	  The tables of messages are called segments.  There are two rings of them,
 *	  one of messages that claims scan, and one of delayed messages.  In each
 *	  ring one segment is active: new messages are inserted into it.  The
 *	  others hold what is left of earlier rounds (segment_switch.c,
 *	  segment_recycle.c).
 *
 *	  Which segment may hold a message is known from the range of numbers in
 *	  each segment that shared memory has (segment_state.c).  A trigger has what
 *	  plain SQL writes published there, too (pending_record_restore).  Where
 *	  nothing is published, as on a standby, a segment without pages is empty.
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

#include "utils/snapmgr.h"

#include "catalog/message_table.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "shmem/segment_state.h"
#include "storage/segment.h"
#include "util/xact.h"

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
		int			active = catalog_active_segment(kind);

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
		if (catalog_active_segment(kind) == active)
			return true;
		message_table_close(table, false);
	}
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
