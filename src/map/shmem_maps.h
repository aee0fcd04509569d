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

/*
 * Flags of availability maps.  The bits of all maps are kept together, so
 * that a session finds the maps that have one without reading the others.
 * They are changed with the lock of the map held, and read without it.
 */
typedef enum MapFlag
{
	MAP_ARRIVALS,				/* listeners have to be notified */
	MAP_READY,					/* something may be free to claim */
	MAP_COUNTED,				/* counters have to be written */
	MAP_CLAIMED,				/* the worker has to learn of claims */
	MAP_FLAGS					/* number of flags */
} MapFlag;

/*
 * Maps that a session passes over, by their numbers: a bit for each, in its
 * own memory.
 */
typedef struct MapSet
{
	uint32		nwords;
	uint32	   *words;			/* in TopMemoryContext; NULL if none yet */
} MapSet;

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
extern uint64 shmem_maps_given(void);

/* Flags of maps */
extern void shmem_set_flag(const AvailabilityMap *map, MapFlag flag);
extern void shmem_clear_flag(const AvailabilityMap *map, MapFlag flag);
extern bool shmem_has_flag(const AvailabilityMap *map, MapFlag flag);
extern bool shmem_is_flagged(Oid extension, int32 queue_id, MapFlag flag);
extern uint32 shmem_first_map(uint32 i);
extern AvailabilityMap *shmem_next_flagged(MapFlag flag, uint32 *from);
extern AvailabilityMap *shmem_next_flagged_except(MapFlag flag,
												  const MapSet *except,
												  uint32 *from);
extern void shmem_map_set_add(MapSet *set, const AvailabilityMap *map);
extern void shmem_map_set_clear(MapSet *set);

#endif							/* QUEUE_SHMEM_MAPS_H */
