/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  The launcher, which starts a worker for each database that needs one.
 *
 * NOTES
 *	  The launcher is a static background worker, bound to no database.  It
 *	  starts when the server takes writes: after recovery, and on a standby
 *	  when that is promoted.  Then it has a worker look into each database that
 *	  is no template; one that finds no extension leaves, and the launcher
 *	  does not ask again before a session tells it to (database_state.c): when the
 *	  extension is created or first used, or a database made.
 *
 *	  A worker that was terminated is started again after a second.  When no
 *	  more workers may be started (queue.database_workers, or
 *	  max_worker_processes), that is said once, and tried again each minute.
 *
 *	  DROP DATABASE and whatever else needs a database for itself would fail
 *	  because of its worker: a hook asks the worker to leave before, and keeps
 *	  it from coming back for a few seconds.
 *
 *	  The launcher sleeps on its latch, without a timeout unless something is
 *	  to be tried again.
 *
 * src/bgworker/launcher.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/table.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"

#include "bgworker/launcher.h"
#include "jobs/runner_pool.h"
#include "queue/role.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/settings.h"

#define NEVER			PG_INT64_MAX
#define RETRY_FULL		(60 * USECS_PER_SEC)
#define RETRY_START		(10 * USECS_PER_SEC)
#define Natts_workers	(7 + WORKER_COUNTERS)

PG_FUNCTION_INFO_V1(sql_queue_workers);

PGDLLEXPORT void queue_launcher_main(Datum arg);

static ProcessUtility_hook_type previous_utility = NULL;

static void launcher_exit(int code, Datum arg);
static void look_into_databases(void);
static bool database_exists(Oid database);
static bool start_worker(Oid database);
static void not_started(Oid database);
static void complain(Oid database, bool own_setting);
static int64 start_workers(void);
static void utility(PlannedStmt *pstmt, const char *query, bool read_only_tree,
					ProcessUtilityContext context, ParamListInfo params,
					QueryEnvironment *environment, DestReceiver *dest,
					QueryCompletion *qc);
static void vacate_named(const char *name, bool drop);
static void prepare_database(Node *statement);
static void explain_drop_role(void *arg);
static Datum time_or_null(TimestampTz time, bool *isnull);

static void
launcher_exit(int code, Datum arg)
{
	pg_atomic_write_u32(shmem_launcher(), 0);
}

/* Have a worker look into each database. */
static void
look_into_databases(void)
{
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
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
	LWLockRelease(shmem_database_lock());
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
}

/* Does the database exist, and does it allow connections? */
static bool
database_exists(Oid database)
{
	HeapTuple	tuple;
	bool		result = false;

	StartTransactionCommand();
	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		result = form->datallowconn && !form->datistemplate;
		ReleaseSysCache(tuple);
	}
	CommitTransactionCommand();
	return result;
}

/* False: there is no room for one more process. */
static bool
start_worker(Oid database)
{
	BackgroundWorker worker = {0};

	snprintf(worker.bgw_name, BGW_MAXLEN, "queue worker for database %u",
			 database);
	strcpy(worker.bgw_type, "queue worker");
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strcpy(worker.bgw_library_name, "queue");
	strcpy(worker.bgw_function_name, "queue_worker_main");
	worker.bgw_main_arg = ObjectIdGetDatum(database);
	return RegisterDynamicBackgroundWorker(&worker, NULL);
}

/* No process could be registered: the worker is still wanted. */
static void
not_started(Oid database)
{
	DatabaseState *state;

	LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
	state = database_find(database, false);
	if (state != NULL && state->state == WORKER_STARTING)
	{
		state->state = WORKER_WANTED;
		state->start_at = 0;
	}
	LWLockRelease(shmem_database_lock());
}

/* There is no room for a worker: because of our own setting, or the server's. */
static void
complain(Oid database, bool own_setting)
{
	ereport(LOG,
			(errmsg("no background worker can be started for database %u and maybe others",
					database),
			 errdetail("Queues there work without one: claims that run out, delays and lifetimes take effect at the next claim, and no notifications are sent."),
			 own_setting ?
			 errhint("Raise \"queue.database_workers\".") :
			 errhint("Raise \"max_worker_processes\".")));
}

/*
 * Start what is wanted; returns when to look again, by the monotonic clock, as
 * all times here.
 */
