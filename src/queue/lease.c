/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  The SQL functions on a claim: query, renew, release, complete; and
 *	  deleting messages, under a claim or without.
 *
 * NOTES
 *	  A claim id says in which range of ids the claim's messages lie.  A
 *	  claim is live while a message in that range carries its token and the
 *	  clock has not reached the end that is written there.  Each row is
 *	  judged by itself, once it is locked or as it is changed.
 *
 *	  Who changes a row waits for whoever holds it, since a claim's messages
 *	  are its holder's: that can only be another session of the same worker,
 *	  or somebody with plain SQL.  If the row has changed meanwhile,
 *	  everything is looked at again with a new snapshot.
 *
 *	  The claim may run out during such a wait, and another worker take those
 *	  of its messages that nobody has locked.  So the clock counts that is
 *	  read after the last wait.  Renew and release lock all rows first and
 *	  change them all, or none, when that is done.  Complete and delete need
 *	  not do that: they change at once, look at the clock at last, and take
 *	  everything back with an error when it is past the claim's end.
 *
 * src/queue/lease.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "nodes/pg_list.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "catalog/message_id.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "queue/counters.h"
#include "queue/dead_letter.h"
#include "queue/dedup.h"
#include "queue/lease.h"
#include "queue/message_result.h"
#include "queue/options.h"
#include "queue/registry.h"
#include "queue/root_job.h"
#include "storage/attributes.h"
#include "storage/claim_id.h"
#include "storage/message_scan.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/errcodes.h"
#include "util/settings.h"

#define Natts_claim		6

#define QUICK_TRIES			10	/* of a handler; from then on it waits */
#define SLOW_TRY			USECS_PER_SEC	/* at least so long */
#define RETRY_JITTER	0.25	/* of the delay, at most */
#define RETRY_ERROR_MAX 8192	/* bytes that are kept with a message */

PG_FUNCTION_INFO_V1(sql_claim_get);
PG_FUNCTION_INFO_V1(sql_claim_messages);
PG_FUNCTION_INFO_V1(sql_claim_renew);
PG_FUNCTION_INFO_V1(sql_claim_release);
PG_FUNCTION_INFO_V1(sql_claim_complete);
PG_FUNCTION_INFO_V1(sql_message_delete);
PG_FUNCTION_INFO_V1(sql_messages_delete);
PG_FUNCTION_INFO_V1(sql_message_retry);

/* A call that does the same with every message of a claim. */
typedef struct Lease
{
	const Queue *queue;
	TimestampTz now;
	TimestampTz ends;			/* the claim, for whatever was changed */
	int			ttl;			/* renew */
	int			grace;			/* renew; -1: as before */
	TimestampTz until;			/* renew: out */
	int			delay;			/* release */
	MessageTable delayed;		/* release, once there is a delay */
	List	   *runs;			/* complete: KeyRuns, out */
} Lease;

typedef TM_Result (*LeaseAction) (Lease *lease, ScanRow *row);

/* What became of deleting a message. */
typedef enum DeleteResult
{
	DELETE_DONE,
	DELETE_TOO_LATE,			/* done, but the claim has run out */
	DELETE_NONE,				/* no such message */
	DELETE_CLAIMED,				/* another claim, or any, holds it */
	DELETE_FREE,				/* no claim holds it */
	DELETE_AGAIN				/* it changed while we waited */
} DeleteResult;

static bool get_claim(FunctionCallInfo fcinfo, int arg, const Queue *queue,
					  ClaimId *claim);
static bool is_in_claim(const MessageForm *form, const ClaimId *claim,
						TimestampTz now);
static bool claim_is_live(const Queue *queue, const ClaimId *claim);
static int64 for_each_message(Lease *lease, const Queue *queue,
							  const ClaimId *claim, LeaseAction action);
static TM_Result lock_row(Lease *lease, ScanRow *row);
static TM_Result renew_row(Lease *lease, ScanRow *row);
static TM_Result release_row(Lease *lease, ScanRow *row);
static TM_Result complete_row(Lease *lease, ScanRow *row);
static void park(Lease *lease, ScanRow *row);
static void end_exhausted(const Queue *queue, MessageTable *table,
						  HeapTuple tuple);
