/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  Shared memory: where the availability maps of queues live.
 *
 * NOTES
 *	  There is shared memory when the library is in shared_preload_libraries;
 *	  everything works without it, only slower.
 *
 *	  Availability maps are found by database, extension and queue in an array of small
 *	  sets, so that finding one takes no lock but the one in it.  A availability map may
 *	  be in either of two sets, and goes to the emptier one, so that as many as
 *	  queue.max_maps find room.  Where both are full, the making of one more
 *	  availability map forgets another, one that was not used of late and in which no
 *	  reservation is open.  That costs the queue one look from its start; and
 *	  the worker of its database looks at all queues when something is due
 *	  there, or was to be told (database_map_evicted).
 *
 *	  The memory of a availability map that was never used is never touched: the kernel
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
#include "shmem/shmem.h"
#include "util/settings.h"

#define WAYS		8			/* availability maps in a set */
#define SETS		2			/* in which a availability map may be */
#define CLOSINGS	64			/* availability maps share them */

/*
 * Behind the struct follow the availability maps, the numbers of those in use, in the
 * order in which they were first used, and the words of the flags.
 */
typedef struct SharedState
{
	LWLock	   *lock;			/* held while a availability map is made */
	LWLock	   *database_lock;
	uint32		nsets;
	TimestampTz started_at;		/* when this memory was made */
	pg_atomic_uint64 incarnations;	/* of availability maps, so far */
	pg_atomic_uint32 nused;		/* only grows */
	pg_atomic_uint32 launcher;	/* its process, plus 1 */
	pg_atomic_uint32 new_databases; /* it shall look for some */
	ConditionVariable closings[CLOSINGS];
	DatabaseState databases[DATABASES_MAX];
	AvailabilityMap		maps[FLEXIBLE_ARRAY_MEMBER];
} SharedState;

typedef struct CursorKey
{
	Oid			database;
	Oid			extension;		/* the OID of its table queue */
	int32		queue_id;
} CursorKey;

static SharedState *state = NULL;
static uint32 *used = NULL;
static pg_atomic_uint32 *flags[MAP_FLAGS];

static uint32 flag_words(uint32 nsets);
static Size shared_size(uint32 nsets);
static uint32 wanted_sets(void);
static void request(void);
static void startup(void);
static CursorKey make_key(Oid extension, int32 queue_id);
static AvailabilityMap *set_of(const CursorKey *key, int choice);
static bool has_key(const AvailabilityMap *map, const CursorKey *key);
static AvailabilityMap *find(const CursorKey *key);
static int	count_in(const AvailabilityMap *set);
static AvailabilityMap *find_victim(AvailabilityMap *set);
static AvailabilityMap *find_room(const CursorKey *key);
static bool make_map(const CursorKey *key);
static pg_atomic_uint32 *flag_word(const AvailabilityMap *map, MapFlag flag,
								   uint32 *bit);

static shmem_request_hook_type previous_request = NULL;
static shmem_startup_hook_type previous_startup = NULL;

/* Words of flags for so many availability maps */
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

	/* Half as many more: then two sets have room for all. */
	return (n + n / 2 + WAYS - 1) / WAYS;
}

static void
request(void)
{
	if (previous_request != NULL)
		previous_request();
	RequestAddinShmemSpace(shared_size(wanted_sets()));
	RequestNamedLWLockTranche("queue", 2);
}

