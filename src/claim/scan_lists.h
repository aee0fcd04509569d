/*-------------------------------------------------------------------------
 *
 * scan_lists.h
 *	  What a pass of a claim scan collects.
 *
 * src/claim/scan_lists.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SCAN_LISTS_H
#define QUEUE_SCAN_LISTS_H

#include "claim/claim_scan_internal.h"

extern void *scan_list_make_room(void *items, int n, int *size,
								 Size item_size);
extern void scan_list_add_message(ClaimScan *scan, ChosenMessages *list,
								  const ScanRow *row, bool locked);
extern void scan_list_add_busy(ClaimScan *scan, int64 id);
extern void scan_list_add_range(LaneRanges *list, const ScanRow *row);
extern void scan_list_add_delivered(ClaimScan *scan, const ScanRow *row);
extern void scan_list_sort_chosen(ChosenMessages *chosen);

#endif							/* QUEUE_SCAN_LISTS_H */