static int64 retry_delay(const Queue *queue, MessageTable *table,
						 HeapTuple tuple);
static void give_back(MessageTable *table, HeapTuple tuple, TimestampTz due,
					  bool at_once);
static DeleteResult try_retry(const Queue *queue, int64 id,
							  const ClaimId *claim, const char *error,
							  int delay, bool by_handler, LockWaitPolicy wait,
							  TimestampTz *due);
pg_noreturn static void not_in_claim(int64 id, DeleteResult result,
									 const char *hint);
static DeleteResult try_delete(const Queue *queue, int64 id,
							   const ClaimId *claim, DedupUse **use,
							   DedupRun **run);
static bool delete_message(const Queue *queue, int64 id,
						   const ClaimId *claim, bool *live, List **uses);
static void drop_uses(List *uses);
static int	compare_ids(const void *a, const void *b);

/* The claim that the caller names is not live: QU001. */
void
claim_not_live(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_CLAIM_NOT_LIVE),
			 errmsg("claim is not live"),
			 errdetail("It has expired, was released or completed, or never existed."),
			 errhint("Others may have its messages now: roll back what was done for them, and claim again.")));
}

/* The claim id in an argument; false for NULL, malformed and forged ones. */
static bool
get_claim(FunctionCallInfo fcinfo, int arg, const Queue *queue,
		  ClaimId *claim)
{
	return !PG_ARGISNULL(arg) &&
		claim_id_parse(queue->id, text_to_cstring(PG_GETARG_TEXT_PP(arg)),
					   claim);
}

static bool
is_in_claim(const MessageForm *form, const ClaimId *claim, TimestampTz now)
{
	return form->claim_token == claim->token && message_is_claimed(form, now);
}

/* Has the claim any message left? */
static bool
claim_is_live(const Queue *queue, const ClaimId *claim)
{
	TimestampTz now = GetCurrentTimestamp();
	MessageScan *scan;
	ScanRow		row;
	bool		live = false;

	segment_refresh();
	segment_push_snapshot();
	scan = scan_begin_claim(queue->id, claim, AccessShareLock, true);
	while (!live && scan_next(scan, &row))
		live = is_in_claim(row.form, claim, now);
	scan_end(scan);
	PopActiveSnapshot();
	return live;
}

/*
 * Do the same with each message of a claim; returns their number.  Rows that
 * somebody changes at the same time are looked at again.
 */
static int64
for_each_message(Lease *lease, const Queue *queue, const ClaimId *claim,
				 LeaseAction action)
{
	int64		n = 0;
	bool		again;
	bool		everywhere = false;

	lease->queue = queue;
	lease->ends = DT_NOEND;
	do
	{
		MessageScan *scan;
		ScanRow		row;

		again = false;
		lease->now = GetCurrentTimestamp();
		segment_push_snapshot();
		scan = scan_begin_claim(queue->id, claim, RowExclusiveLock,
								everywhere);
		while (scan_next(scan, &row))
		{
			TimestampTz ends;

			if (!is_in_claim(row.form, claim, lease->now))
				continue;
			ends = row.form->claimed_until;
			switch (action(lease, &row))
			{
				case TM_Ok:
					lease->ends = Min(lease->ends, ends);
					n++;
					break;
				case TM_Deleted:	/* or moved to another segment */
				case TM_Updated:
					again = true;
					break;
				case TM_Invisible:
				case TM_SelfModified:
				case TM_BeingModified:
				case TM_WouldBlock:
				default:
					elog(ERROR, "unexpected result of changing a claimed message");
			}
		}
		scan_end(scan);
		PopActiveSnapshot();
		CommandCounterIncrement();

		/* Before there is none, look where there should be none. */
		if (n == 0 && !again && !everywhere)
		{
			segment_refresh();
			everywhere = again = true;
		}
	} while (again);
	return n;
}

/* Wait for whoever holds a message of the claim. */
static TM_Result
lock_row(Lease *lease, ScanRow *row)
{
	return message_lock(row->table, row->slot, LockTupleNoKeyExclusive,
					LockWaitBlock);
}

