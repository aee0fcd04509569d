/*-------------------------------------------------------------------------
 *
 * push_api.c
 *	  The SQL functions that push messages.
 *
 * NOTES
 *	  Each checks all of its arguments before it writes a message, so that an
 *	  error names the first wrong one before anybody was kept waiting.
 *
 * src/api/push_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "api/push_api.h"
#include "queue/options.h"
#include "queue/push.h"
#include "queue/registry.h"
#include "util/args.h"
#include "util/digest.h"
#include "util/json.h"
#include "util/settings.h"

/* Fields of a message in queue_post */
typedef enum PostField
{
	POST_BODY,
	POST_TTL,
	POST_DELAY,
	POST_PRIORITY,
	POST_DEDUP_KEY,
	POST_FIELDS
} PostField;

static const char *const post_fields[POST_FIELDS] = {
	"body", "ttl", "delay", "priority", "dedup_key"
};

PG_FUNCTION_INFO_V1(sql_queue_push);
PG_FUNCTION_INFO_V1(sql_queue_push_batch);
PG_FUNCTION_INFO_V1(sql_queue_post);

static void check_body(Jsonb *body, const Queue *queue, int64 *total);
static void set_dedup(NewMessage *message, const char *key);
static void check_count(const char *arg, int n);
static int64 post_integer(JsonbValue *value, const char *field, int n);
static void post_context(void *arg);
static void parse_post(JsonbValue *element, int n, const Queue *queue,
					   NewMessage *message);
static Datum ids_array(NewMessage *messages, int n);

/* One body, whatever the queue. */
void
push_check_size(Jsonb *body)
{
	int64		size = VARSIZE(body);

	if (size > setting_max_message_size)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("body of %lld bytes is too large", (long long) size),
				 errdetail("The setting \"queue.max_message_size\" is %d bytes.",
						   setting_max_message_size),
				 errhint("Send less, store the large part elsewhere and refer to it, or have \"queue.max_message_size\" raised.")));
}

/* One body, and the sum of those of this call. */
static void
check_body(Jsonb *body, const Queue *queue, int64 *total)
{
	push_check_size(body);
	*total += VARSIZE(body);
	if (queue->max_post_size >= 0 && *total > queue->max_post_size)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("bodies of %lld bytes are too large for one push to queue \"%s\"",
						(long long) *total, queue->name),
				 errdetail("\"_max_messages_post_size\" in its metadata is %d bytes.",
						   queue->max_post_size),
				 errhint("Push fewer messages at once, or raise \"_max_messages_post_size\" with queue_update.")));
}

static void
set_dedup(NewMessage *message, const char *key)
{
	message->dedup = palloc(sizeof(pg_uuid_t));
	digest_text(key, message->dedup);
}

static void
check_count(const char *arg, int n)
{
	if (n > setting_max_push_count)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" has %d messages, at most %d are allowed (%s)",
						arg, n, setting_max_push_count,
						"queue.max_push_count"),
				 errhint("Push in several calls, or have \"queue.max_push_count\" raised.")));
}

/*
 * The arguments of queue_push, each checked: the name of the queue, and the
 * message.  A ttl or delay of -1 is for the queue to say.
 */
const char *
push_args(FunctionCallInfo fcinfo, NewMessage *message)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");

	memset(message, 0, sizeof(NewMessage));
	if (PG_ARGISNULL(1))
		arg_missing("body");
	if (PG_ARGISNULL(4))
		arg_missing("priority");
	message->priority = arg_check_priority(PG_GETARG_INT32(4));
	message->ttl = PG_ARGISNULL(2) ? -1 : arg_check_ttl(PG_GETARG_INT32(2));
	message->delay = PG_ARGISNULL(3) ? -1 :
		arg_check_delay(PG_GETARG_INT32(3));
	message->body = PG_GETARG_JSONB_P(1);
	if (!PG_ARGISNULL(5))
		set_dedup(message, text_to_cstring(PG_GETARG_TEXT_PP(5)));
	return name;
}

/* What the queue says where the push does not. */
void
push_defaults(const Queue *queue, NewMessage *message)
{
	if (message->ttl < 0)
		message->ttl = options_default_ttl(queue);
	if (message->delay < 0)
		message->delay = queue->default_delay;
}

