/*-------------------------------------------------------------------------
 *
 * step_api.c
 *	  SQL function queue_step: the whole cycle of a worker in one call.
 *
 * NOTES
 *	  The cycle ends one claim, pushes, and makes the next claim.  Each part
 *	  does what its own function does (claim_complete or messages_delete,
 *	  message_retry, message_bury, claim_release, queue_post, queue_claim).
 *	  What the call saves is the way to the server and the commit of each of
 *	  them.
 *
 * src/api/step_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/array.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"

#include "api/api_arg.h"
#include "api/post_api.h"
#include "catalog/message_id.h"
#include "claim/claim.h"
#include "claim/claim_message.h"
#include "claim/claim_update.h"
#include "queue/message_result.h"
#include "queue/registry.h"
#include "storage/claim_id.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/json.h"

PG_FUNCTION_INFO_V1(sql_queue_step);

/* A message whose work has failed */
typedef struct Failure
{
	int64		id;
	char	   *error;			/* NULL keeps the previous one */
	int			delay;			/* seconds; -1 if the queue says */
	bool		bury;			/* it becomes a dead letter */
} Failure;

/* What became of the messages of the claim that the step ends */
typedef struct StepOutcome
{
	bool		has_done;		/* otherwise what has not failed is done */
	Datum	   *elements;		/* their ids, as they were given, */
	int64	   *done;			/* and in the order of message_id_cmp() */
	int			ndone;
	int			nfailed;
	Failure    *failures;		/* in the order of message_id_cmp() */
	int64	   *failed;			/* their ids */
	bool		buries;			/* one of them becomes a dead letter */
} StepOutcome;

static void get_outcome(FunctionCallInfo fcinfo, StepOutcome *outcome);
static void parse_failures(Jsonb *array, StepOutcome *outcome);
static bool get_field(Jsonb *object, const char *field, JsonbValue *value);
static void check_fields(Jsonb *object, int n);
static void parse_failure(Jsonb *object, int n, Failure *failure);
static int64 get_integer(const JsonbValue *value, const char *field, int n);
static int64 get_id(const JsonbValue *value, int n);
static void retry_failures(const Queue *queue, const ClaimId *claim,
						   const StepOutcome *outcome);

/* --- Arguments --- */

/* Get the arguments done and failed. */
static void
get_outcome(FunctionCallInfo fcinfo, StepOutcome *outcome)
{
	int64	   *ids;
	int			n;

	memset(outcome, 0, sizeof(StepOutcome));
	outcome->has_done = !PG_ARGISNULL(2);
	if (outcome->has_done)
		outcome->ndone = arg_elements("done", PG_GETARG_ARRAYTYPE_P(2),
									  &outcome->elements);
	outcome->done = palloc(outcome->ndone * sizeof(int64));
	for (int i = 0; i < outcome->ndone; i++)
		outcome->done[i] = DatumGetInt64(outcome->elements[i]);
	qsort(outcome->done, outcome->ndone, sizeof(int64), message_id_cmp);
	if (!PG_ARGISNULL(3))
		parse_failures(PG_GETARG_JSONB_P(3), outcome);

	/* These are messages of a claim, so there must be one. */
	n = outcome->ndone + outcome->nfailed;
	if (n > 0)
		(void) arg_required(fcinfo, 1, "claim_id");

	/*
	 * A message that is named twice would be gone when its second turn comes:
	 * say what is wrong instead.
	 */
	ids = palloc(n * sizeof(int64));
	for (int i = 0; i < n; i++)
		ids[i] = i < outcome->ndone ? outcome->done[i] :
			outcome->failed[i - outcome->ndone];
	qsort(ids, n, sizeof(int64), message_id_cmp);
	for (int i = 1; i < n; i++)
		if (ids[i] == ids[i - 1])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("message %lld is named twice in \"%s\" and \"%s\"",
							(long long) ids[i], "done", "failed"),
					 errhint("Name each message once.")));
}