static TM_Result
renew_row(Lease *lease, ScanRow *row)
{
	HeapTuple	tuple = heap_copytuple(row->tuple);
	MessageForm *form = MESSAGE_FORM(tuple);
	ItemPointerData tid = tuple->t_self;
	TM_Result	result;

	message_set_claim(form, lease->now, lease->ttl,
			 lease->grace < 0 ? form->claim_grace : lease->grace);
	lease->until = form->claimed_until;
	result = message_update(row->table, &tid, tuple);
	heap_freetuple(tuple);
	return result;
}

/* Give a message back that is not to be handed out before the delay is over. */
static void
park(Lease *lease, ScanRow *row)
{
	HeapTuple	tuple;

	if (lease->delayed.heap == NULL)
		segment_open_delayed(&lease->delayed);
	tuple = message_copy_to(row->table, &lease->delayed, row->tuple,
						lease->now + lease->delay * USECS_PER_SEC);
	message_clear_claim(MESSAGE_FORM(tuple));
	message_insert(&lease->delayed, tuple);
	message_delete_locked(row->table, row->tuple);
	heap_freetuple(tuple);
}

/*
 * A message that was claimed as often as its queue allows is given back:
 * make it a dead letter.  If that is not possible now, its claim has run out,
 * so that the background worker or the next claim tries again.
 */
static void
end_exhausted(const Queue *queue, MessageTable *table, HeapTuple tuple)
{
	ItemPointerData tid = tuple->t_self;
	MessageForm *form = MESSAGE_FORM(tuple);

	if (dead_letter_move(queue, table, tuple))
		return;
	form->claimed_until = Min(form->claimed_until, GetCurrentTimestamp());
	message_update_locked(table, &tid, tuple);
}

static TM_Result
release_row(Lease *lease, ScanRow *row)
{
	HeapTuple	tuple = heap_copytuple(row->tuple);
	ItemPointerData tid = tuple->t_self;

	if (!dedup_is_duplicate(lease->queue, row->table, tuple) &&
		options_is_exhausted(lease->queue, row->table, tuple))
		end_exhausted(lease->queue, row->table, tuple);
	else if (lease->delay > 0)
		park(lease, row);
	else
	{
		message_clear_claim(MESSAGE_FORM(tuple));
		message_update_locked(row->table, &tid, tuple);
	}
	heap_freetuple(tuple);
	return TM_Ok;
}

static TM_Result
complete_row(Lease *lease, ScanRow *row)
{
	TM_Result	result = message_delete(row->table, row->tuple);
	DedupRun	   *run;

	if (result == TM_Ok)
	{
		dedup_drop_key(row->table, row->tuple);
		run = dedup_run_of(RelationGetDescr(row->table->heap), row->tuple);
		if (run != NULL)
			lease->runs = lappend(lease->runs, run);
	}
	return result;
}

/*
 * claim_get(q text, claim_id text)
 * returns table (claim_id text, ttl int, age int, grace int,
 *				  expires_at timestamptz, message_count int)
 *
 * One row that describes a live claim: for how many seconds it was claimed or
 * last renewed, how many have passed since, its grace, when it ends, and how
 * many messages it still has.
 *
 * No row when the id is NULL, malformed, unknown or not live.
 * Errors: 42501 no right to claim.
 * Source: Zaqar, query claim.
 */
Datum
sql_claim_get(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Queue		queue;
	ClaimId		claim;
	TimestampTz now;
	MessageScan *scan;
	ScanRow		row;
	MessageForm form;
	int			n = 0;
	Datum		values[Natts_claim];
	bool		isnull[Natts_claim] = {false};

	InitMaterializedSRF(fcinfo, 0);
	if (!queue_open(name, QUEUE_READ, &queue) ||
		!get_claim(fcinfo, 1, &queue, &claim))
		return (Datum) 0;

	segment_refresh();
	now = GetCurrentTimestamp();
	segment_push_snapshot();
	scan = scan_begin_claim(queue.id, &claim, AccessShareLock, true);
	while (scan_next(scan, &row))
		if (is_in_claim(row.form, &claim, now))
		{
			form = *row.form;
			n++;
		}
	scan_end(scan);
	PopActiveSnapshot();
	if (n == 0)
		return (Datum) 0;

	values[0] = PG_GETARG_DATUM(1);
	values[1] = Int32GetDatum(result_seconds(form.claimed_at,
											 form.claimed_until));
	values[2] = Int32GetDatum(result_seconds(form.claimed_at, now));
	values[3] = Int32GetDatum(form.claim_grace);
	values[4] = TimestampTzGetDatum(form.claimed_until);
	values[5] = Int32GetDatum(n);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	return (Datum) 0;
}

