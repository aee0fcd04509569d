/*-------------------------------------------------------------------------
 *
 * post_api.c
 *	  SQL function queue_post, and other arrays of messages as JSON.
 *
 * src/api/post_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

#include "api/api_arg.h"
#include "api/post_api.h"
#include "api/push_api.h"
#include "push/push.h"
#include "queue/registry.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/json.h"

/* Fields of a message in queue_post, in the order of post_fields */
typedef enum PostField
{
	POST_BODY,
	POST_TTL,
	POST_DELAY,
	POST_PRIORITY,
	POST_DEDUP_KEY,
	POST_GROUP_KEY,
	POST_HEADERS,
	POST_BATCH,
	POST_AFTER,
	POST_AFTER_SUCCESS,
	POST_AT,
	POST_DEDUP,
	POST_DEDUP_FOR,
	POST_QUEUE,					/* only without the argument q */
	POST_FIELDS					/* their number */
} PostField;

static const char *const post_fields[POST_FIELDS] = {
	"body", "ttl", "delay", "priority", "dedup_key", "group_key", "headers",
	"batch", "after", "after_success", "at", "dedup", "dedup_for", "queue"
};

/* An array of messages */
typedef struct Post
{
	NewMessage *messages;
	int			n;
	bool		has_at;			/* the current message has "at" */
	TimestampTz at;
	const char **queues;		/* of each message; NULL if all have the same */
	const char *name;			/* the queue of those that name none, or NULL */
	const char *function;		/* that was called */
	int			number;			/* of the message that is processed, from 1 */
} Post;

PG_FUNCTION_INFO_V1(sql_queue_post);

static PostField find_post_field(const JsonbValue *key, int n,
								 bool has_queue);
static int64 get_post_integer(const JsonbValue *value, const char *field,
							  int n);
static char *get_post_key(const JsonbValue *value, const char *field, int n);
static void set_post_field(Post *post, PostField field, JsonbValue *value);
static void parse_post(Post *post, JsonbValue *element);
static int	compare_posts(const void *a, const void *b, void *arg);
static void begin_post(Post *post, Jsonb *array, const char *arg,
					   const char *function, bool has_queues);
static void parse_posts(Post *post, Jsonb *array, const Queue *queue);
static void push_to_queues(Post *post);
static void post_context(void *arg);

/* --- Fields --- */

/* has_queue: the message says to which queue it is pushed. */
static PostField
find_post_field(const JsonbValue *key, int n, bool has_queue)
{
	for (int field = 0; field < (has_queue ? POST_FIELDS : POST_QUEUE); field++)
		if ((int) strlen(post_fields[field]) == key->val.string.len &&
			memcmp(post_fields[field], key->val.string.val,
				   key->val.string.len) == 0)
			return (PostField) field;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("message %d has an unknown field \"%s\"", n,
					arg_clip(pnstrdup(key->val.string.val,
									  key->val.string.len), CLIP_LENGTH)),
			 has_queue ?
			 errhint("The fields are queue, body, ttl, delay, priority, dedup_key, group_key, headers, batch, after, after_success, at, dedup and dedup_for.") :
			 errhint("The fields are body, ttl, delay, priority, dedup_key, group_key, headers, batch, after, after_success, at, dedup and dedup_for.")));
}

static int64
get_post_integer(const JsonbValue *value, const char *field, int n)
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

/* Returns a key of message n in queue_post, which must be a string. */
static char *
get_post_key(const JsonbValue *value, const char *field, int n)
{
	if (value->type != jbvString)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("field \"%s\" of message %d must be a string",
						field, n),
				 errhint("Put the key in quotes, or leave the field out.")));
	return pnstrdup(value->val.string.val, value->val.string.len);
}

