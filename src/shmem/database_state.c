/*-------------------------------------------------------------------------
 *
 * database_state.c
 *	  The databases that have a worker, in shared memory.
 *
 * NOTES
 *	  A database gets an entry in the array when the extension is created or
 *	  first used in it, or when the launcher starts and looks at all
 *	  databases.  It loses the entry when it is dropped.  The lock of the
 *	  array protects what is not atomic.
 *
 *	  A session looks up its entry once.  The entry of a template database,
 *	  which gets no worker, may be given to another database later; therefore
 *	  each use compares the OID.
 *
 *	  A worker that is about to sleep publishes until when (sleeps_until), and
 *	  then looks at everything once more.  A session that makes something due
 *	  earlier publishes that first (next_due), and then reads sleeps_until; if
 *	  the worker sleeps longer, the session replaces that by DT_NOBEGIN and
 *	  sets the worker's latch.  With a memory barrier on both sides one of the
 *	  two sees what the other has written.
 *
 *	  Some commands have consequences for the whole database when they commit:
 *	  a worker is started, or has to read the handlers again.  They record
 *	  that here, and the consequences follow at the end of the transaction,
 *	  before its pending changes are returned to the availability maps
 *	  (pending.c; module.c has the order of the callbacks).  This order matters:
 *	  the return makes the worker visit the queue, and if its copy of the
 *	  handlers did not count as outdated by then, it could leave the queue
 *	  alone as still paused.
 *
 * src/shmem/database_state.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"

#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "util/clock.h"
#include "util/xact.h"

#define VACATE_TIME		(10 * USECS_PER_SEC)	/* no worker for so long */
#define LAUNCHER_START	(10 * USECS_PER_SEC)	/* time for it to appear */

SharedDatabases *databases = NULL;

/* Registers a launcher; NULL if the postmaster starts one itself */
static void (*register_launcher) (void) = NULL;

/* The entry of this session's database; NULL if not looked up, or no room */
static DatabaseState *mine = NULL;

/* What this transaction has changed, a bit for each DatabaseChange */
static int	changes = 0;

/* What this transaction adds to the counters */
static uint64 counts[WORKER_COUNTERS];

static void init_databases(void *area);
static void start_launcher(void);
static void lower_time(pg_atomic_uint64 *time, TimestampTz due);
static void wake_worker_of(DatabaseState *state, TimestampTz due,
						   bool arrivals);
static void database_end(XactEvent event);

/*
 * The list has no records, so the rollback of a subtransaction takes nothing
 * back: at worst the worker looks for something that is not there.
 */
XactList	database_callbacks = {
	.record_size = sizeof(XactRecord),
	.end = database_end
};

/* --- Setting up --- */

static void
init_databases(void *area)
{
	SharedDatabases *new = area;

	pg_atomic_init_u32(&new->launcher, 0);
	pg_atomic_init_u32(&new->are_new, 1);
	pg_atomic_init_u64(&new->launcher_asked_at, 0);
	for (int i = 0; i < DATABASES_MAX; i++)
	{
		DatabaseState *state = &new->states[i];

		pg_atomic_init_u32(&state->creations, 0);
		pg_atomic_init_u32(&state->handler_changes, 0);
		pg_atomic_init_u32(&state->proc, 0);
		pg_atomic_init_u64(&state->sleeps_until, 0);
		pg_atomic_init_u64(&state->next_due, 0);
		pg_atomic_init_u64(&state->maps_missing, 1);
		pg_atomic_init_u64(&state->maps_restored, 0);
		pg_atomic_init_u64(&state->full_visit_at, 0);
		pg_atomic_init_u32(&state->flags, 0);
		pg_atomic_init_u64(&state->batches_lost, 0);
		for (int j = 0; j < WORKER_COUNTERS; j++)
			pg_atomic_init_u64(&state->counters[j], 0);
		depth_state_init(&state->depths);
		segment_state_init(&state->ring);
	}
}

