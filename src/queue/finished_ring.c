/*-------------------------------------------------------------------------
 *
 * finished_ring.c
 *	  The tables of the history: switching and truncating them.
 *
 * NOTES
 *	  The tables are rings, one for each step of _keep_finished (finished.c).
 *	  A row is kept for the _keep_finished of its queue, but no longer than the
 *	  step of its ring: so what one queue keeps for a year does not hold the
 *	  tables of another one that keeps it for a second.
 *
 *	  One table of a ring takes new rows, the active one.  When it has had its
 *	  turn, the worker truncates the next one, if none of its rows is to be
 *	  kept any longer, and makes it active.  Turns are so long that the rows of
 *	  a table are too old before its next turn.  A ring goes on turning until
 *	  all its tables are empty.
 *
 *	  A reader compares the times of rows itself.  So a table is read under a
 *	  ShareLock, for which we do not wait, and which readers do not notice; the
 *	  AccessExclusiveLock for the truncation follows.  Every transaction that
 *	  has written to the table has ended by the time we have the ShareLock, and
 *	  has made its queue, if it is new; so whether that has a history is read
 *	  afterwards.  From then on no session writes to the table: when it has the
 *	  lock, it finds that another one is active (finished_insert).
 *
 *	  A table may be large, so it is read in steps, and the lock is released
 *	  after each.
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
#include "access/tableam.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "queue/finished.h"
#include "queue/finished_ring.h"
#include "queue/queue_table.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "storage/segment_recycle.h"
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

/* How far the table of a ring that becomes active next was read */
typedef struct TableRead
{
	int			table;			/* NO_SEGMENT: none */
	BlockNumber page;			/* the next one */
	TimestampTz expiry;			/* when the last row in those before is too
								 * old; DT_NOBEGIN if no queue asks for any */
} TableRead;

/* What the worker remembers */
static Oid	remembered = InvalidOid;	/* of which extension */
static uint64 queues_generation;	/* catalog_generation() when queues were
									 * read */
static int64 longest[RINGS];	/* _keep_finished of its queues, in seconds */
static int	nqueues;			/* with or without a history */
static TimestampTz turn_at[RINGS];	/* it is not turned before */
static TableRead reads[RINGS];

static int64 keep_of(Relation rel, HeapTuple tuple);
static bool count_queue(Relation rel, HeapTuple tuple);
static void read_queues(void);
static int64 keep_seconds(HTAB *keeps, Relation queues, int32 id);
static void read_pages(TableRead *read, Relation rel, int64 keep_max);
static bool empty_table(int i, RingKind ring);
static bool turn_ring(RingKind ring, TimestampTz *again);

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
	RingKind	ring = finished_ring_of(seconds);

	nqueues++;
	longest[ring] = Max(longest[ring], seconds);
	return false;
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

	/* Rows may be too old earlier than they seemed to be. */
	memset(turn_at, 0, sizeof(turn_at));
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
read_pages(TableRead *read, Relation rel, int64 keep_max)
{
	BlockNumber pages = RelationGetNumberOfBlocks(rel);
	BlockNumber n = Min(PAGES_AT_ONCE, pages - Min(read->page, pages));
	Relation	queues = catalog_open_queues(AccessShareLock);
	HTAB	   *keeps = hash_create_blobs("histories of queues", sizeof(int32),
										  sizeof(Keep), CurrentMemoryContext);
	TimestampTz expiry = read->expiry;
	RowScan		scan;
	HeapTuple	tuple;

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
			(errmsg_internal("read %u pages of table %d of the history", n,
							 read->table)));
	read->page += n;
	read->expiry = expiry;
}

/*
 * Read some of a table, and if that is the end, truncate it, unless a row in
 * it is to be kept.  Returns whether it was truncated; otherwise turn_at says
 * when to go on.  The caller has set that for the case that the table is
 * locked, and commits.
 */