/* Set a field of the current message.  JSON's null sets only the body. */
static void
set_post_field(Post *post, PostField field, JsonbValue *value)
{
	int			n = post->number;
	NewMessage *message = &post->messages[n - 1];
	const char *name = post_fields[field];
	char	   *key;

	if (field != POST_BODY && value->type == jbvNull)
		return;
	switch (field)
	{
		case POST_BODY:
			message->body = JsonbValueToJsonb(value);
			break;
		case POST_TTL:
			message->ttl = arg_check_ttl(get_post_integer(value, name, n));
			break;
		case POST_DELAY:
			message->delay =
				arg_check_delay(get_post_integer(value, name, n));
			break;
		case POST_PRIORITY:
			message->priority =
				arg_check_priority(get_post_integer(value, name, n));
			break;
		case POST_DEDUP_KEY:
			push_set_dedup_key(message, get_post_key(value, name, n));
			break;
		case POST_GROUP_KEY:
			key = get_post_key(value, name, n);
			push_set_group_key(message, cstring_to_text(key));
			break;
		case POST_HEADERS:
			message->headers = JsonbValueToJsonb(value);
			break;
		case POST_BATCH:
			message->batch = push_batch_id(get_post_integer(value, name, n));
			break;
		case POST_AFTER:
			message->after = push_batch_id(get_post_integer(value, name, n));
			break;
		case POST_AFTER_SUCCESS:
			if (value->type != jbvBool)
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("field \"%s\" of message %d must be a boolean",
								name, n),
						 errhint("Give true or false without quotes.")));
			message->after_success = value->val.boolean;
			break;
		case POST_AT:
			key = get_post_key(value, name, n);
			post->at = DatumGetTimestampTz(
										   DirectFunctionCall3(timestamptz_in, CStringGetDatum(key),
															   ObjectIdGetDatum(InvalidOid),
															   Int32GetDatum(-1)));
			post->has_at = true;
			break;
		case POST_DEDUP:
			push_set_dedup(message, get_post_key(value, name, n));
			break;
		case POST_DEDUP_FOR:
			push_set_period(message,
							get_post_integer(value, name, n));
			break;
		case POST_QUEUE:
			key = get_post_key(value, name, n);
			queue_check_name(key, "queue");
			post->queues[n - 1] = key;
			break;
		case POST_FIELDS:
			elog(ERROR, "unexpected field of a message");
	}
}

/* Read the element of the array that is the current message. */
static void
parse_post(Post *post, JsonbValue *element)
{
	int			n = post->number;
	NewMessage *message = &post->messages[n - 1];
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

	message->ttl = PUSH_DEFAULT;
	message->delay = PUSH_DEFAULT;
	post->has_at = false;
	it = JsonbIteratorInit(element->val.binary.data);
	while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			field = find_post_field(&v, n, post->queues != NULL);
		else if (token == WJB_VALUE)
			set_post_field(post, field, &v);
	}

	if (post->has_at)
		push_set_at(message, post->at);
	push_check_dedup(message);
	if (message->body == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("message %d has no body", n),
				 errhint("Every message needs the field \"body\"; it may be a JSON null.")));
	if (post->queues != NULL && post->queues[n - 1] == NULL)
		post->queues[n - 1] = post->name;
	if (post->queues != NULL && post->queues[n - 1] == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("message %d names no queue", n),
				 errhint("Where \"q\" is NULL, every message needs the field \"queue\".")));
}

/* By queue, then in the order of the array */
static int
compare_posts(const void *a, const void *b, void *arg)
{
	const int  *x = a;
	const int  *y = b;
	const char **queues = arg;
	int			order = strcmp(queues[*x], queues[*y]);

	return order != 0 ? order : *x - *y;
}

/*
 * Push the messages, each to its own queue.  The queues come in the order of
 * their names, so that two calls that wait for each other's keys wait in the
 * same order.
 */
static void
push_to_queues(Post *post)
{
	int			n = post->n;
	int		   *places = palloc(n * sizeof(int));
	NewMessage *batch = MemoryContextAllocHuge(CurrentMemoryContext,
											   n * sizeof(NewMessage));
	int			end;

	for (int i = 0; i < n; i++)
		places[i] = i;
	qsort_arg(places, n, sizeof(int), compare_posts, post->queues);
	for (int begin = 0; begin < n; begin = end)
	{
		const char *name = post->queues[places[begin]];
		int64		total = 0;
		Queue		queue;

		CHECK_FOR_INTERRUPTS();
		post->number = places[begin] + 1;
		queue_open_or_create(name, QUEUE_PUSH, &queue);
		for (end = begin; end < n &&
			 strcmp(post->queues[places[end]], name) == 0; end++)
		{
			post->number = places[end] + 1;
			batch[end] = post->messages[places[end]];
			push_prepare(&queue, &batch[end], &total);
		}
		push_messages(&queue, &batch[begin], end - begin);
		for (int i = begin; i < end; i++)
			post->messages[places[i]].id = batch[i].id;
	}
}

