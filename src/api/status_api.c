/*-------------------------------------------------------------------------
 *
 * status_api.c
 *	  SQL functions that count messages, and those behind the views
 *	  queue_data.queue_status and queue_data.availability_map.
 *
 * src/api/status_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "api/api_arg.h"
#include "catalog/tables.h"
#include "claim/group_list.h"
#include "jobs/runner_pool.h"
#include "map/availability_view.h"
#include "map/lanes_table.h"
#include "map/shmem_maps.h"
#include "queue/message_list.h"
#include "queue/queue_table.h"
#include "queue/registry.h"
#include "stats/counters.h"
#include "stats/status.h"
#include "util/args.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/settings.h"

PG_FUNCTION_INFO_V1(sql_queue_status);
PG_FUNCTION_INFO_V1(sql_queue_maps);
PG_FUNCTION_INFO_V1(sql_queue_memory);
PG_FUNCTION_INFO_V1(sql_queue_depth);
PG_FUNCTION_INFO_V1(sql_queue_stats);
PG_FUNCTION_INFO_V1(sql_queue_groups);
PG_FUNCTION_INFO_V1(sql_job_stats);

static void put_places(FunctionCallInfo fcinfo, const char *what, uint32 used,
					   uint32 places, Size size);
static void put_depth(FunctionCallInfo fcinfo, const QueueEntry *queue,
					  const QueueStatus *status, const QueueStatus *dead,
					  bool known, bool has_error);
static bool is_in_list(const List *ids, int32 id);
static void add_message(ApiRow *row, const MessageForm *message,
						TimestampTz now);
static void put_group(const GroupCounts *group, void *arg);

/*
 * queue_data.status() returns setof record (the columns are below)
 *
 * One row for each queue of all projects: how many messages it has (NULL while
 * that is not known), the age of the oldest one that is free (in seconds since
 * its push; NULL: none is known), whether a job of it runs, and what was counted
 * of it.
 */
Datum
sql_queue_status(PG_FUNCTION_ARGS)
{
	TimestampTz now;
	QueueEntry *queues;
	QueueStatus *list;
	Runner	   *runners;
	bool	   *running;
	bool		known;
	int			n;
	int			nrunners;

	InitMaterializedSRF(fcinfo, 0);
	queues = queue_all(NULL, NULL, &n);
	list = status_read(queues, n, false, &known);

	/* Of which queues a job runs */
	running = palloc0(Max(n, 1) * sizeof(bool));
	runners = pool_list(&nrunners, true);
	for (int i = 0; i < nrunners; i++)
	{
		QueueStatus *status = queue_find_entry(list, n, sizeof(QueueStatus),
											   runners[i].queue_id);

		if (status != NULL)
			running[status - list] = true;
	}
	now = GetCurrentTimestamp();
	for (int i = 0; i < n; i++)
	{
		const QueueStatus *status = &list[i];
		ApiRow		row = {0};
		CounterRow	counters;

		counters_read(status->queue_id, &counters);
		api_row_add(&row, Int32GetDatum(status->queue_id));
		for (int j = 0; j < DEPTHS; j++)
			api_row_add_or_null(&row, Int64GetDatum(status->depths[j]),
								!known);
		api_row_add_or_null(&row,
							Int32GetDatum(clock_seconds(status->oldest_free,
														now)),
							status->oldest_free == DT_NOEND);
		api_row_add(&row, BoolGetDatum(running[i]));
		for (int j = 0; j < JOB_COUNTERS; j++)
			api_row_add(&row, Int64GetDatum(counters.n[j]));
		api_row_put(&row, fcinfo);
	}
	return (Datum) 0;
}

/*
 * queue_data.maps() returns setof record (the columns are below)
 *
 * One row for each availability map of this database.
 */
Datum
sql_queue_maps(PG_FUNCTION_ARGS)
{
	static const char *const states[] = {
		[MAP_STATE_FULL] = "full",
		[MAP_STATE_NEW] = "new",
		[MAP_STATE_COMPLETE] = "complete"
	};
	MapStatus  *list;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	list = availability_list(&n);
	for (int i = 0; i < n; i++)
	{
		const MapStatus *map = &list[i];
		ApiRow		row = {0};

		api_row_add(&row, Int32GetDatum(map->queue_id));
		api_row_add_text(&row, states[map->state]);
		api_row_add(&row, BoolGetDatum(map->ready));
		api_row_add_or_null(&row, Int64GetDatum(map->unscanned),
							map->unscanned < 0);
		api_row_add(&row, Int32GetDatum(map->ranges));
		api_row_add_or_null(&row, Int64GetDatum(map->numbers), map->numbers < 0);
		api_row_add(&row, BoolGetDatum(map->uncertain));
		api_row_add_or_null(&row, Int32GetDatum(map->lanes), map->lanes < 0);
		api_row_add(&row, Int32GetDatum(map->reservations));
		api_row_add(&row, BoolGetDatum(map->claims_wait));
		api_row_add(&row, Int32GetDatum(map->waiters));
		api_row_add(&row, Int64GetDatum((int64) map->incarnation));

		/* Some times that are only used inside are before all valid ones. */
		api_row_add_or_null(&row,
							TimestampTzGetDatum(map->visit_at < MIN_TIMESTAMP ?
												DT_NOBEGIN : map->visit_at),
							map->visit_at == DT_NOEND);
		api_row_put(&row, fcinfo);
	}
	return (Datum) 0;
}

/* Return how many places of a kind are used, of how many. */
static void
put_places(FunctionCallInfo fcinfo, const char *what, uint32 used,
		   uint32 places, Size size)
{
	ApiRow		row = {0};

	api_row_add_text(&row, what);
	api_row_add(&row, Int64GetDatum(used));
	api_row_add(&row, Int64GetDatum(places));
	api_row_add(&row, Int64GetDatum((int64) (places * size)));
	api_row_put(&row, fcinfo);
}

