/*-------------------------------------------------------------------------
 *
 * counters.c
 *	  Counts of what becomes of messages, and each queue's last error.
 *
 * NOTES
 *	  A transaction counts in its own memory; what it has counted for a queue
 *	  holds once it commits (or is prepared).  From there on there are two
 *	  ways, both of which end in queue_data.counters_add:
 *
 *	  With shared memory, the counts are added to the queue's availability map when the
 *	  transaction ends, and the worker moves those of all availability maps to the table
 *	  every FLUSH_INTERVAL, and as it ends.  A crash loses what was not moved,
 *	  and so does a standby that is promoted.
 *
 *	  Without, a session keeps its counts and adds them to the table as it
 *	  commits others, at most once in SESSION_INTERVAL, and when it ends.
 *	  Until then only it knows of them.
 *
 *	  The last error goes the second way, at each commit: it is too long for a
 *	  availability map.
 *
 *	  Counting leaves no dead rows, or the table would grow by one for each
 *	  busy queue and second as long as something holds back vacuum.  The
 *	  counters, and an error once there was one, have fixed places in the row
 *	  and are changed where they are (row_change_in_place): with the page's lock held,
 *	  logged, and at once, whether or not the transaction commits.  That adds
 *	  to what others have added meanwhile, so no lock is held for longer than
 *	  that.  A transaction that is rolled back takes off later what it added
 *	  of its own.  Only the first count and the first error of a queue write a
 *	  row as usual, and hold with the transaction.
 *
 *	  The page's lock makes the move from the availability map to the row one step for
 *	  job_stats, which reads both with that lock held.
 *
 *	  No transaction waits for a row that another one is writing as usual: it
 *	  tries again the next time.
 *
 * src/queue/counters.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "queue/counters.h"
#include "queue/registry.h"
#include "shmem/availability.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "storage/row.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/xact.h"

#define FLUSH_INTERVAL		USECS_PER_SEC
#define FLUSH_SHARE			20	/* and times what the last one took */
#define SESSION_INTERVAL	(100 * 1000)	/* microseconds */
#define SESSION_AT_ONCE		64	/* queues whose counts one commit writes */
#define LOOK_BACK			8	/* counts that may be added to */
#define ERROR_LENGTH		1000	/* bytes */

#define Anum_job_counter_queue_id			1
#define Anum_job_counter_last_error		10
#define Natts_job_stats					9

PG_FUNCTION_INFO_V1(sql_job_stats);

/* Counted by the transaction, not committed yet */
typedef struct Count
{
	XactRecord	xact;
	Oid			extension;
	int32		queue_id;
	int64		n[JOB_COUNTERS];
	char	   *error;			/* NULL: none */
	TimestampTz error_at;
} Count;

typedef struct KeptKey
{
	Oid			extension;
	int32		queue_id;
} KeptKey;

/* Committed, and to be written by this session */
typedef struct Kept
{
	KeptKey		key;
	int64		n[JOB_COUNTERS];
	int64		adding[JOB_COUNTERS];	/* if the transaction commits */
	int64		writing[JOB_COUNTERS];	/* likewise, to be taken off */
	bool		in_place;		/* was added to the row, come what may */
	bool		has_error;
	bool		adding_error;	/* of this transaction */
	bool		wrote_error;
	bool		listed;			/* in touched */
	TimestampTz error_at;
	char		error[ERROR_LENGTH + 1];
} Kept;

/*
 * The columns of a row that are changed in place.  last_error follows: NULL,
 * or ERROR_LENGTH bytes, filled up with zeros.
 */
typedef struct CountForm
{
	int32		queue_id;
	int64		n[JOB_COUNTERS];
	TimestampTz since;
	TimestampTz last_error_at;
} CountForm;

/* What is to be added to a row */
typedef struct Addition
{
	Oid			extension;
	int32		queue_id;
	bool		from_map;	/* its counts, instead of n */
	int64		n[JOB_COUNTERS];
	const char *error;			/* or NULL */
	TimestampTz error_at;
	TupleDesc	desc;			/* of the row */
} Addition;

