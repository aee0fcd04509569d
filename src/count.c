/*-------------------------------------------------------------------------
 *
 * count.c
 *	  Counts of what becomes of messages, and each queue's last error.
 *
 * NOTES
 *	  A transaction counts in its own memory; what it has counted for a queue
 *	  holds once it commits (or is prepared).  From there on there are two
 *	  ways, both of which end in queue_data.job_count:
 *
 *	  With shared memory, the counts are added to the queue's cursor when the
 *	  transaction ends, and the worker writes those of all cursors to the
 *	  table every FLUSH_INTERVAL, and as it ends.  A cursor loses them when
 *	  the worker's transaction has committed; who reads table and cursor is
 *	  kept out meanwhile by a lock.  A crash loses what was not written.
 *
 *	  Without, a session keeps its counts and adds them to the table as it
 *	  commits others, at most once in SESSION_INTERVAL, and when it ends.
 *	  Until then only it knows of them.
 *
 *	  The last error goes the second way, at each commit: errors are rare, and
 *	  too long for a cursor.
 *
 *	  Nobody waits for these rows: one that somebody else is writing is left
 *	  for the next time.
 *
 * src/count.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#define FLUSH_INTERVAL		USECS_PER_SEC
#define FLUSH_SHARE			20	/* and times what the last one took */
#define SESSION_INTERVAL	(100 * 1000)	/* microseconds */
#define SESSION_AT_ONCE		64	/* queues whose counts one commit writes */
#define LOOK_BACK			8	/* counts that may be added to */
#define ERROR_LENGTH		1000	/* bytes */

#define Anum_job_count_queue_id			1
#define Anum_job_count_claimed			2	/* and the other counters */
#define Anum_job_count_since			8
#define Anum_job_count_last_error		9
#define Anum_job_count_last_error_at	10
#define Natts_job_stats					9

PG_FUNCTION_INFO_V1(job_stats);

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
	bool		has_error;
	bool		adding_error;	/* of this transaction */
	bool		wrote_error;
	bool		listed;			/* in touched */
	TimestampTz error_at;
	char		error[ERROR_LENGTH + 1];
} Kept;

/* Of a cursor, and in the table if the transaction commits */
typedef struct Flushed
{
	Oid			extension;
	int32		queue_id;
	int64		n[JOB_COUNTERS];
} Flushed;

static bool has_errors = false;

static HTAB *kept = NULL;
static Kept **touched = NULL;	/* by this transaction; in its context */
static int	ntouched = 0;
static TimestampTz next_write = 0;

static Flushed *flushed = NULL; /* in TopTransactionContext */
static int	nflushed = 0;
static TimestampTz next_flush = 0;

static Count *get_count(int32 queue_id);
static bool is_zero(const int64 *n);
static void init_kept(void);
static Kept *get_kept(const Count *count);
static void touch_kept(Kept *entry);
static void keep_all(bool with_counts);
static HeapTuple form_row(Relation rel, HeapTuple old, int32 queue_id,
						  const int64 *n, TimestampTz since,
						  const char *error, TimestampTz error_at);
static bool write_row(int32 queue_id, const int64 *n, const char *error,
					  TimestampTz error_at);
static void write_kept(Kept *entry);
static void write_touched(TimestampTz now, int max);
static void end_kept(bool commit);
static void give_to_cursors(void);
static void take_flushed(void);
static bool has_counts(void);
static void read_row(int32 queue_id, int64 *n, TimestampTz *since,
					 const char **error, TimestampTz *error_at);
static void add_unwritten(int32 queue_id, int64 *n, const char **error,
						  TimestampTz *error_at);
static void before_end(XactEvent event);
static void end_transaction(XactEvent event);
static void end_session(int code, Datum arg);

static XactList counts = {
	.record_size = sizeof(Count),
	.before_end = before_end,
	.end = end_transaction
};

void
count_init(void)
{
	xact_register(&counts);
}

/* --- What the transaction counts --- */

