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

static bool is_wanted_queue(const QueueNames *queues, const char *name);
static const Handler *find_handler(const HandlerList *handlers,
								   const char *name);
static void check_queue_names(Run *run, const QueueNames *queues);
static void read_wanted_handlers(Run *run, const QueueNames *queues);
static RunEnd run_until_limit(Run *run, const QueueNames *queues);

static bool
is_wanted_queue(const QueueNames *queues, const char *name)
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
check_queue_names(Run *run, const QueueNames *queues)
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

	/* run_until_limit() reads those that are to be run. */
	run->handlers.items = NULL;
}

/* Read the handlers again, and keep those that are to be run. */
static void
read_wanted_handlers(Run *run, const QueueNames *queues)
{
	HandlerList *handlers = &run->handlers;
	int			n = 0;

	handler_list_read(handlers, InvalidOid);
	for (int i = 0; i < handlers->n; i++)
	{
		const Handler *handler = &handlers->items[i];

		if (strcmp(handler->project, setting_project) == 0 &&
			is_wanted_queue(queues, handler->name) &&
			compat_may_act_as(run->transaction.user, handler->row.role))
			handlers->items[n++] = *handler;
	}
	handlers->n = n;
}

/* Go round the queues until none has jobs or a limit is reached. */
static RunEnd
run_until_limit(Run *run, const QueueNames *queues)
{
	HandlerList *handlers = &run->handlers;
	bool		progress;

	do
	{
		progress = false;
		if (!handler_list_is_current(handlers))
		{
			read_wanted_handlers(run, queues);
			progress = handlers->n > 0;
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
	check_queue_names(&run, &queues);
	run.limits = *limits;
	run.extension = catalog_queue_oid();

	/* The worker renews the claims of a session that is in the pool. */
	if (claim_scan_uses_map())
	{
		database_join();
		run.is_renewed = database_has_worker() &&
			pool_enter_session(run.transaction.user);
	}
	PG_TRY();
	{
		end = run_until_limit(&run, &queues);
		job_log_end_interval(&run.log);
	}
	PG_FINALLY();
	{
		run_release_slot(&run);
		job_transaction_clean_session(&run.transaction);
		pool_leave();
	}
	PG_END_TRY();
	*counts = run.counts;
	return end;
}