typedef enum WriteResult
{
	WRITE_LATER,				/* the row is not to be had */
	WRITE_DONE,					/* whether the transaction commits or not */
	WRITE_IF_COMMITTED
} WriteResult;

/* What job_stats reads */
typedef struct Stats
{
	Oid			extension;
	int32		queue_id;
	TupleDesc	desc;			/* of the row */
	int64		n[JOB_COUNTERS];
	TimestampTz since;
	char	   *error;
	TimestampTz error_at;
} Stats;

static bool has_errors = false;

static HTAB *kept = NULL;
static Kept **touched = NULL;	/* by this transaction; in its context */
static int	ntouched = 0;
static TimestampTz next_write = 0;

static int64 next_flush = 0;	/* of the monotonic clock */

static Count *get_count(int32 queue_id);
static bool is_zero(const int64 *n);
static void init_kept(void);
static Kept *get_kept(const Count *count);
static void touch_kept(Kept *entry);
static void keep_all(bool with_counts);
static bytea *error_bytes(const char *error);
static char *error_text(HeapTuple tuple, TupleDesc desc);
static HeapTuple form_row(Relation rel, HeapTuple old, const Addition *add);
static HeapTuple fetch_row(Relation rel, Relation index, int32 queue_id);
static void take_from_map(Addition *add);
static void add_in_place(HeapTuple tuple, void *arg);
static bool write_error_room(Relation rel, Relation index,
							 const Addition *add, HeapTuple tuple);
static WriteResult write_row(Addition *add);
static void write_kept(Kept *entry);
static void write_touched(TimestampTz now, int max);
static void end_kept(bool commit);
static void give_to_maps(void);
static bool has_counts(void);
static void add_map(Stats *stats);
static void add_own(Stats *stats);
static void read_in_place(HeapTuple tuple, void *arg);
static void read_stats(Stats *stats);
static text *error_as_text(char *error);
static void before_end(XactEvent event);
static void end_transaction(XactEvent event);
static void end_session(int code, Datum arg);

static XactList counts = {
	.record_size = sizeof(Count),
	.before_end = before_end,
	.end = end_transaction
};

void
counters_init(void)
{
	xact_register(&counts);
}

/* --- What the transaction counts --- */

/* Where the current subtransaction counts what it does to a queue. */
static Count *
get_count(int32 queue_id)
{
	int			level = GetCurrentTransactionNestLevel();
	Oid			extension = catalog_queue_oid();
	Count	   *count;

	for (int i = counts.n - 1; i >= 0 && i >= counts.n - LOOK_BACK; i--)
	{
		count = xact_record(&counts, i);
		if (count->queue_id == queue_id && count->xact.nest_level == level &&
			count->extension == extension)
			return count;
	}
	count = xact_add(&counts);
	count->extension = extension;
	count->queue_id = queue_id;
	return count;
}

/* This happened so often in a queue, if the subtransaction commits. */
void
counters_add(int32 queue_id, JobCounter counter, int64 n)
{
	if (n > 0)
		get_count(queue_id)->n[counter] += n;
}

/* The queue's last error. */
void
counters_set_error(int32 queue_id, const char *error)
{
	int			length = pg_mbcliplen(error, strlen(error), ERROR_LENGTH);
	Count	   *count = get_count(queue_id);

	count->error = MemoryContextAlloc(TopTransactionContext, length + 1);
	memcpy(count->error, error, length);
	count->error[length] = '\0';
	count->error_at = GetCurrentTimestamp();
	has_errors = true;
}

static bool
is_zero(const int64 *n)
{
	for (int i = 0; i < JOB_COUNTERS; i++)
		if (n[i] != 0)
			return false;
	return true;
}

/* --- What the session keeps --- */

