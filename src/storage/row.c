/*-------------------------------------------------------------------------
 *
 * row.c
 *	  Single rows of our tables: find, insert, lock, update, delete.
 *
 * NOTES
 *	  The callers have checked rights and read-only states; nothing here runs
 *	  triggers or checks constraints (relations.c refuses tables with triggers).
 *
 *	  Locking and changing a row answers with a TM_Result, because only the
 *	  caller knows what it means: a claim goes on with the next row, a delete
 *	  looks at the row anew.  TM_Ok from message_lock without following updates
 *	  means that the row is as the snapshot saw it, so a decision made on
 *	  that version stands until the transaction ends.
 *
 *	  Whatever is done here is recorded first (pending.c), so that the availability maps
 *	  of the queues hear of it when the transaction ends; and in which segment
 *	  it is (segment.c).
 *
 *	  After a change the callers count the command up before anything reads
 *	  the table again.
 *
 * src/storage/row.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/generic_xlog.h"
#include "access/heapam.h"
#include "access/stratnum.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "catalog/message_id.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "storage/pending.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/compat.h"
#include "util/limits.h"

static bool insert_index_entry(Relation rel, Relation index,
							   TupleTableSlot *slot, IndexUniqueCheck check);
static void insert_index_entries(Relation rel, IndexList *indexes,
								 Relation except, TupleTableSlot *slot);
static TM_Result update(Relation rel, ItemPointer tid, TupleTableSlot *slot,
						bool *new_entries);
static TimestampTz delayed_until(MessageTable *table, HeapTuple tuple);
static void record_written(MessageTable *table, HeapTuple tuple,
						  bool on_abort);
static void record_locked(MessageTable *table, HeapTuple tuple);
static IndexInfo *empty_index_info(void);
static TupleTableSlot *tuple_slot(Relation rel, TupleDesc desc,
								  HeapTuple tuple);
static TupleTableSlot *out_slot(MessageTable *table, HeapTuple tuple);

/* A slot for rows that are read from the table. */
TupleTableSlot *
row_slot(MessageTable *table)
{
	return table_slot_create(table->heap, NULL);
}

/* The row in a slot that was filled from the table. */
HeapTuple
row_tuple(TupleTableSlot *slot)
{
	bool		should_free;
	HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, &should_free);

	Assert(!should_free);
	return tuple;
}

/* A slot that holds a tuple of our own making; desc is that of the table. */
static TupleTableSlot *
tuple_slot(Relation rel, TupleDesc desc, HeapTuple tuple)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);

	ExecStoreHeapTuple(tuple, slot, false);
	slot->tts_tableOid = RelationGetRelid(rel);
	return slot;
}

/*
 * What index_insert wants besides the values.  A btree does not read it, so
 * that an empty one made once does.
 */
static IndexInfo *
empty_index_info(void)
{
	static IndexInfo info = {.type = T_IndexInfo};

	return &info;
}

/*
 * Enter the row in the slot into one index, over plain columns.  False: a
 * unique index that was asked to be lenient has another entry.
 */
static bool
insert_index_entry(Relation rel, Relation index, TupleTableSlot *slot,
				   IndexUniqueCheck check)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	for (int i = 0; i < IndexRelationGetNumberOfAttributes(index); i++)
		values[i] = slot_getattr(slot, index->rd_index->indkey.values[i],
								 &isnull[i]);
	return index_insert(index, values, isnull, &slot->tts_tid, rel, check,
						false, empty_index_info());
}

/* Enter it into all indexes but one. */
static void
insert_index_entries(Relation rel, IndexList *indexes, Relation except,
					 TupleTableSlot *slot)
{
	for (int i = 0; i < indexes->n; i++)
	{
		Relation	index = indexes->relations[i];

		if (except == NULL || RelationGetRelid(index) != RelationGetRelid(except))
			insert_index_entry(rel, index, slot,
							   index->rd_index->indisunique ?
							   UNIQUE_CHECK_YES : UNIQUE_CHECK_NO);
	}
}

