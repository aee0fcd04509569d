/*-------------------------------------------------------------------------
 *
 * finished_ring.c
 *	  The rings of the history: when they switch, and which rows are kept.
 *
 * NOTES
 *	  The tables are rings (ring.c), one for each step of _keep_finished
 *	  (finished.c).  A row is kept for the _keep_finished of its queue, but no
 *	  longer than the step of its ring: so what one queue keeps for a year does
 *	  not hold the tables of another one that keeps it for a second.
 *
 *	  A ring switches when its active table has rows and was active for so long
 *	  that the rows of the next one are too old.  A table that is not active is
 *	  truncated as soon as all its rows are.
 *
 *	  A reader compares the times of rows itself.  A table is read under a
 *	  ShareLock, for which we do not wait, and which readers do not notice; the
 *	  AccessExclusiveLock for the truncation follows.  Every transaction that
 *	  has written to the table has ended by the time we have the ShareLock, and
 *	  has made its queue, if it is new; so whether that has a history is read
 *	  afterwards.  From then on no session writes to the table, because it is
 *	  not active.
 *
 *	  A table may be large, so it is read in steps, and the lock is released
 *	  after each.  The first step reads the last pages, which have the latest
 *	  rows.  If one of them is to be kept, we wait for that, and then begin again
 *	  with these pages.
 *
 *	  Nothing is truncated while pg_dump is connected, nor while there is no
 *	  queue: a dump is being restored then, in which queues come last.
 *
 * src/queue/finished_ring.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/timestamp.h"

#include "catalog/message_table.h"
#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "queue/finished.h"
#include "queue/finished_ring.h"
#include "queue/queue_table.h"
#include "shmem/segment_state.h"
#include "storage/row.h"
#include "util/hash.h"
#include "util/json.h"

#define TURN_MIN		USECS_PER_SEC
#define RETRY_PAUSE		(10 * USECS_PER_SEC)	/* if a table cannot be
												 * truncated */
#define PAGES_AT_ONCE	64		/* of a table, read in one step */
#define LOOK_PAUSE		USECS_PER_MINUTE	/* while there is no queue */

/* How long the rows of a queue live */
typedef struct Keep
{
	int32		queue_id;		/* the hash key */
	int64		seconds;		/* see keep_seconds() */
} Keep;

/* How far a table was read */
typedef struct TableRead
{
	BlockNumber page;			/* the next one; beyond the last one: that
								 * many before the last one */
	BlockNumber done;			/* pages */
	TimestampTz expiry;			/* when the last row in those is too old;
								 * DT_NOBEGIN if no queue asks for any */
} TableRead;

/* What the worker remembers */
static uint64 queues_generation;	/* catalog_generation() when queues were
									 * read */
static uint64 sizes_generation; /* and when the sizes of tables were */
static int64 longest[RINGS];	/* _keep_finished of its queues, in seconds */
static int	nqueues;			/* with or without a history */
static TableRead reads[RING_TABLES];

static int64 keep_of(Relation rel, HeapTuple tuple);
static bool count_queue(Relation rel, HeapTuple tuple);
static void begin_read(int table);
static void read_queues(void);
static int64 keep_seconds(HTAB *keeps, Relation queues, int32 id);
static void read_pages(int table, Relation rel, int64 keep_max);
static bool recycle_finished(RingId ring, int table, TimestampTz began,
							 TimestampTz *again);
static bool begin_finished(bool is_new, RingState *state, TimestampTz *again);
static TimestampTz switch_finished_at(RingId ring, int active,
									  TimestampTz switched_at,
									  RingState *state);

/* --- Queues --- */

/* Returns for how many seconds the rows of a queue live, 0 for no history. */
static int64
keep_of(Relation rel, HeapTuple tuple)
{
	Jsonb	   *metadata = DatumGetJsonbP(row_getattr(rel, tuple,
													  Anum_queue_metadata));
	JsonbValue	v;
	int64		seconds;

	if (!json_field(metadata, "_keep_finished", &v) ||
		!json_integer(&v, &seconds) || seconds < 0 || seconds > INT_MAX)
		return 0;
	return seconds;
}

