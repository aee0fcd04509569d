/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  The launcher, which starts a worker for each database that needs one.
 *
 * NOTES
 *	  The launcher is a background worker that is connected to no database.
 *	  If the library is preloaded, the postmaster starts it when the server
 *	  accepts writes: after recovery, and on a standby when that is promoted.
 *	  Otherwise the first session that loads the library has it started.  Then
 *	  it starts a worker in each database that is not a template.  A worker
 *	  that finds no extension in its database ends, and the launcher does not
 *	  start it again until a session announces the database: because the
 *	  extension or the database was created, or the extension is used for the
 *	  first time (database_state.c).
 *
 *	  A worker that was terminated is started again after a second.  If no more
 *	  workers can be started, the launcher logs that once and tries again:
 *	  every minute if queue.database_workers are running, every ten seconds if
 *	  max_worker_processes are.
 *
 *	  The launcher sleeps on its latch; without a timeout, unless there is
 *	  something to try again.
 *
 *	  DatabaseState, including its field "state", is protected by the lock of
 *	  the databases.
 *
 * src/bgworker/launcher.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "bgworker/launcher.h"
#include "jobs/runner_pool.h"
#include "map/shmem_maps.h"
#include "shmem/batch_state.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "util/background.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/settings.h"

#define NEVER			PG_INT64_MAX
/*
 * How long after a failure a start is tried again: while
 * queue.database_workers are running, and if no process was registered or it
 * does not appear.
 */
#define RETRY_FULL		(60 * USECS_PER_SEC)
#define RETRY_START		(10 * USECS_PER_SEC)

/* What start_worker() did for a database */
typedef enum StartResult
{
	START_DONE,					/* a process was registered */
	START_NOT_WANTED,			/* the database is gone or takes no
								 * connections */
	START_NO_WORKER,			/* queue.database_workers are running */
	START_NO_PROCESS			/* max_worker_processes are running */
} StartResult;

/* Described by launcher_init() */
static BackgroundWorker launcher;

static void launcher_exit(int code, Datum arg);
static void want_all_workers(void);
static bool database_accepts(Oid database, NameData * name);
static StartResult start_worker(Oid database, bool has_room, int64 now,
								NameData * name);
static int	survey_databases(Oid *wanted, int *nwanted, int64 now,
							 int64 *again);
static void log_no_room(const char *name, StartResult result);
static int64 start_workers(void);
static void register_launcher(void);

static void
launcher_exit(int code, Datum arg)
{
	pg_atomic_write_u32(&databases->launcher, 0);
}

/* Mark each database that is not a template as one that needs a worker. */
static void
want_all_workers(void)
{
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	shmem_lock(&databases->lock, LW_EXCLUSIVE);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);
		DatabaseState *state;

		if (!form->datallowconn || form->datistemplate)
			continue;
		state = database_find(form->oid, true);
		if (state != NULL && state->pid == 0)
			state->state = WORKER_WANTED;
	}
	LWLockRelease(&databases->lock);
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
}

/*
 * Returns whether the database is one that can have a worker; if so, sets its
 * name.
 */
static bool
database_accepts(Oid database, NameData * name)
{
	HeapTuple	tuple;
	bool		result = false;

	StartTransactionCommand();
	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		result = form->datallowconn && !form->datistemplate;
		*name = form->datname;
		ReleaseSysCache(tuple);
	}
	CommitTransactionCommand();
	return result;
}

/* Start the worker of a database.  Sets its name, if it is wanted. */
static StartResult
start_worker(Oid database, bool has_room, int64 now, NameData * name)
{
	BackgroundWorker worker;
	DatabaseState *state;
	bool		accepts = database_accepts(database, name);

	/*
	 * We must do this before the process is registered, because it changes
	 * the state, too.
	 */
	shmem_lock(&databases->lock, LW_EXCLUSIVE);
	state = database_find(database, false);
	if (!accepts)
		state->database = InvalidOid;
	else if (has_room)
	{
		state->state = WORKER_STARTING;
		state->start_at = now + RETRY_START;
	}
	LWLockRelease(&databases->lock);

	if (!accepts)
	{
		/*
		 * Forget also what runners have left that have ended since the
		 * database did.
		 */
		shmem_clear_maps(database, InvalidOid);
		batch_state_clear(database);
		pool_vacate(database, false);
		return START_NOT_WANTED;
	}
	if (!has_room)
		return START_NO_WORKER;
	background_describe(&worker, "queue worker", "queue_worker_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "queue worker for database %s",
			 NameStr(*name));
	worker.bgw_main_arg = ObjectIdGetDatum(database);
	if (RegisterDynamicBackgroundWorker(&worker, NULL))
		return START_DONE;

	/* max_worker_processes are running, so it still needs a worker. */
	shmem_lock(&databases->lock, LW_EXCLUSIVE);
	state = database_find(database, false);
	if (state != NULL && state->state == WORKER_STARTING)
	{
		state->state = WORKER_WANTED;
		state->start_at = 0;
	}
	LWLockRelease(&databases->lock);
	return START_NO_PROCESS;
}

