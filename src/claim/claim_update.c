/*-------------------------------------------------------------------------
 *
 * claim_update.c
 *	  Claims as a whole: describing, renewing, releasing, completing them.
 *
 * NOTES
 *	  There is no row for a claim.  A claim id gives the range of ids in which
 *	  the claim's messages lie; each of them carries the claim's token and its
 *	  end.  A claim is live while a message in that range carries its token
 *	  and that end is in the future.  Each message is checked by itself: when
 *	  it is locked, or as it is changed.
 *
 *	  These functions wait for a message that another transaction has locked.
 *	  While a message is claimed, that can only be another session of the same
 *	  consumer, one that completes a message with the same deduplication key,
 *	  one that cancels the message, the worker that moves it or renews a job's
 *	  claim, or plain SQL.
 *
 *	  The claim may run out during such a wait, and another session may claim
 *	  those of its messages that are not locked.  So the time that counts is
 *	  the one that is read after the last wait.  Renewing and releasing first
 *	  lock all messages; only then they change all of them, or none.
 *	  Completing (and deleting a message, claim_message.c) does without that:
 *	  it deletes at once, and reads the clock at the end.  All of them lock
 *	  messages in one order, so that two sessions with the same claim do not
 *	  deadlock.  A call that deletes some messages and then gives others back
 *	  locks these in the pass that deletes (claim_complete()).
 *
 *	  A message of the claim may be canceled (cancel.c).  It stays in the claim
 *	  until that ends, and is renewed with it, so that each call that completes
 *	  something finds the mark on it; but it does not count.
 *
 *	  claim_keep_only() is for jobs.  A runner claims a few messages at once
 *	  and runs them one after the other.  All of them were counted as attempts
 *	  when they were claimed; those that it did not start are given back as if
 *	  they had not been claimed.  The runner does that, or the database's
 *	  worker if the runner has exited or takes long with one of them.  So the
 *	  messages may be changed at the same time.
 *
 * src/claim/claim_update.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "claim/claim_update.h"
#include "claim/dead_letter.h"
#include "claim/expire.h"
#include "push/dedup.h"
#include "push/dedup_run.h"
#include "push/message_end.h"
#include "push/root_job.h"
#include "queue/group.h"
#include "queue/message_result.h"
#include "queue/options.h"
#include "storage/attributes.h"
#include "storage/claim_id.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/errcodes.h"

/* A call that does the same to each message of a claim */
typedef struct ClaimUpdate
{
	const Queue *queue;
	const ClaimId *claim;
	TimestampTz now;			/* when the current scan began */
	TimestampTz ends;			/* end of the claim, from its messages */

	/* Arguments and results of the calls */
	int			ttl;			/* renew, keep */
	int			grace;			/* renew, keep; -1 leaves it unchanged */
	TimestampTz until;			/* renew: the new end */
	int			delay;			/* release: in seconds */
	bool		failed;			/* release: their attempt has failed */
	MessageTable delayed;		/* release: where delayed messages go, opened
								 * for the first one */
	List	   *runs;			/* complete: DedupRuns of what was deleted */
	const int64 *ids;			/* complete: what is to be deleted, or is not,
								 * in the order of message_id_cmp() */
	int			nids;
	bool		only;			/* complete: delete these, or else all others */
	int64		kept;			/* complete: how many were not deleted */
	int64		ncanceled;		/* of the messages that were found */
	int64		keep;			/* keep: this message; 0 for none */
} ClaimUpdate;

/*
 * Changes or locks one message.  Returns false if another transaction has
 * changed it meanwhile.
 */
typedef bool (*RowAction) (ClaimUpdate *update, ScanRow *row);

static MessageScan *begin_claim_read(const Queue *queue, const ClaimId *claim,
									 TimestampTz *now);
static int64 update_messages(ClaimUpdate *update, RowAction action);
static bool lock_row_of_claim(ClaimUpdate *update, ScanRow *row);
static bool renew_row(ClaimUpdate *update, ScanRow *row);
static bool release_row(ClaimUpdate *update, ScanRow *row);
static bool complete_row(ClaimUpdate *update, ScanRow *row);
static bool keep_or_return_row(ClaimUpdate *update, ScanRow *row);

/* Raise an error, because the claim that the caller names is not live. */
void
claim_not_live(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_CLAIM_NOT_LIVE),
			 errmsg("claim is not live"),
			 errdetail("It has expired, was released or completed, or never existed."),
			 errhint("Other sessions may have claimed its messages: roll back what was done for them, and claim again.")));
}

