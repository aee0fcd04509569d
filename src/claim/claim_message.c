/*-------------------------------------------------------------------------
 *
 * claim_message.c
 *	  Single messages: deleting, retrying and burying them.
 *
 * NOTES
 *	  A message is found by its id, with the latest snapshot, and checked: it
 *	  must be in the claim that the caller names, and the claim must be live.
 *	  A message may also be deleted without a claim, while it is not claimed.
 *	  If another transaction has locked the message, we wait; if it has
 *	  changed the message, we begin again.  The clock is read after the wait,
 *	  as explained in claim_update.c.
 *
 *	  When the message is not found or not in the claim, the error depends on
 *	  whether the claim is live, so the claim's range is scanned then.
 *
 *	  Many messages that no claim holds may be changed at once.  The caller
 *	  names them by their ids, which it may have read some time ago.  So a
 *	  message that is gone, or in another state by now, is no error: it is left
 *	  as it is, and does not count.  As in all functions that change several
 *	  messages, they are locked in one order.
 *
 * src/claim/claim_message.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "claim/claim_message.h"
#include "claim/claim_update.h"
#include "claim/dead_letter.h"
#include "claim/expire.h"
#include "push/dedup.h"
#include "push/dedup_run.h"
#include "push/message_end.h"
#include "push/root_job.h"
#include "queue/finished.h"
#include "queue/options.h"
#include "queue/registry.h"
#include "storage/attributes.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/segment.h"
#include "util/errcodes.h"
#include "util/settings.h"

/*
 * A job that fails at once is retried without a pause only so often, and from
 * then on after this many microseconds at least.
 */
#define QUICK_RETRIES		10
#define SLOW_RETRY_PAUSE	USECS_PER_SEC

#define RETRY_JITTER		0.25	/* of the delay, at most */

/* What came of changing one message */
typedef enum Outcome
{
	OUTCOME_DONE,				/* it was changed */
	OUTCOME_TOO_LATE,			/* it was changed, but the claim has run out:
								 * the change must be rolled back */
	OUTCOME_GONE,				/* there is no such message */
	OUTCOME_OTHER_CLAIM,		/* it is in another claim, or in any if the
								 * caller named none */
	OUTCOME_NOT_CLAIMED,		/* it is in no live claim */
	OUTCOME_CANCELED,			/* it was canceled; in a job, it was removed */
	OUTCOME_RAN_OUT,			/* so is this one, which the caller's claim
								 * has had until that ran out */
	OUTCOME_CHANGED				/* it changed while we waited: begin again */
} Outcome;

/* See claim_register_dead_letters() */
static ClaimDeadLetters require_dead_letters = NULL;

static int	compare_message_ids(const void *a, const void *b);
static void sort_ids(Datum *ids, int64 n);
static bool delete_one_message(const Queue *queue, int64 id,
							   const ClaimId *claim, Jsonb *result,
							   bool *live, List **entries);
static Outcome try_delete_message(const Queue *queue, int64 id,
								  const ClaimId *claim, Jsonb *result,
								  DedupEntry **entry, DedupRun **run);
static Outcome check_claim_of_message(const MessageForm *form,
									  const ClaimId *claim, TimestampTz now);
static void report_outcome(const Queue *queue, int64 id, const ClaimId *claim,
						   Outcome outcome, bool live, bool may_be_gone);
static Outcome try_retry_message(const Queue *queue, int64 id,
								 const ClaimId *claim,
								 const RetryTerms *terms, TimestampTz *due);
static TimestampTz give_back_failed(const Queue *queue, MessageTable *table,
									HeapTuple tuple, const RetryTerms *terms,
									TimestampTz now);
static int64 retry_pause(const Queue *queue, MessageTable *table,
						 HeapTuple tuple);
static bool lock_in_states(const Queue *queue, FoundMessage *message,
						   int states, MessageChange *change);
static bool make_free(const Queue *queue, FoundMessage *message,
					  MessageChange *change);
static bool bury_unclaimed(const Queue *queue, FoundMessage *message,
						   MessageChange *change);

/* --- Delete --- */

