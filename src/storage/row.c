/*-------------------------------------------------------------------------
 *
 * row.c
 *	  Rows of the extension's tables: find, lock, insert, update and delete.
 *
 * NOTES
 *	  These functions use the table access method directly, not the executor.
 *	  The callers have checked privileges and read-only states; nothing here
 *	  runs triggers or checks constraints (relations.c refuses tables that
 *	  have triggers of users).
 *
 *	  Keys have the column numbers of the table, also those of an index scan,
 *	  and are not changed.
 *
 *	  Functions that read or write one row take the latest snapshot themselves,
 *	  whatever the isolation level of the transaction.  Functions that return
 *	  a row return a copy in the current memory context, with t_self set.
 *
 *	  After a change, the caller calls CommandCounterIncrement() before
 *	  anything reads the table again.
 *
 * src/storage/row.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/generic_xlog.h"
#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "catalog/message_table.h"
#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "map/availability_reserve.h"
#include "storage/row.h"
#include "util/compat.h"

/* Why row_find_unique() has to wait: a transaction that is in progress */
typedef struct Conflict
{
	TransactionId xid;			/* InvalidTransactionId: none */
	uint32		token;			/* of its speculative insertion, or 0 */
	ItemPointerData tid;
} Conflict;

static TupleTableSlot *make_slot(Relation rel, HeapTuple tuple);
static bool insert_index_entry(Relation rel, Relation index,
							   TupleTableSlot *slot, IndexUniqueCheck check);
static void make_index_keys(Relation index, ScanKey keys, int nkeys,
							ScanKey index_keys);
static HeapTuple find_live_row(Relation rel, Relation index, ScanKey keys,
							   int nkeys, TupleTableSlot *slot,
							   Conflict *conflict, int64 *newest);
static bool was_committed(HeapTuple tuple);
static bool is_last_version(HeapTuple tuple, Buffer buffer, bool write);

/* --- Slots and index entries --- */

/* Returns the row in a slot that was filled from a table; not a copy. */
HeapTuple
row_tuple(TupleTableSlot *slot)
{
	bool		should_free;
	HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, &should_free);

	Assert(!should_free);
	return tuple;
}

/* Returns a copy of a column of a varlena type, or NULL if it is null. */
void *
row_copy_column(TupleDesc desc, HeapTuple tuple, int column)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, column, desc, &isnull);

	return isnull ? NULL : PG_DETOAST_DATUM_COPY(value);
}

/* Make a slot that holds a tuple to be written. */
static TupleTableSlot *
make_slot(Relation rel, HeapTuple tuple)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
													&TTSOpsHeapTuple);

	ExecStoreHeapTuple(tuple, slot, false);
	slot->tts_tableOid = RelationGetRelid(rel);
	return slot;
}

/*
 * Insert the entry for the row in the slot into one index over plain columns.
 * With UNIQUE_CHECK_PARTIAL, returns false if there may be a conflicting
 * entry.
 */
static bool
insert_index_entry(Relation rel, Relation index, TupleTableSlot *slot,
				   IndexUniqueCheck check)
{
	/* The btree access method does not read it, so one serves all indexes. */
	static IndexInfo empty_info = {.type = T_IndexInfo};
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	for (int i = 0; i < IndexRelationGetNumberOfAttributes(index); i++)
		values[i] = slot_getattr(slot, index->rd_index->indkey.values[i],
								 &isnull[i]);
	return index_insert(index, values, isnull, &slot->tts_tid, rel, check,
						false, &empty_info);
}

/* Insert the entry for the row in the slot into an index. */
void
row_insert_index_entry(Relation rel, Relation index, TupleTableSlot *slot)
{
	(void) insert_index_entry(rel, index, slot, index->rd_index->indisunique ?
							  UNIQUE_CHECK_YES : UNIQUE_CHECK_NO);
}

/*
 * Insert the entries for the row in the slot into all indexes, or into all but
 * one.
 */
