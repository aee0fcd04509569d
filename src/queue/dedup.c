/*-------------------------------------------------------------------------
 *
 * dedup.c
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
 *	  A run stands for its twins, too: for messages with the same key that
 *	  had been pushed when it began, once it is completed.  They may exist when
 *	  one was pushed while the other was claimed, and that claim failed.  Which
 *	  ones those are is what the row here says to the snapshot of the statement
 *	  that claims: each claim writes their ids into the message's column twins,
 *	  or NULL (dedup_begin_run).  No clock tells which push was first.  When the
 *	  message is deleted under that claim, twins that nobody holds are deleted, and
 *	  those under a claim of their own are marked as covered, so that they are
 *	  not handed out again (dedup_finish_run).  A twin that somebody has locked is
 *	  left alone, and runs.  So is one that is claimed when a message is
 *	  popped: that transaction goes on, and the claim's holder would wait.
 *
 *	  A push that was dropped because such a twin waits has to be seen by a run
 *	  that begins later.  So, while another message of the key may be running,
 *	  it counts up "joined" in the row; a run that finds another count at its
 *	  end than at its beginning stands for nobody.  It does so with the lock on
 *	  the twin, which whoever finishes a run needs as well.  If the twin is the
 *	  only one in the row, there is nobody to be told, and the push locks the row
 *	  for share: a message that is put there later is claimed by somebody who
 *	  sees what the push has changed.  A push that leaves ids out counts up as
 *	  well, and a message that was left out stands for nobody: else there could
 *	  be a run of which the row says nothing.
 *
 *	  A message that is covered, or the leaf of an older root job (root_job.c),
 *	  will not run, so it holds no key.
 *
 * src/queue/dedup.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "queue/counters.h"
#include "queue/dedup.h"
#include "queue/options.h"
#include "queue/registry.h"
#include "queue/root_job.h"
#include "storage/message.h"
#include "storage/message_scan.h"
#include "storage/pending.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/compat.h"

#define Anum_dedup_key_queue_id	1
#define Anum_dedup_key_digest		2
#define Anum_dedup_key_message_ids	3
#define Anum_dedup_key_joined			4

/* A row of queue_data.pending_key */
typedef struct KeyRow
{
	int			n;
	int64	   *ids;
	int64		joined;
} KeyRow;

/* What a push finds under its key. */
typedef enum TwinState
{
	TWIN_GONE,					/* no message, or one that will not run */
	TWIN_CLAIMED,				/* it may come free again */
	TWIN_WAITS,					/* the push is a duplicate; twin is locked */
	TWIN_CHANGED				/* look again */
} TwinState;

static void init_keys(ScanKey keys, int32 queue_id, const pg_uuid_t *digest);
static void get_ids(Datum value, KeyRow *row);
static Datum form_ids(const int64 *ids, int n);
static void get_row(Relation rel, HeapTuple tuple, KeyRow *row);
static TwinState look_at_twin(const Queue *queue, int64 id);
static HeapTuple form_key(Relation rel, int32 queue_id,
						  const pg_uuid_t *digest, const KeyRow *row);
static TwinState look_at_twins(const Queue *queue, KeyRow *row);
static bool find_row(int32 queue_id, const pg_uuid_t *digest,
					 Snapshot snapshot, KeyRow *row);
static HeapTuple set_twins(TupleDesc desc, HeapTuple tuple,
						   const KeyRow *row);
static void cover_row(const Queue *queue, MessageTable *table,
					  HeapTuple tuple, TimestampTz now);
static void cover(const Queue *queue, int64 id, const DedupRun *run,
				  bool popped);
static bool is_there(int32 queue_id, int64 id);
static void remove_id(Relation rel, HeapTuple tuple, const DedupUse *use);

static void
init_keys(ScanKey keys, int32 queue_id, const pg_uuid_t *digest)
{
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_UUID_EQ,
				UUIDPGetDatum(digest));
}