/*
 * queue_push(q text, body jsonb, ttl int = NULL, delay int = NULL,
 *			  priority int = 0, dedup_key text = NULL) returns bigint
 *
 * Pushes one message.  ttl: its lifetime in seconds (NULL: the queue's
 * _default_message_ttl or queue.default_message_ttl).  delay: seconds until
 * it is handed out (NULL: the queue's _default_message_delay or none).
 * priority: 0 to 9, higher first.  dedup_key: while an unclaimed message of
 * the queue has it, the push is dropped.
 *
 * Result: the id; NULL when dropped as a duplicate.
 * Errors: 22004 and 22023 arguments, 54000 body too large, 42704 unknown
 * queue while queue.auto_create is off, 42501 no right to push.
 * Source: Zaqar, post message; MediaWiki, JobQueue::push and ignoreDuplicates.
 */
Datum
sql_queue_push(PG_FUNCTION_ARGS)
{
	const char *name;
	Queue		queue;
	NewMessage	message;
	int64		total = 0;

	queue_prevent("queue_push()");
	name = push_args(fcinfo, &message);
	queue_open_for_push(name, &queue);
	check_body(message.body, &queue, &total);
	push_defaults(&queue, &message);
	push_messages(&queue, &message, 1);
	if (message.id == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(message.id);
}

/* The ids of pushed messages; NULL for duplicates. */
static Datum
ids_array(NewMessage *messages, int n)
{
	Datum	   *values;
	bool	   *nulls;
	int			lower = 1;

	if (n == 0)
		return PointerGetDatum(construct_empty_array(INT8OID));
	values = palloc(n * sizeof(Datum));
	nulls = palloc(n * sizeof(bool));
	for (int i = 0; i < n; i++)
	{
		values[i] = Int64GetDatum(messages[i].id);
		nulls[i] = messages[i].id == 0;
	}
	return PointerGetDatum(construct_md_array(values, nulls, 1, &n, &lower,
											  INT8OID, sizeof(int64),
											  FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/*
 * queue_push_batch(q text, bodies jsonb[], ttl int = NULL, delay int = NULL,
 *					priority int = 0) returns bigint[]
 *
 * Pushes one message for each body, all or nothing; the other arguments are
 * as for queue_push and hold for all of them.  At most queue.max_push_count.
 *
 * Result: the ids, in the order of the bodies.
 * Errors: as queue_push; 22004 also for a NULL among the bodies.
 * Source: MediaWiki, JobQueue::batchPush.
 */
Datum
sql_queue_push_batch(PG_FUNCTION_ARGS)
{
	const char *name;
	Queue		queue;
	ArrayType  *bodies;
	Datum	   *elements;
	bool	   *nulls;
	int			n;
	int			priority;
	int			ttl = 0;
	int			delay = 0;
	int64		total = 0;
	NewMessage *messages;

	queue_prevent("queue_push_batch()");
	name = queue_name_arg(fcinfo, 0, "q");
	if (PG_ARGISNULL(1))
		arg_missing("bodies");
	if (PG_ARGISNULL(4))
		arg_missing("priority");
	priority = arg_check_priority(PG_GETARG_INT32(4));
	if (!PG_ARGISNULL(2))
		ttl = arg_check_ttl(PG_GETARG_INT32(2));
	if (!PG_ARGISNULL(3))
		delay = arg_check_delay(PG_GETARG_INT32(3));
	bodies = PG_GETARG_ARRAYTYPE_P(1);
	if (ARR_NDIM(bodies) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be a one-dimensional array",
						"bodies"),
				 errhint("Push one array after the other.")));
	deconstruct_array(bodies, JSONBOID, -1, false, TYPALIGN_INT, &elements,
					  &nulls, &n);
	check_count("bodies", n);

	queue_open_for_push(name, &queue);
	messages = MemoryContextAllocExtended(CurrentMemoryContext,
										  Max(n, 1) * sizeof(NewMessage),
										  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	for (int i = 0; i < n; i++)
	{
		NewMessage *message = &messages[i];

		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("element %d of parameter \"%s\" must not be null",
							i + 1, "bodies"),
					 errhint("For a JSON null give 'null'::jsonb.")));
		message->body = DatumGetJsonbP(elements[i]);
		message->ttl = PG_ARGISNULL(2) ? options_default_ttl(&queue) : ttl;
		message->delay = PG_ARGISNULL(3) ? queue.default_delay : delay;
		message->priority = priority;
		check_body(message->body, &queue, &total);
	}

	push_messages(&queue, messages, n);
	PG_RETURN_DATUM(ids_array(messages, n));
}

static int64
post_integer(JsonbValue *value, const char *field, int n)
{
	int64		integer;

	if (!json_integer(value, &integer))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("field \"%s\" of message %d must be an integer",
						field, n),
				 errhint("Give a JSON number without a fraction, or leave the field out.")));
	return integer;
}