void
row_insert_index_entries(Relation rel, const IndexList *indexes,
						 TupleTableSlot *slot, Relation except)
{
	for (int i = 0; i < indexes->n; i++)
	{
		Relation	index = indexes->relations[i];
		bool		isnull = false;

		/* A partial one leaves out the rows whose first column is null. */
		if (indexes->has_partial &&
			RelationGetIndexPredicate(index) != NIL)
			(void) slot_getattr(slot, index->rd_index->indkey.values[0],
								&isnull);
		if (!isnull && (except == NULL ||
						RelationGetRelid(index) != RelationGetRelid(except)))
			row_insert_index_entry(rel, index, slot);
	}
}

/* --- Reading --- */

/*
 * Begin to scan the rows with these keys, in the order of an index
 * (InvalidOid: of the table).
 */
void
row_scan_begin(RowScan *scan, Relation rel, Oid index, ScanKey keys,
			   int nkeys)
{
	ScanKeyData copies[INDEX_MAX_KEYS];

	/* Before 18 systable_beginscan() changes the keys that it is given. */
	Assert(nkeys <= INDEX_MAX_KEYS);
	for (int i = 0; i < nkeys; i++)
		copies[i] = keys[i];
	scan->snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan->scan = systable_beginscan(rel, index, OidIsValid(index),
									scan->snapshot, nkeys, copies);
}

/*
 * Restrict a scan in the order of the table, which has read nothing yet, to
 * some of its pages.
 */
void
row_scan_set_pages(RowScan *scan, BlockNumber first, BlockNumber n)
{
	Assert(scan->scan->irel == NULL);
	heap_setscanlimits(scan->scan->scan, first, n);
}

/*
 * Returns the next row, valid until the following call; NULL at the end.
 * Malformed rows are left out with a warning, because one of them must not
 * stop what is done for all others.
 */
HeapTuple
row_scan_next(RowScan *scan)
{
	HeapTuple	tuple;

	do
		tuple = systable_getnext(scan->scan);
	while (HeapTupleIsValid(tuple) &&
		   !row_check(WARNING, scan->scan->heap_rel, tuple));
	return tuple;
}

void
row_scan_end(RowScan *scan)
{
	systable_endscan(scan->scan);
	UnregisterSnapshot(scan->snapshot);
}

/*
 * Returns a copy of a row.  Values in the TOAST table are fetched now, since
 * that takes a snapshot, and the caller may have none.
 */
static HeapTuple
copy_whole_row(Relation rel, HeapTuple tuple)
{
	return HeapTupleHasExternal(tuple) ?
		toast_flatten_tuple(tuple, RelationGetDescr(rel)) :
		heap_copytuple(tuple);
}

/*
 * Returns a copy of the first row with these keys, or NULL if there is none.
 * Raises an error if the row is malformed.
 */
HeapTuple
row_fetch(Relation rel, Oid index, ScanKey keys, int nkeys)
{
	RowScan		scan;
	HeapTuple	tuple;

	row_scan_begin(&scan, rel, index, keys, nkeys);
	tuple = systable_getnext(scan.scan);
	if (HeapTupleIsValid(tuple) && row_check(ERROR, rel, tuple))
		tuple = copy_whole_row(rel, tuple);
	row_scan_end(&scan);
	return tuple;
}

/*
 * Returns a copy of the first row with these keys that is not malformed, or
 * NULL if there is none.  Warns of malformed ones; for code that must go on
 * with other rows.
 */
HeapTuple
row_fetch_valid(Relation rel, Oid index, ScanKey keys, int nkeys)
{
	RowScan		scan;
	HeapTuple	tuple;

	row_scan_begin(&scan, rel, index, keys, nkeys);
	tuple = row_scan_next(&scan);
	if (HeapTupleIsValid(tuple))
		tuple = copy_whole_row(rel, tuple);
	row_scan_end(&scan);
	return tuple;
}

/*
 * As row_fetch(), for an index with a version (row_find_unique), and with
 * this snapshot; NULL: the latest one.
 */
