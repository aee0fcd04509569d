/*-------------------------------------------------------------------------
 *
 * claim_api.c
 *	  The SQL functions that claim messages, and those on a claim and its
 *	  messages.
 *
 * NOTES
 *	  The work is done by claim.c (handing messages out), claim_update.c (a
 *	  claim as a whole) and claim_message.c (single messages).
 *
 *	  An unknown queue has no messages and no claims, so it is no error: the
 *	  functions return what they return for an empty queue, or that the claim
 *	  is not live.
 *
 * src/api/claim_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/api_arg.h"
#include "claim/cancel.h"
#include "claim/claim.h"
#include "claim/claim_message.h"
#include "claim/claim_update.h"
#include "queue/message_result.h"
#include "queue/registry.h"
#include "storage/claim_id.h"
#include "util/args.h"
#include "util/clock.h"
#include "util/compat.h"

PG_FUNCTION_INFO_V1(sql_queue_claim);
PG_FUNCTION_INFO_V1(sql_queue_claim_any);
PG_FUNCTION_INFO_V1(sql_claim_next);
PG_FUNCTION_INFO_V1(sql_queue_pop);
PG_FUNCTION_INFO_V1(sql_claim_get);
PG_FUNCTION_INFO_V1(sql_claim_messages);
PG_FUNCTION_INFO_V1(sql_claim_renew);
PG_FUNCTION_INFO_V1(sql_claim_release);
PG_FUNCTION_INFO_V1(sql_claim_complete);
PG_FUNCTION_INFO_V1(sql_message_delete);
PG_FUNCTION_INFO_V1(sql_messages_delete);
PG_FUNCTION_INFO_V1(sql_message_retry);
PG_FUNCTION_INFO_V1(sql_message_bury);
PG_FUNCTION_INFO_V1(sql_messages_run_now);
PG_FUNCTION_INFO_V1(sql_messages_bury);

static bool open_with_claim(FunctionCallInfo fcinfo, const char *name, int arg,
							Queue *queue, ClaimId *claim);

/* --- Arguments --- */

/*
 * Open the queue and get the claim id, unless it is NULL, in an argument.
 * Raises an error if the claim is not live.  Returns false if the queue is
 * unknown, and no claim was given.
 */
static bool
open_with_claim(FunctionCallInfo fcinfo, const char *name, int arg,
				Queue *queue, ClaimId *claim)
{
	bool		exists = queue_open_or_notice(name, QUEUE_CLAIM, queue);

	if (!PG_ARGISNULL(arg) &&
		(!exists || !arg_claim_id(fcinfo, arg, queue, claim)))
		claim_not_live();
	return exists;
}

/* --- Claiming --- */

/*
 * queue_claim(q text, ttl int = 300, grace int = 60, "limit" int = NULL)
 * returns setof queue_message
 *
 * Claims up to limit (NULL: queue.default_claim_limit) free messages, highest
 * priority first, oldest first, for ttl seconds; no other session gets them
 * until then.  Extends their lifetime to at least grace seconds beyond that.
 *
 * Result: the messages, all with one claim_id.  No row: nothing is free, or
 * the queue is unknown or paused.
 * Errors: 22004 and 22023 arguments, 42501 no right to claim.
 * Source: Zaqar and Cloud Queues, claim messages.
 */
Datum
sql_queue_claim(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "queue_claim()");
	ClaimTerms	terms;
	MessageResult result;
	Queue		queue;

	arg_claim_terms(fcinfo, 1, &terms);
	api_begin_messages(fcinfo, &result);
	if (queue_open_or_notice(name, QUEUE_CLAIM, &queue))
		(void) claim_from_queue(&queue, &terms, &result);
	return (Datum) 0;
}

/*
 * claim_next(q text, claim_id text, ttl int = 300, grace int = 60,
 *			  "limit" int = NULL)
 * returns setof queue_message
 *
 * Deletes the remaining messages of the claim (NULL: there is no claim yet)
 * and claims the next messages as queue_claim does, in one call.
 *
 * Result: as queue_claim.
 * Errors: QU001 the claim is not live, QU004 a message of it was canceled; as
 * queue_claim.
 * Source: claim_complete and queue_claim.
 */