static bool
empty_table(int i, RingKind ring)
{
	TableRead  *read = &reads[ring];
	int64		keep_max = catalog_rings[ring].keep_max;
	Oid			oid = catalog_oid(CATALOG_FINISHED_0 + i);
	TimestampTz now = GetCurrentTimestamp();
	Relation	rel;
	bool		result = false;

	if (!ConditionalLockRelationOid(oid, ShareLock))
		return false;
	rel = catalog_open_locked(oid);
	if (read->table != i)
	{
		read->table = i;
		read->page = 0;
		read->expiry = DT_NOBEGIN;
	}
	read_pages(read, rel, keep_max);
	if (read->page < RelationGetNumberOfBlocks(rel))
		turn_at[ring] = DT_NOBEGIN;

	/* If the clock was set back, rows live for longer; we look meanwhile. */
	else if (read->expiry > now)
	{
		read->table = NO_SEGMENT;
		turn_at[ring] = Min(read->expiry, now + keep_max * USECS_PER_SEC);
	}

	/*
	 * After a dump, or an error because a reader has not released its lock,
	 * the table need not be read again.
	 */
	else if (!segment_has_dump())
	{
		Oid			toast = rel->rd_rel->reltoastrelid;

		/*
		 * Readers hold their locks only for a moment.  If one lasts longer
		 * than our lock_timeout, the error makes us try again later.
		 */
		LockRelationOid(oid, AccessExclusiveLock);
		if (OidIsValid(toast))
			LockRelationOid(toast, AccessExclusiveLock);
		segment_truncate(rel, psprintf("table %d of the history", i));
		read->table = NO_SEGMENT;
		result = true;
	}

	/* The lock is kept to the end of the transaction. */
	table_close(rel, NoLock);
	return result;
}

/* --- Rings --- */

/*
 * Make the next table of a ring active, and empty before, if it is time.
 * Returns false if there is nothing to do before *again; else the caller
 * commits.
 */
static bool
turn_ring(RingKind ring, TimestampTz *again)
{
	const Ring *r = &catalog_rings[ring];
	TimestampTz now = GetCurrentTimestamp();
	int			active = catalog_active_table(ring);
	bool		has_rows = false;
	int			next;
	TimestampTz due;

	/* A superuser has deleted the row of the ring. */
	if (active == NO_SEGMENT)
		return false;
	for (int i = 0; i < r->n; i++)
		has_rows |= catalog_has_pages(catalog_oid(CATALOG_FINISHED_0 +
												  r->first + i));
	if (!has_rows)
		return false;

	/* A dump is being restored. */
	read_queues();
	if (nqueues == 0)
	{
		*again = Min(*again, now + LOOK_PAUSE);
		return false;
	}
	next = r->first + (active - r->first + 1) % r->n;

	/* A time in the future was written before the clock was set back. */
	due = catalog_switched_at(ring);
	due = due > now ? now :
		due + Max(longest[ring] * USECS_PER_SEC / (r->n - 1), TURN_MIN);
	if (turn_at[ring] <= now + r->keep_max * USECS_PER_SEC)
		due = Max(due, turn_at[ring]);
	if (due > now)
	{
		*again = Min(*again, due);
		return false;
	}

	/* If the table is locked, or an error follows. */
	turn_at[ring] = now + RETRY_PAUSE;
	if (!catalog_has_pages(catalog_oid(CATALOG_FINISHED_0 + next)) ||
		empty_table(next, ring))
	{
		ereport(DEBUG1,
				(errmsg_internal("table %d of the history becomes active",
								 next)));
		segment_write_active(ring, next);
		turn_at[ring] = DT_NOBEGIN;
	}
	return true;
}

/*
 * A step of the worker: turn one ring.  Returns false if there is nothing to do
 * before the time *arg, which this sets.
 */
bool
finished_ring_step(void *arg)
{
	static RingKind last_ring = RING_FINISHED;
	TimestampTz *again = arg;

	*again = DT_NOEND;
	if (remembered != catalog_queue_oid())
	{
		remembered = catalog_queue_oid();
		queues_generation = 0;
		for (int i = 0; i < RINGS; i++)
			reads[i].table = NO_SEGMENT;
	}

	/* A ring with a large table must not keep the others from turning. */
	for (int i = RING_FINISHED; i < RINGS; i++)
	{
		if (++last_ring == RINGS)
			last_ring = RING_FINISHED;
		if (turn_ring(last_ring, again))
			return true;
	}
	return false;
}
