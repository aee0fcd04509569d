/*-------------------------------------------------------------------------
 *
 * batches.c
 *	  Batches of messages: their rows, members, and what waits for them.
 *
 * NOTES
 *	  A batch has a row in queue_data.batch.  Its members are messages whose
 *	  column "batch" has its id; indexes that have no other entries find them.
 *	  When a message is finished, its row is deleted, and that is all that is
 *	  written: how many members were completed is what is left of their number
 *	  when those that are unfinished and those that have failed are subtracted.
 *
 *	  Nothing is counted in one place, for which transactions would wait.  A
 *	  transaction that adds members, or in which members fail, inserts one row
 *	  into queue_data.batch_part before it commits.
 *
 *	  A transaction that adds members locks the batch's row FOR SHARE.  The
 *	  batch finishes with an update of that row (commands/batch_end.c).  So it
 *	  cannot finish while members are being added that are not visible yet;
 *	  and a transaction that adds one later finds that it has finished.  What
 *	  waits for a batch is pushed with that lock, too.
 *
 *	  When a transaction has ended, it reports to the worker
 *	  (shmem/batch_state.c).  That is why each end of a member is recorded
 *	  here.  When a transaction is prepared, its reports come too early: the
 *	  worker makes them once more at its end (prepared.c).
 *
 * src/storage/batches.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "shmem/batch_state.h"
#include "shmem/database_state.h"
#include "storage/batches.h"
#include "storage/message_row.h"
#include "storage/row.h"
#include "util/compat.h"
#include "util/xact.h"

/* How many of the last records are searched for one to add to */
#define LOOK_BACK	8

#define PARTS_AT_ONCE	1000	/* removed in a transaction */

static void read_batch_row(Relation rel, HeapTuple tuple, Batch *batch);
static BatchRecord *batch_record(int64 id);
static void write_parts(XactEvent event);
static void report_batches(XactEvent event);
static void roll_back_batches(int first);
static bool note_batch(MessageTable *table, TupleTableSlot *slot, void *arg);
static bool count_message(MessageTable *table, TupleTableSlot *slot,
						  void *arg);

XactList	batch_records = {
	.record_size = sizeof(BatchRecord),
	.before_end = write_parts,
	.end = report_batches,
	.roll_back = roll_back_batches
};

/* --- Rows --- */

/* Read a row of queue_data.batch. */
static void
read_batch_row(Relation rel, HeapTuple tuple, Batch *batch)
{
	Datum		values[Natts_batch];
	bool		isnull[Natts_batch];

	heap_deform_tuple(tuple, RelationGetDescr(rel), values, isnull);
#define VALUE(attribute) values[Anum_batch_##attribute - 1]
#define IS_NULL(attribute) isnull[Anum_batch_##attribute - 1]
	batch->id = DatumGetInt64(VALUE(id));
	batch->owner = DatumGetObjectId(VALUE(owner));
	batch->created_at = DatumGetTimestampTz(VALUE(created_at));
	batch->closed_at = IS_NULL(closed_at) ? DT_NOEND :
		DatumGetTimestampTz(VALUE(closed_at));
	batch->finished_at = IS_NULL(finished_at) ? DT_NOEND :
		DatumGetTimestampTz(VALUE(finished_at));
	batch->members = DatumGetInt64(VALUE(members));
	batch->completed = DatumGetInt64(VALUE(completed));
	batch->failed = DatumGetInt64(VALUE(failed));
	batch->shard = IS_NULL(shard) ? NO_SHARD : DatumGetInt16(VALUE(shard));
	batch->name = IS_NULL(name) ? NULL : TextDatumGetCString(VALUE(name));
	batch->tuple = tuple;
#undef VALUE
#undef IS_NULL
}

/*
 * Get the next batch with an id above this one, as the latest snapshot shows
 * it.  Returns false if there is none.
 */
bool
batches_next(int64 id, Batch *batch)
{
	Oid			index;
	Relation	rel = catalog_open(CATALOG_BATCH, AccessShareLock, &index);
	ScanKeyData key;
	RowScan		scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_batch_id, BTGreaterStrategyNumber, F_INT8GT,
				Int64GetDatum(id));
	row_scan_begin(&scan, rel, index, &key, 1);
	tuple = row_scan_next(&scan);
	if (HeapTupleIsValid(tuple))
		read_batch_row(rel, heap_copytuple(tuple), batch);
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

/* Get a batch.  Returns false, and sets nothing, if it does not exist. */
bool
batches_fetch(int64 id, Batch *batch)
{
	Batch		next;

	if (id <= 0 || !batches_next(id - 1, &next) || next.id != id)
		return false;
	*batch = next;
	return true;
}

