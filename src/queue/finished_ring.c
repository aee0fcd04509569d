/*-------------------------------------------------------------------------
 *
 * finished_ring.c
 *	  The tables of the history: switching and truncating them.
 *
 * NOTES
 *	  The tables are a ring, of which one takes new rows, the active one.  The
 *	  worker
 *
 *	  1.  truncates another one when each of its rows is older than the
 *	  _keep_finished of its queue, or its queue has no history any more;
 *
 *	  2.  makes the next one active when the active one has had its turn, or is
 *	  as large as a segment (queue.segment_size).  A turn is a part of the
 *	  longest _keep_finished, so that the rows of a table become too old before
 *	  its next turn;
 *
 *	  3.  if there is no empty one then, since the tables became full before
 *	  their turns were over, copies what is to live longer from the oldest one
 *	  to the active one, if that is little, and truncates the oldest one, in
 *	  the same transaction.  Otherwise the active one grows.
 *
 *	  A reader compares the times of rows itself.  A session may write to a
 *	  table that is not active any more, because it has not heard of the
 *	  switch.  So a table is read and copied under a ShareLock, for which we do
 *	  not wait, and which readers do not notice; the AccessExclusiveLock for
 *	  the truncation follows.  Every transaction that has written to the table
 *	  has ended by the time we have the ShareLock, and has made its queue, if
 *	  it is new; so whether that has a history is read afterwards.
 *
 *	  A truncation is not MVCC: see finished.c for readers.  Nothing is
 *	  truncated while pg_dump is connected, nor while there is no queue: a dump
 *	  is being restored then, in which queues come last.
 *
 * src/queue/finished_ring.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/float.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "queue/finished_ring.h"
#include "queue/queue_table.h"
#include "storage/row.h"
#include "storage/segment_recycle.h"
#include "storage/segment_switch.h"
#include "util/compat.h"
#include "util/hash.h"
#include "util/json.h"
#include "util/settings.h"

#define TURNS			(FINISHED_SEGMENTS - 2) /* in the longest
												 * _keep_finished */
#define TURN_MIN		USECS_PER_SEC
#define COPY_SHARE		4		/* at most 1/4 of a table is copied */
#define COPY_MAX		(4.0 * 1024 * 1024) /* and at most so many bytes */
#define RETRY_PAUSE		(10 * USECS_PER_SEC)	/* if a table cannot be
												 * truncated */
#define LOOK_PAUSE		USECS_PER_MINUTE	/* while there is no queue */

/* How long the rows of a queue live */
typedef struct Keep
{
	int32		queue_id;		/* the hash key */
	int64		time;			/* _keep_finished in microseconds; -1 if it
								 * has none, or the queue does not exist */
} Keep;

/* What is in a table */
typedef struct Content
{
	TimestampTz expires_at;		/* when the last row is too old; DT_NOBEGIN if
								 * no queue asks for any */
	double		bytes;			/* in rows that are not too old */
} Content;

/* What the worker remembers */
static Oid	remembered = InvalidOid;	/* of which extension */
static uint64 queues_generation;	/* catalog_generation() when queues were
									 * read */
static int64 longest;			/* _keep_finished of any, in microseconds */
static int	nqueues;			/* with or without a history */
static TimestampTz look_at[FINISHED_SEGMENTS];	/* no table is read before */
static TimestampTz switch_at;	/* nor is a switch tried */

static int64 keep_of(Relation rel, HeapTuple tuple);
static bool count_queue(Relation rel, HeapTuple tuple, void *arg);
static void read_queues(void);
static int64 keep_time(HTAB *keeps, Relation queues, int32 id);
static double size_of_table(int i);
static double row_bytes(Relation rel, HeapTuple tuple);
static void read_content(Relation rel, double max_bytes, Relation copy_to,
						 Content *content);
static void truncate_table(int i, Relation rel);
static bool attend_table(int i, int copy_to, double size);
static TimestampTz switched_at(void);
static void make_active(int i);
static bool switch_table(int active, const double *sizes);

