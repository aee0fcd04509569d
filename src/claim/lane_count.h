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

extern int	lane_count_open(ClaimScan *scan, GroupTurn *turn,
							const MessageRange *range, uint32 changes,
							int wanted);
extern void lane_count_row(ClaimScan *scan, GroupCount *count,
						   const ScanRow *row);
extern void lane_count_close(ClaimScan *scan, GroupTurn *turn, bool is_full);
extern void lane_count_end(ClaimScan *scan);

#endif							/* QUEUE_LANE_COUNT_H */
