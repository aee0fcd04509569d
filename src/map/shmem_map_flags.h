/*-------------------------------------------------------------------------
 *
 * shmem_map_flags.h
 *	  Flags of availability maps.
 *
 * src/map/shmem_map_flags.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SHMEM_MAP_FLAGS_H
#define QUEUE_SHMEM_MAP_FLAGS_H

#include "nodes/bitmapset.h"

#include "map/availability.h"

typedef enum MapFlag
{
	MAP_ARRIVALS,				/* listeners have to be notified */
	MAP_READY,					/* something may be free to claim */
	MAP_COUNTED,				/* counters have to be written */
	MAP_FLAGS					/* number of flags */
} MapFlag;

extern void shmem_set_flag(const AvailabilityMap *map, MapFlag flag);
extern void shmem_clear_flag(const AvailabilityMap *map, MapFlag flag);
extern bool shmem_has_flag(const AvailabilityMap *map, MapFlag flag);
extern bool shmem_is_flagged(Oid extension, int32 queue_id, MapFlag flag);
extern AvailabilityMap *shmem_next_flagged(MapFlag flag,
										   const Bitmapset *except,
										   uint32 *from);

#endif							/* QUEUE_SHMEM_MAP_FLAGS_H */
