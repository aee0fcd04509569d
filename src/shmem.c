/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  Shared memory: where the cursors of queues live.
 *
 * NOTES
 *	  There is shared memory when the library is in shared_preload_libraries;
 *	  everything works without it, only slower.
 *
 *	  Cursors are found by database, extension and queue in an array of small
 *	  sets, so that finding one takes no lock but the one in it.  A cursor may
 *	  be in either of two sets, and goes to the emptier one, so that as many as
 *	  queue.max_cursors find room.  Where both are full, the making of one more
 *	  cursor forgets another, one that was not used of late and in which no
 *	  reservation is open.  That costs the queue one look from its start; and
 *	  the worker of its database looks at all queues when something is due
 *	  there, or was to be told (database_lose).
 *
 *	  The memory of a cursor that was never used is never touched: the kernel
 *	  need not provide it.
 *
 * src/shmem.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#define WAYS		8			/* cursors in a set */
#define SETS		2			/* in which a cursor may be */
#define CLOSINGS	64			/* cursors share them */

/*
 * Behind the struct follow the cursors, the numbers of those in use, in the
 * order in which they were first used, and the words of the flags.
 */
typedef struct SharedState
{
	LWLock	   *lock;			/* held while a cursor is made */
	LWLock	   *database_lock;
	uint32		nsets;
	TimestampTz started_at;		/* when this memory was made */
	pg_atomic_uint64 incarnations;	/* of cursors, so far */
	pg_atomic_uint32 nused;		/* only grows */
	pg_atomic_uint32 launcher;	/* its process, plus 1 */
	pg_atomic_uint32 new_databases; /* it shall look for some */
	ConditionVariable closings[CLOSINGS];
	DatabaseState databases[DATABASES_MAX];
	Cursor		cursors[FLEXIBLE_ARRAY_MEMBER];
} SharedState;

typedef struct CursorKey
{
	Oid			database;
	Oid			extension;		/* the OID of its table queue */
	int32		queue_id;
} CursorKey;

static SharedState *state = NULL;
static uint32 *used = NULL;
static pg_atomic_uint32 *flags[CURSOR_FLAGS];

static uint32 flag_words(uint32 nsets);
static Size shared_size(uint32 nsets);
static uint32 wanted_sets(void);
static void request(void);
static void init_ring(RingState *ring);
static void startup(void);
static CursorKey make_key(Oid extension, int32 queue_id);
static Cursor *set_of(const CursorKey *key, int choice);
static bool has_key(const Cursor *cursor, const CursorKey *key);
static Cursor *find(const CursorKey *key);
static int	count_in(const Cursor *set);
static Cursor *find_victim(Cursor *set);
static Cursor *find_room(const CursorKey *key);
static bool make_cursor(const CursorKey *key);
static pg_atomic_uint32 *flag_word(const Cursor *cursor, CursorFlag flag,
								   uint32 *bit);

static shmem_request_hook_type previous_request = NULL;
static shmem_startup_hook_type previous_startup = NULL;

/* Words of flags for so many cursors */
static uint32
flag_words(uint32 nsets)
{
	return (nsets * WAYS + 31) / 32;
}

static Size
shared_size(uint32 nsets)
{
	Size		size = offsetof(SharedState, cursors);

	size = add_size(size, mul_size(nsets * WAYS,
								   sizeof(Cursor) + sizeof(uint32)));
	return add_size(size, mul_size(flag_words(nsets),
								   CURSOR_FLAGS * sizeof(pg_atomic_uint32)));
}

