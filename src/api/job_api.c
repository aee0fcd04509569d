/*-------------------------------------------------------------------------
 *
 * job_api.c
 *	  SQL functions on jobs: handlers, running jobs, root jobs, what runs.
 *
 * NOTES
 *	  The owner of a queue, and a role with the privilege admin, see what runs
 *	  there without being members of pg_monitor.  Rows of other queues are left
 *	  out.  They could not be hidden in part: names of queues and the roles
 *	  that bind handlers tell what others do.
 *
 * src/api/job_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"

#include "api/api_arg.h"
#include "jobs/execute.h"
#include "jobs/handler.h"
#include "jobs/handler_check.h"
#include "jobs/runner_pool.h"
#include "push/root_job.h"
#include "queue/registry.h"
#include "util/args.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/json.h"
#include "util/settings.h"

#define CONCURRENCY_MAX		256
#define RATE_MAX			1000000 /* jobs per second */
#define SIGNATURE_MAX		1000	/* bytes */

PG_FUNCTION_INFO_V1(sql_job_handler);
PG_FUNCTION_INFO_V1(sql_job_run);
PG_FUNCTION_INFO_V1(sql_job_root);
PG_FUNCTION_INFO_V1(sql_job_list);
PG_FUNCTION_INFO_V1(sql_queue_handler_problem);
PG_FUNCTION_INFO_V1(sql_job_progress);

static void get_handler_options(FunctionCallInfo fcinfo,
								HandlerOptions *options);
static void put_handler(FunctionCallInfo fcinfo, Handler *handler,
						const Runner *runners, int n);
static const char *problem_of(Handler *handler);
static void add_job_columns(ApiRow *row, const Runner *runner);

/* --- Handlers --- */

/* The arguments concurrency, timeout and rate */
static void
get_handler_options(FunctionCallInfo fcinfo, HandlerOptions *options)
{
	int			concurrency = arg_int(fcinfo, 2, "concurrency");

	memset(options, 0, sizeof(HandlerOptions));
	options->concurrency = arg_check_bounds("concurrency", concurrency, 1,
											NULL, CONCURRENCY_MAX, NULL, "");
	if (!PG_ARGISNULL(3))
		options->timeout = arg_check_bounds("timeout", PG_GETARG_INT32(3),
											1, NULL,
											setting_max_handler_time,
											PG_GETARG_INT32(3) < 1 ? NULL :
											"queue.max_handler_time",
											" s");
	if (!PG_ARGISNULL(4))
	{
		options->rate = PG_GETARG_FLOAT4(4);
		if (!(options->rate > 0 && options->rate <= RATE_MAX))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("parameter \"%s\" must be above 0 and at most %d jobs per second, not %g",
							"rate", RATE_MAX, options->rate),
					 errhint("Give a rate in these bounds, 0.1 for one job in ten seconds, or NULL for any.")));
	}
}

/*
 * job_handler(q text, handler regprocedure, concurrency int = 1,
 *			   timeout int = NULL, rate real = NULL,
 *			   teardown regprocedure = NULL) returns void
 *
 * Binds queue q to a function of (queue_message) or (jsonb) that returns
 * boolean: background workers, and job_run, call it for each message, as the
 * current role and with the current search_path.  At most "concurrency" jobs
 * run at the same time, for at most "timeout" seconds each (NULL, and at most:
 * queue.max_handler_time), and at most "rate" begin per second (NULL: any).
 * The function "teardown", of the same argument types, is called after each
 * attempt.  The queue is created as by a push.  If its metadata does not have
 * _max_claim_count, this sets it to 12.  NULL as the handler unbinds the
 * queue.  A NOTICE, once in a session, if no background worker can run jobs.
 *
 * Errors: 42704 unknown queue while queue.auto_create is off, 42883 no such
 * function, 22004 and 22023 arguments, 42501 not the queue's owner, or no
 * privilege to execute the function or to use its schema.
 * Source: MediaWiki, Job::run, Job::tearDown, $wgJobClasses.
 */
Datum
sql_job_handler(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "job_handler()");
	HandlerOptions options;

	get_handler_options(fcinfo, &options);
	if (PG_ARGISNULL(1))
		handler_unbind(name);
	else
	{
		handler_bind(name, PG_GETARG_OID(1),
					 PG_ARGISNULL(5) ? InvalidOid : PG_GETARG_OID(5),
					 &options);
		api_notice_no_worker("only job_run() runs jobs");
	}
	PG_RETURN_VOID();
}

