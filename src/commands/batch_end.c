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
 *	  What waits for the batch is freed by the same step, and the rest by
 *	  further ones.  Each message is moved, under its id, to where a push would
 *	  put it now.  If the server crashes before the last one, the worker goes
 *	  on when it starts.  The row of a batch stays for 14 days, and as long as
 *	  messages wait for it.
 *
 *	  A step is short whether or not the messages can be freed: it reads some
 *	  in the order of their ids, and says up to which one (BatchProgress).
 *
 *	  Nothing here waits for a lock that a user can hold, except for a
 *	  millisecond where a dead letter queue is created.  What is locked is left
 *	  behind.  When all has been read, the worker begins again, after a
 *	  pause, at the first one that was left.
 *
 * src/commands/batch_end.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "catalog/numbers.h"
#include "catalog/relations.h"
#include "claim/dead_letter.h"
#include "commands/batch_end.h"
#include "commands/queue_cmds.h"
#include "push/dedup.h"
#include "push/message_end.h"
#include "push/push_batch.h"
#include "queue/registry.h"
#include "storage/batches.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/clock.h"

#define READ_AT_ONCE	1000	/* messages of a segment, */
#define READ_TIME		(USECS_PER_SEC / 200)	/* or as many as are freed in
												 * that time */
#define ROWS_AT_ONCE	1000	/* of queue_data.batch */

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
	BatchStep  *step;
	Batch		batch;
	bool		only_old;		/* only what has waited for too long */
	TimestampTz now;
	MessageTable active;		/* where free messages go */
	MemoryContext context;		/* for one message */

	/* This step reads messages up to this id, */
	int64		upto;
	int			segment;		/* of this segment at the moment, */
	int			nread;			/* so many in it up to now, */
	int			nread_in_all;
	int64		until;			/* until then, by the monotonic clock */

	/* The queue of the last message; queue_id is 0 if there is none */
	int32		queue_id;
	bool		is_open;
	Queue		queue;
	bool		refuses_dead;	/* it cannot get a dead letter queue now */
} Freeing;

static bool note_member(MessageTable *table, TupleTableSlot *slot, void *arg);
static BatchState find_member(BatchStep *step);
static BatchState look_for_end(Batch *batch, BatchStep *step);
static bool open_queue_of(Freeing *freeing, int32 queue_id);
static bool can_become_dead(Freeing *freeing);
static HeapTuple form_freed(Freeing *freeing, TupleDesc desc, HeapTuple tuple,
							TimestampTz due);
static bool free_message(Freeing *freeing, MessageTable *table,
						 TupleTableSlot *slot);
static bool is_read_later(Freeing *freeing, MessageTable *table, int64 id);
static bool free_next(MessageTable *table, TupleTableSlot *slot, void *arg);
static void free_waiting(Freeing *freeing);

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
 * Look for a member with an id up to that of the one that was found last.
 * Returns BATCH_NONE if there is none, BATCH_UNKNOWN if a segment is locked,
 * or if the member may be about to be finished.
 */
static BatchState
find_member(BatchStep *step)
{
	MemberSearch search = {0};
	bool		complete;

	complete = batches_scan(segment_push_snapshot(), step->id, BATCH_MEMBERS,
							step->progress.witness, AccessShareLock, false,
							note_member, &search);
	PopActiveSnapshot();
	if (!complete)
		return BATCH_UNKNOWN;
	step->progress.witness = search.id != 0 ? search.id : BATCH_NOT_PROBED;
	if (search.id == 0)
		return BATCH_NONE;

	/*
	 * If a prepared transaction has deleted it, nothing is reported when that
	 * is committed.
	 */
	return search.is_changing && max_prepared_xacts > 0 ?
		BATCH_UNKNOWN : BATCH_WITNESS;
}

/*
 * Look whether a batch has finished, and if so, write that into its row.
 * Returns BATCH_WITNESS if it has not finished, BATCH_UNKNOWN if another
 * transaction is in the way.
 */
static BatchState
look_for_end(Batch *batch, BatchStep *step)
{
	BatchState	state;

	if (batch->closed_at == DT_NOEND &&
		batch->created_at + BATCH_TIME > GetCurrentTimestamp())
	{
		step->progress.witness = BATCH_NOT_PROBED;
		return BATCH_WITNESS;
	}

	/*
	 * The entries of members after the last one, which were finished, may
	 * still be there: so we do not begin with them.
	 */
	state = find_member(step);
	if (state != BATCH_NONE)
		return state;

	/*
	 * Where a dump is being restored, members may be missing.  The sequence
	 * comes last.
	 */
	if (!numbers_batch_id_is_used(batch->id))
		return BATCH_UNKNOWN;

	/* A member may be being added, or was added since we have looked. */
	if (!batches_lock(batch, LockTupleNoKeyExclusive, LockWaitSkip))
		return BATCH_UNKNOWN;
	state = find_member(step);
	if (state != BATCH_NONE)
		return state;
	PushActiveSnapshot(GetLatestSnapshot());
	(void) batches_scan_parts(batch, false);
	PopActiveSnapshot();
	batch->finished_at = GetCurrentTimestamp();
	if (batch->closed_at == DT_NOEND)
		batch->closed_at = batch->finished_at;
	batches_write(batch);
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
	freeing->refuses_dead = false;
	freeing->is_open = queue_try_open(queue_id, &freeing->queue, &paused,
									  &locked);
	return freeing->is_open;
}