HeapTuple
row_fetch_newest(Relation rel, Relation index, ScanKey keys, int nkeys,
				 Snapshot snapshot)
{
	ScanKeyData copies[INDEX_MAX_KEYS];
	SysScanDesc scan;
	HeapTuple	tuple;

	memcpy(copies, keys, nkeys * sizeof(ScanKeyData));
	snapshot = RegisterSnapshot(snapshot ? snapshot : GetLatestSnapshot());
	scan = systable_beginscan_ordered(rel, index, snapshot, nkeys, copies);
	tuple = systable_getnext_ordered(scan, BackwardScanDirection);
	if (HeapTupleIsValid(tuple) && row_check(ERROR, rel, tuple))
		tuple = copy_whole_row(rel, tuple);
	systable_endscan_ordered(scan);
	UnregisterSnapshot(snapshot);
	return tuple;
}

/* Copy the keys, with the column numbers of the index. */
static void
make_index_keys(Relation index, ScanKey keys, int nkeys, ScanKey index_keys)
{
	for (int i = 0; i < nkeys; i++)
	{
		int			column = 0;

		while (index->rd_index->indkey.values[column] != keys[i].sk_attno)
			if (++column == IndexRelationGetNumberOfAttributes(index))
				elog(ERROR, "column %d is not in index \"%s\"",
					 keys[i].sk_attno, RelationGetRelationName(index));
		index_keys[i] = keys[i];
		index_keys[i].sk_attno = column + 1;
	}
}

/* Returns whether a row was not inserted by a transaction that has failed. */
static bool
was_committed(HeapTuple tuple)
{
	TransactionId xmin = HeapTupleHeaderGetXmin(tuple->t_data);

	return HeapTupleHeaderXminCommitted(tuple->t_data) ||
		TransactionIdIsCurrentTransactionId(xmin) ||
		TransactionIdIsInProgress(xmin) || TransactionIdDidCommit(xmin);
}

/*
 * Find the row with these index keys, unless another transaction is inserting
 * or deleting one.  Returns a copy; NULL if there is none, or if a
 * transaction is doing so: then *conflict says which.
 *
 * newest: NULL, or the index has one column more, the version of the row.  Then
 * we read the newest version first, and none that is older than a deleted one,
 * because an old snapshot may keep any number of these.
 */
static HeapTuple
find_live_row(Relation rel, Relation index, ScanKey keys, int nkeys,
			  TupleTableSlot *slot, Conflict *conflict, int64 *newest)
{
	SnapshotData dirty;
	IndexScanDesc scan;
	HeapTuple	found = NULL;

	InitDirtySnapshot(dirty);
	conflict->xid = InvalidTransactionId;
	if (newest != NULL)
		*newest = 0;
	scan = compat_index_beginscan(rel, index, SnapshotAny, keys, nkeys);
	while (index_getnext_slot(scan, BackwardScanDirection, slot))
	{
		HeapTuple	tuple = row_tuple(slot);
		bool		visible = table_tuple_satisfies_snapshot(rel, slot, &dirty);
		bool		isnull;

		/* A transaction that has failed leaves versions, too. */
		if (!visible && (newest == NULL || !was_committed(tuple)))
			continue;
		if (newest != NULL && *newest == 0)
			*newest = DatumGetInt64(slot_getattr(slot,
												 index->rd_index->indkey.values[nkeys],
												 &isnull));

		/*
		 * A transaction in progress has inserted this version, or has deleted
		 * or replaced it.
		 */
		conflict->tid = slot->tts_tid;
		conflict->token = dirty.speculativeToken;
		if (visible)
			conflict->xid = TransactionIdIsValid(dirty.xmin) ? dirty.xmin :
				dirty.xmax;
		if (visible && !TransactionIdIsValid(conflict->xid) &&
			row_check(ERROR, rel, tuple))
			found = heap_copytuple(tuple);

		/* An update has a newer version; it may have come after the scan. */
		if (visible ||
			ItemPointerEquals(&tuple->t_self, &tuple->t_data->t_ctid))
			break;
	}
	index_endscan(scan);
	return found;
}

