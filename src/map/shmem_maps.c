/*-------------------------------------------------------------------------
 *
 * shmem_maps.c
 *	  The availability maps of all queues, in shared memory.
 *
 * NOTES
 *	  A map is made when its queue is used for the first time, in a table that
 *	  grows (shmem_table.c).  It is found by database, extension and queue.  A
 *	  session remembers where it has found the last maps, and then takes no
 *	  lock but that of the map.
 *
 *	  If there are queue.max_availability_maps of them, or no more memory, a
 *	  new map evicts another one (victim.c).  The queue that has lost its map
 *	  pays with one scan from its start.  Unless it is known to have no
 *	  messages, the list of queues that are ready is not complete any more
 *	  (ready.c), and its worker visits all queues of the database if something
 *	  was due there (database_map_evicted).
 *
 *	  The lock of the table is held while a map is made or looked up; the lock
 *	  of a map is taken after it, and then that of all lanes, because a map
 *	  that is evicted leaves its lanes to others.  The maps in use have the
 *	  numbers from 1 on, so that all of them can be listed without the lock.
 *
 *	  After the end of a transaction a session cannot attach to maps and lanes
 *	  that others have created in the meantime, since that might fail.  So it
 *	  asks shmem_hold_maps() first.  If it is not attached to all of them, it
 *	  returns nothing, but increments a counter that the map of each queue
 *	  that is concerned shares with some others (shmem_miss()).  The next
 *	  session that locks such a map finds that out by the counter, and has the
 *	  map begin anew.
 *
 * src/map/shmem_maps.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "map/availability.h"
#include "map/lanes_table.h"
#include "map/shmem_maps.h"
#include "map/victim.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "shmem/shmem_table.h"
#include "util/settings.h"

#define CLOSINGS		64		/* condition variables that maps share */
#define REMEMBERED		256		/* maps that a session remembers */
#define MISSES			256		/* counters that maps share */

/* What is shared besides the maps themselves */
typedef struct SharedMaps
{
	LWLock		lock;			/* of the table; also protects hand */
	SharedTable table;
	EntryNumber hand;			/* where the search for a victim goes on */
	pg_atomic_uint32 n;			/* maps in use; only grows, with the lock */
	pg_atomic_uint32 nwaited_for;	/* maps in which sessions wait */
	pg_atomic_uint64 incarnations;	/* how many maps have begun anew */
	pg_atomic_uint64 given;		/* how often a queue has got the map of
								 * another one */
	ConditionVariable closings[CLOSINGS];
	pg_atomic_uint32 misses[MISSES];	/* by the hash of the key */
} SharedMaps;

typedef struct MapKey
{
	Oid			database;
	Oid			extension;		/* OID of the table queue_data.queue */
	int32		queue_id;
} MapKey;

static SharedMaps *shared = NULL;

/* For each flag, a part of it has a bit for each of its maps. */
static Table maps =
{
	.entry_size = MAXALIGN(sizeof(AvailabilityMap)),
	.extra_size = MAP_FLAGS * (TABLE_FIRST_PART / 32) * sizeof(uint32)
};

/* Where the session has found maps; by their hash */
static EntryNumber remembered[REMEMBERED];

static void init_maps(void *area);
static void attach_maps(void *area);
static AvailabilityMap *map_at(EntryNumber number);
static uint32 hash_map_key(const MapKey *key);
static bool has_key(const AvailabilityMap *map, const MapKey *key);
static pg_atomic_uint32 *misses_of(uint32 hash);
static AvailabilityMap *lock_if_has_key(EntryNumber number,
										const MapKey *key);
static EntryNumber look_up_map(const MapKey *key, uint32 hash);
static AvailabilityMap *find_map_by_key(const MapKey *key);
static AvailabilityMap *find_room(bool only_idle);
static void log_map(const MapKey *key, bool is_made, const MapKey *evicted);
static bool make_map(const MapKey *key, bool only_idle);
static AvailabilityMap *get_map(int32 queue_id, bool only_idle);
static DatabaseState *prepare_eviction(const AvailabilityMap *map,
									   TimestampTz *due);
static void forget_depths(AvailabilityMap *map);
static void init_map(AvailabilityMap *map, const MapKey *key);
static void for_each_map(Oid database, Oid extension, bool is_of,
						 void (*function) (AvailabilityMap *map,
										   TimestampTz now));
