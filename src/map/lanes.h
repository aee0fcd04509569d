/*-------------------------------------------------------------------------
 *
 * lanes.h
 *	  Lanes: the groups of a queue in which something may be free, in turn.
 *
 * src/map/lanes.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_LANES_H
#define QUEUE_LANES_H

#include "datatype/timestamp.h"

#include "map/availability.h"
#include "map/message_ranges.h"

/* The lanes of a queue, whose map is locked */
extern bool lanes_add(AvailabilityMap *map, LaneId lane,
					  const MessageRange *range, bool only_between);
extern bool lanes_give_back(AvailabilityMap *map, LaneId lane,
							const MessageRange *range);
extern bool lanes_take(AvailabilityMap *map, int64 width, LaneId *lane,
					   uint32 *changes, MessageRange *range);
extern bool lanes_take_more(AvailabilityMap *map, int64 width, LaneId lane,
							MessageRange *range);
extern bool lanes_end_turn(AvailabilityMap *map, LaneId lane);
extern void lanes_keep_turn(AvailabilityMap *map, LaneId lane);
extern void lanes_forget(AvailabilityMap *map);
extern int	lanes_list(const AvailabilityMap *map, MessageRange *ranges,
					   int max);

/* Groups with a bound */
extern bool lanes_add_delivered(AvailabilityMap *map, LaneId lane,
								const MessageRange *range);
extern bool lanes_make_room(AvailabilityMap *map, LaneId lane,
							const MessageRange *finished);
extern bool lanes_set_delivered(AvailabilityMap *map, LaneId lane,
								const MessageRange *old, int nold,
								const LaneRange *found, int nfound);
extern bool lanes_end(AvailabilityMap *map, LaneId lane, uint32 changes,
					  bool is_full, bool is_left, TimestampTz not_before);

/*
 * Groups with a rate.  A lane waits that long at most, because the rate may
 * be changed meanwhile.
 */
#define LANE_WAIT_MAX	(10 * USECS_PER_SEC)

extern int	lanes_wake(AvailabilityMap *map, TimestampTz now);

#endif							/* QUEUE_LANES_H */