static void
init_kept(void)
{
	HASHCTL		info;

	if (kept != NULL)
		return;
	info.keysize = sizeof(KeptKey);
	info.entrysize = sizeof(Kept);
	info.hcxt = TopMemoryContext;
	kept = hash_create("counts to be written", 16, &info,
					   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	before_shmem_exit(end_session, (Datum) 0);
}

static Kept *
get_kept(const Count *count)
{
	KeptKey		key = {count->extension, count->queue_id};
	bool		found;
	Kept	   *entry;

	init_kept();
	entry = hash_search(kept, &key, HASH_ENTER, &found);
	if (!found)
	{
		memset(entry, 0, sizeof(Kept));
		entry->key = key;
	}
	touch_kept(entry);
	return entry;
}

/* The end of the transaction has to see to this entry. */
static void
touch_kept(Kept *entry)
{
	if (entry->listed)
		return;
	touched = touched == NULL ?
		MemoryContextAlloc(TopTransactionContext, sizeof(Kept *)) :
		((ntouched & (ntouched - 1)) == 0 ?
		 repalloc_huge(touched, 2 * ntouched * sizeof(Kept *)) : touched);
	touched[ntouched++] = entry;
	entry->listed = true;
}

/* Before the commit: keep errors, and counts if no availability map gets them. */
static void
keep_all(bool with_counts)
{
	for (int i = 0; i < counts.n; i++)
	{
		const Count *count = xact_record(&counts, i);
		Kept	   *entry;

		if (count->error == NULL && !with_counts)
			continue;
		entry = get_kept(count);
		for (int j = 0; j < JOB_COUNTERS && with_counts; j++)
			entry->adding[j] += count->n[j];
		if (count->error != NULL)
		{
			strlcpy(entry->error, count->error, sizeof(entry->error));
			entry->error_at = count->error_at;
			entry->has_error = entry->adding_error = true;
		}
	}
}

/* --- The table --- */

static bytea *
error_bytes(const char *error)
{
	bytea	   *bytes = palloc0(VARHDRSZ + ERROR_LENGTH);

	SET_VARSIZE(bytes, VARHDRSZ + ERROR_LENGTH);
	memcpy(VARDATA(bytes), error, Min(strlen(error), ERROR_LENGTH));
	return bytes;
}

/* The last error of a row, or NULL; a copy. */
static char *
error_text(HeapTuple tuple, TupleDesc desc)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, Anum_job_counter_last_error, desc,
									 &isnull);

	return isnull ? NULL :
		pnstrdup(VARDATA_ANY(DatumGetPointer(value)),
				 VARSIZE_ANY_EXHDR(DatumGetPointer(value)));
}

/*
 * A new row (old is NULL), or the old one with room for an error.  Counts of
 * a availability map are added later.
 */
static HeapTuple
form_row(Relation rel, HeapTuple old, const Addition *add)
{
	Datum		values[Natts_job_counter] = {0};
	bool		isnull[Natts_job_counter] = {false};
	HeapTuple	tuple;
	CountForm  *form;

	values[Anum_job_counter_last_error - 1] = add->error == NULL ? (Datum) 0 :
		PointerGetDatum(error_bytes(add->error));
	isnull[Anum_job_counter_last_error - 1] = add->error == NULL;
	tuple = heap_form_tuple(RelationGetDescr(rel), values, isnull);
	form = (CountForm *) GETSTRUCT(tuple);
	if (old != NULL)
		*form = *(CountForm *) GETSTRUCT(old);
	else
	{
		form->queue_id = add->queue_id;
		if (!add->from_map)
			memcpy(form->n, add->n, sizeof(form->n));
		if (!queue_created_at(add->queue_id, &form->since))
			return NULL;
		if (shmem_exists())
			form->since = Max(form->since, shmem_started_at());
		form->last_error_at = DT_NOBEGIN;
	}
	if (add->error != NULL)
		form->last_error_at = add->error_at;
	return tuple;
}

