/*-------------------------------------------------------------------------
 *
 * lane_takes.h
 *	  Reading the ranges of several lanes at once.
 *
 * src/claim/lane_takes.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_LANE_TAKES_H
#define QUEUE_LANE_TAKES_H

#include "claim/claim_scan_internal.h"

/* What a claim takes of one of several lanes */
typedef struct LaneTake
{
	LaneId		lane;
	int			wanted;			/* messages that are missing */
	int			turn;			/* its index in ScanPass.turns */

	/* Set by lane_takes_scan() */
	MessageRange range;			/* that is reserved of it */
	int64		scanned_to;		/* the last number of it that was scanned */
} LaneTake;

extern void lane_takes_scan(ClaimScan *scan, LaneTake *takes, int n);
extern int	lane_takes_continue(ClaimScan *scan, LaneTake *takes, int n,
								int64 width);

#endif							/* QUEUE_LANE_TAKES_H */
