/*-------------------------------------------------------------------------
 *
 * lane_scan.h
 *	  A claim scan that takes the groups of a queue in turn, with a map.
 *
 * src/claim/lane_scan.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_LANE_SCAN_H
#define QUEUE_LANE_SCAN_H

#include "claim/claim_scan_internal.h"

extern bool lane_scan_has_lanes(ClaimScan *scan);
extern void lane_scan_pass(ClaimScan *scan);
extern bool lane_scan_give_due(ClaimScan *scan);

#endif							/* QUEUE_LANE_SCAN_H */
