/*-------------------------------------------------------------------------
 *
 * counters.c
 *	  Counts of what happens to messages, and each queue's last error.
 *
 * NOTES
 *	  queue_data.job_counter has one row for each queue that something was
 *	  counted of: a number for each JobCounter, and the last error that
 *	  message_retry() or a failed handler reported.  job_stats() shows it, and
 *	  queue_status.
 *
 *	  A transaction counts in its own memory (counts.c).  When it has committed,
 *	  or is prepared, the counts are added to the queue's availability map
 *	  (protected by the map's lock), and an error to error_state.c.  The worker
 *	  of the database moves both to the table every COUNTS_PAUSE, and once more
 *	  when it shuts down.  What was not moved yet is lost in a crash, and when a
 *	  standby is promoted.
 *
 *	  Adding to a row leaves no dead version of it.  Otherwise the table would
 *	  grow by one version for each busy queue and second for as long as
 *	  something holds back vacuum.  The counters, and an error once there was
 *	  one, have a fixed offset and width in the row.  They are overwritten
 *	  where they are (row_act_in_place): under an exclusive lock on the
 *	  page, WAL-logged, visible to all snapshots at once, and not undone when
 *	  the transaction aborts.  Only the worker of the database writes rows.
 *
 *	  Two changes are an ordinary insert or update, valid if the transaction
 *	  commits: the first one of a queue, which inserts its row, and its first
 *	  error, which makes the row wider.  Neither takes anything out of shared
 *	  memory: the next addition does, when the row is there for good.
 *
 *	  Counts move from an availability map to the row in one step as seen by
 *	  job_stats(): the writer takes them out of the map, and the reader adds
 *	  those in the map to those of the row, both with the page locked.  The
 *	  page's lock is taken before the map's lock.
 *
 *	  The worker waits for no lock.  It gives up, and tries again the next time
 *	  that it writes counts.
 *
 * src/stats/counters.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "map/availability.h"
#include "map/shmem_maps.h"
#include "queue/queue_lock.h"
#include "queue/registry.h"
#include "shmem/database_state.h"
#include "shmem/error_state.h"
#include "shmem/shmem.h"
#include "stats/counters.h"
#include "storage/counts.h"
#include "storage/row.h"
#include "util/compat.h"

/*
 * The columns of a row that are changed in place.  The column last_error
 * follows: NULL, or QUEUE_ERROR_LENGTH bytes, padded with zeros.
 */
typedef struct CounterForm
{
	int32		queue_id;
	int64		n[JOB_COUNTERS];
	TimestampTz since;
	TimestampTz last_error_at;
} CounterForm;

static bool counters_table_add(CounterRow *add);
static void counters_table_read(CounterRow *row);
static Datum form_error(const char *error);
static HeapTuple fetch_counter_row(Relation rel, Relation index,
								   int32 queue_id);
static void add_counts_of_map(CounterRow *row, bool take);
static void add_counts_in_place(HeapTuple tuple, void *arg);
static bool insert_counter_row(Relation rel, Relation index,
							   CounterRow *add);
static void write_first_error(Relation rel, HeapTuple tuple,
							  const CounterRow *add);
static void read_counts_in_place(HeapTuple tuple, void *arg);

/* --- Moving counts and errors to the table --- */

/* Returns whether there are counts or errors of this database. */
bool
counters_are_pending(void)
{
	uint32		from = 0;
	int			first_error = 0;
	AvailabilityMap *map;
	QueueError	error;

	if (error_state_next(&first_error, &error))
		return true;
	while ((map = shmem_next_flagged(MAP_COUNTED, NULL, &from)) != NULL)
		if (map_database(map) == MyDatabaseId)
			return true;
	return false;
}

/*
 * Move the counts of up to max maps of this database to the table, of maps
 * whose number is not below *from, which is advanced, and add the messages
 * that have expired to *expired.  Returns whether that was the last map.
 */
