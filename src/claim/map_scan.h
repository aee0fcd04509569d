/*-------------------------------------------------------------------------
 *
 * map_scan.h
 *	  A claim scan that takes one range of the availability map at a time.
 *
 * src/claim/map_scan.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MAP_SCAN_H
#define QUEUE_MAP_SCAN_H

#include "claim/claim_scan_internal.h"

extern void map_scan_pass(ClaimScan *scan);
extern void map_scan_probe(ClaimScan *scan);

#endif							/* QUEUE_MAP_SCAN_H */