/* The table's own slot, with this tuple in it. */
static TupleTableSlot *
out_slot(MessageTable *table, HeapTuple tuple)
{
	ExecStoreHeapTuple(tuple, table->out, false);
	return table->out;
}

/* When a message in the table of delayed ones is due. */
static TimestampTz
delayed_until(MessageTable *table, HeapTuple tuple)
{
	bool		isnull;

	return DatumGetTimestampTz(heap_getattr(tuple, Anum_delayed_due_at,
											RelationGetDescr(table->heap),
											&isnull));
}

/* This version of a message is about to be written. */
static void
record_written(MessageTable *table, HeapTuple tuple, bool on_abort)
{
	MessageForm *form = MESSAGE_FORM(tuple);

	if (segment_is_delayed(table->segment))
	{
		TimestampTz until = delayed_until(table, tuple);

		pending_delayed(form, until, until, on_abort);
	}
	else
		pending_message(form, false, form->claim_token == 0 ? DT_NOBEGIN :
					  form->claimed_until, on_abort);
	segment_publish(table->segment, message_id_number(form->id));
}

/* This one is about to be locked or deleted. */
static void
record_locked(MessageTable *table, HeapTuple tuple)
{
	MessageForm *form = MESSAGE_FORM(tuple);

	if (segment_is_delayed(table->segment))
		pending_delayed(form, delayed_until(table, tuple), DT_NOEND, true);
	else
		pending_message(form, false, DT_NOEND, true);
	segment_publish(table->segment, message_id_number(form->id));
}

/* Insert one row. */
void
message_insert(MessageTable *table, HeapTuple tuple)
{
	TupleTableSlot *slot = out_slot(table, tuple);

	record_written(table, tuple, false);
	table_tuple_insert(table->heap, slot, GetCurrentCommandId(true), 0, NULL);
	insert_index_entries(table->heap, &table->all, NULL, slot);
	ExecClearTuple(slot);
	segment_count_bytes(table->segment, tuple->t_len);
}

/*
 * Insert many rows, with one WAL record for each page.  The call leaks into
 * the current memory context, which the caller throws away.
 */
void
message_multi_insert(MessageTable *table, HeapTuple *tuples, int n)
{
	TupleTableSlot **slots;
	TupleDesc	desc;
	Size		bytes = 0;

	if (n == 1)
	{
		message_insert(table, tuples[0]);
		return;
	}

	slots = palloc(n * sizeof(TupleTableSlot *));

	/* References to a copy need not be counted. */
	desc = CreateTupleDescCopy(RelationGetDescr(table->heap));
	for (int i = 0; i < n; i++)
	{
		record_written(table, tuples[i], false);
		slots[i] = tuple_slot(table->heap, desc, tuples[i]);
		bytes += tuples[i]->t_len;
	}
	table_multi_insert(table->heap, slots, n, GetCurrentCommandId(true), 0,
					   NULL);
	for (int i = 0; i < n; i++)
	{
		insert_index_entries(table->heap, &table->all, NULL, slots[i]);
		ExecDropSingleTupleTableSlot(slots[i]);
	}
	FreeTupleDesc(desc);
	pfree(slots);
	segment_count_bytes(table->segment, bytes);
}

/* Lock the version of the row that the slot was filled with. */
TM_Result
message_lock(MessageTable *table, TupleTableSlot *slot, LockTupleMode mode,
		 LockWaitPolicy wait)
{
	TM_FailureData failure;
	ItemPointerData tid = slot->tts_tid;

	record_locked(table, row_tuple(slot));
	return table_tuple_lock(table->heap, &tid, GetActiveSnapshot(), slot,
							GetCurrentCommandId(true), mode, wait, 0,
							&failure);
}

/*
 * The same for who leaves a row alone that is not as it was seen.  True: it is
 * locked, and the slot has it.
 */