/*
 * Returns whether a message of the queue can become a dead letter now.  A
 * queue without a dead letter queue gets one: it was not given one when the
 * message was pushed, since a role that may only push must not change the
 * queue, nor keep its owner from that until its transaction ends.
 */
static bool
can_become_dead(Freeing *freeing)
{
	/* Further messages of the queue would not fare better in this step. */
	if (freeing->queue.dead_id == 0 && !freeing->refuses_dead)
		freeing->refuses_dead = !queue_try_require_dead_letters(&freeing->queue);
	return !freeing->refuses_dead && dead_letter_can_move(&freeing->queue);
}

/*
 * Returns a copy of a message that waits no more, and is due then, or at once
 * if that is not in the future.
 */
static HeapTuple
form_freed(Freeing *freeing, TupleDesc desc, HeapTuple tuple, TimestampTz due)
{
	int			columns[] = {
		Anum_message_created_at, Anum_message_due_at, Anum_message_headers,
		Anum_message_after_batch, Anum_message_after_delay,
		Anum_message_after_success
	};
	bool		isnull[] = {false, false, false, true, true, true};
	Datum		values[lengthof(columns)] = {0};
	bool		no_headers;
	Datum		headers = heap_getattr(tuple, Anum_message_headers, desc,
									   &no_headers);

	values[0] = TimestampTzGetDatum(freeing->now);

	/* Without a delay it can be claimed at once, and its lifetime begins. */
	isnull[1] = due <= freeing->now;
	values[1] = TimestampTzGetDatum(due);
	values[2] = JsonbPGetDatum(push_batch_headers(no_headers ? NULL :
												  DatumGetJsonbP(headers),
												  &freeing->batch));
	return heap_modify_tuple_by_cols(tuple, desc, lengthof(columns), columns,
									 values, isnull);
}

/*
 * Free a message, or make it a dead letter, if it has waited for too long, or
 * a member has failed.  Returns false if it, or its queue, is locked, or if it
 * cannot be moved now.
 */
static bool
free_message(Freeing *freeing, MessageTable *table, TupleTableSlot *slot)
{
	TupleDesc	desc = RelationGetDescr(table->heap);
	HeapTuple	tuple = row_tuple(slot);
	bool		fails = message_read(tuple).created_at <= freeing->now;
	bool		isnull;
	Datum		key;
	int			delay;
	TimestampTz due;

	if (freeing->batch.failed > 0)
		fails |= DatumGetBool(heap_getattr(tuple, Anum_message_after_success,
										   desc, &isnull));
	if (!open_queue_of(freeing, message_row_queue(tuple)) ||
		(fails && !can_become_dead(freeing)) ||
		!message_lock_as_seen(table, slot, LockTupleExclusive, LockWaitSkip))
		return false;
	tuple = heap_copytuple(row_tuple(slot));
	if (fails)
		return dead_letter_move(&freeing->queue, table, tuple,
								DEAD_LETTER_BATCH, WARNING, NULL);

	/* This is its push as far as deduplication goes. */
	key = heap_getattr(tuple, Anum_message_dedup, desc, &isnull);
	if (!isnull)
	{
		DedupTake	take = {.queue = &freeing->queue,
			.digest = DatumGetUUIDP(key),.id = message_row_id(tuple),
		.wait = LockWaitSkip};
		int64		waiting;
		TakeResult	result = dedup_take_key(&take, &waiting);

		if (result == KEY_DUPLICATE)
			return message_end(&freeing->queue, table, tuple, END_DUPLICATE,
							   NULL);
		if (result == KEY_BUSY)
			return false;
	}
	delay = DatumGetInt32(heap_getattr(tuple, Anum_message_after_delay, desc,
									   &isnull));
	due = delay < 0 ?
		message_read(tuple).created_at + (delay + 1) * USECS_PER_SEC :
		freeing->now + delay * USECS_PER_SEC;
	if (due > freeing->now)
	{
		/* It becomes due, and stays in its table till then. */
		message_update_locked(table, tuple,
							  form_freed(freeing, desc, tuple, due));
		return true;
	}
	message_insert(&freeing->active,
				   message_copy_to(table, &freeing->active,
								   form_freed(freeing, desc, tuple, due), 0));
	message_delete_locked(table, tuple);
	return true;
}

/*
 * Returns whether a message is left to the next step, since this one has read
 * enough of its segment, or of an earlier one: the next step begins with the
 * lowest id that any of them has left to it.
 */
