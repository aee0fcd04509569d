/*-------------------------------------------------------------------------
 *
 * segment_recycle.c
 *	  Recycling: a segment without messages is truncated.
 *
 * NOTES
 *	  A segment, of the ring of messages or that of delayed ones, is recycled
 *	  (ring.c) after messages were deleted from it.  The worker surveys it, and
 *	  truncates it if it holds no message.  When too many segments are in use,
 *	  it moves the last messages of a nearly empty one (dead letters, messages
 *	  that are never read, long claims) to the active segment, under the same
 *	  ids and claims.  A segment full of waiting messages stays as it is.
 *
 *	  Why the truncation loses nothing:
 *
 *	  1.  The worker takes an AccessExclusiveLock on the segment, and only
 *	  without waiting, since users can hold locks on it.
 *
 *	  2.  It then takes a snapshot.  Every transaction that has written to the
 *	  segment held a lock on it to its end, so it has ended before, and its
 *	  rows are visible in the snapshot or never will be.
 *
 *	  3.  If the snapshot shows no row, there is none and none can appear
 *	  while the lock is held.
 *
 *	  A survey without the lock comes first, so that the worker locks only
 *	  what seems to be empty.
 *
 *	  The ring switches when enough was written to the active segment.  Each
 *	  switch updates a catalog-like row and has all sessions read it again, so
 *	  there is a pause between two of them.
 *
 * src/storage/segment_recycle.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "catalog/message_table.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "shmem/database_state.h"
#include "shmem/segment_state.h"
#include "storage/message.h"
#include "storage/ring.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "storage/segment_recycle.h"

#define SURVEY_PAUSE	USECS_PER_SEC	/* between surveys of a segment, */
#define SURVEY_SHARE	50		/* or this many times what one took, but at
								 * most RING_PAUSE_MAX */
#define PAGES_AT_ONCE	1024	/* between checks for interrupts and waiters */
#define MOVE_AT_ONCE	1000	/* messages */
#define NEARLY_EMPTY	64		/* at most 1/64 of its pages is messages */
#define HALF_EMPTY		8		/* at most 1/8 */

/*
 * When messages are moved out of a segment: if more segments of its ring than
 * this are in use, out of a nearly empty one; if fewer than this are free,
 * also out of a half empty one.
 */
static const int move_thresholds[RING_HISTORY] = {
	[RING_MESSAGES] = 4,
	[RING_DELAYED] = 2
};

/* What a survey has found in a segment */
typedef struct Survey
{
	bool		complete;		/* it has read all pages, and found no more
								 * bytes than it was asked for */
	int64		live;			/* rows */
	double		bytes;			/* in these rows */
	BlockNumber first;			/* the page of the first row, or
								 * InvalidBlockNumber */
	int			ntids;			/* of the first rows, up to MOVE_AT_ONCE */
	ItemPointerData tids[MOVE_AT_ONCE];
} Survey;

static BlockNumber survey_from[ALL_SEGMENTS];	/* page to begin with */

static void survey_pages(Relation rel, Snapshot snapshot, BlockNumber from,
						 BlockNumber n, double max_bytes, Survey *survey);
static void survey_segment(Relation rel, BlockNumber from, double max_bytes,
						   bool locked, Survey *survey);
static double most_to_move(const MessageTable *table);
static bool move_messages(MessageTable *table, const Survey *survey);
static bool try_truncate(int segment);
static bool recycle_segment(RingId ring, int segment, TimestampTz began,
							TimestampTz *again);
static bool begin_segments(bool is_new, RingState *state, TimestampTz *again);
static TimestampTz switch_segment_at(RingId ring, int active,
									 TimestampTz switched_at,
									 RingState *state);

/* --- What is in a segment --- */

