/*-------------------------------------------------------------------------
 *
 * map_check.c
 *	  What holds of each availability map while it is not locked.
 *
 * NOTES
 *	  For builds with assertions: a map is checked as it is unlocked.  Of its
 *	  lanes only the first ones are, or the check of a queue with very many
 *	  would take too long.
 *
 * src/map/map_check.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "map/availability.h"
#include "map/lanes_table.h"
#include "map/map_check.h"

#ifdef USE_ASSERT_CHECKING

/* How many lanes of a ring are checked */
#define LANES_CHECKED	4

/* The ranges of the map, and the numbers that were never reserved */
static void
check_ranges(const AvailabilityMap *map)
{
	Assert(map->ranges.n >= 0 && map->ranges.n <= MESSAGE_RANGES_MAX);
	for (int i = 0; i < map->ranges.n; i++)
	{
		const MessageRange *range = &map->ranges.items[i];

		Assert(range->first <= range->last && range->last < NUMBERS_END);
		Assert(range->priority >= 0 && range->priority < QUEUE_PRIORITIES);
	}
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		Assert(map->next[p] <= map->end[p]);

	/* The rest of a block is below all numbers that no push was given. */
	Assert(map->block_next <= map->block_end);
}

/* Reservations, and sessions that wait */
static void
check_sessions(const AvailabilityMap *map)
{
	Assert(map->open >= 0 && map->waiters >= 0);
	Assert(map->open_overflow >= 0 && map->open_overflow <= map->open);

	/*
	 * The last one to close a reservation wakes those that wait for it; and
	 * so does the worker when it has moved the delayed messages that are due.
	 */
	Assert(!map->waiting || map->open > 0 || map->delayed.due != DT_NOEND);
}

/* A lane of a ring */
static void
check_lane(const AvailabilityMap *map, const Lane *entry)
{
	Assert(entry->map == map->number);
	Assert(!lane_equals(entry->lane, LANE_OF_OVERFLOW));
	Assert(lane_at(entry->next)->previous == entry->number);
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		Assert((entry->pieces[p].first == 0) == (entry->pieces[p].last == 0));
}

static void
check_lanes(const AvailabilityMap *map)
{
	EntryNumber number = map->first_lane;

	/* Where there are no lanes, nothing has room in them. */
	Assert(map->has_lanes ||
		   (map->first_lane == 0 && map->first_resting == 0 &&
			map->waiting_lanes == 0 && map->open_overflow == 0));
	Assert((map->nlanes == 0) == (map->first_lane == 0));
	for (int i = 0; i < Min(map->nlanes, LANES_CHECKED); i++)
	{
		const Lane *entry = lane_at(number);

		check_lane(map, entry);
		Assert(entry->state == LANE_HAS_TURN && !entry->is_full);
		number = entry->next;
	}
	number = map->first_resting;
	for (int i = 0; number != 0 && i < LANES_CHECKED; i++)
	{
		const Lane *entry = lane_at(number);

		check_lane(map, entry);
		Assert(entry->state == LANE_TAKEN || entry->state == LANE_FULL ||
			   entry->state == LANE_EMPTY);

		/* Without a bound no lane rests, and none is taken for good. */
		Assert(map->bound > 0);
		number = entry->next;
	}
	if (map->waiting_lanes != 0)
	{
		const Lane *first = lane_at(map->waiting_lanes);

		Assert(first->state == LANE_WAITS && first->not_before != 0);
		Assert(first->parent == 0);
		Assert(first->previous == 0 ||
			   lane_at(first->previous)->not_before >= first->not_before);
		Assert(first->next == 0 ||
			   lane_at(first->next)->not_before >= first->not_before);
	}
}

void
map_check(const AvailabilityMap *map)
{
	Assert(map_is_locked(map));
	check_ranges(map);
	check_sessions(map);
	check_lanes(map);
}

#endif
