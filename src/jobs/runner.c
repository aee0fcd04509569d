/*-------------------------------------------------------------------------
 *
 * runner.c
 *	  The background processes that run jobs.
 *
 * NOTES
 *	  A runner is started by its database's worker (worker_jobs.c) for one
 *	  role, and runs that role's handlers for its whole life: its session
 *	  belongs to the role, so that nothing in the memory of the process ever
 *	  meets another one.  It goes round the role's queues, runs jobs of each
 *	  that may have some for a moment (execute.c), and sleeps on its latch when
 *	  no queue has any.
 *
 *	  Before it sleeps it publishes that it is idle, and then checks all queues
 *	  again.  The worker looks for an idle runner after messages have become
 *	  free.  So one of the two always notices them.
 *
 *	  A runner ends, between two jobs, when
 *	  - there was nothing to do for queue.runner_idle_time,
 *	  - the role has no handler any more, or the extension was dropped,
 *	  - it has to (pool_must_leave): another role waits for a runner, and this
 *		one is idle, beyond the share of its role, or the spare one; or the
 *		database is to be dropped, renamed, moved or copied,
 *	  - queue.runners or queue.max_runners was lowered,
 *	  - its memory has grown beyond MEMORY_MAX.
 *	  A runner that is terminated rolls back its job; the worker gives back
 *	  what it had claimed.  If a runner crashes, the server restarts; the
 *	  attempts were counted before, and the messages become free when the
 *	  claims run out.
 *
 * src/jobs/runner.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_db_role_setting.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "catalog/relations.h"
#include "jobs/execute.h"
#include "jobs/handler.h"
#include "jobs/run.h"
#include "jobs/runner_pool.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "util/background.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/settings.h"

#define MEMORY_MAX		((Size) 256 * 1024 * 1024)	/* bytes */

static Run	run;
static int64 idle_since;		/* monotonic clock */

PGDLLEXPORT void queue_runner_main(Datum arg);

static void become_role(Oid role);
static bool read_handlers_of_role(Oid role);
static bool has_messages(const Handler *handler);
static bool run_ready_queues(void);
static bool sleep_until_called(void);

/*
 * Let the session belong to a role.  (Connecting as the role would require
 * that it may log in and has connections left.)
 */
static void
become_role(Oid role)
{
	char	   *name = GetUserNameFromId(role, true);
	volatile PgBackendStatus *entry = MyBEEntry;
	Relation	rel;
	Snapshot	snapshot;

	/*
	 * If the role was dropped, handler_check() finds that its handlers cannot
	 * run.
	 */
	if (name == NULL)
		return;
	(void) set_config_option("session_authorization", name, PGC_SUSET,
							 PGC_S_SESSION, GUC_ACTION_SET, true, 0, false);

	/* By this the role may cancel what the runner executes. */
	MyProc->roleId = role;

	/*
	 * By this the role sees the job (report_job()) in pg_stat_activity, whose
	 * column "query" PostgreSQL hides from all roles but members of this one
	 * and of pg_read_all_stats.  It would show that of the connection.
	 */
	PGSTAT_BEGIN_WRITE_ACTIVITY(entry);
	entry->st_userid = role;
	PGSTAT_END_WRITE_ACTIVITY(entry);

	/* The settings of ALTER ROLE ... SET, as at a login */
	rel = table_open(DbRoleSettingRelationId, AccessShareLock);
	snapshot = RegisterSnapshot(GetCatalogSnapshot(DbRoleSettingRelationId));
	ApplySetting(snapshot, MyDatabaseId, role, rel, PGC_S_DATABASE_USER);
	ApplySetting(snapshot, InvalidOid, role, rel, PGC_S_USER);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
}

/*
 * Read the role's handlers again, if they may have changed.  Returns false if
 * there are none.
 */