/*
 * Find the row with these keys in a unique index.  Waits for transactions
 * that are inserting or deleting one; or if "locked" is not NULL, sets that
 * instead.  Returns a copy of a row that is committed or this transaction's
 * own; NULL if there is none.
 *
 * newest: NULL, or the index has one column more, after these keys: a number
 * above 0 that is greater in a later version of the row, and in a later row
 * with the same keys.  *newest is the greatest one that was found, also of a
 * row that was deleted, or 0.  If there is no row, one may have been updated
 * at the same time, unless the next call finds the same number.
 */
HeapTuple
row_find_unique(Relation rel, Relation index, ScanKey keys, int nkeys,
				bool *locked, int64 *newest)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ScanKeyData index_keys[INDEX_MAX_KEYS];
	HeapTuple	tuple;

	make_index_keys(index, keys, nkeys, index_keys);
	for (;;)
	{
		Conflict	conflict;

		CHECK_FOR_INTERRUPTS();
		tuple = find_live_row(rel, index, index_keys, nkeys, slot, &conflict,
							  newest);
		if (HeapTupleIsValid(tuple) || !TransactionIdIsValid(conflict.xid))
			break;
		if (locked != NULL)
		{
			*locked = true;
			break;
		}

		/* Do not keep the page pinned while we wait. */
		ExecClearTuple(slot);

		/* A speculative insertion ends before its transaction does. */
		if (conflict.token != 0)
			SpeculativeInsertionWait(conflict.xid, conflict.token);
		else
			XactLockTableWait(conflict.xid, rel, &conflict.tid,
							  XLTW_InsertIndexUnique);
	}
	ExecDropSingleTupleTableSlot(slot);
	return tuple;
}

/* --- Writing --- */

/*
 * Returns whether a row was locked, updated or deleted.  Returns false if
 * another transaction has locked or changed it.
 */
bool
row_succeeded(TM_Result result)
{
	switch (result)
	{
		case TM_Ok:
			return true;
		case TM_WouldBlock:
		case TM_BeingModified:
		case TM_Updated:
		case TM_Deleted:		/* a message may have been moved, too */
			return false;
		case TM_SelfModified:
		case TM_Invisible:
		default:
			elog(ERROR, "unexpected result of locking or changing a row: %d",
				 (int) result);
	}
}

/*
 * Lock a row until the end of the transaction.  Returns false if it was
 * updated or deleted since it was read, or is locked and "wait" is
 * LockWaitSkip.
 */
bool
row_lock(Relation rel, ItemPointer tid, LockTupleMode mode,
		 LockWaitPolicy wait)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TM_FailureData failure;
	TM_Result	result;

	Assert(wait != LockWaitBlock || availability_may_wait());
	PushActiveSnapshot(GetLatestSnapshot());
	result = table_tuple_lock(rel, tid, GetActiveSnapshot(), slot,
							  GetCurrentCommandId(true), mode, wait, 0,
							  &failure);
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
	return result != TM_SelfModified && row_succeeded(result);
}

/*
 * Replace a row.  Waits for a transaction that has locked it.  Returns false
 * if it was updated or deleted since it was read.
 */
bool
row_update(Relation rel, ItemPointer tid, HeapTuple tuple)
{
	TupleTableSlot *slot = make_slot(rel, tuple);
	TM_FailureData failure;
	bool		new_entries = false;
	TM_Result	result;

	/* Storing a large value outside of the row requires an active snapshot. */
	PushActiveSnapshot(GetLatestSnapshot());
	result = compat_table_tuple_update(rel, tid, slot,
									   GetCurrentCommandId(true),
									   GetActiveSnapshot(), &failure,
									   &new_entries);
	if (result == TM_Ok && new_entries)
	{
		IndexList	indexes;

		index_list_open(rel, NO_SEGMENT, &indexes);
		row_insert_index_entries(rel, &indexes, slot, NULL);
		index_list_close(&indexes);
	}
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
	return result != TM_SelfModified && row_succeeded(result);
}