/* Raise an error, because messages of this claim were canceled. */
void
claim_canceled(const Queue *queue, const ClaimId *claim)
{
	TimestampTz now;
	MessageScan *scan = begin_claim_read(queue, claim, &now);
	ScanRow		row;
	StringInfoData ids;

	initStringInfo(&ids);
	while (message_scan_next(scan, &row))
		if (claim_has_message(claim, &row.form, now) && row.form.is_canceled)
			appendStringInfo(&ids, ids.len == 0 ? "%lld" : ", %lld",
							 (long long) row.form.id);
	message_scan_end(scan);

	/* The claim has ended since the caller has met the message. */
	if (ids.len == 0)
		claim_not_live();
	ereport(ERROR,
			(errcode(ERRCODE_MESSAGE_CANCELED),
			 errmsg("message was canceled"),
			 errdetail("Canceled messages of the claim: %s.", ids.data),
			 errhint("Roll back what was done for them; delete the other messages of the claim one by one, or release the claim.")));
}

/* --- Reading --- */

/* Scan the claim's range in all segments that may hold its messages. */
static MessageScan *
begin_claim_read(const Queue *queue, const ClaimId *claim, TimestampTz *now)
{
	*now = GetCurrentTimestamp();
	return message_scan_begin_claim(queue->id, claim, AccessShareLock);
}

/* Returns whether the claim has any message left. */
bool
claim_is_live(const Queue *queue, const ClaimId *claim)
{
	ClaimInfo	info;

	return claim_get_info(queue, claim, &info) || info.ncanceled > 0;
}

/* Describe a claim.  Returns false if it is not live, or all was canceled. */
bool
claim_get_info(const Queue *queue, const ClaimId *claim, ClaimInfo *info)
{
	MessageScan *scan = begin_claim_read(queue, claim, &info->now);
	ScanRow		row;

	info->nmessages = info->ncanceled = 0;
	while (message_scan_next(scan, &row))
	{
		if (!claim_has_message(claim, &row.form, info->now))
			continue;
		info->claimed_at = row.form.claimed_at;
		info->claimed_until = row.form.claimed_until;
		info->grace = row.form.claim_grace;
		if (row.form.is_canceled)
			info->ncanceled++;
		else
			info->nmessages++;
	}
	message_scan_end(scan);
	return info->nmessages > 0;
}

/* Add the messages of a claim to the result, in the order of the claim. */
void
claim_get_messages(const Queue *queue, const ClaimId *claim,
				   MessageResult *result)
{
	TimestampTz now;
	MessageScan *scan = begin_claim_read(queue, claim, &now);
	ScanRow		row;

	while (message_scan_next(scan, &row))
		if (claim_has_message(claim, &row.form, now) &&
			!row.form.is_canceled)
			message_result_add(result, queue,
							   RelationGetDescr(row.table->heap), row.tuple,
							   now);
	message_scan_end(scan);
}

/* --- All messages of a claim --- */

/*
 * Apply the action to each message of the claim.  Returns the number of
 * messages.
 *
 * If another transaction has changed a message meanwhile, only a new snapshot
 * shows whether it is still claimed.  The scan ends there and begins again,
 * behind those that are done: to lock later ones before it would be another
 * order than that of all functions, and lead to deadlocks.
 */
static int64
update_messages(ClaimUpdate *update, RowAction action)
{
	int64		n = 0;
	int64		last = 0;		/* the id of the last one that is done */
	bool		again;

	update->ends = DT_NOEND;
	do
	{
		MessageScan *scan;
		ScanRow		row;

		CHECK_FOR_INTERRUPTS();
		again = false;
		update->now = GetCurrentTimestamp();
		scan = message_scan_begin_claim(update->queue->id, update->claim,
										RowExclusiveLock);
		while (!again && message_scan_next(scan, &row))
		{
			if ((n > 0 && message_id_compare(row.form.id, last) <= 0) ||
				!claim_has_message(update->claim, &row.form, update->now))
				continue;
			again = !action(update, &row);
			if (again)
				continue;
			update->ends = Min(update->ends, row.form.claimed_until);
			last = row.form.id;
			n++;
			if (row.form.is_canceled)
				update->ncanceled++;
		}
		message_scan_end(scan);
		CommandCounterIncrement();
	} while (again);
	return n;
}

/* The first step of renewing and releasing */
static bool
lock_row_of_claim(ClaimUpdate *update, ScanRow *row)
{
	return message_lock_as_seen(row->table, row->slot,
								LockTupleNoKeyExclusive, LockWaitBlock);
}

/*
 * Restart a live claim: it ends ttl seconds from now, and its messages live
 * at least grace seconds longer, or if that is -1, as long as before.
 * Returns false if the claim is not live, or all that it has was canceled.
 */