/* To be called once, when the library is loaded. */
void
database_init(void)
{
	shmem_add_area(&databases, sizeof(SharedDatabases), LOCK_DATABASES,
				   init_databases, NULL);
}

/* --- Entries of the array --- */

/*
 * Returns the entry of a database; NULL if there is none.  We read without
 * the lock, so the entry may be given to another database at any time.
 */
DatabaseState *
database_of(Oid database)
{
	for (int i = 0; i < DATABASES_MAX; i++)
		if (databases->states[i].database == database)
			return &databases->states[i];
	return NULL;
}

/*
 * Returns the entry of a database, and makes it if there is none and "make"
 * is set; NULL if there is none, or no room.  The caller holds the lock of
 * the array, in exclusive mode to make one.
 */
DatabaseState *
database_find(Oid database, bool make)
{
	DatabaseState *state = database_of(database);
	DatabaseState *unused;

	Assert(LWLockHeldByMe(&databases->lock));
	if (state != NULL || !make)
		return state;
	unused = database_of(InvalidOid);
	if (unused == NULL)
		return NULL;

	Assert(LWLockHeldByMeInMode(&databases->lock, LW_EXCLUSIVE));
	unused->database = database;
	unused->state = WORKER_NONE;
	unused->pid = 0;
	unused->start_at = 0;
	unused->last_run = 0;
	unused->last_error_at = 0;
	unused->last_error[0] = '\0';
	unused->leave = false;
	pg_atomic_write_u32(&unused->handler_changes, 0);
	pg_atomic_write_u32(&unused->proc, 0);
	pg_atomic_write_u64(&unused->sleeps_until, (uint64) DT_NOBEGIN);
	pg_atomic_write_u64(&unused->next_due, (uint64) DT_NOBEGIN);

	/* So that it differs from maps_restored: no queue may have a map. */
	pg_atomic_fetch_add_u64(&unused->maps_missing, 1);
	pg_atomic_write_u64(&unused->full_visit_at, (uint64) DT_NOBEGIN);
	for (int i = 0; i < WORKER_COUNTERS; i++)
		pg_atomic_write_u64(&unused->counters[i], 0);
	pg_atomic_write_u32(&unused->flags, 0);
	unused->batches = 0;
	depth_state_reset(&unused->depths);
	pg_atomic_write_u32(&unused->ring.extension, InvalidOid);
	return unused;
}

/*
 * Returns the entry of this session's database; NULL if the session has not
 * looked it up (database_join), or there is none.  It may be given to another
 * database at any time.
 */
DatabaseState *
database_mine(void)
{
	return mine != NULL && mine->database == MyDatabaseId ? mine : NULL;
}

/*
 * Returns a copy of the entries of all databases that have, or are to have, a
 * worker.
 */
DatabaseState *
database_list(int *n)
{
	DatabaseState *list = palloc(DATABASES_MAX * sizeof(DatabaseState));
	const DatabaseState *states = databases->states;

	*n = 0;
	shmem_lock(&databases->lock, LW_SHARED);
	for (int i = 0; i < DATABASES_MAX; i++)
		if (OidIsValid(states[i].database) && states[i].state != WORKER_NONE)
			list[(*n)++] = states[i];
	LWLockRelease(&databases->lock);
	return list;
}

/* Have a worker started for this session's database, unless there is one. */
void
database_announce(void)
{
	bool		wanted = false;

	shmem_lock(&databases->lock, LW_EXCLUSIVE);
	mine = database_find(MyDatabaseId, true);
	if (mine != NULL && mine->state == WORKER_NONE)
	{
		mine->state = WORKER_WANTED;
		wanted = true;
	}
	LWLockRelease(&databases->lock);
	if (wanted)
		database_wake_launcher();
}

/*
 * Look up the entry of this session's database, and have a worker started
 * unless there is one.  To be called before anything that the worker has to
 * notice.
 */
void
database_join(void)
{
	/* Mostly both were done before, and we need no lock to see that. */
	if (database_mine() == NULL || mine->state == WORKER_NONE)
		database_announce();
}