static bool
read_handlers_of_role(Oid role)
{
	StartTransactionCommand();
	if (!handler_is_current(&run.handlers.version))
	{
		run.handlers.n = 0;

		/*
		 * DROP EXTENSION locks the table of queues before that of handlers.
		 * If it does so now, this process ends; after a rollback the worker
		 * starts another one.
		 */
		if (catalog_hold_extension() == EXTENSION_HELD)
		{
			run.extension = catalog_queue_oid();
			handler_list_read(&run.handlers, role);
		}
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(TopMemoryContext);
	return run.handlers.n > 0;
}

/* Returns whether the handler's queue may have messages to claim. */
static bool
has_messages(const Handler *handler)
{
	return !handler->queue.paused &&
		shmem_is_flagged(run.extension, handler->row.queue_id, MAP_READY);
}

/*
 * Run jobs of each queue that may have some for a moment.  Returns whether
 * there were any.
 */
static bool
run_ready_queues(void)
{
	bool		result = false;

	for (int i = 0; i < run.handlers.n; i++)
	{
		Handler    *handler = &run.handlers.items[i];

		if (handler->not_before > clock_monotonic() || !has_messages(handler))
			continue;
		if (pool_must_leave() || ProcDiePending)
			break;
		pool_set_state(RUNNER_BUSY);
		pgstat_report_activity(STATE_RUNNING, handler->queue.name);
		if (execute_queue(&run, handler))
			result = true;
	}
	return result;
}

/*
 * Sleep until there may be something to do.  Returns false if the runner has
 * been idle for long enough to end.
 */
static bool
sleep_until_called(void)
{
	int64		now = clock_monotonic();
	int64		until = idle_since +
	setting_runner_idle_time * USECS_PER_SEC;
	bool		is_idle = now >= until;

	/*
	 * From here on the worker calls this runner if anything changes.  So we
	 * look at everything once more.
	 */
	pool_set_state(RUNNER_IDLE);

	/* The main loop reads the handlers again. */
	if (!handler_is_current(&run.handlers.version))
		return true;
	for (int i = 0; i < run.handlers.n; i++)
	{
		const Handler *handler = &run.handlers.items[i];

		if (!has_messages(handler))
			continue;
		if (handler->not_before <= now)
			return true;

		/* There are messages, which have to wait a little. */
		until = Min(until, handler->not_before);

		/*
		 * If the handler cannot run, that may last for ever.  The worker
		 * finds that out as well, and logs why.
		 */
		if (handler->is_stopped)
			database_wake_worker();
		else
			is_idle = false;
	}
	if (is_idle)
		return false;

	pgstat_report_activity(STATE_IDLE, NULL);
	pgstat_report_stat(true);
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (long) Max((until - now) / 1000 + 1, 1),
					 compat_wait_event("QueueRunner"));
	ResetLatch(MyLatch);
	return true;
}

void
queue_runner_main(Datum arg)
{
	Oid			database = InvalidOid;
	Oid			role = InvalidOid;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	/*
	 * The worker may have given up the entry, as this process took long to
	 * start.
	 */
	if (!pool_enter(DatumGetUInt64(arg), &database, &role))
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
	SetConfigOption("application_name", "queue runner", PGC_USERSET,
					PGC_S_SESSION);
	SetConfigOption("default_transaction_read_only", "off", PGC_USERSET,
					PGC_S_SESSION);
	SetConfigOption("default_transaction_isolation", "read committed",
					PGC_USERSET, PGC_S_SESSION);
	SetConfigOption("default_transaction_deferrable", "off", PGC_USERSET,
					PGC_S_SESSION);
	settings_without_transaction_timeout();
	database_join();
	StartTransactionCommand();
	become_role(role);
	CommitTransactionCommand();
	MemoryContextSwitchTo(TopMemoryContext);
	run_init(&run, false);

	idle_since = clock_monotonic();
	while (!ProcDiePending && !pool_must_leave() &&
		   read_handlers_of_role(role))
	{
		CHECK_FOR_INTERRUPTS();

		/* This runner may be one more than is allowed now. */
		if (background_reload() && pool_is_surplus())
			break;
		if (run_ready_queues())
		{
			idle_since = clock_monotonic();
			pgstat_report_stat(false);

			/* Handlers may leak memory; the next runner begins without it. */
			if (MemoryContextMemAllocated(TopMemoryContext, true) > MEMORY_MAX)
				break;
		}
		else if (!sleep_until_called())
			break;
	}

	job_log_end_interval(&run.log);

	/* Exit without an error, which would be logged. */
	proc_exit(0);
}
