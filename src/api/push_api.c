/*-------------------------------------------------------------------------
 *
 * push_api.c
 *	  SQL functions that push messages.
 *
 * NOTES
 *	  A function checks all of its arguments before it writes the first
 *	  message, so that a wrong argument is reported before the call has waited
 *	  for another transaction.
 *
 * src/api/push_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"

#include "api/api_arg.h"
#include "api/push_api.h"
#include "push/lazy_push.h"
#include "push/push.h"
#include "push/push_once.h"
#include "queue/registry.h"
#include "queue/shard.h"
#include "storage/batches.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/hash.h"
#include "util/limits.h"
#include "util/settings.h"

PG_FUNCTION_INFO_V1(sql_queue_push);
PG_FUNCTION_INFO_V1(sql_queue_push_lazy);
PG_FUNCTION_INFO_V1(sql_queue_push_once);
PG_FUNCTION_INFO_V1(sql_queue_push_batch);
PG_FUNCTION_INFO_V1(sql_queue_dedup_key);

/* Keys of a body that begin so name its root job (root_job.c). */
#define ROOT_PREFIX		"rootJob"

static void get_batch_args(FunctionCallInfo fcinfo, int batch,
						   NewMessage *message);
static const char *get_push_args(FunctionCallInfo fcinfo, int body,
								 bool has_batch, NewMessage *message);
static Datum *get_elements(ArrayType *array, const char *name, Oid type,
						   bool **nulls, int *n);
static bool is_ignored_key(const JsonbValue *key, Datum *ignore, int n);
static void append_json_scalar(StringInfo out, const JsonbValue *value);
static void append_body(StringInfo out, Jsonb *body, Datum *ignore, int n);

/* --- One message --- */

void
push_set_dedup_key(NewMessage *message, const char *key)
{
	message->dedup_key = palloc(sizeof(pg_uuid_t));
	digest_text(key, message->dedup_key);
}

void
push_set_group_key(NewMessage *message, text *key)
{
	int			length = VARSIZE_ANY_EXHDR(key);

	if (length < 1 || length > QUEUE_GROUP_KEY_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("group key of %d bytes is not allowed", length),
				 errhint("Give 1 to %d bytes, or NULL for a message without a group.",
						 QUEUE_GROUP_KEY_LENGTH)));
	message->group_key = key;
}

/*
 * Set when a message is due, whose delay has been set if it has one; the past
 * is now.
 */
void
push_set_at(NewMessage *message, TimestampTz at)
{
	TimestampTz now = GetCurrentTimestamp();

	if (message->delay != PUSH_DEFAULT)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"at\" cannot be combined with \"delay\""),
				 errhint("Give the time or the delay, and NULL for the other.")));
	if (at > now + setting_max_message_delay * USECS_PER_SEC)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be at most %d s from now (%s)",
						"at", setting_max_message_delay,
						"queue.max_message_delay"),
				 errhint("Give an earlier time, or have \"queue.max_message_delay\" raised.")));
	message->delay = 0;
	message->at = at > now ? at : 0;
}

/* Set what makes a message a duplicate. */
void
push_set_dedup(NewMessage *message, const char *mode)
{
	if (strcmp(mode, "waiting") == 0)
		message->dedup.mode = DEDUP_WAITING;
	else if (strcmp(mode, "unfinished") == 0)
		message->dedup.mode = DEDUP_UNFINISHED;
	else if (strcmp(mode, "replace") == 0)
		message->dedup.mode = DEDUP_REPLACE;
	else
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must not be \"%s\"", "dedup",
						arg_clip(mode, CLIP_LENGTH)),
				 errhint("Give 'waiting', 'unfinished' or 'replace'.")));
}

void
push_set_period(NewMessage *message, int64 seconds)
{
	message->dedup.period = arg_check_bounds("dedup_for", seconds, 1, NULL,
											 DEDUP_MAX_PERIOD, NULL, " s");
}

/*
 * Check that a message has a key, and takes it with the push, if it has other
 * terms than the default ones.
 */
void
push_check_dedup(const NewMessage *message)
{
	if (message->dedup.mode == DEDUP_WAITING && message->dedup.period == 0)
		return;
	if (message->dedup_key == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"dedup\" and \"dedup_for\" need \"dedup_key\""),
				 errhint("Give the key of which there is to be one message.")));
	if (message->after != NO_BATCH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"dedup\" and \"dedup_for\" cannot be combined with \"after\""),
				 errdetail("A message that waits for a batch takes its key when the batch has finished.")));
}