/* Returns whether a worker runs in this session's database. */
bool
database_has_worker(void)
{
	return database_mine() != NULL && mine->pid != 0;
}

/*
 * A database is about to be dropped, renamed, moved or copied: its worker has
 * to exit, and is not started again for a while.
 */
void
database_vacate(Oid database)
{
	DatabaseState *state;

	shmem_lock(&databases->lock, LW_EXCLUSIVE);
	state = database_find(database, false);
	if (state != NULL)
	{
		state->leave = state->pid != 0;
		state->start_at = clock_monotonic() + VACATE_TIME;
		database_set_latch(&state->proc);
	}
	LWLockRelease(&databases->lock);
}

/* --- Waking the worker and the launcher --- */

/* Set the latch of a worker or the launcher: DatabaseState.proc, say. */
void
database_set_latch(pg_atomic_uint32 *proc)
{
	uint32		number = pg_atomic_read_u32(proc);

	/* If the number belongs to another process by now, that does no harm. */
	if (number != 0)
		SetLatch(&ProcGlobal->allProcs[number - 1].procLatch);
}

/* Lower a time that other processes may lower as well. */
static void
lower_time(pg_atomic_uint64 *time, TimestampTz due)
{
	uint64		next = pg_atomic_read_u64(time);

	while (due < (TimestampTz) next)
		if (pg_atomic_compare_exchange_u64(time, &next, (uint64) due))
			break;
}

/*
 * Something will be due at that time, or (if "arrivals" is set) there is
 * something to do at once: wake a worker that sleeps longer.
 */
static void
wake_worker_of(DatabaseState *state, TimestampTz due, bool arrivals)
{
	uint64		until;

	lower_time(&state->next_due, due);

	/* Pairs with the barrier between the worker's write and its last look. */
	pg_memory_barrier();
	until = pg_atomic_read_u64(&state->sleeps_until);

	/* Only the first of many sessions sets the latch. */
	while (arrivals ? until != (uint64) DT_NOBEGIN : due < (TimestampTz) until)
		if (pg_atomic_compare_exchange_u64(&state->sleeps_until, &until,
										   (uint64) DT_NOBEGIN))
		{
			database_set_latch(&state->proc);
			break;
		}
}

/* See wake_worker_of(); for the worker of this session's database. */
void
database_wake(TimestampTz due, bool arrivals)
{
	if (database_mine() != NULL)
		wake_worker_of(mine, due, arrivals);
}

/*
 * A queue of the database that may have messages has no availability map, and
 * something is due there at that time.  We do not record which queue that is,
 * so the worker visits all of them.  "state" is NULL if the database has no
 * entry.
 */
void
database_map_missing(DatabaseState *state, TimestampTz due)
{
	if (state == NULL)
		return;
	pg_atomic_fetch_add_u64(&state->maps_missing, 1);

	/* Nothing is due, so the worker need not visit the queue. */
	if (due == DT_NOEND)
		return;
	lower_time(&state->full_visit_at, due);
	wake_worker_of(state, due, false);
}

/*
 * Set a flag.  Does nothing if the database has no entry: nothing that is
 * known of it in shared memory could be wrong then.
 */
void
database_set_flag(DatabaseState *state, DatabaseFlag flag)
{
	/* Mostly it is set, and to read is cheaper. */
	if (state != NULL && (pg_atomic_read_u32(&state->flags) & flag) == 0)
		pg_atomic_fetch_or_u32(&state->flags, flag);
}

/* Returns whether a flag of this session's database was set; clears it. */
bool
database_take_flag(DatabaseFlag flag)
{
	return database_mine() != NULL &&
		(pg_atomic_read_u32(&mine->flags) & flag) != 0 &&
		(pg_atomic_fetch_and_u32(&mine->flags, ~flag) & flag) != 0;
}

/*
 * A row is about to be written into the history: the worker has to look at its
 * tables, a little later.
 */