bool
message_lock_as_seen(MessageTable *table, TupleTableSlot *slot,
				 LockTupleMode mode, LockWaitPolicy wait)
{
	switch (message_lock(table, slot, mode, wait))
	{
		case TM_Ok:
			return true;
		case TM_WouldBlock:
		case TM_Updated:
		case TM_Deleted:		/* or moved to another segment */
			return false;
		case TM_Invisible:
		case TM_SelfModified:
		case TM_BeingModified:
		default:
			elog(ERROR, "unexpected result of locking a message");
	}
}

static TM_Result
update(Relation rel, ItemPointer tid, TupleTableSlot *slot, bool *new_entries)
{
	TM_FailureData failure;

	*new_entries = false;
	return compat_table_tuple_update(rel, tid, slot,
									 GetCurrentCommandId(true),
									 GetActiveSnapshot(), &failure,
									 new_entries);
}

/* Replace the message at tid; waits for whoever holds it. */
TM_Result
message_update(MessageTable *table, ItemPointer tid, HeapTuple tuple)
{
	TupleTableSlot *slot = out_slot(table, tuple);
	bool		new_entries;
	TM_Result	result;

	record_written(table, tuple, true);
	result = update(table->heap, tid, slot, &new_entries);
	if (result == TM_Ok && new_entries)
		insert_index_entries(table->heap, &table->all, NULL, slot);
	ExecClearTuple(slot);
	return result;
}

/* The same in any other table. */
TM_Result
row_update_any(Relation rel, ItemPointer tid, HeapTuple tuple)
{
	TupleTableSlot *slot = tuple_slot(rel, RelationGetDescr(rel), tuple);
	bool		new_entries;
	TM_Result	result = update(rel, tid, slot, &new_entries);

	if (result == TM_Ok && new_entries)
	{
		IndexList	indexes;

		catalog_open_indexes(rel, &indexes);
		insert_index_entries(rel, &indexes, NULL, slot);
		catalog_close_indexes(&indexes);
	}
	ExecDropSingleTupleTableSlot(slot);
	return result;
}

/* Delete this row; waits for whoever holds it. */
TM_Result
message_delete(MessageTable *table, HeapTuple tuple)
{
	TM_FailureData failure;

	record_locked(table, tuple);
	segment_record_delete(table->segment);
	return table_tuple_delete(table->heap, &tuple->t_self,
							  GetCurrentCommandId(true),
							  GetActiveSnapshot(), InvalidSnapshot, true,
							  &failure, false);
}

/* Replace a row that this transaction has locked: that cannot fail. */
void
message_update_locked(MessageTable *table, ItemPointer tid, HeapTuple tuple)
{
	TM_Result	result = message_update(table, tid, tuple);

	if (result != TM_Ok)
		elog(ERROR, "could not update a locked message: %d", (int) result);
}

/* Delete a row that this transaction has locked. */
void
message_delete_locked(MessageTable *table, HeapTuple tuple)
{
	TM_Result	result = message_delete(table, tuple);

	if (result != TM_Ok)
		elog(ERROR, "could not delete a locked message: %d", (int) result);
}

/*
 * The row's claim begins now: it ends after ttl seconds, and the message
 * lives at least grace seconds longer than that.  A lifetime is never made
 * shorter, and not longer than QUEUE_LIFETIME_MAX from now.
 */
void
message_set_claim(MessageForm *form, TimestampTz now, int ttl, int grace)
{
	TimestampTz until = now + ttl * USECS_PER_SEC;
	TimestampTz wanted = Min(until + grace * USECS_PER_SEC,
							 now + QUEUE_LIFETIME_MAX * USECS_PER_SEC);

	form->claimed_at = now;
	form->claimed_until = until;
	form->claim_grace = grace;
	form->expires_at = Max(form->expires_at, wanted);
}

/* The row as it is to be when no claim holds it. */
void
message_clear_claim(MessageForm *form)
{
	form->claimed_at = DT_NOBEGIN;
	form->claimed_until = DT_NOBEGIN;
	form->claim_token = 0;
	form->claim_first = 0;
	form->claim_span = 0;
	form->claim_grace = 0;
	form->claim_priorities = 0;
}

