/*-------------------------------------------------------------------------
 *
 * key.c
 *	  Deduplication keys of messages.
 *
 * NOTES
 *	  queue_data.pending_key has one row for each key: the messages that were
 *	  pushed with it and may hold it, the latest first.  The row by itself
 *	  means nothing.  A key is taken while one of these messages exists and
 *	  nobody holds it; whether that is so is told by the message alone, by the
 *	  clock where a claim ran out.  So claims, renewals and releases need not
 *	  touch this table, and a message that comes free again has its key back.
 *	  (If a twin was pushed meanwhile, both have it, and the next push is a
 *	  duplicate of either.)  A push that takes the key puts its message first
 *	  and leaves out those that are gone; a delete takes its message out.  An
 *	  id of a message that is gone does no harm.
 *
 *	  A push that finds its key taken is dropped, and locks the twin for share
 *	  until its transaction ends.  Claims skip locked messages, so the twin
 *	  runs only after what this transaction changed can be seen.  To get that
 *	  lock it waits for whoever is claiming or deleting the twin, and looks
 *	  again: then the key may be free.
 *
 * src/key.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#define Anum_pending_key_queue_id	1
#define Anum_pending_key_digest		2
#define Anum_pending_key_message_ids	3

/* What a push finds under its key. */
typedef enum TwinState
{
	TWIN_GONE,					/* no message, or one that will not run */
	TWIN_CLAIMED,				/* it may come free again */
	TWIN_WAITS,					/* the push is a duplicate; twin is locked */
	TWIN_CHANGED				/* look again */
} TwinState;

static void init_keys(ScanKey keys, int32 queue_id, const pg_uuid_t *digest);
static int64 *get_ids(TupleTableSlot *slot, int *n);
static TwinState look_at_twin(const Queue *queue, int64 id);
static HeapTuple form_key(Relation rel, int32 queue_id,
						  const pg_uuid_t *digest, const int64 *ids, int n);
static TwinState look_at_twins(const Queue *queue, int64 *ids, int *n);
static void remove_id(Relation rel, TupleTableSlot *slot, int32 queue_id,
					  const pg_uuid_t *digest, int64 id);

static void
init_keys(ScanKey keys, int32 queue_id, const pg_uuid_t *digest)
{
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_UUID_EQ,
				UUIDPGetDatum(digest));
}

/* The ids in a row of the table; a copy. */
static int64 *
get_ids(TupleTableSlot *slot, int *n)
{
	bool		isnull;
	ArrayType  *array =
		DatumGetArrayTypePCopy(slot_getattr(slot,
											Anum_pending_key_message_ids,
											&isnull));

	*n = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	return (int64 *) ARR_DATA_PTR(array);
}

