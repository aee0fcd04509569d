/*-------------------------------------------------------------------------
 *
 * claim_message.c
 *	  Single messages of a claim: deleting and retrying them.
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
 * src/claim/claim_message.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "claim/claim_message.h"
#include "claim/claim_update.h"
#include "push/dedup.h"
#include "push/dedup_run.h"
#include "push/root_job.h"
#include "queue/group.h"
#include "queue/options.h"
#include "queue/registry.h"
#include "stats/counters.h"
#include "storage/attributes.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "storage/row.h"
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
#define RETRY_ERROR_MAX		8192	/* bytes of an error that are stored */

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
	OUTCOME_CHANGED				/* it changed while we waited: begin again */
} Outcome;

/* How a message is to be retried */
typedef struct RetryTerms
{
	const char *error;			/* stored with it; NULL keeps the last */
	int			delay;			/* seconds; -1 for what the queue says */
	bool		for_job;		/* the server called its handler */
	LockWaitPolicy wait;		/* LockWaitBlock, or LockWaitError in a
								 * background process */
} RetryTerms;

static bool delete_message(const Queue *queue, int64 id, const ClaimId *claim,
						   bool *live, List **entries);
static Outcome try_delete(const Queue *queue, int64 id, const ClaimId *claim,
						  DedupEntry **entry, DedupRun **run);
static Outcome check_message(const MessageForm *form, const ClaimId *claim,
							 TimestampTz now);
static void drop_entries(List *entries);
static int	compare_ids(const void *a, const void *b);
pg_noreturn static void message_is_claimed_error(int64 id);
pg_noreturn static void not_in_claim(int64 id, Outcome outcome);
static bool retry(const Queue *queue, int64 id, const ClaimId *claim,
				  RetryTerms *terms, TimestampTz *due);
static Outcome try_retry(const Queue *queue, int64 id, const ClaimId *claim,
						 const RetryTerms *terms, TimestampTz *due);
static void give_back(const Queue *queue, MessageTable *table,
					  HeapTuple tuple, const RetryTerms *terms,
					  TimestampTz now, TimestampTz *due);
static int64 retry_pause(const Queue *queue, MessageTable *table,
						 HeapTuple tuple);

/* --- Delete --- */

/*
 * Delete one message of a claim, or if that is NULL, one that is not claimed.
 * Returns false if there is no such message.
 */
bool
claim_delete_message(const Queue *queue, int64 id, const ClaimId *claim)
{
	bool		live = false;
	List	   *entries = NIL;
	bool		deleted = delete_message(queue, id, claim, &live, &entries);

	drop_entries(entries);
	return deleted;
}

/*
 * Delete many messages of a claim, or if that is NULL, messages that are not
 * claimed.  Returns how many there were.  Sorts the array.
 */
int64
claim_delete_messages(const Queue *queue, Datum *ids, int n,
					  const ClaimId *claim)
{
	bool		live = false;
	List	   *entries = NIL;
	int64		deleted = 0;

	/* Without a message there is no other check of the claim. */
	if (claim != NULL && n == 0 && !claim_is_live(queue, claim))
		claim_not_live();

	/*
	 * All functions on claims process messages in this order, so that two
	 * sessions with the same messages do not deadlock.
	 */
	qsort(ids, n, sizeof(Datum), compare_ids);
	for (int i = 0; i < n; i++)
	{
		if (i > 0 && ids[i] == ids[i - 1])
			continue;
		if (delete_message(queue, DatumGetInt64(ids[i]), claim, &live,
						   &entries))
			deleted++;
	}
	drop_entries(entries);
	return deleted;
}

/* Highest priority first, then by id, as scans find messages */
static int
compare_ids(const void *a, const void *b)
{
	return message_id_compare(DatumGetInt64(*(const Datum *) a),
							  DatumGetInt64(*(const Datum *) b));
}

/*
 * Delete one message.  The entry of its deduplication key, which has to be
 * dropped, is added to *entries.  *live says whether the claim is known to be
 * live; if not, that is checked when it matters.  Returns false if there is
 * no such message.
 */
static bool
delete_message(const Queue *queue, int64 id, const ClaimId *claim, bool *live,
			   List **entries)
{
	Outcome		outcome;
	DedupEntry *entry = NULL;
	DedupRun   *run = NULL;

	do
	{
		CHECK_FOR_INTERRUPTS();
		segment_push_snapshot();
		outcome = try_delete(queue, id, claim, &entry, &run);
		PopActiveSnapshot();
	} while (outcome == OUTCOME_CHANGED);

	CommandCounterIncrement();
	if (outcome == OUTCOME_DONE)
	{
		*live = true;
		if (entry != NULL)
			*entries = lappend(*entries, entry);
		if (run != NULL)
			dedup_finish_run(queue, run, RUN_COMPLETED);

		/* A message that was not claimed was not completed, but removed. */
		if (claim != NULL)
			counts_add(queue->id, JOB_COMPLETED, 1);
		return true;
	}
	if (claim == NULL)
	{
		if (outcome == OUTCOME_GONE)
			return false;
		message_is_claimed_error(id);
	}

	/*
	 * If the claim is not live, that is the error, whatever has become of the
	 * message.  It also takes the delete back that came too late.
	 */
	if (outcome == OUTCOME_TOO_LATE ||
		(!*live && !claim_is_live(queue, claim)))
		claim_not_live();
	*live = true;
	if (outcome == OUTCOME_GONE)
		return false;
	not_in_claim(id, outcome);
}