/* A copy of the ids in an array. */
static void
get_ids(Datum value, KeyRow *row)
{
	ArrayType  *array = DatumGetArrayTypePCopy(value);

	row->n = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	row->ids = (int64 *) ARR_DATA_PTR(array);
}

static Datum
form_ids(const int64 *ids, int n)
{
	Datum	   *elements = palloc(n * sizeof(Datum));

	for (int i = 0; i < n; i++)
		elements[i] = Int64GetDatum(ids[i]);
	return PointerGetDatum(construct_array(elements, n, INT8OID,
										   sizeof(int64), FLOAT8PASSBYVAL,
										   TYPALIGN_DOUBLE));
}

/* What a row of the table says; a copy. */
static void
get_row(Relation rel, HeapTuple tuple, KeyRow *row)
{
	TupleDesc	desc = RelationGetDescr(rel);
	bool		isnull;

	get_ids(heap_getattr(tuple, Anum_dedup_key_message_ids, desc, &isnull),
			row);
	row->joined = DatumGetInt64(heap_getattr(tuple, Anum_dedup_key_joined,
											 desc, &isnull));
}

static HeapTuple
form_key(Relation rel, int32 queue_id, const pg_uuid_t *digest,
		 const KeyRow *row)
{
	Datum		values[Natts_dedup_key];
	bool		isnull[Natts_dedup_key] = {false};

	values[Anum_dedup_key_queue_id - 1] = Int32GetDatum(queue_id);
	values[Anum_dedup_key_digest - 1] = UUIDPGetDatum(digest);
	values[Anum_dedup_key_message_ids - 1] = form_ids(row->ids, row->n);
	values[Anum_dedup_key_joined - 1] = Int64GetDatum(row->joined);
	return heap_form_tuple(RelationGetDescr(rel), values, isnull);
}

/* Does this message hold its key?  If so, lock it. */
static TwinState
look_at_twin(const Queue *queue, int64 id)
{
	MessageTable table;
	TupleTableSlot *slot;
	TwinState	state = TWIN_GONE;

	segment_push_snapshot();
	if (message_find(queue->id, id, RowShareLock, &table, &slot))
	{
		HeapTuple	tuple = row_tuple(slot);
		MessageForm *form = MESSAGE_FORM(tuple);
		TimestampTz now = GetCurrentTimestamp();

		/*
		 * A message that will not be handed out any more stands for nobody.
		 */
		if (dedup_is_duplicate(queue, &table, tuple))
			state = TWIN_GONE;
		else if (message_is_claimed(form, now))
			state = TWIN_CLAIMED;
		else if (!message_is_expired(form, now) &&
				 !options_is_exhausted(queue, &table, tuple))
		{
			/* TM_Ok: it is as it was, but time may have passed. */
			if (message_lock(&table, slot, LockTupleShare,
						 LockWaitBlock) != TM_Ok)
				state = TWIN_CHANGED;
			else if (!message_is_expired(MESSAGE_FORM(row_tuple(slot)),
									 GetCurrentTimestamp()))
			{
				/* Claims pass it by until then. */
				message_return_at_commit(&table, row_tuple(slot));
				state = TWIN_WAITS;
			}
		}
		ExecDropSingleTupleTableSlot(slot);
		message_table_close(&table, true);
	}
	PopActiveSnapshot();
	return state;
}

/* Does one of these messages hold the key?  Leaves out those that are gone. */
static TwinState
look_at_twins(const Queue *queue, KeyRow *row)
{
	int			kept = 0;

	for (int i = 0; i < row->n; i++)
	{
		TwinState	state = look_at_twin(queue, row->ids[i]);

		if (state == TWIN_WAITS || state == TWIN_CHANGED)
			return state;
		if (state == TWIN_CLAIMED)
			row->ids[kept++] = row->ids[i];
	}
	row->n = kept;
	return TWIN_GONE;
}

/*
 * Take the key for message id, which the caller inserts next.  False: it is
 * a duplicate of a message that waits.
 */