/*
 * claim_messages(q text, claim_id text) returns setof queue_message
 *
 * The messages that are still in a live claim, in the order in which they
 * were claimed.  No row when the id is NULL, malformed, unknown or not live.
 *
 * Errors: 42501 no right to claim.
 * Source: Zaqar, query claim.
 */
Datum
sql_claim_messages(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Queue		queue;
	ClaimId		claim;
	MessageResult result;
	TimestampTz now;
	MessageScan *scan;
	ScanRow		row;

	result_begin(&result, fcinfo);
	if (!queue_open(name, QUEUE_READ, &queue) ||
		!get_claim(fcinfo, 1, &queue, &claim))
		return (Datum) 0;

	segment_refresh();
	now = GetCurrentTimestamp();
	segment_push_snapshot();
	scan = scan_begin_claim(queue.id, &claim, AccessShareLock, true);
	while (scan_next(scan, &row))
		if (is_in_claim(row.form, &claim, now))
			result_put(&result, &queue, RelationGetDescr(row.table->heap),
					   row.tuple, now);
	scan_end(scan);
	PopActiveSnapshot();
	return (Datum) 0;
}

/*
 * claim_renew(q text, claim_id text, ttl int, grace int = NULL)
 * returns timestamptz
 *
 * The claim starts again: it ends ttl seconds from now, its age is 0, and its
 * messages live at least grace seconds (NULL: as many as before) longer.
 *
 * Result: when it ends; NULL when the id is NULL, malformed, unknown or not
 * live.
 * Errors: 22004 and 22023 arguments, 42501 no right to claim.
 * Source: Zaqar, update (renew) claim.
 */
Datum
sql_claim_renew(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Lease		lease = {0};
	Queue		queue;
	ClaimId		claim;

	queue_prevent("claim_renew()");
	if (PG_ARGISNULL(2))
		arg_missing("ttl");
	lease.ttl = arg_check_claim_ttl(PG_GETARG_INT32(2));
	lease.grace = PG_ARGISNULL(3) ? -1 : arg_check_grace(PG_GETARG_INT32(3));

	if (!queue_open(name, QUEUE_CLAIM, &queue) ||
		!get_claim(fcinfo, 1, &queue, &claim) ||
		for_each_message(&lease, &queue, &claim, lock_row) == 0 ||
		for_each_message(&lease, &queue, &claim, renew_row) == 0)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(lease.until);
}

/*
 * claim_release(q text, claim_id text, delay int = 0) returns bigint
 *
 * Gives the rest of the claim back.  The messages are free at their old place
 * at once, or after delay seconds; those that were claimed as often as the
 * queue allows become dead letters.
 *
 * Result: the number of messages given back; 0 when the id is NULL,
 * malformed, unknown or not live.
 * Errors: 22004 and 22023 arguments, 42501 no right to claim.
 * Source: Zaqar, delete (release) claim.
 */
Datum
sql_claim_release(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Lease		lease = {0};
	Queue		queue;
	ClaimId		claim;
	int64		n;

	queue_prevent("claim_release()");
	if (PG_ARGISNULL(2))
		arg_missing("delay");
	lease.delay = arg_check_delay(PG_GETARG_INT32(2));

	if (!queue_open(name, QUEUE_CLAIM, &queue) ||
		!get_claim(fcinfo, 1, &queue, &claim) ||
		for_each_message(&lease, &queue, &claim, lock_row) == 0)
		PG_RETURN_INT64(0);
	root_job_forget();
	n = for_each_message(&lease, &queue, &claim, release_row);
	if (lease.delayed.heap != NULL)
		message_table_close(&lease.delayed, true);
	PG_RETURN_INT64(n);
}

