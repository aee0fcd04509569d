/*-------------------------------------------------------------------------
 *
 * batch_end.c
 *	  The end of a batch: finding that it has finished, and freeing what waits.
 *
 * NOTES
 *	  The worker calls batch_end_step() for a batch that may have finished
 *	  (shmem/batch_state.c).  A step looks for a member.  If there is none, it
 *	  locks the row of the batch, without waiting, and looks again: a transaction
 *	  that adds a member has locked the row, too, so by then none is under way.
 *	  Then it writes the time and the counts into the row.  This happens once,
 *	  because the row is locked, and a batch that has finished gets no members.
 *
 *	  What waits for the batch is freed by the same step, up to FREE_AT_ONCE
 *	  messages, and the rest by further ones.  Each message is moved, under its
 *	  id, to where a push would put it now.  If the server crashes before the
 *	  last one, the worker goes on when it starts, since the row of a batch that
 *	  has finished stays for 14 days.
 *
 *	  Nothing here waits for a lock that a user can hold.  What is locked is
 *	  left for another step.
 *
 * src/commands/batch_end.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/twophase.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "claim/claim.h"
#include "claim/dead_letter.h"
#include "commands/batch_end.h"
#include "push/dedup.h"
#include "push/push_batch.h"
#include "queue/queue_lock.h"
#include "queue/queue_table.h"
#include "queue/registry.h"
#include "shmem/batch_state.h"
#include "storage/batches.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/compat.h"
#include "util/limits.h"
#include "util/settings.h"

#define FREE_AT_ONCE	1000	/* messages */
#define ROWS_AT_ONCE	1000	/* of queue_data.batch */
#define ENDS_AT_ONCE	16		/* batches that a claim looks at */

/* How long a batch stays open at most, and is remembered when it has finished */
#define BATCH_TIME		(14 * USECS_PER_DAY)

/* A search for a member that is unfinished */
typedef struct MemberSearch
{
	int64		id;				/* the highest one found, or 0 */
	bool		is_changing;	/* a transaction may be about to finish it */
} MemberSearch;

/* Freeing what waits for a batch */
typedef struct Freeing
{
	const Batch *batch;
	bool		only_old;		/* only what has waited for too long */
	TimestampTz now;
	int			n;				/* messages that this step has seen */
	bool		more;			/* there are others */
	bool		left;			/* one was locked, or could not be moved */
	MessageTable active;		/* where free messages go */
	MemoryContext step_context; /* of that */
	MemoryContext context;		/* for one message */

	/* The queue of the last message; queue_id is 0 if there is none */
	int32		queue_id;
	bool		is_open;
	Queue		queue;
} Freeing;

static bool note_member(MessageTable *table, TupleTableSlot *slot, void *arg);
static bool find_member(int64 id, int64 upto, MemberSearch *search);
static BatchEnd look_for_end(Batch *batch, int64 *member);
static bool open_queue_of(Freeing *freeing, int32 queue_id);
static HeapTuple form_freed(Freeing *freeing, MessageTable *from,
							MessageTable *to, HeapTuple tuple);
static bool free_message(Freeing *freeing, MessageTable *table,
						 TupleTableSlot *slot);
static bool free_next(MessageTable *table, TupleTableSlot *slot, void *arg);
static void free_waiting(Freeing *freeing);
static int	awaited_batches(int32 queue_id, int64 *ids);
static bool free_in_queue(int32 queue_id);

/* --- Finding that a batch has finished --- */

/* Callback of batches_scan */
static bool
note_member(MessageTable *table, TupleTableSlot *slot, void *arg)
{
	MemberSearch *search = arg;
	HeapTuple	tuple = row_tuple(slot);

	if (message_row_id(tuple) > search->id)
	{
		search->id = message_row_id(tuple);
		search->is_changing = (tuple->t_data->t_infomask &
							   HEAP_XMAX_INVALID) == 0;
	}
	return false;
}

/*
 * Look for a member with an id up to "upto".  Returns false if a segment is
 * locked.
 */
static bool
find_member(int64 id, int64 upto, MemberSearch *search)
{
	bool		complete;
	bool		stale;

	segment_push_snapshot();
	do
	{
		search->id = 0;
		complete = batches_scan(id, false, upto, AccessShareLock, false,
								note_member, search);
		stale = segment_snapshot_is_stale();
		if (stale)
			segment_renew_snapshot();
	} while (stale);
	PopActiveSnapshot();
	return complete;
}

/*
 * Look whether a batch has finished, and if so, write that into its row.  The
 * search begins at the member that was found last, *member: the entries of later
 * ones, which were finished, may still be there.
 */
