/*-------------------------------------------------------------------------
 *
 * ready.c
 *	  Which queues may have something to claim, according to shared memory.
 *
 * NOTES
 *	  An availability map whose queue may have something to claim has the flag
 *	  MAP_READY (shmem_map_flags.c).  A queue without a map has no flag, so the
 *	  flags are a complete list only after the database's worker has given a
 *	  map to every queue that may have messages, and while each of these has
 *	  one.  In shared memory maps_missing counts how often one has none, and
 *	  maps_restored is what it was when the worker last began to make all maps:
 *	  the list is complete while they are equal.  A caller reads maps_restored
 *	  before it uses the list and compares it with maps_missing afterwards; if
 *	  they differ, it lists all queues, and visits those with the flag, and
 *	  unless the depths are known, those without a map.
 *
 *	  The flags are only hints: a flagged queue may be empty, so the caller
 *	  has to probe it or to claim from it.
 *
 *	  A session may be allowed to claim from few of the queues that are ready.
 *	  It looks at each of the others once, at the owner and the grants in the
 *	  row, and from then on passes over their maps.  It does so until an
 *	  invalidation message says that a queue or a role has changed, a map is
 *	  given to another queue, or the session's role or project changes.
 *
 * src/claim/ready.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "catalog/relations.h"
#include "claim/claim_scan.h"
#include "claim/ready.h"
#include "map/availability.h"
#include "map/shmem_maps.h"
#include "queue/registry.h"
#include "shmem/database_state.h"
#include "util/limits.h"
#include "util/settings.h"

/* The maps that a session passes over are good as long as this is the same */
typedef struct PassedOverKey
{
	Oid			extension;
	Oid			role;
	uint64		generation;		/* catalog_generation() */
	uint64		memberships;	/* the number below */
	uint64		given;			/* shmem_maps_given() */
	char		project[QUEUE_PROJECT_LENGTH + 1];
} PassedOverKey;

static PassedOverKey passed_over_key;
static Bitmapset *passed_over = NULL;

/* A number that changes when the members of a role may have changed */
static uint64 memberships = 0;

/* For what is read of one queue */
static MemoryContext check_context = NULL;

static bool maps_have_flags(void);
static void memberships_changed(Datum arg, int cacheid, uint32 hashvalue);
static bool map_is_claimable(const AvailabilityMap *map,
							 QueueSummary *summary, Queue *queue);

/*
 * Returns whether every map of this database whose queue may be ready has the
 * flag.
 */
static bool
maps_have_flags(void)
{
	if (!claim_scan_uses_map())
		return false;
	database_join();

	/* Only the worker notices what comes due, and gives each queue a map. */
	return database_has_worker();
}

/*
 * Returns whether every queue of this database that may be ready has its
 * flag.  *generation is for ready_was_complete().
 */
bool
ready_is_complete(uint64 *generation)
{
	DatabaseState *database = maps_have_flags() ? database_mine() : NULL;

	if (database == NULL)
		return false;
	*generation = pg_atomic_read_u64(&database->maps_restored);
	return ready_was_complete(*generation);
}

/*
 * Returns whether the flags have been complete since the call of
 * ready_is_complete() that has set this generation.
 */
bool
ready_was_complete(uint64 generation)
{
	DatabaseState *database = database_mine();

	/* Read the counter after the flags that the caller has read. */
	pg_memory_barrier();
	return database != NULL &&
		pg_atomic_read_u64(&database->maps_missing) == generation;
}

/*
 * Returns whether a queue may be ready, when the flags are not complete: one
 * without a map may be, unless it is known to have no messages, but one with a
 * map and no flag is not.
 */
bool
ready_may_be(int32 queue_id)
{
	return !maps_have_flags() ||
		shmem_is_flagged(catalog_queue_oid(), queue_id, MAP_READY);
}

/*
 * The ids of all queues with the flag; a queue may be in the list twice.
 * They are collected before the caller probes the queues, because a probe
 * changes flags.
 */
List *
ready_queue_ids(void)
{
	Oid			extension = catalog_queue_oid();
	List	   *ids = NIL;
	uint32		slot = 0;
	AvailabilityMap *map;

	/* Shared memory has the maps of all databases. */
	while ((map = shmem_next_flagged(MAP_READY, NULL, &slot)) != NULL)
		if (map_database(map) == MyDatabaseId &&
			map_extension(map) == extension)
			ids = lappend_int(ids, map_queue_id(map));
	return ids;
}