bool
counters_flush(uint32 *from, int max, int64 *expired)
{
	Oid			extension = catalog_queue_oid();
	AvailabilityMap *map;

	for (int i = 0; i < max; i++)
	{
		CounterRow	add = {0};

		map = shmem_next_flagged(MAP_COUNTED, NULL, from);
		if (map == NULL)
			return true;
		if (map_database(map) != MyDatabaseId ||
			map_extension(map) != extension)
			continue;
		add.extension = extension;
		add.queue_id = map_queue_id(map);
		if (counters_table_add(&add))
			*expired += add.n[JOB_EXPIRED];
	}
	return false;
}

/*
 * Move the errors of this database to the table, and the counts of their
 * queues with them.
 */
void
counters_flush_errors(int64 *expired)
{
	Oid			extension = catalog_queue_oid();
	QueueError	error;
	int			from = 0;

	while (error_state_next(&from, &error))
	{
		CounterRow	add = {
			.extension = error.extension,
			.queue_id = error.queue_id,
			.error = error.message,
			.error_at = error.error_at
		};

		/* Errors of an extension that was dropped are discarded. */
		if (error.extension == extension && !counters_table_add(&add))
			continue;
		*expired += add.n[JOB_EXPIRED];
		error_state_remove(&error);
	}
}

/* --- Reading --- */

/*
 * Read the counters of a queue, with those of the current transaction.  If the
 * error is not valid in the encoding of the database, as after a restore from
 * another one, a question mark replaces each byte that is not ASCII.
 */
void
counters_read(int32 queue_id, CounterRow *row)
{
	QueueError	error;
	char	   *copy;

	memset(row, 0, sizeof(CounterRow));
	row->extension = catalog_queue_oid();
	row->queue_id = queue_id;
	row->error_at = DT_NOBEGIN;

	/*
	 * Before the row, since an error stays here until it is in the row for
	 * good.
	 */
	if (error_state_get(row->extension, queue_id, &error))
	{
		row->error = error.message;
		row->error_at = error.error_at;
	}
	counters_table_read(row);
	for (int i = 0; i < count_records.n; i++)
	{
		const CountRecord *record = xact_record(&count_records, i);

		if (record->queue_id != row->queue_id ||
			record->extension != row->extension)
			continue;
		for (int j = 0; j < JOB_COUNTERS; j++)
			row->n[j] += record->n[j];
		if (record->error != NULL)
		{
			row->error = record->error;
			row->error_at = record->error_at;
		}
	}
	if (row->error == NULL)
		return;

	/* The original is to be written as it is. */
	copy = pstrdup(row->error);
	if (!pg_verifymbstr(copy, strlen(copy), true))
		for (char *c = copy; *c != '\0'; c++)
			if (IS_HIGHBIT_SET(*c))
				*c = '?';
	row->error = copy;
}

/*
 * Returns the ids of the queues for which counters_read() may find an error,
 * in ascending order.
 */
List *
counters_with_errors(void)
{
	Relation	rel = catalog_open(CATALOG_JOB_COUNTER, AccessShareLock, NULL);
	RowScan		scan;
	HeapTuple	tuple;
	List	   *ids = NIL;
	QueueError	error;
	int			from = 0;

	/* Before the rows, as in counters_read() */
	while (error_state_next(&from, &error))
		ids = lappend_int(ids, error.queue_id);
	row_scan_begin(&scan, rel, InvalidOid, NULL, 0);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		CHECK_FOR_INTERRUPTS();
		if (!heap_attisnull(tuple, Anum_job_counter_last_error, NULL))
			ids = lappend_int(ids,
							  ((CounterForm *) GETSTRUCT(tuple))->queue_id);
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
	for (int i = 0; i < count_records.n; i++)
	{
		const CountRecord *record = xact_record(&count_records, i);

		if (record->error != NULL)
			ids = lappend_int(ids, record->queue_id);
	}
	list_sort(ids, list_int_cmp);
	return ids;
}

/* --- Writing a row --- */