static BatchEnd
look_for_end(Batch *batch, int64 *member)
{
	MemberSearch search;
	bool		locked = false;

	if (batch->closed_at == DT_NOEND &&
		batch->created_at + BATCH_TIME > GetCurrentTimestamp())
		return BATCH_OPEN;
	for (;;)
	{
		if (!find_member(batch->id, *member, &search))
			return BATCH_UNDECIDED;
		if (search.id != 0)
		{
			*member = search.id;

			/*
			 * If a prepared transaction has deleted it, nobody reports when
			 * that is committed.
			 */
			return search.is_changing && max_prepared_xacts > 0 ?
				BATCH_UNDECIDED : BATCH_HAS_MEMBER;
		}
		if (*member != BATCH_NOT_PROBED)
		{
			/* Later ones may have been added since. */
			*member = BATCH_NOT_PROBED;
			continue;
		}
		if (locked)
			break;

		/* A member may be being added, or was added since we have looked. */
		if (!batches_lock(batch, LockTupleNoKeyExclusive, LockWaitSkip))
			return BATCH_UNDECIDED;
		locked = true;
	}
	PushActiveSnapshot(GetLatestSnapshot());
	batches_sum_parts(batch->id, &batch->members, &batch->failed);
	PopActiveSnapshot();
	batches_remove_parts(batch->id);
	batch->completed = batch->members - batch->failed;
	batch->finished_at = GetCurrentTimestamp();
	if (batch->closed_at == DT_NOEND)
		batch->closed_at = batch->finished_at;
	batches_update(batch);
	return BATCH_DONE;
}

/* --- Freeing what waits --- */

/* Open the queue of a message.  Returns false if it is locked, or gone. */
static bool
open_queue_of(Freeing *freeing, int32 queue_id)
{
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		paused;

	if (freeing->queue_id == queue_id)
		return freeing->is_open;
	freeing->queue_id = queue_id;
	freeing->is_open = false;
	if (!queue_name_of(queue_id, project, name, &paused) ||
		!queue_lock_try(queue_id))
		return false;
	settings_set("queue.project", project, true);
	freeing->is_open = queue_open_local(name, QUEUE_CLAIM,
										&freeing->queue) &&
		freeing->queue.id == queue_id;
	return freeing->is_open;
}

/* Returns a copy of a message that waits no more, for another table. */
static HeapTuple
form_freed(Freeing *freeing, MessageTable *from, MessageTable *to,
		   HeapTuple tuple)
{
	TupleDesc	desc = RelationGetDescr(from->heap);
	MessageForm form = message_read(tuple);
	TimestampTz ttl = form.expires_at - form.created_at;
	Datum		values[Natts_message];
	bool		isnull[Natts_message];
	Jsonb	   *headers;

	if (HeapTupleHasExternal(tuple))
		tuple = toast_flatten_tuple(tuple, desc);
	heap_deform_tuple(tuple, desc, values, isnull);
	form.created_at = freeing->now;
	form.expires_at = freeing->now + ttl;
	isnull[Anum_message_due_at - 1] = !segment_is_delayed(to->segment);
	values[Anum_message_due_at - 1] =
		TimestampTzGetDatum(freeing->now + USECS_PER_SEC *
							DatumGetInt32(values[Anum_message_after_delay - 1]));
	headers = isnull[Anum_message_headers - 1] ? NULL :
		DatumGetJsonbP(values[Anum_message_headers - 1]);
	values[Anum_message_headers - 1] =
		JsonbPGetDatum(push_batch_headers(headers, freeing->batch));
	isnull[Anum_message_headers - 1] = false;
	isnull[Anum_message_after_batch - 1] = true;
	isnull[Anum_message_after_delay - 1] = true;
	isnull[Anum_message_after_success - 1] = true;
	return message_row_form(RelationGetDescr(to->heap), &form, values, isnull);
}

/*
 * Free a message, or make it a dead letter.  Returns false if it is locked, or
 * cannot be moved now.
 */