/*
 * Write the row of a batch: of a new one, without a tuple, or anew of one that
 * the caller has locked.
 */
void
batches_write(const Batch *batch)
{
	Relation	rel = catalog_open(CATALOG_BATCH, RowExclusiveLock, NULL);
	Datum		values[Natts_batch];
	bool		isnull[Natts_batch] = {false};
	HeapTuple	tuple;

#define SET(attribute, value) values[Anum_batch_##attribute - 1] = (value)
#define SET_NULL(attribute, value) isnull[Anum_batch_##attribute - 1] = (value)
	SET(id, Int64GetDatum(batch->id));
	SET(owner, ObjectIdGetDatum(batch->owner));
	SET(created_at, TimestampTzGetDatum(batch->created_at));
	SET(closed_at, TimestampTzGetDatum(batch->closed_at));
	SET_NULL(closed_at, batch->closed_at == DT_NOEND);
	SET(finished_at, TimestampTzGetDatum(batch->finished_at));
	SET_NULL(finished_at, batch->finished_at == DT_NOEND);
	SET(members, Int64GetDatum(batch->members));
	SET(completed, Int64GetDatum(batch->completed));
	SET(failed, Int64GetDatum(batch->failed));
	SET(shard, Int16GetDatum(batch->shard));
	SET_NULL(shard, batch->shard == NO_SHARD);
	SET(name, batch->name == NULL ? (Datum) 0 :
		CStringGetTextDatum(batch->name));
	SET_NULL(name, batch->name == NULL);
#undef SET
#undef SET_NULL
	tuple = heap_form_tuple(RelationGetDescr(rel), values, isnull);
	if (batch->tuple == NULL)
		CatalogTupleInsert(rel, tuple);
	else if (!row_update(rel, &batch->tuple->t_self, tuple))
		elog(ERROR, "could not update locked batch %lld",
			 (long long) batch->id);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

/*
 * Lock the row of a batch.  Returns false if it was changed since it was
 * fetched, or is locked and "wait" is LockWaitSkip.
 */
bool
batches_lock(const Batch *batch, LockTupleMode mode, LockWaitPolicy wait)
{
	Relation	rel = catalog_open(CATALOG_BATCH, RowExclusiveLock, NULL);
	bool		result = row_lock(rel, &batch->tuple->t_self, mode, wait);

	table_close(rel, NoLock);
	return result;
}

/*
 * Read the parts of a batch, as the active snapshot shows them, and add them
 * up: how many members were added, and how many of them have failed.  What is
 * left of them has been completed, unless it is unfinished.  Or, if "remove"
 * is set, remove some of the parts.  Returns whether there are others.
 */
bool
batches_scan_parts(Batch *batch, bool remove)
{
	Oid			index;
	Relation	rel = catalog_open(CATALOG_BATCH_PART, remove ?
								   RowExclusiveLock : AccessShareLock, &index);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	int64		members = 0;
	int64		failed = 0;
	int			nremoved = 0;

	ScanKeyInit(&key, Anum_batch_part_batch, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(batch->id));
	scan = systable_beginscan(rel, index, true, GetActiveSnapshot(), 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		CHECK_FOR_INTERRUPTS();
		if (nremoved == PARTS_AT_ONCE)
			break;
		if (remove)
		{
			simple_heap_delete(rel, &tuple->t_self);
			nremoved++;
		}
		else if (row_check(WARNING, rel, tuple))
		{
			members += DatumGetInt64(row_getattr(rel, tuple,
												 Anum_batch_part_members));
			failed += DatumGetInt64(row_getattr(rel, tuple,
												Anum_batch_part_failed));
		}
	}
	systable_endscan(scan);
	table_close(rel, NoLock);
	if (!remove)
	{
		batch->members = members;
		batch->failed = failed;
		batch->completed = members - failed;
	}
	return HeapTupleIsValid(tuple);
}

/* --- What this transaction does --- */

/* Returns the record of the current subtransaction for a batch. */
static BatchRecord *
batch_record(int64 id)
{
	int			level = GetCurrentTransactionNestLevel();
	BatchRecord *record;

	for (int i = batch_records.n - 1;
		 i >= Max(0, batch_records.n - LOOK_BACK); i--)
	{
		record = xact_record(&batch_records, i);
		if (record->batch == id && record->xact.nest_level == level)
			return record;
	}
	database_join();
	record = xact_add(&batch_records);
	record->batch = id;
	return record;
}

/*
 * The batch was created or closed, so that it may finish.  NO_BATCH: other SQL
 * than the extension's functions has written rows.
 */
void
batches_record_changed(int64 id)
{
	BatchRecord *record = batch_record(id);

	record->last = BATCH_NOT_PROBED;
	if (record->first == 0)
		record->first = record->last;
}

/*
 * Members were added (0: not yet, but the row was locked, which may keep the
 * batch from finishing).
 */
void
batches_record_added(int64 id, int64 n)
{
	batch_record(id)->members += n;
}

/* A message was deleted for good, and if it fails, its batch counts that. */
void
batches_record_end(MessageTable *table, HeapTuple tuple, bool fails)
{
	int64		member = message_row_id(tuple);
	BatchRecord *record;

	/* The row of most messages ends before the column. */
	if (message_row_is_null(tuple, Anum_message_batch))
		return;
	record = batch_record(DatumGetInt64(row_getattr(table->heap, tuple,
													Anum_message_batch)));
	record->first = record->first == 0 ? member : Min(record->first, member);
	record->last = Max(record->last, member);
	record->failed += fails;
}

/* Callback before commit or prepare; also called before parts are read. */
static void
write_parts(XactEvent event)
{
	Relation	rel = NULL;

	/*
	 * If the extension was dropped, the schema with its tables went with it.
	 */
	if (batch_records.n == 0 ||
		!OidIsValid(get_namespace_oid(CATALOG_SCHEMA, true)))
		return;
	for (int i = 0; i < batch_records.n; i++)
	{
		BatchRecord *record = xact_record(&batch_records, i);
		Datum		values[Natts_batch_part];
		bool		isnull[Natts_batch_part] = {false};

		if (record->members == 0 && record->failed == 0)
			continue;
		if (rel == NULL)
			rel = catalog_open(CATALOG_BATCH_PART, RowExclusiveLock, NULL);
		values[Anum_batch_part_batch - 1] = Int64GetDatum(record->batch);
		values[Anum_batch_part_members - 1] = Int64GetDatum(record->members);
		values[Anum_batch_part_failed - 1] = Int64GetDatum(record->failed);
		CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), values,
												isnull));
		record->members = record->failed = 0;
	}
	if (rel != NULL)
		table_close(rel, NoLock);
}