/* The row of a queue, or NULL; a copy. */
static HeapTuple
fetch_row(Relation rel, Relation index, int32 queue_id)
{
	ScanKeyData key;

	ScanKeyInit(&key, Anum_job_counter_queue_id, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(queue_id));
	return row_fetch(rel, RelationGetRelid(index), &key, 1);
}

static void
take_from_map(Addition *add)
{
	AvailabilityMap	   *map = shmem_find_map(add->extension, add->queue_id);

	memset(add->n, 0, sizeof(add->n));
	if (map == NULL)
		return;
	memcpy(add->n, map->counts, sizeof(add->n));
	memset(map->counts, 0, sizeof(map->counts));
	shmem_clear_flag(map, MAP_COUNTED);
	LWLockRelease(&map->lock);
}

/* Change the row on its page; must not fail. */
static void
add_in_place(HeapTuple tuple, void *arg)
{
	Addition   *add = (Addition *) arg;
	CountForm  *form = (CountForm *) GETSTRUCT(tuple);
	bool		isnull;
	Datum		error;

	if (add->from_map)
		take_from_map(add);
	for (int i = 0; i < JOB_COUNTERS; i++)
		form->n[i] += add->n[i];
	if (add->error == NULL || add->error_at < form->last_error_at)
		return;
	error = heap_getattr(tuple, Anum_job_counter_last_error, add->desc, &isnull);
	Assert(!isnull);
	strncpy(VARDATA_ANY(DatumGetPointer(error)), add->error,
			VARSIZE_ANY_EXHDR(DatumGetPointer(error)));
	form->last_error_at = add->error_at;
}

/* Write a queue's first error, as any change of a row is written. */
static bool
write_error_room(Relation rel, Relation index, const Addition *add,
				 HeapTuple tuple)
{
	/* With the lock held, no session adds to the row in place. */
	if (!row_lock(rel, &tuple->t_self, LockTupleNoKeyExclusive, LockWaitSkip))
		return false;
	tuple = fetch_row(rel, index, add->queue_id);
	return row_update(rel, &tuple->t_self, form_row(rel, tuple, add));
}

/*
 * Add to the row of a queue, without waiting for other transactions.  Counts
 * of a queue that is gone are discarded.
 */
static WriteResult
write_row(Addition *add)
{
	Relation	index;
	Relation	rel;
	HeapTuple	old;
	WriteResult result = WRITE_LATER;

	if (!catalog_lock_job_counters() || !queue_try_lock(add->queue_id))
		return WRITE_LATER;
	rel = catalog_open_job_counters(RowExclusiveLock, &index);
	add->desc = RelationGetDescr(rel);

	/* An insertion needs an active snapshot, and the worker has none. */
	PushActiveSnapshot(GetLatestSnapshot());
	old = fetch_row(rel, index, add->queue_id);
	if (!HeapTupleIsValid(old))
	{
		HeapTuple	tuple = form_row(rel, NULL, add);

		if (tuple == NULL)
		{
			if (add->from_map)
				take_from_map(add);
			result = WRITE_DONE;
		}
		else if (row_insert_unique(rel, index, tuple) && !add->from_map)
			result = WRITE_IF_COMMITTED;
	}
	else if (add->error != NULL &&
			 heap_attisnull(old, Anum_job_counter_last_error, NULL))
	{
		/* The counts have to wait for the next time. */
		memset(add->n, 0, sizeof(add->n));
		if (write_error_room(rel, index, add, old))
			result = WRITE_IF_COMMITTED;
	}
	else if (row_change_in_place(rel, &old->t_self, add_in_place, add))
		result = WRITE_DONE;
	PopActiveSnapshot();
	index_close(index, NoLock);
	table_close(rel, NoLock);
	CommandCounterIncrement();
	return result;
}

/* A queue is dropped, and nobody else is using it: its counts go along. */
void
counters_drop(int32 queue_id)
{
	Relation	index;
	Relation	rel = catalog_open_job_counters(RowExclusiveLock, &index);
	ScanKeyData key;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_job_counter_queue_id, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(queue_id));
	tuple = row_find_unique(rel, index, &key, 1);
	if (HeapTupleIsValid(tuple))
		simple_heap_delete(rel, &tuple->t_self);
	index_close(index, NoLock);
	table_close(rel, NoLock);
}