Datum
sql_claim_next(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "claim_next()");
	ClaimTerms	terms;
	ClaimId		claim;
	MessageResult result;
	Queue		queue;

	arg_claim_terms(fcinfo, 2, &terms);
	api_begin_messages(fcinfo, &result);
	if (!open_with_claim(fcinfo, name, 1, &queue, &claim))
		return (Datum) 0;
	if (!PG_ARGISNULL(1))
		(void) claim_complete(&queue, &claim, NULL, 0, false, NULL);
	(void) claim_from_queue(&queue, &terms, &result);
	return (Datum) 0;
}

/*
 * queue_pop(q text, "limit" int = 1) returns setof queue_message
 *
 * Deletes and returns up to limit free messages, highest priority first,
 * oldest first.  Delivery is at most once: a message is lost if the caller
 * fails after its transaction has committed.
 *
 * Result: the messages.  No row: nothing is free, or the queue is unknown or
 * paused.
 * Errors: 22004 and 22023 arguments, 42501 no right to claim.
 * Source: Zaqar, pop messages.
 */
Datum
sql_queue_pop(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "queue_pop()");
	MessageResult result;
	Queue		queue;
	int			limit = arg_check_claim_limit(arg_int(fcinfo, 1, "limit"));

	api_begin_messages(fcinfo, &result);
	if (queue_open_or_notice(name, QUEUE_CLAIM, &queue))
		claim_pop(&queue, limit, &result);
	return (Datum) 0;
}

/*
 * queue_claim_any(queues text[] = NULL, ttl int = 300, grace int = 60,
 *				   "limit" int = NULL)
 * returns setof queue_message
 *
 * Claims from the first of these queues (NULL: all of the session's project
 * that it may claim from) that has something free.  To serve all of them
 * alike, each call of a session starts with the queue after the one with
 * which its previous call started; if shared memory knows which queues are
 * ready, after the one with which it ended.
 *
 * Result and errors: as queue_claim.
 * Source: MediaWiki, JobQueueGroup::pop.
 */
Datum
sql_queue_claim_any(PG_FUNCTION_ARGS)
{
	ClaimTerms	terms;
	MessageResult result;
	Queue		queue;			/* result refers to it */
	const char **names = NULL;
	int			n = 0;

	api_check_can_write("queue_claim_any()");
	arg_claim_terms(fcinfo, 1, &terms);
	api_begin_messages(fcinfo, &result);
	if (!PG_ARGISNULL(0))
		names = arg_queue_names(PG_GETARG_ARRAYTYPE_P(0), &n);
	for (int i = 0; i < n; i++)
		queue_check_local(names[i]);
	claim_from_queues(names, n, &terms, &result, &queue);
	return (Datum) 0;
}

/* --- A claim --- */

/*
 * claim_get(q text, claim_id text)
 * returns table (claim_id text, ttl int, age int, grace int,
 *				  expires_at timestamptz, message_count int)
 *
 * Describes a live claim: for how many seconds it was claimed or last
 * renewed, how many have passed since, its grace in seconds, when it ends,
 * and how many messages it still has.
 *
 * Result: one row.  No row: the id is NULL, malformed, unknown or not live.
 * Errors: 42501 no right to claim.
 * Source: Zaqar, query claim.
 */
Datum
sql_claim_get(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	Queue		queue;
	ClaimId		claim;
	ClaimInfo	info;
	ApiRow		row = {0};
	bool		found;

	InitMaterializedSRF(fcinfo, 0);
	found = queue_open(name, QUEUE_READ, &queue) &&
		arg_claim_id(fcinfo, 1, &queue, &claim) &&
		claim_get_info(&queue, &claim, &info);
	queue_check_left(name, found);
	if (!found)
		return (Datum) 0;

	api_row_add(&row, PG_GETARG_DATUM(1));
	api_row_add(&row, Int32GetDatum(clock_seconds(info.claimed_at,
												  info.claimed_until)));
	api_row_add(&row, Int32GetDatum(clock_seconds(info.claimed_at, info.now)));
	api_row_add(&row, Int32GetDatum(info.grace));
	api_row_add(&row, TimestampTzGetDatum(info.claimed_until));
	api_row_add(&row, Int32GetDatum(info.nmessages));
	api_row_put(&row, fcinfo);
	return (Datum) 0;
}

/*
 * claim_messages(q text, claim_id text) returns setof queue_message
 *
 * The messages that are still in a live claim, in the order in which they
 * were claimed.
 *
 * Result: no row when the id is NULL, malformed, unknown or not live.
 * Errors: 42501 no right to claim.
 * Source: Zaqar, query claim.
 */