/* Delete what is left of a claim; an error when it is not live. */
int64
claim_complete(const Queue *queue, const char *claim_id)
{
	Lease		lease = {0};
	ClaimId		claim;
	int64		n = 0;
	ListCell   *cell;

	if (claim_id_parse(queue->id, claim_id, &claim))
		n = for_each_message(&lease, queue, &claim, complete_row);
	if (n == 0 || GetCurrentTimestamp() >= lease.ends)
		claim_not_live();
	foreach(cell, lease.runs)
		dedup_finish_run(queue, (DedupRun *) lfirst(cell), false);
	counters_add(queue->id, JOB_COMPLETED, n);
	return n;
}

/*
 * claim_complete(q text, claim_id text) returns bigint
 *
 * Deletes the whole rest of the claim at once.
 *
 * Result: the number of messages deleted.
 * Errors: QU001 the claim is not live (also when the id is NULL or
 * malformed, or nothing is left of it), 42501 no right to claim.
 * Source: MediaWiki, JobQueue::ack, for a batch.
 */
Datum
sql_claim_complete(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Queue		queue;

	queue_prevent("claim_complete()");
	if (!queue_open(name, QUEUE_CLAIM, &queue) || PG_ARGISNULL(1))
		claim_not_live();
	PG_RETURN_INT64(claim_complete(&queue,
								   text_to_cstring(PG_GETARG_TEXT_PP(1))));
}

/*
 * Delete one message if the claim, or nobody (NULL), holds it; waits for
 * whoever has it locked.
 */
static DeleteResult
try_delete(const Queue *queue, int64 id, const ClaimId *claim, DedupUse **use,
		   DedupRun **run)
{
	MessageTable table;
	TupleTableSlot *slot;
	HeapTuple	tuple;
	MessageForm *form;
	TimestampTz now;
	DeleteResult result;

	if (!scan_find(queue->id, id, RowExclusiveLock, &table, &slot))
		return DELETE_NONE;
	tuple = row_tuple(slot);
	form = MESSAGE_FORM(tuple);
	now = GetCurrentTimestamp();
	if (message_is_expired(form, now))
		result = DELETE_NONE;
	else if (claim == NULL ? message_is_claimed(form, now) :
			 !is_in_claim(form, claim, now))
		result = message_is_claimed(form, now) ? DELETE_CLAIMED : DELETE_FREE;
	else
		switch (message_delete(&table, tuple))
		{
			case TM_Ok:
				*use = dedup_use_of(RelationGetDescr(table.heap), tuple);
				if (claim != NULL)
					*run = dedup_run_of(RelationGetDescr(table.heap), tuple);
				/* The claim may have run out while we waited. */
				result = claim != NULL &&
					GetCurrentTimestamp() >= form->claimed_until ?
					DELETE_TOO_LATE : DELETE_DONE;
				break;
			case TM_Updated:
			case TM_Deleted:
				result = DELETE_AGAIN;
				break;
			case TM_Invisible:
			case TM_SelfModified:
			case TM_BeingModified:
			case TM_WouldBlock:
			default:
				elog(ERROR, "unexpected result of deleting a message");
		}
	ExecDropSingleTupleTableSlot(slot);
	message_table_close(&table, true);
	return result;
}

static void
not_in_claim(int64 id, DeleteResult result, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_MESSAGE_NOT_IN_CLAIM),
			 errmsg("message %lld is not in that claim", (long long) id),
			 result == DELETE_CLAIMED ?
			 errdetail("Another claim holds it.") :
			 result == DELETE_FREE ?
			 errdetail("No claim holds it.") :
			 errdetail("It does not exist any more."),
			 errhint("%s", hint)));
}

/*
 * Delete one message, under a claim or without one (NULL).  *live says that
 * the claim is known to be live; it is looked up when that matters and has
 * not been seen.  False: there is no such message.  The key that is to be let
 * go is added to the list.
 */
