/*-------------------------------------------------------------------------
 *
 * victim.c
 *	  Which availability map is evicted when there is no room for another.
 *
 * NOTES
 *	  A map is never evicted while a reservation is open in it or a session
 *	  waits there.  Of the others, one goes that was not used recently: the
 *	  search passes over the maps in a circle, and what was used since it came
 *	  by is spared once.
 *
 *	  The best choice is an idle map: its queue is known to have no messages,
 *	  because the depths are known and are zero (depth_state.c).  So nothing
 *	  has to be found there until a push makes another map, and nothing depends
 *	  on the one that has gone: neither does the list of queues that are ready
 *	  become incomplete (ready.c), nor has the worker to visit the queue.
 *
 *	  A push that is under way when its map is evicted is not counted yet.  It
 *	  finds no map when it ends, and then the worker counts all messages anew
 *	  (counts.c).  Only then does it report its messages (pending.c).  To spare
 *	  us that, a map is not taken for idle while it has numbers that no claim
 *	  was given yet.
 *
 *	  With a map that is not idle, depths, counters and arrivals may be lost.
 *	  So only a caller that needs a map evicts such a one (shmem_get_map).
 *
 * src/map/victim.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "map/shmem_maps.h"
#include "map/victim.h"
#include "shmem/database_state.h"
#include "shmem/depth_state.h"

#define VICTIMS			64		/* maps of which one is evicted */
#define VICTIM_GROUPS	16		/* of VICTIMS maps each, tried in turn */

/* Which maps may be evicted, if they are not in use */
typedef enum VictimChoice
{
	VICTIM_IDLE,				/* those of queues without messages */
	VICTIM_EMPTY,				/* those with nothing that would be lost */
	VICTIM_ANY					/* all */
} VictimChoice;

static bool has_fresh_numbers(const AvailabilityMap *map);
static bool lock_victim(AvailabilityMap *map, VictimChoice choice);
static AvailabilityMap *search_victim(EntryNumber *hand, uint32 n,
									  VictimChoice choice);

/*
 * Returns whether numbers of messages would be lost with the map, which is
 * locked.
 */
bool
victim_has_depths(const AvailabilityMap *map)
{
	DatabaseState *home = database_of(map_database(map));

	/* What was counted in an earlier generation is worthless. */
	if (home == NULL ||
		map->depth_generation != pg_atomic_read_u64(&home->depths.generation))
		return false;
	for (int i = 0; i < DEPTHS; i++)
		if (map->depths[i] != 0)
			return true;
	return map->claimed.end != DT_NOEND;
}

/*
 * Returns whether the queue of a map, which is locked, is known to have no
 * messages.  A transaction that has just committed one may not have counted
 * it yet: if it finds no map then, the worker learns of that (counts.c).
 */
bool
victim_is_idle(const AvailabilityMap *map)
{
	DatabaseState *home = database_of(map_database(map));

	return home != NULL && depth_state_is_known(&home->depths) &&
		!victim_has_depths(map);
}

/*
 * Returns whether a map, which is locked, has numbers that no claim was given
 * yet: a push may be under way.
 */
static bool
has_fresh_numbers(const AvailabilityMap *map)
{
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (map->next[p] < map->end[p])
			return true;
	return false;
}

/*
 * Lock a map if it can be evicted; otherwise let it be evicted later if no
 * session uses it until then.
 */
static bool
lock_victim(AvailabilityMap *map, VictimChoice choice)
{
	LWLockAcquire(&map->lock, LW_EXCLUSIVE);

	/*
	 * The last choice are maps with counters that are not yet written, which
	 * would be lost; with arrivals that are not yet notified; and of queues
	 * with messages, because all messages of the database would have to be
	 * counted anew.
	 */
	if (map->open == 0 && map->waiters == 0 && !map->used &&
		(choice == VICTIM_ANY || (!shmem_has_flag(map, MAP_COUNTED) &&
								  !shmem_has_flag(map, MAP_ARRIVALS) &&
								  !victim_has_depths(map))) &&
		(choice != VICTIM_IDLE || (!has_fresh_numbers(map) &&
								   victim_is_idle(map))))
		return true;
	map->used = false;
	LWLockRelease(&map->lock);
	return false;
}

/*
 * Returns a map to evict, locked, or NULL if none was found.  Among many
 * queues with messages a few may have none, so we try many.
 */
static AvailabilityMap *
search_victim(EntryNumber *hand, uint32 n, VictimChoice choice)
{
	for (uint32 i = 0; i < Min(n, VICTIM_GROUPS * VICTIMS); i += VICTIMS)
	{
		EntryNumber first = *hand;

		/*
		 * The first round spares maps that were used recently; the second one
		 * only those used since.
		 */
		for (uint32 j = 0; j < 2 * VICTIMS; j++)
		{
			uint32		index = (first + j % VICTIMS) % n;
			AvailabilityMap *map = shmem_map_in_use(index);

			if (lock_victim(map, choice))
			{
				*hand = index + 1;
				return map;
			}
		}
		*hand = (first + VICTIMS) % n;
	}
	return NULL;
}

/*
 * Returns which of the n maps to evict, locked; or NULL if all that were tried
 * are in use right now, or (only_idle) none of them is idle.  *hand is where
 * the search goes on.  The lock of the table is held.
 */
AvailabilityMap *
victim_find(EntryNumber *hand, uint32 n, bool only_idle)
{
	AvailabilityMap *map = NULL;

	/* While the depths are not known, we know of no queue that it is empty. */
	if (!depth_is_lost())
		map = search_victim(hand, n, VICTIM_IDLE);
	if (map == NULL && !only_idle)
		map = search_victim(hand, n, VICTIM_EMPTY);
	if (map == NULL && !only_idle)
		map = search_victim(hand, n, VICTIM_ANY);
	return map;
}
