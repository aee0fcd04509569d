/*-------------------------------------------------------------------------
 *
 * lane_scan.h
 *	  Groups and their turns, with an availability map.
 *
 * src/claim/lane_scan.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_LANE_SCAN_H
#define QUEUE_LANE_SCAN_H

#include "claim/claim_scan_internal.h"

extern bool lane_scan_has_lanes(const ClaimScan *scan);
extern void lane_scan_end(ClaimScan *scan);
extern void lane_scan_pass(ClaimScan *scan);
extern bool lane_scan_give_due(ClaimScan *scan);
extern bool lane_scan_is_of_lane(const ClaimScan *scan, const ScanRow *row);
extern void lane_scan_free_row(ClaimScan *scan, const ScanRow *row);
extern void lane_scan_delivered_row(ClaimScan *scan, const ScanRow *row);
extern void lane_scan_count_row(ClaimScan *scan, const ScanRow *row,
								bool is_live, bool is_free, bool is_locked,
								bool is_changing);

#endif							/* QUEUE_LANE_SCAN_H */
