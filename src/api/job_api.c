/*-------------------------------------------------------------------------
 *
 * job_api.c
 *	  Jobs run by a session: CALL job_run().
 *
 * NOTES
 *	  A session goes round the queues that it was told, a moment for each, and
 *	  does with their messages what a runner does (execute.c), until there are none
 *	  or a limit is reached.  It is entered among those who run jobs (runner_pool.c),
 *	  so that the database's worker renews its claims.
 *
 *	  It is inside of SPI, without a snapshot of its own between two jobs.
 *
 * src/api/job_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"

#include "api/claim_api.h"
#include "catalog/relations.h"
#include "jobs/execute.h"
#include "jobs/handler.h"
#include "jobs/runner_pool.h"
#include "queue/claim_scan.h"
#include "queue/registry.h"
#include "queue/root_job.h"
#include "shmem/database_state.h"
#include "util/args.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/settings.h"

PG_FUNCTION_INFO_V1(sql_job_run);
PG_FUNCTION_INFO_V1(sql_job_root);

static bool is_among(const char *name, const char **names, int n);
static void check_names(const char **names, int n);
static Handler *choose(Run *run, const char **names, int nnames, int *n);
static const char *run_all(Run *run, const char **names, int nnames);
static bool enter(Oid user);
static Datum form_result(FunctionCallInfo fcinfo, const Run *run,
						 int64 began, const char *reached);

static bool
is_among(const char *name, const char **names, int n)
{
	for (int i = 0; i < n; i++)
		if (strcmp(names[i], name) == 0)
			return true;
	return false;
}

/* Those that the caller names have to have handlers, and ones he may run. */
static void
check_names(const char **names, int n)
{
	int			nhandlers;
	HandlerVersion version;
	Handler    *handlers = handler_all(InvalidOid, &nhandlers, &version);

	for (int i = 0; i < n; i++)
	{
		Handler    *handler = NULL;
		Queue		queue;

		for (int j = 0; j < nhandlers; j++)
			if (strcmp(handlers[j].name, names[i]) == 0 &&
				strcmp(handlers[j].project, setting_project) == 0)
				handler = &handlers[j];
		if (handler == NULL && !queue_open(names[i], QUEUE_DESCRIBE, &queue))
			queue_missing_error(names[i]);
		if (handler == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("queue \"%s\" has no handler", names[i]),
					 errhint("Bind one with job_handler.")));
		if (!compat_may_act_as(GetUserId(), handler->role))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied to run jobs of queue \"%s\"",
							names[i]),
					 errhint("They are run as the role that bound the handler: be a member of it.")));
	}
}

/* The handlers that are to be run */
static Handler *
choose(Run *run, const char **names, int nnames, int *n)
{
	MemoryContext old = MemoryContextSwitchTo(run->handler_context);
	Handler    *handlers;
	int			kept = 0;

	handlers = handler_all(InvalidOid, n, &run->version);
	for (int i = 0; i < *n; i++)
		if (strcmp(handlers[i].project, setting_project) == 0 &&
			(names == NULL || is_among(handlers[i].name, names, nnames)) &&
			compat_may_act_as(run->user, handlers[i].role))
			handlers[kept++] = handlers[i];
	*n = kept;
	MemoryContextSwitchTo(old);
	return handlers;
}

/*
 * Run jobs until there are none or a limit is reached, one queue after the
 * other.  Returns why it ended.
 */
static const char *
run_all(Run *run, const char **names, int nnames)
{
	Handler    *handlers = NULL;
	int			n = 0;
	bool		progress;

	do
	{
		progress = false;
		if (handlers == NULL || !handler_is_current(&run->version))
		{
			MemoryContextReset(run->handler_context);
			handlers = choose(run, names, nnames, &n);
			progress = n > 0;
		}
		for (int i = 0; i < n; i++)
		{
			if (run_is_over(run))
				return run->ok + run->failed >= run->max_jobs ?
					"job-limit" : "time-limit";

			/* A job of one queue may push to another. */
			handlers[i].not_before = 0;
			if (!handlers[i].paused && run_queue(run, &handlers[i]))
				progress = true;
		}
	} while (progress);
	return "none-ready";
}

static Datum
form_result(FunctionCallInfo fcinfo, const Run *run, TimestampTz began,
			const char *reached)
{
	char	   *text = psprintf("{\"ok\": %lld, \"failed\": %lld, \"elapsed\": %.3f, \"reached\": \"%s\"}",
								(long long) run->ok, (long long) run->failed,
								(clock_monotonic() - began) / 1000000.0,
								reached);
	Datum		value = DirectFunctionCall1(jsonb_in, CStringGetDatum(text));
	bool		isnull = false;
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), &value,
											 &isnull));
}