static bool
free_message(Freeing *freeing, MessageTable *table, TupleTableSlot *slot)
{
	const Batch *batch = freeing->batch;
	TupleDesc	desc = RelationGetDescr(table->heap);
	HeapTuple	tuple;
	Datum		key;
	bool		isnull;
	bool		fails;
	int			delay;

	if (!open_queue_of(freeing, message_row_queue(row_tuple(slot))) ||
		!message_lock_as_seen(table, slot, LockTupleExclusive, LockWaitSkip))
		return false;
	tuple = heap_copytuple(row_tuple(slot));
	fails = message_read(tuple).created_at <= freeing->now ||
		(batch->failed > 0 &&
		 DatumGetBool(heap_getattr(tuple, Anum_message_after_success, desc,
								   &isnull)));
	if (fails)
		return dead_letter_move(&freeing->queue, table, tuple,
								DEAD_LETTER_BATCH);

	/* This is its push as far as deduplication goes. */
	key = heap_getattr(tuple, Anum_message_dedup, desc, &isnull);
	if (!isnull)
	{
		bool		taken = dedup_take_key(&freeing->queue,
										   DatumGetUUIDP(key),
										   message_row_id(tuple));

		if (!taken)
		{
			message_delete_locked(table, tuple);
			counts_add(freeing->queue.id, JOB_DUPLICATES, 1);
			return true;
		}
	}

	delay = DatumGetInt32(heap_getattr(tuple, Anum_message_after_delay, desc,
									   &isnull));

	/* It becomes due, and stays in its table till then. */
	if (delay > 0)
	{
		message_update_locked(table, tuple,
							  form_freed(freeing, table, table, tuple));
		return true;
	}
	if (freeing->active.heap == NULL)
	{
		/* It stays open for the next messages. */
		MemoryContext old = MemoryContextSwitchTo(freeing->step_context);
		bool		opened = segment_open_active(&freeing->active,
												 RING_MESSAGES, false);

		MemoryContextSwitchTo(old);
		if (!opened)
			return false;
	}
	message_insert(&freeing->active,
				   form_freed(freeing, table, &freeing->active, tuple));
	message_delete_moved(table, tuple);
	return true;
}

/* Callback of batches_scan */
static bool
free_next(MessageTable *table, TupleTableSlot *slot, void *arg)
{
	Freeing    *freeing = arg;
	MemoryContext old;

	if (freeing->only_old &&
		message_read(row_tuple(slot)).created_at > freeing->now)
		return true;
	if (freeing->n == FREE_AT_ONCE)
	{
		freeing->more = true;
		return false;
	}
	old = MemoryContextSwitchTo(freeing->context);
	if (free_message(freeing, table, slot))
		freeing->n++;
	else
		freeing->left = true;

	/* The next one may have the same deduplication key. */
	CommandCounterIncrement();
	MemoryContextSwitchTo(old);
	MemoryContextReset(freeing->context);
	return true;
}

/* Free some of what waits for a batch. */
static void
free_waiting(Freeing *freeing)
{
	freeing->now = GetCurrentTimestamp();
	freeing->step_context = CurrentMemoryContext;
	freeing->context = AllocSetContextCreate(CurrentMemoryContext,
											 "a message that is freed",
											 ALLOCSET_DEFAULT_SIZES);

	/* It does not become stale: only the worker empties segments. */
	segment_push_snapshot();
	if (!batches_scan(freeing->batch->id, true, PG_INT64_MAX,
					  RowExclusiveLock, false, free_next, freeing))
		freeing->left = true;
	PopActiveSnapshot();
	if (freeing->active.heap != NULL)
		message_table_close(&freeing->active, true);
	MemoryContextDelete(freeing->context);
	CommandCounterIncrement();
}

/* --- Steps --- */

/*
 * Look whether a batch has finished, and free some of what waits for it.
 * *member is the member that was found last, or BATCH_NOT_PROBED, and is set if
 * one is the result.  The caller commits next.
 */
BatchEnd
batch_end_step(int64 id, int64 *member)
{
	Batch		batch;
	Freeing		freeing = {.batch = &batch};

	if (!batches_fetch(id, &batch))
	{
		/* Its shard has left: remove what its members have left behind. */
		batches_remove_parts(id);
		return BATCH_MISSING;
	}
	if (batch.finished_at == DT_NOEND)
	{
		BatchEnd	result = look_for_end(&batch, member);

		if (result != BATCH_DONE)
			return result;
	}
	free_waiting(&freeing);
	return freeing.more ? BATCH_FREES :
		freeing.left ? BATCH_UNDECIDED : BATCH_DONE;
}

/*
 * List up to max batches above *marker, which is advanced.  Returns false when
 * there are no more.
 */
bool
batch_end_list_step(int64 *marker, int64 *ids, int *n, int max)
{
	Relation	rel;
	Oid			index;
	ScanKeyData key;
	RowScan		scan;
	HeapTuple	tuple;

	*n = 0;
	if (!OidIsValid(catalog_oid(CATALOG_BATCH)))
		return false;
	rel = catalog_open(CATALOG_BATCH, AccessShareLock, &index);
	ScanKeyInit(&key, Anum_batch_id, BTGreaterStrategyNumber, F_INT8GT,
				Int64GetDatum(*marker));
	row_scan_begin(&scan, rel, index, &key, 1);
	while (*n < max && HeapTupleIsValid(tuple = row_scan_next(&scan)))
		*marker = ids[(*n)++] = DatumGetInt64(row_getattr(rel, tuple,
														  Anum_batch_id));
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
	return *n == max;
}

/*
 * Go over some batches above *marker, which is advanced: forget those that have
 * finished long ago, and look for messages that have waited for too long.
 * Returns false when there are no more.
 */
