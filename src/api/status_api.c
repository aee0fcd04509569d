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
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "jobs/runner_pool.h"
#include "map/availability_list.h"
#include "queue/queue_table.h"
#include "stats/status.h"
#include "util/clock.h"
#include "util/compat.h"

/* The rows of queue_data.status() */
#define Anum_status_queue_id			1
#define Anum_status_ready				2
#define Anum_status_claimed				3
#define Anum_status_delayed				4
#define Anum_status_oldest_ready_age	5
#define Anum_status_running				6
#define Anum_status_counters			7	/* the first of JOB_COUNTERS */
#define Natts_status					(6 + JOB_COUNTERS)

/* The rows of queue_data.maps() */
#define Anum_maps_queue_id			1
#define Anum_maps_state				2
#define Anum_maps_ready				3
#define Anum_maps_unscanned			4
#define Anum_maps_ranges			5
#define Anum_maps_numbers			6
#define Anum_maps_uncertain			7
#define Anum_maps_lanes				8
#define Anum_maps_reservations		9
#define Anum_maps_claims_wait		10
#define Anum_maps_waiters			11
#define Anum_maps_incarnation		12
#define Anum_maps_next_visit		13
#define Anum_maps_full_scan_at		14
#define Natts_maps					14

PG_FUNCTION_INFO_V1(sql_queue_status);
PG_FUNCTION_INFO_V1(sql_queue_maps);

static bool *find_running(QueueStatus *list, int n);
static void put_status(ReturnSetInfo *rsinfo, const QueueStatus *status,
					   bool running, TimestampTz now);
static void put_map(ReturnSetInfo *rsinfo, const MapStatus *map);

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

		if (runners[i].database != MyDatabaseId ||
			runners[i].state != RUNNER_BUSY || runners[i].message_id == 0)
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
put_status(ReturnSetInfo *rsinfo, const QueueStatus *status, bool running,
		   TimestampTz now)
{
	Datum		values[Natts_status];
	bool		isnull[Natts_status] = {false};

#define SET(column, value) values[Anum_status_##column - 1] = (value)
	SET(queue_id, Int32GetDatum(status->queue_id));
	SET(ready, Int64GetDatum(status->depths[DEPTH_READY]));
	SET(claimed, Int64GetDatum(status->depths[DEPTH_CLAIMED]));
	SET(delayed, Int64GetDatum(status->depths[DEPTH_DELAYED]));
	SET(oldest_ready_age,
		Int32GetDatum(clock_seconds(status->oldest_free, now)));
	isnull[Anum_status_oldest_ready_age - 1] = status->oldest_free == DT_NOEND;
	SET(running, BoolGetDatum(running));
#undef SET
	for (int i = 0; i < JOB_COUNTERS; i++)
		values[Anum_status_counters - 1 + i] = Int64GetDatum(status->n[i]);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

/*
 * queue_data.status() returns setof record (the columns are listed above)
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
		put_status((ReturnSetInfo *) fcinfo->resultinfo, &list[i], running[i],
				   now);
	return (Datum) 0;
}

/* Return the row of an availability map. */
static void
put_map(ReturnSetInfo *rsinfo, const MapStatus *map)
{
	static const char *const states[] = {
		[MAP_STATE_FULL] = "full",
		[MAP_STATE_NEW] = "new",
		[MAP_STATE_COMPLETE] = "complete"
	};
	Datum		values[Natts_maps];
	bool		isnull[Natts_maps] = {false};

#define SET(column, value) values[Anum_maps_##column - 1] = (value)
#define IS_NULL(column) isnull[Anum_maps_##column - 1]
	SET(queue_id, Int32GetDatum(map->queue_id));
	SET(state, CStringGetTextDatum(states[map->state]));
	SET(ready, BoolGetDatum(map->ready));
	SET(unscanned, Int64GetDatum(map->unscanned));
	IS_NULL(unscanned) = map->unscanned < 0;
	SET(ranges, Int32GetDatum(map->ranges));
	SET(numbers, Int64GetDatum(map->numbers));
	IS_NULL(numbers) = map->numbers < 0;
	SET(uncertain, BoolGetDatum(map->uncertain));
	SET(lanes, Int32GetDatum(map->lanes));
	IS_NULL(lanes) = map->lanes < 0;
	SET(reservations, Int32GetDatum(map->reservations));
	SET(claims_wait, BoolGetDatum(map->claims_wait));
	SET(waiters, Int32GetDatum(map->waiters));
	SET(incarnation, Int64GetDatum((int64) map->incarnation));

	/* Some times that are only used inside are before all valid ones. */
	SET(next_visit,
		TimestampTzGetDatum(map->visit_at < MIN_TIMESTAMP ? DT_NOBEGIN :
							map->visit_at));
	IS_NULL(next_visit) = map->visit_at == DT_NOEND;
	SET(full_scan_at, TimestampTzGetDatum(map->full_scan_at));
#undef SET
#undef IS_NULL
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

/*
 * queue_data.maps() returns setof record (the columns are listed above)
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
		put_map((ReturnSetInfo *) fcinfo->resultinfo, &list[i]);
	return (Datum) 0;
}