static bool
delete_message(const Queue *queue, int64 id, const ClaimId *claim, bool *live,
			   List **uses)
{
	DeleteResult result;
	DedupUse	   *use = NULL;
	DedupRun	   *run = NULL;

	do
	{
		CHECK_FOR_INTERRUPTS();
		segment_push_snapshot();
		result = try_delete(queue, id, claim, &use, &run);
		PopActiveSnapshot();
	} while (result == DELETE_AGAIN);

	CommandCounterIncrement();
	if (result == DELETE_DONE)
	{
		*live = true;
		if (use != NULL)
			*uses = lappend(*uses, use);
		if (run != NULL)
			dedup_finish_run(queue, run, false);
		if (claim != NULL)
			counters_add(queue->id, JOB_COMPLETED, 1);
		return true;
	}
	if (claim == NULL)
	{
		if (result == DELETE_NONE)
			return false;
		ereport(ERROR,
				(errcode(ERRCODE_MESSAGE_IS_CLAIMED),
				 errmsg("message %lld is claimed", (long long) id),
				 errhint("Its holder deletes it by naming the claim; others can when the claim is over.")));
	}

	if (result == DELETE_TOO_LATE ||
		(!*live && !claim_is_live(queue, claim)))
		claim_not_live();
	*live = true;
	if (result == DELETE_NONE)
		return false;
	not_in_claim(id, result, "Delete only what the claim returned.");
}

/*
 * Let go of the keys of what was deleted.  That comes last: who pushes with
 * one of them holds its message, and then wants the key.
 */
static void
drop_uses(List *uses)
{
	ListCell   *cell;

	foreach(cell, uses)
		dedup_drop_use((DedupUse *) lfirst(cell));
	CommandCounterIncrement();
}

/* Delete one message, under a claim or without one (NULL). */
bool
claim_delete_message(const Queue *queue, int64 id, const ClaimId *claim)
{
	bool		live = false;
	List	   *uses = NIL;
	bool		deleted = delete_message(queue, id, claim, &live, &uses);

	drop_uses(uses);
	return deleted;
}

/*
 * message_delete(q text, id bigint, claim_id text = NULL) returns boolean
 *
 * Deletes one message; with a claim id only as part of that claim.
 *
 * Result: true: deleted; false: there was none.
 * Errors: QU001 the claim is not live, QU002 the message is not in it, QU003
 * no claim id was given and a live claim holds the message, 22004 id is NULL,
 * 42501 no right to claim.
 * Source: Zaqar, delete a specific message.
 */
Datum
sql_message_delete(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	bool		claimed = !PG_ARGISNULL(2);
	Queue		queue;
	ClaimId		claim;

	queue_prevent("message_delete()");
	if (PG_ARGISNULL(1))
		arg_missing("id");
	if (!queue_open(name, QUEUE_CLAIM, &queue))
	{
		if (claimed)
			claim_not_live();
		PG_RETURN_BOOL(false);
	}
	if (claimed && !get_claim(fcinfo, 2, &queue, &claim))
		claim_not_live();
	PG_RETURN_BOOL(claim_delete_message(&queue, PG_GETARG_INT64(1),
								claimed ? &claim : NULL));
}

/* The order in which scans find messages: highest priority first, then by id */
static int
compare_ids(const void *a, const void *b)
{
	int64		x = DatumGetInt64(*(const Datum *) a);
	int64		y = DatumGetInt64(*(const Datum *) b);

	if (message_id_priority(x) != message_id_priority(y))
		return message_id_priority(x) > message_id_priority(y) ? -1 : 1;
	return x < y ? -1 : (x > y);
}

/*
 * messages_delete(q text, ids bigint[], claim_id text = NULL) returns bigint
 *
 * Deletes these messages, all or nothing; a repeated id counts once.  They
 * are deleted in the order in which all functions on claims go through them,
 * so that two sessions with the same messages do not deadlock.
 *
 * Result: how many there were.
 * Errors: as message_delete; 22004 also for a NULL among the ids.
 * Source: Zaqar, delete a set of messages by id.
 */
