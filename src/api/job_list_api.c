/*-------------------------------------------------------------------------
 *
 * job_list_api.c
 *	  SQL functions that show what runs: job_list, and job_progress, by which
 *	  a handler reports.
 *
 * NOTES
 *	  The owner of a queue, and a role with the privilege admin, see what runs
 *	  there without being members of pg_monitor.  Rows of other queues are left
 *	  out.  They could not be hidden in part: names of queues and the roles
 *	  that bind handlers tell what others do.
 *
 * src/api/job_list_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "api/api_arg.h"
#include "api/api_row.h"
#include "jobs/handler.h"
#include "jobs/handler_check.h"
#include "jobs/runner_pool.h"
#include "queue/missing_queue.h"
#include "queue/registry.h"
#include "util/compat.h"
#include "util/json.h"
#include "util/settings.h"

PG_FUNCTION_INFO_V1(sql_job_list);
PG_FUNCTION_INFO_V1(sql_queue_handler_problem);
PG_FUNCTION_INFO_V1(sql_job_progress);

/* The processes and sessions that run a job of this database */
typedef struct RunningJobs
{
	Runner	   *runners;
	int			n;
} RunningJobs;

static RunningJobs list_running_jobs(void);
static void put_handler(FunctionCallInfo fcinfo, Handler *handler,
						const RunningJobs *jobs);
static const char *problem_of(Handler *handler);
static const char *reason_of(const Handler *handler, const char *problem);
static void add_handler_columns(ApiRow *row, Handler *handler, int running);
static void add_job_columns(ApiRow *row, const Runner *runner);

/* --- Jobs --- */

static RunningJobs
list_running_jobs(void)
{
	RunningJobs jobs;
	int			n;

	jobs.runners = pool_list(&n);
	jobs.n = 0;
	for (int i = 0; i < n; i++)
		if (pool_runs_job(&jobs.runners[i]))
			jobs.runners[jobs.n++] = jobs.runners[i];
	return jobs;
}

/* Return a row for each job of a queue that runs, or one if none does. */
static void
put_handler(FunctionCallInfo fcinfo, Handler *handler,
			const RunningJobs *jobs)
{
	int			running = 0;
	ApiRow		row = {0};

	for (int i = 0; i < jobs->n; i++)
		if (jobs->runners[i].queue_id == handler->row.queue_id)
			running++;
	add_handler_columns(&row, handler, running);
	for (int i = 0; i < jobs->n; i++)
		if (jobs->runners[i].queue_id == handler->row.queue_id)
		{
			ApiRow		job = row;

			add_job_columns(&job, &jobs->runners[i]);
			api_row_put(&job, fcinfo);
		}
	if (running == 0)
	{
		add_job_columns(&row, NULL);
		api_row_put(&row, fcinfo);
	}
}

/* Returns why a handler cannot run now; NULL if it can, or is paused. */
static const char *
problem_of(Handler *handler)
{
	return handler->paused ? NULL : handler_check(handler);
}

/*
 * Returns why a handler runs nothing although it may have messages, or NULL if
 * there is no reason that we know.  problem: that of problem_of()
 */
static const char *
reason_of(const Handler *handler, const char *problem)
{
	if (problem != NULL)
		return problem;

	/* The command that has paused the queue is reason enough. */
	if (handler->paused)
		return NULL;
	if (setting_database_workers == 0 || setting_max_runners == 0 ||
		setting_runners == 0)
		return "no background process may run jobs (\"queue.database_workers\", \"queue.max_runners\", \"queue.runners\"): only job_run() does";
	return NULL;
}

static void
add_handler_columns(ApiRow *row, Handler *handler, int running)
{
	const FunctionName *function = &handler->row.function;
	const char *problem = problem_of(handler);

	api_row_add_text(row, handler->name);
	api_row_add_text(row,
					 psprintf("%s(%s)",
							  quote_qualified_identifier(function->schema,
														 function->name),
							  function->takes_jsonb ? "jsonb" :
							  "queue_message"));
	api_row_add_text(row, problem != NULL ? "stopped" :
					 handler->paused ? "paused" :
					 running > 0 ? "running" : "idle");
	api_row_add_text(row, reason_of(handler, problem));
	api_row_add(row, Int32GetDatum(handler->row.options.concurrency));
	api_row_add(row, Int32GetDatum(running));
}

