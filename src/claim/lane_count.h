/*-------------------------------------------------------------------------
 *
 * lane_count.h
 *	  How many messages of a lane may be taken: groups with a bound.
 *
 * src/claim/lane_count.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_LANE_COUNT_H
#define QUEUE_LANE_COUNT_H

#include "claim/claim_scan_internal.h"

extern int	lane_count_open(ClaimScan *scan, LaneTurn *turn,
							const MessageRange *range, uint32 changes,
							int wanted);
extern void lane_count_close(ClaimScan *scan, LaneTurn *turn, bool is_full);

#endif							/* QUEUE_LANE_COUNT_H */