/* Add the rows in n pages, until the survey has more than max_bytes. */
static void
survey_pages(Relation rel, Snapshot snapshot, BlockNumber from,
			 BlockNumber n, double max_bytes, Survey *survey)
{
	TableScanDesc scan = table_beginscan_strat(rel, snapshot, 0, NULL, true,
											   false);
	TupleTableSlot *slot = table_slot_create(rel, NULL);

	heap_setscanlimits(scan, from, n);
	while (survey->bytes <= max_bytes &&
		   table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		if (survey->live == 0)
			survey->first = ItemPointerGetBlockNumber(&slot->tts_tid);
		if (survey->ntids < MOVE_AT_ONCE)
			survey->tids[survey->ntids++] = slot->tts_tid;
		survey->live++;
		survey->bytes += row_tuple(slot)->t_len;
	}
	ExecDropSingleTupleTableSlot(slot);
	table_endscan(scan);
}

/*
 * Survey a segment with a new snapshot: read its pages, beginning with page
 * "from" and going on at page 0 after the last one, until there are more
 * bytes than max_bytes.  If "locked" is set, the caller holds an
 * AccessExclusiveLock on the segment.
 */
static void
survey_segment(Relation rel, BlockNumber from, double max_bytes, bool locked,
			   Survey *survey)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	BlockNumber pages = RelationGetNumberOfBlocks(rel);
	BlockNumber done = 0;
	BlockNumber page = from;

	/*
	 * The last survey has found nothing, or there was none.  Messages that
	 * are still being claimed are most likely in the last pages.
	 */
	if (page >= pages)
		page = pages - Min(pages, PAGES_AT_ONCE);
	memset(survey, 0, offsetof(Survey, tids));
	survey->first = InvalidBlockNumber;
	while (done < pages && survey->bytes <= max_bytes)
	{
		BlockNumber n = Min(PAGES_AT_ONCE, pages - page);

		CHECK_FOR_INTERRUPTS();

		/*
		 * Do not keep other sessions waiting for longer than one step takes:
		 * the survey is incomplete then, and the segment is truncated another
		 * time.
		 */
		if (locked && done > 0 &&
			LockHasWaitersRelation(rel, AccessExclusiveLock))
			break;

		/* In the end, stop before the page with which we began. */
		n = Min(n, pages - done);
		survey_pages(rel, snapshot, page, n, max_bytes, survey);
		done += n;
		page += n;
		if (page == pages)
			page = 0;
	}
	survey->complete = done == pages && survey->bytes <= max_bytes;
	UnregisterSnapshot(snapshot);
}

/* --- Moving what is left --- */

/*
 * Returns how many bytes of messages a segment may hold at most for them to
 * be moved out of it.
 */
static double
most_to_move(const MessageTable *table)
{
	RingId		id = segment_ring(table->segment);
	const Ring *ring = &catalog_rings[id];
	int			threshold = move_thresholds[id];
	int			nfree = 0;

	for (int i = 0; i < ring->n; i++)
		if (segment_is_free(ring->first + i))
			nfree++;

	/* Few segments are in use, so their space is not worth the moves. */
	if (nfree >= ring->n - threshold)
		return 0;
	return (double) RelationGetNumberOfBlocks(table->heap) * BLCKSZ /
		(nfree < threshold ? HALF_EMPTY : NEARLY_EMPTY);
}

/*
 * Move the messages that a survey has found, or as many as make a short
 * transaction.  Returns false if other transactions have locked some of them.
 */