static int64
start_workers(void)
{
	static bool complained = false;
	int64		now = clock_monotonic();
	int64		again = NEVER;
	DatabaseState *databases = shmem_databases();
	int			running = 0;
	int			nwanted = 0;
	bool		full = false;
	Oid			wanted[DATABASES_MAX];

	LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
	for (int i = 0; i < DATABASES_MAX; i++)
	{
		DatabaseState *state = &databases[i];

		if (!OidIsValid(state->database) || state->state == WORKER_NONE)
			continue;
		if (state->pid == 0 && state->state == WORKER_STARTING &&
			state->start_at > now)
		{
			running++;			/* in a moment */
			again = Min(again, state->start_at);
		}
		else if (state->pid != 0)
		{
			running++;
			if (running > setting_database_workers && !state->leave)
			{
				state->leave = true;
				database_set_latch(state);
			}
		}
		else if (state->start_at > now)
			again = Min(again, state->start_at);
		else
			wanted[nwanted++] = state->database;
	}
	LWLockRelease(shmem_database_lock());

	for (int i = 0; i < nwanted; i++)
	{
		DatabaseState *state;
		bool		exists = database_exists(wanted[i]);
		bool		room = running < setting_database_workers;

		LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
		state = database_find(wanted[i], false);
		if (!exists)
			state->database = InvalidOid;
		else if (room)
		{
			state->state = WORKER_STARTING;
			state->start_at = now + RETRY_START;
			again = Min(again, state->start_at);
		}
		LWLockRelease(shmem_database_lock());
		if (!exists)
			continue;

		if (room && start_worker(wanted[i]))
		{
			running++;
			continue;
		}
		if (room)
			not_started(wanted[i]);
		again = Min(again, now + RETRY_FULL);
		full = true;
		if (!complained && setting_database_workers > 0)
		{
			complained = true;
			complain(wanted[i], !room);
		}
		break;
	}

	/* Say it again once there was room for all. */
	if (!full && again == NEVER)
		complained = false;
	return again;
}