/* Says which message of queue_post was wrong. */
static void
post_context(void *arg)
{
	errcontext("message %d of queue_post", *(int *) arg);
}

/* Take one element of the array apart. */
static void
parse_post(JsonbValue *element, int n, const Queue *queue,
		   NewMessage *message)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	v;
	PostField	field = POST_FIELDS;

	if (element->type != jbvBinary ||
		!JsonContainerIsObject(element->val.binary.data))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("message %d is not a JSON object", n),
				 errhint("Give messages as [{\"body\": ...}, ...].")));

	message->ttl = options_default_ttl(queue);
	message->delay = queue->default_delay;
	it = JsonbIteratorInit(element->val.binary.data);
	while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
		{
			for (field = 0; field < POST_FIELDS; field++)
				if ((int) strlen(post_fields[field]) == v.val.string.len &&
					memcmp(post_fields[field], v.val.string.val,
						   v.val.string.len) == 0)
					break;
			if (field == POST_FIELDS)
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("message %d has an unknown field \"%s\"", n,
								arg_clip(pnstrdup(v.val.string.val,
													v.val.string.len))),
						 errhint("The fields are body, ttl, delay, priority and dedup_key.")));
			continue;
		}
		if (token != WJB_VALUE)
			continue;
		if (field == POST_BODY)
			message->body = JsonbValueToJsonb(&v);
		else if (v.type == jbvNull)
			continue;			/* as if it were not there */
		else if (field == POST_TTL)
			message->ttl = arg_check_ttl(post_integer(&v, "ttl", n));
		else if (field == POST_DELAY)
			message->delay = arg_check_delay(post_integer(&v, "delay", n));
		else if (field == POST_PRIORITY)
			message->priority =
				arg_check_priority(post_integer(&v, "priority", n));
		else if (v.type == jbvString)
			set_dedup(message, pnstrdup(v.val.string.val, v.val.string.len));
		else
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("field \"%s\" of message %d must be a string",
							"dedup_key", n),
					 errhint("Put the key in quotes, or leave the field out.")));
	}

	if (message->body == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("message %d has no body", n),
				 errhint("Every message needs the field \"body\"; it may be a JSON null.")));
}

/*
 * queue_post(q text, messages jsonb) returns bigint[]
 *
 * Pushes an array of objects with the fields body, ttl, delay, priority and
 * dedup_key, meaning what they mean in queue_push; only body is required, and
 * a null is as if the field were not there.  All or nothing; at most
 * queue.max_push_count.
 *
 * Result: the ids in the order of the array, NULL for a duplicate.
 * Errors: as queue_push; 22023 also for an unknown field.
 * Source: Zaqar, post messages.
 */
Datum
sql_queue_post(PG_FUNCTION_ARGS)
{
	const char *name;
	Queue		queue;
	Jsonb	   *array;
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	v;
	NewMessage *messages;
	int			n;
	int			filled = 0;
	int			number = 0;
	ErrorContextCallback context;
	int64		total = 0;

	queue_prevent("queue_post()");
	name = queue_name_arg(fcinfo, 0, "q");
	if (PG_ARGISNULL(1))
		arg_missing("messages");
	array = PG_GETARG_JSONB_P(1);
	if (!JB_ROOT_IS_ARRAY(array) || JB_ROOT_IS_SCALAR(array))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be a JSON array", "messages"),
				 errhint("Give messages as [{\"body\": ...}, ...].")));
	n = JB_ROOT_COUNT(array);
	check_count("messages", n);

	queue_open_for_push(name, &queue);
	messages = MemoryContextAllocExtended(CurrentMemoryContext,
										  Max(n, 1) * sizeof(NewMessage),
										  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	it = JsonbIteratorInit(&array->root);
	token = JsonbIteratorNext(&it, &v, true);	/* the array itself */
	context.callback = post_context;
	context.arg = &number;
	context.previous = error_context_stack;
	error_context_stack = &context;
	while ((token = JsonbIteratorNext(&it, &v, true)) == WJB_ELEM)
	{
		number = filled + 1;
		parse_post(&v, number, &queue, &messages[filled]);
		check_body(messages[filled].body, &queue, &total);
		filled++;
	}
	error_context_stack = context.previous;

	push_messages(&queue, messages, filled);
	PG_RETURN_DATUM(ids_array(messages, filled));
}