static void forget_map(AvailabilityMap *map, TimestampTz now);

/* --- Setting up --- */

static void
init_maps(void *area)
{
	SharedMaps *new = area;

	shmem_init_lock(&new->lock, LOCK_MAPS);
	table_init(&new->table);
	pg_atomic_init_u32(&new->n, 0);
	pg_atomic_init_u32(&new->nwaited_for, 0);
	pg_atomic_init_u64(&new->incarnations, 0);
	pg_atomic_init_u64(&new->given, 0);
	for (int i = 0; i < CLOSINGS; i++)
		ConditionVariableInit(&new->closings[i]);
	for (int i = 0; i < MISSES; i++)
		pg_atomic_init_u32(&new->misses[i], 0);
}

static void
attach_maps(void *area)
{
	shared = area;
	maps.shared = &shared->table;
}

/* To be called once, when the library is loaded. */
void
shmem_maps_init(void)
{
	shmem_add_area(sizeof(SharedMaps), maps.entry_size, init_maps,
				   attach_maps);
}

/* Attach to all maps and lanes, as far as they exist now. */
void
shmem_maps_attach(void)
{
	table_attach(&maps);
	lanes_attach();
}

/* --- After the end of a transaction --- */

/*
 * A transaction that has ended is about to return to maps what it has
 * changed.  Returns false if it must not use lanes, nor any map that it has
 * to look up; see NOTES.  The caller calls shmem_release_maps() in either
 * case.
 */
bool
shmem_hold_maps(void)
{
	table_hold_parts();
	return table_is_attached(&maps) && lanes_are_attached();
}

void
shmem_release_maps(void)
{
	table_release_parts();
}

static pg_atomic_uint32 *
misses_of(uint32 hash)
{
	return &shared->misses[hash % MISSES];
}

/*
 * A transaction has ended that had to return something to the map of this
 * queue, and cannot.  Like a return, this comes after it has left the proc
 * array.
 */
void
shmem_miss(Oid extension, int32 queue_id)
{
	MapKey		key = {MyDatabaseId, extension, queue_id};

	pg_atomic_fetch_add_u32(misses_of(hash_map_key(&key)), 1);
}

/* Something was not returned that may concern any queue. */
void
shmem_miss_all(void)
{
	for (int i = 0; i < MISSES; i++)
		pg_atomic_fetch_add_u32(&shared->misses[i], 1);
}

/* --- Finding and making maps --- */

static AvailabilityMap *
map_at(EntryNumber number)
{
	return table_entry(&maps, number);
}

static uint32
hash_map_key(const MapKey *key)
{
	return hash_bytes((const unsigned char *) key, sizeof(MapKey));
}

static bool
has_key(const AvailabilityMap *map, const MapKey *key)
{
	return map_queue_id(map) == key->queue_id &&
		map_extension(map) == key->extension &&
		map_database(map) == key->database;
}

/*
 * Returns the map with this number, locked; or NULL if it has another key, or
 * the number is 0.
 */
static AvailabilityMap *
lock_if_has_key(EntryNumber number, const MapKey *key)
{
	AvailabilityMap *map = number == 0 ? NULL : map_at(number);

	if (map == NULL || !has_key(map, key))
		return NULL;
	LWLockAcquire(&map->lock, LW_EXCLUSIVE);

	/* It may have been evicted before we locked it. */
	if (has_key(map, key))
		return map;
	LWLockRelease(&map->lock);
	return NULL;
}

/*
 * Returns the map of a queue, locked, for a transaction that has ended and is
 * not attached to all maps and lanes; or NULL if this session does not
 * remember the map, because then it may not be attached to it.  The caller
 * may change only counts in the map, which may have to begin anew, for which
 * lanes are needed.
 */
AvailabilityMap *
shmem_remembered_map(Oid extension, int32 queue_id)
{
	MapKey		key = {MyDatabaseId, extension, queue_id};

	return lock_if_has_key(remembered[hash_map_key(&key) % REMEMBERED], &key);
}

/* Returns the number of the map with this key, or 0 if there is none. */
static EntryNumber
look_up_map(const MapKey *key, uint32 hash)
{
	Assert(LWLockHeldByMe(&shared->lock));
	for (TableEntry *entry = table_first(&maps, hash); entry != NULL;
		 entry = table_next(&maps, entry))
	{
		AvailabilityMap *map = (AvailabilityMap *) entry;

		if (has_key(map, key))
			return map->number;
	}
	return 0;
}