/* --- What the session writes --- */

static void
write_kept(Kept *entry)
{
	Addition	add = {0};
	WriteResult result = WRITE_IF_COMMITTED;

	add.extension = entry->key.extension;
	add.queue_id = entry->key.queue_id;
	for (int i = 0; i < JOB_COUNTERS; i++)
		add.n[i] = entry->n[i] + entry->adding[i];
	if (entry->has_error)
	{
		add.error = entry->error;
		add.error_at = entry->error_at;
	}
	touch_kept(entry);

	/* Those of an extension that was dropped are done with too. */
	if (entry->key.extension == catalog_queue_oid())
		result = write_row(&add);
	if (result == WRITE_LATER)
		return;
	memcpy(entry->writing, add.n, sizeof(add.n));
	entry->in_place = result == WRITE_DONE;
	entry->wrote_error = entry->has_error;
}

/* Write what this transaction has touched, and what others have left. */
static void
write_touched(TimestampTz now, int max)
{
	HASH_SEQ_STATUS seq;
	Kept	   *entry;
	int			n = 0;

	if (!catalog_lock_job_counters())
		return;
	hash_seq_init(&seq, kept);
	while ((entry = hash_seq_search(&seq)) != NULL)
	{
		if (n++ == max)
		{
			hash_seq_term(&seq);
			break;
		}
		write_kept(entry);
	}
	next_write = now + SESSION_INTERVAL;
}

/* After the end: the session keeps what was not written. */
static void
end_kept(bool commit)
{
	for (int i = 0; i < ntouched; i++)
	{
		Kept	   *entry = touched[i];

		for (int j = 0; j < JOB_COUNTERS; j++)
			entry->n[j] += (commit ? entry->adding[j] : 0) -
				(commit || entry->in_place ? entry->writing[j] : 0);
		if (commit ? entry->wrote_error : entry->adding_error)
			entry->has_error = false;
		memset(entry->adding, 0, sizeof(entry->adding));
		memset(entry->writing, 0, sizeof(entry->writing));
		entry->adding_error = entry->wrote_error = false;
		entry->in_place = entry->listed = false;
		if (is_zero(entry->n) && !entry->has_error)
			hash_search(kept, &entry->key, HASH_REMOVE, NULL);
	}
	touched = NULL;
	ntouched = 0;
}