static void
startup(void)
{
	bool		found;

	if (previous_startup != NULL)
		previous_startup();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	state = ShmemInitStruct("queue", shared_size(wanted_sets()), &found);
	if (!found)
	{
		LWLockPadded *locks = GetNamedLWLockTranche("queue");

		/* The availability maps are all zero: so is fresh memory. */
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

/* To be called as the postmaster loads the library. */
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

static CursorKey
make_key(Oid extension, int32 queue_id)
{
	CursorKey	key;

	key.database = MyDatabaseId;
	key.extension = extension;
	key.queue_id = queue_id;
	return key;
}

/* One of the two sets in which it may be. */
static AvailabilityMap *
set_of(const CursorKey *key, int choice)
{
	uint32		hash = hash_bytes((const unsigned char *) key,
								  sizeof(CursorKey));

	if (choice > 0)
		hash = murmurhash32(hash);
	return &state->maps[(hash % state->nsets) * WAYS];
}

static bool
has_key(const AvailabilityMap *map, const CursorKey *key)
{
	return map_queue_id(map) == key->queue_id &&
		map_extension(map) == key->extension &&
		map_database(map) == key->database;
}

/*
 * The availability map with this key, locked; NULL when there is none.  One that is
 * made just now may be missed: whoever makes it looks at the queue later than
 * now.
 */
static AvailabilityMap *
find(const CursorKey *key)
{
	for (int i = 0; i < SETS * WAYS; i++)
	{
		AvailabilityMap	   *map = set_of(key, i / WAYS) + i % WAYS;

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
 * The availability map of a queue, locked; NULL when there is none.  The extension is
 * named by its catalog_queue_oid(), which cannot be asked for after the end of
 * a transaction.
 */
AvailabilityMap *
shmem_find_map(Oid extension, int32 queue_id)
{
	CursorKey	key = make_key(extension, queue_id);

	return find(&key);
}

/* How many availability maps are in the set? */
static int
count_in(const AvailabilityMap *set)
{
	int			n = 0;

	while (n < WAYS && OidIsValid(map_database(&set[n])))
		n++;
	return n;
}

/*
 * A availability map of the set that may be given to another queue, locked; NULL when
 * all are in use right now.
 */
static AvailabilityMap *
find_victim(AvailabilityMap *set)
{
	/*
	 * Rather not one with counts that were not written yet, which are lost
	 * then, or with news that were not told yet.
	 */
	for (int i = 0; i < 3 * WAYS; i++)
	{
		AvailabilityMap	   *map = &set[i % WAYS];

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
 * Room for one more, locked, in that of its sets that has more of it; NULL
 * when all availability maps in both are in use right now.
 */
static AvailabilityMap *
find_room(const CursorKey *key)
{
	AvailabilityMap	   *set = set_of(key, 0);
	AvailabilityMap	   *map = NULL;

	for (int i = 1; i < SETS; i++)
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
			(uint32) (map - state->maps);
		pg_write_barrier();
		pg_atomic_fetch_add_u32(&state->nused, 1);
		return map;
	}

	/* There is none left: take another queue's. */
	map = find_victim(set);
	for (int i = 0; i < SETS && map == NULL; i++)
		map = find_victim(set_of(key, i));
	return map;
}

/*
 * The availability map of a queue, locked, made if there is none yet; NULL when there
 * is no room.
 */
AvailabilityMap *
shmem_get_map(int32 queue_id)
{
	CursorKey	key = make_key(catalog_queue_oid(), queue_id);
	AvailabilityMap	   *map;

	/* Another one may take its place before we have it locked again. */
	while ((map = find(&key)) == NULL)
		if (!make_map(&key))
			return NULL;
	return map;
}

/* Make a availability map, unless there is one by now.  False: there is no room. */
static bool
make_map(const CursorKey *key)
{
	TimestampTz now = GetCurrentTimestamp();
	DatabaseState *home = NULL; /* of the queue that loses its availability map */
	TimestampTz due = DT_NOEND; /* when the worker has to look at that */
	AvailabilityMap	   *map;

	LWLockAcquire(state->lock, LW_EXCLUSIVE);
	map = find(key);
	if (map == NULL)
	{
		map = find_room(key);
		if (map != NULL)
		{
			if (OidIsValid(map_database(map)))
			{
				/* A session that misses the availability map has to find this changed. */
				home = shmem_database(map_database(map));
				if (home != NULL)
					pg_atomic_fetch_add_u64(&home->maps_evicted, 1);
				due = map->arrivals != map->notified ? DT_NOBEGIN :
					map_wake_at(map);
			}
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
			shmem_clear_flag(map, MAP_COUNTED);
			availability_reset(map, now);
		}
	}
	if (map != NULL)
		LWLockRelease(&map->lock);
	LWLockRelease(state->lock);
	database_map_evicted(home, due);
	return map != NULL;
}

/* Call a function for each availability map of an extension here, which is locked. */
void
shmem_for_each_map(Oid extension,
					  void (*function) (AvailabilityMap *map, TimestampTz now))
{
	TimestampTz now = GetCurrentTimestamp();
	uint32		n = shmem_count_maps();

	for (uint32 i = 0; i < n; i++)
	{
		AvailabilityMap	   *map = shmem_map_in_use(i);

		if (map_database(map) != MyDatabaseId)
			continue;
		LWLockAcquire(&map->lock, LW_EXCLUSIVE);
		if (map_database(map) == MyDatabaseId &&
			map_extension(map) == extension)
			function(map, now);
		LWLockRelease(&map->lock);
	}
}

/* What who waits for a closing of this availability map sleeps on. */
ConditionVariable *
shmem_closing(const AvailabilityMap *map)
{
	return &state->closings[(map - state->maps) % CLOSINGS];
}

/* Do sessions wait for so many in its set that there may be no room? */
bool
shmem_is_crowded(const AvailabilityMap *map)
{
	AvailabilityMap	   *set = &state->maps[(map - state->maps) / WAYS * WAYS];
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

/* A number for a availability map that begins anew: never the same. */
uint64
shmem_next_incarnation(void)
{
	return pg_atomic_add_fetch_u64(&state->incarnations, 1);
}

/* How many availability maps are in use; those that are have the numbers below. */
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

/* The word of a availability map's flag, and its bit there. */
static pg_atomic_uint32 *
flag_word(const AvailabilityMap *map, MapFlag flag, uint32 *bit)
{
	uint32		i = (uint32) (map - state->maps);

	*bit = (uint32) 1 << (i % 32);
	return &flags[flag][i / 32];
}

/* To be called with the availability map locked, as the next one. */
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

/* Has the queue's availability map this flag?  Of one that is not known: perhaps. */
bool
shmem_is_flagged(Oid extension, int32 queue_id, MapFlag flag)
{
	AvailabilityMap	   *map = shmem_find_map(extension, queue_id);
	bool		result;

	if (map == NULL)
		return true;
	result = shmem_has_flag(map, flag);
	LWLockRelease(&map->lock);
	return result;
}

/* A place to begin at with shmem_next_flagged */
uint32
shmem_wrap(uint32 i)
{
	return i % (state->nsets * WAYS);
}

/*
 * The next availability map, of whatever database, that has the flag and whose number
 * is not below *from, which moves on; NULL at the end.
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

/* The entry of a database; NULL: there is none.  Read without its lock. */
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
