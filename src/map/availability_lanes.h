/*-------------------------------------------------------------------------
 *
 * availability_lanes.h
 *	  Reserving ranges of several lanes at once.
 *
 * src/map/availability_lanes.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_AVAILABILITY_LANES_H
#define QUEUE_AVAILABILITY_LANES_H

#include "map/availability.h"
#include "map/availability_reserve.h"
#include "map/message_ranges.h"

/* How many lanes a claim reserves at once, at most */
#define LANES_AT_ONCE	128

/* For a claim */
extern const LaneRange *availability_lanes(void);
extern void availability_give_back_lanes(const int64 *scanned_to,
										 const MessageRanges *passed,
										 TimestampTz now);
extern int	availability_more_of_lanes(const LaneId *wanted, int n,
									   int64 width);
extern void availability_end_turns(const LaneId *lanes, const bool *keeps,
								   int n);

/* For availability_reserve.c */
extern int	availability_add_lanes(AvailabilityMap *map,
								   const ReserveRequest *request,
								   int64 width, MessageRange *first);

#endif							/* QUEUE_AVAILABILITY_LANES_H */
