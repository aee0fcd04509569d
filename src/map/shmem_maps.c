/*-------------------------------------------------------------------------
 *
 * shmem_maps.c
 *	  The availability maps of all queues, in shared memory.
 *
 * NOTES
 *	  A map is made when its queue is used for the first time, in a table of
 *	  fixed size (shmem_table.c).  It is found by database, extension and
 *	  queue.  A session remembers where it has found the last maps, and then
 *	  takes no lock but that of the map.
 *
 *	  There is room for queue.max_active_queues of them.  A queue that has no
 *	  messages needs none: if there is no room, a new map takes the place of
 *	  such a one (find_idle_map).  Nothing has to be found there until a push
 *	  makes another map.  A queue that finds no room is served without a map:
 *	  claims read all of it, and the worker visits all queues if something is
 *	  due there (database_map_missing).  For the time of a visit it borrows one
 *	  of the places that are reserved for that (shmem_borrow_map).
 *
 *	  The queues of one owner get at most half of the places (place_owners.c).
 *
 *	  The lock of the table is held while a map is made, given back or looked
 *	  up; the lock of a map is taken after it, and then that of all lanes.  The
 *	  maps have numbers from 1 on, so that all of them can be listed without the
 *	  lock.
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
#include "map/lanes.h"
#include "map/place_owners.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "shmem/depth_state.h"
#include "shmem/shmem.h"
#include "shmem/shmem_table.h"
#include "util/settings.h"

#define CLOSINGS		64		/* condition variables that maps share */
#define REMEMBERED		256		/* maps that a session remembers */
#define IDLE_TRIED		64		/* maps of which one that is idle is chosen */

/*
 * For how long after a push was given numbers its transaction is taken to be
 * under way
 */
#define PUSH_TIME		USECS_PER_MINUTE

/* The places that workers borrow, one for each database */
#define RESERVED		DATABASES_MAX

/* What is shared besides the maps themselves */
typedef struct SharedMaps
{
	LWLock		lock;			/* of the table; also protects unused, hand */
	EntryNumber unused;			/* the first map that was given back, or 0 */
	EntryNumber hand;			/* where the search for an idle one goes on */
	pg_atomic_uint32 used;		/* the highest number that was ever used;
								 * changed with the lock */
	pg_atomic_uint32 n;			/* maps in use; changed with the lock */
	pg_atomic_uint64 incarnations;	/* how many maps have begun anew */
	pg_atomic_uint64 given;		/* how often a queue has got the map of
								 * another one */
	ConditionVariable closings[CLOSINGS];
} SharedMaps;

typedef struct MapKey
{
	Oid			database;
	Oid			extension;		/* OID of the table queue_data.queue */
	int32		queue_id;
} MapKey;

static SharedMaps *shared = NULL;

/* The maps; behind them in memory are their owners, and their flags */
static Table maps = {.entry_size = MAXALIGN(sizeof(AvailabilityMap))};
static pg_atomic_uint32 *flags = NULL;

/* Where the session has found maps; by their hash */
static EntryNumber remembered[REMEMBERED];

/* Returns the owner of a queue of this database */
static Oid	(*owner_of_queue) (int32 queue_id) = NULL;

static uint32 flag_words(void);
static void init_maps(void *area);
static void attach_maps(void *area);
static AvailabilityMap *map_at(EntryNumber number);
static uint32 hash_map_key(const MapKey *key);
static MapKey key_of(const AvailabilityMap *map);
static bool has_key(const AvailabilityMap *map, const MapKey *key);
static AvailabilityMap *lock_if_has_key(EntryNumber number,
										const MapKey *key);
