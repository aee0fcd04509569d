/*-------------------------------------------------------------------------
 *
 * whole_scan.h
 *	  A claim scan that reads all of a queue.
 *
 * src/claim/whole_scan.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_WHOLE_SCAN_H
#define QUEUE_WHOLE_SCAN_H

#include "claim/claim_scan_internal.h"

extern void whole_scan_pass(ClaimScan *scan);

#endif							/* QUEUE_WHOLE_SCAN_H */