/* Will the worker renew this session's claims? */
static bool
enter(Oid user)
{
	if (!claim_scan_uses_map() || !pool_exists())
		return false;
	database_join();
	return database_mine() != NULL && database_mine()->pid != 0 &&
		pool_enter_session(user);
}

/*
 * CALL job_run(queues text[] = NULL, max_jobs int = NULL, max_time int = NULL,
 *				INOUT result jsonb = NULL)
 *
 * Runs jobs of these queues (NULL: of all that have a handler, in the
 * session's project, whose role the caller may SET ROLE to), at most max_jobs
 * of them (NULL: any), begun within max_time seconds (NULL: any).
 *
 * Result: ok and failed: numbers of tries; elapsed: seconds; reached: why it
 * ended: none-ready, job-limit or time-limit.
 * Errors: 22004 and 22023 arguments, 42704 a queue is unknown or has no
 * handler, 42501 the caller may not act as the role that bound one, 25001
 * called inside a transaction block or a function.
 * Source: MediaWiki, JobRunner::run, runJobs.
 */
Datum
sql_job_run(PG_FUNCTION_ARGS)
{
	bool		may_commit = fcinfo->context != NULL &&
		IsA(fcinfo->context, CallContext) &&
		!castNode(CallContext, fcinfo->context)->atomic;
	int64		began = clock_monotonic();
	int64		max_jobs = PG_INT64_MAX;
	int64		until = PG_INT64_MAX;
	const char **volatile names = NULL;
	int			nnames = 0;
	const char *volatile reached = NULL;
	Run			run;

	queue_prevent("job_run()");
	if (!PG_ARGISNULL(1))
		max_jobs = arg_check_bounds("max_jobs", PG_GETARG_INT32(1), 1, NULL,
									  INT_MAX, NULL, "");
	if (!PG_ARGISNULL(2))
		until = began + USECS_PER_SEC *
			arg_check_bounds("max_time", PG_GETARG_INT32(2), 0, NULL,
							   INT_MAX, NULL, " seconds");
	if (!may_commit)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("job_run() cannot run here"),
				 errdetail("Each job has a transaction of its own, so it cannot be called inside a transaction block, a function, or a procedure with SECURITY DEFINER or SET."),
				 errhint("Call it by itself, with autocommit.")));

	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect_ext failed");
	if (!PG_ARGISNULL(0))
		names = arg_queue_names(PG_GETARG_ARRAYTYPE_P_COPY(0), &nnames);
	check_names(names, nnames);
	run_init(&run, true);
	run.max_jobs = max_jobs;
	run.until = until;
	run.extension = catalog_queue_oid();
	run.is_renewed = enter(run.user);
	PG_TRY();
	{
		reached = run_all(&run, names, nnames);
		run_end_log(&run);
	}
	PG_FINALLY();
	{
		run_give_slot(&run);
		if (pool_exists())
			pool_leave();
	}
	PG_END_TRY();
	SPI_finish();
	PG_RETURN_DATUM(form_result(fcinfo, &run, began, reached));
}

/*
 * job_root(q text, signature text) returns jsonb
 *
 * Registers a new root job in queue q, to which its leaf jobs will be pushed.
 * signature, 1 to 1000 bytes, identifies the root job.  From the moment at
 * which this transaction commits, leaf jobs of earlier registrations are
 * deleted instead of being handed out, and counted as duplicates.
 *
 * Result: an object with rootJobSignature and rootJobTimestamp, to be merged
 * into the bodies of the leaf jobs; the time is later than the last one's.
 * Errors: 22004 and 22023 arguments, 42704 unknown queue while
 * queue.auto_create is off, 42501 no right to push.
 * Source: MediaWiki, Job::newRootJobParams and
 * JobQueue::deduplicateRootJob.
 */
Datum
sql_job_root(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Queue		queue;
	char	   *signature;

	queue_prevent("job_root()");
	if (PG_ARGISNULL(1))
		arg_missing("signature");
	signature = text_to_cstring(PG_GETARG_TEXT_PP(1));
	root_job_check_signature(signature);
	queue_open_for_push(name, &queue);
	PG_RETURN_JSONB_P(root_job_register(&queue, signature));
}