static EntryNumber look_up_map(const MapKey *key, uint32 hash);
static AvailabilityMap *find_map_by_key(const MapKey *key);
static bool is_empty(const AvailabilityMap *map, DatabaseState *home);
static bool may_be_pushed(const AvailabilityMap *map);
static bool is_idle(const AvailabilityMap *map);
static AvailabilityMap *find_idle_map(EntryNumber owner);
static bool give_back_idle(EntryNumber owner);
static AvailabilityMap *find_place(Oid role, bool borrow);
static bool make_map(const MapKey *key, bool borrow);
static AvailabilityMap *get_map(int32 queue_id, bool borrow);
static void remove_map(AvailabilityMap *map);
static void give_back_map(const MapKey *key);
static void forget_depths(AvailabilityMap *map);
static void init_map(AvailabilityMap *map, const MapKey *key,
					 EntryNumber owner);

SharedArea	maps_area = {&shared, 0, LOCK_MAPS, init_maps, attach_maps};

/* --- Setting up --- */

/* Returns how many words the flags of one kind have. */
static uint32
flag_words(void)
{
	return maps.size / 32 + 1;
}

static void
init_maps(void *area)
{
	SharedMaps *new = area;

	pg_atomic_init_u32(&new->used, 0);
	pg_atomic_init_u32(&new->n, 0);
	pg_atomic_init_u64(&new->incarnations, 0);
	pg_atomic_init_u64(&new->given, 0);
	for (int i = 0; i < CLOSINGS; i++)
		ConditionVariableInit(&new->closings[i]);
}

static void
attach_maps(void *area)
{
	char	   *memory = (char *) area + MAXALIGN(sizeof(SharedMaps));

	table_attach(&maps, memory);
	memory += table_memory(&maps);
	owners_attach(memory);
	flags = (pg_atomic_uint32 *) (memory + owners_memory(maps.size));
}

/*
 * To be called once, when the library is loaded and the settings are defined.
 */
void
shmem_maps_init(void)
{
	maps.size = setting_max_active_queues + RESERVED;
	maps_area.size = MAXALIGN(sizeof(SharedMaps)) + table_memory(&maps) +
		owners_memory(maps.size) +
		MAP_FLAGS * flag_words() * sizeof(pg_atomic_uint32);
}

/* Set the function that returns the owner of a queue. */
void
shmem_register_owner(Oid (*function) (int32 queue_id))
{
	owner_of_queue = function;
}

/* --- Finding maps --- */

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

