/*-------------------------------------------------------------------------
 *
 * availability_groups.h
 *	  The availability maps of queues with groups.
 *
 * src/map/availability_groups.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_AVAILABILITY_GROUPS_H
#define QUEUE_AVAILABILITY_GROUPS_H

#include "datatype/timestamp.h"

#include "map/availability.h"
#include "map/message_ranges.h"

/* Groups with a bound */
extern void availability_make_room(Oid extension, int32 queue_id, LaneId lane,
								   const MessageRange *finished,
								   int64 nmessages);
extern bool availability_is_first(int32 queue_id, LaneId lane,
								  const MessageRange *range);
extern bool availability_knows_delivered(int32 queue_id, int bound,
										 bool *learns);
extern uint64 availability_begin_delivered(int32 queue_id, int bound);
extern void availability_end_delivered(int32 queue_id, uint64 incarnation,
									   bool is_unknown);
extern void availability_learn_delivered(int32 queue_id,
										 const LaneRange *ranges, int n);
extern int	availability_list_delivered(int32 queue_id, LaneId lane,
										MessageRange *ranges, int max);
extern void availability_set_delivered(int32 queue_id, LaneId lane,
									   const MessageRange *old, int nold,
									   const LaneRange *found, int nfound);
extern void availability_end_lane(int32 queue_id, LaneId lane,
								  uint32 changes, bool is_full, bool is_left,
								  TimestampTz not_before);
extern void availability_wake_lanes(int32 queue_id);

/* Inside src/map */
extern bool availability_set_lanes(AvailabilityMap *map, int bound);
extern bool availability_is_learning(const AvailabilityMap *map);
extern void availability_log_forgotten(int32 queue_id);

#endif							/* QUEUE_AVAILABILITY_GROUPS_H */