Datum
sql_messages_delete(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	bool		claimed = !PG_ARGISNULL(2);
	bool		live = false;
	Queue		queue;
	ClaimId		claim;
	Datum	   *ids;
	int			n;
	List	   *uses = NIL;
	int64		deleted = 0;

	queue_prevent("messages_delete()");
	if (PG_ARGISNULL(1))
		arg_missing("ids");
	n = arg_ids(PG_GETARG_ARRAYTYPE_P(1), &ids);

	if (!queue_open(name, QUEUE_CLAIM, &queue))
	{
		if (claimed)
			claim_not_live();
		PG_RETURN_INT64(0);
	}
	if (claimed && !get_claim(fcinfo, 2, &queue, &claim))
		claim_not_live();

	if (claimed && n == 0 && !claim_is_live(&queue, &claim))
		claim_not_live();
	qsort(ids, n, sizeof(Datum), compare_ids);
	for (int i = 0; i < n; i++)
		if ((i == 0 || ids[i] != ids[i - 1]) &&
			delete_message(&queue, DatumGetInt64(ids[i]),
						   claimed ? &claim : NULL, &live, &uses))
			deleted++;
	drop_uses(uses);
	PG_RETURN_INT64(deleted);
}

/*
 * Seconds until the next try of a message that failed: longer after each one,
 * and never quite the same, so that those that failed together do not come
 * back together.
 */
static int64
retry_delay(const Queue *queue, MessageTable *table, HeapTuple tuple)
{
	double		delay = queue->retry_delay;
	uint32		random;

	for (int i = options_attempts(table, tuple); i > 1 &&
		 delay < setting_max_message_delay; i--)
	{
		if (queue->retry_backoff == 1 || delay == 0)
			break;
		delay *= queue->retry_backoff;
	}
	delay = Min(delay, setting_max_message_delay) * USECS_PER_SEC;
	if (!pg_strong_random(&random, sizeof(random)))
		random = 0;
	return (int64) (delay * (1 + RETRY_JITTER * random / PG_UINT32_MAX));
}

/*
 * Give a message back that this transaction has locked, with its error, due
 * then.
 */
static void
give_back(MessageTable *table, HeapTuple tuple, TimestampTz due, bool at_once)
{
	ItemPointerData tid = tuple->t_self;

	if (at_once)
	{
		message_clear_claim(MESSAGE_FORM(tuple));
		message_update_locked(table, &tid, tuple);
	}
	else
	{
		MessageTable delayed;
		HeapTuple	copy;

		segment_open_delayed(&delayed);
		copy = message_copy_to(table, &delayed, tuple, due);
		message_clear_claim(MESSAGE_FORM(copy));
		message_insert(&delayed, copy);
		message_delete_locked(table, tuple);
		message_table_close(&delayed, true);
	}
}

/*
 * Give one message of a claim back, if the claim holds it.  delay: in seconds;
 * -1: as the queue says.  wait: what to do when another transaction has it
 * locked, LockWaitBlock or LockWaitError.  *due: out; 0: it is a dead letter
 * now.
 */
