/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  Shared memory: setting it up, and the arrays of maps and of databases.
 *
 * NOTES
 *	  There is shared memory if the library is in shared_preload_libraries.
 *	  Without it everything works, but slower.  It has two areas that are set
 *	  up here: this file's, which ends with the array of availability maps and
 *	  what belongs to them, and the lanes of queues with groups (lanes.c).  The
 *	  runners' is runner_pool.c's.
 *
 *	  The availability maps are in an array of small sets.  A map is found by
 *	  database, extension and queue: their hash names two sets, and the map is
 *	  in one of them.  So a lookup takes no lock but that of the map.  A new
 *	  map goes to the set that has more room, which lets
 *	  queue.max_availability_maps of them find room.  If both sets are full,
 *	  the new map evicts another one that was not used recently, and in which
 *	  no reservation is open.  The queue that has lost its map pays with one
 *	  scan from its start, and its worker visits all queues of the database if
 *	  something was due there (database_map_evicted).
 *
 *	  The lock of the array is held while a map is made; the lock of a map is
 *	  taken after it, and then that of all lanes, since a map that is evicted
 *	  leaves its lanes to others.  The numbers of the maps in use are in the
 *	  array "used", which only grows, so that all maps in use can be listed
 *	  without the lock.
 *
 *	  The memory of a map that was never used is never written, so the kernel
 *	  need not provide it.
 *
 * src/shmem/shmem.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "shmem/availability.h"
#include "shmem/database_state.h"
#include "shmem/lanes.h"
#include "shmem/shmem.h"
#include "util/settings.h"

#define WAYS		8			/* maps in a set */
#define CHOICES		2			/* sets in which a map may be */
#define CLOSINGS	64			/* condition variables that maps share */

/*
 * All of shared memory.  It is followed by the numbers of the maps in use, in
 * the order in which they were first used, and by the words of the flags.
 *
 * Set once: lock, database_lock, nsets, started_at.
 */
typedef struct SharedState
{
	LWLock	   *lock;			/* held while a map is made */
	LWLock	   *database_lock;	/* protects databases, see DatabaseState */
	uint32		nsets;
	TimestampTz started_at;		/* when this memory was initialized */
	pg_atomic_uint64 incarnations;	/* how many maps have begun anew */
	pg_atomic_uint32 nused;		/* maps in use; only grows, with the lock */
	pg_atomic_uint32 launcher;	/* its number in allProcs, plus 1; 0: none */
	pg_atomic_uint32 new_databases; /* the launcher has to look for some */
	ConditionVariable closings[CLOSINGS];
	DatabaseState databases[DATABASES_MAX];
	AvailabilityMap maps[FLEXIBLE_ARRAY_MEMBER];
} SharedState;

typedef struct MapKey
{
	Oid			database;
	Oid			extension;		/* OID of the table queue_data.queue */
	int32		queue_id;
} MapKey;

static SharedState *state = NULL;
static uint32 *used = NULL;		/* numbers of the maps in use */
static pg_atomic_uint32 *flags[MAP_FLAGS];	/* a bit for each map */

static uint32 flag_words(uint32 nsets);
static Size shared_size(uint32 nsets);
static uint32 wanted_sets(void);
static void request(void);
static void startup(void);
static MapKey make_key(Oid extension, int32 queue_id);
static AvailabilityMap *set_of(const MapKey *key, int choice);
static bool has_key(const AvailabilityMap *map, const MapKey *key);
static AvailabilityMap *find(const MapKey *key);
static int	count_in(const AvailabilityMap *set);
static AvailabilityMap *find_victim(AvailabilityMap *set);
static AvailabilityMap *find_room(const MapKey *key);
static bool make_map(const MapKey *key);
static DatabaseState *prepare_eviction(const AvailabilityMap *map,
									   TimestampTz *due);
static void init_map(AvailabilityMap *map, const MapKey *key);
static void for_each_map(Oid database, Oid extension, bool is_of,
						 void (*function) (AvailabilityMap *map,
										   TimestampTz now));
static pg_atomic_uint32 *flag_word(const AvailabilityMap *map, MapFlag flag,
								   uint32 *bit);

static shmem_request_hook_type previous_request = NULL;
static shmem_startup_hook_type previous_startup = NULL;

/* --- Setting up --- */

/* How many words have a bit for each map? */
static uint32
flag_words(uint32 nsets)
{
	return (nsets * WAYS + 31) / 32;
}

static Size
shared_size(uint32 nsets)
{
	Size		size = offsetof(SharedState, maps);

	size = add_size(size, mul_size(nsets * WAYS,
								   sizeof(AvailabilityMap) + sizeof(uint32)));
	return add_size(size, mul_size(flag_words(nsets),
								   MAP_FLAGS * sizeof(pg_atomic_uint32)));
}