/* --- Queues --- */

/*
 * Returns for how many microseconds the rows of a queue live, -1 if it has no
 * history.  Raises "longest" to that.
 */
static int64
keep_of(Relation rel, HeapTuple tuple)
{
	Jsonb	   *metadata = DatumGetJsonbP(row_getattr(rel, tuple,
													  Anum_queue_metadata));
	JsonbValue	v;
	int64		seconds;

	if (!json_field(metadata, "_keep_finished", &v) ||
		!json_integer(&v, &seconds) || seconds < 0 || seconds > INT_MAX)
		return -1;
	longest = Max(longest, seconds * USECS_PER_SEC);
	return seconds * USECS_PER_SEC;
}

/* Callback of queue_all() */
static bool
count_queue(Relation rel, HeapTuple tuple, void *arg)
{
	nqueues++;
	(void) keep_of(rel, tuple);
	return false;
}

/* Find out what the longest history is, unless no queue has changed since. */
static void
read_queues(void)
{
	uint64		generation = catalog_generation();
	int64		before = longest;
	int			n;

	/*
	 * The transaction that makes a queue sends no invalidation message.  So
	 * while there is none, we look each time.  A new one beside others is
	 * looked up when a row of it is met (keep_time).
	 */
	if (queues_generation == generation && nqueues > 0)
		return;
	longest = 0;
	nqueues = 0;

	/* If it fails, they are read again. */
	queues_generation = 0;
	(void) queue_all(NULL, count_queue, NULL, &n);
	queues_generation = generation;

	/* Rows may be too old earlier than they seemed to be. */
	if (longest < before)
		memset(look_at, 0, sizeof(look_at));
}

/*
 * Returns for how many microseconds the rows of a queue live, -1 if there is
 * no such queue with a history.
 */
static int64
keep_time(HTAB *keeps, Relation queues, int32 id)
{
	bool		found;
	Keep	   *keep = hash_search(keeps, &id, HASH_ENTER, &found);
	HeapTuple	tuple;

	if (found)
		return keep->time;
	keep->time = -1;
	tuple = queue_table_fetch_by_id(queues, id, true);
	if (HeapTupleIsValid(tuple))
	{
		keep->time = keep_of(queues, tuple);
		heap_freetuple(tuple);
	}
	return keep->time;
}

/* --- Tables --- */

/* Returns the bytes of a table, or -1 if it is locked. */
static double
size_of_table(int i)
{
	Oid			oid = catalog_oid(CATALOG_FINISHED_0 + i);
	Relation	rel;
	double		size;

	if (!ConditionalLockRelationOid(oid, AccessShareLock))
		return -1;
	rel = catalog_open_locked(oid);
	size = segment_relation_size(rel);
	table_close(rel, AccessShareLock);
	return size;
}

/* Returns the size of a row, with what is in the TOAST table. */
static double
row_bytes(Relation rel, HeapTuple tuple)
{
	static const int columns[] = {
		Anum_finished_result, Anum_finished_error, Anum_finished_body
	};
	double		bytes = tuple->t_len;

	if (!HeapTupleHasExternal(tuple))
		return bytes;
	for (Size i = 0; i < lengthof(columns); i++)
	{
		bool		isnull;
		Datum		value = heap_getattr(tuple, columns[i],
										 RelationGetDescr(rel), &isnull);

		if (!isnull && VARATT_IS_EXTERNAL(DatumGetPointer(value)))
			bytes += toast_datum_size(value);
	}
	return bytes;
}

/*
 * Read a table with a new snapshot, until it has more than max_bytes in rows
 * that are not too old, and copy these to another table, unless that is NULL.
 */