/* Returns the id of a batch as it is in a message; none has the id 0. */
int64
push_batch_id(int64 id)
{
	return id == NO_BATCH ? -1 : id;
}

/*
 * Get the arguments batch, after and after_success, the first of which has
 * this number.
 */
static void
get_batch_args(FunctionCallInfo fcinfo, int batch, NewMessage *message)
{
	int			after = batch + 1;
	int			success = batch + 2;

	if (!PG_ARGISNULL(batch))
		message->batch = push_batch_id(PG_GETARG_INT64(batch));
	if (!PG_ARGISNULL(after))
		message->after = push_batch_id(PG_GETARG_INT64(after));
	message->after_success =
		DatumGetBool(arg_required(fcinfo, success, "after_success"));
}

/*
 * Get and check the arguments that describe a message: those with these
 * numbers, and delay and priority, which follow ttl.
 */
void
push_get_message(FunctionCallInfo fcinfo, int body, int ttl, int dedup_key,
				 int group_key, int headers, NewMessage *message)
{
	int			delay = ttl + 1;
	int			priority = ttl + 2;

	memset(message, 0, sizeof(NewMessage));
	message->body = DatumGetJsonbP(arg_required(fcinfo, body, "body"));
	message->priority =
		arg_check_priority(arg_int(fcinfo, priority, "priority"));
	message->ttl = PG_ARGISNULL(ttl) ? PUSH_DEFAULT :
		arg_check_ttl(PG_GETARG_INT32(ttl));
	message->delay = PG_ARGISNULL(delay) ? PUSH_DEFAULT :
		arg_check_delay(PG_GETARG_INT32(delay));
	if (!PG_ARGISNULL(dedup_key))
		push_set_dedup_key(message,
						   text_to_cstring(PG_GETARG_TEXT_PP(dedup_key)));
	if (!PG_ARGISNULL(group_key))
		push_set_group_key(message, PG_GETARG_TEXT_PP(group_key));
	if (!PG_ARGISNULL(headers))
		message->headers = PG_GETARG_JSONB_P(headers);
}

/*
 * Get and check the arguments of queue_push and the like: those of the
 * message, from the body on, which is argument number "body", and the name of
 * the queue, which is returned.
 */
static const char *
get_push_args(FunctionCallInfo fcinfo, int body, bool has_batch,
			  NewMessage *message)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	int			at = body + (has_batch ? 10 : 7);
	int			dedup = at + 1;
	int			period = at + 2;

	push_get_message(fcinfo, body, body + 1, body + 4, body + 5, body + 6,
					 message);
	if (has_batch)
		get_batch_args(fcinfo, body + 7, message);

	/* The function of queue_pgmq does not have what follows. */
	if (PG_NARGS() <= period)
		return name;
	if (!PG_ARGISNULL(at))
		push_set_at(message, PG_GETARG_TIMESTAMPTZ(at));
	push_set_dedup(message,
				   TextDatumGetCString(arg_required(fcinfo, dedup, "dedup")));
	if (!PG_ARGISNULL(period))
		push_set_period(message, PG_GETARG_INT32(period));
	push_check_dedup(message);
	return name;
}

/*
 * queue_push(q text, body jsonb, ttl int = NULL, delay int = NULL,
 *			  priority int = 0, dedup_key text = NULL,
 *			  group_key text = NULL, headers jsonb = NULL,
 *			  batch bigint = NULL, after bigint = NULL,
 *			  after_success boolean = false, at timestamptz = NULL,
 *			  dedup text = 'waiting', dedup_for int = NULL) returns bigint
 *
 * Pushes one message.  ttl: its lifetime in seconds (NULL: the queue's
 * _default_message_ttl or queue.default_message_ttl).  delay: seconds until
 * it is handed out (NULL: the queue's _default_message_delay or none).
 * priority: 0 to 9, higher first.  dedup_key: while an unclaimed message of
 * the queue has it, the push is dropped.  group_key: 1 to 256 bytes, the group
 * of the message (NULL: none).  headers: returned with the message; counted
 * toward the size of the body.  batch: the message is a member of it.  after:
 * the message waits until that batch has finished; if after_success is set, it
 * becomes a dead letter when a member of the batch has failed.  at: when it is
 * due, instead of a delay; the past is now.  dedup: 'unfinished': the push is
 * also dropped while a message with its key is claimed; 'replace': the message
 * that waits gets its body, headers and due time instead.  dedup_for: seconds;
 * it is also dropped if a push with dedup_for had the key in the last so many,
 * whatever became of its message; that one counts for as long as it said
 * itself, and an hour at least.
 *
 * Result: the id, of the message that was replaced if one was; NULL when
 * dropped as a duplicate.
 * Errors: 22004 and 22023 arguments, 54000 body too large, 42704 unknown
 * queue while queue.auto_create is off, or unknown batch, 55000 the batch has
 * finished, 42501 no right to push, or not the batch's owner.
 * Source: Zaqar, post message; MediaWiki, JobQueue::push and ignoreDuplicates.
 */
