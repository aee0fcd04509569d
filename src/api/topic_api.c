/*-------------------------------------------------------------------------
 *
 * topic_api.c
 *	  SQL functions on topics.
 *
 * src/api/topic_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"

#include "api/api_arg.h"
#include "api/push_api.h"
#include "push/push.h"
#include "queue/shard.h"
#include "queue/topic.h"
#include "util/args.h"
#include "util/limits.h"

PG_FUNCTION_INFO_V1(sql_topic_bind);
PG_FUNCTION_INFO_V1(sql_topic_unbind);
PG_FUNCTION_INFO_V1(sql_topic_list);
PG_FUNCTION_INFO_V1(sql_topic_publish);

static Jsonb *get_filter(FunctionCallInfo fcinfo, int arg);
static ArrayType *get_publishers(FunctionCallInfo fcinfo, int arg);

/* Returns the argument "filter", or NULL. */
static Jsonb *
get_filter(FunctionCallInfo fcinfo, int arg)
{
	Jsonb	   *filter;

	if (PG_ARGISNULL(arg))
		return NULL;
	filter = PG_GETARG_JSONB_P(arg);
	if (!JB_ROOT_IS_OBJECT(filter))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be a JSON object", "filter"),
				 errhint("Give an object that headers have to contain, such as {\"key\": \"value\"}, or NULL for all messages.")));
	if (VARSIZE(filter) > QUEUE_FILTER_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("parameter \"%s\" of %d bytes is too large", "filter",
						(int) VARSIZE(filter)),
				 errhint("Give at most %d bytes.", QUEUE_FILTER_LENGTH)));
	return filter;
}

/* Returns the argument "publishers", or NULL. */
static ArrayType *
get_publishers(FunctionCallInfo fcinfo, int arg)
{
	ArrayType  *publishers;

	if (PG_ARGISNULL(arg))
		return NULL;
	publishers = PG_GETARG_ARRAYTYPE_P(arg);
	arg_check_array("publishers", publishers);
	if (ARR_NDIM(publishers) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" names no role", "publishers"),
				 errhint("Name the roles that may publish, or give NULL for all.")));
	if (array_contains_nulls(publishers))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("no element of parameter \"%s\" may be null",
						"publishers"),
				 errhint("Leave it out.")));
	return publishers;
}

/*
 * topic_bind(pattern text, q text, filter jsonb = NULL,
 *			  publishers regrole[] = NULL) returns boolean
 *
 * Binds a queue to topics of the session's project: from the commit on it gets
 * a copy of each message that is published to one that matches the pattern.
 * Words are separated by dots; "*" is one word, "#" any number of words.  The
 * queue is created where a push would create it.  filter: an object that the
 * headers must contain (NULL: none).  publishers: whose messages the queue
 * gets: those of these roles and of their members (NULL: of all).
 *
 * Result: true: bound; false: it was bound to this pattern, and has got this
 * filter and these publishers in place of its own.
 * Errors: 22004 and 22023 arguments, 54000 filter too large, 42704 unknown
 * role, or unknown queue while queue.auto_create is off, 42501 not a member of
 * queue_admin, 0A000 in a sharded database.
 * Source: AMQP 0-9-1, queue.bind with a topic exchange.
 */
Datum
sql_topic_bind(PG_FUNCTION_ARGS)
{
	char	   *pattern;
	const char *name;

	api_check_can_write("topic_bind()");
	pattern = TextDatumGetCString(arg_required(fcinfo, 0, "pattern"));
	name = arg_queue_name(fcinfo, 1, "q");
	PG_RETURN_BOOL(topic_bind(pattern, name, get_filter(fcinfo, 2),
							  get_publishers(fcinfo, 3)));
}

/*
 * topic_unbind(pattern text, q text) returns boolean
 *
 * Removes the binding of a queue to a pattern.
 *
 * Result: true: removed; false: there was none.
 * Errors: 22004 and 22023 arguments, 42501 not a member of queue_admin.
 * Source: AMQP 0-9-1, queue.unbind.
 */
Datum
sql_topic_unbind(PG_FUNCTION_ARGS)
{
	char	   *pattern;
	const char *name;

	api_check_can_write("topic_unbind()");
	pattern = TextDatumGetCString(arg_required(fcinfo, 0, "pattern"));
	name = arg_queue_name(fcinfo, 1, "q");
	PG_RETURN_BOOL(topic_unbind(pattern, name));
}

/*
 * topic_list(marker text = NULL, "limit" int = 10, q text = NULL)
 * returns table (pattern text, queue text, filter jsonb,
 *				  publishers regrole[], bound_at timestamptz)
 *
 * Lists the bindings of the session's project, by pattern and queue, as far as
 * the current role is owner or admin of their queues: those after marker (a
 * pattern and a queue with a space between them; NULL: from the first one on),
 * only those of queue q unless it is NULL, at most limit (1 to 10000).
 *
 * Errors: 22004 and 22023 arguments.
 * Source: RabbitMQ, rabbitmqctl list_bindings.
 */
Datum
sql_topic_list(PG_FUNCTION_ARGS)
{
	int			limit = arg_check_list_limit(arg_int(fcinfo, 1, "limit"));
	const char *marker = arg_text(fcinfo, 0);
	const char *name = NULL;
	ListCell   *cell;

	if (!PG_ARGISNULL(2))
	{
		name = arg_queue_name(fcinfo, 2, "q");
		shard_check(name);
	}
	InitMaterializedSRF(fcinfo, 0);
	foreach(cell, list_truncate(topic_list(marker, name), limit))
	{
		const TopicBinding *binding = lfirst(cell);
		ApiRow		row = {0};

		api_row_add_text(&row, binding->pattern);
		api_row_add_text(&row, binding->queue_name);
		api_row_add_or_null(&row, JsonbPGetDatum(binding->filter),
							binding->filter == NULL);
		api_row_add_or_null(&row, PointerGetDatum(binding->publishers),
							binding->publishers == NULL);
		api_row_add(&row, TimestampTzGetDatum(binding->bound_at));
		api_row_put(&row, fcinfo);
	}
	return (Datum) 0;
}

/*
 * topic_publish(topic text, body jsonb, headers jsonb = NULL,
 *				 ttl int = NULL, delay int = NULL, priority int = 0,
 *				 group_key text = NULL, dedup_key text = NULL,
 *				 at timestamptz = NULL)
 * returns bigint
 *
 * Pushes a message to each queue that is bound to the topic, in this
 * transaction; one message, if several bindings of a queue match.  The binding
 * decides, not the privileges of the current role on the queue.  The arguments
 * are as those of queue_push, for each queue.  A queue that does not take the
 * message, because of _max_messages_post_size or because a transaction purges
 * or drops it, is left out, which the server's log says.
 *
 * Result: how many queues have the message now; one in which it was a
 * duplicate counts.
 * Errors: 22004 and 22023 arguments, 54000 body too large, 42501 not a member
 * of queue_producer.
 * Source: AMQP 0-9-1, basic.publish to a topic exchange.
 */
Datum
sql_topic_publish(PG_FUNCTION_ARGS)
{
	NewMessage	message;
	char	   *topic;

	api_check_can_write("topic_publish()");
	topic = TextDatumGetCString(arg_required(fcinfo, 0, "topic"));
	push_get_message(fcinfo, 1, 3, 7, 6, 2, &message);

	/* The function of queue_pgmq has no such argument. */
	if (PG_NARGS() > 8 && !PG_ARGISNULL(8))
		push_set_at(&message, PG_GETARG_TIMESTAMPTZ(8));
	PG_RETURN_INT64(push_to_topic(topic, &message));
}