static void
read_content(Relation rel, double max_bytes, Relation copy_to,
			 Content *content)
{
	TimestampTz now = GetCurrentTimestamp();
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = table_beginscan_strat(rel, snapshot, 0, NULL, true,
											   false);
	Relation	queues = catalog_open_queues(AccessShareLock);
	HTAB	   *keeps = hash_create_blobs("histories of queues", sizeof(int32),
										  sizeof(Keep), CurrentMemoryContext);
	HeapTuple	tuple;

	content->expires_at = DT_NOBEGIN;
	content->bytes = 0;
	while (content->bytes <= max_bytes &&
		   (tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		int64		time;
		TimestampTz expires_at;

		CHECK_FOR_INTERRUPTS();
		if (!row_is_valid(rel, tuple))
			continue;
		time = keep_time(keeps, queues,
						 DatumGetInt32(row_getattr(rel, tuple,
												   Anum_finished_queue_id)));
		if (time < 0)
			continue;
		expires_at = time +
			DatumGetTimestampTz(row_getattr(rel, tuple,
											Anum_finished_finished_at));
		content->expires_at = Max(content->expires_at, expires_at);
		if (expires_at <= now)
			continue;
		content->bytes += row_bytes(rel, tuple);
		if (copy_to != NULL)
			row_insert(copy_to, tuple);
	}
	hash_destroy(keeps);
	table_close(queues, AccessShareLock);
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
}

/* Truncate a table that the caller has locked against writers. */
static void
truncate_table(int i, Relation rel)
{
	Oid			toast = rel->rd_rel->reltoastrelid;

	/*
	 * Readers hold their locks only for a moment.  If one lasts longer than
	 * our lock_timeout, the error takes back what was copied.
	 */
	LockRelationOid(RelationGetRelid(rel), AccessExclusiveLock);
	if (OidIsValid(toast))
		LockRelationOid(toast, AccessExclusiveLock);
	CheckTableNotInUse(rel, "TRUNCATE");
	ereport(DEBUG1,
			(errmsg_internal("truncating table %d of the history, which has %u pages",
							 i, RelationGetNumberOfBlocks(rel))));
	compat_truncate(rel);

	/* See truncate_segment(). */
	if (segment_has_dump())
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("pg_dump has connected while a table of the history was being truncated")));
}

/*
 * Read a table that is not active, of this size, and truncate it if nothing in
 * it is to live longer; or, if copy_to is not -1, if that is little, which is
 * copied to that table.  Returns whether it was truncated.  Sets when it is
 * read again.
 */
static bool
attend_table(int i, int copy_to, double size)
{
	Oid			oid = catalog_oid(CATALOG_FINISHED_0 + i);
	double		max_bytes = copy_to < 0 ? get_float8_infinity() :
	Min(COPY_MAX, size / COPY_SHARE);
	Relation	rel;
	Content		content;
	bool		result = false;

	/* If it is locked, or an error follows. */
	if (copy_to < 0)
		look_at[i] = GetCurrentTimestamp() + RETRY_PAUSE;
	if (!ConditionalLockRelationOid(oid, ShareLock))
		return false;
	rel = catalog_open_locked(oid);
	read_content(rel, max_bytes, NULL, &content);
	if (content.bytes > 0 && copy_to < 0)
		look_at[i] = content.expires_at;
	else if (content.bytes <= max_bytes && !segment_has_dump())
	{
		if (content.bytes > 0)
		{
			Relation	target = catalog_open(CATALOG_FINISHED_0 + copy_to,
											  RowExclusiveLock, NULL);

			PushActiveSnapshot(GetLatestSnapshot());
			read_content(rel, get_float8_infinity(), target, &content);
			PopActiveSnapshot();
			table_close(target, NoLock);
		}
		truncate_table(i, rel);
		look_at[i] = DT_NOBEGIN;
		result = true;
	}

	/* The lock is kept to the end of the transaction. */
	table_close(rel, NoLock);
	return result;
}

/* --- The active table --- */

