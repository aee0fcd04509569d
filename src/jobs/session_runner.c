/*-------------------------------------------------------------------------
 *
 * session_runner.c
 *	  A session that runs jobs: CALL job_run().
 *
 * NOTES
 *	  The session goes round its queues and runs jobs of each for a moment
 *	  (execute.c), until no queue has any or a limit is reached.  It has an
 *	  entry in the pool of runners (runner_pool.c) while it does so, by which
 *	  the database's worker renews its claims.
 *
 *	  It is connected to SPI, and has no snapshot between two jobs.
 *
 * src/jobs/session_runner.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "catalog/relations.h"
#include "claim/claim_scan.h"
#include "jobs/execute.h"
#include "jobs/handler.h"
#include "jobs/job_log.h"
#include "jobs/runner_pool.h"
#include "jobs/session_runner.h"
#include "queue/acl.h"
#include "queue/registry.h"
#include "shmem/database_state.h"
#include "util/compat.h"
#include "util/settings.h"

/* The queues that the caller has named; names is NULL for all of them. */
typedef struct QueueNames
{
	const char **names;
	int			n;
} QueueNames;

static bool is_wanted(const QueueNames *queues, const char *name);
static const Handler *find_handler(const HandlerList *handlers,
								   const char *name);
static void check_names(Run *run, const QueueNames *queues);
static void read_handlers(Run *run, const QueueNames *queues);
static RunEnd run_jobs(Run *run, const QueueNames *queues);
static bool enter_pool(Oid role);

static bool
is_wanted(const QueueNames *queues, const char *name)
{
	if (queues->names == NULL)
		return true;
	for (int i = 0; i < queues->n; i++)
		if (strcmp(queues->names[i], name) == 0)
			return true;
	return false;
}

/*
 * Returns the handler of a queue of the session's project, or NULL if it has
 * none.
 */
static const Handler *
find_handler(const HandlerList *handlers, const char *name)
{
	for (int i = 0; i < handlers->n; i++)
	{
		const Handler *handler = &handlers->items[i];

		if (strcmp(handler->name, name) == 0 &&
			strcmp(handler->project, setting_project) == 0)
			return handler;
	}
	return NULL;
}

/*
 * Check that each queue that was named has a handler, and that the session's
 * user may act as its role.
 */
static void
check_names(Run *run, const QueueNames *queues)
{
	handler_list_read(&run->handlers, InvalidOid);
	for (int i = 0; i < queues->n; i++)
	{
		const char *name = queues->names[i];
		const Handler *handler = find_handler(&run->handlers, name);
		Queue		queue;

		if (handler == NULL && !queue_open(name, QUEUE_DESCRIBE, &queue))
			queue_missing_error(name);
		if (handler == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("queue \"%s\" has no handler", name),
					 errhint("Bind one with job_handler.")));
		if (!compat_may_act_as(GetUserId(), handler->row.role))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied to run jobs of queue \"%s\"",
							name),
					 errdetail("Jobs are run as the role that bound the handler."),
					 errhint("A superuser can run: GRANT %s TO %s;",
							 acl_role_identifier(handler->row.role),
							 acl_role_identifier(GetUserId()))));
	}
}

/* Read the handlers again, and keep those that are to be run. */
static void
read_handlers(Run *run, const QueueNames *queues)
{
	HandlerList *handlers = &run->handlers;
	int			n = 0;

	handler_list_read(handlers, InvalidOid);
	for (int i = 0; i < handlers->n; i++)
	{
		const Handler *handler = &handlers->items[i];

		if (strcmp(handler->project, setting_project) == 0 &&
			is_wanted(queues, handler->name) &&
			compat_may_act_as(run->transaction.user, handler->row.role))
			handlers->items[n++] = *handler;
	}
	handlers->n = n;
}

/* Go round the queues until none has jobs or a limit is reached. */
static RunEnd
run_jobs(Run *run, const QueueNames *queues)
{
	HandlerList *handlers = &run->handlers;
	bool		is_first = true;
	bool		progress;

	do
	{
		progress = false;
		if (is_first || !handler_list_is_current(handlers))
		{
			read_handlers(run, queues);
			progress = handlers->n > 0;
			is_first = false;
		}
		for (int i = 0; i < handlers->n; i++)
		{
			Handler    *handler = &handlers->items[i];

			if (run_is_over(run))
				return run->counts.ok + run->counts.failed >=
					run->limits.max_jobs ? RUN_JOB_LIMIT : RUN_TIME_LIMIT;

			/* A job of another queue may have pushed to this one. */
			handler->not_before = 0;
			if (!handler->paused && execute_queue(run, handler))
				progress = true;
		}
	} while (progress);
	return RUN_NONE_READY;
}

/*
 * Enter this session in the pool of runners.  Returns whether the worker will
 * renew its claims.
 */
static bool
enter_pool(Oid role)
{
	if (!claim_scan_uses_map() || !pool_exists())
		return false;
	database_join();
	return database_mine() != NULL && database_mine()->pid != 0 &&
		pool_enter_session(role);
}

/*
 * Run jobs of some queues, or of all that have a handler whose role the
 * current one may act as if names is NULL, until a limit is reached.  The
 * caller is connected to SPI, outside of a transaction block.
 */
RunEnd
session_runner_run(const char **names, int nnames, const RunLimits *limits,
				   RunCounts *counts)
{
	QueueNames	queues = {names, nnames};
	volatile RunEnd end = RUN_NONE_READY;
	Run			run;

	run_init(&run, true);
	check_names(&run, &queues);
	run.limits = *limits;
	run.extension = catalog_queue_oid();
	run.is_renewed = enter_pool(run.transaction.user);
	PG_TRY();
	{
		end = run_jobs(&run, &queues);
		job_log_end_interval(&run.log);
	}
	PG_FINALLY();
	{
		run_release_slot(&run);
		job_transaction_release_locks(&run.transaction);
		if (pool_exists())
			pool_leave();
	}
	PG_END_TRY();
	*counts = run.counts;
	return end;
}