Datum
sql_claim_messages(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	Queue		queue;
	ClaimId		claim;
	MessageResult result;

	api_begin_messages(fcinfo, &result);
	if (queue_open(name, QUEUE_READ, &queue) &&
		arg_claim_id(fcinfo, 1, &queue, &claim))
		claim_get_messages(&queue, &claim, &result);
	return api_check_left(fcinfo, name);
}

/*
 * claim_renew(q text, claim_id text, ttl int, grace int = NULL)
 * returns timestamptz
 *
 * Restarts the claim: it ends ttl seconds from now, its age is 0, and the
 * lifetime of its messages is extended to at least grace seconds (NULL: as
 * many as before) beyond that.
 *
 * Result: when it ends; NULL when the id is NULL, malformed, unknown or not
 * live, or all that the claim still has was canceled.
 * Errors: 22004 and 22023 arguments, 42501 no right to claim.
 * Source: Zaqar, update (renew) claim.
 */
Datum
sql_claim_renew(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "claim_renew()");
	int			ttl = arg_check_claim_ttl(arg_int(fcinfo, 2, "ttl"));
	int			grace;
	TimestampTz until;
	Queue		queue;
	ClaimId		claim;

	grace = PG_ARGISNULL(3) ? -1 : arg_check_grace(PG_GETARG_INT32(3));
	if (!queue_open(name, QUEUE_CLAIM, &queue) ||
		!arg_claim_id(fcinfo, 1, &queue, &claim) ||
		!claim_renew(&queue, &claim, ttl, grace, &until))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(until);
}

/*
 * claim_release(q text, claim_id text, delay int = 0, failed boolean = false)
 * returns bigint
 *
 * Gives the remaining messages of the claim back.  They are free at once, or
 * after delay seconds, and keep their position in the order.  The claim does
 * not count as an attempt at them, unless it has failed: then those that have
 * had as many attempts as the queue allows become dead letters.
 *
 * Result: the number of messages given back, dead letters included; 0 when the
 * id is NULL, malformed, unknown or not live.  Canceled messages are removed,
 * and do not count.
 * Errors: 22004 and 22023 arguments, 42501 no right to claim.
 * Source: Zaqar, delete (release) claim.
 */
Datum
sql_claim_release(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "claim_release()");
	int			delay = arg_check_delay(arg_int(fcinfo, 2, "delay"));
	bool		failed = DatumGetBool(arg_required(fcinfo, 3, "failed"));
	Queue		queue;
	ClaimId		claim;

	if (!queue_open(name, QUEUE_CLAIM, &queue) ||
		!arg_claim_id(fcinfo, 1, &queue, &claim))
		PG_RETURN_INT64(0);
	PG_RETURN_INT64(claim_release(&queue, &claim, delay, failed));
}

/*
 * claim_complete(q text, claim_id text) returns bigint
 *
 * Deletes the remaining messages of the claim.
 *
 * Result: the number of messages deleted.
 * Errors: QU001 the claim is not live (also when the id is NULL or malformed,
 * or the claim has no message left), QU004 a message of it was canceled, 42501
 * no right to claim.
 * Source: MediaWiki, JobQueue::ack, for a batch.
 */
Datum
sql_claim_complete(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "claim_complete()");
	Queue		queue;
	ClaimId		claim;

	if (!queue_open(name, QUEUE_CLAIM, &queue) ||
		!arg_claim_id(fcinfo, 1, &queue, &claim))
		claim_not_live();
	PG_RETURN_INT64(claim_complete(&queue, &claim, NULL, 0, false, NULL));
}

/* --- Single messages --- */

/*
 * message_delete(q text, id bigint, claim_id text = NULL) returns boolean
 *
 * Deletes one message; with a claim id, only if it is in that claim.
 *
 * Result: true: deleted; false: there is no such message.
 * Errors: QU001 the claim is not live, QU002 the message is not in it, QU003
 * no claim id was given and the message is claimed, QU004 it was canceled,
 * 22004 id is NULL, 42501 no right to claim.
 * Source: Zaqar, delete a specific message.
 */
Datum
sql_message_delete(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "message_delete()");
	Datum		id = arg_required(fcinfo, 1, "id");
	Queue		queue;
	ClaimId		claim;

	if (!open_with_claim(fcinfo, name, 2, &queue, &claim))
		PG_RETURN_BOOL(false);
	PG_RETURN_BOOL(claim_delete_messages(&queue, &id, 1,
										 PG_ARGISNULL(2) ? NULL : &claim,
										 false, NULL) > 0);
}

