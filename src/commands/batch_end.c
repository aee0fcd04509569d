/*-------------------------------------------------------------------------
 *
 * batch_end.c
 *	  The end of a batch: finding that it has finished, and freeing what waits.
 *
 * NOTES
 *	  The worker calls batch_end_step() for a batch that may have finished
 *	  (shmem/batch_state.c).  A step looks for a member.  If there is none, it
 *	  locks the row of the batch, without waiting, and looks again: a
 *	  transaction that adds a member has locked the row, too, so by then none
 *	  is under way.  Then it writes the time and the counts into the row.  This
 *	  happens once, because the row is locked, and a batch that has finished
 *	  gets no members.
 *
 *	  What waits for the batch is freed by the same step, up to FREE_AT_ONCE
 *	  messages, and the rest by further ones.  Each message is moved, under
 *	  its id, to where a push would put it now.  If the server crashes before
 *	  the last one, the worker goes on when it starts.  The row of a batch
 *	  stays for 14 days, and as long as messages wait for it.
 *
 *	  Nothing here waits for a lock that a user can hold.  What is locked is
 *	  left for another step.
 *
 *	  Where there is no worker, the sessions that need it call
 *	  batch_end_here(), but not in transaction blocks.
 *
 * src/commands/batch_end.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/table.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "access/xlog.h"
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
#include "queue/finished.h"
#include "queue/registry.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "storage/batches.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/compat.h"

#define FREE_AT_ONCE	1000	/* messages */
#define ROWS_AT_ONCE	1000	/* of queue_data.batch */
#define ENDS_AT_ONCE	100		/* batches that a claim looks at */

/* How long a batch stays open at most, and is remembered afterwards */
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
	int32		only_queue;		/* only messages of this queue, or 0 */
	TimestampTz now;
	int			n;				/* messages that this step has tried */
	int			nfreed;			/* of these */
	bool		more;			/* there are others */
	bool		left;			/* one was locked, or could not be moved */
	MessageTable active;		/* where free messages go */
	MemoryContext step_context; /* that this belongs to */
	MemoryContext context;		/* for one message */

	/* The queue of the last message; queue_id is 0 if there is none */
	int32		queue_id;
	bool		is_open;
	Queue		queue;
} Freeing;

static bool note_member(MessageTable *table, TupleTableSlot *slot, void *arg);
static bool find_member(int64 id, int64 upto, MemberSearch *search);
static BatchState look_for_end(Batch *batch, int64 *member);
static bool open_queue_of(Freeing *freeing, int32 queue_id);
static HeapTuple form_freed(Freeing *freeing, MessageTable *from,
							MessageTable *to, HeapTuple tuple);
static bool freeing_fails(Freeing *freeing, MessageTable *table,
						  HeapTuple tuple);
static bool free_message(Freeing *freeing, MessageTable *table,
						 TupleTableSlot *slot);
static bool free_next(MessageTable *table, TupleTableSlot *slot, void *arg);
static void free_waiting(Freeing *freeing);
static bool may_end_here(void);
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
 * search begins at the member that was found last, *member: the entries of
 * later ones, which were finished, may still be there.  Returns BATCH_WITNESS
 * if it has not finished, BATCH_RETRY if another transaction is in the way.
 */
static BatchState
look_for_end(Batch *batch, int64 *member)
{
	MemberSearch search;
	bool		locked = false;

	if (batch->closed_at == DT_NOEND &&
		batch->created_at + BATCH_TIME > GetCurrentTimestamp())
	{
		*member = BATCH_NOT_PROBED;
		return BATCH_WITNESS;
	}
	for (;;)
	{
		if (!find_member(batch->id, *member, &search))
			return BATCH_RETRY;
		if (search.id != 0)
		{
			*member = search.id;

			/*
			 * If a prepared transaction has deleted it, nothing is reported
			 * when that is committed.
			 */
			return search.is_changing && max_prepared_xacts > 0 ?
				BATCH_RETRY : BATCH_WITNESS;
		}
		if (*member != BATCH_NOT_PROBED)
		{
			/* Later ones may have been added since. */
			*member = BATCH_NOT_PROBED;
			continue;
		}
		if (locked)
			break;

		/*
		 * Where a dump is being restored, members may be missing.  The
		 * sequence comes last.
		 */
		if (!catalog_batch_id_is_used(batch->id))
			return BATCH_RETRY;

		/* A member may be being added, or was added since we have looked. */
		if (!batches_lock(batch, LockTupleNoKeyExclusive, LockWaitSkip))
			return BATCH_RETRY;
		locked = true;
	}
	PushActiveSnapshot(GetLatestSnapshot());
	batches_sum_parts(batch);
	PopActiveSnapshot();
	batch->finished_at = GetCurrentTimestamp();
	if (batch->closed_at == DT_NOEND)
		batch->closed_at = batch->finished_at;
	batches_update(batch);
	return BATCH_NONE;
}