bool
dedup_take_key(const Queue *queue, const pg_uuid_t *digest, int64 id)
{
	Relation	index;
	Relation	rel = catalog_open_dedup_keys(RowExclusiveLock, &index);
	ScanKeyData keys[2];
	bool		taken = false;
	bool		duplicate = false;

	init_keys(keys, queue->id, digest);
	while (!taken && !duplicate)
	{
		HeapTuple	tuple;
		KeyRow		row = {0};
		int			found;

		CHECK_FOR_INTERRUPTS();
		root_job_forget();
		tuple = row_find_unique(rel, index, keys, 2);
		if (!HeapTupleIsValid(tuple))
		{
			row.n = 1;
			row.ids = &id;
			taken = row_insert_unique(rel, index,
									  form_key(rel, queue->id, digest, &row));
			continue;
		}

		get_row(rel, tuple, &row);
		found = row.n;
		switch (look_at_twins(queue, &row))
		{
			case TWIN_WAITS:
				/* Another one may be running, which does not see this. */
				row.joined++;
				duplicate = found == 1 ?
					row_lock(rel, &tuple->t_self, LockTupleShare,
							 LockWaitBlock) :
					row_update(rel, &tuple->t_self,
							   form_key(rel, queue->id, digest, &row));
				break;
			case TWIN_CHANGED:
				break;
			case TWIN_CLAIMED:
			case TWIN_GONE:
				{
					int64	   *all = palloc((row.n + 1) * sizeof(int64));

					all[0] = id;
					/* One that is left out may be running, too. */
					if (row.n < found)
						row.joined++;
					memcpy(all + 1, row.ids, row.n * sizeof(int64));
					row.ids = all;
					row.n++;
					taken = row_update(rel, &tuple->t_self,
									   form_key(rel, queue->id, digest,
												&row));
					break;
				}
		}
	}

	index_close(index, NoLock);
	table_close(rel, NoLock);
	CommandCounterIncrement();
	return taken;
}

/* Does the message exist, whoever has it? */
static bool
is_there(int32 queue_id, int64 id)
{
	MessageTable table;
	TupleTableSlot *slot;
	bool		found;

	segment_push_snapshot();
	found = message_find(queue_id, id, AccessShareLock, &table, &slot);
	if (found)
	{
		ExecDropSingleTupleTableSlot(slot);
		message_table_close(&table, true);
	}
	PopActiveSnapshot();
	return found;
}

/*
 * Remove a message from the row of its key, which this transaction has locked,
 * and those that are gone and could not be removed.
 */
static void
remove_id(Relation rel, HeapTuple tuple, const DedupUse *use)
{
	KeyRow		row;
	int			kept = 0;

	get_row(rel, tuple, &row);
	for (int i = 0; i < row.n; i++)
		if (row.ids[i] != use->id && is_there(use->queue_id, row.ids[i]))
			row.ids[kept++] = row.ids[i];
	if (kept == row.n)
		return;
	row.n = kept;
	if (kept == 0)
		simple_heap_delete(rel, &tuple->t_self);
	else if (!row_update(rel, &tuple->t_self,
						 form_key(rel, use->queue_id, &use->digest, &row)))
		elog(ERROR, "could not update a locked deduplication key");
}

/* The key of a message, which need not have one: then NULL. */
DedupUse *
dedup_use_of(TupleDesc desc, HeapTuple tuple)
{
	bool		isnull;
	Datum		digest = heap_getattr(tuple, Anum_message_dedup, desc, &isnull);
	DedupUse	   *use;

	if (isnull)
		return NULL;
	use = palloc(sizeof(DedupUse));
	use->queue_id = MESSAGE_FORM(tuple)->queue_id;
	use->digest = *DatumGetUUIDP(digest);
	use->id = MESSAGE_FORM(tuple)->id;
	return use;
}

