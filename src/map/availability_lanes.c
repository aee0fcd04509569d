/*-------------------------------------------------------------------------
 *
 * availability_lanes.c
 *	  Reserving ranges of several lanes at once.
 *
 * NOTES
 *	  A claim of many messages of a queue without a bound reserves a range of
 *	  each of many lanes, and reads all of them with one snapshot
 *	  (lane_takes.c).  These ranges are part of the reservation that
 *	  availability_reserve() has opened, and are given back together.
 *
 * src/map/availability_lanes.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "map/availability.h"
#include "map/availability_lanes.h"
#include "map/availability_reserve.h"
#include "map/lanes.h"
#include "shmem/shmem.h"

/* What this session has reserved, in the order of the turns */
static struct
{
	AvailabilityMap *map;
	int			n;				/* 0 if none are reserved, or one alone is */
	bool		reorders;		/* a lane that was taken had no more, so that
								 * its turn is not where it was */
	LaneRange	lanes[LANES_AT_ONCE];
}			reserved;

/*
 * A range of a lane was reserved: reserve one of each of the lanes that have
 * the next turns, too, as many as the request says.  Returns how many lanes
 * are reserved then.  If these are several, the first range becomes empty,
 * because it is one of these.
 */
int
availability_add_lanes(AvailabilityMap *map, const ReserveRequest *request,
					   int64 width, MessageRange *first)
{
	/* No lane is to be taken twice. */
	int			max = Min(Min(request->max_lanes, request->nlanes),
						  LANES_AT_ONCE);
	uint32		changes;		/* of no use without a bound */
	int			n = 1;

	Assert(map_is_locked(map) && reserved.n == 0);
	while (n < max && lanes_take(map, width, &reserved.lanes[n].lane,
								 &changes, &reserved.lanes[n].range))
		n++;
	if (n == 1)
		return n;
	reserved.lanes[0].lane = request->lane;
	reserved.lanes[0].range = *first;
	first->last = first->first - 1;
	reserved.map = map;
	reserved.reorders = map->nlanes < request->nlanes;
	return reserved.n = n;
}

/* Returns what is reserved of several lanes. */
const LaneRange *
availability_lanes(void)
{
	return reserved.lanes;
}

/*
 * If ranges of several lanes are reserved: the caller has scanned each of them
 * up to that number (NULL: nothing of them).  Give back the rest, and the
 * messages that may be free later ("passed").  The reservation stays open.
 */
void
availability_give_back_lanes(const int64 *scanned_to,
							 const MessageRanges *passed, TimestampTz now)
{
	AvailabilityMap *map = reserved.map;
	int			n = reserved.n;

	if (n == 0)
		return;
	reserved.n = 0;
	shmem_lock(&map->lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		MessageRange rest = reserved.lanes[i].range;

		if (scanned_to != NULL)
			rest.first = Max(rest.first, scanned_to[i] + 1);

		/* If there is no space in the lane, the rest becomes overflow. */
		if (rest.first <= rest.last &&
			!lanes_give_back(map, reserved.lanes[i].lane, &rest))
			availability_add_overflow(map, &rest, now);
	}

	/* We do not know to which lanes these belong. */
	for (int i = 0; i < passed->n; i++)
		availability_add_range(map, LANE_OF_OVERFLOW, &passed->items[i], now);
	availability_unlock_returned(map);
}

/*
 * The claim has given these ranges back, and its reservation is still open:
 * reserve another range of each of n lanes that has more, whether or not it
 * is its turn.  Returns how many have; they are in the same order.
 */
int
availability_more_of_lanes(const LaneId *lanes, int n, int64 width)
{
	AvailabilityMap *map = reserved.map;

	Assert(reserved.n == 0 && availability_is_reserving());
	shmem_lock(&map->lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		LaneRange  *next = &reserved.lanes[reserved.n];

		next->lane = lanes[i];
		if (lanes_take_more(map, width, lanes[i], &next->range))
			reserved.n++;
	}
	reserved.reorders = true;
	availability_reservations++;
	LWLockRelease(&map->lock);
	return reserved.n;
}

/*
 * The claim is done with the n lanes that it has reserved first: those that
 * keep their turns are the first ones again, and the others the last ones, in
 * the same order.
 */
void
availability_end_turns(const LaneId *lanes, const bool *keeps, int n)
{
	AvailabilityMap *map = reserved.map;
	bool		any_keeps = false;

	Assert(reserved.n == 0 && availability_is_reserving());
	for (int i = 0; i < n; i++)
		any_keeps |= keeps[i];
	if (!any_keeps && !reserved.reorders)
		return;
	shmem_lock(&map->lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
		if (!keeps[i])
			(void) lanes_end_turn(map, lanes[i]);
	for (int i = n - 1; i >= 0; i--)
		if (keeps[i])
			lanes_keep_turn(map, lanes[i]);
	LWLockRelease(&map->lock);
}