/* Error context callback: add the number of the message. */
static void
post_context(void *arg)
{
	const Post *post = arg;

	errcontext("message %d of %s", post->number, post->function);
}

/*
 * Check that the parameter is an array, and allocate its messages, which may
 * name their queues.
 */
static void
begin_post(Post *post, Jsonb *array, const char *arg, const char *function,
		   bool has_queues)
{
	memset(post, 0, sizeof(Post));
	if (!JB_ROOT_IS_ARRAY(array) || JB_ROOT_IS_SCALAR(array))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be a JSON array", arg),
				 errhint("Give messages as [{\"body\": ...}, ...].")));
	post->function = function;
	post->n = JB_ROOT_COUNT(array);
	post->messages = push_alloc_messages(arg, post->n);
	if (has_queues)
		post->queues = palloc0(Max(post->n, 1) * sizeof(char *));
}

/*
 * Read all messages, and push those that name a queue, or prepare them for
 * the queue, if that is not NULL.
 */
static void
parse_posts(Post *post, Jsonb *array, const Queue *queue)
{
	ErrorContextCallback context = {error_context_stack, post_context, post};
	JsonbIterator *it = JsonbIteratorInit(&array->root);
	JsonbValue	v;
	int64		total = 0;

	(void) JsonbIteratorNext(&it, &v, true);	/* the array itself */
	error_context_stack = &context;
	while (JsonbIteratorNext(&it, &v, true) == WJB_ELEM)
	{
		post->number++;
		parse_post(post, &v);
		if (queue != NULL)
			push_prepare(queue, &post->messages[post->number - 1], &total);
	}
	if (queue == NULL)
		push_to_queues(post);
	error_context_stack = context.previous;
}

/*
 * Push the messages of the array in parameter "push" of queue_step(), each to
 * the queue that it names, or to "name" where it names none.
 */
void
post_of_step(Jsonb *array, const char *name)
{
	Post		post;

	begin_post(&post, array, "push", "queue_step", true);
	post.name = name;
	parse_posts(&post, array, NULL);
}

/*
 * queue_post(q text, messages jsonb) returns bigint[]
 *
 * Pushes an array of objects with the fields body, ttl, delay, priority,
 * dedup_key, group_key, headers, batch, after, after_success, at, dedup and
 * dedup_for, meaning what they mean in queue_push; only body is required, and a null is as if the
 * field were not there.  If q is NULL, each object also has a field queue.
 * All or nothing; at most queue.max_push_count.
 *
 * Result: the ids in the order of the array, NULL for a duplicate.
 * Errors: as queue_push; 22023 also for an unknown field, 22004 also for a
 * message without a queue.
 * Source: Zaqar, post messages; MediaWiki, JobQueueGroup::push.
 */
Datum
sql_queue_post(PG_FUNCTION_ARGS)
{
	const char *name = NULL;
	Jsonb	   *array;
	Queue		queue;
	Post		post;

	api_check_can_write("queue_post()");
	if (!PG_ARGISNULL(0))
		name = arg_queue_name(fcinfo, 0, "q");
	array = DatumGetJsonbP(arg_required(fcinfo, 1, "messages"));
	begin_post(&post, array, "messages", "queue_post", name == NULL);
	if (name == NULL)
		parse_posts(&post, array, NULL);
	else
	{
		queue_open_or_create(name, QUEUE_PUSH, &queue);
		parse_posts(&post, array, &queue);
		push_messages(&queue, post.messages, post.n);
	}
	PG_RETURN_DATUM(push_ids_array(post.messages, post.n));
}