static void
parse_failures(Jsonb *array, StepOutcome *outcome)
{
	JsonbIterator *it;
	JsonbValue	v;
	int			n = 0;

	if (!JB_ROOT_IS_ARRAY(array) || JB_ROOT_IS_SCALAR(array))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be a JSON array", "failed"),
				 errhint("Give the messages that failed as [{\"id\": ..., \"error\": ...}, ...].")));
	outcome->nfailed = JB_ROOT_COUNT(array);
	outcome->failures = palloc(outcome->nfailed * sizeof(Failure));
	it = JsonbIteratorInit(&array->root);
	(void) JsonbIteratorNext(&it, &v, true);	/* the array itself */
	for (; JsonbIteratorNext(&it, &v, true) == WJB_ELEM; n++)
	{
		if (v.type != jbvBinary ||
			!JsonContainerIsObject(v.val.binary.data))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("element %d of parameter \"%s\" is not a JSON object",
							n + 1, "failed"),
					 errhint("Give the messages that failed as [{\"id\": ..., \"error\": ...}, ...].")));
		parse_failure(JsonbValueToJsonb(&v), n + 1, &outcome->failures[n]);
		outcome->buries |= outcome->failures[n].bury;
	}

	/* In this order claim_complete() searches them. */
	qsort(outcome->failures, n, sizeof(Failure), message_id_cmp);
	outcome->failed = palloc(n * sizeof(int64));
	for (int i = 0; i < n; i++)
		outcome->failed[i] = outcome->failures[i].id;
}

/*
 * Get a field of a failed message.  Returns false if it is missing, or JSON's
 * null.
 */
static bool
get_field(Jsonb *object, const char *field, JsonbValue *value)
{
	return json_field(object, field, value) && value->type != jbvNull;
}

static void
check_fields(Jsonb *object, int n)
{
	JsonbIterator *it = JsonbIteratorInit(&object->root);
	JsonbIteratorToken token;
	JsonbValue	v;

	while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		char	   *field;

		if (token != WJB_KEY)
			continue;
		field = pnstrdup(v.val.string.val, v.val.string.len);
		if (strcmp(field, "id") != 0 && strcmp(field, "error") != 0 &&
			strcmp(field, "delay") != 0 && strcmp(field, "bury") != 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("element %d of parameter \"%s\" has an unknown field \"%s\"",
							n, "failed", arg_clip(field, CLIP_LENGTH)),
					 errhint("The fields are id, error, delay and bury.")));
	}
}

/* Read element n of the array. */
static void
parse_failure(Jsonb *object, int n, Failure *failure)
{
	JsonbValue	v;

	check_fields(object, n);
	if (!get_field(object, "id", &v))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("element %d of parameter \"%s\" has no id", n,
						"failed"),
				 errhint("Every message that failed needs the field \"id\".")));
	failure->id = get_id(&v, n);
	failure->delay = !get_field(object, "delay", &v) ? -1 :
		arg_check_delay(get_integer(&v, "delay", n));
	failure->bury = get_field(object, "bury", &v);
	if (failure->bury)
	{
		if (v.type != jbvBool)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("field \"%s\" of element %d of parameter \"%s\" must be true or false",
							"bury", n, "failed"),
					 errhint("Give a JSON boolean.")));
		failure->bury = v.val.boolean;
	}
	failure->error = NULL;
	if (!get_field(object, "error", &v))
		return;
	if (v.type != jbvString)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("field \"%s\" of element %d of parameter \"%s\" must be a string",
						"error", n, "failed"),
				 errhint("Put the error in quotes, or leave the field out.")));
	failure->error = pnstrdup(v.val.string.val, v.val.string.len);
}

static int64
get_integer(const JsonbValue *value, const char *field, int n)
{
	int64		integer;

	if (!json_integer(value, &integer))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("field \"%s\" of element %d of parameter \"%s\" must be an integer",
						field, n, "failed"),
				 errhint("Give a JSON number without a fraction.")));
	return integer;
}

/* JavaScript has ids as strings, since its numbers do not hold all of them. */
static int64
get_id(const JsonbValue *value, int n)
{
	char	   *text;
	char	   *end;
	int64		id;

	if (value->type != jbvString)
		return get_integer(value, "id", n);
	text = pnstrdup(value->val.string.val, value->val.string.len);

	errno = 0;
	id = strtoll(text, &end, 10);
	if (errno != 0 || *end != '\0' || end == text)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("field \"%s\" of element %d of parameter \"%s\" is no id: \"%s\"",
						"id", n, "failed", arg_clip(text, CLIP_LENGTH)),
				 errhint("Give the id as it was returned, as a JSON number or string.")));
	return id;
}