void
database_history_written(void)
{
	if (database_mine() == NULL ||
		(pg_atomic_read_u32(&mine->flags) & DATABASE_HISTORY) != 0)
		return;
	database_set_flag(mine, DATABASE_HISTORY);
	database_wake(GetCurrentTimestamp() + HISTORY_PAUSE, false);
}

/* Set the latch of this database's worker, whatever it waits for. */
void
database_wake_worker(void)
{
	DatabaseState *state;

	shmem_lock(&databases->lock, LW_EXCLUSIVE);
	state = database_find(MyDatabaseId, false);
	if (state != NULL)
		database_set_latch(&state->proc);
	LWLockRelease(&databases->lock);
}

/* Without preloading: start the launcher if there is none. */
static void
start_launcher(void)
{
	uint64		asked_at;
	int64		now;

	if (register_launcher == NULL ||
		pg_atomic_read_u32(&databases->launcher) != 0)
		return;
	asked_at = pg_atomic_read_u64(&databases->launcher_asked_at);
	now = clock_monotonic();

	/*
	 * One session registers it.  If it has not appeared after a while, it
	 * could not be started, and another session tries again.
	 */
	if ((asked_at == 0 || now - (int64) asked_at > LAUNCHER_START) &&
		pg_atomic_compare_exchange_u64(&databases->launcher_asked_at, &asked_at,
									   (uint64) now))
		register_launcher();
}

/* Set the launcher's latch; if there is no launcher, have it started. */
void
database_wake_launcher(void)
{
	database_set_latch(&databases->launcher);
	start_launcher();
}

/* From now on, start a launcher by this function whenever there is none. */
void
database_start_launcher_by(void (*function) (void))
{
	register_launcher = function;

	/*
	 * If CREATE EXTENSION loads the library, start the launcher after the
	 * commit: before that the worker would see no extension, and end.
	 */
	if (creating_extension)
		database_record_change(CHANGE_EXTENSION_CREATED);
	else
		start_launcher();
}

/* --- What a transaction has done --- */

/* Record a change that has consequences if this transaction commits. */
void
database_record_change(DatabaseChange change)
{
	changes |= change;
}

/* Add to a counter if this transaction commits. */
void
database_count(WorkerCounter counter, uint64 n)
{
	counts[counter] += n;
}

/*
 * Returns a number that changes when handlers, or which queues are paused,
 * have changed.  It is increased after others can see the new rows.
 */
uint32
database_handler_changes(void)
{
	return mine == NULL ? 0 : pg_atomic_read_u32(&mine->handler_changes);
}

/* Callback after commit, prepare or abort */
static void
database_end(XactEvent event)
{
	int			what = event == XACT_EVENT_COMMIT ? changes : 0;

	for (int i = 0; i < WORKER_COUNTERS; i++)
	{
		if (event == XACT_EVENT_COMMIT && counts[i] > 0 &&
			database_mine() != NULL)
			pg_atomic_fetch_add_u64(&mine->counters[i], counts[i]);
		counts[i] = 0;
	}
	changes = 0;

	if (what & CHANGE_EXTENSION_CREATED)
	{
		database_announce();

		/*
		 * A worker may have looked for the extension before, and be about to
		 * end because it has found none: the count makes it come back.
		 */
		if (mine != NULL)
		{
			shmem_lock(&databases->lock, LW_EXCLUSIVE);
			pg_atomic_fetch_add_u32(&mine->creations, 1);
			LWLockRelease(&databases->lock);

			/* That worker may have ended before we counted. */
			database_announce();
		}
	}
	if (what & CHANGE_DATABASE_CREATED)
	{
		pg_atomic_write_u32(&databases->are_new, 1);
		database_wake_launcher();
	}
	if (what & CHANGE_EXTENSION_DROPPED)
		database_wake_worker();
	if (what & CHANGE_HANDLERS)
	{
		database_join();
		if (mine != NULL)
			pg_atomic_fetch_add_u32(&mine->handler_changes, 1);
		database_wake_worker();
	}
}