/* Callback of queue_all() */
static bool
count_queue(Relation rel, HeapTuple tuple)
{
	int64		seconds = keep_of(rel, tuple);
	RingId		ring = finished_ring_of(seconds);

	nqueues++;
	longest[ring] = Max(longest[ring], seconds);
	return false;
}

/* Forget how far a table was read. */
static void
begin_read(int table)
{
	reads[table].page = InvalidBlockNumber;
	reads[table].done = 0;
	reads[table].expiry = DT_NOBEGIN;
}

/*
 * Find out how long the turns of the rings are, unless no queue has changed
 * since.
 */
static void
read_queues(void)
{
	uint64		generation = catalog_generation();
	int			n;

	/*
	 * The transaction that makes a queue sends no invalidation message.  So
	 * while there is none, we look each time.  A new one beside others is
	 * looked up when a row of it is met (keep_seconds).
	 */
	if (queues_generation == generation && nqueues > 0)
		return;
	memset(longest, 0, sizeof(longest));
	nqueues = 0;

	/* If it fails, they are read again. */
	queues_generation = 0;
	(void) queue_all(NULL, count_queue, &n);
	queues_generation = generation;

	/* Rows may be too old earlier than they seemed to be, or later. */
	for (int i = FIRST_FINISHED_TABLE; i < RING_TABLES; i++)
	{
		begin_read(i);
		ring_visit_soon(i);
	}
}

/*
 * Returns for how many seconds the rows of a queue live, 0 if it has no
 * history, -1 if there is no such queue.
 */
static int64
keep_seconds(HTAB *keeps, Relation queues, int32 id)
{
	bool		found;
	Keep	   *keep = hash_search(keeps, &id, HASH_ENTER, &found);
	HeapTuple	tuple;

	if (found)
		return keep->seconds;
	keep->seconds = -1;
	tuple = queue_table_fetch_by_id(queues, id, true);
	if (HeapTupleIsValid(tuple))
	{
		keep->seconds = keep_of(queues, tuple);
		heap_freetuple(tuple);
	}
	return keep->seconds;
}

/* --- Tables --- */

/* Read the next pages of a table, with a new snapshot. */
static void
read_pages(int table, Relation rel, int64 keep_max)
{
	TableRead  *read = &reads[table];
	BlockNumber pages = RelationGetNumberOfBlocks(rel);
	BlockNumber n;
	Relation	queues = catalog_open_queues(AccessShareLock);
	HTAB	   *keeps = hash_create_blobs("histories of queues", sizeof(int32),
										  sizeof(Keep), CurrentMemoryContext);
	TimestampTz expiry = read->expiry;
	RowScan		scan;
	HeapTuple	tuple;

	if (read->page >= pages)
		read->page = pages - Min(pages, PAGES_AT_ONCE);

	/* In the end, stop before the page with which we began. */
	n = Min(PAGES_AT_ONCE, Min(pages - read->page, pages - read->done));
	row_scan_begin(&scan, rel, InvalidOid, NULL, 0);
	if (n > 0)
		row_scan_set_pages(&scan, read->page, n);
	while (n > 0 && HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		int64		keep;
		TimestampTz finished_at;

		CHECK_FOR_INTERRUPTS();
		keep = keep_seconds(keeps, queues,
							DatumGetInt32(row_getattr(rel, tuple,
													  Anum_finished_queue_id)));

		/* The errors of attempts are kept without _keep_finished, too. */
		if (keep == 0 &&
			DatumGetBool(row_getattr(rel, tuple, Anum_finished_is_attempt)))
			keep = FINISHED_ERRORS_KEPT;
		if (keep <= 0)
			continue;
		finished_at = DatumGetTimestampTz(row_getattr(rel, tuple,
													  Anum_finished_finished_at));

		/* What was raised beyond the step holds for rows from then on. */
		expiry = Max(expiry,
					 finished_at + Min(keep, keep_max) * USECS_PER_SEC);
	}
	hash_destroy(keeps);
	table_close(queues, AccessShareLock);
	row_scan_end(&scan);
	ereport(DEBUG2,
			(errmsg_internal("read %u pages of %s", n,
							 ring_table_name(table))));
	read->expiry = expiry;
	if (expiry > GetCurrentTimestamp())
		return;
	read->done += n;
	read->page += n;
	if (read->page == pages)
		read->page = 0;
}