/*
 * The same row for another table.  due_at only counts where that is the
 * table of delayed messages.
 */
HeapTuple
message_copy_to(MessageTable *from, MessageTable *to, HeapTuple tuple,
			TimestampTz due_at)
{
	TupleDesc	desc = RelationGetDescr(from->heap);
	Datum		values[Natts_delayed];
	bool		isnull[Natts_delayed];

	heap_deform_tuple(tuple, desc, values, isnull);

	/* A large value lies beside the old table: bring it along. */
	for (int i = 0; i < Natts_message; i++)
		if (!isnull[i] && TupleDescAttr(desc, i)->attlen == -1)
			values[i] = PointerGetDatum(PG_DETOAST_DATUM(values[i]));
	values[Anum_delayed_due_at - 1] = TimestampTzGetDatum(due_at);
	isnull[Anum_delayed_due_at - 1] = false;
	return heap_form_tuple(RelationGetDescr(to->heap), values, isnull);
}

/*
 * Move the row in the slot to another table as it is; *bytes grows by its
 * size.  False: somebody has it.  What is allocated is left to the caller's
 * memory context.
 */
bool
message_move(MessageTable *from, TupleTableSlot *slot, MessageTable *to,
		 Size *bytes)
{
	HeapTuple	old;
	HeapTuple	new;

	/* As the delete will lock it: so that does not wait for anything. */
	if (!message_lock_as_seen(from, slot, LockTupleExclusive, LockWaitSkip))
		return false;
	old = heap_copytuple(row_tuple(slot));
	new = message_copy_to(from, to, old, segment_is_delayed(from->segment) ?
					  delayed_until(from, old) : 0);
	*bytes += new->t_len;
	message_insert(to, new);
	message_delete_locked(from, old);
	return true;
}

/*
 * The first row of any table with these values, by an index (InvalidOid: by
 * reading all of it), as the latest snapshot shows it; a copy, or NULL.
 */
HeapTuple
row_fetch(Relation rel, Oid index, ScanKey keys, int nkeys)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(rel, index, OidIsValid(index),
										  snapshot, nkeys, keys);
	HeapTuple	tuple = systable_getnext(scan);

	if (HeapTupleIsValid(tuple))
		tuple = heap_copytuple(tuple);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	return tuple;
}

/*
 * Look at a row of any table on its page, with the page's lock held, or (write)
 * change columns of fixed place and size there.  A change is logged and holds
 * at once, whether or not the transaction commits; a snapshot of any age sees
 * it, and it leaves no dead row.  The action must not fail, nor wait.  A
 * snapshot or a pin of the caller's has kept the row in its place since it was
 * found.
 *
 * False: this is no longer the row's last version; or, to write, another
 * transaction has locked or is changing it, or this one has inserted it.
 */
bool
row_change_in_place(Relation rel, ItemPointer tid, bool write,
		 void (*action) (HeapTuple tuple, void *arg), void *arg)
{
	Buffer		buffer = ReadBuffer(rel, ItemPointerGetBlockNumber(tid));
	OffsetNumber offset = ItemPointerGetOffsetNumber(tid);
	HeapTupleData tuple;
	TM_Result	state;
	bool		fits;
	Page		page;

	LockBuffer(buffer, write ? BUFFER_LOCK_EXCLUSIVE : BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	Assert(offset <= PageGetMaxOffsetNumber(page) &&
		   ItemIdIsNormal(PageGetItemId(page, offset)));
	tuple.t_self = *tid;
	tuple.t_tableOid = RelationGetRelid(rel);
	tuple.t_len = ItemIdGetLength(PageGetItemId(page, offset));
	tuple.t_data = (HeapTupleHeader) PageGetItem(page,
												 PageGetItemId(page, offset));
	state = HeapTupleSatisfiesUpdate(&tuple, GetCurrentCommandId(false),
									 buffer);
	fits = state == TM_Ok || (!write && state == TM_BeingModified);
	if (write && TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple.t_data)))
		fits = false;
	if (fits && write)
	{
		GenericXLogState *log = GenericXLogStart(rel);

		page = GenericXLogRegisterBuffer(log, buffer, 0);
		tuple.t_data =
			(HeapTupleHeader) PageGetItem(page, PageGetItemId(page, offset));
		action(&tuple, arg);
		(void) GenericXLogFinish(log);
	}
	else if (fits)
		action(&tuple, arg);
	UnlockReleaseBuffer(buffer);
	return fits;
}