Datum
sql_queue_push(PG_FUNCTION_ARGS)
{
	const char *name;
	NewMessage	message;
	Queue		queue;
	int64		total = 0;

	api_check_can_write("queue_push()");
	name = get_push_args(fcinfo, 1, true, &message);
	queue_open_or_create(name, QUEUE_PUSH, &queue);
	push_prepare(&queue, &message, &total);
	push_messages(&queue, &message, 1);
	if (message.id == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(message.id);
}

/*
 * queue_push_lazy(q text, body jsonb, ttl int = NULL, delay int = NULL,
 *				   priority int = 0, dedup_key text = NULL,
 *				   group_key text = NULL, headers jsonb = NULL,
 *				   at timestamptz = NULL, dedup text = 'waiting',
 *				   dedup_for int = NULL)
 * returns void
 *
 * Pushes one message when the transaction commits; arguments as those of
 * queue_push.  A rollback, also to a savepoint, drops it.  If the push fails
 * then, a warning in the log says so, and the transaction commits.
 *
 * Errors, at once: 22004 and 22023 arguments, 54000 body too large.
 * Source: MediaWiki, JobQueueGroup::lazyPush.
 */
Datum
sql_queue_push_lazy(PG_FUNCTION_ARGS)
{
	const char *name;
	NewMessage	message;

	api_check_can_write("queue_push_lazy()");
	name = get_push_args(fcinfo, 1, false, &message);
	push_check_size(&message);
	shard_check(name);
	lazy_push_add(name, &message);
	PG_RETURN_VOID();
}

/*
 * queue_push_once(q text, origin text, origin_id bigint, body jsonb,
 *				   ttl int = NULL, delay int = NULL, priority int = 0,
 *				   dedup_key text = NULL, group_key text = NULL,
 *				   headers jsonb = NULL, batch bigint = NULL,
 *				   after bigint = NULL, after_success boolean = false,
 *				   at timestamptz = NULL, dedup text = 'waiting',
 *				   dedup_for int = NULL)
 * returns bigint
 *
 * Pushes one message, unless a call with the same queue, origin and origin_id
 * has done so before, at least within the last 28 days; a call in progress is
 * waited for.  origin: 1 to 256 bytes, what origin_id is unique in, such as a
 * table of another server.  The other arguments are as those of queue_push,
 * and are not compared with those of the first call.
 *
 * Result: what the first call has returned: the id of its message, whatever
 * has become of that; NULL when it was dropped as a duplicate.
 * Errors: as queue_push.
 * Source: the receiving end of the outbox pattern.
 */
Datum
sql_queue_push_once(PG_FUNCTION_ARGS)
{
	const char *name;
	PushOrigin	origin;
	NewMessage	message;
	int			length;

	api_check_can_write("queue_push_once()");
	origin.name = DatumGetTextPP(arg_required(fcinfo, 1, "origin"));
	length = VARSIZE_ANY_EXHDR(origin.name);
	if (length < 1 || length > QUEUE_ORIGIN_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be 1 to %d bytes long, not %d",
						"origin", QUEUE_ORIGIN_LENGTH, length),
				 errhint("Name what counts \"origin_id\", such as a table.")));
	origin.id = DatumGetInt64(arg_required(fcinfo, 2, "origin_id"));
	name = get_push_args(fcinfo, 3, true, &message);
	push_message_once(name, &origin, &message);
	if (message.id == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(message.id);
}

/* --- Several messages --- */

/* Returns n messages of zeros, unless the argument has too many. */
NewMessage *
push_alloc_messages(const char *arg, int n)
{
	if (n > setting_max_push_count)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" has %d messages, at most %d are allowed (%s)",
						arg, n, setting_max_push_count,
						"queue.max_push_count"),
				 errhint("Push in several calls, or have \"queue.max_push_count\" raised.")));
	return MemoryContextAllocExtended(CurrentMemoryContext,
									  Max(n, 1) * sizeof(NewMessage),
									  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
}

