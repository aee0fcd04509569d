/*-------------------------------------------------------------------------
 *
 * message_api.c
 *	  SQL functions that show messages and change nothing.
 *
 * src/api/message_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"

#include "api/api_arg.h"
#include "api/message_api.h"
#include "queue/message_list.h"
#include "queue/message_result.h"
#include "queue/registry.h"
#include "util/args.h"
#include "util/compat.h"

PG_FUNCTION_INFO_V1(sql_queue_messages);
PG_FUNCTION_INFO_V1(sql_message_get);
PG_FUNCTION_INFO_V1(sql_messages_get);

/* Have the SQL function return the messages that are added to the result. */
void
message_api_begin(FunctionCallInfo fcinfo, MessageResult *result)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	message_result_to_store(result, rsinfo->setResult, rsinfo->setDesc);
}

/*
 * queue_messages(q text, marker bigint = NULL, "limit" int = 10,
 *				  echo boolean = false, include_claimed boolean = false,
 *				  include_delayed boolean = false)
 * returns setof queue_message
 *
 * Messages of the queue in the order of their ids, after the marker, at most
 * limit (1 to 10000).  Without echo not those that were pushed under the
 * session's own queue.client_id; those that are claimed or delayed only when
 * asked for.
 *
 * Errors: 22004 and 22023 arguments, 42501 no right to claim.
 * Source: Zaqar, list messages.
 */
Datum
sql_queue_messages(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"limit", "echo", "include_claimed",
	"include_delayed"};
	const char *name = arg_queue_name(fcinfo, 0, "q");
	int64		marker = PG_ARGISNULL(1) ? PG_INT64_MIN : PG_GETARG_INT64(1);
	MessageFilter filter;
	Queue		queue;
	MessageResult result;

	for (Size i = 0; i < lengthof(names); i++)
		if (PG_ARGISNULL(i + 2))
			arg_missing(names[i]);
	filter.first_id = PG_ARGISNULL(1) ? marker : marker + 1;
	filter.limit = arg_check_list_limit(PG_GETARG_INT32(2));
	filter.own = PG_GETARG_BOOL(3);
	filter.claimed = PG_GETARG_BOOL(4);
	filter.delayed = PG_GETARG_BOOL(5);

	message_api_begin(fcinfo, &result);
	if (queue_open(name, QUEUE_READ, &queue) && marker < PG_INT64_MAX)
		message_list(&queue, &filter, &result);
	api_check_left(fcinfo, name);
	return (Datum) 0;
}

/*
 * message_get(q text, id bigint) returns setof queue_message
 *
 * The message with this id, free, claimed or delayed; no row when there is
 * none.
 *
 * Errors: 22004 id is NULL, 42501 no right to claim.
 * Source: Zaqar, get a specific message.
 */
Datum
sql_message_get(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	Queue		queue;
	MessageResult result;

	if (PG_ARGISNULL(1))
		arg_missing("id");
	message_api_begin(fcinfo, &result);
	if (queue_open(name, QUEUE_READ, &queue))
		message_list_one(&queue, PG_GETARG_INT64(1), &result);
	api_check_left(fcinfo, name);
	return (Datum) 0;
}

/*
 * messages_get(q text, ids bigint[]) returns setof queue_message
 *
 * The messages with these ids that exist, in the order asked.
 *
 * Errors: 22004 ids or one of them is NULL, 22023 an array of more than one
 * dimension, 42501 no right to claim.
 * Source: Zaqar, get a set of messages by id.
 */
Datum
sql_messages_get(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	Queue		queue;
	MessageResult result;
	Datum	   *ids;
	int			n;

	if (PG_ARGISNULL(1))
		arg_missing("ids");
	n = arg_ids(PG_GETARG_ARRAYTYPE_P(1), &ids);
	message_api_begin(fcinfo, &result);
	if (queue_open(name, QUEUE_READ, &queue))
		for (int i = 0; i < n; i++)
		{
			CHECK_FOR_INTERRUPTS();
			message_list_one(&queue, DatumGetInt64(ids[i]), &result);
		}
	api_check_left(fcinfo, name);
	return (Datum) 0;
}
