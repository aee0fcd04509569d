/*-------------------------------------------------------------------------
 *
 * cancel_api.c
 *	  SQL functions that cancel messages.
 *
 * src/api/cancel_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"

#include "api/api_arg.h"
#include "claim/cancel.h"
#include "queue/missing_queue.h"
#include "util/args.h"
#include "util/compat.h"

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
	const char *name = arg_queue_name(fcinfo, 0, "q");
	int64		id;
	Queue		queue;

	api_check_can_write("message_cancel()");
	id = DatumGetInt64(arg_required(fcinfo, 1, "id"));
	if (queue_open_or_notice(name, QUEUE_CLAIM, &queue))
		switch (cancel_message(&queue, id, arg_text(fcinfo, 2)))
		{
			case CANCEL_NONE:
				break;
			case CANCEL_REMOVED:
				PG_RETURN_TEXT_P(cstring_to_text("canceled"));
			case CANCEL_PENDING:
				PG_RETURN_TEXT_P(cstring_to_text("pending"));
		}
	PG_RETURN_NULL();
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
	const char *name = arg_queue_name(fcinfo, 0, "q");
	Queue		queue;
	Datum	   *ids;
	int			n;

	api_check_can_write("messages_cancel()");
	n = arg_ids("ids", DatumGetArrayTypeP(arg_required(fcinfo, 1, "ids")), &ids);
	if (!queue_open_or_notice(name, QUEUE_CLAIM, &queue))
		PG_RETURN_INT64(0);
	PG_RETURN_INT64(cancel_messages(&queue, ids, n, arg_text(fcinfo, 2)));
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
	const char *name = arg_queue_name(fcinfo, 0, "q");
	Jsonb	   *filter;
	Queue		queue;

	api_check_can_write("queue_cancel_where()");
	filter = DatumGetJsonbP(arg_required(fcinfo, 1, "filter"));
	if (!queue_open_or_notice(name, QUEUE_CLAIM, &queue))
		PG_RETURN_INT64(0);
	PG_RETURN_INT64(cancel_where(&queue, filter, arg_text(fcinfo, 2)));
}
