/*-------------------------------------------------------------------------
 *
 * dedup_run.c
 *	  Runs of messages that cover messages with the same deduplication key.
 *
 * NOTES
 *	  The top of dedup.c describes when a completed run covers a twin, why, and
 *	  what the columns twins, twins_joined and covered of a message mean.
 *
 * src/push/dedup_run.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "push/dedup_run.h"
#include "push/dedup_table.h"
#include "push/message_end.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/row.h"

static HeapTuple set_twins(TupleDesc desc, HeapTuple tuple,
						   const DedupKey *key);
static bool joined_is_unchanged(const Queue *queue, const DedupRun *run);
static void cover_twin(const Queue *queue, MessageTable *table,
					   HeapTuple tuple, TimestampTz now);
static void try_cover_twin(const Queue *queue, int64 id, const DedupRun *run,
						   DedupRunEnd end);

/* --- The beginning of a run --- */

/*
 * Returns a copy of the message's row with the ids of key as its twins, or
 * without twins if key is NULL.
 */
static HeapTuple
set_twins(TupleDesc desc, HeapTuple tuple, const DedupKey *key)
{
	int			columns[] = {Anum_message_twins, Anum_message_twins_joined};
	Datum		values[lengthof(columns)] = {0};
	bool		isnull[lengthof(columns)] = {key == NULL, key == NULL};

	if (key != NULL)
	{
		values[0] = dedup_table_form_ids(key->ids, key->n);
		values[1] = Int64GetDatum(key->joined);
	}
	return heap_modify_tuple_by_cols(tuple, desc, lengthof(columns), columns,
									 values, isnull);
}

/*
 * A message is about to be claimed, by a statement with this snapshot.
 * Returns the tuple, or a copy in which the twins are set that its run covers.
 */
HeapTuple
dedup_begin_run(TupleDesc desc, HeapTuple tuple, Snapshot snapshot)
{
	bool		isnull;
	Datum		digest = heap_getattr(tuple, Anum_message_dedup, desc, &isnull);
	DedupKey	key = {0};
	int			ntwins = 0;

	if (isnull)
		return tuple;
	key.queue_id = message_row_queue(tuple);
	key.digest = *DatumGetUUIDP(digest);
	if (dedup_table_read(snapshot, &key))
		for (int i = 0; i < key.n; i++)
			if (key.ids[i] != message_row_id(tuple))
				key.ids[ntwins++] = key.ids[i];

	/*
	 * A message whose id is not in the row covers nothing, because a push
	 * that finds one other id there is not counted as joined (join_waiting).
	 */
	if (ntwins > 0 && ntwins < key.n)
	{
		key.n = ntwins;
		return set_twins(desc, tuple, &key);
	}

	/* Twins of a former claim do not count any more. */
	if (!message_row_is_null(tuple, Anum_message_twins))
		return set_twins(desc, tuple, NULL);
	return tuple;
}

/* --- Its end --- */

/*
 * Returns the run of a claimed message that covers twins, or NULL if it
 * covers none.
 */
DedupRun *
dedup_run_of(TupleDesc desc, HeapTuple tuple)
{
	DedupRun   *run;
	bool		isnull;
	Datum		digest;

	if (message_row_is_null(tuple, Anum_message_twins))
		return NULL;
	digest = heap_getattr(tuple, Anum_message_dedup, desc, &isnull);
	if (isnull)
		return NULL;
	run = palloc(sizeof(DedupRun));
	run->digest = *DatumGetUUIDP(digest);
	run->twins = dedup_table_get_ids(heap_getattr(tuple, Anum_message_twins,
												  desc, &isnull),
									 &run->n);
	run->joined = DatumGetInt64(heap_getattr(tuple, Anum_message_twins_joined,
											 desc, &isnull));
	return run;
}

/*
 * The message of a run was deleted: delete the twins that the run covers, or
 * mark them as covered.
 */
void
dedup_finish_run(const Queue *queue, const DedupRun *run, DedupRunEnd end)
{
	for (int i = 0; i < run->n; i++)
		try_cover_twin(queue, run->twins[i], run, end);
	CommandCounterIncrement();
}

/*
 * Returns whether the key's count of joined pushes is what it was when the
 * run began.
 */
static bool
joined_is_unchanged(const Queue *queue, const DedupRun *run)
{
	DedupKey	key = {.queue_id = queue->id,.digest = run->digest};

	return dedup_table_read(NULL, &key) && key.joined == run->joined;
}

/* Cover a message that this transaction has locked. */
static void
cover_twin(const Queue *queue, MessageTable *table, HeapTuple tuple,
		   TimestampTz now)
{
	TupleDesc	desc = RelationGetDescr(table->heap);
	MessageForm form = message_read(tuple);

	/*
	 * Its own run may still be completed.  If its claim ends otherwise, the
	 * mark keeps it from being handed out again.
	 */
	if (message_is_claimed(&form, now))
	{
		int			column = Anum_message_covered;
		Datum		covered = BoolGetDatum(true);
		bool		isnull = false;

		message_update_locked(table, tuple,
							  heap_modify_tuple_by_cols(tuple, desc, 1,
														&column, &covered,
														&isnull));
	}
	else
		(void) message_end(queue, table, tuple, END_DUPLICATE, NULL);
}

/* Cover a message, if it exists, is not locked, and no push has joined it. */
static void
try_cover_twin(const Queue *queue, int64 id, const DedupRun *run,
			   DedupRunEnd end)
{
	FoundMessage twin;
	TimestampTz now = GetCurrentTimestamp();

	CommandCounterIncrement();
	if (!message_find(queue->id, id, RowExclusiveLock, &twin))
		return;

	/*
	 * A push joins with a lock on the message, so the count cannot change
	 * between the check and the end of this transaction.  A transaction that
	 * pops may go on for long, and the holder of a twin's claim would have to
	 * wait for it.
	 */
	if (!message_is_expired(&twin.form, now) &&
		!(end == RUN_POPPED && message_is_claimed(&twin.form, now)) &&
		message_lock_found(&twin, LockTupleNoKeyExclusive, LockWaitSkip) &&
		joined_is_unchanged(queue, run))
		cover_twin(queue, &twin.table, heap_copytuple(twin.tuple), now);
	message_close_found(&twin);
}