/*
 * Delete messages of a claim, or if that is NULL, messages that are not
 * claimed.  "live" says whether the claim is known to have been live, even if
 * it has none left.  The history of the queue, if there is one, keeps the
 * result for each, unless that is NULL.  Returns how many there were.  Sorts
 * the array.
 */
int64
claim_delete_messages(const Queue *queue, Datum *ids, int n,
					  const ClaimId *claim, bool live, Jsonb *result)
{
	List	   *entries = NIL;
	int64		deleted = 0;

	/* Without a message there is no other check of the claim. */
	if (claim != NULL && n == 0 && !live && !claim_is_live(queue, claim))
		claim_not_live();

	sort_ids(ids, n);
	for (int i = 0; i < n; i++)
		if ((i == 0 || ids[i] != ids[i - 1]) &&
			delete_one_message(queue, DatumGetInt64(ids[i]), claim, result,
							   &live, &entries))
			deleted++;
	claim_drop_entries(entries);
	return deleted;
}

/* Highest priority first, then by id, as scans find messages */
static int
compare_message_ids(const void *a, const void *b)
{
	return message_id_compare(DatumGetInt64(*(const Datum *) a),
							  DatumGetInt64(*(const Datum *) b));
}

/*
 * Sort ids into the order in which all functions process messages, so that
 * two sessions with the same messages do not deadlock.
 */
static void
sort_ids(Datum *ids, int64 n)
{
	qsort(ids, n, sizeof(Datum), compare_message_ids);
}

/*
 * Delete one message.  The entry of its deduplication key, which has to be
 * dropped, is added to *entries.  *live says whether the claim is known to be
 * live; if not, that is checked when it matters.  Returns false if there is
 * no such message.
 */
static bool
delete_one_message(const Queue *queue, int64 id, const ClaimId *claim,
				   Jsonb *result, bool *live, List **entries)
{
	Outcome		outcome;
	DedupEntry *entry = NULL;
	DedupRun   *run = NULL;

	do
	{
		CHECK_FOR_INTERRUPTS();
		outcome = try_delete_message(queue, id, claim, result, &entry, &run);
	} while (outcome == OUTCOME_CHANGED);

	CommandCounterIncrement();
	if (outcome == OUTCOME_DONE)
	{
		*live = true;
		if (entry != NULL)
			*entries = lappend(*entries, entry);
		if (run != NULL)
			dedup_finish_run(queue, run, RUN_COMPLETED);
		return true;
	}
	if (claim == NULL)
	{
		if (outcome == OUTCOME_GONE)
			return false;
		ereport(ERROR,
				(errcode(ERRCODE_MESSAGE_IS_CLAIMED),
				 errmsg("message %lld is claimed", (long long) id),
				 errhint("Pass the id of its claim, or wait until the claim ends.")));
	}

	report_outcome(queue, id, claim, outcome, *live, true);
	*live = true;
	return false;
}

/*
 * Find one message and delete it, if it is in the claim, or if that is NULL,
 * in none.  Waits for a transaction that has locked it.  *entry and *run are
 * set if it has an entry of its deduplication key to drop, and a run to
 * finish.
 */
static Outcome
try_delete_message(const Queue *queue, int64 id, const ClaimId *claim,
				   Jsonb *result, DedupEntry **entry, DedupRun **run)
{
	FoundMessage found;
	EndTerms	terms = {.result = result,.entry = entry};
	Outcome		outcome;

	if (!message_find(queue->id, id, RowExclusiveLock, &found))
		return OUTCOME_GONE;
	outcome = check_claim_of_message(&found.form, claim, GetCurrentTimestamp());
	if (outcome == OUTCOME_DONE && found.form.is_canceled)
		outcome = OUTCOME_CANCELED;

	/* One that was not claimed was not completed, but removed. */
	if (outcome == OUTCOME_DONE &&
		!message_end(queue, &found.table, found.tuple,
					 claim != NULL ? END_COMPLETED : END_DELETED, &terms))
		outcome = OUTCOME_CHANGED;
	if (outcome == OUTCOME_DONE && claim != NULL)
	{
		*run = dedup_run_of(RelationGetDescr(found.table.heap), found.tuple);

		/*
		 * The claim may have run out while we waited, and others may have
		 * claimed its other messages.
		 */
		if (GetCurrentTimestamp() >= found.form.claimed_until)
			outcome = OUTCOME_TOO_LATE;
	}
	message_close_found(&found);
	return outcome;
}