/*
 * Returns an array of the ids of pushed messages, with a NULL for each
 * duplicate.
 */
Datum
push_ids_array(NewMessage *messages, int n)
{
	Datum	   *values = palloc(n * sizeof(Datum));
	bool	   *nulls = palloc(n * sizeof(bool));
	int			lower = 1;

	for (int i = 0; i < n; i++)
	{
		values[i] = Int64GetDatum(messages[i].id);
		nulls[i] = messages[i].id == 0;
	}
	return PointerGetDatum(construct_md_array(values, nulls, 1, &n, &lower,
											  INT8OID, sizeof(int64),
											  FLOAT8PASSBYVAL,
											  TYPALIGN_DOUBLE));
}

/* Returns the elements of an array argument of queue_push_batch. */
static Datum *
get_elements(ArrayType *array, const char *name, Oid type, bool **nulls,
			 int *n)
{
	Datum	   *elements;

	arg_check_array(name, array);
	deconstruct_array(array, type, -1, false, TYPALIGN_INT, &elements, nulls,
					  n);
	return elements;
}

/*
 * queue_push_batch(q text, bodies jsonb[], ttl int = NULL, delay int = NULL,
 *					priority int = 0, group_keys text[] = NULL,
 *					batch bigint = NULL, after bigint = NULL,
 *					after_success boolean = false, at timestamptz = NULL)
 * returns bigint[]
 *
 * Pushes one message for each body, all or nothing; ttl, delay and priority
 * are as for queue_push and hold for all of them, as do batch, after,
 * after_success and at.  group_keys has the group key of each message.  At
 * most queue.max_push_count.
 *
 * Result: the ids, in the order of the bodies.
 * Errors: as queue_push; 22004 also for a NULL among the bodies, 22023 if
 * there are more or fewer group keys than bodies.
 * Source: MediaWiki, JobQueue::batchPush.
 */
Datum
sql_queue_push_batch(PG_FUNCTION_ARGS)
{
	const char *name;
	Queue		queue;
	ArrayType  *array;
	Datum	   *bodies;
	bool	   *nulls;
	int			n;
	int64		total = 0;
	NewMessage *messages;
	NewMessage	terms = {.ttl = PUSH_DEFAULT,.delay = PUSH_DEFAULT};

	api_check_can_write("queue_push_batch()");
	name = arg_queue_name(fcinfo, 0, "q");
	array = DatumGetArrayTypeP(arg_required(fcinfo, 1, "bodies"));
	terms.priority = arg_check_priority(arg_int(fcinfo, 4, "priority"));
	if (!PG_ARGISNULL(2))
		terms.ttl = arg_check_ttl(PG_GETARG_INT32(2));
	if (!PG_ARGISNULL(3))
		terms.delay = arg_check_delay(PG_GETARG_INT32(3));
	get_batch_args(fcinfo, 6, &terms);
	if (!PG_ARGISNULL(9))
		push_set_at(&terms, PG_GETARG_TIMESTAMPTZ(9));
	bodies = get_elements(array, "bodies", JSONBOID, &nulls, &n);
	messages = push_alloc_messages("bodies", n);
	for (int i = 0; i < n; i++)
		messages[i] = terms;
	if (!PG_ARGISNULL(5))
	{
		bool	   *no_key;
		int			nkeys;
		Datum	   *keys = get_elements(PG_GETARG_ARRAYTYPE_P(5), "group_keys",
										TEXTOID, &no_key, &nkeys);

		if (nkeys != n)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("parameter \"%s\" has %d elements for %d messages",
							"group_keys", nkeys, n),
					 errhint("Give one element for each body, NULL for a message without a group.")));
		for (int i = 0; i < n; i++)
			if (!no_key[i])
				push_set_group_key(&messages[i], DatumGetTextPP(keys[i]));
	}

	queue_open_or_create(name, QUEUE_PUSH, &queue);
	for (int i = 0; i < n; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("element %d of parameter \"%s\" must not be null",
							i + 1, "bodies"),
					 errhint("For a JSON null give 'null'::jsonb.")));
		messages[i].body = DatumGetJsonbP(bodies[i]);
		push_prepare(&queue, &messages[i], &total);
	}

	push_messages(&queue, messages, n);
	PG_RETURN_DATUM(push_ids_array(messages, n));
}

