/*-------------------------------------------------------------------------
 *
 * ready.c
 *	  Which queues may have something to claim, according to shared memory.
 *
 * NOTES
 *	  An availability map whose queue may have something to claim has the flag
 *	  MAP_READY (shmem.c).  A queue without a map has no flag, so the flags
 *	  are a complete list only after the database's worker has given every
 *	  queue a map, and until one of these is evicted.  In shared memory
 *	  maps_evicted counts evictions, and maps_restored is what it was when the
 *	  worker last began to make all maps: the list is complete while they are
 *	  equal.  A caller reads maps_restored before it uses the list and
 *	  compares it with maps_evicted afterwards; if they differ, it visits all
 *	  queues.
 *
 *	  The flags are only hints: a flagged queue may be empty, so the caller
 *	  has to probe it or to claim from it.
 *
 * src/queue/ready.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "catalog/relations.h"
#include "queue/claim_scan.h"
#include "queue/ready.h"
#include "queue/registry.h"
#include "shmem/availability.h"
#include "shmem/database_state.h"
#include "shmem/shmem_maps.h"
#include "util/limits.h"

/*
 * Does every queue of this database that may be ready have its flag?
 * *generation is for ready_was_complete().
 */
bool
ready_is_complete(uint64 *generation)
{
	DatabaseState *database;

	if (!claim_scan_uses_map())
		return false;
	database_join();
	database = database_mine();
	if (database == NULL || database->pid == 0)
		return false;
	*generation = pg_atomic_read_u64(&database->maps_restored);
	return ready_was_complete(*generation);
}

/* Was that so all the time since ready_is_complete() was called? */
bool
ready_was_complete(uint64 generation)
{
	DatabaseState *database = database_mine();

	/* Read the counter after the flags that the caller has read. */
	pg_memory_barrier();
	return pg_atomic_read_u64(&database->maps_evicted) == generation;
}

/*
 * The id of the next queue with the flag, from *slot on, which is advanced;
 * 0 when there is none.  Takes no lock.
 */
int32
ready_next(Oid extension, uint32 *slot)
{
	AvailabilityMap *map;

	while ((map = shmem_next_flagged(MAP_READY, slot)) != NULL)
		if (map_database(map) == MyDatabaseId &&
			map_extension(map) == extension)
			return map_queue_id(map);
	return 0;
}

/*
 * The ids of all queues with the flag; a queue may be in the array twice.
 * They are collected before the caller probes the queues, because a probe
 * changes flags.
 */
int32 *
ready_queue_ids(int *n)
{
	Oid			extension = catalog_queue_oid();
	int			size = 64;
	int32	   *ids = palloc(size * sizeof(int32));
	uint32		slot = 0;
	int32		id;

	*n = 0;
	while ((id = ready_next(extension, &slot)) != 0)
	{
		if (*n == size)
		{
			size *= 2;
			ids = repalloc(ids, size * sizeof(int32));
		}
		ids[(*n)++] = id;
	}
	return ids;
}

/*
 * The ids of the queues that may be ready: those with the flag, or if the
 * list is not complete all queues of the project.
 */
int32 *
ready_candidates(const char *project, int *n)
{
	uint64		generation;
	QueueEntry *queues;
	int32	   *ids;

	if (ready_is_complete(&generation))
	{
		ids = ready_queue_ids(n);
		if (ready_was_complete(generation))
			return ids;
	}
	queues = queue_all(project, n);
	ids = palloc(Max(*n, 1) * sizeof(int32));
	for (int i = 0; i < *n; i++)
		ids[i] = queues[i].id;
	return ids;
}

/*
 * Has the queue something to claim, for the current role and in this project?
 * If so, sets its name, for which the caller has QUEUE_NAME_LENGTH + 1 bytes.
 */
bool
ready_is_claimable(int32 id, const char *project, char *name)
{
	char		found_project[QUEUE_PROJECT_LENGTH + 1];
	bool		paused;
	Queue		queue;

	return queue_name_of(id, found_project, name, &paused) && !paused &&
		strcmp(found_project, project) == 0 &&
		queue_find_as(name, GetUserId(), QUEUE_READ, &queue) == QUEUE_OK &&
		queue.id == id && claim_scan_probe(&queue, false);
}