/*
 * Returns OUTCOME_DONE if the caller may change this message, because it is
 * in the claim, or if that is NULL, in none.
 */
static Outcome
check_claim_of_message(const MessageForm *form, const ClaimId *claim,
					   TimestampTz now)
{
	/* To all functions, an expired message does not exist. */
	if (message_is_expired(form, now))
		return OUTCOME_GONE;
	if (claim == NULL ? !message_is_claimed(form, now) :
		claim_has_message(claim, form, now))
		return OUTCOME_DONE;
	if (message_is_claimed(form, now))
		return OUTCOME_OTHER_CLAIM;
	return claim != NULL && form->claim_token == claim->token ?
		OUTCOME_RAN_OUT : OUTCOME_NOT_CLAIMED;
}

/*
 * Raise an error, because a message of a claim was not changed, or too late.
 * "live" says whether the claim is known to have been live.  If it is, and
 * may_be_gone is set, a message that does not exist is no error.
 */
static void
report_outcome(const Queue *queue, int64 id, const ClaimId *claim,
			   Outcome outcome, bool live, bool may_be_gone)
{
	if (outcome == OUTCOME_CANCELED)
		claim_canceled(queue, claim);

	/*
	 * If the claim is not live, that is the error, whatever has become of the
	 * message.  It also takes the delete back that came too late.  The claim
	 * may have run out since we have changed another one of its messages.
	 */
	if (outcome == OUTCOME_TOO_LATE ||
		(live ? outcome == OUTCOME_RAN_OUT : !claim_is_live(queue, claim)))
		claim_not_live();
	if (outcome == OUTCOME_GONE && may_be_gone)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_MESSAGE_NOT_IN_CLAIM),
			 errmsg("message %lld is not in that claim", (long long) id),
			 outcome == OUTCOME_OTHER_CLAIM ?
			 errdetail("It is in another claim.") :
			 outcome == OUTCOME_NOT_CLAIMED || outcome == OUTCOME_RAN_OUT ?
			 errdetail("It is not claimed.") :
			 errdetail("It does not exist."),
			 errhint("Name only messages that the claim returned.")));
}

/* --- Retry --- */

/*
 * Have a function called that gives a queue the dead letter queue that it has
 * by default.
 */
void
claim_register_dead_letters(ClaimDeadLetters function)
{
	Assert(require_dead_letters == NULL);
	require_dead_letters = function;
}

/*
 * Give a queue a dead letter queue if it has none, so that its messages can be
 * buried.  To be called before any message is locked: this waits for the
 * queue's row.
 */
void
claim_prepare_bury(Queue *queue)
{
	if (queue->dead_id != 0)
		return;
	require_dead_letters(queue);
	queue_open_existing(queue->name, QUEUE_CLAIM, queue);
}

/*
 * Give one message of a claim back after a failure, or make it a dead letter.
 * Returns when it is due, or 0 if it became a dead letter; or was canceled,
 * in a job.
 */
TimestampTz
claim_retry_message(const Queue *queue, int64 id, const ClaimId *claim,
					RetryTerms *terms)
{
	Outcome		outcome;
	TimestampTz due = 0;

	if (terms->error != NULL)
		terms->error = attributes_clip_error(terms->error);
	root_job_forget();
	do
	{
		CHECK_FOR_INTERRUPTS();
		outcome = try_retry_message(queue, id, claim, terms, &due);
	} while (outcome == OUTCOME_CHANGED);
	CommandCounterIncrement();

	if (outcome == OUTCOME_CANCELED && terms->for_job)
		return 0;
	if (outcome != OUTCOME_DONE)
		report_outcome(queue, id, claim, outcome, terms->is_live, false);
	if (terms->error != NULL)
		counts_set_error(queue->id, terms->error);
	if (due != 0)
		counts_add(queue->id, JOB_RETRIED, 1);
	return due;
}

/*
 * Find one message of a claim, lock it, and give it back.  Sets *due to when
 * it is due, or to 0 if it became a dead letter.
 */