static uint32
wanted_sets(void)
{
	uint32		n = (uint32) setting_max_availability_maps;

	/* With half as many more, two choices of a set have room for all. */
	return (n + n / 2 + WAYS - 1) / WAYS;
}

static void
request(void)
{
	if (previous_request != NULL)
		previous_request();
	RequestAddinShmemSpace(add_size(shared_size(wanted_sets()),
									lanes_size()));
	RequestNamedLWLockTranche("queue", 3);
}

static void
startup(void)
{
	LWLockPadded *locks;
	bool		found;

	if (previous_startup != NULL)
		previous_startup();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	locks = GetNamedLWLockTranche("queue");
	lanes_startup(&locks[2].lock);
	state = ShmemInitStruct("queue", shared_size(wanted_sets()), &found);
	if (!found)
	{
		/* The maps are all zero, as is new memory. */
		state->lock = &locks[0].lock;
		state->database_lock = &locks[1].lock;
		state->nsets = wanted_sets();
		state->started_at = GetCurrentTimestamp();
		pg_atomic_init_u64(&state->incarnations, 0);
		pg_atomic_init_u32(&state->nused, 0);
		pg_atomic_init_u32(&state->launcher, 0);
		pg_atomic_init_u32(&state->new_databases, 1);
		for (int i = 0; i < CLOSINGS; i++)
			ConditionVariableInit(&state->closings[i]);
		for (int i = 0; i < DATABASES_MAX; i++)
			database_state_init(&state->databases[i]);
	}
	used = (uint32 *) &state->maps[state->nsets * WAYS];
	for (int i = 0; i < MAP_FLAGS; i++)
	{
		flags[i] = (pg_atomic_uint32 *) (used + state->nsets * WAYS) +
			i * flag_words(state->nsets);
		for (uint32 j = 0; !found && j < flag_words(state->nsets); j++)
			pg_atomic_init_u32(&flags[i][j], 0);
	}
	LWLockRelease(AddinShmemInitLock);
}

/* Request shared memory; called when the postmaster loads the library. */
void
shmem_init(void)
{
	previous_request = shmem_request_hook;
	shmem_request_hook = request;
	previous_startup = shmem_startup_hook;
	shmem_startup_hook = startup;
	database_register_callbacks();
}

bool
shmem_exists(void)
{
	return state != NULL;
}

TimestampTz
shmem_started_at(void)
{
	return state->started_at;
}

/* --- Finding and making maps --- */

static MapKey
make_key(Oid extension, int32 queue_id)
{
	MapKey		key;

	key.database = MyDatabaseId;
	key.extension = extension;
	key.queue_id = queue_id;
	return key;
}

/* One of the sets in which the map may be */
static AvailabilityMap *
set_of(const MapKey *key, int choice)
{
	uint32		hash = hash_bytes((const unsigned char *) key,
								  sizeof(MapKey));

	if (choice > 0)
		hash = murmurhash32(hash);
	return &state->maps[(hash % state->nsets) * WAYS];
}

static bool
has_key(const AvailabilityMap *map, const MapKey *key)
{
	return map_queue_id(map) == key->queue_id &&
		map_extension(map) == key->extension &&
		map_database(map) == key->database;
}

/*
 * The map with this key, locked; NULL: there is none.  A map that is being made
 * may be missed; the session that makes it scans the queue later than now.
 */
static AvailabilityMap *
find(const MapKey *key)
{
	for (int i = 0; i < CHOICES * WAYS; i++)
	{
		AvailabilityMap *map = set_of(key, i / WAYS) + i % WAYS;

		if (!has_key(map, key))
			continue;
		LWLockAcquire(&map->lock, LW_EXCLUSIVE);
		if (has_key(map, key))
		{
			map->used = true;
			return map;
		}
		LWLockRelease(&map->lock);
	}
	return NULL;
}

/*
 * The map of a queue, locked; NULL: there is none.  The extension is named by
 * its catalog_queue_oid(), which the caller has looked up before the end of the
 * transaction.
 */
AvailabilityMap *
shmem_find_map(Oid extension, int32 queue_id)
{
	MapKey		key = make_key(extension, queue_id);

	return find(&key);
}

/* How many maps of the set are in use? */
static int
count_in(const AvailabilityMap *set)
{
	int			n = 0;

	while (n < WAYS && OidIsValid(map_database(&set[n])))
		n++;
	return n;
}

/*
 * A map of the set to evict, locked; NULL: all are in use right now.  Maps with
 * counters that are not yet written, which would be lost, or arrivals that are
 * not yet notified, are the last choice.
 */