void
queue_launcher_main(Datum arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	pg_atomic_write_u32(shmem_launcher(), (uint32) my_proc_number() + 1);
	before_shmem_exit(launcher_exit, (Datum) 0);
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	MemoryContextSwitchTo(AllocSetContextCreate(TopMemoryContext,
												"queue launcher",
												ALLOCSET_DEFAULT_SIZES));

	/* One that was restarted looks anew. */
	pg_atomic_write_u32(shmem_new_databases(), 1);
	for (;;)
	{
		int64		again;
		int64		now;
		int			events = WL_LATCH_SET | WL_EXIT_ON_PM_DEATH;
		long		timeout = -1;

		/* Exit code 1: to be started again, unless the server stops. */
		if (ProcDiePending)
			proc_exit(1);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		if (pg_atomic_exchange_u32(shmem_new_databases(), 0) != 0)
			look_into_databases();
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

/* --- Making room for commands on databases --- */

static void
vacate_named(const char *name, bool drop)
{
	Oid			database = get_database_oid(name, true);

	/* Who may not do it shall not disturb the worker either. */
	if (OidIsValid(database) && compat_owns_database(database))
	{
		database_vacate(database);
		pool_vacate(database, drop);
	}
}

/*
 * A command is about to run.  Those that need a database for themselves wait
 * up to five seconds for others to leave it, which is enough.
 */
static void
prepare_database(Node *statement)
{
	ListCell   *cell;

	switch (nodeTag(statement))
	{
		case T_DropdbStmt:
			vacate_named(((DropdbStmt *) statement)->dbname, true);
			break;
		case T_RenameStmt:
			if (((RenameStmt *) statement)->renameType == OBJECT_DATABASE)
				vacate_named(((RenameStmt *) statement)->subname, false);
			break;
		case T_AlterDatabaseStmt:
			foreach(cell, ((AlterDatabaseStmt *) statement)->options)
				if (strcmp(((DefElem *) lfirst(cell))->defname,
						   "tablespace") == 0)
					vacate_named(((AlterDatabaseStmt *) statement)->dbname, false);
			break;
		case T_CreatedbStmt:
			foreach(cell, ((CreatedbStmt *) statement)->options)
				if (strcmp(((DefElem *) lfirst(cell))->defname,
						   "template") == 0 &&
					((DefElem *) lfirst(cell))->arg != NULL)
					vacate_named(defGetString((DefElem *) lfirst(cell)), false);
			break;
		default:
			break;
	}
}

/* Error context of DROP ROLE: add which queues are in the way. */
static void
explain_drop_role(void *arg)
{
	if (geterrcode() == ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST)
		errhint("%s", (char *) arg);
}

static void
utility(PlannedStmt *pstmt, const char *query, bool read_only_tree,
		ProcessUtilityContext context, ParamListInfo params,
		QueryEnvironment *environment, DestReceiver *dest,
		QueryCompletion *qc)
{
	Node	   *statement = pstmt->utilityStmt;
	ErrorContextCallback explain = {error_context_stack, explain_drop_role,
	NULL};

	if (IsA(statement, DropRoleStmt))
		explain.arg = role_drop_hint((DropRoleStmt *) statement);
	if (explain.arg != NULL)
		error_context_stack = &explain;
	prepare_database(statement);
	if (previous_utility != NULL)
		previous_utility(pstmt, query, read_only_tree, context, params,
						 environment, dest, qc);
	else
		standard_ProcessUtility(pstmt, query, read_only_tree, context, params,
								environment, dest, qc);
	error_context_stack = explain.previous;
	if (IsA(statement, CreateExtensionStmt) &&
		strcmp(((CreateExtensionStmt *) statement)->extname, "queue") == 0)
		database_record_change(CHANGE_EXTENSION_CREATED);
	if (IsA(statement, CreatedbStmt))
		database_record_change(CHANGE_DATABASE_CREATED);
	if (IsA(statement, DropStmt) &&
		((DropStmt *) statement)->removeType == OBJECT_EXTENSION)
		database_record_change(CHANGE_EXTENSION_DROPPED);
}

/* To be called as the postmaster loads the library. */
void
launcher_init(void)
{
	BackgroundWorker worker = {0};

	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = utility;
	if (IsBinaryUpgrade)
		return;

	strcpy(worker.bgw_name, "queue launcher");
	strcpy(worker.bgw_type, "queue launcher");
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 1;
	strcpy(worker.bgw_library_name, "queue");
	strcpy(worker.bgw_function_name, "queue_launcher_main");
	RegisterBackgroundWorker(&worker);
}

/* --- To be seen --- */

static Datum
time_or_null(TimestampTz time, bool *isnull)
{
	*isnull = time == 0 || !IS_VALID_TIMESTAMP(time);
	return TimestampTzGetDatum(time);
}

/*
 * queue_data.workers() returns a row for each database that has a
 * worker, or had or shall have one; behind the view queue_workers.
 */
Datum
sql_queue_workers(PG_FUNCTION_ARGS)
{
	static const char *const states[] = {"none", "wanted", "starting", "idle",
	"busy"};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	if (!shmem_exists())
		return (Datum) 0;
	for (int i = 0; i < DATABASES_MAX; i++)
	{
		DatabaseState state;
		Datum		values[Natts_workers];
		bool		isnull[Natts_workers] = {false};
		TimestampTz next;

		LWLockAcquire(shmem_database_lock(), LW_SHARED);
		state = shmem_databases()[i];
		LWLockRelease(shmem_database_lock());
		if (!OidIsValid(state.database) || state.state == WORKER_NONE)
			continue;
		next = (TimestampTz) pg_atomic_read_u64(&state.next_due);
		values[0] = ObjectIdGetDatum(state.database);
		values[1] = CStringGetTextDatum(states[state.state]);
		values[2] = Int32GetDatum(state.pid);
		isnull[2] = state.pid == 0;
		values[3] = time_or_null(state.last_run, &isnull[3]);
		values[4] = time_or_null(next, &isnull[4]);
		for (int j = 0; j < WORKER_COUNTERS; j++)
			values[5 + j] =
				Int64GetDatum((int64) pg_atomic_read_u64(&state.counters[j]));
		values[5 + WORKER_COUNTERS] = CStringGetTextDatum(state.last_error);
		isnull[5 + WORKER_COUNTERS] = state.last_error[0] == '\0';
		values[6 + WORKER_COUNTERS] =
			time_or_null(state.last_error_at, &isnull[6 + WORKER_COUNTERS]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 isnull);
	}
	return (Datum) 0;
}