static Outcome
try_retry_message(const Queue *queue, int64 id, const ClaimId *claim,
				  const RetryTerms *terms, TimestampTz *due)
{
	FoundMessage found;
	Outcome		outcome;

	if (!message_find(queue->id, id, RowExclusiveLock, &found))
		return OUTCOME_GONE;

	/* Do not wait for a message that is not in the claim. */
	if (claim_has_message(claim, &found.form, GetCurrentTimestamp()) &&
		!message_lock_found(&found, LockTupleNoKeyExclusive, terms->wait))
		outcome = OUTCOME_CHANGED;
	else
	{
		/* The claim may have run out while we waited. */
		TimestampTz now = GetCurrentTimestamp();

		outcome = check_claim_of_message(&found.form, claim, now);
		if (outcome == OUTCOME_DONE && found.form.is_canceled)
		{
			outcome = OUTCOME_CANCELED;
			if (terms->for_job)
				expire_remove(queue, &found.table, found.tuple);
		}
		if (outcome == OUTCOME_DONE)
			*due = give_back_failed(queue, &found.table, found.tuple, terms,
									now);
	}
	message_close_found(&found);
	return outcome;
}

/*
 * Give a message back that is locked, with its error.  Returns when it is due,
 * or 0 if it became a dead letter.
 */
static TimestampTz
give_back_failed(const Queue *queue, MessageTable *table, HeapTuple tuple,
				 const RetryTerms *terms, TimestampTz now)
{
	TupleDesc	desc = RelationGetDescr(table->heap);
	MessageTable delayed = {0};
	bool		given_back;
	int64		pause = 0;

	if (!terms->bury)
		pause = terms->delay >= 0 ? terms->delay * USECS_PER_SEC :
			retry_pause(queue, table, tuple);

	/* One that fails at once must not keep the server busy with retries. */
	if (terms->for_job && message_read(tuple).claim_count > QUICK_RETRIES)
		pause = Max(pause, SLOW_RETRY_PAUSE);

	if (terms->error != NULL)
	{
		finished_insert(queue, table, tuple, FINISHED_FAILED, terms->error,
						NULL);
		tuple = attributes_set_last_error(desc, tuple, terms->error);
	}

	/* A duplicate never is a dead letter. */
	if (terms->bury && !dedup_is_duplicate(queue, table, tuple))
	{
		(void) dead_letter_move(queue, table, tuple, DEAD_LETTER_BURIED, ERROR,
								NULL);
		return 0;
	}
	given_back = claim_give_back(queue, table, tuple,
								 pause == 0 ? DT_NOBEGIN : now + pause,
								 true, &delayed);
	if (delayed.heap != NULL)
		message_table_close(&delayed, true);
	return given_back ? now + pause : 0;
}

/*
 * Microseconds until the next attempt at a message that failed.  They grow
 * with each attempt, and are random in part, so that messages that failed
 * together are not retried together.
 */
static int64
retry_pause(const Queue *queue, MessageTable *table, HeapTuple tuple)
{
	double		delay = queue->retry_delay;
	double		backoff = queue->retry_backoff;
	int			max = setting_max_message_delay;
	uint32		random;

	/* If only one of the two is set, the other is what it was before 1.2. */
	if (delay < 0 && backoff < 0)
	{
		delay = 1;
		backoff = 2;
		max = setting_max_retry_delay;
	}
	else if (delay < 0)
		delay = 0;
	else if (backoff < 0)
		backoff = 1;

	/* A message may have had very many attempts: stop if it does not grow. */
	for (int i = options_attempts(table, tuple);
		 i > 1 && delay < max && backoff != 1 && delay != 0; i--)
		delay *= backoff;
	delay = Min(delay, max) * USECS_PER_SEC;

	/* The part that is random is not worth an error. */
	if (!pg_strong_random(&random, sizeof(random)))
		random = 0;
	return (int64) (delay * (1 + RETRY_JITTER * random / PG_UINT32_MAX));
}

/* --- Messages that no claim has to hold --- */

/*
 * Change messages, whose ids this sorts.  Returns how many; a repeated id
 * counts once.
 */