/* The message was deleted: it uses its key no more. */
void
dedup_drop_use(const DedupUse *use)
{
	Relation	index;
	Relation	rel = catalog_open_dedup_keys(RowExclusiveLock, &index);
	ScanKeyData keys[2];
	HeapTuple	tuple;

	init_keys(keys, use->queue_id, &use->digest);
	PushActiveSnapshot(GetLatestSnapshot());
	tuple = row_fetch(rel, RelationGetRelid(index), keys, 2);

	/*
	 * Another transaction that has locked the row is writing it.  Then the id
	 * stays, which does no harm.
	 */
	if (HeapTupleIsValid(tuple) &&
		row_lock(rel, &tuple->t_self, LockTupleNoKeyExclusive, LockWaitSkip))
		remove_id(rel, tuple, use);
	PopActiveSnapshot();
	index_close(index, NoLock);
	table_close(rel, NoLock);
}

/* Let the key of a message that is deleted go too, if it has one. */
void
dedup_drop_key(MessageTable *table, HeapTuple tuple)
{
	DedupUse	   *use = dedup_use_of(RelationGetDescr(table->heap), tuple);

	if (use == NULL)
		return;
	dedup_drop_use(use);
	pfree(use);
}

/* Remove all keys of a queue that is dropped or purged. */
void
dedup_drop_all(int32 queue_id)
{
	Relation	index;
	Relation	rel = catalog_open_dedup_keys(RowExclusiveLock, &index);

	row_delete_of_queue(rel, index, queue_id);
	index_close(index, NoLock);
	table_close(rel, NoLock);
}

/* --- Runs that stand for twins --- */

/* Will the message not be handed out any more, as a duplicate? */
bool
dedup_is_duplicate(const Queue *queue, MessageTable *table, HeapTuple tuple)
{
	return !heap_attisnull(tuple, Anum_message_covered, NULL) ||
		(queue->has_roots &&
		 root_job_is_superseded(queue, RelationGetDescr(table->heap), tuple));
}

/* What the table says of a key to this snapshot. */
static bool
find_row(int32 queue_id, const pg_uuid_t *digest, Snapshot snapshot,
		 KeyRow *row)
{
	Relation	index;
	Relation	rel = catalog_open_dedup_keys(AccessShareLock, &index);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found;

	init_keys(keys, queue_id, digest);
	scan = systable_beginscan(rel, RelationGetRelid(index), true, snapshot, 2,
							  keys);
	tuple = systable_getnext(scan);
	found = HeapTupleIsValid(tuple);
	if (found)
		get_row(rel, tuple, row);
	systable_endscan(scan);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return found;
}

/* A copy of the message's row with these twins; NULL: without any. */
static HeapTuple
set_twins(TupleDesc desc, HeapTuple tuple, const KeyRow *row)
{
	int			columns[] = {Anum_message_twins, Anum_message_twins_joined};
	Datum		values[lengthof(columns)] = {0};
	bool		isnull[lengthof(columns)] = {row == NULL, row == NULL};

	if (row != NULL)
	{
		values[0] = form_ids(row->ids, row->n);
		values[1] = Int64GetDatum(row->joined);
	}
	return heap_modify_tuple_by_cols(tuple, desc, lengthof(columns), columns,
									 values, isnull);
}

/*
 * A message is claimed: its run, which sees what the snapshot does, begins.
 * Returns the row to be written, which has the twins that the run stands for;
 * or the same tuple if there are none, and it has none.
 */