bool
batch_end_old_step(int64 *marker)
{
	int64		ids[ROWS_AT_ONCE];
	int			n;
	bool		more = batch_end_list_step(marker, ids, &n, ROWS_AT_ONCE);
	TimestampTz now = GetCurrentTimestamp();

	for (int i = 0; i < n; i++)
	{
		Batch		batch;
		Freeing		freeing = {.batch = &batch,.only_old = true};

		CHECK_FOR_INTERRUPTS();
		if (!batches_fetch(ids[i], &batch))
			continue;
		if (batch.finished_at != DT_NOEND)
		{
			if (batch.finished_at + BATCH_TIME <= now &&
				batches_lock(&batch, LockTupleExclusive, LockWaitSkip))
			{
				Relation	rel = catalog_open(CATALOG_BATCH,
											   RowExclusiveLock, NULL);

				simple_heap_delete(rel, &batch.tuple->t_self);
				table_close(rel, NoLock);
			}
		}

		/* Only then can a message have waited for so long. */
		else if (batch.created_at +
				 setting_max_message_delay * USECS_PER_SEC <= now)
			free_waiting(&freeing);
	}
	CommandCounterIncrement();
	return more;
}

/* --- Without a worker --- */

/*
 * Look whether a batch has finished, and free what waits for it, in a database
 * without a worker.  Returns whether it has finished.
 */
bool
batch_end_here(int64 id)
{
	BatchEnd	end;
	int64		member = BATCH_NOT_PROBED;
	int			nest_level;
	int			context;
	Oid			user;

	/*
	 * As the worker: what waits may be in queues and projects of other roles.
	 * No code of users runs meanwhile, and an error restores the user and the
	 * settings at the rollback.
	 */
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID,
						   context | SECURITY_LOCAL_USERID_CHANGE);
	nest_level = NewGUCNestLevel();
	while ((end = batch_end_step(id, &member)) == BATCH_FREES)
		;
	AtEOXact_GUC(false, nest_level);
	SetUserIdAndSecContext(user, context);
	return end == BATCH_DONE;
}

/*
 * List some of the batches for which messages of a queue wait.  Returns their
 * number.
 */
static int
awaited_batches(int32 queue_id, int64 *ids)
{
	int			n = 0;

	for (int i = 0; i < DELAYED_SEGMENTS; i++)
	{
		MessageTable table;
		TupleTableSlot *slot;

		if (!segment_in_use(FIRST_DELAYED_SEGMENT + i) ||
			!message_table_try_open(&table, FIRST_DELAYED_SEGMENT + i,
									AccessShareLock))
			continue;
		slot = table_slot_create(table.heap, NULL);
		for (int priority = 0; priority < QUEUE_PRIORITIES; priority++)
		{
			ScanKeyData keys[3];
			IndexScanDesc scan;

			ScanKeyInit(&keys[0], Anum_delayed_due_idx_queue_id,
						BTEqualStrategyNumber, F_INT4EQ,
						Int32GetDatum(queue_id));
			ScanKeyInit(&keys[1], Anum_delayed_due_idx_priority,
						BTEqualStrategyNumber, F_INT2EQ,
						Int16GetDatum(priority));
			ScanKeyInit(&keys[2], Anum_delayed_due_idx_due_at,
						BTEqualStrategyNumber, F_TIMESTAMPTZ_EQ,
						TimestampTzGetDatum(DT_NOEND));
			scan = compat_index_beginscan(table.heap, table.due_index,
										  GetActiveSnapshot(), 3);
			index_rescan(scan, keys, 3, NULL, 0);
			while (n < ENDS_AT_ONCE &&
				   index_getnext_slot(scan, ForwardScanDirection, slot))
			{
				bool		isnull;
				int64		id = DatumGetInt64(slot_getattr(slot,
															Anum_message_after_batch,
															&isnull));

				/* Neighbors mostly wait for the same one. */
				if (!isnull && (n == 0 || ids[n - 1] != id))
					ids[n++] = id;
			}
			index_endscan(scan);
		}
		ExecDropSingleTupleTableSlot(slot);
		message_table_close(&table, false);
	}
	return n;
}

/*
 * Callback of claim.c: look whether batches have finished for which messages
 * of this queue wait.  Returns whether something was freed.
 */
static bool
free_in_queue(int32 queue_id)
{
	int64		ids[ENDS_AT_ONCE];
	int			n;
	bool		freed = false;

	/* Before version 1.2 nothing waits. */
	if (!OidIsValid(catalog_oid(CATALOG_BATCH)))
		return false;
	segment_push_snapshot();
	n = awaited_batches(queue_id, ids);
	PopActiveSnapshot();
	for (int i = 0; i < n; i++)
		freed |= batch_end_here(ids[i]);
	return freed;
}

/* To be called once, when the library is loaded. */
void
batch_end_init(void)
{
	claim_register_empty(free_in_queue);
}