/* --- Freeing what waits --- */

/* Open the queue of a message.  Returns false if it is locked, or gone. */
static bool
open_queue_of(Freeing *freeing, int32 queue_id)
{
	bool		paused;
	bool		locked;

	if (freeing->queue_id == queue_id)
		return freeing->is_open;
	freeing->queue_id = queue_id;
	freeing->is_open = queue_try_open(queue_id, &freeing->queue, &paused,
									  &locked);
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
 * Returns whether a message becomes a dead letter: it has waited for too
 * long, or a member has failed.
 */
static bool
freeing_fails(Freeing *freeing, MessageTable *table, HeapTuple tuple)
{
	const Batch *batch = freeing->batch;
	bool		isnull;

	return message_read(tuple).created_at <= freeing->now ||
		(batch->failed > 0 &&
		 DatumGetBool(heap_getattr(tuple, Anum_message_after_success,
								   RelationGetDescr(table->heap), &isnull)));
}

/*
 * Free a message, or make it a dead letter.  Returns false if it is locked, or
 * cannot be moved now.
 */
static bool
free_message(Freeing *freeing, MessageTable *table, TupleTableSlot *slot)
{
	TupleDesc	desc = RelationGetDescr(table->heap);
	HeapTuple	tuple;
	Datum		key;
	bool		isnull;
	int			delay;

	if (!message_lock_as_seen(table, slot, LockTupleExclusive, LockWaitSkip))
		return false;
	tuple = heap_copytuple(row_tuple(slot));
	if (freeing_fails(freeing, table, tuple))
		return dead_letter_move(&freeing->queue, table, tuple,
								DEAD_LETTER_BATCH);

	/* First, because nothing may fail once the message has its key. */
	delay = DatumGetInt32(heap_getattr(tuple, Anum_message_after_delay, desc,
									   &isnull));
	if (delay == 0 && freeing->active.heap == NULL)
	{
		/* It stays open for the next messages. */
		MemoryContext old = MemoryContextSwitchTo(freeing->step_context);
		bool		opened = segment_open_active(&freeing->active,
												 RING_MESSAGES, false);

		MemoryContextSwitchTo(old);
		if (!opened)
			return false;
	}

	/* This is its push as far as deduplication goes. */
	key = heap_getattr(tuple, Anum_message_dedup, desc, &isnull);
	if (!isnull)
	{
		bool		taken;

		if (!dedup_try_take_key(&freeing->queue, DatumGetUUIDP(key),
								message_row_id(tuple), &taken))
			return false;
		if (!taken)
		{
			message_delete_locked(table, tuple);
			finished_record(&freeing->queue, table, tuple,
							FINISHED_DUPLICATE, NULL, NULL);
			counts_add(freeing->queue.id, JOB_DUPLICATES, 1);
			return true;
		}
	}

	/* It becomes due, and stays in its table till then. */
	if (delay > 0)
	{
		message_update_locked(table, tuple,
							  form_freed(freeing, table, table, tuple));
		return true;
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
	HeapTuple	tuple = row_tuple(slot);
	MemoryContext old;

	CHECK_FOR_INTERRUPTS();
	if ((freeing->only_old &&
		 message_read(tuple).created_at > freeing->now) ||
		(freeing->only_queue != 0 &&
		 message_row_queue(tuple) != freeing->only_queue))
		return true;
	if (freeing->n == FREE_AT_ONCE)
	{
		freeing->more = true;
		return false;
	}
	old = MemoryContextSwitchTo(freeing->context);
	if (!open_queue_of(freeing, message_row_queue(tuple)) ||
		(freeing_fails(freeing, table, tuple) &&
		 !dead_letter_can_move(&freeing->queue)))
		freeing->left = true;
	else
	{
		freeing->n++;
		if (free_message(freeing, table, slot))
			freeing->nfreed++;
		else
			freeing->left = true;

		/* The next one may have the same deduplication key. */
		CommandCounterIncrement();
	}
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

	segment_push_snapshot();
	if (!batches_scan(freeing->batch->id, true, PG_INT64_MAX,
					  RowExclusiveLock, false, free_next, freeing) ||
		segment_snapshot_is_stale())
		freeing->left = true;

	/* Those that were tried in vain come first again, after a pause. */
	if (freeing->nfreed == 0 && freeing->more)
	{
		freeing->more = false;
		freeing->left = true;
	}
	PopActiveSnapshot();
	if (freeing->active.heap != NULL)
		message_table_close(&freeing->active, true);
	MemoryContextDelete(freeing->context);
	CommandCounterIncrement();
}

/* --- Steps --- */

/*
 * Returns a batch above this one that batch_end_step() is to be called for:
 * one that has not finished or has become old, or if "waiting" is set, one
 * for which messages wait.  Returns 0 if there are no more.
 */
int64
batch_end_next(int64 id, bool waiting)
{
	TimestampTz now = GetCurrentTimestamp();
	Batch		batch;

	if (waiting)
	{
		/* Before version 1.2 nothing waits. */
		if (!OidIsValid(catalog_oid(CATALOG_BATCH)))
			return 0;
		segment_push_snapshot();
		id = batches_next_waiting(id);
		PopActiveSnapshot();
		return id;
	}
	for (int i = 0; i < ROWS_AT_ONCE; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!batches_next(id, &batch))
			return 0;
		id = batch.id;
		if (batch.finished_at == DT_NOEND ||
			batch.finished_at + BATCH_TIME <= now)
			break;
	}
	return id;
}

/*
 * Look whether a batch has finished, and free some of what waits for it.
 * *member is the member that was found last, or BATCH_NOT_PROBED, and is set
 * if one is found.  If "look_for_old" is set, what has waited for too long
 * becomes dead letters.  Returns the state that the batch gets.  The caller
 * commits next.
 */
BatchState
batch_end_step(int64 id, int64 *member, bool look_for_old)
{
	/* If its row is missing, it may be restored or committed next. */
	Batch		batch = {.id = id,.finished_at = DT_NOEND};
	Freeing		freeing = {.batch = &batch};
	BatchState	state = BATCH_NONE;

	if (batches_fetch(id, &batch) && batch.finished_at == DT_NOEND)
		state = look_for_end(&batch, member);
	freeing.only_old = batch.finished_at == DT_NOEND;
	if (freeing.only_old && !look_for_old)
		return state;
	free_waiting(&freeing);

	/*
	 * In this step, even if something is left: if the worker ends before the
	 * next one, the parts of a batch that has finished stay until the batch
	 * is forgotten.
	 */
	if (!freeing.only_old && batches_remove_parts(&batch))
		freeing.more = true;
	if (freeing.more)
		return BATCH_MAY_END;
	if (freeing.left)
		return BATCH_RETRY;

	/* Forget it. */
	if (!freeing.only_old &&
		batch.finished_at + BATCH_TIME <= GetCurrentTimestamp() &&
		batches_lock(&batch, LockTupleExclusive, LockWaitSkip))
	{
		Relation	rel = catalog_open(CATALOG_BATCH, RowExclusiveLock, NULL);

		simple_heap_delete(rel, &batch.tuple->t_self);
		table_close(rel, NoLock);
	}
	return state;
}

/* --- Without a worker --- */

/* Returns whether this session has to do the worker's part, and may. */
static bool
may_end_here(void)
{
	/*
	 * In a transaction block, the row of the batch would stay locked until
	 * that ends.  Sessions that add members would wait: for ever, if it is
	 * prepared.
	 */
	if (IsTransactionBlock())
		return false;
	if (shmem_exists())
		database_join();
	return !database_has_worker() && !XactReadOnly && !RecoveryInProgress();
}

/*
 * In a database without a worker: look whether a batch has finished, and free
 * some of what waits for it, in this queue or (0) in any.  Returns whether
 * something was freed.
 */
bool
batch_end_here(int64 id, int32 queue_id)
{
	Batch		batch;
	Freeing		freeing = {.batch = &batch,.only_queue = queue_id};
	int64		member = BATCH_NOT_PROBED;
	int			nest_level;
	int			context;
	Oid			user;

	/* What this transaction has done counts when it is committed. */
	if (!may_end_here() || batches_have_records(id) ||
		!batches_fetch(id, &batch))
		return false;

	/*
	 * As the worker: the queue may be in a project of another role.  No code
	 * of users runs meanwhile, and an error restores the user and the
	 * settings at the rollback.
	 */
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID,
						   context | SECURITY_LOCAL_USERID_CHANGE);
	nest_level = NewGUCNestLevel();
	if (batch.finished_at != DT_NOEND ||
		look_for_end(&batch, &member) == BATCH_NONE)
	{
		free_waiting(&freeing);
		(void) batches_remove_parts(&batch);
	}
	AtEOXact_GUC(false, nest_level);
	SetUserIdAndSecContext(user, context);
	return freeing.nfreed > 0;
}

/*
 * Callback of claim.c: look whether batches have finished for which messages
 * of this queue may wait.  Each call looks at others, if there are many.
 */
static bool
free_in_queue(int32 queue_id)
{
	static int64 marker = 0;
	bool		freed = false;

	if (!may_end_here())
		return false;
	for (int i = 0; i < ENDS_AT_ONCE && !freed; i++)
	{
		marker = batch_end_next(marker, true);
		if (marker == 0)
			break;
		freed = batch_end_here(marker, queue_id);
	}
	return freed;
}

/* To be called once, when the library is loaded. */
void
batch_end_init(void)
{
	claim_register_empty(free_in_queue);
}