/* --- For the current role --- */

static void
memberships_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	memberships++;
}

/*
 * Begin to look for queues from which the current role may claim, to be
 * called before ready_next_claimable().  If one of the maps that the session
 * passes over may be of such a queue now, none is passed over any more.
 */
void
ready_begin(void)
{
	PassedOverKey key;

	if (check_context == NULL)
	{
		check_context = AllocSetContextCreate(TopMemoryContext,
											  "privileges of a queue",
											  ALLOCSET_SMALL_SIZES);

		/* These are the caches on which has_privs_of_role() depends. */
		CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, memberships_changed,
									  (Datum) 0);
		CacheRegisterSyscacheCallback(AUTHOID, memberships_changed,
									  (Datum) 0);
		CacheRegisterSyscacheCallback(DATABASEOID, memberships_changed,
									  (Datum) 0);
	}

	/*
	 * If all maps are passed over, we lock no table, which would process the
	 * messages that may change that.
	 */
	AcceptInvalidationMessages();
	memset(&key, 0, sizeof(key));
	key.extension = catalog_queue_oid();
	key.role = GetUserId();
	key.generation = catalog_generation();
	key.memberships = memberships;
	key.given = shmem_maps_given();
	strlcpy(key.project, setting_project, sizeof(key.project));
	if (memcmp(&key, &passed_over_key, sizeof(key)) == 0)
		return;
	bms_free(passed_over);
	passed_over = NULL;
	passed_over_key = key;
}

/*
 * Returns whether the current role may claim from the queue of this map.
 * Sets its names, and reads the queue, unless that is NULL.
 */
static bool
map_is_claimable(const AvailabilityMap *map, QueueSummary *summary,
				 Queue *queue)
{
	MemoryContext old;
	QueueResult result = QUEUE_DENIED;

	/* The map of another database is passed over from now on. */
	if (map_database(map) == MyDatabaseId &&
		map_extension(map) == passed_over_key.extension)
	{
		MemoryContextReset(check_context);
		old = MemoryContextSwitchTo(check_context);
		result = queue_check_claimable(map_queue_id(map), setting_project,
									   summary, queue);
		MemoryContextSwitchTo(old);
	}

	/*
	 * Pass over the map from now on.  But if an invalidation message has
	 * arrived meanwhile, we may have read the row as it was before that
	 * change.
	 */
	if (result == QUEUE_DENIED &&
		passed_over_key.generation == catalog_generation() &&
		passed_over_key.memberships == memberships)
	{
		old = MemoryContextSwitchTo(TopMemoryContext);
		passed_over = bms_add_member(passed_over, (int) map->number);
		MemoryContextSwitchTo(old);
	}
	return result == QUEUE_OK;
}

/*
 * Find the next queue with the flag from which the current role may claim,
 * from *slot on, which is advanced.  Sets its names in the summary.  The queue
 * is read unless it is NULL.  Returns false if there is none.
 */
bool
ready_next_claimable(uint32 *slot, QueueSummary *summary, Queue *queue)
{
	AvailabilityMap *map;

	while ((map = shmem_next_flagged(MAP_READY, passed_over, slot)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		if (map_is_claimable(map, summary, queue))
			return true;
	}
	return false;
}

/*
 * The ids of the queues of all projects that may be ready, each of them once.
 */
List *
ready_ids_in_projects(void)
{
	uint64		generation;
	List	   *ids = NIL;
	ListCell   *cell;
	int32		last = 0;
	QueueEntry *queues;
	int			n;

	/* Queues that are in the cache are not read again. */
	AcceptInvalidationMessages();
	if (ready_is_complete(&generation))
	{
		ids = ready_queue_ids();
		list_sort(ids, list_int_cmp);
		foreach(cell, ids)
		{
			if (lfirst_int(cell) == last)
				ids = foreach_delete_current(ids, cell);
			else
				last = lfirst_int(cell);
		}
		if (ready_was_complete(generation))
			return ids;
	}

	/* A queue without a map may be ready, so list all. */
	ids = NIL;
	queues = queue_all(NULL, NULL, &n);
	for (int i = 0; i < n; i++)
		if (ready_may_be(queues[i].id))
			ids = lappend_int(ids, queues[i].id);
	return ids;
}