/*
 * Set n columns of a row that no other transaction should be changing, and
 * count the command up.  old: the row, as row_fetch() has returned it.
 * isnull: NULL if no value is null.
 */
void
row_set_columns(Relation rel, HeapTuple old, int n, int *columns,
				Datum *values)
{
	bool	   *isnull = palloc0(n * sizeof(bool));
	HeapTuple	new;

	if (!HeapTupleIsValid(old))
		elog(ERROR, "table \"%s\" is empty", RelationGetRelationName(rel));
	new = heap_modify_tuple_by_cols(old, RelationGetDescr(rel), n, columns,
									values, isnull);
	if (!row_update(rel, &old->t_self, new))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("a row of table \"%s\" was changed by another transaction",
						RelationGetRelationName(rel))));
	CommandCounterIncrement();
}

/* Insert a row.  The caller has an active snapshot. */
void
row_insert(Relation rel, HeapTuple tuple)
{
	TupleTableSlot *slot = make_slot(rel, tuple);
	IndexList	indexes;

	Assert(ActiveSnapshotSet());
	index_list_open(rel, NO_SEGMENT, &indexes);
	table_tuple_insert(rel, slot, GetCurrentCommandId(true), 0, NULL);
	row_insert_index_entries(rel, &indexes, slot, NULL);
	index_list_close(&indexes);
	ExecDropSingleTupleTableSlot(slot);
}

/*
 * Insert a row unless there is one with the same key of the arbiter index,
 * while other sessions do the same.  Returns false if there is another row,
 * or was one a moment ago.
 *
 * This is what INSERT ... ON CONFLICT DO NOTHING does (execIndexing.c): the
 * row is inserted speculatively, and removed again if its index entry turns
 * out not to be the first.
 */
bool
row_insert_unique(Relation rel, Relation arbiter, HeapTuple tuple)
{
	TupleTableSlot *slot = make_slot(rel, tuple);
	TransactionId xid = GetCurrentTransactionId();
	IndexList	indexes;
	uint32		token;
	bool		first;

	index_list_open(rel, NO_SEGMENT, &indexes);
	token = SpeculativeInsertionLockAcquire(xid);
	table_tuple_insert_speculative(rel, slot, GetCurrentCommandId(true), 0,
								   NULL, token);
	first = insert_index_entry(rel, arbiter, slot, UNIQUE_CHECK_PARTIAL);
	table_tuple_complete_speculative(rel, slot, token, first);
	SpeculativeInsertionLockRelease(xid);

	/* Otherwise the row is gone again. */
	if (first)
		row_insert_index_entries(rel, &indexes, slot, arbiter);
	index_list_close(&indexes);
	ExecDropSingleTupleTableSlot(slot);
	return first;
}

/*
 * Delete all rows of a queue from a table; the first column of its index is
 * the queue's id.
 */
void
row_delete_of_queue(CatalogRelation table, int32 queue_id)
{
	Relation	index;
	Relation	rel = catalog_open_with_index(table, RowExclusiveLock, &index);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ScanKeyData key;
	IndexScanDesc scan;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	PushActiveSnapshot(GetLatestSnapshot());
	scan = compat_index_beginscan(rel, index, GetActiveSnapshot(), &key, 1);
	while (index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();

		/* The worker, which does not lock the queue, may delete it as well. */
		if (row_lock(rel, &slot->tts_tid, LockTupleExclusive, LockWaitBlock))
			simple_heap_delete(rel, &slot->tts_tid);
	}
	index_endscan(scan);
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	table_close(rel, NoLock);
}

/* --- Reading and writing a row on its page --- */

