/*-------------------------------------------------------------------------
 *
 * availability_view.c
 *	  What availability maps say, for a session that reserves nothing.
 *
 * NOTES
 *	  See availability.c for the design.  A probe, which reserves nothing,
 *	  scans what a claim would scan.  A claim that finds only reservations of
 *	  other sessions, or delayed messages that the worker is about to move,
 *	  waits until a reservation is closed.
 *
 *	  For monitoring, each map of a database is read under its lock, one after
 *	  the other.  A queue whose map is given back and made again meanwhile may
 *	  be missing from the list, or be in it twice.
 *
 * src/map/availability_view.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "map/availability.h"
#include "map/availability_groups.h"
#include "map/availability_reserve.h"
#include "map/availability_view.h"
#include "map/lanes.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "util/clock.h"
#include "util/compat.h"

/* Ranges of lanes that a view shows */
#define LIST_LANES_MAX	(VIEW_RANGES_MAX - MESSAGE_RANGES_MAX - QUEUE_PRIORITIES)

#define WAIT_MAX		1000	/* ms, for other sessions' reservations */
#define WAIT_STEP		10		/* ms */

static void fill_view(AvailabilityMap *map, TimestampTz now,
					  AvailabilityView *view);
static void sleep_until_close(AvailabilityMap *map);
static bool map_is_new(const AvailabilityMap *map);
static MapState state_of_map(const AvailabilityMap *map);
static void fill_status(const AvailabilityMap *map, MapStatus *status);

/* --- One map --- */

/*
 * View what a claim would scan now, for a probe, which reserves nothing and
 * reports nothing to the map.  Returns false if there is no room for a map.
 */
bool
availability_view(int32 queue_id, bool has_lanes, TimestampTz now,
				  AvailabilityView *view)
{
	AvailabilityMap *map = shmem_get_map(queue_id);

	if (map == NULL)
		return false;

	/* Probes of groups with a bound take lanes instead. */
	if (has_lanes)
		availability_set_lanes(map, -1);
	fill_view(map, now, view);
	(void) availability_check_ready(map, now);
	LWLockRelease(&map->lock);
	return true;
}

/*
 * View what a claim would scan now, and change nothing: for monitoring.
 * Returns false if the queue has no map.
 */
bool
availability_peek(int32 queue_id, TimestampTz now, AvailabilityView *view)
{
	AvailabilityMap *map = shmem_find_map(catalog_queue_oid(), queue_id);

	if (map == NULL)
		return false;
	fill_view(map, now, view);
	LWLockRelease(&map->lock);
	return true;
}

/* Fill a view of a map, which is locked. */
static void
fill_view(AvailabilityMap *map, TimestampTz now, AvailabilityView *view)
{
	view->n = lanes_list(map, view->ranges, LIST_LANES_MAX);
	view->incomplete = view->n > LIST_LANES_MAX;
	view->n = Min(view->n, LIST_LANES_MAX);
	for (int i = 0; i < map->ranges.n; i++)
		if (map->ranges.items[i].due <= now || map->ranges.items[i].is_locked)
			view->ranges[view->n++] = map->ranges.items[i];
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (map->next[p] < map->end[p])
		{
			MessageRange *range = &view->ranges[view->n++];

			memset(range, 0, sizeof(MessageRange));
			range->priority = p;
			range->first = map->next[p];
			range->last = map->end[p] - 1;
		}
	view->others = map->open > 0;
	view->awaits_move = availability_awaits_move(map, now);
}

/*
 * Returns whether delayed messages are due that the worker is about to move.
 * The map is locked.
 */
bool
availability_awaits_move(const AvailabilityMap *map, TimestampTz now)
{
	/* A map that knows nothing may have nothing that is due. */
	return map->delayed.due > DUE_UNKNOWN && map->delayed.due <= now &&
		database_has_worker();
}

/*
 * Wait until another session closes a reservation of the queue, or none has
 * one open and the worker has nothing to move nor to read for its lanes; for
 * WAIT_STEP at most.  Returns
 * false if the waits of the call have taken WAIT_MAX together, or if the queue
 * has no map any more.  *until is 0 before the first wait of a call.
 */