static uint32
wanted_sets(void)
{
	uint32		n = (uint32) queue_guc_max_cursors;

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
init_ring(RingState *ring)
{
	pg_atomic_init_u32(&ring->extension, InvalidOid);
	pg_atomic_init_u32(&ring->changed, 0);
	pg_atomic_init_u32(&ring->turns, 0);
	for (RingKind i = 0; i < RING_KINDS; i++)
	{
		pg_atomic_init_u32(&ring->active[i], 0);
		pg_atomic_init_u64(&ring->written[i], 0);
	}
	pg_atomic_init_u32(&ring->emptied, 0);
	pg_atomic_init_u32(&ring->moves, 0);
	pg_atomic_init_u64(&ring->due, (uint64) DT_NOEND);
	for (int i = 0; i < QUEUE_RELATIONS; i++)
	{
		pg_atomic_init_u64(&ring->segments[i].low, PG_INT64_MAX);
		pg_atomic_init_u64(&ring->segments[i].high, 0);
	}
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

		/* The cursors are all zero: so is fresh memory. */
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
		{
			DatabaseState *database = &state->databases[i];

			memset(database, 0, sizeof(DatabaseState));
			pg_atomic_init_u32(&database->proc, 0);
			pg_atomic_init_u64(&database->sleeps_until, 0);
			pg_atomic_init_u64(&database->next_due, 0);
			pg_atomic_init_u64(&database->lost, 1);
			pg_atomic_init_u64(&database->known, 0);
			pg_atomic_init_u64(&database->look_at, 0);
			for (int j = 0; j < WORKER_COUNTERS; j++)
				pg_atomic_init_u64(&database->counters[j], 0);
			init_ring(&database->ring);
		}
	}
	used = (uint32 *) &state->cursors[state->nsets * WAYS];
	for (int i = 0; i < CURSOR_FLAGS; i++)
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
static Cursor *
set_of(const CursorKey *key, int choice)
{
	uint32		hash = hash_bytes((const unsigned char *) key,
								  sizeof(CursorKey));

	if (choice > 0)
		hash = murmurhash32(hash);
	return &state->cursors[(hash % state->nsets) * WAYS];
}

static bool
has_key(const Cursor *cursor, const CursorKey *key)
{
	return cursor_queue_id(cursor) == key->queue_id &&
		cursor_extension(cursor) == key->extension &&
		cursor_database(cursor) == key->database;
}

/*
 * The cursor with this key, locked; NULL when there is none.  One that is
 * made just now may be missed: whoever makes it looks at the queue later than
 * now.
 */
static Cursor *
find(const CursorKey *key)
{
	for (int i = 0; i < SETS * WAYS; i++)
	{
		Cursor	   *cursor = set_of(key, i / WAYS) + i % WAYS;

		if (!has_key(cursor, key))
			continue;
		LWLockAcquire(&cursor->lock, LW_EXCLUSIVE);
		if (has_key(cursor, key))
		{
			cursor->used = true;
			return cursor;
		}
		LWLockRelease(&cursor->lock);
	}
	return NULL;
}

/*
 * The cursor of a queue, locked; NULL when there is none.  The extension is
 * named by its queue_table_oid(), which cannot be asked for after the end of
 * a transaction.
 */
Cursor *
shmem_find_cursor(Oid extension, int32 queue_id)
{
	CursorKey	key = make_key(extension, queue_id);

	return find(&key);
}

/* How many cursors are in the set? */
static int
count_in(const Cursor *set)
{
	int			n = 0;

	while (n < WAYS && OidIsValid(cursor_database(&set[n])))
		n++;
	return n;
}

/*
 * A cursor of the set that may be given to another queue, locked; NULL when
 * all are in use right now.
 */
static Cursor *
find_victim(Cursor *set)
{
	/*
	 * Rather not one with counts that were not written yet, which are lost
	 * then, or with news that were not told yet.
	 */
	for (int i = 0; i < 3 * WAYS; i++)
	{
		Cursor	   *cursor = &set[i % WAYS];

		LWLockAcquire(&cursor->lock, LW_EXCLUSIVE);
		if (cursor->open == 0 && cursor->waiters == 0 && !cursor->used &&
			(i >= 2 * WAYS || (!shmem_has_flag(cursor, CURSOR_COUNTED) &&
							   !shmem_has_flag(cursor, CURSOR_NEWS))))
			return cursor;
		cursor->used = false;
		LWLockRelease(&cursor->lock);
	}
	return NULL;
}

/*
 * Room for one more, locked, in that of its sets that has more of it; NULL
 * when all cursors in both are in use right now.
 */
static Cursor *
find_room(const CursorKey *key)
{
	Cursor	   *set = set_of(key, 0);
	Cursor	   *cursor = NULL;

	for (int i = 1; i < SETS; i++)
		if (count_in(set_of(key, i)) < count_in(set))
			set = set_of(key, i);
	for (int i = 0; i < WAYS; i++)
	{
		cursor = &set[i];
		if (OidIsValid(cursor_database(cursor)))
			continue;
		LWLockInitialize(&cursor->lock, state->lock->tranche);
		LWLockAcquire(&cursor->lock, LW_EXCLUSIVE);
		ConditionVariableInit(&cursor->arrival);
		used[pg_atomic_read_u32(&state->nused)] =
			(uint32) (cursor - state->cursors);
		pg_write_barrier();
		pg_atomic_fetch_add_u32(&state->nused, 1);
		return cursor;
	}

	/* There is none left: take another queue's. */
	cursor = find_victim(set);
	for (int i = 0; i < SETS && cursor == NULL; i++)
		cursor = find_victim(set_of(key, i));
	return cursor;
}

/*
 * The cursor of a queue, locked, made if there is none yet; NULL when there
 * is no room.
 */
Cursor *
shmem_get_cursor(int32 queue_id)
{
	CursorKey	key = make_key(queue_table_oid(), queue_id);
	Cursor	   *cursor;

	/* Another one may take its place before we have it locked again. */
	while ((cursor = find(&key)) == NULL)
		if (!make_cursor(&key))
			return NULL;
	return cursor;
}

/* Make a cursor, unless there is one by now.  False: there is no room. */
static bool
make_cursor(const CursorKey *key)
{
	TimestampTz now = GetCurrentTimestamp();
	DatabaseState *home = NULL; /* of the queue that loses its cursor */
	TimestampTz due = DT_NOEND; /* when the worker has to look at that */
	Cursor	   *cursor;

	LWLockAcquire(state->lock, LW_EXCLUSIVE);
	cursor = find(key);
	if (cursor == NULL)
	{
		cursor = find_room(key);
		if (cursor != NULL)
		{
			if (OidIsValid(cursor_database(cursor)))
			{
				/* A session that misses the cursor has to find this changed. */
				home = shmem_database(cursor_database(cursor));
				if (home != NULL)
					pg_atomic_fetch_add_u64(&home->lost, 1);
				due = cursor->news != cursor->told ? DT_NOBEGIN :
					cursor_wake_at(cursor);
			}
			pg_atomic_write_u32(&cursor->database, (uint32) key->database);
			pg_atomic_write_u32(&cursor->extension, (uint32) key->extension);
			pg_atomic_write_u32(&cursor->queue_id, (uint32) key->queue_id);
			cursor->used = true;
			cursor->open = 0;
			cursor->waiting = false;
			cursor->waiters = 0;
			cursor->told = cursor->news;
			shmem_clear_flag(cursor, CURSOR_NEWS);
			memset(cursor->counts, 0, sizeof(cursor->counts));
			shmem_clear_flag(cursor, CURSOR_COUNTED);
			cursor_reset(cursor, now);
		}
	}
	if (cursor != NULL)
		LWLockRelease(&cursor->lock);
	LWLockRelease(state->lock);
	database_lose(home, due);
	return cursor != NULL;
}

/* Call a function for each cursor of an extension here, which is locked. */
void
shmem_for_each_cursor(Oid extension,
					  void (*function) (Cursor *cursor, TimestampTz now))
{
	TimestampTz now = GetCurrentTimestamp();
	uint32		n = shmem_count_cursors();

	for (uint32 i = 0; i < n; i++)
	{
		Cursor	   *cursor = shmem_cursor_in_use(i);

		if (cursor_database(cursor) != MyDatabaseId)
			continue;
		LWLockAcquire(&cursor->lock, LW_EXCLUSIVE);
		if (cursor_database(cursor) == MyDatabaseId &&
			cursor_extension(cursor) == extension)
			function(cursor, now);
		LWLockRelease(&cursor->lock);
	}
}

/* What who waits for a closing of this cursor sleeps on. */
ConditionVariable *
shmem_closing(const Cursor *cursor)
{
	return &state->closings[(cursor - state->cursors) % CLOSINGS];
}

/* Do sessions wait for so many in its set that there may be no room? */
bool
shmem_is_crowded(const Cursor *cursor)
{
	Cursor	   *set = &state->cursors[(cursor - state->cursors) / WAYS * WAYS];
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

/* A number for a cursor that begins anew: never the same. */
uint64
shmem_next_incarnation(void)
{
	return pg_atomic_add_fetch_u64(&state->incarnations, 1);
}

/* How many cursors are in use; those that are have the numbers below. */
uint32
shmem_count_cursors(void)
{
	uint32		n = pg_atomic_read_u32(&state->nused);

	pg_read_barrier();
	return n;
}

Cursor *
shmem_cursor_in_use(uint32 i)
{
	return &state->cursors[used[i]];
}

/* The word of a cursor's flag, and its bit there. */
static pg_atomic_uint32 *
flag_word(const Cursor *cursor, CursorFlag flag, uint32 *bit)
{
	uint32		i = (uint32) (cursor - state->cursors);

	*bit = (uint32) 1 << (i % 32);
	return &flags[flag][i / 32];
}

/* To be called with the cursor locked, as the next one. */
void
shmem_set_flag(const Cursor *cursor, CursorFlag flag)
{
	uint32		bit;
	pg_atomic_uint32 *word = flag_word(cursor, flag, &bit);

	if ((pg_atomic_read_u32(word) & bit) == 0)
		pg_atomic_fetch_or_u32(word, bit);
}

void
shmem_clear_flag(const Cursor *cursor, CursorFlag flag)
{
	uint32		bit;
	pg_atomic_uint32 *word = flag_word(cursor, flag, &bit);

	if ((pg_atomic_read_u32(word) & bit) != 0)
		pg_atomic_fetch_and_u32(word, ~bit);
}

bool
shmem_has_flag(const Cursor *cursor, CursorFlag flag)
{
	uint32		bit;
	pg_atomic_uint32 *word = flag_word(cursor, flag, &bit);

	return (pg_atomic_read_u32(word) & bit) != 0;
}

/* Has the queue's cursor this flag?  Of one that is not known: perhaps. */
bool
shmem_is_flagged(Oid extension, int32 queue_id, CursorFlag flag)
{
	Cursor	   *cursor = shmem_find_cursor(extension, queue_id);
	bool		result;

	if (cursor == NULL)
		return true;
	result = shmem_has_flag(cursor, flag);
	LWLockRelease(&cursor->lock);
	return result;
}

/* A place to begin at with shmem_next_flagged */
uint32
shmem_wrap(uint32 i)
{
	return i % (state->nsets * WAYS);
}

/*
 * The next cursor, of whatever database, that has the flag and whose number
 * is not below *from, which moves on; NULL at the end.
 */
Cursor *
shmem_next_flagged(CursorFlag flag, uint32 *from)
{
	while (*from < state->nsets * WAYS)
	{
		uint32		word = pg_atomic_read_u32(&flags[flag][*from / 32]) >>
			(*from % 32);

		if (word != 0)
		{
			*from += (uint32) pg_rightmost_one_pos32(word);
			return &state->cursors[(*from)++];
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