static AvailabilityMap *
find_victim(AvailabilityMap *set)
{
	for (int i = 0; i < 3 * WAYS; i++)
	{
		AvailabilityMap *map = &set[i % WAYS];

		LWLockAcquire(&map->lock, LW_EXCLUSIVE);
		if (map->open == 0 && map->waiters == 0 && !map->used &&
			(i >= 2 * WAYS || (!shmem_has_flag(map, MAP_COUNTED) &&
							   !shmem_has_flag(map, MAP_ARRIVALS))))
			return map;
		map->used = false;
		LWLockRelease(&map->lock);
	}
	return NULL;
}

/*
 * Room for one more map, locked, in that of its sets that has more room; NULL:
 * all maps in both are in use right now.  The lock of the array is held.
 */
static AvailabilityMap *
find_room(const MapKey *key)
{
	AvailabilityMap *set = set_of(key, 0);
	AvailabilityMap *map = NULL;

	for (int i = 1; i < CHOICES; i++)
		if (count_in(set_of(key, i)) < count_in(set))
			set = set_of(key, i);
	for (int i = 0; i < WAYS; i++)
	{
		map = &set[i];
		if (OidIsValid(map_database(map)))
			continue;
		LWLockInitialize(&map->lock, state->lock->tranche);
		LWLockAcquire(&map->lock, LW_EXCLUSIVE);
		ConditionVariableInit(&map->arrival);
		used[pg_atomic_read_u32(&state->nused)] =
			shmem_map_number(map);
		pg_write_barrier();
		pg_atomic_fetch_add_u32(&state->nused, 1);
		return map;
	}

	/* There is no room left: evict a map. */
	map = find_victim(set);
	for (int i = 0; i < CHOICES && map == NULL; i++)
		map = find_victim(set_of(key, i));
	return map;
}

/*
 * The map of a queue, locked, made if there is none yet; NULL: there is no
 * room.
 */
AvailabilityMap *
shmem_get_map(int32 queue_id)
{
	MapKey		key = make_key(catalog_queue_oid(), queue_id);
	AvailabilityMap *map;

	/* A new map may be evicted before it is found and locked. */
	while ((map = find(&key)) == NULL)
		if (!make_map(&key))
			return NULL;
	return map;
}

/* Make a map, unless there is one by now.  False: there is no room. */
static bool
make_map(const MapKey *key)
{
	DatabaseState *home = NULL; /* of the map that is evicted */
	TimestampTz due = DT_NOEND; /* when its worker has to visit the queue */
	AvailabilityMap *map;

	LWLockAcquire(state->lock, LW_EXCLUSIVE);
	map = find(key);
	if (map == NULL)
	{
		map = find_room(key);
		if (map != NULL)
		{
			if (OidIsValid(map_database(map)))
				home = prepare_eviction(map, &due);
			init_map(map, key);
		}
	}
	if (map != NULL)
		LWLockRelease(&map->lock);
	LWLockRelease(state->lock);
	database_map_evicted(home, due);
	return map != NULL;
}

/*
 * A map, which is locked, is about to be evicted.  Returns its database, and
 * when that database's worker has to visit the queue.
 */
static DatabaseState *
prepare_eviction(const AvailabilityMap *map, TimestampTz *due)
{
	DatabaseState *home = shmem_database(map_database(map));

	/* Before the key changes: a session that misses the map sees this. */
	if (home != NULL)
		pg_atomic_fetch_add_u64(&home->maps_evicted, 1);
	*due = map->arrivals != map->notified ? DT_NOBEGIN : map_wake_at(map);
	return home;
}