HeapTuple
dedup_begin_run(TupleDesc desc, HeapTuple tuple, Snapshot snapshot)
{
	const MessageForm *form = MESSAGE_FORM(tuple);
	bool		isnull;
	Datum		digest = heap_getattr(tuple, Anum_message_dedup, desc, &isnull);
	KeyRow		row = {0};
	int			kept = 0;

	if (isnull)
		return tuple;
	if (find_row(form->queue_id, DatumGetUUIDP(digest), snapshot, &row))
		for (int i = 0; i < row.n; i++)
			if (row.ids[i] != form->id)
				row.ids[kept++] = row.ids[i];

	/* Of one that was left out, pushes do not know that it may be running. */
	if (kept > 0 && kept < row.n)
	{
		row.n = kept;
		return set_twins(desc, tuple, &row);
	}

	/* Those of a claim that is over do not count. */
	if (!heap_attisnull(tuple, Anum_message_twins, NULL))
		return set_twins(desc, tuple, NULL);
	return tuple;
}

/*
 * For which twins does the run of a claimed message stand?  NULL: for none.
 */
DedupRun *
dedup_run_of(TupleDesc desc, HeapTuple tuple)
{
	DedupRun	   *run;
	KeyRow		row;
	bool		isnull;
	Datum		digest;

	if (heap_attisnull(tuple, Anum_message_twins, NULL))
		return NULL;
	digest = heap_getattr(tuple, Anum_message_dedup, desc, &isnull);
	if (isnull)
		return NULL;
	get_ids(heap_getattr(tuple, Anum_message_twins, desc, &isnull), &row);
	run = palloc(sizeof(DedupRun));
	run->digest = *DatumGetUUIDP(digest);
	run->joined = DatumGetInt64(heap_getattr(tuple, Anum_message_twins_joined,
											 desc, &isnull));
	run->n = row.n;
	run->twins = row.ids;
	return run;
}

/*
 * The run of a message that is deleted by now is completed, if this
 * transaction commits, or was popped.
 */
void
dedup_finish_run(const Queue *queue, const DedupRun *run, bool popped)
{
	for (int i = 0; i < run->n; i++)
		cover(queue, run->twins[i], run, popped);
	CommandCounterIncrement();
}

/*
 * A completed run stands for this message, which we have locked: if nobody
 * holds it, it goes; else it has no other turn.
 */
static void
cover_row(const Queue *queue, MessageTable *table, HeapTuple tuple,
		  TimestampTz now)
{
	TupleDesc	desc = RelationGetDescr(table->heap);
	ItemPointerData tid = tuple->t_self;

	if (message_is_claimed(MESSAGE_FORM(tuple), now))
	{
		int			column = Anum_message_covered;
		Datum		covered = BoolGetDatum(true);
		bool		isnull = false;

		message_update_locked(table, &tid,
						  heap_modify_tuple_by_cols(tuple, desc, 1, &column,
													&covered, &isnull));
	}
	else
	{
		message_delete_locked(table, tuple);
		dedup_drop_key(table, tuple);
		counters_add(queue->id, JOB_DUPLICATES, 1);
	}
}

/* The same if it is there, not locked, and nobody else has joined it. */
static void
cover(const Queue *queue, int64 id, const DedupRun *run, bool popped)
{
	MessageTable table;
	TupleTableSlot *slot;
	TimestampTz now = GetCurrentTimestamp();
	MessageForm *form;
	KeyRow		row;

	CommandCounterIncrement();
	segment_push_snapshot();
	if (!message_find(queue->id, id, RowExclusiveLock, &table, &slot))
	{
		PopActiveSnapshot();
		return;
	}
	form = MESSAGE_FORM(row_tuple(slot));
	if (!message_is_expired(form, now) &&
		!(popped && message_is_claimed(form, now)) &&
		message_lock(&table, slot, LockTupleNoKeyExclusive,
				 LockWaitSkip) == TM_Ok)
	{
		/* Who joins it has it locked; so what we see now stays true. */
		PushActiveSnapshot(GetLatestSnapshot());
		if (find_row(queue->id, &run->digest, GetActiveSnapshot(), &row) &&
			row.joined == run->joined)
			cover_row(queue, &table, heap_copytuple(row_tuple(slot)), now);
		PopActiveSnapshot();
	}
	ExecDropSingleTupleTableSlot(slot);
	message_table_close(&table, true);
	PopActiveSnapshot();
}
