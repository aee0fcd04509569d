/*-------------------------------------------------------------------------
 *
 * map_check.h
 *	  What holds of each availability map while it is not locked.
 *
 * src/map/map_check.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MAP_CHECK_H
#define QUEUE_MAP_CHECK_H

#include "map/availability.h"

/* Assert that; the map is about to be unlocked. */
#ifdef USE_ASSERT_CHECKING
extern void map_check(const AvailabilityMap *map);
#else
#define map_check(map)	((void) 0)
#endif

#endif							/* QUEUE_MAP_CHECK_H */