/* Where the current subtransaction counts what it does to a queue. */
static Count *
get_count(int32 queue_id)
{
	int			level = GetCurrentTransactionNestLevel();
	Oid			extension = queue_table_oid();
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
job_count(int32 queue_id, JobCounter counter, int64 n)
{
	if (n > 0)
		get_count(queue_id)->n[counter] += n;
}

/* The queue's last error. */
void
job_error(int32 queue_id, const char *error)
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

/* Before the commit: keep errors, and counts if no cursor gets them. */
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

/* The row as it is to be; old: as it was, or NULL. */
static HeapTuple
form_row(Relation rel, HeapTuple old, int32 queue_id, const int64 *n,
		 TimestampTz since, const char *error, TimestampTz error_at)
{
	TupleDesc	desc = RelationGetDescr(rel);
	Datum		values[Natts_job_count];
	bool		isnull[Natts_job_count] = {false};
	Datum	   *sums = &values[Anum_job_count_claimed - 1];

	if (old != NULL)
		heap_deform_tuple(old, desc, values, isnull);
	else
	{
		memset(values, 0, sizeof(values));
		values[Anum_job_count_queue_id - 1] = Int32GetDatum(queue_id);
		values[Anum_job_count_since - 1] = TimestampTzGetDatum(since);
		isnull[Anum_job_count_last_error - 1] = true;
		isnull[Anum_job_count_last_error_at - 1] = true;
	}
	for (int i = 0; i < JOB_COUNTERS; i++)
		sums[i] = Int64GetDatum((old == NULL ? 0 : DatumGetInt64(sums[i])) +
								n[i]);
	if (error != NULL)
	{
		values[Anum_job_count_last_error - 1] = CStringGetTextDatum(error);
		values[Anum_job_count_last_error_at - 1] =
			TimestampTzGetDatum(error_at);
		isnull[Anum_job_count_last_error - 1] = false;
		isnull[Anum_job_count_last_error_at - 1] = false;
	}
	return heap_form_tuple(desc, values, isnull);
}

/*
 * Add to the counts of a queue, unless one would have to wait for somebody:
 * then false.  Those of a queue that is gone are done with.
 */
static bool
write_row(int32 queue_id, const int64 *n, const char *error,
		  TimestampTz error_at)
{
	Relation	index;
	Relation	rel;
	TupleTableSlot *slot;
	ScanKeyData key;
	IndexScanDesc scan;
	TimestampTz since;
	bool		written = true;

	if (!queue_lock_job_counts() || !queue_try_lock(queue_id))
		return false;
	rel = queue_open_job_counts(RowExclusiveLock, &index);
	slot = table_slot_create(rel, NULL);
	ScanKeyInit(&key, Anum_job_count_queue_id, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(queue_id));
	PushActiveSnapshot(GetLatestSnapshot());
	scan = compat_index_beginscan(rel, index, GetActiveSnapshot(), 1);
	index_rescan(scan, &key, 1, NULL, 0);
	if (index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		ItemPointerData tid = slot->tts_tid;
		TM_FailureData failure;

		written = table_tuple_lock(rel, &tid, GetActiveSnapshot(), slot,
								   GetCurrentCommandId(true),
								   LockTupleNoKeyExclusive, LockWaitSkip, 0,
								   &failure) == TM_Ok &&
			row_update_any(rel, &tid,
						   form_row(rel, row_tuple(slot), queue_id, n, 0,
									error, error_at)) == TM_Ok;
	}
	else if (queue_created_at(queue_id, &since))
	{
		if (shmem_exists())
			since = Max(since, shmem_started_at());
		written = row_insert_unique(rel, index,
									form_row(rel, NULL, queue_id, n, since,
											 error, error_at));
	}
	index_endscan(scan);
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	table_close(rel, NoLock);
	CommandCounterIncrement();
	return written;
}

/* A queue is dropped, and nobody else is using it: its counts go along. */
void
count_drop(int32 queue_id)
{
	Relation	index;
	Relation	rel = queue_open_job_counts(RowExclusiveLock, &index);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ScanKeyData key;

	ScanKeyInit(&key, Anum_job_count_queue_id, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(queue_id));
	if (row_find_unique(rel, index, &key, 1, slot))
		simple_heap_delete(rel, &slot->tts_tid);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	table_close(rel, NoLock);
}

/* --- What the session writes --- */

static void
write_kept(Kept *entry)
{
	int64		n[JOB_COUNTERS];

	for (int i = 0; i < JOB_COUNTERS; i++)
		n[i] = entry->n[i] + entry->adding[i];
	touch_kept(entry);

	/* Those of an extension that was dropped are done with too. */
	if (entry->key.extension != queue_table_oid() ||
		write_row(entry->key.queue_id, n,
				  entry->has_error ? entry->error : NULL, entry->error_at))
	{
		memcpy(entry->writing, n, sizeof(n));
		entry->wrote_error = entry->has_error;
	}
}

/* Write what this transaction has touched, and what others have left. */
static void
write_touched(TimestampTz now, int max)
{
	HASH_SEQ_STATUS seq;
	Kept	   *entry;
	int			n = 0;

	if (!queue_lock_job_counts())
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

		for (int j = 0; j < JOB_COUNTERS && commit; j++)
			entry->n[j] += entry->adding[j] - entry->writing[j];
		if (commit ? entry->wrote_error : entry->adding_error)
			entry->has_error = false;
		memset(entry->adding, 0, sizeof(entry->adding));
		memset(entry->writing, 0, sizeof(entry->writing));
		entry->adding_error = entry->wrote_error = entry->listed = false;
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

/* --- Cursors --- */

/* The transaction is over: others may know what it has counted. */
static void
give_to_cursors(void)
{
	bool		wake = false;

	for (int i = 0; i < counts.n; i++)
	{
		const Count *count = xact_record(&counts, i);
		Cursor	   *cursor;

		if (is_zero(count->n))
			continue;
		cursor = shmem_find_cursor(count->extension, count->queue_id);
		if (cursor == NULL)
			continue;
		for (int j = 0; j < JOB_COUNTERS; j++)
			cursor->counts[j] += count->n[j];
		if (!shmem_has_flag(cursor, CURSOR_COUNTED))
		{
			shmem_set_flag(cursor, CURSOR_COUNTED);
			wake = true;
		}
		SpinLockRelease(&cursor->mutex);
	}
	if (wake)
		database_wake(GetCurrentTimestamp() + FLUSH_INTERVAL, false);
}

/* The counts of cursors that are in the table now. */
static void
take_flushed(void)
{
	for (int i = 0; i < nflushed; i++)
	{
		Cursor	   *cursor = shmem_find_cursor(flushed[i].extension,
											   flushed[i].queue_id);

		if (cursor == NULL)
			continue;
		for (int j = 0; j < JOB_COUNTERS; j++)
			cursor->counts[j] -= Min(cursor->counts[j], flushed[i].n[j]);
		if (is_zero(cursor->counts))
			shmem_clear_flag(cursor, CURSOR_COUNTED);
		SpinLockRelease(&cursor->mutex);
	}
}

/* For the worker: is it time to write the counts of cursors, if any? */
bool
count_is_due(TimestampTz now)
{
	return now >= next_flush && has_counts();
}

/*
 * Write the counts of some cursors of this database, of those whose number is
 * not below *from, which moves on; in a transaction of the worker.  True: that
 * was all.
 */
bool
count_flush(uint32 *from, int max)
{
	Oid			extension = queue_table_oid();
	Cursor	   *cursor;

	flushed = MemoryContextAlloc(TopTransactionContext, max * sizeof(Flushed));
	for (int i = 0; i < max; i++)
	{
		Flushed    *entry = &flushed[nflushed];

		cursor = shmem_next_flagged(CURSOR_COUNTED, from);
		if (cursor == NULL)
			return true;
		if (cursor->database != MyDatabaseId || cursor->extension != extension)
			continue;
		SpinLockAcquire(&cursor->mutex);
		entry->extension = extension;
		entry->queue_id = cursor->queue_id;
		memcpy(entry->n, cursor->counts, sizeof(entry->n));
		SpinLockRelease(&cursor->mutex);
		if (queue_lock_job_counts() &&
			queue_lock_counts(entry->queue_id, true) &&
			write_row(entry->queue_id, entry->n, NULL, 0))
			nflushed++;
	}
	return false;
}

/* All were written; that began then. */
void
count_flushed(TimestampTz began)
{
	TimestampTz now = GetCurrentTimestamp();

	next_flush = now + Max(FLUSH_INTERVAL, FLUSH_SHARE * (now - began));
}

/* Are there counts still to be written? */
static bool
has_counts(void)
{
	uint32		from = 0;
	Cursor	   *cursor;

	while ((cursor = shmem_next_flagged(CURSOR_COUNTED, &from)) != NULL)
		if (cursor->database == MyDatabaseId)
			return true;
	return false;
}

/* The worker sees to them later. */
void
count_flush_again(void)
{
	if (has_counts())
		database_wake(next_flush, false);
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
	if (event != XACT_EVENT_ABORT)
	{
		if (shmem_exists() && counts.n > 0)
			give_to_cursors();
		if (nflushed > 0)
			take_flushed();
	}
	end_kept(event != XACT_EVENT_ABORT);
	has_errors = false;
	flushed = NULL;
	nflushed = 0;
}

/* --- To be seen --- */

/* What the table has of a queue. */
static void
read_row(int32 queue_id, int64 *n, TimestampTz *since, const char **error,
		 TimestampTz *error_at)
{
	Relation	index;
	Relation	rel = queue_open_job_counts(AccessShareLock, &index);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ScanKeyData key;
	IndexScanDesc scan;

	ScanKeyInit(&key, Anum_job_count_queue_id, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(queue_id));
	PushActiveSnapshot(GetLatestSnapshot());
	scan = compat_index_beginscan(rel, index, GetActiveSnapshot(), 1);
	index_rescan(scan, &key, 1, NULL, 0);
	if (index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		bool		isnull;
		Datum		value;

		for (int i = 0; i < JOB_COUNTERS; i++)
			n[i] = DatumGetInt64(slot_getattr(slot, Anum_job_count_claimed + i,
											  &isnull));
		*since = DatumGetTimestampTz(slot_getattr(slot, Anum_job_count_since,
												  &isnull));
		value = slot_getattr(slot, Anum_job_count_last_error, &isnull);
		if (!isnull)
		{
			*error = TextDatumGetCString(value);
			*error_at =
				DatumGetTimestampTz(slot_getattr(slot,
												 Anum_job_count_last_error_at,
												 &isnull));
		}
	}
	else if (queue_created_at(queue_id, since) && shmem_exists())
		*since = Max(*since, shmem_started_at());
	index_endscan(scan);
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
}

/* Add what is not in the table: of all sessions, or of this one. */
static void
add_unwritten(int32 queue_id, int64 *n, const char **error,
			  TimestampTz *error_at)
{
	KeptKey		key = {queue_table_oid(), queue_id};
	Kept	   *entry = kept == NULL ? NULL :
		hash_search(kept, &key, HASH_FIND, NULL);
	Cursor	   *cursor = shmem_exists() ?
		shmem_find_cursor(key.extension, queue_id) : NULL;

	for (int i = 0; i < JOB_COUNTERS && cursor != NULL; i++)
		n[i] += cursor->counts[i];
	if (cursor != NULL)
		SpinLockRelease(&cursor->mutex);
	for (int i = 0; i < JOB_COUNTERS && entry != NULL; i++)
		n[i] += entry->n[i];
	if (entry != NULL && entry->has_error && entry->error_at >= *error_at)
	{
		*error = entry->error;
		*error_at = entry->error_at;
	}
	for (int i = 0; i < counts.n; i++)
	{
		const Count *count = xact_record(&counts, i);

		if (count->queue_id != queue_id || count->extension != key.extension)
			continue;
		for (int j = 0; j < JOB_COUNTERS; j++)
			n[j] += count->n[j];
		if (count->error != NULL)
		{
			*error = count->error;
			*error_at = count->error_at;
		}
	}
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
job_stats(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int64		n[JOB_COUNTERS] = {0};
	Datum		values[Natts_job_stats];
	bool		isnull[Natts_job_stats] = {false};
	TimestampTz since = 0;
	const char *error = NULL;
	TimestampTz error_at = 0;
	Queue		queue;
	bool		may = false;

	InitMaterializedSRF(fcinfo, 0);
	if (queue_peek(name, GetUserId(), QUEUE_READ, &queue, &may))
	{
		/* What is on its way to the table shall be counted once. */
		if (!RecoveryInProgress())
			queue_lock_counts(queue.id, false);
		read_row(queue.id, n, &since, &error, &error_at);
		add_unwritten(queue.id, n, &error, &error_at);
		if (!RecoveryInProgress())
			queue_unlock_counts(queue.id);
	}

	for (int i = 0; i < JOB_COUNTERS; i++)
		values[i] = Int64GetDatum(n[i]);
	values[JOB_COUNTERS] = TimestampTzGetDatum(since);
	isnull[JOB_COUNTERS] = since == 0;
	isnull[JOB_COUNTERS + 1] = error == NULL || !may;
	isnull[JOB_COUNTERS + 2] = error == NULL || !may;
	if (error != NULL)
		values[JOB_COUNTERS + 1] = CStringGetTextDatum(error);
	values[JOB_COUNTERS + 2] = TimestampTzGetDatum(error_at);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	return (Datum) 0;
}
