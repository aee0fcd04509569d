/*-------------------------------------------------------------------------
 *
 * segment_switch.c
 *	  Switching: the next segment of a ring takes new messages.
 *
 * NOTES
 *	  A segment can only be recycled (segment_recycle.c) if no new messages
 *	  arrive in it.  So when enough was written to the active segment of a
 *	  ring, the worker makes the next one active that is empty.  It does so in
 *	  these steps:
 *
 *	  1.  It chooses a segment that shared memory knows to be empty and that
 *	  has no pages.
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
 * src/storage/segment_switch.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "storage/bufmgr.h"
#include "utils/inval.h"
#include "utils/timestamp.h"

#include "catalog/message_table.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "shmem/database_state.h"
#include "shmem/segment_state.h"
#include "storage/row.h"
#include "storage/segment_switch.h"

#define RETRY_PAUSE		USECS_PER_SEC	/* until a free segment is looked for
										 * again */

const Ring	segment_rings[RING_KINDS] = {
	[RING_MESSAGES] = {0, MESSAGE_SEGMENTS},
	[RING_DELAYED] = {FIRST_DELAYED_SEGMENT, DELAYED_SEGMENTS}
};

/* What the worker remembers of each ring. */
static TimestampTz switched_at[RING_KINDS];
static uint64 written_then[RING_KINDS]; /* bytes in the active segment when
										 * last no segment was free */

static double relation_size(Relation rel);
static int	next_free_segment(int active);
static void make_segment_active(int segment, RingState *state);

/*
 * A worker has started, or finds another extension: count what was written to
 * the active segments before, which only the sizes of the tables show.
 */
void
segment_switch_begin(RingState *state)
{
	for (RingKind kind = 0; kind < RING_KINDS; kind++)
	{
		MessageTable table;
		uint64		size;
		uint64		written = 0;

		message_table_open(&table, catalog_active_segment(kind),
						   AccessShareLock);

		/* Half of each page is free; see segment_is_full(). */
		size = (uint64) relation_size(table.heap) / 2;
		message_table_close(&table, false);

		/* Not if sessions, or an earlier worker, have counted already. */
		pg_atomic_compare_exchange_u64(&state->written[kind], &written, size);
	}
}

/* The bytes of a table and its TOAST table, without indexes. */
static double
relation_size(Relation rel)
{
	double		size = (double) RelationGetNumberOfBlocks(rel) * BLCKSZ;

	if (OidIsValid(rel->rd_rel->reltoastrelid))
	{
		Relation	toast = table_open(rel->rd_rel->reltoastrelid,
									   AccessShareLock);

		size += (double) RelationGetNumberOfBlocks(toast) * BLCKSZ;
		table_close(toast, AccessShareLock);
	}
	return size;
}

/* Returns the next empty segment after the active one, or -1. */
static int
next_free_segment(int active)
{
	const Ring *ring = &segment_rings[segment_kind(active)];
	int			offset = active - ring->first;

	for (int i = 1; i < ring->n; i++)
	{
		int			segment = ring->first + (offset + i) % ring->n;

		if (!segment_is_free(segment))
			continue;
		if (!catalog_has_pages(catalog_segment_oid(segment)))
			return segment;

		/*
		 * Plain SQL has written to it, so it is not free after all, nor can
		 * it be chosen before it was recycled.
		 */
		segment_found_rows(segment);
	}
	return -1;
}

/* Steps 2 to 4 of NOTES */
static void
make_segment_active(int segment, RingState *state)
{
	RingKind	kind = segment_kind(segment);
	bool		delayed = kind == RING_DELAYED;
	int			columns[2] = {
		delayed ? Anum_ring_delayed : Anum_ring_active,
		delayed ? Anum_ring_delayed_switched_at : Anum_ring_switched_at
	};
	Datum		values[2];
	MessageTable table;
	Relation	rel;

	ereport(DEBUG1,
			(errmsg_internal("segment %d becomes active: about %llu bytes were written to segment %d",
							 segment,
							 (unsigned long long) pg_atomic_read_u64(&state->written[kind]),
							 catalog_active_segment(kind))));
	message_table_open(&table, segment, RowExclusiveLock);
	rel = catalog_open(CATALOG_RING, RowExclusiveLock, NULL);
	values[0] = Int16GetDatum(segment);
	values[1] = TimestampTzGetDatum(GetCurrentTimestamp());
	row_set_columns(rel, row_fetch(rel, InvalidOid, NULL, 0), 2, columns,
					values);

	/* An update of a row does not make sessions read the table again. */
	CacheInvalidateRelcache(rel);
	table_close(rel, NoLock);
	message_table_close(&table, true);

	switched_at[kind] = GetCurrentTimestamp();
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
	int			active = catalog_active_segment(kind);
	TimestampTz now = GetCurrentTimestamp();
	int			next;

	/* It is wrong after a server start, or a switch that has failed. */
	pg_atomic_write_u32(&state->active[kind], (uint32) active);
	if (!segment_is_full(pg_atomic_read_u64(&state->written[kind])))
		return false;

	/* If the last switch seems to be in the future, the clock was set back. */
	if (now >= switched_at[kind] &&
		now < switched_at[kind] + SEGMENT_SWITCH_PAUSE)
	{
		*again = Min(*again, switched_at[kind] + SEGMENT_SWITCH_PAUSE);
		return false;
	}
	next = next_free_segment(active);
	if (next >= 0)
	{
		make_segment_active(next, state);
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
