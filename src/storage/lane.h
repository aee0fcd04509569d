/*-------------------------------------------------------------------------
 *
 * lane.h
 *	  The lanes of groups: the numbers that stand for group keys.
 *
 * src/storage/lane.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_LANE_H
#define QUEUE_LANE_H

#include "map/lane_id.h"

extern void lane_prepare(int32 queue_id);
extern LaneId lane_of_key(int32 queue_id, const char *key, int length);

#endif							/* QUEUE_LANE_H */
