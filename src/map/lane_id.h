/*-------------------------------------------------------------------------
 *
 * lane_id.h
 *	  What stands for a group.
 *
 * src/map/lane_id.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_LANE_ID_H
#define QUEUE_LANE_ID_H

/* A struct, so that no other number is taken for a lane */
typedef struct LaneId
{
	uint64		hash;			/* of the group's key (storage/lane.c), unless
								 * it is one of these two */
} LaneId;

/* The lane of the messages without a group key */
#define LANE_WITHOUT_KEY	((LaneId) {0})

/* For what has no room in lanes, or is of several */
#define LANE_OF_OVERFLOW	((LaneId) {1})

static inline bool
lane_equals(LaneId a, LaneId b)
{
	return a.hash == b.hash;
}

/* Returns whether it is the lane of one group. */
static inline bool
lane_is_group(LaneId lane)
{
	return lane.hash > LANE_OF_OVERFLOW.hash;
}

#endif							/* QUEUE_LANE_ID_H */