/* --- The step --- */

/*
 * Retry or bury the messages that have failed; at least one of the claim is
 * locked.
 */
static void
retry_failures(const Queue *queue, const ClaimId *claim,
			   const StepOutcome *outcome)
{
	/* A retry leaves several copies of its message and its error behind. */
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "retry",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);

	for (int i = 0; i < outcome->nfailed; i++)
	{
		const Failure *failure = &outcome->failures[i];
		RetryTerms	terms = {.error = failure->error,.delay = failure->delay,
		.bury = failure->bury,.is_live = true};

		(void) claim_retry_message(queue, failure->id, claim, &terms);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/*
 * queue_step(q text, claim_id text = NULL, done bigint[] = NULL,
 *			  failed jsonb = NULL, push jsonb = NULL, ttl int = 300,
 *			  grace int = 60, "limit" int = NULL)
 * returns setof queue_message
 *
 * The cycle of a worker in one call.  Of the claim (NULL: there is none yet),
 * deletes the messages in done (NULL: all that are not in failed), retries
 * those in failed, an array of objects with the fields id (a number or a
 * string), error and delay as in message_retry, of which only id is required,
 * and gives the rest back.
 * One whose field bury is true becomes a dead letter, as by message_bury.
 * Then pushes the messages in push, an array as for queue_post, each to q
 * unless it has a field queue.  Then claims as queue_claim does; a limit of 0
 * claims nothing.  All or nothing.
 *
 * Result: as queue_claim.
 * Errors: QU001 the claim is not live, QU002 a message is not in it, QU004 one
 * was canceled; as queue_claim, message_retry, message_bury and queue_post;
 * 22023 a message is named twice, 22004 there is no claim that they could be
 * of.
 * Source: claim_next, for a worker that also retries and pushes.
 */
Datum
sql_queue_step(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "queue_step()");
	bool		has_claim = !PG_ARGISNULL(1);
	bool		ends = !PG_ARGISNULL(7) && PG_GETARG_INT32(7) == 0;
	ClaimTerms	terms;
	StepOutcome outcome;
	ClaimId		claim;
	MessageResult result;
	Queue		queue;
	int64		nleft = 0;		/* messages that are given back */

	get_outcome(fcinfo, &outcome);
	if (!ends)
		arg_claim_terms(fcinfo, 5, &terms);
	api_begin_messages(fcinfo, &result);

	if (has_claim)
	{
		if (!queue_open(name, QUEUE_CLAIM, &queue) ||
			!arg_claim_id(fcinfo, 1, &queue, &claim))
			claim_not_live();
		if (outcome.buries)
			claim_prepare_bury(&queue);

		/*
		 * What has failed and the rest are changed one after the other, each
		 * in the order in which all functions lock messages.  We lock all of
		 * them in that order first, lest we wait for a session that renews
		 * the claim while it waits for us.
		 */
		if (!outcome.has_done)
			(void) claim_complete(&queue, &claim, outcome.failed,
								  outcome.nfailed, false, NULL);

		/* Some may not be in the claim: an error unless they are gone. */
		else if (claim_complete(&queue, &claim, outcome.done, outcome.ndone,
								true, &nleft) < outcome.ndone)
			(void) claim_delete_messages(&queue, outcome.elements,
										 outcome.ndone, &claim, true,
										 NULL);
		nleft -= outcome.nfailed;
		retry_failures(&queue, &claim, &outcome);

		/*
		 * A release of a claim that is not live is no error.  But if nothing
		 * is done and nothing has failed, no other call has noticed that the
		 * claim has run out.
		 */
		if (nleft > 0 && claim_release(&queue, &claim, 0, false) == 0 &&
			outcome.ndone == 0 && outcome.nfailed == 0)
			claim_not_live();
	}
	if (!PG_ARGISNULL(4))
		post_of_step(PG_GETARG_JSONB_P(4), name);

	/*
	 * We open the queue after the push, which may have created it, or have
	 * made it a queue with groups.
	 */
	if (!ends && queue_open_or_notice(name, QUEUE_CLAIM, &queue))
		(void) claim_from_queue(&queue, &terms, &result);
	return (Datum) 0;
}
