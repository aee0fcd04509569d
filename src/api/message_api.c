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
#include "queue/message_list.h"
#include "queue/message_result.h"
#include "queue/missing_queue.h"
#include "storage/message.h"
#include "util/args.h"
#include "util/compat.h"

PG_FUNCTION_INFO_V1(sql_queue_messages);
PG_FUNCTION_INFO_V1(sql_queue_browse);
PG_FUNCTION_INFO_V1(sql_message_get);
PG_FUNCTION_INFO_V1(sql_messages_get);

/* A call of queue_browse reads so many messages. */
#define BROWSE_MAX	10000

static int	get_states(FunctionCallInfo fcinfo, int arg);

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
	MessageFilter filter = ALL_MESSAGES;
	Queue		queue;
	MessageResult result;

	if (!PG_ARGISNULL(1))
		filter.first_id = marker + 1;
	filter.limit = arg_check_list_limit(arg_int(fcinfo, 2, "limit"));
	filter.own = DatumGetBool(arg_required(fcinfo, 3, "echo"));
	filter.states = STATE_FREE;
	if (DatumGetBool(arg_required(fcinfo, 4, "include_claimed")))
		filter.states |= STATE_CLAIMED | STATE_CANCELED;
	if (DatumGetBool(arg_required(fcinfo, 5, "include_delayed")))
		filter.states |= STATE_DELAYED | STATE_WAITING;

	api_begin_messages(fcinfo, &result);
	if (queue_open_or_notice(name, QUEUE_READ, &queue) && marker < PG_INT64_MAX)
		(void) message_list(&queue, &filter, &result);
	api_check_left(fcinfo, name);
	return (Datum) 0;
}

/* Get the name of a state; NULL: any. */
static int
get_states(FunctionCallInfo fcinfo, int arg)
{
	char	   *name = arg_text(fcinfo, arg);

	if (name == NULL)
		return ALL_MESSAGE_STATES;
	for (int state = 1; state <= ALL_MESSAGE_STATES; state *= 2)
		if (strcmp(name, message_state_name(state)) == 0)
			return state;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("parameter \"%s\" is not a state: \"%s\"", "state",
					arg_clip(name)),
			 errhint("States are free, claimed, delayed, waiting and canceled; NULL is any of them.")));
}

/*
 * queue_browse(q text, state text = NULL, filter jsonb = NULL,
 *				marker bigint = NULL, "limit" int = 100)
 * returns table (id bigint, state text, body jsonb, headers jsonb,
 *				  priority int, group_key text, dedup_key text, batch bigint,
 *				  after bigint, claim_count int, created_at timestamptz,
 *				  due_at timestamptz, claimed_until timestamptz,
 *				  expires_at timestamptz, last_error text)
 *
 * All that is known of messages of the queue, in the order of their ids, after
 * the marker, at most limit (1 to 10000): those in this state (free, claimed,
 * delayed; waiting: for a batch; canceled: while a claim holds it; NULL: any)
 * whose bodies contain the filter (NULL: any).  dedup_key: a digest of it,
 * which is what is stored.  A message that waits for a batch has no times.
 *
 * Reads at most 10,000 messages.  If there are others after them, the last row
 * has only the id to continue from, as a marker.
 *
 * Errors: 22004 and 22023 arguments, 42501 no right to claim.
 */
Datum
sql_queue_browse(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	int64		marker = PG_ARGISNULL(3) ? 0 : PG_GETARG_INT64(3);
	MessageFilter filter = ALL_MESSAGES;
	Queue		queue;
	MessageResult result;
	ApiRow		row = {0};
	int64		last;

	/* Ids are above 0. */
	filter.first_id = Min(Max(marker, 0), PG_INT64_MAX - 1) + 1;
	filter.limit = arg_check_list_limit(arg_int(fcinfo, 4, "limit"));
	filter.read_max = BROWSE_MAX;
	filter.states = get_states(fcinfo, 1);
	if (!PG_ARGISNULL(2))
		filter.body = PG_GETARG_JSONB_P(2);
	api_begin_messages(fcinfo, &result);
	if (queue_open_or_notice(name, QUEUE_READ, &queue) &&
		(last = message_list(&queue, &filter, &result)) != 0)
	{
		api_row_add(&row, Int64GetDatum(last));
		while (row.n < Natts_browsed_message)
			api_row_add_or_null(&row, (Datum) 0, true);
		api_row_put(&row, fcinfo);
	}
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