/* Returns the map with this key, locked, or NULL if there is none. */
static AvailabilityMap *
find_map_by_key(const MapKey *key)
{
	uint32		hash = hash_map_key(key);
	EntryNumber *number = &remembered[hash % REMEMBERED];
	AvailabilityMap *map = lock_if_has_key(*number, key);
	uint32		misses;

	/* A map that we have looked up may be evicted before we lock it. */
	while (map == NULL)
	{
		LWLockAcquire(&shared->lock, LW_SHARED);
		*number = look_up_map(key, hash);
		LWLockRelease(&shared->lock);
		if (*number == 0)
			return NULL;
		map = lock_if_has_key(*number, key);
	}
	map->used = true;

	/* If something was not returned to this map, it begins anew. */
	misses = pg_atomic_read_u32(misses_of(hash));
	if (map->missed != misses)
	{
		availability_restored(map, GetCurrentTimestamp());
		map->missed = misses;	/* last: the call may fail */
	}
	return map;
}

/*
 * Returns the map of a queue, locked, or NULL if there is none.  The
 * extension is named by its catalog_queue_oid(), which the caller has looked
 * up before the end of the transaction.
 */
AvailabilityMap *
shmem_find_map(Oid extension, int32 queue_id)
{
	MapKey		key = {MyDatabaseId, extension, queue_id};

	return find_map_by_key(&key);
}

/*
 * Returns the room for one more map, locked, or NULL if there is none, and
 * all other maps are in use right now, or (only_idle) none is idle.  The lock
 * of the table is held.
 */
static AvailabilityMap *
find_room(bool only_idle)
{
	uint32		n = pg_atomic_read_u32(&shared->n);
	AvailabilityMap *map;

	table_attach(&maps);
	if (n >= (uint32) setting_max_availability_maps ||
		n + 1 >= table_size(maps.nparts))
		return victim_find(&shared->hand, n, only_idle);
	map = map_at(n + 1);
	map->number = n + 1;
	shmem_init_lock(&map->lock, LOCK_MAP);
	LWLockAcquire(&map->lock, LW_EXCLUSIVE);
	ConditionVariableInit(&map->arrival);

	/* Other sessions may lock the map as soon as it is in use. */
	pg_write_barrier();
	pg_atomic_write_u32(&shared->n, n + 1);
	return map;
}

static AvailabilityMap *
get_map(int32 queue_id, bool only_idle)
{
	MapKey		key = {MyDatabaseId, catalog_queue_oid(), queue_id};
	AvailabilityMap *map;

	/* A new map may be evicted before it is found and locked. */
	while ((map = find_map_by_key(&key)) == NULL)
		if (!make_map(&key, only_idle))
			return NULL;
	return map;
}

/*
 * Returns the map of a queue, locked, and makes it if there is none yet; or
 * NULL if there is no room.
 */
AvailabilityMap *
shmem_get_map(int32 queue_id)
{
	return get_map(queue_id, false);
}

/*
 * Returns the map of a queue, locked, and makes it if that costs no other
 * queue a map that it needs; else NULL.
 */
AvailabilityMap *
shmem_get_spare_map(int32 queue_id)
{
	return get_map(queue_id, true);
}

/* Returns whether there is room for one more map, so that none is evicted. */
bool
shmem_has_room(void)
{
	return pg_atomic_read_u32(&shared->n) <
		(uint32) setting_max_availability_maps;
}

/*
 * Evict the map of this queue before all others, unless it is used again, or
 * no map has to go.
 */
void
shmem_evict_first(Oid extension, int32 queue_id)
{
	AvailabilityMap *map = shmem_find_map(extension, queue_id);
	EntryNumber number;

	if (map == NULL)
		return;
	map->used = false;
	number = map->number;
	LWLockRelease(&map->lock);
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	shared->hand = number - 1;
	LWLockRelease(&shared->lock);
}

/*
 * Log that a queue has got a map, and which one had to go; or that there is
 * no room for it.
 */