int64
claim_change_messages(const Queue *queue, Datum *ids, int64 n,
					  MessageChange *change)
{
	/* A change leaves copies of its message behind. */
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "change of a message",
												  ALLOCSET_DEFAULT_SIZES);
	int64		nchanged = 0;

	if (change->error != NULL)
		change->error = attributes_clip_error(change->error);
	sort_ids(ids, n);
	for (int64 i = 0; i < n; i++)
	{
		MemoryContext old;
		FoundMessage found;
		bool		done;

		if (i > 0 && ids[i] == ids[i - 1])
			continue;
		old = MemoryContextSwitchTo(context);
		do
		{
			CHECK_FOR_INTERRUPTS();
			change->is_done = false;
			change->entry = NULL;
			done = true;
			if (message_find(queue->id, DatumGetInt64(ids[i]),
							 RowExclusiveLock, &found))
			{
				done = change->action(queue, &found, change);
				message_close_found(&found);
			}
		} while (!done);
		CommandCounterIncrement();
		MemoryContextSwitchTo(old);
		if (change->is_done)
			nchanged++;
		if (change->entry != NULL)
		{
			DedupEntry *copy = palloc(sizeof(DedupEntry));

			*copy = *change->entry;
			change->entries = lappend(change->entries, copy);
		}
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	return nchanged;
}

/*
 * Drop the entries of the deduplication keys of messages that were removed.
 * To be called when all messages are locked, because a push with such a key
 * locks its message first and then the key.
 */
void
claim_drop_entries(List *entries)
{
	ListCell   *cell;

	foreach(cell, entries)
		dedup_drop_entry((DedupEntry *) lfirst(cell));
	CommandCounterIncrement();
}

/*
 * Lock a message that is to be changed if it is in one of these states; sets
 * change->is_done then.  Returns false if another transaction has changed it
 * meanwhile.
 */
static bool
lock_in_states(const Queue *queue, FoundMessage *message, int states,
			   MessageChange *change)
{
	TimestampTz now = GetCurrentTimestamp();

	/* It does not wait for a message that it is not to change. */
	if (message_is_expired(&message->form, now) ||
		(states & message_state(RelationGetDescr(message->table.heap),
								message->tuple, &message->form, now)) == 0)
		return true;
	if (!message_lock_found(message, LockTupleExclusive, LockWaitBlock))
		return false;

	/* A duplicate is never handed out, nor is it a dead letter. */
	change->is_done = !dedup_is_duplicate(queue, &message->table,
										  message->tuple);
	return true;
}

/* Move a delayed message to those that claims scan. */
static bool
make_free(const Queue *queue, FoundMessage *message, MessageChange *change)
{
	MessageTable active;
	Size		bytes = 0;

	if (!lock_in_states(queue, message, STATE_DELAYED, change))
		return false;
	if (change->is_done)
	{
		segment_open_active(&active, RING_MESSAGES, true);
		if (!message_move(&message->table, message->slot, &active, &bytes))
			elog(ERROR, "could not move a message that is locked");
		message_table_close(&active, true);
	}
	return true;
}

/* Returns how many of these messages were delayed, and are free now. */
int64
claim_run_now(const Queue *queue, Datum *ids, int n)
{
	MessageChange change = {.action = make_free};

	return claim_change_messages(queue, ids, n, &change);
}

static bool
bury_unclaimed(const Queue *queue, FoundMessage *message,
			   MessageChange *change)
{
	HeapTuple	tuple;

	if (!lock_in_states(queue, message, STATE_FREE | STATE_DELAYED, change))
		return false;
	tuple = message->tuple;
	if (change->is_done && change->error != NULL)
		tuple = attributes_set_last_error(RelationGetDescr(message->table.heap),
										  tuple, change->error);
	if (change->is_done)
		(void) dead_letter_move(queue, &message->table, tuple,
								DEAD_LETTER_BURIED, ERROR, &change->entry);
	return true;
}

/*
 * Make these messages dead letters, those that are free or delayed.  Returns
 * how many there were.  The caller has called claim_prepare_bury().
 */
int64
claim_bury_unclaimed(const Queue *queue, Datum *ids, int n, const char *error)
{
	MessageChange change = {.action = bury_unclaimed,.error = error};
	int64		buried = claim_change_messages(queue, ids, n, &change);

	claim_drop_entries(change.entries);
	return buried;
}