/*
 * messages_delete(q text, ids bigint[], claim_id text = NULL) returns bigint
 *
 * Deletes these messages, all or nothing; a repeated id counts once.
 *
 * Result: the number of messages deleted.
 * Errors: as message_delete; 22004 also for a NULL among the ids, 22023 an
 * array of more than one dimension.
 * Source: Zaqar, delete a set of messages by id.
 */
Datum
sql_messages_delete(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "messages_delete()");
	Queue		queue;
	ClaimId		claim;
	Datum	   *ids;
	int			n = arg_ids(fcinfo, 1, &ids);

	if (!open_with_claim(fcinfo, name, 2, &queue, &claim))
		PG_RETURN_INT64(0);
	PG_RETURN_INT64(claim_delete_messages(&queue, ids, n,
										  PG_ARGISNULL(2) ? NULL : &claim,
										  false, NULL));
}

/*
 * message_retry(q text, id bigint, claim_id text, error text = NULL,
 *				 delay int = NULL) returns timestamptz
 *
 * Gives one message of a claim back because its run failed.  It is due after
 * delay seconds and keeps its position in the order.  NULL: after a second,
 * twice as long after each attempt but the first, up to
 * queue.max_retry_delay, or as the queue's _retry_delay and _retry_backoff
 * say; and up to a quarter more.  Its lifetime is extended as by a claim.
 * error is stored with the message, at most 8 kB; NULL keeps the previous
 * one.
 *
 * Result: when it is due; NULL when it had been claimed _max_claim_count
 * times and became a dead letter.
 * Errors: QU001 the claim is not live (also when the id is NULL or
 * malformed), QU002 the message is not in it, QU004 it was canceled, 22004 and
 * 22023 arguments, 42501 no right to claim.
 * Source: MediaWiki, the retries of a job that failed.
 */
Datum
sql_message_retry(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "message_retry()");
	int64		id = DatumGetInt64(arg_required(fcinfo, 1, "id"));
	Queue		queue;
	ClaimId		claim;
	RetryTerms	terms = {.error = arg_text(fcinfo, 3),.delay = -1};
	TimestampTz due;

	if (!PG_ARGISNULL(4))
		terms.delay = arg_check_delay(PG_GETARG_INT32(4));
	if (!queue_open(name, QUEUE_CLAIM, &queue) ||
		!arg_claim_id(fcinfo, 2, &queue, &claim))
		claim_not_live();
	due = claim_retry_message(&queue, id, &claim, &terms);
	if (due == 0)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(due);
}

/*
 * message_bury(q text, id bigint, claim_id text, error text) returns void
 *
 * Makes one message of a claim a dead letter at once, however often it was
 * claimed, because no retry mends the error, which is stored with it as by
 * message_retry.  If the queue has no dead letter queue, it gets the one that
 * it would have by default, as from its owner.  A duplicate is dropped
 * instead.
 *
 * Errors: QU001 the claim is not live (also when the id is NULL or
 * malformed), QU002 the message is not in it, QU004 it was canceled, 22004 and
 * 22023 arguments, or the queue's name leaves no room for ".dead", 42501 no
 * right to claim, or the dead letter queue belongs to another role or does not
 * accept it, 55P03 the dead letter queue is locked.
 * Source: Graphile Worker, permanent failures.
 */
Datum
sql_message_bury(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "message_bury()");
	int64		id = DatumGetInt64(arg_required(fcinfo, 1, "id"));
	Queue		queue;
	ClaimId		claim;
	RetryTerms	terms = {.error = arg_text(fcinfo, 3),.bury = true};

	if (!queue_open(name, QUEUE_CLAIM, &queue) ||
		!arg_claim_id(fcinfo, 2, &queue, &claim))
		claim_not_live();
	claim_prepare_bury(&queue);
	(void) claim_retry_message(&queue, id, &claim, &terms);
	PG_RETURN_VOID();
}

/* --- Messages that no claim holds --- */

/*
 * messages_run_now(q text, ids bigint[]) returns bigint
 *
 * Makes these messages free, if they are delayed; a repeated id counts once.
 *
 * Result: how many delayed ones there were.
 * Errors: 22004 ids or one of them is NULL, 22023 an array of more than one
 * dimension, 42501 no right to claim.
 * Source: Sidekiq, add to queue; Oban, retry now.
 */
