/*-------------------------------------------------------------------------
 *
 * availability_list.c
 *	  What the availability maps of a database say, for monitoring.
 *
 * NOTES
 *	  Each map is read under its lock, one after the other.  A queue whose map
 *	  is evicted and made again meanwhile may be missing from the list, or be
 *	  in it twice.
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

static bool is_new(const AvailabilityMap *map);
static MapState state_of(const AvailabilityMap *map);
static void count_ranges(const AvailabilityMap *map, MapStatus *status);
static void read_map(const AvailabilityMap *map, MapStatus *status);

/*
 * Returns whether the map knows nothing of some numbers, which may have been
 * given to pushes before it was made or cleared.
 */
static bool
is_new(const AvailabilityMap *map)
{
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (map->next[p] < Min(map->end[p], map->uncertain_below))
			return true;
	for (int i = 0; i < map->ranges.n; i++)
		if (map->ranges.items[i].due == DUE_UNKNOWN)
			return true;
	return false;
}

static MapState
state_of(const AvailabilityMap *map)
{
	bool		learns = map->bound > 0 && !map->knows_delivered;

	/* There was no room for something that is free. */
	if (map->has_lanes && availability_pick_overflow(map) >= 0)
		return MAP_STATE_FULL;

	/* There was no room for something that was delivered. */
	if (learns && map->learn_at != 0)
		return MAP_STATE_FULL;
	return learns || is_new(map) ? MAP_STATE_NEW : MAP_STATE_COMPLETE;
}

/* Count the ranges, and the numbers that claims have to scan. */
static void
count_ranges(const AvailabilityMap *map, MapStatus *status)
{
	status->ranges = map->ranges.n;
	status->unscanned = status->numbers = -1;
	status->uncertain = false;
	for (int i = 0; i < map->ranges.n; i++)
		status->uncertain |= map->ranges.items[i].uncertain;

	/* It does not know then which numbers its queue has. */
	if (is_new(map))
		return;
	status->unscanned = status->numbers = 0;
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		status->unscanned += map->end[p] - map->next[p];
	for (int i = 0; i < map->ranges.n; i++)
		status->numbers += map->ranges.items[i].last -
			map->ranges.items[i].first + 1;
}

/* Read the status of a map, which is locked. */
static void
read_map(const AvailabilityMap *map, MapStatus *status)
{
	status->queue_id = map_queue_id(map);
	status->state = state_of(map);
	status->ready = shmem_has_flag(map, MAP_READY);
	count_ranges(map, status);
	status->lanes = map->has_lanes ? map->nlanes : -1;
	status->reservations = map->open;
	status->claims_wait = map->waiting;
	status->waiters = map->waiters;
	status->incarnation = map->incarnation;
	status->visit_at = map_wake_at(map);
	status->full_scan_at = map->full_scan_at;
}

/*
 * Returns the status of each map of this database, and their number in *n,
 * which is 0 without shared memory.
 */
MapStatus *
availability_list(int *n)
{
	Oid			extension = catalog_queue_oid();
	uint32		nmaps = shmem_exists() ? shmem_count_maps() : 0;
	MapStatus  *list = palloc_extended(Max(nmaps, 1) * sizeof(MapStatus),
									   MCXT_ALLOC_HUGE);

	*n = 0;
	for (uint32 i = 0; i < nmaps; i++)
	{
		AvailabilityMap *map = shmem_map_in_use(i);

		if (map_database(map) != MyDatabaseId)
			continue;
		LWLockAcquire(&map->lock, LW_SHARED);

		/* Another queue may have got the map before we locked it. */
		if (map_database(map) == MyDatabaseId &&
			map_extension(map) == extension)
			read_map(map, &list[(*n)++]);
		LWLockRelease(&map->lock);
	}
	return list;
}
