/*-------------------------------------------------------------------------
 *
 * scan_row.h
 *	  What a message is to a claim scan.
 *
 * src/claim/scan_row.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SCAN_ROW_H
#define QUEUE_SCAN_ROW_H

#include "claim/claim_scan_internal.h"

/* What a message is to a scan; the first that applies */
typedef enum MessageClass
{
	MESSAGE_OURS,				/* this pass has chosen or locked it before:
								 * the ranges that it scans may overlap */
	MESSAGE_CLAIMED,			/* it is in a live claim */
	MESSAGE_EXPIRED,			/* its lifetime is over */
	MESSAGE_DUPLICATE,			/* its deduplication key or its root job makes
								 * it unnecessary (dedup.c, root_job.c) */
	MESSAGE_EXHAUSTED,			/* claimed as often as its queue allows */
	MESSAGE_FREE				/* it can be claimed */
} MessageClass;

extern MessageClass scan_row_class(const ClaimScan *scan, const ScanRow *row);
extern bool scan_row_counts_as_claimed(const ScanRow *row,
									   MessageClass class);
extern bool scan_row_is_locked(const ScanRow *row);
extern bool scan_row_is_changing(const ScanRow *row);
extern bool scan_row_may_be_claimed(const ScanRow *row);
extern bool scan_row_is_of_lane(const ScanRow *row, LaneId lane);

#endif							/* QUEUE_SCAN_ROW_H */