bool
claim_renew(const Queue *queue, const ClaimId *claim, int ttl, int grace,
			TimestampTz *until)
{
	ClaimUpdate update = {
		.queue = queue,
		.claim = claim,
		.ttl = ttl,
		.grace = grace
	};

	int64		n = update_messages(&update, lock_row_of_claim);

	/* The second scan waits for nothing, so its clock decides. */
	if (n == update.ncanceled || update_messages(&update, renew_row) == 0)
		return false;
	*until = update.until;
	return true;
}

static bool
renew_row(ClaimUpdate *update, ScanRow *row)
{
	MessageForm form = row->form;
	HeapTuple	tuple;

	message_set_claim(&form, update->now, update->ttl,
					  update->grace < 0 ? form.claim_grace : update->grace);
	update->until = form.claimed_until;
	tuple = message_row_change(RelationGetDescr(row->table->heap), row->tuple,
							   &form);
	message_update_locked(row->table, row->tuple, tuple);
	heap_freetuple(tuple);
	return true;
}

/*
 * Give all messages of a claim back, to be handed out after delay seconds, and
 * remove the canceled ones.  The attempt counts only if it has failed.
 * Returns the number of the former, which is 0 if the claim is not live.
 */
int64
claim_release(const Queue *queue, const ClaimId *claim, int delay, bool failed)
{
	ClaimUpdate update = {
		.queue = queue,
		.claim = claim,
		.delay = delay,
		.failed = failed
	};
	int64		n;

	/* The second scan waits for nothing, so its clock decides. */
	if (update_messages(&update, lock_row_of_claim) == 0)
		return 0;
	root_job_forget();
	update.ncanceled = 0;
	n = update_messages(&update, release_row);
	if (update.delayed.heap != NULL)
		message_table_close(&update.delayed, true);
	return n - update.ncanceled;
}

static bool
release_row(ClaimUpdate *update, ScanRow *row)
{
	HeapTuple	tuple = row->tuple;

	if (row->form.is_canceled)
	{
		expire_remove(update->queue, row->table, row->tuple);
		return true;
	}
	if (!update->failed)
		tuple = attributes_count_given_back(RelationGetDescr(row->table->heap),
											tuple);
	(void) claim_give_back(update->queue, row->table, tuple,
						   update->delay == 0 ? DT_NOBEGIN :
						   update->now + update->delay * USECS_PER_SEC,
						   false, &update->delayed);
	if (tuple != row->tuple)
		heap_freetuple(tuple);
	return true;
}

/*
 * Delete the messages of a claim with these ids ("only"), or all but those,
 * and return their number.  The others are locked, and *kept is set to their
 * number, unless it is NULL.  It is an error if the claim is not live, or a
 * message of it was canceled.
 */
int64
claim_complete(const Queue *queue, const ClaimId *claim, const int64 *ids,
			   int n, bool only, int64 *kept)
{
	ClaimUpdate update = {
		.queue = queue,
		.claim = claim,
		.ids = ids,
		.nids = n,
		.only = only
	};
	int64		found = update_messages(&update, complete_row);
	ListCell   *cell;

	/*
	 * If the claim has run out while we waited, others may have claimed its
	 * messages.  The error takes all deletes back.
	 */
	if (found == 0 || GetCurrentTimestamp() >= update.ends)
		claim_not_live();
	if (update.ncanceled > 0)
		claim_canceled(queue, claim);
	foreach(cell, update.runs)
		dedup_finish_run(queue, (DedupRun *) lfirst(cell), RUN_COMPLETED);
	if (kept != NULL)
		*kept = update.kept;
	return found - update.kept;
}

static bool
complete_row(ClaimUpdate *update, ScanRow *row)
{
	DedupRun   *run;
	bool		is_named = update->nids > 0 &&
	bsearch(&row->form.id, update->ids, update->nids, sizeof(int64),
			message_id_cmp) != NULL;

	/* The error that follows takes back what was deleted. */
	if (row->form.is_canceled)
		return true;

	/*
	 * The caller gives these back afterwards.  We lock them in their turn,
	 * because a session that renews the claim could lock them, and wait for
	 * those that we have deleted.
	 */
	if (is_named != update->only)
	{
		if (!lock_row_of_claim(update, row))
			return false;
		update->kept++;
		return true;
	}

	/* Its key is dropped at once, as no push locks a claimed message. */
	if (!message_end(update->queue, row->table, row->tuple, END_COMPLETED,
					 NULL))
		return false;
	run = dedup_run_of(RelationGetDescr(row->table->heap), row->tuple);
	if (run != NULL)
		update->runs = lappend(update->runs, run);
	return true;
}