/*
 * Count the workers that run, and ask those above queue.database_workers to
 * end.  Lists the databases that need a worker now; *again is lowered to the
 * time at which another one may.
 */
static int
survey_databases(Oid *wanted, int *nwanted, int64 now, int64 *again)
{
	int			running = 0;

	*nwanted = 0;
	shmem_lock(&databases->lock, LW_EXCLUSIVE);
	for (int i = 0; i < DATABASES_MAX; i++)
	{
		DatabaseState *state = &databases->states[i];

		if (!OidIsValid(state->database) || state->state == WORKER_NONE)
			continue;
		if (state->pid != 0)
		{
			running++;

			/* The setting was lowered. */
			if (running > setting_database_workers && !state->leave)
			{
				state->leave = true;
				database_set_latch(&state->proc);
			}
		}
		else if (state->start_at > now)
		{
			/* A process that was registered will run in a moment. */
			if (state->state == WORKER_STARTING)
				running++;
			*again = Min(*again, state->start_at);
		}
		else
			wanted[(*nwanted)++] = state->database;
	}
	LWLockRelease(&databases->lock);
	return running;
}

static void
log_no_room(const char *name, StartResult result)
{
	ereport(LOG,
			(errmsg("no background worker can be started for database \"%s\", and maybe others",
					name),
			 errdetail("Queues there work without it: expired claims, delays and lifetimes take effect at the next claim, and no notifications are sent."),
			 result == START_NO_WORKER ?
			 errhint("Raise \"queue.database_workers\".") :
			 errhint("Raise \"max_worker_processes\".")));
}

/*
 * Start all workers that are needed.  Returns when to call this again, by the
 * monotonic clock.
 */
static int64
start_workers(void)
{
	static bool logged = false;
	int64		now = clock_monotonic();
	int64		again = NEVER;
	int			nwanted;
	Oid			wanted[DATABASES_MAX];
	int			running = survey_databases(wanted, &nwanted, now, &again);

	for (int i = 0; i < nwanted; i++)
	{
		NameData	name;
		StartResult result = start_worker(wanted[i],
										  running < setting_database_workers,
										  now, &name);

		if (result == START_NOT_WANTED)
			continue;
		if (result == START_DONE)
		{
			running++;
			again = Min(again, now + RETRY_START);
			continue;
		}

		/*
		 * There is no room.  Try again later, and log it once until there was
		 * room.
		 */
		if (!logged && setting_database_workers > 0)
		{
			logged = true;
			log_no_room(NameStr(name), result);
		}
		return Min(again, now + (result == START_NO_WORKER ? RETRY_FULL :
								 RETRY_START));
	}
	if (again == NEVER)
		logged = false;
	return again;
}

void
queue_launcher_main(Datum arg)
{
	uint32		none = 0;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	if (!pg_atomic_compare_exchange_u32(&databases->launcher, &none,
										(uint32) my_proc_number() + 1))
		proc_exit(0);			/* there is one already */
	before_shmem_exit(launcher_exit, (Datum) 0);
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	SetConfigOption("application_name", "queue launcher", PGC_USERSET,
					PGC_S_SESSION);
	MemoryContextSwitchTo(AllocSetContextCreate(TopMemoryContext,
												"queue launcher",
												ALLOCSET_DEFAULT_SIZES));

	/*
	 * A launcher that was restarted looks at all databases, as the first did.
	 */
	pg_atomic_write_u32(&databases->are_new, 1);
	for (;;)
	{
		int64		again;
		int64		now;
		int			events = WL_LATCH_SET | WL_EXIT_ON_PM_DEATH;
		long		timeout = -1;

		/* Exit code 1 means to be restarted, unless the server stops. */
		if (ProcDiePending)
			proc_exit(1);
		CHECK_FOR_INTERRUPTS();
		(void) background_reload();
		if (pg_atomic_exchange_u32(&databases->are_new, 0) != 0)
			want_all_workers();
		again = start_workers();
		now = clock_monotonic();
		if (again != NEVER)
		{
			events |= WL_TIMEOUT;
			timeout = again <= now ? 0 :
				(long) Min((again - now) / 1000 + 1, INT_MAX);
		}
		(void) WaitLatch(MyLatch, events, timeout,
						 compat_wait_event("QueueLauncher"));
		ResetLatch(MyLatch);
	}
}

/* Start the launcher while the server runs.  This may be after a commit. */
static void
register_launcher(void)
{
	if (!RegisterDynamicBackgroundWorker(&launcher, NULL))
		ereport(LOG,
				(errmsg("no background worker can be started for queues"),
				 errdetail("Queues work without it: expired claims, delays and lifetimes take effect at the next claim, and no notifications are sent."),
				 errhint("Raise \"max_worker_processes\".")));
}

/*
 * Have the launcher started: by the postmaster if that loads the library, else
 * now.
 */
void
launcher_init(void)
{
	/* No process may change what pg_upgrade copies. */
	if (IsBinaryUpgrade)
		return;
	background_describe(&launcher, "queue launcher", "queue_launcher_main");
	launcher.bgw_restart_time = 1;
	if (shmem_is_preloaded())
		RegisterBackgroundWorker(&launcher);
	else
		database_start_launcher_by(register_launcher);
}
