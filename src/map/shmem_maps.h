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
#include "shmem/shmem.h"

/* Set-up */
extern SharedArea maps_area;
extern void shmem_maps_init(void);
extern void shmem_register_owner(Oid (*function) (int32 queue_id));

/* The map of a queue */
extern AvailabilityMap *shmem_find_map(Oid extension, int32 queue_id);
extern AvailabilityMap *shmem_get_map(int32 queue_id);
extern bool shmem_has_room(void);
extern void shmem_give_back_map(Oid extension, int32 queue_id);
extern uint64 shmem_next_incarnation(void);
extern ConditionVariable *shmem_close_condition(const AvailabilityMap *map);

/* For the worker: that of a queue for which there is no room */
extern AvailabilityMap *shmem_borrow_map(int32 queue_id);
extern void shmem_return_map(Oid extension, int32 queue_id);

/* All maps */
extern void shmem_for_each_map(Oid extension,
							   void (*function) (AvailabilityMap *map));
extern void shmem_clear_maps(Oid database, Oid except);
extern uint32 shmem_count_maps(void);
extern AvailabilityMap *shmem_map_in_use(uint32 i);
extern uint32 shmem_places_used(void);
extern uint64 shmem_maps_given(void);
extern pg_atomic_uint32 *shmem_flag_words(MapFlag flag);

#endif							/* QUEUE_SHMEM_MAPS_H */
