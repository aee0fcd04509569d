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
#include "miscadmin.h"

#include "api/api_arg.h"
#include "api/api_row.h"
#include "queue/message_list.h"
#include "queue/message_result.h"
#include "queue/missing_queue.h"
#include "queue/registry.h"
#include "util/args.h"
#include "util/compat.h"

PG_FUNCTION_INFO_V1(sql_queue_messages);
PG_FUNCTION_INFO_V1(sql_message_get);
PG_FUNCTION_INFO_V1(sql_messages_get);

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
	const char *name = arg_queue_name(fcinfo, 0, "q");
	int64		marker = PG_ARGISNULL(1) ? PG_INT64_MIN : PG_GETARG_INT64(1);
	MessageFilter filter;
	Queue		queue;
	MessageResult result;

	filter.first_id = PG_ARGISNULL(1) ? marker : marker + 1;
	filter.limit = arg_int(fcinfo, 2, "limit");
	filter.own = DatumGetBool(arg_required(fcinfo, 3, "echo"));
	filter.claimed = DatumGetBool(arg_required(fcinfo, 4, "include_claimed"));
	filter.delayed = DatumGetBool(arg_required(fcinfo, 5, "include_delayed"));
	filter.limit = arg_check_list_limit(filter.limit);
	filter.body = NULL;

	api_begin_messages(fcinfo, &result);
	if (queue_open_or_notice(name, QUEUE_READ, &queue) && marker < PG_INT64_MAX)
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
	int64		id = DatumGetInt64(arg_required(fcinfo, 1, "id"));
	Queue		queue;
	MessageResult result;

	api_begin_messages(fcinfo, &result);
	if (queue_open_or_notice(name, QUEUE_READ, &queue))
		message_list_one(&queue, id, &result);
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

	n = arg_ids("ids", DatumGetArrayTypeP(arg_required(fcinfo, 1, "ids")), &ids);
	api_begin_messages(fcinfo, &result);
	if (queue_open_or_notice(name, QUEUE_READ, &queue))
		for (int i = 0; i < n; i++)
		{
			CHECK_FOR_INTERRUPTS();
			message_list_one(&queue, DatumGetInt64(ids[i]), &result);
		}
	api_check_left(fcinfo, name);
	return (Datum) 0;
}
