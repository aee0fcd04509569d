/*-------------------------------------------------------------------------
 *
 * shmem.h
 *	  Shared memory: where the availability maps of queues live.
 *
 * src/shmem/shmem.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SHMEM_H
#define QUEUE_SHMEM_H

#include "storage/condition_variable.h"
#include "storage/lwlock.h"

#include "shmem/availability.h"
#include "shmem/database_state.h"

/*
 * Bits of availability maps that are kept apart, so that those that have one are found
 * without looking at all; changed with the availability map's lock held.
 */
typedef enum MapFlag
{
	MAP_ARRIVALS,				/* listeners are to be notified */
	MAP_READY,				/* there may be something to claim */
	MAP_COUNTED,				/* counts are to be written */
	MAP_FLAGS				/* how many there are */
} MapFlag;

extern void shmem_init(void);
extern bool shmem_exists(void);
extern TimestampTz shmem_started_at(void);
extern AvailabilityMap *shmem_find_map(Oid extension, int32 queue_id);
extern AvailabilityMap *shmem_get_map(int32 queue_id);
extern void shmem_for_each_map(Oid extension,
								  void (*function) (AvailabilityMap *map,
													TimestampTz now));
extern ConditionVariable *shmem_closing(const AvailabilityMap *map);
extern uint64 shmem_next_incarnation(void);
extern bool shmem_is_crowded(const AvailabilityMap *map);
extern uint32 shmem_count_maps(void);
extern AvailabilityMap *shmem_map_in_use(uint32 i);
extern DatabaseState *shmem_database(Oid database);
extern void shmem_set_flag(const AvailabilityMap *map, MapFlag flag);
extern void shmem_clear_flag(const AvailabilityMap *map, MapFlag flag);
extern bool shmem_has_flag(const AvailabilityMap *map, MapFlag flag);
extern uint32 shmem_wrap(uint32 i);
extern AvailabilityMap *shmem_next_flagged(MapFlag flag, uint32 *from);
extern DatabaseState *shmem_databases(void);
extern LWLock *shmem_database_lock(void);
extern pg_atomic_uint32 *shmem_launcher(void);
extern pg_atomic_uint32 *shmem_new_databases(void);
extern bool shmem_is_flagged(Oid extension, int32 queue_id, MapFlag flag);

#endif							/* QUEUE_SHMEM_H */
