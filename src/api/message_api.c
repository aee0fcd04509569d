/*-------------------------------------------------------------------------
 *
 * message_api.c
 *	  SQL functions that show messages, and those for dead letters.
 *
 * src/api/message_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/fmgrprotos.h"

#include "api/api_arg.h"
#include "catalog/tables.h"
#include "claim/dead_letter.h"
#include "queue/message_list.h"
#include "queue/message_result.h"
#include "queue/registry.h"
#include "storage/attributes.h"
#include "storage/message.h"
#include "util/args.h"
#include "util/compat.h"

PG_FUNCTION_INFO_V1(sql_queue_messages);
PG_FUNCTION_INFO_V1(sql_queue_browse);
PG_FUNCTION_INFO_V1(sql_message_get);
PG_FUNCTION_INFO_V1(sql_messages_get);

/* A call of queue_browse reads so many messages. */
#define BROWSE_MAX	10000

PG_FUNCTION_INFO_V1(sql_queue_dead_letters);
PG_FUNCTION_INFO_V1(sql_queue_redrive);

static int	get_states(FunctionCallInfo fcinfo, int arg);
static void add_column(ApiRow *row, const ScanRow *message, int column);
static bool put_browsed(const ScanRow *message, TimestampTz now, void *arg);
static bool put_dead_letter(const ScanRow *message, TimestampTz now, void *arg);

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
	return api_check_left(fcinfo, name);
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
					arg_clip(name, CLIP_LENGTH)),
			 errhint("States are free, claimed, delayed, waiting and canceled; NULL is any of them.")));
}

/*
 * Add a column of a message.  What is in the TOAST table is fetched now,
 * because the message may be deleted before the result is read.
 */
static void
add_column(ApiRow *row, const ScanRow *message, int column)
{
	TupleDesc	desc = RelationGetDescr(message->table->heap);
	bool		isnull;
	Datum		value = heap_getattr(message->tuple, column, desc, &isnull);

	if (!isnull && TupleDescAttr(desc, column - 1)->attlen == -1)
		value = PointerGetDatum(PG_DETOAST_DATUM_PACKED(value));
	api_row_add_or_null(row, value, isnull);
}

/* Callback of message_list_each(): return a row of queue_browse. */
static bool
put_browsed(const ScanRow *message, TimestampTz now, void *arg)
{
	const MessageForm *form = &message->form;
	TupleDesc	desc = RelationGetDescr(message->table->heap);
	HeapTuple	tuple = message->tuple;
	MessageState state = message_state(desc, tuple, form, now);
	TimestampTz expires_at = form->expires_at;
	ApiRow		row = {0};
	Datum		digest;
	Datum		due_at;
	bool		no_digest;
	bool		never_due;

	/* When it is due, a delayed message lives for a minute at least. */
	due_at = heap_getattr(tuple, Anum_message_due_at, desc, &never_due);
	if (!never_due && state != STATE_WAITING)
		expires_at = Max(expires_at,
						 DatumGetTimestampTz(due_at) + USECS_PER_MINUTE);
	digest = heap_getattr(tuple, Anum_message_dedup, desc, &no_digest);

	api_row_add(&row, Int64GetDatum(form->id));
	api_row_add_text(&row, message_state_name(state));
	add_column(&row, message, Anum_message_body);
	add_column(&row, message, Anum_message_headers);
	api_row_add(&row, Int32GetDatum(form->priority));
	add_column(&row, message, Anum_message_group_key);
	api_row_add_text(&row, no_digest ? NULL :
					 DatumGetCString(DirectFunctionCall1(uuid_out, digest)));
	add_column(&row, message, Anum_message_batch);
	add_column(&row, message, Anum_message_after_batch);
	api_row_add(&row, Int32GetDatum(attributes_claim_count(desc, tuple)));

	/* While it waits for a batch, it is counted as pushed in the future. */
	api_row_add_or_null(&row, TimestampTzGetDatum(form->created_at),
						state == STATE_WAITING);
	api_row_add_or_null(&row, due_at, state != STATE_DELAYED);
	api_row_add_or_null(&row, TimestampTzGetDatum(form->claimed_until),
						!message_is_claimed(form, now));
	api_row_add_or_null(&row, TimestampTzGetDatum(expires_at),
						state == STATE_WAITING);
	api_row_add_text(&row, attributes_last_error(desc, tuple));
	api_row_put(&row, arg);
	return true;
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
	ApiRow		row = {0};
	int64		last;

	/* Ids are above 0. */
	filter.first_id = Min(Max(marker, 0), PG_INT64_MAX - 1) + 1;
	filter.limit = arg_check_list_limit(arg_int(fcinfo, 4, "limit"));
	filter.read_max = BROWSE_MAX;
	filter.states = get_states(fcinfo, 1);
	if (!PG_ARGISNULL(2))
		filter.body = PG_GETARG_JSONB_P(2);
	InitMaterializedSRF(fcinfo, 0);
	if (queue_open_or_notice(name, QUEUE_READ, &queue) &&
		(last = message_list_each(&queue, &filter, put_browsed, fcinfo)) != 0)
	{
		api_row_add(&row, Int64GetDatum(last));
		api_row_put(&row, fcinfo);
	}
	return api_check_left(fcinfo, name);
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
	return api_check_left(fcinfo, name);
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
	int			n = arg_ids(fcinfo, 1, &ids);

	api_begin_messages(fcinfo, &result);
	if (queue_open_or_notice(name, QUEUE_READ, &queue))
		for (int i = 0; i < n; i++)
		{
			CHECK_FOR_INTERRUPTS();
			message_list_one(&queue, DatumGetInt64(ids[i]), &result);
		}
	return api_check_left(fcinfo, name);
}

/* --- Dead letters --- */

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
	return api_check_left(fcinfo, name);
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
	const char *name = arg_queue_to_write(fcinfo, "q", "queue_redrive()");
	const char *target_name = NULL;
	Queue		queue;
	Queue		target;
	int			limit = INT_MAX;
	int64		sent;
	Datum	   *ids = NULL;
	int			n = 0;

	if (!PG_ARGISNULL(1))
		target_name = arg_queue_name(fcinfo, 1, "target");
	if (!PG_ARGISNULL(2))
		limit = arg_check_bounds("limit", PG_GETARG_INT32(2), 1, NULL,
								 INT_MAX, NULL, "");
	if (!PG_ARGISNULL(3))
		n = arg_elements("ids", PG_GETARG_ARRAYTYPE_P(3), &ids);
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