/*
 * Find one message and delete it, if it is in the claim, or if that is NULL,
 * in none.  Waits for a transaction that has locked it.  *entry and *run are
 * set if it has an entry of its deduplication key to drop, and a run to
 * finish.
 */
static Outcome
try_delete(const Queue *queue, int64 id, const ClaimId *claim,
		   DedupEntry **entry, DedupRun **run)
{
	MessageTable table;
	TupleTableSlot *slot;
	HeapTuple	tuple;
	MessageForm form;
	Outcome		outcome;

	if (!message_find(queue->id, id, RowExclusiveLock, &table, &slot))
		return OUTCOME_GONE;
	tuple = row_tuple(slot);
	form = message_read(tuple);
	outcome = check_message(&form, claim, GetCurrentTimestamp());
	if (outcome == OUTCOME_DONE)
		switch (message_delete(&table, tuple))
		{
			case TM_Ok:
				group_make_room(queue, &table, tuple, true);
				*entry = dedup_entry_of(RelationGetDescr(table.heap), tuple);
				if (claim != NULL)
					*run = dedup_run_of(RelationGetDescr(table.heap), tuple);

				/*
				 * The claim may have run out while we waited, and others may
				 * have claimed its other messages.
				 */
				if (claim != NULL &&
					GetCurrentTimestamp() >= form.claimed_until)
					outcome = OUTCOME_TOO_LATE;
				break;
			case TM_Updated:
			case TM_Deleted:	/* or moved to another segment */
				outcome = OUTCOME_CHANGED;
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
	return outcome;
}

/*
 * Returns OUTCOME_DONE if the caller may change this message, because it is
 * in the claim, or if that is NULL, in none.
 */
static Outcome
check_message(const MessageForm *form, const ClaimId *claim, TimestampTz now)
{
	/* To all functions, an expired message does not exist. */
	if (message_is_expired(form, now))
		return OUTCOME_GONE;
	if (claim == NULL ? !message_is_claimed(form, now) :
		claim_has_message(claim, form, now))
		return OUTCOME_DONE;
	return message_is_claimed(form, now) ? OUTCOME_OTHER_CLAIM :
		OUTCOME_NOT_CLAIMED;
}

/*
 * Drop the entries of deleted messages in the table of deduplication keys.
 * That comes last: a push with such a key locks its message first and then
 * the key.
 */
static void
drop_entries(List *entries)
{
	ListCell   *cell;

	foreach(cell, entries)
		dedup_drop_entry((DedupEntry *) lfirst(cell));
	CommandCounterIncrement();
}

static void
message_is_claimed_error(int64 id)
{
	ereport(ERROR,
			(errcode(ERRCODE_MESSAGE_IS_CLAIMED),
			 errmsg("message %lld is claimed", (long long) id),
			 errhint("Pass the id of its claim, or wait until the claim ends.")));
}

static void
not_in_claim(int64 id, Outcome outcome)
{
	ereport(ERROR,
			(errcode(ERRCODE_MESSAGE_NOT_IN_CLAIM),
			 errmsg("message %lld is not in that claim", (long long) id),
			 outcome == OUTCOME_OTHER_CLAIM ?
			 errdetail("It is in another claim.") :
			 outcome == OUTCOME_NOT_CLAIMED ?
			 errdetail("It is not claimed.") :
			 errdetail("It does not exist."),
			 errhint("Name only messages that the claim returned.")));
}

/* --- Retry --- */

/*
 * Give one message of a claim back after a failure, due after delay seconds,
 * or if that is -1, when the queue says.  Sets *due to when it is due.
 * Returns false if it became a dead letter.
 */
bool
claim_retry_message(const Queue *queue, int64 id, const ClaimId *claim,
					const char *error, int delay, TimestampTz *due)
{
	RetryTerms	terms = {0};

	terms.error = error;
	terms.delay = delay;
	terms.wait = LockWaitBlock;
	return retry(queue, id, claim, &terms, due);
}

/*
 * Give the message of a job back, whose handler has failed.  It is due when
 * the queue says, or later, so that the handler does not fail with it again
 * and again without a pause.  Sets *due to when it is due.  Returns false if
 * it became a dead letter.
 */
bool
claim_retry_job(const Queue *queue, int64 id, const ClaimId *claim,
				const char *error, LockWaitPolicy wait, TimestampTz *due)
{
	RetryTerms	terms = {0};

	terms.error = error;
	terms.delay = -1;
	terms.for_job = true;
	terms.wait = wait;
	return retry(queue, id, claim, &terms, due);
}

static bool
retry(const Queue *queue, int64 id, const ClaimId *claim, RetryTerms *terms,
	  TimestampTz *due)
{
	Outcome		outcome;

	if (terms->error != NULL)
	{
		int			length = strlen(terms->error);
		int			clipped = pg_mbcliplen(terms->error, length,
										   RETRY_ERROR_MAX);

		if (clipped < length)
			terms->error = pnstrdup(terms->error, clipped);
	}
	root_job_forget();
	do
	{
		CHECK_FOR_INTERRUPTS();
		segment_push_snapshot();
		outcome = try_retry(queue, id, claim, terms, due);
		PopActiveSnapshot();
	} while (outcome == OUTCOME_CHANGED);
	CommandCounterIncrement();

	if (outcome != OUTCOME_DONE)
	{
		/* That is the error then, whatever has become of the message. */
		if (!claim_is_live(queue, claim))
			claim_not_live();
		not_in_claim(id, outcome);
	}
	if (terms->error != NULL)
		counters_set_error(queue->id, terms->error);
	if (*due != 0)
		counts_add(queue->id, JOB_RETRIED, 1);
	return *due != 0;
}

/*
 * Find one message of a claim, lock it, and give it back.  Sets *due to when
 * it is due, or to 0 if it became a dead letter.
 */
static Outcome
try_retry(const Queue *queue, int64 id, const ClaimId *claim,
		  const RetryTerms *terms, TimestampTz *due)
{
	MessageTable table;
	TupleTableSlot *slot;
	HeapTuple	tuple;
	MessageForm form;
	TimestampTz now;
	Outcome		outcome = OUTCOME_DONE;

	if (!message_find(queue->id, id, RowExclusiveLock, &table, &slot))
		return OUTCOME_GONE;
	form = message_read(row_tuple(slot));

	/* Do not wait for a message that is not in the claim. */
	if (claim_has_message(claim, &form, GetCurrentTimestamp()) &&
		!message_lock_as_seen(&table, slot, LockTupleNoKeyExclusive,
							  terms->wait))
		outcome = OUTCOME_CHANGED;

	/* The claim may have run out while we waited. */
	tuple = row_tuple(slot);
	form = message_read(tuple);
	now = GetCurrentTimestamp();
	if (outcome == OUTCOME_DONE)
		outcome = check_message(&form, claim, now);
	if (outcome == OUTCOME_DONE)
		give_back(queue, &table, tuple, terms, now, due);
	ExecDropSingleTupleTableSlot(slot);
	message_table_close(&table, true);
	return outcome;
}

/* Give a message back that is locked, with its error. */
static void
give_back(const Queue *queue, MessageTable *table, HeapTuple tuple,
		  const RetryTerms *terms, TimestampTz now, TimestampTz *due)
{
	TupleDesc	desc = RelationGetDescr(table->heap);
	MessageTable delayed = {0};
	int64		pause;

	pause = terms->delay < 0 ? retry_pause(queue, table, tuple) :
		terms->delay * USECS_PER_SEC;

	/* One that fails at once must not keep the server busy with retries. */
	if (terms->for_job && message_read(tuple).claim_count > QUICK_RETRIES)
		pause = Max(pause, SLOW_RETRY_PAUSE);

	if (terms->error != NULL)
	{
		Jsonb	   *attributes = attributes_of(desc, tuple);

		attributes = attributes_set_text(attributes, "last_error",
										 terms->error);
		tuple = attributes_replace(desc, tuple, attributes);
	}
	*due = now + pause;
	if (!claim_give_back(queue, table, tuple, pause == 0 ? DT_NOBEGIN : *due,
						 &delayed))
		*due = 0;
	if (delayed.heap != NULL)
		message_table_close(&delayed, true);
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
	uint32		random;

	for (int i = options_attempts(table, tuple); i > 1 &&
		 delay < setting_max_message_delay; i--)
	{
		/* It does not grow, and a message may have had very many attempts. */
		if (queue->retry_backoff == 1 || delay == 0)
			break;
		delay *= queue->retry_backoff;
	}
	delay = Min(delay, setting_max_message_delay) * USECS_PER_SEC;

	/* The part that is random is not worth an error. */
	if (!pg_strong_random(&random, sizeof(random)))
		random = 0;
	return (int64) (delay * (1 + RETRY_JITTER * random / PG_UINT32_MAX));
}