/* Add the columns of a job; NULL: none runs. */
static void
add_job_columns(ApiRow *row, const Runner *runner)
{
	JsonbInState progress = {0};
	bool		is_null = runner == NULL;
	bool		has_progress = !is_null && runner->done >= 0;

	api_row_add_or_null(row, is_null ? 0 : Int64GetDatum(runner->message_id),
						is_null);
	api_row_add_or_null(row, is_null ? 0 : Int32GetDatum(runner->pid),
						is_null);
	api_row_add_or_null(row,
						is_null ? 0 : TimestampTzGetDatum(runner->job_since),
						is_null);
	if (has_progress)
	{
		compat_push_jsonb(&progress, WJB_BEGIN_OBJECT, NULL);
		json_add_integer(&progress, "done", runner->done);
		if (runner->total >= 0)
			json_add_integer(&progress, "total", runner->total);
		if (runner->note[0] != '\0')
			json_add_text(&progress, "note", runner->note);
		compat_push_jsonb(&progress, WJB_END_OBJECT, NULL);
	}
	api_row_add_or_null(row, has_progress ?
						JsonbPGetDatum(JsonbValueToJsonb(progress.result)) : 0,
						!has_progress);
}

/*
 * job_list(q text = NULL)
 * returns table (queue text, handler text, state text, reason text,
 *				  concurrency int, running int, message_id bigint, pid int,
 *				  running_since timestamptz, progress jsonb)
 *
 * What the handler of queue q runs, or those of all queues of the session's
 * project whose owner, or admin, the caller is: a row for each job that runs,
 * in a background process or in job_run, and one with NULL from message_id on
 * where none does.
 *
 * state: idle, running, paused (by queue_pause), or stopped, because the
 * handler cannot run now; then reason says why, and it goes on by itself when
 * that has changed.  reason also says if background
 * processes do not run jobs.  concurrency: jobs that may run at
 * the same time; running: those that do.  pid: of the process, which the role
 * that bound the handler may cancel with pg_cancel_backend.  running_since:
 * when the attempt began.  progress: done, total, note, as job_progress has
 * reported them.
 *
 * Result: no row when the queue is unknown or has no handler.
 * Errors: 22023 name, 42501 q is given, and the caller is neither owner nor
 * admin.
 */
Datum
sql_job_list(PG_FUNCTION_ARGS)
{
	RunningJobs jobs;
	HandlerList list = {0};

	InitMaterializedSRF(fcinfo, 0);
	jobs = list_running_jobs();
	if (!PG_ARGISNULL(0))
	{
		const char *name = arg_queue_name(fcinfo, 0, "q");
		Queue		queue;
		Handler		handler;

		if (queue_open_or_notice(name, QUEUE_INSPECT, &queue) &&
			handler_read(queue.id, &handler))
			put_handler(fcinfo, &handler, &jobs);
		api_check_left(fcinfo, name);
		return (Datum) 0;
	}

	list.context = AllocSetContextCreate(CurrentMemoryContext, "handlers",
										 ALLOCSET_DEFAULT_SIZES);
	handler_list_read(&list, InvalidOid);
	for (int i = 0; i < list.n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (strcmp(list.items[i].project, setting_project) == 0 &&
			queue_may_inspect(list.items[i].row.queue_id,
							  GetUserId()))
			put_handler(fcinfo, &list.items[i], &jobs);
	}
	return (Datum) 0;
}

/*
 * queue_data.handler_problem(queue_id int) returns text
 *
 * Why the handler of a queue cannot run; behind the views queue_handlers and
 * queue_status.
 *
 * Result: NULL if it can, is paused, or there is none.
 * Errors: 42501 not the owner of the extension, nor granted EXECUTE.
 */
Datum
sql_queue_handler_problem(PG_FUNCTION_ARGS)
{
	Handler		handler;
	const char *problem = NULL;

	if (handler_read(PG_GETARG_INT32(0), &handler))
		problem = problem_of(&handler);
	if (problem == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(problem));
}

/*
 * job_progress(done bigint, total bigint = NULL, note text = NULL) returns
 * void
 *
 * To be called by a handler: job_list shows at once how much of its job is
 * done, out of a total, and a note of at most 255 bytes (the rest is cut off).
 * It writes nothing, so it may be called often, and a rollback does not undo
 * it.  Without effect outside a handler, so that one can be tried by hand.
 *
 * Errors: 22004 and 22023 done or total negative.
 */
Datum
sql_job_progress(PG_FUNCTION_ARGS)
{
	int64		done = DatumGetInt64(arg_required(fcinfo, 0, "done"));
	int64		total = PG_ARGISNULL(1) ? -1 : PG_GETARG_INT64(1);
	bool		is_valid = done >= 0 && (PG_ARGISNULL(1) || total >= 0);

	if (!is_valid)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be at least 0, not %lld",
						done < 0 ? "done" : "total",
						(long long) (done < 0 ? done : total)),
				 errhint("Count up from 0, in any unit; give NULL for a total that is not known.")));
	pool_set_progress(done, total, PG_ARGISNULL(2) ? "" :
					  text_to_cstring(PG_GETARG_TEXT_PP(2)));
	PG_RETURN_VOID();
}