static Datum
form_error(const char *error)
{
	bytea	   *bytes = palloc0(VARHDRSZ + QUEUE_ERROR_LENGTH);

	SET_VARSIZE(bytes, VARHDRSZ + QUEUE_ERROR_LENGTH);
	memcpy(VARDATA(bytes), error, Min(strlen(error), QUEUE_ERROR_LENGTH));
	return PointerGetDatum(bytes);
}

/*
 * Returns a copy of the row of a queue, or NULL if there is none.  A
 * malformed row counts as none, because the worker writes the counts of all
 * queues, and the others must not fail.
 * The index then refuses another row.
 */
static HeapTuple
fetch_counter_row(Relation rel, Relation index, int32 queue_id)
{
	ScanKeyData key;

	ScanKeyInit(&key, Anum_job_counter_queue_id, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(queue_id));
	return row_fetch_valid(rel, RelationGetRelid(index), &key, 1);
}

/*
 * Add the counts in the queue's availability map to those of a row, and take
 * them out of the map if "take" is set.
 */
static void
add_counts_of_map(CounterRow *row, bool take)
{
	AvailabilityMap *map = shmem_find_map(row->extension, row->queue_id);

	if (map == NULL)
		return;
	for (int i = 0; i < JOB_COUNTERS; i++)
		row->n[i] += map->counts[i];
	if (take)
	{
		memset(map->counts, 0, sizeof(map->counts));
		shmem_clear_flag(map, MAP_COUNTED);
	}
	LWLockRelease(&map->lock);
}

/* Callback of row_act_in_place, with the page locked: must not fail. */
static void
add_counts_in_place(HeapTuple tuple, void *arg)
{
	CounterRow *add = (CounterRow *) arg;
	CounterForm *form = (CounterForm *) GETSTRUCT(tuple);
	bool		isnull;
	Datum		error;

	add_counts_of_map(add, true);
	for (int i = 0; i < JOB_COUNTERS; i++)
		form->n[i] += add->n[i];
	if (add->error == NULL || add->error_at < form->last_error_at)
		return;
	error = heap_getattr(tuple, Anum_job_counter_last_error, add->desc,
						 &isnull);
	Assert(!isnull);
	strncpy(VARDATA_ANY(DatumGetPointer(error)), add->error,
			VARSIZE_ANY_EXHDR(DatumGetPointer(error)));
	form->last_error_at = add->error_at;
}

/*
 * Insert the first row of a queue; the counts are added in place later.  Returns
 * whether nothing is left to be written.
 */
static bool
insert_counter_row(Relation rel, Relation index, CounterRow *add)
{
	Datum		values[Natts_job_counter] = {0};
	bool		isnull[Natts_job_counter] = {false};
	HeapTuple	tuple;
	CounterForm *form;
	QueueSummary queue;

	/* Counts of a queue that was dropped are discarded. */
	if (!queue_summary(add->queue_id, &queue))
	{
		add_counts_of_map(add, true);
		return true;
	}
	add->since = queue.created_at;
	isnull[Anum_job_counter_last_error - 1] = add->error == NULL;
	if (add->error != NULL)
		values[Anum_job_counter_last_error - 1] = form_error(add->error);
	tuple = heap_form_tuple(RelationGetDescr(rel), values, isnull);
	form = (CounterForm *) GETSTRUCT(tuple);
	form->queue_id = add->queue_id;

	/* Counts of the time before may have been lost with shared memory. */
	form->since = Max(add->since, shmem_started_at());
	form->last_error_at = add->error != NULL ? add->error_at : DT_NOBEGIN;
	(void) row_insert_unique(rel, index, tuple);
	return false;
}

/* Write a queue's first error by an update, and no counts. */
static void
write_first_error(Relation rel, HeapTuple tuple, const CounterRow *add)
{
	int			column = Anum_job_counter_last_error;
	Datum		error = form_error(add->error);
	bool		isnull = false;
	HeapTuple	new;

	/* So that the update does not wait */
	if (!row_lock(rel, &tuple->t_self, LockTupleNoKeyExclusive, LockWaitSkip))
		return;
	new = heap_modify_tuple_by_cols(tuple, RelationGetDescr(rel), 1, &column,
									&error, &isnull);
	((CounterForm *) GETSTRUCT(new))->last_error_at = add->error_at;
	(void) row_update(rel, &tuple->t_self, new);
}