static DeleteResult
try_retry(const Queue *queue, int64 id, const ClaimId *claim,
		  const char *error, int delay, bool by_handler, LockWaitPolicy wait,
		  TimestampTz *due)
{
	MessageTable table;
	TupleTableSlot *slot;
	HeapTuple	tuple;
	TimestampTz now;
	DeleteResult result = DELETE_DONE;

	if (!scan_find(queue->id, id, RowExclusiveLock, &table, &slot))
		return DELETE_NONE;
	if (is_in_claim(MESSAGE_FORM(row_tuple(slot)), claim,
					GetCurrentTimestamp()) &&
		message_lock(&table, slot, LockTupleNoKeyExclusive, wait) != TM_Ok)
		result = DELETE_AGAIN;

	/* The claim may have run out while we waited. */
	tuple = row_tuple(slot);
	now = GetCurrentTimestamp();
	if (result == DELETE_DONE && message_is_expired(MESSAGE_FORM(tuple), now))
		result = DELETE_NONE;
	else if (result == DELETE_DONE &&
			 !is_in_claim(MESSAGE_FORM(tuple), claim, now))
		result = message_is_claimed(MESSAGE_FORM(tuple), now) ?
			DELETE_CLAIMED : DELETE_FREE;
	if (result == DELETE_DONE)
	{
		int64		pause = delay < 0 ? retry_delay(queue, &table, tuple) :
			delay * USECS_PER_SEC;
		TupleDesc	desc = RelationGetDescr(table.heap);

		if (by_handler && MESSAGE_FORM(tuple)->claim_count > QUICK_TRIES)
			pause = Max(pause, SLOW_TRY);
		tuple = heap_copytuple(tuple);
		if (error != NULL)
			tuple = attributes_replace(desc, tuple,
								 attributes_set_text(attributes_of(desc, tuple),
											   "last_error", error));
		*due = now + pause;
		if (!dedup_is_duplicate(queue, &table, tuple) &&
			options_is_exhausted(queue, &table, tuple))
		{
			end_exhausted(queue, &table, tuple);
			*due = 0;
		}
		else
			give_back(&table, tuple, *due, pause == 0);
	}
	ExecDropSingleTupleTableSlot(slot);
	message_table_close(&table, true);
	return result;
}

/*
 * Give one message of a claim back after a failure; arguments as those of
 * message_retry, but delay -1 for none; wait as above.  A handler cannot try
 * the same message again and again without a pause.  True: *due says when it
 * is due; false: it became a dead letter.
 */
bool
claim_retry_message(const Queue *queue, int64 id, const ClaimId *claim,
			const char *error, int delay, bool by_handler, LockWaitPolicy wait,
			TimestampTz *due)
{
	DeleteResult result;

	if (error != NULL)
	{
		int			length = strlen(error);
		int			clipped = pg_mbcliplen(error, length, RETRY_ERROR_MAX);

		if (clipped < length)
			error = pnstrdup(error, clipped);
	}
	root_job_forget();
	do
	{
		CHECK_FOR_INTERRUPTS();
		segment_push_snapshot();
		result = try_retry(queue, id, claim, error, delay, by_handler, wait,
						   due);
		PopActiveSnapshot();
	} while (result == DELETE_AGAIN);
	CommandCounterIncrement();

	if (result != DELETE_DONE)
	{
		if (!claim_is_live(queue, claim))
			claim_not_live();
		not_in_claim(id, result, "Retry only what the claim returned.");
	}
	if (error != NULL)
		counters_set_error(queue->id, error);
	if (*due != 0)
		counters_add(queue->id, JOB_RETRIED, 1);
	return *due != 0;
}

/*
 * message_retry(q text, id bigint, claim_id text, error text = NULL,
 *				 delay int = NULL) returns timestamptz
 *
 * Gives one message of a claim back because its run failed.  It is due after
 * delay seconds (NULL: _retry_delay of the queue, times _retry_backoff for
 * each try but the first, and up to a quarter more), at its old place in the
 * order.  error is kept with it, at most 8 kB; NULL keeps the one before.
 *
 * Result: when it is due; NULL when it had been claimed _max_claim_count
 * times and became a dead letter.
 * Errors: QU001 the claim is not live (also when the id is NULL or
 * malformed), QU002 the message is not in it, 22004 and 22023 arguments,
 * 42501 no right to claim.
 * Source: MediaWiki, the retries of a job that failed.
 */
Datum
sql_message_retry(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Queue		queue;
	ClaimId		claim;
	char	   *error = NULL;
	int			delay = -1;
	TimestampTz due;

	queue_prevent("message_retry()");
	if (PG_ARGISNULL(1))
		arg_missing("id");
	if (!PG_ARGISNULL(3))
		error = text_to_cstring(PG_GETARG_TEXT_PP(3));
	if (!PG_ARGISNULL(4))
		delay = arg_check_delay(PG_GETARG_INT32(4));
	if (!queue_open(name, QUEUE_CLAIM, &queue) ||
		!get_claim(fcinfo, 2, &queue, &claim))
		claim_not_live();
	if (!claim_retry_message(&queue, PG_GETARG_INT64(1), &claim, error, delay, false,
					 LockWaitBlock, &due))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(due);
}