bool
availability_wait_for_close(int32 queue_id, int64 *until)
{
	AvailabilityMap *map = shmem_find_map(catalog_queue_oid(), queue_id);
	int64		now = clock_monotonic();

	if (*until == 0)
		*until = now + WAIT_MAX * 1000;
	if (map == NULL)
		return false;
	LWLockRelease(&map->lock);
	if (now >= *until)
		return false;
	sleep_until_close(map);
	CHECK_FOR_INTERRUPTS();
	return true;
}

static void
sleep_until_close(AvailabilityMap *map)
{
	ConditionVariable *closing = shmem_close_condition(map);
	bool		waits;

	Assert(availability_may_wait());

	/* First, so that a close after our test of the map wakes us. */
	ConditionVariablePrepareToSleep(closing);
	shmem_lock(&map->lock, LW_EXCLUSIVE);
	waits = map->open > 0 ||
		availability_awaits_move(map, GetCurrentTimestamp());
	map->waiting |= waits;

	/* Nothing wakes us when the worker has read the queue: ask again. */
	waits |= availability_is_learning(map);
	LWLockRelease(&map->lock);
	if (waits)
		ConditionVariableTimedSleep(closing, WAIT_STEP,
									compat_wait_event("QueueAvailabilityMap"));
	ConditionVariableCancelSleep();
}

/* --- All maps of a database --- */

/*
 * Returns whether the map knows nothing of some numbers, which may have been
 * given to pushes before it was made or cleared.
 */
static bool
map_is_new(const AvailabilityMap *map)
{
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (map->next[p] == 0 && map->end[p] > 0)
			return true;
	for (int i = 0; i < map->ranges.n; i++)
		if (map->ranges.items[i].due == DUE_UNKNOWN)
			return true;
	return false;
}

static MapState
state_of_map(const AvailabilityMap *map)
{
	bool		learns = map->bound > 0 && !map->knows_delivered;

	/* There was no room for something that is free. */
	if (map->has_lanes && availability_pick_overflow(map) >= 0)
		return MAP_STATE_FULL;

	/* There was no room for something that was delivered. */
	if (learns && map->learn_at != 0)
		return MAP_STATE_FULL;
	return learns || map_is_new(map) ? MAP_STATE_NEW : MAP_STATE_COMPLETE;
}

/* Read the status of a map, which is locked. */
static void
fill_status(const AvailabilityMap *map, MapStatus *status)
{
	/* A new map does not know which numbers its queue has. */
	bool		knows_numbers = !map_is_new(map);

	status->queue_id = map_queue_id(map);
	status->state = state_of_map(map);
	status->ready = shmem_has_flag(map, MAP_READY);
	status->lanes = map->has_lanes ? map->nlanes : -1;
	status->reservations = map->open;
	status->claims_wait = map->waiting;
	status->waiters = map->waiters;
	status->incarnation = map->incarnation;
	status->visit_at = map_wake_at(map);
	status->ranges = map->ranges.n;
	status->unscanned = status->numbers = knows_numbers ? 0 : -1;
	status->uncertain = false;
	for (int p = 0; p < QUEUE_PRIORITIES && knows_numbers; p++)
		status->unscanned += map->end[p] - map->next[p];
	for (int i = 0; i < map->ranges.n; i++)
	{
		const MessageRange *range = &map->ranges.items[i];

		status->uncertain |= range->is_locked;
		if (knows_numbers)
			status->numbers += range->last - range->first + 1;
	}
}

/* Returns the status of each map of this database, and their number in *n. */
MapStatus *
availability_list(int *n)
{
	Oid			extension = catalog_queue_oid();
	uint32		nmaps = shmem_count_maps();
	MapStatus  *list = palloc_extended(Max(nmaps, 1) * sizeof(MapStatus),
									   MCXT_ALLOC_HUGE);

	*n = 0;
	for (uint32 i = 0; i < nmaps; i++)
	{
		AvailabilityMap *map = shmem_map_in_use(i);

		if (map_database(map) != MyDatabaseId)
			continue;
		shmem_lock(&map->lock, LW_SHARED);

		/* Another queue may have got the map before we locked it. */
		if (map_database(map) == MyDatabaseId &&
			map_extension(map) == extension)
			fill_status(map, &list[(*n)++]);
		LWLockRelease(&map->lock);
	}
	return list;
}
