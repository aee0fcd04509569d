/*-------------------------------------------------------------------------
 *
 * dead_letter_api.c
 *	  SQL functions for dead letters.
 *
 * src/api/dead_letter_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"

#include "api/api_arg.h"
#include "claim/dead_letter.h"
#include "queue/message_list.h"
#include "queue/missing_queue.h"
#include "queue/registry.h"
#include "util/args.h"
#include "util/compat.h"

PG_FUNCTION_INFO_V1(sql_queue_dead_letters);
PG_FUNCTION_INFO_V1(sql_queue_redrive);

static bool put_dead_letter(const ScanRow *message, TimestampTz now, void *arg);

/* Callback of message_list_each(): return the row of a dead letter. */
static bool
put_dead_letter(const ScanRow *message, TimestampTz now, void *arg)
{
	DeadLetter	letter;
	ApiRow		row = {0};

	if (!dead_letter_get(message, &letter))
		return false;
	api_row_add(&row, Int64GetDatum(letter.id));
	api_row_add(&row, JsonbPGetDatum(letter.body));
	api_row_add_text(&row, letter.origin_queue);
	api_row_add_or_null(&row, Int64GetDatum(letter.origin_id),
						!letter.has_origin_id);
	api_row_add_text(&row, letter.reason);
	api_row_add_text(&row, letter.last_error);
	api_row_add(&row, Int32GetDatum(letter.claim_count));
	api_row_add(&row, TimestampTzGetDatum(letter.died_at));
	api_row_put(&row, arg);
	return true;
}

/*
 * queue_dead_letters(q text, "limit" int = 10, marker bigint = NULL)
 * returns table (id bigint, body jsonb, origin_queue text, origin_id bigint,
 *				  reason text, last_error text, claim_count int,
 *				  died_at timestamptz)
 *
 * The dead letters in queue q, oldest first, after the marker, at most limit (1
 * to 10000): where each came from, why, its last error (NULL: none was
 * reported), how often it had been claimed there, and when it became a dead
 * letter.  Those of q's own messages are in its dead letter queue, which a
 * NOTICE names if q has none.
 *
 * Errors: 22004 and 22023 arguments, 42501 no right to claim.
 * Source: Zaqar, dead letter queue.
 */
Datum
sql_queue_dead_letters(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	MessageFilter filter = ALL_MESSAGES;
	Queue		queue;

	filter.limit = arg_check_list_limit(arg_int(fcinfo, 1, "limit"));
	if (!PG_ARGISNULL(2))
		filter.first_id = Min(PG_GETARG_INT64(2), PG_INT64_MAX - 1) + 1;
	InitMaterializedSRF(fcinfo, 0);
	if (queue_open_or_notice(name, QUEUE_READ, &queue))
	{
		(void) message_list_each(&queue, &filter, put_dead_letter, fcinfo);
		if (!api_has_rows(fcinfo))
			queue_notice_dead_letters(&queue);
	}
	api_check_left(fcinfo, name);
	return (Datum) 0;
}

/*
 * queue_redrive(q text, target text = NULL, "limit" int = NULL,
 *				 ids bigint[] = NULL)
 * returns bigint
 *
 * Sends up to limit (NULL: all) dead letters of queue q, oldest first, or only
 * those with these ids, in that order, back to the queues they came from, or
 * to target: as new messages, with their count reset and the lifetime of any
 * push there.  Those under a live claim stay.  So do, without a target, those
 * whose origin is gone: it was dropped, and queue.auto_create is off, or
 * another role has created a queue of that name.  A NOTICE says how many.
 *
 * Result: the number sent.
 * Errors: 22004 and 22023 arguments, 42704 the target is unknown, 42501 needs
 * the right to claim from q and to push to the queues to which they are sent.
 * Source: Amazon SQS, dead letter queue redrive.
 */
Datum
sql_queue_redrive(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	const char *target_name = NULL;
	Queue		queue;
	Queue		target;
	int			limit = INT_MAX;
	int64		sent;
	Datum	   *ids = NULL;
	int			n = 0;

	api_check_can_write("queue_redrive()");
	if (!PG_ARGISNULL(1))
		target_name = arg_queue_name(fcinfo, 1, "target");
	if (!PG_ARGISNULL(2))
		limit = arg_check_bounds("limit", PG_GETARG_INT32(2), 1, NULL,
								 INT_MAX, NULL, "");
	if (!PG_ARGISNULL(3))
		n = arg_ids("ids", PG_GETARG_ARRAYTYPE_P(3), &ids);
	if (target_name != NULL && strcmp(target_name, name) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be another queue than \"%s\"",
						"target", name),
				 errhint("Without a target, dead letters go back to where they came from.")));
	if (target_name != NULL)
		queue_open_existing(target_name, QUEUE_PUSH, &target);
	if (!queue_open_or_notice(name, QUEUE_CLAIM, &queue))
		PG_RETURN_INT64(0);
	sent = dead_letter_redrive(&queue, target_name != NULL ? &target : NULL,
							   limit, ids, n);
	if (sent == 0)
		queue_notice_dead_letters(&queue);
	PG_RETURN_INT64(sent);
}