/*
 * Report what a transaction that has ended, maybe a prepared one, has done with
 * a batch.  After a rollback that is nothing, but the locks that it had are
 * gone.
 */
void
batches_report(const BatchRecord *record, bool commit)
{
	if (record->batch != NO_BATCH)
		batch_state_report(record->batch, commit ? record->first : 0,
						   commit ? record->last : 0);
	else if (commit && record->first != 0)
		batch_state_probe_all();
}

/* Callback after commit, prepare or abort. */
static void
report_batches(XactEvent event)
{
	for (int i = 0; i < batch_records.n; i++)
		batches_report(xact_record(&batch_records, i),
					   event != XACT_EVENT_ABORT);
}

/*
 * The subtransaction with the records from "first" on is rolled back.  They
 * stay, without what it has done: the locks that it had are gone.
 */
static void
roll_back_batches(int first)
{
	for (int i = first; i < batch_records.n; i++)
	{
		BatchRecord *record = xact_record(&batch_records, i);

		record->first = record->last = 0;
		record->members = record->failed = 0;
	}
}

/* --- Index entries --- */

/*
 * Insert the entries of messages that were just written into the indexes that
 * only have the messages of batches.
 */
void
batches_insert_entries(MessageTable *table, HeapTuple *tuples,
					   TupleTableSlot **slots, int n)
{
	Relation	indexes[2] = {NULL, NULL};	/* of members, of what waits */

	for (int i = 0; i < n; i++)
	{
		/* The row of most messages ends before the columns. */
		if (HeapTupleHeaderGetNatts(tuples[i]->t_data) < Anum_message_batch)
			continue;
		for (int waiting = 0; waiting <= segment_is_delayed(table->segment);
			 waiting++)
		{
			if (message_row_is_null(tuples[i], waiting ?
									Anum_message_after_batch :
									Anum_message_batch))
				continue;
			if (indexes[waiting] == NULL)
				indexes[waiting] =
					index_open(catalog_batch_index(table->segment, waiting),
							   RowExclusiveLock);
			row_insert_index_entry(table->heap, indexes[waiting], slots[i]);
		}
	}
	for (int waiting = 0; waiting <= 1; waiting++)
		if (indexes[waiting] != NULL)
			index_close(indexes[waiting], NoLock);
}

/* --- Scans --- */