/* Delete all rows of a table that are a queue's, the first index column. */
void
row_delete_of_queue(Relation rel, Relation index, int32 queue_id)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ScanKeyData key;
	IndexScanDesc scan;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	PushActiveSnapshot(GetLatestSnapshot());
	scan = compat_index_beginscan(rel, index, GetActiveSnapshot(), 1);
	index_rescan(scan, &key, 1, NULL, 0);
	while (index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		simple_heap_delete(rel, &slot->tts_tid);
	}
	index_endscan(scan);
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
}

/*
 * Find the row with these index keys, waiting for transactions that are
 * inserting or deleting one.  True: it is in slot, committed or our own.
 */
bool
row_find_unique(Relation rel, Relation index, ScanKey keys, int nkeys,
				TupleTableSlot *slot)
{
	for (;;)
	{
		SnapshotData dirty;
		IndexScanDesc scan;
		bool		found = false;
		TransactionId wait_for = InvalidTransactionId;
		uint32		token = 0;
		ItemPointerData tid = {0};

		CHECK_FOR_INTERRUPTS();
		InitDirtySnapshot(dirty);
		scan = compat_index_beginscan(rel, index, &dirty, nkeys);
		index_rescan(scan, keys, nkeys, NULL, 0);
		while (!found && !TransactionIdIsValid(wait_for) &&
			   index_getnext_slot(scan, ForwardScanDirection, slot))
		{
			tid = slot->tts_tid;
			if (TransactionIdIsValid(dirty.xmin))
			{
				wait_for = dirty.xmin;
				token = dirty.speculativeToken;
			}
			else if (TransactionIdIsValid(dirty.xmax))
				wait_for = dirty.xmax;
			else
				found = true;
		}
		if (found)
			ExecMaterializeSlot(slot);
		index_endscan(scan);

		if (found)
			return true;
		if (!TransactionIdIsValid(wait_for))
			return false;
		if (token != 0)
			SpeculativeInsertionWait(wait_for, token);
		else
			XactLockTableWait(wait_for, rel, &tid, XLTW_InsertIndexUnique);
	}
}

/*
 * Insert a row unless one with the same key of the arbiter index exists,
 * without an error and whoever else is doing the same.  False: another row
 * exists, or did a moment ago.
 *
 * This is what INSERT ... ON CONFLICT DO NOTHING does (execIndexing.c): the
 * row is inserted on trial, and taken back when its index entry turns out
 * not to be the first.
 */
bool
row_insert_unique(Relation rel, Relation arbiter, HeapTuple tuple)
{
	TupleTableSlot *slot = tuple_slot(rel, RelationGetDescr(rel), tuple);
	TransactionId xid = GetCurrentTransactionId();
	IndexList	indexes;
	uint32		token;
	bool		first;

	catalog_open_indexes(rel, &indexes);
	token = SpeculativeInsertionLockAcquire(xid);
	table_tuple_insert_speculative(rel, slot, GetCurrentCommandId(true), 0,
								   NULL, token);
	first = insert_index_entry(rel, arbiter, slot, UNIQUE_CHECK_PARTIAL);
	table_tuple_complete_speculative(rel, slot, token, first);
	SpeculativeInsertionLockRelease(xid);

	if (first)
		insert_index_entries(rel, &indexes, arbiter, slot);
	catalog_close_indexes(&indexes);
	ExecDropSingleTupleTableSlot(slot);
	return first;
}
