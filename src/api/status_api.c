/*-------------------------------------------------------------------------
 *
 * status_api.c
 *	  The functions behind the views queue_data.queue_status and
 *	  queue_data.availability_map.
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

#include "api/api_row.h"
#include "jobs/runner_pool.h"
#include "map/availability_list.h"
#include "queue/queue_table.h"
#include "stats/status.h"
#include "util/clock.h"
#include "util/compat.h"

PG_FUNCTION_INFO_V1(sql_queue_status);
PG_FUNCTION_INFO_V1(sql_queue_maps);

static bool *find_running(QueueStatus *list, int n);
static void put_status(FunctionCallInfo fcinfo, const QueueStatus *status,
					   bool running, TimestampTz now);
static void put_map(FunctionCallInfo fcinfo, const MapStatus *map);

/* Returns, for each queue of the list, whether a job of it runs. */
static bool *
find_running(QueueStatus *list, int n)
{
	bool	   *running = palloc0(Max(n, 1) * sizeof(bool));
	int			nrunners;
	Runner	   *runners = pool_list(&nrunners);

	for (int i = 0; i < nrunners; i++)
	{
		QueueStatus *status;

		if (!pool_runs_job(&runners[i]))
			continue;
		status = queue_find_entry(list, n, sizeof(QueueStatus),
								  runners[i].queue_id);
		if (status != NULL)
			running[status - list] = true;
	}
	return running;
}

/* Return the row of a queue. */
static void
put_status(FunctionCallInfo fcinfo, const QueueStatus *status, bool running,
		   TimestampTz now)
{
	ApiRow		row = {0};

	api_row_add(&row, Int32GetDatum(status->queue_id));
	api_row_add(&row, Int64GetDatum(status->depths[DEPTH_READY]));
	api_row_add(&row, Int64GetDatum(status->depths[DEPTH_CLAIMED]));
	api_row_add(&row, Int64GetDatum(status->depths[DEPTH_DELAYED]));
	api_row_add_or_null(&row,
						Int32GetDatum(clock_seconds(status->oldest_free, now)),
						status->oldest_free == DT_NOEND);
	api_row_add(&row, BoolGetDatum(running));
	for (int i = 0; i < JOB_COUNTERS; i++)
		api_row_add(&row, Int64GetDatum(status->n[i]));
	api_row_put(&row, fcinfo);
}

/*
 * queue_data.status() returns setof record (the columns are in put_status)
 *
 * One row for each queue of all projects: how many messages it has, the age of
 * the oldest one that is free (in seconds since its push; NULL: none is),
 * whether a job of it runs, and what was counted of it.
 */
Datum
sql_queue_status(PG_FUNCTION_ARGS)
{
	TimestampTz now;
	QueueStatus *list;
	bool	   *running;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	list = status_read(&n);
	running = find_running(list, n);
	now = GetCurrentTimestamp();
	for (int i = 0; i < n; i++)
		put_status(fcinfo, &list[i], running[i], now);
	return (Datum) 0;
}

/* Return the row of an availability map. */
static void
put_map(FunctionCallInfo fcinfo, const MapStatus *map)
{
	static const char *const states[] = {
		[MAP_STATE_FULL] = "full",
		[MAP_STATE_NEW] = "new",
		[MAP_STATE_COMPLETE] = "complete"
	};
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
	api_row_add(&row, TimestampTzGetDatum(map->full_scan_at));
	api_row_put(&row, fcinfo);
}

/*
 * queue_data.maps() returns setof record (the columns are in put_map)
 *
 * One row for each availability map of this database.  No row without shared
 * memory.
 */
Datum
sql_queue_maps(PG_FUNCTION_ARGS)
{
	MapStatus  *list;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	list = availability_list(&n);
	for (int i = 0; i < n; i++)
		put_map(fcinfo, &list[i]);
	return (Datum) 0;
}