/* --- Giving a message back --- */

/*
 * Give back a claimed message that this transaction has locked: it is free
 * from "due" on, or at once if that is DT_NOBEGIN.  Returns false if it
 * becomes a dead letter instead, because it was claimed as often as its queue
 * allows.  *delayed is opened if it is needed; the caller closes it.
 */
bool
claim_give_back(const Queue *queue, MessageTable *table, HeapTuple tuple,
				TimestampTz due, bool is_retry, MessageTable *delayed)
{
	MessageForm form = message_read(tuple);
	HeapTuple	copy;

	/* A duplicate is never handed out again, nor is it a dead letter. */
	bool		is_dead = (!dedup_is_duplicate(queue, table, tuple) &&
						   options_is_exhausted(queue, table, tuple));

	if (is_dead && dead_letter_move(queue, table, tuple,
									DEAD_LETTER_CLAIM_COUNT, WARNING, NULL))
		return false;

	/*
	 * A dead letter that cannot be moved now stays.  Its claim ends, so that
	 * the worker or the next claim scan tries again.
	 */
	if (is_dead)
		form.claimed_until = Min(form.claimed_until, GetCurrentTimestamp());
	else
	{
		/* It would expire unseen if its next attempt came too late. */
		if (is_retry)
			message_keep_for_retry(&form, due != DT_NOBEGIN ? due :
								   GetCurrentTimestamp());
		message_clear_claim(&form);
	}
	copy = message_row_change(RelationGetDescr(table->heap), tuple, &form);
	if (is_dead || due == DT_NOBEGIN)
		message_update_locked(table, tuple, copy);
	else
	{
		HeapTuple	moved;

		if (delayed->heap == NULL)
			segment_open_active(delayed, RING_DELAYED, true);
		moved = message_copy_to(table, delayed, copy, due);
		message_insert(delayed, moved);
		message_delete_locked(table, tuple);
		heap_freetuple(moved);
	}

	/*
	 * Wake sessions that wait for room in the group.  A message that is free
	 * at once gives its lane a turn by itself.
	 */
	if (is_dead || due != DT_NOBEGIN)
		group_make_room(queue, table, tuple, false);
	heap_freetuple(copy);
	return !is_dead;
}

/* --- Claims of jobs --- */

/*
 * Give back the messages of a live claim, not counting the attempt, and remove
 * the canceled ones, except the one with the id "keep", if that is not 0,
 * whose claim restarts for ttl seconds.
 *
 * Waits for no other transaction.  If one has locked the message to keep, that
 * is an error.  The others that are locked stay as they are until the claim
 * ends: a transaction that cancels one of them must keep neither the job that
 * runs nor the rest of the claim from going on.
 */
void
claim_keep_only(const Queue *queue, const ClaimId *claim, int64 keep, int ttl)
{
	ClaimUpdate update = {
		.queue = queue,
		.claim = claim,
		.ttl = ttl,
		.grace = -1,
		.keep = keep
	};

	(void) update_messages(&update, keep_or_return_row);
}

/* If there is another scan, what this one gave back has no token any more. */
static bool
keep_or_return_row(ClaimUpdate *update, ScanRow *row)
{
	bool		keeps = row->form.id == update->keep;
	HeapTuple	copy;

	/*
	 * If the claim has run out since the scan began, others may have claimed
	 * the message, and we do not wait for them.
	 */
	if (!claim_has_message(update->claim, &row->form, GetCurrentTimestamp()))
		return true;
	if (!message_lock_as_seen(row->table, row->slot, LockTupleNoKeyExclusive,
							  keeps ? LockWaitError : LockWaitSkip))
		return !keeps;
	row->tuple = row_tuple(row->slot);
	row->form = message_read(row->tuple);
	update->now = GetCurrentTimestamp();

	/*
	 * The claim has run out while we waited, and others may count the message
	 * as free.  So we leave it as it is; but claims skip it while it is
	 * locked.
	 */
	if (!claim_has_message(update->claim, &row->form, update->now))
		message_return_at_commit(row->table, row->tuple);
	else if (keeps)
		return renew_row(update, row);
	else if (row->form.is_canceled)
		expire_remove(update->queue, row->table, row->tuple);
	else
	{
		row->form.claim_count--;
		message_clear_claim(&row->form);
		copy = message_row_change(RelationGetDescr(row->table->heap),
								  row->tuple, &row->form);
		message_update_locked(row->table, row->tuple, copy);
		heap_freetuple(copy);
	}
	return true;
}