/*
 * Add to the row of a queue, for the worker, without waiting.  Returns false
 * if the error, or the counts, are still to be written: to be called again in
 * a later transaction.
 */
static bool
counters_table_add(CounterRow *add)
{
	Relation	index;
	Relation	rel;
	HeapTuple	tuple;
	bool		done = false;

	/*
	 * We wait for neither lock.  While we have that of the queue, it is not
	 * dropped, so that no row of it is left behind.  (The worker has locked
	 * the extension.)
	 */
	if (!ConditionalLockRelationOid(catalog_oid(CATALOG_JOB_COUNTER),
									RowExclusiveLock) ||
		!queue_lock_try(add->queue_id))
		return false;
	rel = catalog_open_with_index(CATALOG_JOB_COUNTER, RowExclusiveLock,
								  &index);
	add->desc = RelationGetDescr(rel);

	/* An insertion needs a snapshot; it also keeps the row in its place. */
	PushActiveSnapshot(GetLatestSnapshot());
	tuple = fetch_counter_row(rel, index, add->queue_id);
	if (!HeapTupleIsValid(tuple))
		done = insert_counter_row(rel, index, add);
	else if (add->error != NULL &&
			 heap_attisnull(tuple, Anum_job_counter_last_error, NULL))
		write_first_error(rel, tuple, add);
	else
		done = row_act_in_place(rel, &tuple->t_self, true,
								add_counts_in_place, add);
	PopActiveSnapshot();
	index_close(index, NoLock);
	table_close(rel, NoLock);
	CommandCounterIncrement();
	return done;
}

/* --- Reading a row --- */

/* Callback of row_act_in_place, with the page locked. */
static void
read_counts_in_place(HeapTuple tuple, void *arg)
{
	CounterRow *row = (CounterRow *) arg;
	CounterForm *form = (CounterForm *) GETSTRUCT(tuple);
	bool		isnull;
	Datum		error = heap_getattr(tuple, Anum_job_counter_last_error,
									 row->desc, &isnull);

	memcpy(row->n, form->n, sizeof(row->n));
	row->since = form->since;
	add_counts_of_map(row, false);

	/* The caller may have found a later one in shared memory. */
	if (isnull || form->last_error_at < row->error_at)
		return;
	row->error_at = form->last_error_at;
	row->error = pnstrdup(VARDATA_ANY(DatumGetPointer(error)),
						  VARSIZE_ANY_EXHDR(DatumGetPointer(error)));
}

/*
 * Read the row of row->queue_id and the counts in its availability map, which
 * may exist before the row does.  row->error and error_at are replaced unless
 * they are later.
 */
static void
counters_table_read(CounterRow *row)
{
	Relation	index;
	Relation	rel = catalog_open_with_index(CATALOG_JOB_COUNTER,
											  AccessShareLock, &index);
	HeapTuple	tuple;
	QueueSummary queue;

	row->desc = RelationGetDescr(rel);

	/*
	 * The map is read before the row is looked for: counts leave the map only
	 * once the row exists.
	 */
	add_counts_of_map(row, false);

	/* The snapshot keeps the row in its place. */
	PushActiveSnapshot(GetLatestSnapshot());
	tuple = fetch_counter_row(rel, index, row->queue_id);
	if (!HeapTupleIsValid(tuple) &&
		queue_summary(row->queue_id, &queue))
		row->since = Max(queue.created_at, shmem_started_at());

	/* If the row was updated meanwhile, read the new version. */
	while (HeapTupleIsValid(tuple) &&
		   !row_act_in_place(rel, &tuple->t_self, false,
							 read_counts_in_place, row))
	{
		CHECK_FOR_INTERRUPTS();
		tuple = fetch_counter_row(rel, index, row->queue_id);
	}
	PopActiveSnapshot();
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
}