/* --- Running --- */

/*
 * CALL job_run(queues text[] = NULL, max_jobs int = NULL, max_time int = NULL,
 *				INOUT result jsonb = NULL)
 *
 * Runs jobs of these queues (NULL: of all that have a handler, in the
 * session's project, whose role the caller may SET ROLE to), at most max_jobs
 * of them (NULL: any), begun within max_time seconds (NULL: any).
 *
 * Result: ok and failed: numbers of attempts; elapsed: seconds; reached: why
 * it ended: none-ready, job-limit or time-limit.
 * Errors: 22004 and 22023 arguments, 42704 a queue is unknown or has no
 * handler, 42501 the caller may not act as the role that bound one, 25001
 * called inside a transaction block or a function, 55000 open cursors or
 * advisory locks in a session of another role.
 * Source: MediaWiki, JobRunner::run, runJobs.
 */
Datum
sql_job_run(PG_FUNCTION_ARGS)
{
	static const char *const reached[] = {
		[RUN_NONE_READY] = "none-ready",
		[RUN_JOB_LIMIT] = "job-limit",
		[RUN_TIME_LIMIT] = "time-limit"
	};
	int64		began = clock_monotonic();
	const char **names = NULL;
	int			nnames = 0;
	RunLimits	limits = {.max_jobs = PG_INT64_MAX,.until = PG_INT64_MAX};
	RunCounts	counts;
	RunEnd		end;
	char	   *text;
	ApiRow		row = {0};

	api_check_can_write("job_run()");
	if (!PG_ARGISNULL(1))
		limits.max_jobs = arg_check_bounds("max_jobs", PG_GETARG_INT32(1),
										   1, NULL, INT_MAX, NULL, "");
	if (!PG_ARGISNULL(2))
		limits.until = began + USECS_PER_SEC *
			arg_check_bounds("max_time", PG_GETARG_INT32(2), 0, NULL,
							 INT_MAX, NULL, " s");
	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("job_run() cannot run here"),
				 errdetail("Each job has a transaction of its own, so it cannot be called inside a transaction block, a function, or a procedure with SECURITY DEFINER or SET."),
				 errhint("Call it by itself, with autocommit.")));

	/* SPI commits; its memory outlives the transactions. */
	(void) SPI_connect_ext(SPI_OPT_NONATOMIC);
	if (!PG_ARGISNULL(0))
		names = arg_queue_names(PG_GETARG_ARRAYTYPE_P_COPY(0), &nnames);
	end = execute_in_session(names, nnames, &limits, &counts);
	SPI_finish();
	text = psprintf("{\"ok\": %lld, \"failed\": %lld, \"elapsed\": %.3f, \"reached\": \"%s\"}",
					(long long) counts.ok, (long long) counts.failed,
					(clock_monotonic() - began) / (double) USECS_PER_SEC,
					reached[end]);

	api_row_add(&row, DirectFunctionCall1(jsonb_in, CStringGetDatum(text)));
	return api_row_return(&row, fcinfo);
}

/* --- Root jobs --- */

/*
 * job_root(q text, signature text, at timestamptz = NULL) returns jsonb
 *
 * Registers a new root job in queue q, to which its leaf jobs will be pushed.
 * signature, 1 to 1000 bytes, identifies the root job.  From the moment at
 * which this transaction commits, leaf jobs of earlier registrations are
 * deleted instead of being handed out, and counted as duplicates.  at is the
 * root job's own time, as MediaWiki has it, which is kept as it is: leaf jobs
 * with this time or a later one are handed out.  Equal times are one root job;
 * an earlier one than that which is registered changes nothing.
 *
 * Result: an object with rootJobSignature and rootJobTimestamp, to be merged
 * into the bodies of the leaf jobs; without at, the time is later than the
 * last one's.
 * Errors: 22004 and 22023 arguments, also an infinite time, or one whose year
 * has more than four digits, 42704 unknown queue while queue.auto_create is
 * off, 42501 no privilege to push.
 * Source: MediaWiki, Job::newRootJobParams and
 * JobQueue::deduplicateRootJob.
 */
