/*-------------------------------------------------------------------------
 *
 * stats_api.c
 *	  SQL functions that count messages.
 *
 * src/api/stats_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "api/api_arg.h"
#include "api/api_row.h"
#include "catalog/tables.h"
#include "claim/group_list.h"
#include "queue/message_list.h"
#include "queue/missing_queue.h"
#include "queue/registry.h"
#include "stats/counters.h"
#include "util/args.h"
#include "util/clock.h"
#include "util/compat.h"

PG_FUNCTION_INFO_V1(sql_queue_stats);
PG_FUNCTION_INFO_V1(sql_queue_groups);
PG_FUNCTION_INFO_V1(sql_job_stats);

static void add_message(ApiRow *row, const MessageForm *message,
						const MessageCounts *counts);
static void put_group(const GroupCounts *group, void *arg);

/* Add the columns of a message, which are null if there are no messages. */
static void
add_message(ApiRow *row, const MessageForm *message,
			const MessageCounts *counts)
{
	bool		isnull = counts->total == 0;

	api_row_add_or_null(row, Int64GetDatum(message->id), isnull);
	api_row_add_or_null(row, Int32GetDatum(clock_seconds(message->created_at,
														 counts->now)),
						isnull);
	api_row_add_or_null(row, TimestampTzGetDatum(message->created_at), isnull);
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
 * Errors: 22004 and 22023 name, 42501 no privilege on the queue.
 * Source: Zaqar, get queue stats.
 */
Datum
sql_queue_stats(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	Queue		queue;
	MessageCounts counts = {0};
	ApiRow		row = {0};

	InitMaterializedSRF(fcinfo, 0);
	if (queue_open_or_notice(name, QUEUE_DESCRIBE, &queue))
	{
		/* Any privilege suffices: admin includes the others. */
		if (queue_find_as(name, GetUserId(), QUEUE_PUSH, &queue) != QUEUE_OK)
			(void) queue_open(name, QUEUE_READ, &queue);
		message_list_count(&queue, &counts);
	}
	queue_check_left(name, counts.total > 0);

	api_row_add(&row, Int64GetDatum(counts.states.free));
	api_row_add(&row, Int64GetDatum(counts.states.claimed));
	api_row_add(&row, Int64GetDatum(counts.states.delayed));
	api_row_add(&row, Int64GetDatum(counts.total));
	add_message(&row, &counts.oldest, &counts);
	add_message(&row, &counts.newest, &counts);
	api_row_put(&row, fcinfo);
	return (Datum) 0;
}

/* Return the row of one group. */
static void
put_group(const GroupCounts *group, void *arg)
{
	ApiRow		row = {0};

	api_row_add_or_null(&row, PointerGetDatum(group->key), group->key == NULL);
	api_row_add(&row, Int64GetDatum(group->states.free));
	api_row_add(&row, Int64GetDatum(group->states.claimed));
	api_row_add(&row, Int64GetDatum(group->states.delayed));
	api_row_add(&row, Int32GetDatum(group->oldest_age));
	api_row_put(&row, arg);
}

/*
 * queue_groups(q text, marker text = NULL, "limit" int = 10)
 * returns table (group_key text, free bigint, claimed bigint, delayed bigint,
 *				  oldest_age int)
 *
 * One row with exact counts for each group that has messages, in the order of
 * the keys' bytes: those after marker (NULL: from the first one on), at most
 * limit (1 to 10000).  oldest_age: seconds since the push of the message with
 * the lowest id.  Messages without a key are one group: its group_key is NULL,
 * and it comes first; the marker '' begins after it.  Reads every message of
 * the queue.
 *
 * Result: no row when the queue is unknown.
 * Errors: 22004 and 22023 name or limit, 42501 no right to claim.
 */
Datum
sql_queue_groups(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	int			limit = arg_check_list_limit(arg_int(fcinfo, 2, "limit"));
	Queue		queue;

	InitMaterializedSRF(fcinfo, 0);

	/* A key is part of the messages: it may be the name of a customer. */
	if (queue_open_or_notice(name, QUEUE_READ, &queue))
		group_list(&queue, PG_ARGISNULL(1) ? NULL : PG_GETARG_TEXT_PP(1),
				   limit, put_group, fcinfo);
	api_check_left(fcinfo, name);
	return (Datum) 0;
}

/*
 * job_stats(q text)
 * returns table (claimed bigint, completed bigint, retried bigint,
 *				  abandoned bigint, duplicates bigint, expired bigint,
 *				  since timestamptz, last_error text,
 *				  last_error_at timestamptz)
 *
 * One row that counts, since that time, how often messages of the queue were
 * handed out, completed under their claim, given back by message_retry or a
 * failed handler, moved to the dead letter queue, dropped as duplicates (at
 * the push, or when they would have been handed out), and removed because
 * their lifetime was over; and the last error that was reported, with its
 * time (NULL for a role that may not claim).  An unknown queue counts 0, since
 * NULL.
 *
 * Committed events are counted, but the counts are not kept as safe as
 * messages: see counters.c.
 *
 * Errors: 22004 and 22023 name.
 * Source: MediaWiki, the counts of JobRunner and JobQueue.
 */
Datum
sql_job_stats(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	ApiRow		row = {0};
	CounterRow	counters = {0};
	Queue		queue;
	QueueResult result;

	InitMaterializedSRF(fcinfo, 0);
	result = queue_find_as(name, GetUserId(), QUEUE_READ, &queue);
	if (result != QUEUE_MISSING)
		counters_read(queue.id, &counters);
	queue_check_left(name, result != QUEUE_MISSING);
	if (result == QUEUE_MISSING)
		queue_notice_missing(name);

	for (int i = 0; i < JOB_STATS_COUNTERS; i++)
		api_row_add(&row, Int64GetDatum(counters.n[i]));
	api_row_add_or_null(&row, TimestampTzGetDatum(counters.since),
						counters.since == 0);
	if (result != QUEUE_OK)
		counters.error = NULL;
	api_row_add_or_null(&row, counters.error == NULL ? (Datum) 0 :
						CStringGetTextDatum(counters.error),
						counters.error == NULL);
	api_row_add_or_null(&row, TimestampTzGetDatum(counters.error_at),
						counters.error == NULL);
	api_row_put(&row, fcinfo);
	return (Datum) 0;
}
