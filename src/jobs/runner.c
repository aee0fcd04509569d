/*-------------------------------------------------------------------------
 *
 * runner.c
 *	  The background processes that run jobs.
 *
 * NOTES
 *	  A runner is started by its database's worker (runner_pool.c), for one role,
 *	  and serves that role's handlers for as long as it lives: its session
 *	  belongs to the role, so that nothing in the process ever meets another
 *	  one.  It goes round the role's queues, a moment for each that may be
 *	  ready (execute.c), and sleeps on its latch when there is nothing to do.
 *
 *	  Before it sleeps it says that it is idle and looks once more: the worker
 *	  looks for an idle one after something came free, so either sees it.
 *
 *	  It ends when there was nothing to do for queue.runner_idle_time; when
 *	  the role has no handler any more, or the extension is gone; when it is
 *	  asked to, because another role waits for its turn or the database is to
 *	  be dropped, renamed, moved or copied; when there may be fewer of them by
 *	  now; and when its memory has grown, be it that a handler leaks.  All that
 *	  happens between jobs.  One that is terminated rolls its job back; the
 *	  worker sees to what it had claimed.
 *
 *	  A crash of a runner is a crash of the server: the tries were counted
 *	  before, and come back when the claims run out.
 *
 * src/jobs/runner.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_db_role_setting.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "catalog/relations.h"
#include "jobs/execute.h"
#include "jobs/handler.h"
#include "jobs/runner_pool.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/settings.h"

#define MEMORY_MAX		(256 * 1024 * 1024) /* bytes */

PGDLLEXPORT void queue_runner_main(Datum arg);

static Run run;
static Handler *handlers = NULL;
static int	nhandlers = 0;
static int64 idle_since;		/* of the monotonic clock */

static void become(Oid role);
static bool load(Oid role);
static bool may_be_ready(const Handler *handler, int64 now);
static bool go_round(void);
static bool sleep_a_while(void);

/*
 * Let the session be the role's, with its settings.  One that is gone runs
 * nothing.  (To connect as the role would take that it may log in, and has
 * connections left.)
 */
static void
become(Oid role)
{
	char	   *name = GetUserNameFromId(role, true);
	Relation	rel;
	Snapshot	snapshot;

	if (name == NULL)
		return;
	(void) set_config_option("session_authorization", name, PGC_SUSET,
							 PGC_S_SESSION, GUC_ACTION_SET, true, 0, false);

	/* It may cancel what it runs. */
	MyProc->roleId = role;

	rel = table_open(DbRoleSettingRelationId, AccessShareLock);
	snapshot = RegisterSnapshot(GetCatalogSnapshot(DbRoleSettingRelationId));
	ApplySetting(snapshot, MyDatabaseId, role, rel, PGC_S_DATABASE_USER);
	ApplySetting(snapshot, InvalidOid, role, rel, PGC_S_USER);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
}

/* Read the role's handlers again, if they may have changed.  False: none. */
static bool
load(Oid role)
{
	MemoryContext old;

	StartTransactionCommand();
	if (handlers == NULL || !handler_is_current(&run.version))
	{
		handlers = NULL;
		nhandlers = 0;
		if (OidIsValid(get_extension_oid("queue", true)))
		{
			run.extension = catalog_queue_oid();
			MemoryContextReset(run.handler_context);
			old = MemoryContextSwitchTo(run.handler_context);
			handlers = handler_all(role, &nhandlers, &run.version);
			MemoryContextSwitchTo(old);
		}
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(TopMemoryContext);
	return nhandlers > 0;
}

static bool
may_be_ready(const Handler *handler, int64 now)
{
	return !handler->paused && handler->not_before <= now &&
		shmem_is_flagged(run.extension, handler->queue_id, MAP_READY);
}

/* Give each queue that may be ready a moment.  True: there were jobs. */
static bool
go_round(void)
{
	bool		result = false;

	for (int i = 0; i < nhandlers; i++)
	{
		if (!may_be_ready(&handlers[i], clock_monotonic()))
			continue;
		if (pool_must_leave() || ProcDiePending)
			break;
		pool_set_state(RUNNER_BUSY);
		pgstat_report_activity(STATE_RUNNING, handlers[i].name);
		if (run_queue(&run, &handlers[i]))
			result = true;
	}
	return result;
}

/* False: it has been idle for long enough. */
static bool
sleep_a_while(void)
{
	int64		now = clock_monotonic();
	int64		until = idle_since +
		setting_runner_idle_time * USECS_PER_SEC;
	bool		idle = now >= until;

	/* What changes from here on, somebody is called for. */
	pool_set_state(RUNNER_IDLE);
	if (!handler_is_current(&run.version))
		return true;
	for (int i = 0; i < nhandlers; i++)
	{
		const Handler *handler = &handlers[i];

		if (handler->paused ||
			!shmem_is_flagged(run.extension, handler->queue_id, MAP_READY))
			continue;
		if (handler->not_before <= now)
			return true;

		/* There is something, which has to wait a little. */
		until = Min(until, handler->not_before);
		idle = false;
	}
	if (idle)
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
	if (!pool_enter(DatumGetUInt64(arg), &database, &role))
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
	SetConfigOption("default_transaction_read_only", "off", PGC_USERSET,
					PGC_S_SESSION);
	SetConfigOption("default_transaction_isolation", "read committed",
					PGC_USERSET, PGC_S_SESSION);
	SetConfigOption("default_transaction_deferrable", "off", PGC_USERSET,
					PGC_S_SESSION);
	database_join();
	StartTransactionCommand();
	become(role);
	CommitTransactionCommand();
	MemoryContextSwitchTo(TopMemoryContext);
	run_init(&run, false);

	idle_since = clock_monotonic();
	while (!ProcDiePending && !pool_must_leave() && load(role))
	{
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			if (pool_is_surplus())
				break;
		}
		if (go_round())
		{
			idle_since = clock_monotonic();
			pgstat_report_stat(false);
			if (MemoryContextMemAllocated(TopMemoryContext, true) > MEMORY_MAX)
				break;
		}
		else if (!sleep_a_while())
			break;
	}

	run_end_log(&run);

	/* Not by an error: it is nothing to be said in the log. */
	proc_exit(0);
}
