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
#include "utils/tuplestore.h"

#include "api/api_arg.h"
#include "catalog/tables.h"
#include "claim/group_list.h"
#include "jobs/schedule.h"
#include "queue/message_list.h"
#include "queue/registry.h"
#include "stats/counters.h"
#include "util/args.h"
#include "util/clock.h"
#include "util/compat.h"

/* Columns of queue_stats */
#define Anum_stats_free				1
#define Anum_stats_claimed			2
#define Anum_stats_delayed			3
#define Anum_stats_total			4
#define Anum_stats_oldest_id		5
#define Anum_stats_oldest_age		6
#define Anum_stats_oldest_created	7
#define Anum_stats_newest_id		8
#define Anum_stats_newest_age		9
#define Anum_stats_newest_created	10
#define Natts_stats					10

/* Columns of queue_groups */
#define Anum_groups_group_key		1
#define Anum_groups_free			2
#define Anum_groups_claimed			3
#define Anum_groups_delayed			4
#define Anum_groups_oldest_age		5
#define Natts_groups				5

/* Columns of job_stats, after one for each of JOB_STATS_COUNTERS */
#define Anum_job_stats_since			(JOB_STATS_COUNTERS + 1)
#define Anum_job_stats_last_error		(JOB_STATS_COUNTERS + 2)
#define Anum_job_stats_last_error_at	(JOB_STATS_COUNTERS + 3)
#define Natts_job_stats					(JOB_STATS_COUNTERS + 3)

PG_FUNCTION_INFO_V1(sql_queue_stats);
PG_FUNCTION_INFO_V1(sql_queue_groups);
PG_FUNCTION_INFO_V1(sql_job_stats);

static void put_group(const GroupCounts *group, void *arg);
static void add_failure_of_schedule(const char *name,
									CounterValues *counters);

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
	const char *name = arg_queue_name(fcinfo, 0, "q");
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Queue		queue;
	MessageCounts counts = {0};
	Datum		values[Natts_stats] = {0};
	bool		isnull[Natts_stats] = {false};

	InitMaterializedSRF(fcinfo, 0);
	if (queue_open(name, QUEUE_DESCRIBE, &queue))
		message_list_count(&queue, &counts);
	queue_check_left(name, counts.total > 0);

#define SET(column, value) values[Anum_stats_##column - 1] = (value)
	SET(free, Int64GetDatum(counts.states.free));
	SET(claimed, Int64GetDatum(counts.states.claimed));
	SET(delayed, Int64GetDatum(counts.states.delayed));
	SET(total, Int64GetDatum(counts.total));
	SET(oldest_id, Int64GetDatum(counts.oldest.id));
	SET(oldest_age, Int32GetDatum(clock_seconds(counts.oldest.created_at,
												counts.now)));
	SET(oldest_created, TimestampTzGetDatum(counts.oldest.created_at));
	SET(newest_id, Int64GetDatum(counts.newest.id));
	SET(newest_age, Int32GetDatum(clock_seconds(counts.newest.created_at,
												counts.now)));
	SET(newest_created, TimestampTzGetDatum(counts.newest.created_at));
#undef SET
	if (counts.total == 0)
		for (int i = Anum_stats_oldest_id; i <= Anum_stats_newest_created; i++)
			isnull[i - 1] = true;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	return (Datum) 0;
}

/* Return the row of one group. */
static void
put_group(const GroupCounts *group, void *arg)
{
	ReturnSetInfo *rsinfo = arg;
	Datum		values[Natts_groups];
	bool		isnull[Natts_groups] = {false};

	isnull[Anum_groups_group_key - 1] = group->key == NULL;
	values[Anum_groups_group_key - 1] = PointerGetDatum(group->key);
	values[Anum_groups_free - 1] = Int64GetDatum(group->states.free);
	values[Anum_groups_claimed - 1] = Int64GetDatum(group->states.claimed);
	values[Anum_groups_delayed - 1] = Int64GetDatum(group->states.delayed);
	values[Anum_groups_oldest_age - 1] = Int32GetDatum(group->oldest_age);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
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
	Queue		queue;
	int			limit;

	if (PG_ARGISNULL(2))
		arg_missing("limit");
	limit = arg_check_list_limit(PG_GETARG_INT32(2));
	InitMaterializedSRF(fcinfo, 0);

	/* A key is part of the messages: it may be the name of a customer. */
	if (queue_open(name, QUEUE_READ, &queue))
		group_list(&queue, PG_ARGISNULL(1) ? NULL : PG_GETARG_TEXT_PP(1),
				   limit, put_group, fcinfo->resultinfo);
	api_check_left(fcinfo, name);
	return (Datum) 0;
}

/*
 * A schedule that fails pushes nothing, and pg_cron does not tell the queue:
 * so its failure takes the place of an older error.
 */
static void
add_failure_of_schedule(const char *name, CounterValues *counters)
{
	char	   *error;
	TimestampTz at;

	if (!schedule_failure(name, &error, &at))
		return;
	if (counters->last_error != NULL && at != DT_NOBEGIN &&
		at < counters->last_error_at)
		return;
	counters->last_error = cstring_to_text(error);
	counters->last_error_at = at;
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
 * their lifetime was over; and the last error that was reported, or with
 * which the latest run of a schedule has failed, with its time if that is
 * known (NULL for a role that may not claim).  An unknown queue counts 0,
 * since NULL.
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
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		values[Natts_job_stats] = {0};
	bool		isnull[Natts_job_stats] = {false};
	CounterValues counters = {0};
	Queue		queue;
	QueueResult result;

	InitMaterializedSRF(fcinfo, 0);
	result = queue_find_as(name, GetUserId(), QUEUE_READ, &queue);
	if (result != QUEUE_MISSING)
		counters_read(queue.id, &counters);
	queue_check_left(name, result != QUEUE_MISSING);

	for (int i = 0; i < JOB_STATS_COUNTERS; i++)
		values[i] = Int64GetDatum(counters.n[i]);
	if (counters.since == 0)
		isnull[Anum_job_stats_since - 1] = true;
	else
		values[Anum_job_stats_since - 1] = TimestampTzGetDatum(counters.since);
	if (result == QUEUE_OK)
		add_failure_of_schedule(name, &counters);
	if (counters.last_error == NULL || result != QUEUE_OK)
		isnull[Anum_job_stats_last_error - 1] = true;
	else
		values[Anum_job_stats_last_error - 1] =
			PointerGetDatum(counters.last_error);
	if (isnull[Anum_job_stats_last_error - 1] ||
		counters.last_error_at == DT_NOBEGIN)
		isnull[Anum_job_stats_last_error_at - 1] = true;
	else
		values[Anum_job_stats_last_error_at - 1] =
			TimestampTzGetDatum(counters.last_error_at);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	return (Datum) 0;
}
