/*-------------------------------------------------------------------------
 *
 * victim.h
 *	  Which availability map is evicted when there is no room for another.
 *
 * src/map/victim.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_VICTIM_H
#define QUEUE_VICTIM_H

#include "map/availability.h"

extern bool victim_has_depths(const AvailabilityMap *map);
extern bool victim_is_idle(const AvailabilityMap *map);
extern AvailabilityMap *victim_find(EntryNumber *hand, uint32 n,
									bool only_idle);

#endif							/* QUEUE_VICTIM_H */
