/*-------------------------------------------------------------------------
 *
 * message_api.c
 *	  The SQL functions that show messages and change nothing.
 *
 * NOTES
 *	  They read with the latest snapshot at every isolation level, as all
 *	  functions do, take no lock on the queue and run on a standby too.
 *	  Messages that have expired are not shown, removed or not.
 *
 * src/api/message_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "queue/message_result.h"
#include "queue/registry.h"
#include "storage/message.h"
#include "storage/message_scan.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/settings.h"

#define Natts_stats		10

PG_FUNCTION_INFO_V1(sql_queue_messages);
PG_FUNCTION_INFO_V1(sql_message_get);
PG_FUNCTION_INFO_V1(sql_messages_get);
PG_FUNCTION_INFO_V1(sql_queue_stats);

static bool is_own(TupleDesc desc, HeapTuple tuple);
static bool is_delayed(ScanRow *row, TimestampTz now);
static void get_message(const Queue *queue, int64 id, MessageResult *result);

/* Was the message pushed under the client id of this session? */
static bool
is_own(TupleDesc desc, HeapTuple tuple)
{
	bool		isnull;
	Datum		client;

	if (*setting_client_id == '\0')
		return false;
	client = heap_getattr(tuple, Anum_message_client_id, desc, &isnull);
	return !isnull &&
		strcmp(TextDatumGetCString(client), setting_client_id) == 0;
}

/* Does the message wait for its time? */
static bool
is_delayed(ScanRow *row, TimestampTz now)
{
	bool		isnull;

	return segment_is_delayed(row->table->segment) &&
		DatumGetTimestampTz(slot_getattr(row->slot, Anum_delayed_due_at,
										 &isnull)) > now;
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
	const char *name = queue_name_arg(fcinfo, 0, "q");
	int64		marker = PG_ARGISNULL(1) ? PG_INT64_MIN : PG_GETARG_INT64(1);
	int			limit;
	bool		echo;
	bool		claimed;
	bool		delayed;
	Queue		queue;
	MessageResult result;
	TimestampTz now;
	MessageScan *scan;
	ScanRow		row;

	for (Size i = 0; i < lengthof(names); i++)
		if (PG_ARGISNULL(i + 2))
			arg_missing(names[i]);
	limit = arg_check_list_limit(PG_GETARG_INT32(2));
	echo = PG_GETARG_BOOL(3);
	claimed = PG_GETARG_BOOL(4);
	delayed = PG_GETARG_BOOL(5);

	result_begin(&result, fcinfo);
	if (!queue_open(name, QUEUE_READ, &queue) || marker == PG_INT64_MAX)
		return (Datum) 0;

	now = GetCurrentTimestamp();
	segment_push_snapshot();
	scan = message_scan_begin_list(queue.id, PG_ARGISNULL(1) ? marker : marker + 1,
						   AccessShareLock, true);
	while (limit > 0 && message_scan_next(scan, &row))
	{
		TupleDesc	desc = RelationGetDescr(row.table->heap);

		if (message_is_expired(row.form, now) ||
			(!claimed && message_is_claimed(row.form, now)) ||
			(!delayed && is_delayed(&row, now)) ||
			(!echo && is_own(desc, row.tuple)))
			continue;
		result_put(&result, &queue, desc, row.tuple, now);
		limit--;
	}
	message_scan_end(scan);
	PopActiveSnapshot();
	return (Datum) 0;
}

/* Return the message with this id, if there is one. */
static void
get_message(const Queue *queue, int64 id, MessageResult *result)
{
	MessageTable table;
	TupleTableSlot *slot;
	TimestampTz now = GetCurrentTimestamp();

	segment_push_snapshot();
	if (message_find(queue->id, id, AccessShareLock, &table, &slot))
	{
		HeapTuple	tuple = row_tuple(slot);

		if (!message_is_expired(MESSAGE_FORM(tuple), now))
			result_put(result, queue, RelationGetDescr(table.heap), tuple,
					   now);
		ExecDropSingleTupleTableSlot(slot);
		message_table_close(&table, false);
	}
	PopActiveSnapshot();
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
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Queue		queue;
	MessageResult result;

	if (PG_ARGISNULL(1))
		arg_missing("id");
	result_begin(&result, fcinfo);
	if (queue_open(name, QUEUE_READ, &queue))
		get_message(&queue, PG_GETARG_INT64(1), &result);
	return (Datum) 0;
}

/*
 * messages_get(q text, ids bigint[]) returns setof queue_message
 *
 * The messages with these ids that exist, in the order asked.
 *
 * Errors: 22004 ids or one of them is NULL, 42501 no right to claim.
 * Source: Zaqar, get a set of messages by id.
 */
Datum
sql_messages_get(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Queue		queue;
	MessageResult result;
	Datum	   *ids;
	int			n;

	if (PG_ARGISNULL(1))
		arg_missing("ids");
	n = arg_ids(PG_GETARG_ARRAYTYPE_P(1), &ids);
	result_begin(&result, fcinfo);
	if (queue_open(name, QUEUE_READ, &queue))
		for (int i = 0; i < n; i++)
		{
			CHECK_FOR_INTERRUPTS();
			get_message(&queue, DatumGetInt64(ids[i]), &result);
		}
	return (Datum) 0;
}

/*
 * queue_stats(q text)
 * returns table (free bigint, claimed bigint, delayed bigint, total bigint,
 *				  oldest_id bigint, oldest_age int, oldest_created timestamptz,
 *				  newest_id bigint, newest_age int, newest_created timestamptz)
 *
 * One row with exact counts, and the messages with the lowest and the highest
 * id (NULL when there are none; ages in seconds).  An unknown queue counts 0.
 * Reads every message of the queue.
 *
 * Source: Zaqar, get queue stats.
 */
Datum
sql_queue_stats(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Queue		queue;
	int64		free = 0;
	int64		claimed = 0;
	int64		delayed = 0;
	MessageForm oldest = {0};
	MessageForm newest = {0};
	TimestampTz now;
	Datum		values[Natts_stats];
	bool		isnull[Natts_stats] = {false};

	InitMaterializedSRF(fcinfo, 0);
	now = GetCurrentTimestamp();
	if (queue_open(name, QUEUE_LOOK, &queue))
	{
		MessageScan *scan;
		ScanRow		row;

		now = GetCurrentTimestamp();
		segment_push_snapshot();
		scan = message_scan_begin_list(queue.id, PG_INT64_MIN, AccessShareLock, true);
		while (message_scan_next(scan, &row))
		{
			if (message_is_expired(row.form, now))
				continue;
			if (free + claimed + delayed == 0)
				oldest = *row.form;
			newest = *row.form;
			if (message_is_claimed(row.form, now))
				claimed++;
			else if (is_delayed(&row, now))
				delayed++;
			else
				free++;
		}
		message_scan_end(scan);
		PopActiveSnapshot();
	}

	values[0] = Int64GetDatum(free);
	values[1] = Int64GetDatum(claimed);
	values[2] = Int64GetDatum(delayed);
	values[3] = Int64GetDatum(free + claimed + delayed);
	if (free + claimed + delayed > 0)
	{
		values[4] = Int64GetDatum(oldest.id);
		values[5] = Int32GetDatum(result_seconds(oldest.created_at, now));
		values[6] = TimestampTzGetDatum(oldest.created_at);
		values[7] = Int64GetDatum(newest.id);
		values[8] = Int32GetDatum(result_seconds(newest.created_at, now));
		values[9] = TimestampTzGetDatum(newest.created_at);
	}
	else
		memset(&isnull[4], true, 6 * sizeof(bool));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	return (Datum) 0;
}