/* The session ends: write what it has kept. */
static void
end_session(int code, Datum arg)
{
	if (code != 0 || kept == NULL || hash_get_num_entries(kept) == 0 ||
		RecoveryInProgress() || !OidIsValid(MyDatabaseId))
		return;
	AbortOutOfAnyTransaction();
	StartTransactionCommand();
	XactIsoLevel = XACT_READ_COMMITTED;
	XactReadOnly = false;
	PushActiveSnapshot(GetTransactionSnapshot());
	write_touched(0, INT_MAX);
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/* --- Availability maps --- */

/* The transaction is over: others may know what it has counted. */
static void
give_to_maps(void)
{
	bool		wake = false;

	for (int i = 0; i < counts.n; i++)
	{
		const Count *count = xact_record(&counts, i);
		AvailabilityMap	   *map;

		if (is_zero(count->n))
			continue;
		map = shmem_find_map(count->extension, count->queue_id);
		if (map == NULL)
			continue;
		for (int j = 0; j < JOB_COUNTERS; j++)
			map->counts[j] += count->n[j];
		if (!shmem_has_flag(map, MAP_COUNTED))
		{
			shmem_set_flag(map, MAP_COUNTED);
			wake = true;
		}
		LWLockRelease(&map->lock);
	}
	if (wake)
		database_wake(GetCurrentTimestamp() + FLUSH_INTERVAL, false);
}

/* For the worker: is it time to write the counts of availability maps, if any? */
bool
counters_flush_is_due(void)
{
	return clock_monotonic() >= next_flush && has_counts();
}

/*
 * Write the counts of some availability maps of this database, of those whose number is
 * not below *from, which moves on; in a transaction of the worker.  True: that
 * was all.
 */
bool
counters_flush(uint32 *from, int max)
{
	Oid			extension = catalog_queue_oid();
	AvailabilityMap	   *map;

	for (int i = 0; i < max; i++)
	{
		Addition	add = {0};

		map = shmem_next_flagged(MAP_COUNTED, from);
		if (map == NULL)
			return true;
		if (map_database(map) != MyDatabaseId ||
			map_extension(map) != extension)
			continue;
		LWLockAcquire(&map->lock, LW_EXCLUSIVE);
		add.extension = extension;
		add.queue_id = map_queue_id(map);
		LWLockRelease(&map->lock);
		add.from_map = true;
		(void) write_row(&add);
	}
	return false;
}

/* All were written; that began then. */
void
counters_flushed(int64 began)
{
	int64		now = clock_monotonic();

	next_flush = now + Max(FLUSH_INTERVAL, FLUSH_SHARE * (now - began));
}

/* Are there counts still to be written? */
static bool
has_counts(void)
{
	uint32		from = 0;
	AvailabilityMap	   *map;

	while ((map = shmem_next_flagged(MAP_COUNTED, &from)) != NULL)
		if (map_database(map) == MyDatabaseId)
			return true;
	return false;
}

/* The worker sees to them later. */
void
counters_flush_again(void)
{
	if (has_counts())
		database_wake(GetCurrentTimestamp() +
					  Max(next_flush - clock_monotonic(), 0), false);
}

/* --- Ends of transactions --- */

static void
before_end(XactEvent event)
{
	bool		shared = shmem_exists();
	TimestampTz now;

	if (has_errors || (counts.n > 0 && !shared))
		keep_all(!shared);
	if (kept == NULL || counts.n == 0 || event == XACT_EVENT_PRE_PREPARE)
		return;

	/* Counts of its own would make transactions conflict. */
	if (IsolationIsSerializable())
		return;
	now = GetCurrentTimestamp();
	if (has_errors || now >= next_write || now < next_write - SESSION_INTERVAL)
		write_touched(now, SESSION_AT_ONCE);
}

static void
end_transaction(XactEvent event)
{
	if (event != XACT_EVENT_ABORT && shmem_exists() && counts.n > 0)
		give_to_maps();
	end_kept(event != XACT_EVENT_ABORT);
	has_errors = false;
}

/* --- To be seen --- */

/* What the table does not have yet, of all sessions */
static void
add_map(Stats *stats)
{
	AvailabilityMap	   *map = shmem_exists() ?
		shmem_find_map(stats->extension, stats->queue_id) : NULL;

	if (map == NULL)
		return;
	for (int i = 0; i < JOB_COUNTERS; i++)
		stats->n[i] += map->counts[i];
	LWLockRelease(&map->lock);
}

/* What it does not have yet, of this session */
static void
add_own(Stats *stats)
{
	KeptKey		key = {stats->extension, stats->queue_id};
	Kept	   *entry = kept == NULL ? NULL :
		hash_search(kept, &key, HASH_FIND, NULL);

	for (int i = 0; i < JOB_COUNTERS && entry != NULL; i++)
		stats->n[i] += entry->n[i];
	if (entry != NULL && entry->has_error &&
		entry->error_at >= stats->error_at)
	{
		stats->error = entry->error;
		stats->error_at = entry->error_at;
	}
	for (int i = 0; i < counts.n; i++)
	{
		const Count *count = xact_record(&counts, i);

		if (count->queue_id != stats->queue_id ||
			count->extension != stats->extension)
			continue;
		for (int j = 0; j < JOB_COUNTERS; j++)
			stats->n[j] += count->n[j];
		if (count->error != NULL)
		{
			stats->error = count->error;
			stats->error_at = count->error_at;
		}
	}
}

/* Read the row on its page, and with it what is still to be added to it. */
static void
read_in_place(HeapTuple tuple, void *arg)
{
	Stats	   *stats = (Stats *) arg;
	CountForm  *form = (CountForm *) GETSTRUCT(tuple);

	memcpy(stats->n, form->n, sizeof(stats->n));
	stats->since = form->since;
	stats->error = error_text(tuple, stats->desc);
	stats->error_at = form->last_error_at;
	add_map(stats);
}

static void
read_stats(Stats *stats)
{
	Relation	index;
	Relation	rel = catalog_open_job_counters(AccessShareLock, &index);
	HeapTuple	tuple;

	stats->desc = RelationGetDescr(rel);
	add_map(stats);			/* good if there is no row afterwards */

	/* The snapshot keeps the row where it was found. */
	PushActiveSnapshot(GetLatestSnapshot());
	tuple = fetch_row(rel, index, stats->queue_id);
	if (!HeapTupleIsValid(tuple))
	{
		if (queue_created_at(stats->queue_id, &stats->since) &&
			shmem_exists())
			stats->since = Max(stats->since, shmem_started_at());
	}
	else
		while (HeapTupleIsValid(tuple) &&
			   !row_read_in_place(rel, &tuple->t_self, read_in_place, stats))
		{
			CHECK_FOR_INTERRUPTS();
			tuple = fetch_row(rel, index, stats->queue_id);
		}
	PopActiveSnapshot();
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	add_own(stats);
}

/*
 * An error as text.  After a restore it may be of a database with another
 * encoding.
 */
static text *
error_as_text(char *error)
{
	if (!pg_verify_mbstr(GetDatabaseEncoding(), error, strlen(error), true))
		for (char *c = error; *c != '\0'; c++)
			if (IS_HIGHBIT_SET(*c))
				*c = '?';
	return cstring_to_text(error);
}

/*
 * job_stats(q text)
 * returns table (claimed bigint, completed bigint, retried bigint,
 *				  abandoned bigint, duplicates bigint, expired bigint,
 *				  since timestamptz, last_error text,
 *				  last_error_at timestamptz)
 *
 * One row that counts, since that time, how often messages of the queue were
 * handed out, completed by who had them, given back by message_retry or a
 * failed handler, became dead letters, were dropped as duplicates (as they
 * were pushed, or at their turn), and were removed because their lifetime was
 * over; and the last error that was told, with its time (NULL for who may not
 * claim).  An unknown queue counts 0, since NULL.
 *
 * These are counts of what was committed, not kept as safe as messages: see
 * the top of this file.
 *
 * Errors: 22004 and 22023 name.
 * Source: MediaWiki, the counts of JobRunner and JobQueue.
 */
Datum
sql_job_stats(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		values[Natts_job_stats] = {0};
	bool		isnull[Natts_job_stats] = {false};
	Stats		stats = {0};
	Queue		queue;
	bool		may = false;

	InitMaterializedSRF(fcinfo, 0);
	stats.error_at = DT_NOBEGIN;
	if (queue_peek(name, GetUserId(), QUEUE_READ, &queue, &may))
	{
		stats.extension = catalog_queue_oid();
		stats.queue_id = queue.id;
		read_stats(&stats);
	}

	for (int i = 0; i < JOB_COUNTERS; i++)
		values[i] = Int64GetDatum(stats.n[i]);
	values[JOB_COUNTERS] = TimestampTzGetDatum(stats.since);
	isnull[JOB_COUNTERS] = stats.since == 0;
	isnull[JOB_COUNTERS + 1] = stats.error == NULL || !may;
	isnull[JOB_COUNTERS + 2] = stats.error == NULL || !may;
	if (stats.error != NULL)
		values[JOB_COUNTERS + 1] =
			PointerGetDatum(error_as_text(stats.error));
	values[JOB_COUNTERS + 2] = TimestampTzGetDatum(stats.error_at);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	return (Datum) 0;
}