static void
log_map(const MapKey *key, bool is_made, const MapKey *evicted)
{
	if (!is_made)
		ereport(DEBUG1,
				(errmsg_internal("no room for an availability map of queue number %d: all others are in use",
								 key->queue_id)));
	else if (OidIsValid(evicted->database))
		ereport(DEBUG1,
				(errmsg_internal("made the availability map of queue number %d, and evicted that of number %d%s",
								 key->queue_id, evicted->queue_id,
								 evicted->database == key->database ? "" :
								 " of another database")));
	else
		ereport(DEBUG2,
				(errmsg_internal("made the availability map of queue number %d",
								 key->queue_id)));
}

/*
 * Make a map, unless there is one by now.  Returns false if there is no room;
 * with "only_idle" also if that would cost another queue a map that it needs.
 */
static bool
make_map(const MapKey *key, bool only_idle)
{
	DatabaseState *home = NULL; /* of the map that is evicted, if its worker
								 * has to learn of that */
	TimestampTz due = DT_NOEND; /* when its worker has to visit the queue */
	uint32		n = pg_atomic_read_u32(&shared->n);
	AvailabilityMap *map = NULL;
	MapKey		evicted = {InvalidOid};
	bool		is_there;
	bool		is_made = false;

	/* Entry 0 is not used.  If there is no memory, we evict another map. */
	if (n < (uint32) setting_max_availability_maps)
		(void) table_grow(&maps, n + 2);
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);

	/* Another session may have made it since we have looked it up. */
	is_there = look_up_map(key, hash_map_key(key)) != 0;
	if (!is_there && (map = find_room(only_idle)) != NULL)
	{
		/* This may fail, so it comes before all changes. */
		lanes_attach();
		if (OidIsValid(map_database(map)))
		{
			evicted.database = map_database(map);
			evicted.queue_id = map_queue_id(map);
			home = prepare_eviction(map, &due);
			table_remove(&maps, map->number);
		}
		init_map(map, key);
		table_add(&maps, map->number, hash_map_key(key));
		is_made = true;
	}
	LWLockRelease(&shared->lock);

	/*
	 * A session that looks the map up meanwhile waits for this; but others
	 * need not, as the map that was evicted may have had very many lanes.
	 */
	if (is_made)
	{
		availability_reset(map, GetCurrentTimestamp());
		LWLockRelease(&map->lock);
	}
	database_map_evicted(home, due);
	if (!is_there && (is_made || !only_idle))
		log_map(key, is_made, &evicted);
	return is_there || is_made;
}

/*
 * A map, which is locked, is about to be evicted.  Returns its database, and
 * when that database's worker has to visit the queue; or NULL if it need not.
 */
static DatabaseState *
prepare_eviction(const AvailabilityMap *map, TimestampTz *due)
{
	DatabaseState *home = database_of(map_database(map));

	if (home == NULL)
		return NULL;
	pg_atomic_fetch_add_u64(&home->map_evictions, 1);

	/* Nothing has to be found in the queue until a push makes another map. */
	if (victim_is_idle(map))
		return NULL;

	/*
	 * Before the key changes: a session that misses the map has to see it.
	 * The depths are lost first, or the worker could count this eviction, and
	 * then take the queue for one without messages (availability_is_due).
	 */
	if (victim_has_depths(map))
		depth_lose(&home->depths);
	pg_atomic_fetch_add_u64(&home->maps_evicted, 1);

	/* If listeners are still to be notified, the worker's visit does that. */
	*due = shmem_has_flag(map, MAP_ARRIVALS) ? DT_NOBEGIN : map_wake_at(map);
	return home;
}

/* Forget numbers of messages that a map, which is locked, has. */
static void
forget_depths(AvailabilityMap *map)
{
	map->depth_generation = 0;
	memset(map->depths, 0, sizeof(map->depths));
	map->claimed = NO_CLAIMED_MESSAGES;
	shmem_clear_flag(map, MAP_CLAIMED);
}

/*
 * Give a map, which is locked, to a queue; the table is locked, too.  The
 * caller makes it forget what it knows.
 */