/* Returns when the active table has become active. */
static TimestampTz
switched_at(void)
{
	Relation	rel = catalog_open(CATALOG_FINISHED_RING, AccessShareLock,
								   NULL);
	HeapTuple	tuple = row_fetch(rel, InvalidOid, NULL, 0);
	TimestampTz result = HeapTupleIsValid(tuple) ?
	DatumGetTimestampTz(row_getattr(rel, tuple,
									Anum_finished_ring_switched_at)) :
	DT_NOBEGIN;

	table_close(rel, AccessShareLock);
	return result;
}

static void
make_active(int i)
{
	Relation	rel = catalog_open(CATALOG_FINISHED_RING, RowExclusiveLock,
								   NULL);
	int			columns[2] = {
		Anum_finished_ring_active, Anum_finished_ring_switched_at
	};
	Datum		values[2];

	ereport(DEBUG1,
			(errmsg_internal("table %d of the history becomes active", i)));
	values[0] = Int16GetDatum(i);
	values[1] = TimestampTzGetDatum(GetCurrentTimestamp());
	row_set_columns(rel, row_fetch(rel, InvalidOid, NULL, 0), 2, columns,
					values, NULL);

	/* An update of a row does not make sessions read the table again. */
	CacheInvalidateRelcache(rel);
	table_close(rel, NoLock);
}

/*
 * Make another table active, or if none is empty, make the oldest one empty.
 * Returns false if that is not possible.
 */
static bool
switch_table(int active, const double *sizes)
{
	int			oldest = (active + 1) % FINISHED_SEGMENTS;

	for (int k = 1; k < FINISHED_SEGMENTS; k++)
	{
		int			i = (active + k) % FINISHED_SEGMENTS;

		if (sizes[i] == 0)
		{
			make_active(i);
			return true;
		}
	}
	return attend_table(oldest, active, sizes[oldest]);
}

/* --- A step --- */

/*
 * Switch, or truncate one table; the caller commits.  Returns false if there
 * is nothing to do before *again.
 */
bool
finished_ring_step(TimestampTz *again)
{
	TimestampTz now = GetCurrentTimestamp();
	int			active = catalog_active_finished();
	double		sizes[FINISHED_SEGMENTS];
	double		all_sizes = 0;
	bool		is_full;
	TimestampTz due;

	*again = DT_NOEND;
	if (active == NO_SEGMENT)
		return false;
	if (remembered != catalog_queue_oid())
	{
		remembered = catalog_queue_oid();
		queues_generation = 0;
		memset(look_at, 0, sizeof(look_at));
	}
	for (int i = 0; i < FINISHED_SEGMENTS; i++)
	{
		sizes[i] = size_of_table(i);
		all_sizes += Max(sizes[i], 0);
	}
	if (all_sizes == 0)
		return false;
	read_queues();
	if (nqueues == 0)
	{
		*again = now + LOOK_PAUSE;
		return false;
	}
	for (int k = 1; k < FINISHED_SEGMENTS; k++)
	{
		int			i = (active + k) % FINISHED_SEGMENTS;

		if (sizes[i] == 0)
			continue;

		/* The clock may have been set back. */
		if (look_at[i] <= now || look_at[i] > now + longest + RETRY_PAUSE)
		{
			(void) attend_table(i, -1, sizes[i]);
			return true;
		}
		*again = Min(*again, look_at[i]);
	}
	if (sizes[active] == 0)
		return false;

	/* A time in the future was written before the clock was set back. */
	due = switched_at();
	due = due > now ? now : due + Max(longest / TURNS, TURN_MIN);

	/* If much is kept, the tables become larger, and about equally large. */
	is_full = setting_segment_size > 0 &&
		sizes[active] >= Max(setting_segment_size * 1024.0,
							 all_sizes / FINISHED_SEGMENTS);
	if (is_full || due <= now)
	{
		due = switch_at > now + RETRY_PAUSE ? now : switch_at;
		if (due <= now)
		{
			/* If it is not possible, or an error follows. */
			switch_at = due = now + RETRY_PAUSE;
			if (switch_table(active, sizes))
			{
				switch_at = DT_NOBEGIN;
				return true;
			}
		}
	}
	*again = Min(*again, due);
	return false;
}