/* Give a map, which is locked, to a queue; the array is locked, too. */
static void
init_map(AvailabilityMap *map, const MapKey *key)
{
	pg_atomic_write_u32(&map->database, (uint32) key->database);
	pg_atomic_write_u32(&map->extension, (uint32) key->extension);
	pg_atomic_write_u32(&map->queue_id, (uint32) key->queue_id);
	map->used = true;
	map->open = 0;
	map->waiting = false;
	map->waiters = 0;
	map->notified = map->arrivals;
	shmem_clear_flag(map, MAP_ARRIVALS);
	memset(map->counts, 0, sizeof(map->counts));
	lanes_forget(map);
	map->has_lanes = false;
	map->bound = -1;
	map->last_turn = 0;
	map->learn_at = 0;
	map->open_overflow = 0;
	shmem_clear_flag(map, MAP_COUNTED);
	availability_reset(map, GetCurrentTimestamp());
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

/*
 * A database was dropped, or has no other extension than this one any more: what
 * the maps of the others know is not needed, and others get the room of their
 * lanes.
 */
void
shmem_clear_maps(Oid database, Oid except)
{
	for_each_map(database, except, false, availability_clear);
}

/* What a session sleeps on that waits until a reservation is closed */
ConditionVariable *
shmem_close_condition(const AvailabilityMap *map)
{
	return &state->closings[(map - state->maps) % CLOSINGS];
}

/*
 * Do sessions wait in so many maps of this one's set, which cannot be evicted
 * therefore, that new maps may find no room?
 */
bool
shmem_has_many_waiters(const AvailabilityMap *map)
{
	AvailabilityMap *set = &state->maps[(map - state->maps) / WAYS * WAYS];
	int			waited_for = 0;

	for (int i = 0; i < count_in(set); i++)
	{
		LWLockAcquire(&set[i].lock, LW_SHARED);
		if (set[i].waiters > 0)
			waited_for++;
		LWLockRelease(&set[i].lock);
	}
	return waited_for > WAYS / 2;
}

/* A number for a map that begins anew, never used before */
uint64
shmem_next_incarnation(void)
{
	return pg_atomic_add_fetch_u64(&state->incarnations, 1);
}

/* --- All maps in use --- */

/* How many maps are in use?  They are shmem_map_in_use(0) and so on. */
uint32
shmem_count_maps(void)
{
	uint32		n = pg_atomic_read_u32(&state->nused);

	pg_read_barrier();
	return n;
}

AvailabilityMap *
shmem_map_in_use(uint32 i)
{
	return &state->maps[used[i]];
}

/* Its number, which stays */
uint32
shmem_map_number(const AvailabilityMap *map)
{
	return (uint32) (map - state->maps);
}

/* --- Flags of maps --- */

/* The word that has a map's flag, and its bit there */
static pg_atomic_uint32 *
flag_word(const AvailabilityMap *map, MapFlag flag, uint32 *bit)
{
	uint32		i = shmem_map_number(map);

	*bit = (uint32) 1 << (i % 32);
	return &flags[flag][i / 32];
}

/* Set a flag of a map, which is locked; so for shmem_clear_flag(). */
void
shmem_set_flag(const AvailabilityMap *map, MapFlag flag)
{
	uint32		bit;
	pg_atomic_uint32 *word = flag_word(map, flag, &bit);

	if ((pg_atomic_read_u32(word) & bit) == 0)
		pg_atomic_fetch_or_u32(word, bit);
}

void
shmem_clear_flag(const AvailabilityMap *map, MapFlag flag)
{
	uint32		bit;
	pg_atomic_uint32 *word = flag_word(map, flag, &bit);

	if ((pg_atomic_read_u32(word) & bit) != 0)
		pg_atomic_fetch_and_u32(word, ~bit);
}

bool
shmem_has_flag(const AvailabilityMap *map, MapFlag flag)
{
	uint32		bit;
	pg_atomic_uint32 *word = flag_word(map, flag, &bit);

	return (pg_atomic_read_u32(word) & bit) != 0;
}

/* Does the queue's map have this flag?  True as well if it has no map. */
bool
shmem_is_flagged(Oid extension, int32 queue_id, MapFlag flag)
{
	AvailabilityMap *map = shmem_find_map(extension, queue_id);
	bool		result;

	if (map == NULL)
		return true;
	result = shmem_has_flag(map, flag);
	LWLockRelease(&map->lock);
	return result;
}

/* A valid number of a map to begin at with shmem_next_flagged() */
uint32
shmem_first_map(uint32 i)
{
	return i % (state->nsets * WAYS);
}

/*
 * The next map, of any database, that has the flag and whose number is *from or
 * higher; *from moves on.  NULL: there is no other.
 */
AvailabilityMap *
shmem_next_flagged(MapFlag flag, uint32 *from)
{
	while (*from < state->nsets * WAYS)
	{
		uint32		word = pg_atomic_read_u32(&flags[flag][*from / 32]) >>
		(*from % 32);

		if (word != 0)
		{
			*from += (uint32) pg_rightmost_one_pos32(word);
			return &state->maps[(*from)++];
		}
		*from = (*from / 32 + 1) * 32;
	}
	return NULL;
}

/* --- Databases and the launcher --- */

/*
 * The entry of a database; NULL: there is none.  Read without the lock: the
 * entry may be given to another database at any time.
 */
DatabaseState *
shmem_database(Oid database)
{
	for (int i = 0; i < DATABASES_MAX; i++)
		if (state->databases[i].database == database)
			return &state->databases[i];
	return NULL;
}

DatabaseState *
shmem_databases(void)
{
	return state->databases;
}

LWLock *
shmem_database_lock(void)
{
	return state->database_lock;
}

pg_atomic_uint32 *
shmem_new_databases(void)
{
	return &state->new_databases;
}

pg_atomic_uint32 *
shmem_launcher(void)
{
	return &state->launcher;
}