Datum
sql_messages_run_now(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "messages_run_now()");
	Queue		queue;
	Datum	   *ids;
	int			n = arg_ids(fcinfo, 1, &ids);

	if (!queue_open_or_notice(name, QUEUE_CLAIM, &queue))
		PG_RETURN_INT64(0);
	PG_RETURN_INT64(claim_run_now(&queue, ids, n));
}

/*
 * messages_bury(q text, ids bigint[], error text) returns bigint
 *
 * Makes these messages dead letters, if they are free or delayed, as
 * message_bury does with one of a claim; a repeated id counts once.  The error
 * is stored with them; NULL keeps the last one that each had.
 *
 * Result: how many there were.
 * Errors: 22004 ids or one of them is NULL, 22023 an array of more than one
 * dimension, or the queue's name leaves no room for ".dead", 42501 no right to
 * claim, or the dead letter queue belongs to another role or does not accept
 * them, 55P03 the dead letter queue is locked.
 * Source: Sidekiq, kill.
 */
Datum
sql_messages_bury(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "messages_bury()");
	Queue		queue;
	Datum	   *ids;
	int			n = arg_ids(fcinfo, 1, &ids);

	if (!queue_open_or_notice(name, QUEUE_CLAIM, &queue))
		PG_RETURN_INT64(0);
	claim_prepare_bury(&queue);
	PG_RETURN_INT64(claim_bury_unclaimed(&queue, ids, n, arg_text(fcinfo, 2)));
}

/* --- Canceling --- */

PG_FUNCTION_INFO_V1(sql_message_cancel);
PG_FUNCTION_INFO_V1(sql_messages_cancel);
PG_FUNCTION_INFO_V1(sql_queue_cancel_where);

/*
 * message_cancel(q text, id bigint, reason text = NULL) returns text
 *
 * Cancels one message.  If no claim holds it, it is removed.  Else it is
 * removed when its claim ends, and until then nothing that would complete,
 * retry or bury it succeeds; a handler that works on it is interrupted when
 * the transaction has committed, and the job is not retried.  The reason is
 * stored as its last error.
 *
 * Result: "canceled": removed; "pending": a claim holds it; NULL: there is no
 * such message.
 * Errors: 22004 id is NULL, 42501 no right to claim.
 * Source: Procrastinate and Oban, canceling a job.
 */
Datum
sql_message_cancel(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "message_cancel()");
	Datum		id = arg_required(fcinfo, 1, "id");
	Queue		queue;
	bool		is_pending;

	if (!queue_open_or_notice(name, QUEUE_CLAIM, &queue) ||
		cancel_messages(&queue, &id, 1, arg_text(fcinfo, 2), &is_pending) == 0)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(is_pending ? "pending" : "canceled"));
}

/*
 * messages_cancel(q text, ids bigint[], reason text = NULL) returns bigint
 *
 * Cancels these messages, as message_cancel does, all with this reason; a
 * repeated id counts once.
 *
 * Result: how many of them there were.
 * Errors: 22004 ids or one of them is NULL, 22023 an array of more than one
 * dimension, 42501 no right to claim.
 * Source: River, canceling many jobs.
 */
Datum
sql_messages_cancel(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "messages_cancel()");
	Queue		queue;
	Datum	   *ids;
	int			n = arg_ids(fcinfo, 1, &ids);

	if (!queue_open_or_notice(name, QUEUE_CLAIM, &queue))
		PG_RETURN_INT64(0);
	PG_RETURN_INT64(cancel_messages(&queue, ids, n, arg_text(fcinfo, 2),
									NULL));
}

/*
 * queue_cancel_where(q text, filter jsonb, reason text = NULL) returns bigint
 *
 * Cancels the messages of the queue whose bodies contain the filter, as the
 * operator @> says, as message_cancel does, all with this reason.  It reads
 * the whole queue, and locks nothing before it has.  Messages that are pushed
 * meanwhile may be left out.
 *
 * Result: how many there were.
 * Errors: 22004 filter is NULL, 42501 no right to claim.
 * Source: River, canceling many jobs.
 */
Datum
sql_queue_cancel_where(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "queue_cancel_where()");
	Jsonb	   *filter = DatumGetJsonbP(arg_required(fcinfo, 1, "filter"));
	Queue		queue;

	if (!queue_open_or_notice(name, QUEUE_CLAIM, &queue))
		PG_RETURN_INT64(0);
	PG_RETURN_INT64(cancel_where(&queue, filter, arg_text(fcinfo, 2)));
}
