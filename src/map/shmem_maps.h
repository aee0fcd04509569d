/*-------------------------------------------------------------------------
 *
 * shmem_maps.h
 *	  The availability maps of all queues, in shared memory.
 *
 * src/map/shmem_maps.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SHMEM_MAPS_H
#define QUEUE_SHMEM_MAPS_H

#include "storage/condition_variable.h"

#include "map/availability.h"
#include "map/shmem_map_flags.h"

extern void shmem_maps_init(void);
extern void shmem_maps_attach(void);

/* After the end of a transaction */
extern bool shmem_hold_maps(void);
extern AvailabilityMap *shmem_remembered_map(Oid extension, int32 queue_id);
extern void shmem_release_maps(void);
extern void shmem_miss(Oid extension, int32 queue_id);
extern void shmem_miss_all(void);

/* The map of a queue */
extern AvailabilityMap *shmem_find_map(Oid extension, int32 queue_id);
extern AvailabilityMap *shmem_get_map(int32 queue_id);
extern AvailabilityMap *shmem_get_spare_map(int32 queue_id);
extern bool shmem_has_room(void);
extern void shmem_evict_first(Oid extension, int32 queue_id);
extern uint64 shmem_next_incarnation(void);
extern ConditionVariable *shmem_close_condition(const AvailabilityMap *map);
extern bool shmem_add_waiter(AvailabilityMap *map);
extern void shmem_remove_waiter(AvailabilityMap *map);

/* All maps */
extern void shmem_for_each_map(Oid extension,
							   void (*function) (AvailabilityMap *map,
												 TimestampTz now));
extern void shmem_clear_maps(Oid database, Oid except);
extern uint32 shmem_count_maps(void);
extern AvailabilityMap *shmem_map_in_use(uint32 i);
extern void *shmem_map_extras(int part);
extern uint64 shmem_maps_given(void);

#endif							/* QUEUE_SHMEM_MAPS_H */
