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
 *	  Which numbers a segment may hold is in shared memory (segment_state.c).
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

#include "utils/snapmgr.h"

#include "catalog/message_table.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "shmem/segment_state.h"
#include "storage/segment.h"

static uint64 known_generation = 0;
static bool in_use[QUEUE_RELATIONS];

/* Of the snapshot that was pushed last. */
static uint64 emptied_before = 0;

static bool look(bool all);
static bool open_active(MessageTable *table, RingKind kind, bool wait);
static uint64 emptied(void);

/* Look at the sizes of all segments, or of those not yet known to be in use. */
static bool
look(bool all)
{
	uint64		generation = catalog_tables_generation();
	bool		grown = false;

	for (int i = 0; i < QUEUE_RELATIONS; i++)
	{
		if (in_use[i] && !all)
			continue;
		in_use[i] = message_table_has_pages(i);
		grown |= in_use[i];
		if (in_use[i] && segment_is_free(i))
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