static bool
is_read_later(Freeing *freeing, MessageTable *table, int64 id)
{
	if (freeing->segment != table->segment)
	{
		freeing->segment = table->segment;
		freeing->nread = 0;
		freeing->until = clock_monotonic() + READ_TIME;
	}
	if (id > freeing->upto)
		return true;

	/* Each segment has one message read, or the steps might not get on. */
	if (freeing->nread == READ_AT_ONCE ||
		(freeing->nread > 0 && clock_monotonic() >= freeing->until))
	{
		freeing->upto = id - 1;
		return true;
	}
	freeing->nread++;
	freeing->nread_in_all++;
	return false;
}

/* Callback of batches_scan */
static bool
free_next(MessageTable *table, TupleTableSlot *slot, void *arg)
{
	Freeing    *freeing = arg;
	BatchStep  *step = freeing->step;
	HeapTuple	tuple = row_tuple(slot);
	int64		id = message_row_id(tuple);
	MemoryContext old;

	if (is_read_later(freeing, table, id))
		return false;
	if (freeing->only_old &&
		message_read(tuple).created_at > freeing->now)
		return true;
	old = MemoryContextSwitchTo(freeing->context);
	if (free_message(freeing, table, slot))
		step->nfreed++;
	else if (step->progress.left == 0 || id < step->progress.left)
		step->progress.left = id;

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
	BatchStep  *step = freeing->step;
	BatchProgress *progress = &step->progress;
	SnapshotToken token;
	bool		complete = false;

	/* What was read while the batch had not finished has to be read again. */
	if (step->is_for_old && !freeing->only_old)
		progress->marker = progress->left = 0;
	step->is_for_old = freeing->only_old;
	freeing->upto = PG_INT64_MAX;
	freeing->segment = NO_SEGMENT;
	freeing->now = GetCurrentTimestamp();
	freeing->context = AllocSetContextCreate(CurrentMemoryContext,
											 "a message that is freed",
											 ALLOCSET_DEFAULT_SIZES);
	token = segment_push_snapshot();
	if (segment_open_active(&freeing->active, RING_MESSAGES, false))
	{
		complete = batches_scan(token, step->id, BATCH_WAITING,
								progress->marker, RowExclusiveLock, false,
								free_next, freeing);
		message_table_close(&freeing->active, step->nfreed > 0);
	}

	/*
	 * The parts go even if something is left: if the worker ends before the
	 * next step, they stay until the batch is forgotten.
	 */
	step->goes_on = complete && freeing->upto != PG_INT64_MAX;
	ereport(DEBUG2,
			(errmsg_internal("read %d messages that wait for batch %lld, and freed %d",
							 freeing->nread_in_all, (long long) step->id,
							 step->nfreed)));
	if (step->goes_on)
		progress->marker = freeing->upto;
	else if (!freeing->only_old && batches_scan_parts(&freeing->batch, true))
		step->goes_on = true;
	else if (complete)
	{
		if (progress->left != 0)
			step->state = BATCH_UNKNOWN;
		progress->marker = progress->left == 0 || freeing->only_old ? 0 :
			progress->left - 1;
		progress->left = 0;
	}
	if (!complete)
		step->state = BATCH_UNKNOWN;
	PopActiveSnapshot();
	MemoryContextDelete(freeing->context);
	CommandCounterIncrement();
}

/* --- Steps --- */

/*
 * Returns a batch above this one that batch_end_step() is to be called for:
 * one that has not finished or has become old, or for which messages wait.
 * Returns 0 if there are no more.
 */
int64
batch_end_next(int64 id)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		waiting = batches_next_waiting(id);
	Batch		batch;

	for (int n = 1; batches_next(id, &batch) && batch.id < waiting; n++)
	{
		CHECK_FOR_INTERRUPTS();
		id = batch.id;
		if (batch.finished_at == DT_NOEND ||
			batch.finished_at + BATCH_TIME <= now || n == ROWS_AT_ONCE)
			return id;
	}
	return waiting == PG_INT64_MAX ? 0 : waiting;
}

/*
 * A step of the worker, which commits next: look whether a batch has finished,
 * and free some of what waits for it.
 */
bool
batch_end_step(void *arg)
{
	BatchStep  *step = arg;

	/* If its row is missing, it may be restored or committed next. */
	Freeing		freeing = {.step = step,.batch.finished_at = DT_NOEND};
	Batch	   *batch = &freeing.batch;

	step->state = BATCH_NONE;
	step->goes_on = false;
	step->nfreed = 0;
	if (batches_fetch(step->id, batch) && batch->finished_at == DT_NOEND)
		step->state = look_for_end(batch, step);
	freeing.only_old = batch->finished_at == DT_NOEND;
	if (!freeing.only_old || step->look_for_old)
		free_waiting(&freeing);
	if (step->goes_on)
		return false;

	/* Forget it. */
	if (step->state == BATCH_NONE && !freeing.only_old &&
		batch->finished_at + BATCH_TIME <= GetCurrentTimestamp() &&
		batches_lock(batch, LockTupleExclusive, LockWaitSkip))
	{
		Relation	rel = catalog_open(CATALOG_BATCH, RowExclusiveLock, NULL);

		simple_heap_delete(rel, &batch->tuple->t_self);
		table_close(rel, NoLock);
	}
	return false;
}
