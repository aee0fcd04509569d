/*-------------------------------------------------------------------------
 *
 * availability_list.c
 *	  What the availability maps of a database say, for monitoring.
 *
 * NOTES
 *	  Each map is read under its lock, one after the other.  A queue whose map
 *	  is given back and made again meanwhile may be missing from the list, or
 *	  be in it twice.
 *
 * src/map/availability_list.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "map/availability.h"
#include "map/availability_list.h"
#include "map/shmem_maps.h"
#include "shmem/shmem.h"

static bool map_is_new(const AvailabilityMap *map);
static MapState state_of_map(const AvailabilityMap *map);
static void fill_status(const AvailabilityMap *map, MapStatus *status);

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