static MapKey
key_of(const AvailabilityMap *map)
{
	return (MapKey)
	{
		map_database(map), map_extension(map), map_queue_id(map)
	};
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
	shmem_lock(&map->lock, LW_EXCLUSIVE);

	/* Another queue may have got it before we locked it. */
	if (has_key(map, key))
		return map;
	LWLockRelease(&map->lock);
	return NULL;
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

	/* A map that we have looked up may be given back before we lock it. */
	while (map == NULL)
	{
		shmem_lock(&shared->lock, LW_SHARED);
		*number = look_up_map(key, hash);
		LWLockRelease(&shared->lock);
		if (*number == 0)
			return NULL;
		map = lock_if_has_key(*number, key);
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

/* --- Queues without messages --- */

/*
 * Returns whether the queue of a map, which is locked, is known to have no
 * messages; "home" is its database.  A transaction that has just committed one
 * may not have counted it yet: if it finds no map then, the worker learns of
 * that (counts.c).
 */
static bool
is_empty(const AvailabilityMap *map, DatabaseState *home)
{
	uint64		generation = depth_state_counted(&home->depths);

	if (generation == 0)
		return false;

	/* What was counted in an earlier generation is worthless. */
	if (map->depth_generation != generation)
		return true;
	for (int i = 0; i < DEPTHS; i++)
		if (map->depths[i] != 0)
			return false;
	return true;
}

/*
 * Returns whether a push to the queue of a map, which is locked, may be under
 * way: it has numbers that no claim was given yet, and they are not old.
 */
static bool
may_be_pushed(const AvailabilityMap *map)
{
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (map->next[p] < map->end[p])
			return map->numbers_at > GetCurrentTimestamp() - PUSH_TIME;
	return false;
}

/*
 * Returns whether nothing is lost with a map, which is locked: its queue has no
 * messages, no session waits there, and no push is likely to be under way.
 */
static bool
is_idle(const AvailabilityMap *map)
{
	DatabaseState *home = database_of(map_database(map));

	return home != NULL && map->open == 0 && map->waiters == 0 &&
		!shmem_has_flag(map, MAP_COUNTED) &&
		!shmem_has_flag(map, MAP_ARRIVALS) && is_empty(map, home) &&
		!may_be_pushed(map);
}

/*
 * Returns an idle map, locked; NULL if none was found.  Unless it is 0, its
 * queue belongs to this owner.
 */
static AvailabilityMap *
find_idle_map(EntryNumber owner)
{
	uint32		n = pg_atomic_read_u32(&shared->used);

	Assert(LWLockHeldByMeInMode(&shared->lock, LW_EXCLUSIVE));
	for (uint32 i = 0; i < Min(n, IDLE_TRIED); i++)
	{
		AvailabilityMap *map;

		shared->hand = shared->hand % n + 1;
		map = map_at(shared->hand);

		/* A map that is locked is in use. */
		if (!OidIsValid(map_database(map)) ||
			(owner != 0 && map->owner != owner) ||
			!LWLockConditionalAcquire(&map->lock, LW_EXCLUSIVE))
			continue;
		if (is_idle(map))
			return map;
		LWLockRelease(&map->lock);
	}
	return NULL;
}

/* --- Making maps, and giving them back --- */

/*
 * Make room by giving back an idle map, which is of this owner unless that is
 * 0.  Returns false if none was found.
 */
static bool
give_back_idle(EntryNumber owner)
{
	AvailabilityMap *map = find_idle_map(owner);

	if (map == NULL)
		return false;
	remove_map(map);
	LWLockRelease(&map->lock);
	return true;
}

/*
 * Returns an unused map, locked, or NULL if there is no room for one more of
 * this owner.  With "borrow", it may be one that is reserved for workers.
 */
static AvailabilityMap *
find_place(Oid role, bool borrow)
{
	EntryNumber owner = owner_find(role);
	AvailabilityMap *map;

	if (!borrow)
	{
		/* The owner has its half: only an idle queue of its own makes room. */
		if (!owner_may_have_queue(owner) && !give_back_idle(owner))
			return NULL;
		if (!shmem_has_room() && !give_back_idle(0))
			return NULL;
	}
	else if (pg_atomic_read_u32(&shared->n) == maps.size)
		return NULL;
	if (shared->unused != 0)
	{
		map = map_at(shared->unused);
		shmem_lock(&map->lock, LW_EXCLUSIVE);
		shared->unused = map->entry.next;
	}
	else
	{
		uint32		number = pg_atomic_read_u32(&shared->used) + 1;

		map = map_at(number);
		map->number = number;
		shmem_init_lock(&map->lock, LOCK_MAP);
		shmem_lock(&map->lock, LW_EXCLUSIVE);
		ConditionVariableInit(&map->arrival);

		/* Other sessions may lock the map as soon as it is in use. */
		pg_write_barrier();
		pg_atomic_write_u32(&shared->used, number);
	}
	pg_atomic_fetch_add_u32(&shared->n, 1);
	return map;
}

/* Make a map, unless there is one by now.  Returns false if there is no room. */
static bool
make_map(const MapKey *key, bool borrow)
{
	Oid			role = owner_of_queue(key->queue_id);
	AvailabilityMap *map = NULL;
	bool		is_there;

	shmem_lock(&shared->lock, LW_EXCLUSIVE);

	/* Another session may have made it since we have looked it up. */
	is_there = look_up_map(key, hash_map_key(key)) != 0;
	if (!is_there && (map = find_place(role, borrow)) != NULL)
	{
		init_map(map, key, owner_add_queue(role));
		table_add(&maps, map->number, hash_map_key(key));
		availability_reset(map);
		LWLockRelease(&map->lock);
	}
	LWLockRelease(&shared->lock);
	if (map != NULL)
		ereport(DEBUG2,
				(errmsg_internal("made the availability map of queue number %d",
								 key->queue_id)));
	else if (!is_there)
	{
		ereport(DEBUG1,
				(errmsg_internal("no room for an availability map of queue number %d",
								 key->queue_id)));
		database_set_flag(database_mine(), DATABASE_NO_ROOM);
	}
	return is_there || map != NULL;
}

static AvailabilityMap *
get_map(int32 queue_id, bool borrow)
{
	MapKey		key = {MyDatabaseId, catalog_queue_oid(), queue_id};
	AvailabilityMap *map;

	/* A new map may be given back before it is found and locked. */
	while ((map = find_map_by_key(&key)) == NULL)
		if (!make_map(&key, borrow))
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
 * The same for the worker, which visits a queue for which there is no room: it
 * gives the map back afterwards.
 */
AvailabilityMap *
shmem_borrow_map(int32 queue_id)
{
	return get_map(queue_id, true);
}

/* Returns whether there is room for one more map. */
bool
shmem_has_room(void)
{
	return pg_atomic_read_u32(&shared->n) <
		(uint32) setting_max_active_queues;
}

/* A map, which is locked, is not used any more; the table is locked, too. */
static void
remove_map(AvailabilityMap *map)
{
	Assert(map->open == 0 && map->waiters == 0);
	lanes_forget(map);
	table_remove(&maps, map->number);
	owner_remove_queue(map->owner);
	pg_atomic_write_u32(&map->database, InvalidOid);
	pg_atomic_write_u32(&map->extension, InvalidOid);
	pg_atomic_write_u32(&map->queue_id, 0);
	for (MapFlag flag = 0; flag < MAP_FLAGS; flag++)
		shmem_clear_flag(map, flag);
	map->entry.next = shared->unused;
	shared->unused = map->number;
	pg_atomic_fetch_sub_u32(&shared->n, 1);
}

/*
 * A map is not needed any more, whatever it knows: give it back, or if a
 * session uses it right now, have it begin anew.
 */
static void
give_back_map(const MapKey *key)
{
	AvailabilityMap *map = find_map_by_key(key);

	if (map == NULL)
		return;

	/* First, as it may have very many lanes. */
	forget_depths(map);
	availability_reset(map);
	LWLockRelease(&map->lock);
	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	map = lock_if_has_key(look_up_map(key, hash_map_key(key)), key);
	if (map != NULL)
	{
		if (map->open == 0 && map->waiters == 0)
			remove_map(map);
		LWLockRelease(&map->lock);
	}
	LWLockRelease(&shared->lock);
}

/* A queue was dropped, or has moved to another server. */
void
shmem_give_back_map(Oid extension, int32 queue_id)
{
	MapKey		key = {MyDatabaseId, extension, queue_id};

	give_back_map(&key);
}

/*
 * The worker has visited a queue whose map it has borrowed.  The queue may
 * have messages, so it is visited again when something is due there.
 */
void
shmem_return_map(Oid extension, int32 queue_id)
{
	AvailabilityMap *map = shmem_find_map(extension, queue_id);
	TimestampTz due;

	if (map == NULL)
		return;

	/* If listeners are still to be notified, the next visit does that. */
	due = shmem_has_flag(map, MAP_ARRIVALS) ? DT_NOBEGIN : map_wake_at(map);
	LWLockRelease(&map->lock);

	/*
	 * The list of queues that are ready is not complete without it.  A
	 * session that misses the map has to see that.
	 */
	depth_set_incomplete();
	database_map_missing(database_mine(), due);
	shmem_give_back_map(extension, queue_id);
}

/* Forget numbers of messages that a map, which is locked, has. */
static void
forget_depths(AvailabilityMap *map)
{
	map->depth_generation = 0;
	memset(map->depths, 0, sizeof(map->depths));
}

/*
 * Give a map, which is locked, to a queue; the table is locked, too.  The
 * caller makes it forget what it knows.
 */
static void
init_map(AvailabilityMap *map, const MapKey *key, EntryNumber owner)
{
	bool		was_used = map->incarnation != 0;
	DatabaseState *home = database_mine();

	/* A session that has the old queue's map must not lose it. */
	Assert(map_is_locked(map) && map->open == 0 && map->waiters == 0);
	Assert(LWLockHeldByMeInMode(&shared->lock, LW_EXCLUSIVE));
	pg_atomic_write_u32(&map->database, (uint32) key->database);
	pg_atomic_write_u32(&map->extension, (uint32) key->extension);
	pg_atomic_write_u32(&map->queue_id, (uint32) key->queue_id);

	/*
	 * After the key has changed, and before the map gets a flag for its new
	 * queue, so that a session that has seen the old key, or parts of both,
	 * finds another number here before it would pass over the new queue.
	 */
	if (was_used)
		pg_atomic_fetch_add_u64(&shared->given, 1);
	pg_atomic_write_u64(&map->first_due, (uint64) DT_NOEND);
	map->owner = owner;
	map->open = 0;
	map->waiting = false;
	map->waiters = 0;
	map->numbers_at = 0;
	shmem_clear_flag(map, MAP_ARRIVALS);
	memset(map->counts, 0, sizeof(map->counts));
	forget_depths(map);

	/*
	 * Unless each queue with messages has had a map, this one may have some.
	 * The next recount counts them, and until then no depths are shown.
	 */
	if (home != NULL && depth_state_is_incomplete(&home->depths))
	{
		map->depth_generation = depth_generation();
		map->depths[DEPTH_READY] = DEPTH_NOT_EMPTY;
	}
	map->has_lanes = false;
	map->bound = -1;
	map->learn_at = 0;
	map->open_overflow = 0;
	shmem_clear_flag(map, MAP_COUNTED);
}

/* --- All maps --- */

/* Call a function for each map of an extension in this database, locked. */
void
shmem_for_each_map(Oid extension,
				   void (*function) (AvailabilityMap *map))
{
	uint32		n = shmem_count_maps();

	for (uint32 i = 0; i < n; i++)
	{
		MapKey		key = key_of(shmem_map_in_use(i));
		AvailabilityMap *map;

		if (key.database != MyDatabaseId || key.extension != extension)
			continue;
		map = lock_if_has_key(i + 1, &key);
		if (map == NULL)
			continue;
		function(map);
		LWLockRelease(&map->lock);
	}
}

/*
 * A database was dropped, or has no other extension than "except" any more:
 * the maps of the others are not needed.
 */
void
shmem_clear_maps(Oid database, Oid except)
{
	uint32		n = shmem_count_maps();

	for (uint32 i = 0; i < n; i++)
	{
		MapKey		key = key_of(shmem_map_in_use(i));

		if (key.database == database && key.extension != except)
			give_back_map(&key);
	}
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
 * Returns a number for a map that begins anew, which was never used before.
 */
uint64
shmem_next_incarnation(void)
{
	return pg_atomic_add_fetch_u64(&shared->incarnations, 1);
}

/*
 * Returns how many maps there are, some of which may not be in use.  They are
 * shmem_map_in_use(0) and so on.
 */
uint32
shmem_count_maps(void)
{
	uint32		n = pg_atomic_read_u32(&shared->used);

	pg_read_barrier();
	return n;
}

AvailabilityMap *
shmem_map_in_use(uint32 i)
{
	return map_at(i + 1);
}

/* Returns how many maps are in use. */
uint32
shmem_places_used(void)
{
	return pg_atomic_read_u32(&shared->n);
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

/* Returns the words that have a flag of all maps: a bit for each number. */
pg_atomic_uint32 *
shmem_flag_words(MapFlag flag)
{
	return flags + flag * flag_words();
}