static bool
move_messages(MessageTable *table, const Survey *survey)
{
	MessageTable active;
	TupleTableSlot *slot = table_slot_create(table->heap, NULL);
	bool		all = true;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "a message to be moved",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old;
	Size		bytes = 0;

	segment_begin_move();
	segment_open_active(&active, segment_ring(table->segment), true);
	PushActiveSnapshot(GetLatestSnapshot());
	old = MemoryContextSwitchTo(context);
	for (int i = 0; i < survey->ntids && bytes < MESSAGE_MOVE_BYTES; i++)
	{
		ItemPointerData tid = survey->tids[i];

		CHECK_FOR_INTERRUPTS();

		/* It may have been deleted since the survey. */
		if (!table_tuple_fetch_row_version(table->heap, &tid,
										   GetActiveSnapshot(), slot))
			continue;
		if (message_move(table, slot, &active, &bytes))
			database_count(COUNT_MOVED, 1);
		else
			all = false;
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
	message_table_close(&active, true);
	CommandCounterIncrement();
	return all;
}

/* --- Truncating --- */

/*
 * A survey has found no message: truncate the segment, if there is still none
 * when no other session can write to it.  Returns false if it was not
 * possible.
 */
static bool
try_truncate(int segment)
{
	Survey	   *survey;
	Relation	rel;
	bool		is_empty;

	if (!ring_lock_table(segment, false, &rel))
		return false;
	survey = palloc(sizeof(Survey));
	survey_segment(rel, survey_from[segment], 0, true, survey);
	is_empty = survey->complete && survey->live == 0;
	pfree(survey);
	if (is_empty)
		ring_truncate(segment, rel);
	else
		ring_log_kept(segment, "it has a message now, or another session waits for its lock");

	/* The lock is kept to the end of the transaction. */
	table_close(rel, NoLock);
	return is_empty;
}

/* --- The rings of messages --- */

/*
 * Survey a segment that the caller has locked as a writer, and then move its
 * messages or truncate it, if there are few or none.  Returns false if
 * something is left to be done at *again; not if there are many messages,
 * because the segment is checked again after some of them were deleted.
 */
static bool
recycle_segment(RingId ring, int segment, TimestampTz began, TimestampTz *again)
{
	Survey	   *survey = palloc(sizeof(Survey));
	MessageTable table;
	TimestampTz now;
	bool		is_empty;
	bool		done = true;

	message_table_open(&table, segment, RowExclusiveLock);
	survey_segment(table.heap, survey_from[segment], most_to_move(&table),
				   false, survey);
	survey_from[segment] = survey->first;

	/* Surveys must take only a small part of the worker's time. */
	now = GetCurrentTimestamp();
	*again = now +
		Min(Max(SURVEY_PAUSE, SURVEY_SHARE * (now - began)), RING_PAUSE_MAX);
	is_empty = survey->complete && survey->live == 0;
	if (!survey->complete)
		ring_log_kept(segment, "it still has messages");
	else if (survey->live > 0)
	{
		ereport(DEBUG1,
				(errmsg_internal("moving %d messages out of segment %d",
								 survey->ntids, segment)));

		/*
		 * What is left, if only the truncation, follows at once; after a
		 * pause if other sessions have locked some messages.
		 */
		if (move_messages(&table, survey))
			*again = GetCurrentTimestamp();
		done = false;
	}
	message_table_close(&table, true);
	if (is_empty)
		done = try_truncate(segment);
	pfree(survey);
	return done;
}

/*
 * A worker has started, or finds another extension: count what was written to
 * the active segments before, which only the sizes of the tables show.
 */
static bool
begin_segments(bool is_new, RingState *state, TimestampTz *again)
{
	for (RingId ring = 0; is_new && ring < RING_HISTORY; ring++)
	{
		MessageTable table;
		uint64		size;
		uint64		written = 0;

		message_table_open(&table, catalog_active_table(ring),
						   AccessShareLock);

		/* Half of each page is free; see segment_is_full(). */
		size = (uint64) ring_relation_size(table.heap) / 2;
		message_table_close(&table, false);

		/* Not if sessions, or an earlier worker, have counted already. */
		pg_atomic_compare_exchange_u64(&state->written[ring], &written, size);
	}
	return true;
}

static TimestampTz
switch_segment_at(RingId ring, int active, TimestampTz switched_at,
				  RingState *state)
{
	if (!segment_is_full(pg_atomic_read_u64(&state->written[ring])))
		return DT_NOEND;
	return switched_at == DT_NOBEGIN ? DT_NOBEGIN :
		switched_at + SEGMENT_SWITCH_PAUSE;
}

const RingKind segment_ring_kind = {
	.id = RINGS_OF_MESSAGES,
	.first = RING_MESSAGES,
	.n = RING_HISTORY,
	.lock = RowExclusiveLock,
	.begin = begin_segments,
	.switch_at = switch_segment_at,
	.recycle = recycle_segment
};
