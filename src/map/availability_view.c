/*-------------------------------------------------------------------------
 *
 * availability_view.c
 *	  What an availability map says, for a session that reserves nothing.
 *
 * NOTES
 *	  See availability.c for the design.  A probe, which reserves nothing,
 *	  scans what a claim would scan.  A claim that finds only reservations of
 *	  other sessions, or delayed messages that the worker is about to move,
 *	  waits until a reservation is closed.
 *
 * src/map/availability_view.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
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