/* Let the tuple point to a row on a page, which is locked, or on a copy. */
void
row_on_page(Relation rel, Page page, ItemPointer tid, HeapTuple tuple)
{
	OffsetNumber offset = ItemPointerGetOffsetNumber(tid);
	ItemId		item = PageGetItemId(page, offset);

	Assert(offset <= PageGetMaxOffsetNumber(page) && ItemIdIsNormal(item));
	tuple->t_self = *tid;
	tuple->t_tableOid = RelationGetRelid(rel);
	tuple->t_len = ItemIdGetLength(item);
	tuple->t_data = (HeapTupleHeader) PageGetItem(page, item);
}

/*
 * Returns whether this is the last version of its row; and if "write" is set,
 * whether it can be changed in place.
 */
static bool
is_last_version(HeapTuple tuple, Buffer buffer, bool write)
{
	TransactionId xmin = HeapTupleHeaderGetXmin(tuple->t_data);
	TM_Result	state = HeapTupleSatisfiesUpdate(tuple,
												 GetCurrentCommandId(false),
												 buffer);

	switch (state)
	{
		case TM_Ok:
			/* An abort would take back our own version, with the change. */
			return !write || !TransactionIdIsCurrentTransactionId(xmin);
		case TM_BeingModified:
			/* The other transaction may write the row as it has read it. */
			return !write;
		case TM_Invisible:
		case TM_SelfModified:
		case TM_Updated:
		case TM_Deleted:
			return false;
		case TM_WouldBlock:
		default:
			elog(ERROR, "unexpected state of a row: %d", (int) state);
	}
}

/*
 * Call the action for a row on its page, with the page's lock held, so that it
 * reads the row as of this moment; or if "write" is set, changes columns of
 * fixed place and size.  The change is logged and takes effect at once,
 * whether or not the transaction commits: a snapshot of any age sees it, and
 * it leaves no dead row.  The action must not fail or wait.  A snapshot of the
 * session has kept the row in its place since it was found.
 *
 * Returns false if this is no longer the last version of the row; or, to
 * write, if another transaction has locked it or is changing it, or this one
 * has inserted it.
 */
bool
row_act_in_place(Relation rel, ItemPointer tid, bool write,
				 RowPageAction action, void *arg)
{
	Buffer		buffer = ReadBuffer(rel, ItemPointerGetBlockNumber(tid));
	HeapTupleData tuple;
	bool		fits;

	Assert(HaveRegisteredOrActiveSnapshot());
	LockBuffer(buffer, write ? BUFFER_LOCK_EXCLUSIVE : BUFFER_LOCK_SHARE);
	row_on_page(rel, BufferGetPage(buffer), tid, &tuple);
	fits = is_last_version(&tuple, buffer, write);
	if (fits && write)
	{
		GenericXLogState *log = GenericXLogStart(rel);

		/*
		 * With wal_consistency_checking, replay compares the page with the
		 * primary's.  A heap page differs in hint bits, command ids and
		 * pd_prune_xid, which the comparison leaves out for records of the
		 * heap, but not for generic ones.  So we must log the whole page
		 * then, or a standby stops here, and a crash cannot be recovered
		 * from.
		 */
		int			flags = wal_consistency_checking[RM_GENERIC_ID] ?
		GENERIC_XLOG_FULL_IMAGE : 0;

		/* The action changes a copy of the page. */
		row_on_page(rel, GenericXLogRegisterBuffer(log, buffer, flags), tid,
					&tuple);
		action(&tuple, arg);
		(void) GenericXLogFinish(log);
	}
	else if (fits)
		action(&tuple, arg);
	UnlockReleaseBuffer(buffer);
	return fits;
}

/*
 * Read a version of a row that this transaction has replaced or deleted, and
 * so has kept in its place.  The action must not fail or wait.
 */
void
row_peek(Relation rel, ItemPointer tid, RowPageAction action, void *arg)
{
	Buffer		buffer = ReadBuffer(rel, ItemPointerGetBlockNumber(tid));
	HeapTupleData tuple;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	row_on_page(rel, BufferGetPage(buffer), tid, &tuple);
	action(&tuple, arg);
	UnlockReleaseBuffer(buffer);
}