/*
 * queue_data.memory()
 * returns table (what text, used bigint, places bigint, bytes bigint)
 *
 * The places in shared memory, of all databases: of queues with messages, of
 * groups, and of stretches of the messages of groups; and how many of these are
 * in use.
 */
Datum
sql_queue_memory(PG_FUNCTION_ARGS)
{
	uint32		nlanes;
	uint32		npieces;
	uint32		max_pieces;

	InitMaterializedSRF(fcinfo, 0);
	lanes_count(&nlanes, &npieces, &max_pieces);
	put_places(fcinfo, "queues", shmem_places_used(),
			   setting_max_active_queues, sizeof(AvailabilityMap));
	put_places(fcinfo, "groups", nlanes, setting_max_active_groups,
			   sizeof(Lane));
	put_places(fcinfo, "stretches", npieces, max_pieces, lane_piece_size());
	return (Datum) 0;
}

/*
 * Return the row of a queue, and its dead letter queue.  Unless has_error is
 * set, no error was reported.
 */
static void
put_depth(FunctionCallInfo fcinfo, const QueueEntry *queue,
		  const QueueStatus *status, const QueueStatus *dead, bool known,
		  bool has_error)
{
	ApiRow		row = {0};
	CounterRow	counters = {0};
	int64		letters = 0;

	if (has_error)
		counters_read(queue->id, &counters);
	api_row_add_text(&row, queue->name);
	for (int i = 0; i < DEPTHS; i++)
	{
		api_row_add_or_null(&row, Int64GetDatum(status->depths[i]), !known);
		letters += dead->depths[i];
	}
	api_row_add_or_null(&row, Int64GetDatum(letters), !known);
	api_row_add_or_null(&row,
						Int32GetDatum(clock_seconds(status->oldest_free,
													GetCurrentTimestamp())),
						status->oldest_free == DT_NOEND);
	api_row_add(&row, BoolGetDatum(queue->paused));
	api_row_add_text(&row, counters.error);
	api_row_add_time(&row, counters.error == NULL ? 0 : counters.error_at);
	api_row_put(&row, fcinfo);
}

/* Returns whether a list, in ascending order, has this id. */
static bool
is_in_list(const List *ids, int32 id)
{
	ListCell	key = {.int_value = id};

	return ids != NIL &&
		bsearch(&key, ids->elements, list_length(ids), sizeof(ListCell),
				(int (*) (const void *, const void *)) list_int_cmp) != NULL;
}

/*
 * queue_depth(q text = NULL)
 * returns table (queue text, free bigint, claimed bigint, delayed bigint,
 *				  dead_letters bigint, oldest_age int, paused boolean,
 *				  last_error text, last_error_at timestamptz)
 *
 * One row for queue q, or for each queue of the session's project that the
 * caller may claim from, by name: its messages and those in its dead letter
 * queue, as they are counted where they change, at most two seconds late; the
 * seconds since the push of the oldest free one (NULL: none was found); and the
 * last error that was reported.  The numbers are NULL while they are not
 * known: there is no background worker, or it has not counted the messages
 * yet.
 *
 * Result: no row when the queue is unknown.
 * Errors: 22023 name, 42501 q is given, and the caller may not claim from it.
 */
Datum
sql_queue_depth(PG_FUNCTION_ARGS)
{
	const char *name = NULL;
	QueueEntry	one;
	QueueEntry *queues = &one;
	QueueStatus *list;
	Queue		queue;
	List	   *with_errors = NIL;
	bool		known;
	int			n = 0;

	InitMaterializedSRF(fcinfo, 0);
	if (PG_ARGISNULL(0))
	{
		queues = queue_list_readable(&n);

		/* To read the counters of each queue would take half of the time. */
		with_errors = counters_with_errors();
	}
	else
	{
		name = arg_queue_name(fcinfo, 0, "q");
		if (queue_open_or_notice(name, QUEUE_READ, &queue))
		{
			one.id = queue.id;
			one.name = queue.name;
			one.paused = queue.paused;
			one.dead_id = queue.dead_id;
			n = 1;
		}
	}
	list = status_read(queues, n, true, &known);
	for (int i = 0; i < n; i++)
		put_depth(fcinfo, &queues[i], &list[i], &list[n + i], known,
				  name != NULL || is_in_list(with_errors, queues[i].id));
	if (name != NULL)
		return api_check_left(fcinfo, name);
	return (Datum) 0;
}

/* --- Counts --- */

static void
add_message(ApiRow *row, const MessageForm *message, TimestampTz now)
{
	api_row_add(row, Int64GetDatum(message->id));
	api_row_add(row, Int32GetDatum(clock_seconds(message->created_at, now)));
	api_row_add(row, TimestampTzGetDatum(message->created_at));
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
	if (counts.total > 0)
	{
		add_message(&row, &counts.oldest, counts.now);
		add_message(&row, &counts.newest, counts.now);
	}
	api_row_put(&row, fcinfo);
	return (Datum) 0;
}

/* Return the row of one group. */
static void
put_group(const GroupCounts *group, void *arg)
{
	ApiRow		row = {0};

	api_row_add_or_null(&row, PointerGetDatum(group->key),
						VARSIZE_ANY_EXHDR(group->key) == 0);
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
	return api_check_left(fcinfo, name);
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
	api_row_add_time(&row, counters.since);
	if (result != QUEUE_OK)
		counters.error = NULL;
	api_row_add_text(&row, counters.error);
	api_row_add_time(&row, counters.error == NULL ? 0 : counters.error_at);
	api_row_put(&row, fcinfo);
	return (Datum) 0;
}