static void
init_map(AvailabilityMap *map, const MapKey *key)
{
	bool		was_used = OidIsValid(map_database(map));

	pg_atomic_write_u32(&map->database, (uint32) key->database);
	pg_atomic_write_u32(&map->extension, (uint32) key->extension);
	pg_atomic_write_u32(&map->queue_id, (uint32) key->queue_id);
	map->missed = pg_atomic_read_u32(misses_of(hash_map_key(key)));

	/*
	 * After the key has changed, and before the map gets a flag for its new
	 * queue, so that a session that has seen the old key, or parts of both,
	 * finds another number here before it would pass over the new queue.
	 */
	if (was_used)
		pg_atomic_fetch_add_u64(&shared->given, 1);
	pg_atomic_write_u64(&map->first_due, (uint64) DT_NOEND);
	map->used = true;
	map->open = 0;
	map->waiting = false;
	map->waiters = 0;
	shmem_clear_flag(map, MAP_ARRIVALS);
	memset(map->counts, 0, sizeof(map->counts));
	forget_depths(map);
	map->has_lanes = false;
	map->bound = -1;
	map->last_turn = 0;
	map->learn_at = 0;
	map->open_overflow = 0;
	shmem_clear_flag(map, MAP_COUNTED);
}

/*
 * Call a function for each map of a database that belongs to an extension, or
 * (is_of is false) to any other one, locked.
 */
static void
for_each_map(Oid database, Oid extension, bool is_of,
			 void (*function) (AvailabilityMap *map, TimestampTz now))
{
	TimestampTz now = GetCurrentTimestamp();
	uint32		n = shmem_count_maps();

	for (uint32 i = 0; i < n; i++)
	{
		AvailabilityMap *map = shmem_map_in_use(i);

		if (map_database(map) != database)
			continue;
		LWLockAcquire(&map->lock, LW_EXCLUSIVE);
		if (map_database(map) == database &&
			(map_extension(map) == extension) == is_of)
			function(map, now);
		LWLockRelease(&map->lock);
	}
}

/* Call a function for each map of an extension in this database, locked. */
void
shmem_for_each_map(Oid extension,
				   void (*function) (AvailabilityMap *map, TimestampTz now))
{
	for_each_map(MyDatabaseId, extension, true, function);
}

static void
forget_map(AvailabilityMap *map, TimestampTz now)
{
	forget_depths(map);
	availability_clear(map, now);
}

/*
 * A database was dropped, or has no other extension than "except" any more:
 * what the maps of the others know is not needed, and other queues get the
 * room of their lanes.
 */
void
shmem_clear_maps(Oid database, Oid except)
{
	for_each_map(database, except, false, forget_map);
}

/*
 * Returns the condition variable on which a session sleeps that waits until a
 * reservation is closed.
 */
ConditionVariable *
shmem_close_condition(const AvailabilityMap *map)
{
	return &shared->closings[map->number % CLOSINGS];
}

/*
 * Let this session wait in the map, which is locked.  Returns false if
 * sessions wait in too many maps.
 */
bool
shmem_add_waiter(AvailabilityMap *map)
{
	if (map->waiters == 0)
	{
		/* None of these can be evicted, so new maps might find no room. */
		if (pg_atomic_read_u32(&shared->nwaited_for) >=
			(uint32) setting_max_availability_maps / 2)
			return false;
		pg_atomic_fetch_add_u32(&shared->nwaited_for, 1);
	}
	map->waiters++;
	return true;
}

void
shmem_remove_waiter(AvailabilityMap *map)
{
	map->waiters--;
	if (map->waiters == 0)
		pg_atomic_fetch_sub_u32(&shared->nwaited_for, 1);
}

/*
 * Returns a number for a map that begins anew, which was never used before.
 */
uint64
shmem_next_incarnation(void)
{
	return pg_atomic_add_fetch_u64(&shared->incarnations, 1);
}

/* --- All maps in use --- */

/*
 * Returns how many maps are in use.  They are shmem_map_in_use(0) and so on.
 */
uint32
shmem_count_maps(void)
{
	uint32		n = pg_atomic_read_u32(&shared->n);

	pg_read_barrier();
	table_attach(&maps);
	return n;
}

AvailabilityMap *
shmem_map_in_use(uint32 i)
{
	return map_at(i + 1);
}

/*
 * Returns a number that changes when a map is given to another queue, because
 * then what a session remembers of maps by their numbers is out of date.
 */
uint64
shmem_maps_given(void)
{
	return pg_atomic_read_u64(&shared->given);
}

/* Returns what a part of the table has besides its maps: their flags. */
void *
shmem_map_extras(int part)
{
	return maps.extras[part];
}