/* --- Deduplication keys --- */

/* Returns whether to leave out this key of the body. */
static bool
is_ignored_key(const JsonbValue *key, Datum *ignore, int n)
{
	if (key->val.string.len >= (int) strlen(ROOT_PREFIX) &&
		memcmp(key->val.string.val, ROOT_PREFIX, strlen(ROOT_PREFIX)) == 0)
		return true;
	for (int i = 0; i < n; i++)
	{
		text	   *name = DatumGetTextPP(ignore[i]);

		if ((int) VARSIZE_ANY_EXHDR(name) == key->val.string.len &&
			memcmp(VARDATA_ANY(name), key->val.string.val,
				   key->val.string.len) == 0)
			return true;
	}
	return false;
}

static void
append_json_scalar(StringInfo out, const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvNull:
			appendStringInfoString(out, "null");
			break;
		case jbvBool:
			appendStringInfoString(out, value->val.boolean ? "true" : "false");
			break;
		case jbvNumeric:
			appendStringInfoString(out, numeric_normalize(value->val.numeric));
			break;
		case jbvString:
			escape_json(out, pnstrdup(value->val.string.val,
									  value->val.string.len));
			break;
		default:
			elog(ERROR, "unexpected type of a JSON value: %d",
				 (int) value->type);
	}
}

/*
 * Append the body as text, without the ignored keys.  The text is unambiguous,
 * so two bodies have the same one only if they are equal; and those that are
 * equal as jsonb have the same one: jsonb keeps the keys of an object in one
 * order, and numbers are written in their normal form, because 1.0 and 1 are
 * equal.  The text is never stored, but keys that clients have stored depend on
 * it, so it must not change between versions.
 */
static void
append_body(StringInfo out, Jsonb *body, Datum *ignore, int n)
{
	JsonbIterator *it = JsonbIteratorInit(&body->root);
	JsonbIteratorToken token;
	JsonbValue	v;
	int			depth = 0;

	while ((token = JsonbIteratorNext(&it, &v, false)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		switch (token)
		{
			case WJB_BEGIN_OBJECT:
				appendStringInfoChar(out, '{');
				depth++;
				break;
			case WJB_BEGIN_ARRAY:

				/*
				 * A scalar is in an array of its own, and must not look like
				 * one.
				 */
				appendStringInfoChar(out, v.val.array.rawScalar ? '=' : '[');
				depth++;
				break;
			case WJB_END_OBJECT:
			case WJB_END_ARRAY:
				appendStringInfoChar(out, token == WJB_END_OBJECT ? '}' : ']');
				depth--;
				break;
			case WJB_KEY:
				if (depth == 1 && is_ignored_key(&v, ignore, n))
				{
					(void) JsonbIteratorNext(&it, &v, true);
					break;
				}
				append_json_scalar(out, &v);
				appendStringInfoChar(out, ':');
				break;
			case WJB_VALUE:
			case WJB_ELEM:
				append_json_scalar(out, &v);
				appendStringInfoChar(out, ',');
				break;
			case WJB_DONE:
				break;
		}
	}
}

/*
 * queue_dedup_key(body jsonb, ignore text[] = '{}') returns text
 *
 * A deduplication key for pushes: the SHA-256 digest of the body, in
 * hexadecimal digits.  Bodies that are equal as jsonb have the same one,
 * whatever the order of their keys.  Keys of the body that begin with
 * "rootJob", and those in ignore, are left out.
 *
 * Errors: 22004 an argument is NULL, or a key in ignore.
 * Source: MediaWiki, Job::getDeduplicationInfo.
 */
Datum
sql_queue_dedup_key(PG_FUNCTION_ARGS)
{
	Datum		body = arg_required(fcinfo, 0, "body");
	Datum		array = arg_required(fcinfo, 1, "ignore");
	Datum	   *ignore;
	int			n;
	StringInfoData out;
	Datum		normal;
	Datum		digest;

	n = arg_elements("ignore", DatumGetArrayTypeP(array), &ignore);
	initStringInfo(&out);
	append_body(&out, DatumGetJsonbP(body), ignore, n);
	normal = PointerGetDatum(cstring_to_text_with_len(out.data, out.len));
	digest = DirectFunctionCall1(sha256_bytea, normal);
	PG_RETURN_DATUM(DirectFunctionCall2(binary_encode, digest,
										CStringGetTextDatum("hex")));
}