static HeapTuple
form_key(Relation rel, int32 queue_id, const pg_uuid_t *digest,
		 const int64 *ids, int n)
{
	Datum	   *elements = palloc(n * sizeof(Datum));
	Datum		values[Natts_pending_key];
	bool		isnull[Natts_pending_key] = {false};

	for (int i = 0; i < n; i++)
		elements[i] = Int64GetDatum(ids[i]);
	values[Anum_pending_key_queue_id - 1] = Int32GetDatum(queue_id);
	values[Anum_pending_key_digest - 1] = UUIDPGetDatum(digest);
	values[Anum_pending_key_message_ids - 1] =
		PointerGetDatum(construct_array(elements, n, INT8OID, sizeof(int64),
										FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	return heap_form_tuple(RelationGetDescr(rel), values, isnull);
}

/* Does this message hold its key?  If so, lock it. */
static TwinState
look_at_twin(const Queue *queue, int64 id)
{
	MessageTable table;
	TupleTableSlot *slot;
	TwinState	state = TWIN_GONE;

	ring_push_snapshot();
	if (scan_find(queue->id, id, RowShareLock, &table, &slot))
	{
		HeapTuple	tuple = row_tuple(slot);
		MessageForm *form = MESSAGE_FORM(tuple);
		TimestampTz now = GetCurrentTimestamp();

		/*
		 * A message that was claimed too often will not be handed out any
		 * more: it stands for nobody.
		 */
		if (row_is_claimed(form, now))
			state = TWIN_CLAIMED;
		else if (!row_is_expired(form, now) &&
				 !meta_is_exhausted(queue, &table, tuple))
		{
			/* TM_Ok: it is as it was, but time may have passed. */
			if (row_lock(&table, slot, LockTupleShare,
						 LockWaitBlock) != TM_Ok)
				state = TWIN_CHANGED;
			else if (!row_is_expired(MESSAGE_FORM(row_tuple(slot)),
									 GetCurrentTimestamp()))
			{
				/* Claims pass it by until then. */
				touch_message(MESSAGE_FORM(row_tuple(slot)),
							  segment_is_parked(table.segment), DT_NOBEGIN,
							  true);
				state = TWIN_WAITS;
			}
		}
		ExecDropSingleTupleTableSlot(slot);
		queue_close_table(&table, true);
	}
	PopActiveSnapshot();
	return state;
}

/* Does one of these messages hold the key?  Leaves out those that are gone. */
static TwinState
look_at_twins(const Queue *queue, int64 *ids, int *n)
{
	int			kept = 0;

	for (int i = 0; i < *n; i++)
	{
		TwinState	state = look_at_twin(queue, ids[i]);

		if (state == TWIN_WAITS || state == TWIN_CHANGED)
			return state;
		if (state == TWIN_CLAIMED)
			ids[kept++] = ids[i];
	}
	*n = kept;
	return TWIN_GONE;
}

/*
 * Take the key for message id, which the caller inserts next.  False: it is
 * a duplicate of a message that waits.
 */
bool
key_take(const Queue *queue, const pg_uuid_t *digest, int64 id)
{
	Relation	index;
	Relation	rel = queue_open_pending_key(RowExclusiveLock, &index);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ScanKeyData keys[2];
	bool		taken = false;
	bool		duplicate = false;

	init_keys(keys, queue->id, digest);
	while (!taken && !duplicate)
	{
		HeapTuple	tuple;
		int64	   *ids;
		int			n;

		CHECK_FOR_INTERRUPTS();
		if (!row_find_unique(rel, index, keys, 2, slot))
		{
			tuple = form_key(rel, queue->id, digest, &id, 1);
			taken = row_insert_unique(rel, index, tuple);
			continue;
		}

		ids = get_ids(slot, &n);
		switch (look_at_twins(queue, ids, &n))
		{
			case TWIN_WAITS:
				duplicate = true;
				break;
			case TWIN_CHANGED:
				break;
			case TWIN_CLAIMED:
			case TWIN_GONE:
				{
					int64	   *all = palloc((n + 1) * sizeof(int64));

					all[0] = id;
					memcpy(all + 1, ids, n * sizeof(int64));
					tuple = form_key(rel, queue->id, digest, all, n + 1);
					PushActiveSnapshot(GetLatestSnapshot());
					taken = row_update_any(rel, &slot->tts_tid, tuple) == TM_Ok;
					PopActiveSnapshot();
					break;
				}
		}
	}

	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	table_close(rel, NoLock);
	CommandCounterIncrement();
	return taken;
}

/* Take a message out of the row that the slot holds and we have locked. */
static void
remove_id(Relation rel, TupleTableSlot *slot, int32 queue_id,
		  const pg_uuid_t *digest, int64 id)
{
	ItemPointerData tid = slot->tts_tid;
	int			n;
	int64	   *ids = get_ids(slot, &n);
	int			kept = 0;

	for (int i = 0; i < n; i++)
		if (ids[i] != id)
			ids[kept++] = ids[i];
	if (kept == n)
		return;
	if (kept == 0)
		simple_heap_delete(rel, &tid);
	else if (row_update_any(rel, &tid,
							form_key(rel, queue_id, digest, ids,
									 kept)) != TM_Ok)
		elog(ERROR, "could not update a locked deduplication key");
}

/* Let the key of a message that is deleted go too, if it has one. */
void
key_drop(MessageTable *table, HeapTuple tuple)
{
	Relation	index;
	Relation	rel;
	TupleTableSlot *slot;
	ScanKeyData keys[2];
	IndexScanDesc scan;
	bool		isnull;
	Datum		digest = heap_getattr(tuple, Anum_message_dedup,
									  RelationGetDescr(table->heap), &isnull);

	if (isnull)
		return;

	rel = queue_open_pending_key(RowExclusiveLock, &index);
	slot = table_slot_create(rel, NULL);
	init_keys(keys, MESSAGE_FORM(tuple)->queue_id, DatumGetUUIDP(digest));
	PushActiveSnapshot(GetLatestSnapshot());
	scan = compat_index_beginscan(rel, index, GetActiveSnapshot(), 2);
	index_rescan(scan, keys, 2, NULL, 0);

	/*
	 * Who holds a lock on the row is writing it; then the id stays, which
	 * does no harm.
	 */
	if (index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		ItemPointerData tid = slot->tts_tid;
		TM_FailureData failure;

		if (table_tuple_lock(rel, &tid, GetActiveSnapshot(), slot,
							 GetCurrentCommandId(true),
							 LockTupleNoKeyExclusive, LockWaitSkip, 0,
							 &failure) == TM_Ok)
			remove_id(rel, slot, MESSAGE_FORM(tuple)->queue_id,
					  DatumGetUUIDP(digest), MESSAGE_FORM(tuple)->id);
	}
	index_endscan(scan);
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	table_close(rel, NoLock);
}

/* Remove all keys of a queue that is dropped or purged. */
void
key_drop_all(int32 queue_id)
{
	Relation	index;
	Relation	rel = queue_open_pending_key(RowExclusiveLock, &index);
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
	index_close(index, NoLock);
	table_close(rel, NoLock);
}