Datum
sql_job_root(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "job_root()");
	Queue		queue;
	char	   *signature;
	Size		length;
	bool		has_time;
	TimestampTz at = 0;

	signature = TextDatumGetCString(arg_required(fcinfo, 1, "signature"));
	length = strlen(signature);
	if (length < 1 || length > SIGNATURE_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be 1 to %d bytes long, not %zu",
						"signature", SIGNATURE_MAX, length),
				 errhint("Give a digest of what the root job does.")));
	has_time = !PG_ARGISNULL(2);
	if (has_time)
		at = PG_GETARG_TIMESTAMPTZ(2);
	queue_open_or_create(name, QUEUE_PUSH, &queue);
	PG_RETURN_JSONB_P(root_job_register(&queue, signature,
										has_time ? &at : NULL));
}

/* --- What runs --- */

/*
 * Return a row for each job of a queue that runs, or one if none does.
 * runners: those that run a job of this database.
 */
static void
put_handler(FunctionCallInfo fcinfo, Handler *handler,
			const Runner *runners, int n)
{
	int			running = 0;
	ApiRow		row = {0};
	const char *problem = problem_of(handler);
	const char *reason = problem;

	for (int i = 0; i < n; i++)
		if (runners[i].queue_id == handler->row.queue_id)
			running++;

	/* The command that has paused the queue is reason enough. */
	if (problem == NULL && !handler->queue.paused &&
		(setting_database_workers == 0 || setting_max_runners == 0 ||
		 setting_runners == 0))
		reason = "no background process may run jobs (\"queue.database_workers\", \"queue.max_runners\", \"queue.runners\"): only job_run() does";
	api_row_add_text(&row, handler->queue.name);
	api_row_add_text(&row, handler_function_name(&handler->row.function));
	api_row_add_text(&row, problem != NULL ? "stopped" :
					 handler->queue.paused ? "paused" :
					 running > 0 ? "running" : "idle");
	api_row_add_text(&row, reason);
	api_row_add(&row, Int32GetDatum(handler->row.options.concurrency));
	api_row_add(&row, Int32GetDatum(running));
	for (int i = 0; i < n; i++)
		if (runners[i].queue_id == handler->row.queue_id)
		{
			ApiRow		job = row;

			add_job_columns(&job, &runners[i]);
			api_row_put(&job, fcinfo);
		}
	if (running == 0)
		api_row_put(&row, fcinfo);
}

/* Returns why a handler cannot run now; NULL if it can, or is paused. */
static const char *
problem_of(Handler *handler)
{
	return handler->queue.paused ? NULL : handler_check(handler);
}

/* Add the columns of a job. */
static void
add_job_columns(ApiRow *row, const Runner *runner)
{
	JsonbInState progress = {0};

	api_row_add(row, Int64GetDatum(runner->message_id));
	api_row_add(row, Int32GetDatum(runner->pid));
	api_row_add(row, TimestampTzGetDatum(runner->job_since));
	if (runner->done < 0)
		return;					/* it has reported no progress */
	compat_push_jsonb(&progress, WJB_BEGIN_OBJECT, NULL);
	json_add_integer(&progress, "done", runner->done);
	if (runner->total >= 0)
		json_add_integer(&progress, "total", runner->total);
	if (runner->note[0] != '\0')
		json_add_text(&progress, "note", runner->note);
	compat_push_jsonb(&progress, WJB_END_OBJECT, NULL);
	api_row_add(row, JsonbPGetDatum(JsonbValueToJsonb(progress.result)));
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
	Runner	   *runners;
	int			n;
	HandlerList list = {0};

	InitMaterializedSRF(fcinfo, 0);
	runners = pool_list(&n, true);
	if (!PG_ARGISNULL(0))
	{
		const char *name = arg_queue_name(fcinfo, 0, "q");
		Queue		queue;
		Handler		handler;

		if (queue_open_or_notice(name, QUEUE_INSPECT, &queue) &&
			handler_read(queue.id, &handler))
			put_handler(fcinfo, &handler, runners, n);
		return api_check_left(fcinfo, name);
	}

	list.context = AllocSetContextCreate(CurrentMemoryContext, "handlers",
										 ALLOCSET_DEFAULT_SIZES);
	handler_list_read(&list, InvalidOid);
	for (int i = 0; i < list.n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (strcmp(list.items[i].queue.project, setting_project) == 0 &&
			queue_may_inspect(list.items[i].row.queue_id,
							  GetUserId()))
			put_handler(fcinfo, &list.items[i], runners, n);
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