/*
 * Call the callback for messages of a batch, as the active snapshot shows
 * them: for its members with ids up to "bound", in each segment by descending
 * ids; or, if "which" says so, by ascending ids for those with ids above it
 * that wait for the batch, or for all batches above that.  If it returns
 * false, the scan goes on with the next segment.
 *
 * The caller has pushed the snapshot with this token.  Returns false if that
 * has become stale, or, unless "wait" is set, if a segment is locked.
 */
bool
batches_scan(SnapshotToken token, int64 id, BatchMessages which, int64 bound,
			 LOCKMODE lockmode, bool wait, BatchCallback callback, void *arg)
{
	bool		waiting = which != BATCH_MEMBERS;
	ScanKeyData keys[2];

	if (which == BATCH_WAITING_ABOVE)
		ScanKeyInit(&keys[0], 1, BTGreaterStrategyNumber, F_INT8GT,
					Int64GetDatum(id));
	else
		ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ,
					Int64GetDatum(id));
	if (waiting)
		ScanKeyInit(&keys[1], 2, BTGreaterStrategyNumber, F_INT8GT,
					Int64GetDatum(bound));
	else
		ScanKeyInit(&keys[1], 2, BTLessEqualStrategyNumber, F_INT8LE,
					Int64GetDatum(bound));

	for (int segment = waiting ? FIRST_DELAYED_SEGMENT : 0;
		 segment < ALL_SEGMENTS; segment++)
	{
		MessageTable table;
		Relation	index;
		TupleTableSlot *slot;
		IndexScanDesc scan;
		bool		found = false;

		if (!segment_may_hold(segment, 0, PG_INT64_MAX))
			continue;
		if (wait)
			message_table_open(&table, segment, lockmode);
		else if (!message_table_try_open(&table, segment, lockmode))
			return false;
		index = index_open(catalog_batch_index(segment, waiting),
						   AccessShareLock);
		slot = table_slot_create(table.heap, NULL);
		scan = compat_index_beginscan(table.heap, index, GetActiveSnapshot(),
									  keys, lengthof(keys));
		while (index_getnext_slot(scan, waiting ? ForwardScanDirection :
								  BackwardScanDirection, slot))
		{
			CHECK_FOR_INTERRUPTS();
			found = true;
			(void) message_row_check(ERROR, table.heap, row_tuple(slot));
			if (!callback(&table, slot, arg))
				break;
		}
		index_endscan(scan);
		ExecDropSingleTupleTableSlot(slot);
		index_close(index, AccessShareLock);
		message_table_close(&table, found && lockmode != AccessShareLock);
	}
	return !segment_snapshot_is_stale(token);
}

/* Callback of batches_scan: the lowest batch that is waited for */
static bool
note_batch(MessageTable *table, TupleTableSlot *slot, void *arg)
{
	int64	   *lowest = arg;
	bool		isnull;
	Datum		batch = slot_getattr(slot, Anum_message_after_batch, &isnull);

	*lowest = Min(*lowest, DatumGetInt64(batch));
	return false;
}

/*
 * Returns the batch with the lowest id above this one for which messages wait;
 * PG_INT64_MAX if there is none.  If a segment is locked, the caller has to
 * look again later.
 */
int64
batches_next_waiting(int64 id)
{
	int64		result = PG_INT64_MAX;

	(void) batches_scan(segment_push_snapshot(), id, BATCH_WAITING_ABOVE, 0,
						AccessShareLock, false, note_batch, &result);
	PopActiveSnapshot();
	return result;
}

/* Callback of batches_scan: count messages. */
static bool
count_message(MessageTable *table, TupleTableSlot *slot, void *arg)
{
	(*(int64 *) arg)++;
	return true;
}

/*
 * Count the members of a batch that has not finished, and what waits for it,
 * as of one moment.
 */
void
batches_count(Batch *batch, int64 *unfinished, int64 *waiting)
{
	/* What this transaction has done counts, too. */
	write_parts(XACT_EVENT_PRE_COMMIT);
	CommandCounterIncrement();
	for (;;)
	{
		SnapshotToken token = segment_push_snapshot();

		*unfinished = *waiting = 0;
		if (batches_scan(token, batch->id, BATCH_MEMBERS, PG_INT64_MAX,
						 AccessShareLock, true, count_message, unfinished) &&
			batches_scan(token, batch->id, BATCH_WAITING, 0, AccessShareLock,
						 true, count_message, waiting))
			break;
		PopActiveSnapshot();
	}
	(void) batches_scan_parts(batch, false);
	batch->completed -= *unfinished;
	PopActiveSnapshot();
}
