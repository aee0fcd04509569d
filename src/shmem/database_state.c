/*-------------------------------------------------------------------------
 *
 * database_state.c
 *	  The databases that have a worker, as shared memory knows them.
 *
 * NOTES
 *	  A database comes into the array when the extension is created or first
 *	  used in it, or when the launcher starts and looks at all databases.  It
 *	  leaves it when it is dropped.
 *
 *	  A worker that goes to sleep says until when.  Whoever makes something
 *	  due earlier sets its latch; the first one who does so says that the
 *	  worker is awake, so that the others need not.  A worker that is awake
 *	  looks at everything once more before it sleeps.
 *
 *	  The lock of the array guards what is not atomic.  A session finds its
 *	  entry once.  That of a template database, which gets no worker, may be
 *	  somebody else's later.
 *
 * src/shmem/database_state.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"

#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "util/clock.h"

static DatabaseState *mine = NULL;

/* What this transaction has to add to the counters */
static uint64 counts[WORKER_COUNTERS];
static bool counted = false;

static void set_latch_of(pg_atomic_uint32 *proc);
static void lower(pg_atomic_uint64 *time, TimestampTz due);
static void wake(DatabaseState *state, TimestampTz due, bool arrivals);

/* The entry of a database; the lock is held, exclusively to make one. */
DatabaseState *
database_find(Oid database, bool make)
{
	DatabaseState *databases = shmem_databases();
	DatabaseState *unused = NULL;

	for (int i = 0; i < DATABASES_MAX; i++)
	{
		if (databases[i].database == database)
			return &databases[i];
		if (!OidIsValid(databases[i].database) && unused == NULL)
			unused = &databases[i];
	}
	if (!make || unused == NULL)
		return NULL;

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
	pg_atomic_fetch_add_u64(&unused->lost, 1);
	pg_atomic_write_u64(&unused->look_at, (uint64) DT_NOBEGIN);
	for (int i = 0; i < WORKER_COUNTERS; i++)
		pg_atomic_write_u64(&unused->counters[i], 0);
	pg_atomic_write_u32(&unused->ring.extension, InvalidOid);
	return unused;
}

/* This session's database; NULL: it is not in the array. */
DatabaseState *
database_mine(void)
{
	return mine;
}

/* Have a worker started for this session's database, if there is none. */
void
database_announce(void)
{
	bool		wanted = false;

	LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
	mine = database_find(MyDatabaseId, true);
	if (mine != NULL && mine->state == WORKER_NONE)
	{
		mine->state = WORKER_WANTED;
		wanted = true;
	}
	LWLockRelease(shmem_database_lock());
	if (wanted)
		database_wake_launcher();
}

/* To be called before anything that the worker has to hear of. */
void
database_join(void)
{
	if (mine == NULL || mine->database != MyDatabaseId ||
		mine->state == WORKER_NONE)
		database_announce();
}

static void
set_latch_of(pg_atomic_uint32 *proc)
{
	uint32		number = pg_atomic_read_u32(proc);

	/* A latch too many does no harm, should the process be another one. */
	if (number != 0)
		SetLatch(&ProcGlobal->allProcs[number - 1].procLatch);
}

static void
lower(pg_atomic_uint64 *time, TimestampTz due)
{
	uint64		next = pg_atomic_read_u64(time);

	while (due < (TimestampTz) next)
		if (pg_atomic_compare_exchange_u64(time, &next, (uint64) due))
			break;
}

static void
wake(DatabaseState *state, TimestampTz due, bool arrivals)
{
	uint64		until;

	lower(&state->next_due, due);

	/* The worker writes this, then looks at all that we have changed. */
	pg_memory_barrier();
	until = pg_atomic_read_u64(&state->sleeps_until);
	while (arrivals ? until != (uint64) DT_NOBEGIN : due < (TimestampTz) until)
		if (pg_atomic_compare_exchange_u64(&state->sleeps_until, &until,
										   (uint64) DT_NOBEGIN))
		{
			set_latch_of(&state->proc);
			break;
		}
}

/*
 * Something is due then, and there may be news at once: wake the worker, if it
 * sleeps longer.
 */
void
database_wake(TimestampTz due, bool arrivals)
{
	if (mine != NULL && mine->database == MyDatabaseId)
		wake(mine, due, arrivals);
}

/*
 * A queue of this database (NULL: of one that has no worker) has lost its
 * availability map, or has none, and something is due there then: as it is not recorded
 * which queue that is, the worker looks at all of them.
 */
void
database_map_evicted(DatabaseState *state, TimestampTz due)
{
	if (state == NULL)
		return;
	pg_atomic_fetch_add_u64(&state->lost, 1);
	if (due == DT_NOEND)
		return;
	lower(&state->look_at, due);
	wake(state, due, false);
}

/* Whatever this session knows: this database's worker shall look around. */
void
database_wake_worker(void)
{
	DatabaseState *state;

	LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
	state = database_find(MyDatabaseId, false);
	if (state != NULL)
		set_latch_of(&state->proc);
	LWLockRelease(shmem_database_lock());
}

/*
 * Handlers, or which queues are paused, have changed: whoever has read them
 * shall do so again, first of all the worker.  To be called when everybody
 * sees the rows.
 */
void
database_handlers_changed(void)
{
	database_join();
	if (mine != NULL)
		(void) pg_atomic_fetch_add_u32(&mine->handler_changes, 1);
	database_wake_worker();
}

uint32
database_handler_changes(void)
{
	return mine == NULL ? 0 : pg_atomic_read_u32(&mine->handler_changes);
}

void
database_wake_launcher(void)
{
	set_latch_of(shmem_launcher());
}

/*
 * A database is to be dropped, renamed, moved or copied: its worker goes, and
 * does not come back for a while.
 */
void
database_vacate(Oid database)
{
	DatabaseState *state;

	LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
	state = database_find(database, false);
	if (state != NULL)
	{
		state->leave = state->pid != 0;
		state->start_at = clock_monotonic() + 10 * USECS_PER_SEC;
		set_latch_of(&state->proc);
	}
	LWLockRelease(shmem_database_lock());
}

/* Counts if the transaction commits, in which this was done. */
void
database_count(WorkerCounter counter, uint64 n)
{
	counts[counter] += n;
	counted |= n > 0;
}

void
database_end(bool commit)
{
	if (!counted)
		return;
	if (commit && mine != NULL && mine->database == MyDatabaseId)
		for (int i = 0; i < WORKER_COUNTERS; i++)
			if (counts[i] > 0)
				pg_atomic_fetch_add_u64(&mine->counters[i], counts[i]);
	memset(counts, 0, sizeof(counts));
	counted = false;
}

/* To be called with the lock held: its worker shall look at what it is told. */
void
database_set_latch(DatabaseState *state)
{
	set_latch_of(&state->proc);
}