/*
 * Read some of a table that the caller has locked against writers, and if that
 * is the end, truncate it, unless a row in it is to be kept.  Returns false if
 * something is left to be done at *again.
 */
static bool
recycle_finished(RingId ring, int table, TimestampTz began, TimestampTz *again)
{
	TableRead  *read = &reads[table];
	Relation	rel = catalog_open_locked(catalog_segment_oid(table));
	int64		keep_max = catalog_rings[ring].keep_max;
	bool		is_read;

	/*
	 * After a dump, or an error because a reader has not released its lock,
	 * the table need not be read again.
	 */
	if (read->done < RelationGetNumberOfBlocks(rel))
		read_pages(table, rel, keep_max);
	is_read = read->done >= RelationGetNumberOfBlocks(rel);
	table_close(rel, NoLock);

	/*
	 * A row is to be kept: wait until it is too old.  If the clock was set
	 * back, rows live for longer; we look meanwhile.
	 */
	if (read->expiry > began)
	{
		*again = Min(read->expiry, began + keep_max * USECS_PER_SEC);
		read->done = 0;
		read->expiry = DT_NOBEGIN;
		return false;
	}
	if (!is_read)
		return false;
	*again = began + RETRY_PAUSE;

	/*
	 * Readers hold their locks only for a moment.  If one lasts longer than
	 * our lock_timeout, the error makes us try again later.
	 */
	if (!ring_lock_table(table, true, &rel))
		return false;
	ring_truncate(table, rel);
	table_close(rel, NoLock);
	begin_read(table);
	*again = began;
	return true;
}

/* --- The rings of the history --- */

/*
 * Find out which tables have rows that no session has published, after a
 * restore, and how long the turns of the rings are.
 */
static bool
begin_finished(bool is_new, RingState *state, TimestampTz *again)
{
	uint64		generation = catalog_generation();
	bool		has_rows = false;

	if (is_new)
	{
		queues_generation = 0;
		sizes_generation = 0;
		for (int i = FIRST_FINISHED_TABLE; i < RING_TABLES; i++)
			begin_read(i);
	}
	for (int i = FIRST_FINISHED_TABLE; i < RING_TABLES; i++)
	{
		if (sizes_generation != generation && segment_is_free(i) &&
			message_table_has_pages(i))
			segment_found_rows(i);
		has_rows |= !segment_is_free(i);
	}
	sizes_generation = generation;
	if (!has_rows)
		return false;

	/* A dump is being restored. */
	read_queues();
	if (nqueues == 0)
		*again = GetCurrentTimestamp() + LOOK_PAUSE;
	return nqueues > 0;
}

/* A turn is so long that the next table's rows are too old at its end. */
static TimestampTz
switch_finished_at(RingId ring, int active, TimestampTz switched_at,
				   RingState *state)
{
	if (segment_is_free(active))
		return DT_NOEND;
	return switched_at == DT_NOBEGIN ? DT_NOBEGIN :
		switched_at + Max(longest[ring] * USECS_PER_SEC /
						  (catalog_rings[ring].n - 1), TURN_MIN);
}

const RingKind finished_ring_kind = {
	.id = RINGS_OF_HISTORY,
	.first = RING_HISTORY,
	.n = RINGS - RING_HISTORY,
	.lock = ShareLock,
	.begin = begin_finished,
	.switch_at = switch_finished_at,
	.recycle = recycle_finished
};
