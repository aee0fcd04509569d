/*-------------------------------------------------------------------------
 *
 * finished_api.c
 *	  SQL functions of the history, and of results.
 *
 * src/api/finished_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "utils/jsonb.h"

#include "api/api_arg.h"
#include "claim/claim_message.h"
#include "claim/claim_update.h"
#include "jobs/job_attempt.h"
#include "queue/finished.h"
#include "queue/registry.h"
#include "util/args.h"
#include "util/compat.h"

PG_FUNCTION_INFO_V1(sql_queue_finished);
PG_FUNCTION_INFO_V1(sql_message_finished);
PG_FUNCTION_INFO_V1(sql_message_result);
PG_FUNCTION_INFO_V1(sql_message_complete);
PG_FUNCTION_INFO_V1(sql_job_result);
PG_FUNCTION_INFO_V1(sql_job_errors);

static Jsonb *get_result(FunctionCallInfo fcinfo, int arg);
static int	get_outcome(FunctionCallInfo fcinfo, int arg);
static void add_column(ApiRow *row, const Finished *finished, int attribute);
static void put_finished(const Finished *finished, void *arg);
static void put_error(const Finished *finished, void *arg);

/* --- Arguments --- */

/* Get a result, or NULL.  It may be as large as a body. */
static Jsonb *
get_result(FunctionCallInfo fcinfo, int arg)
{
	return PG_ARGISNULL(arg) ? NULL :
		arg_check_result(PG_GETARG_JSONB_P(arg), 0);
}

/* Get an outcome by its name; -1 for NULL. */
static int
get_outcome(FunctionCallInfo fcinfo, int arg)
{
	char	   *name = arg_text(fcinfo, arg);

	if (name == NULL)
		return -1;
	for (int i = 0; i < FINISHED_FAILED; i++)
		if (strcmp(name, finished_outcomes[i]) == 0)
			return i;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("parameter \"%s\" is not an outcome: \"%s\"", "outcome",
					arg_clip(name, CLIP_LENGTH)),
			 errhint("Outcomes are completed, dead, expired, canceled, duplicate and deleted; NULL is any of them.")));
}

/* --- The history --- */

static void
add_column(ApiRow *row, const Finished *finished, int attribute)
{
	api_row_add_or_null(row, finished->values[attribute - 1],
						finished->isnull[attribute - 1]);
}

/* Callback of finished_list(): return one row of queue_finished. */
static void
put_finished(const Finished *finished, void *arg)
{
	FunctionCallInfo fcinfo = arg;
	ApiRow		row = {0};

	api_row_add(&row, Int64GetDatum(finished->id));
	api_row_add(&row, PG_GETARG_DATUM(0));	/* the queue */
	add_column(&row, finished, Anum_finished_group_key);
	add_column(&row, finished, Anum_finished_batch);
	api_row_add_text(&row, finished_outcomes[finished->outcome]);
	api_row_add(&row, TimestampTzGetDatum(finished->pushed_at));
	api_row_add(&row, TimestampTzGetDatum(finished->finished_at));
	api_row_add(&row, Int32GetDatum(finished->attempts));
	add_column(&row, finished, Anum_finished_result);
	add_column(&row, finished, Anum_finished_error);
	add_column(&row, finished, Anum_finished_body);
	api_row_put(&row, fcinfo);
}

/*
 * queue_finished(q text, marker bigint = NULL, "limit" int = 10,
 *				  outcome text = NULL)
 * returns table (id bigint, queue text, group_key text, batch bigint,
 *				  outcome text, pushed_at timestamptz,
 *				  finished_at timestamptz, attempts int, result jsonb,
 *				  error text, body jsonb)
 *
 * What became of messages of the queue that were finished in the last
 * _keep_finished seconds, by id, after the marker, at most limit (1 to 10000);
 * outcome: only those with this one (completed, dead, expired, canceled,
 * duplicate, deleted).  result: as given to message_complete or job_result;
 * error: the last one of a message that was not completed; body: only with
 * _keep_body.
 *
 * Result: no row where the metadata has no _keep_finished.
 * Errors: 22004 and 22023 arguments, 42501 no right to claim; with
 * _results_for_producers, nor to push.
 * Source: Oban, jobs that are kept.
 */
Datum
sql_queue_finished(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	int64		marker = PG_ARGISNULL(1) ? PG_INT64_MIN : PG_GETARG_INT64(1);
	int			limit = arg_check_list_limit(arg_int(fcinfo, 2, "limit"));
	int			outcome = get_outcome(fcinfo, 3);
	Queue		queue;

	InitMaterializedSRF(fcinfo, 0);
	if (finished_open(name, &queue))
		finished_list(&queue, marker, limit, outcome, put_finished, fcinfo);
	return api_check_left(fcinfo, name);
}

/*
 * message_finished(q text, id bigint)
 * returns table: as queue_finished
 *
 * What became of the message: its row of queue_finished.
 *
 * Result: no row if it is not in the history.
 * Errors: as queue_finished.
 */
Datum
sql_message_finished(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	int64		id = DatumGetInt64(arg_required(fcinfo, 1, "id"));
	Queue		queue;
	Finished	row;

	InitMaterializedSRF(fcinfo, 0);
	if (finished_open(name, &queue) && finished_fetch(&queue, id, &row))
		put_finished(&row, fcinfo);
	return api_check_left(fcinfo, name);
}

/*
 * message_result(q text, id bigint) returns jsonb
 *
 * The result with which the message was completed.
 *
 * Result: NULL if it had none, or is not in the history.
 * Errors: 22004 and 22023 arguments, 42501 as queue_finished.
 * Source: Celery, AsyncResult.result.
 */
Datum
sql_message_result(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	int64		id = DatumGetInt64(arg_required(fcinfo, 1, "id"));
	Queue		queue;
	Finished	row;
	bool		found = finished_open(name, &queue) &&
	finished_fetch(&queue, id, &row);

	queue_check_left(name, found);
	if (!found || row.isnull[Anum_finished_result - 1])
		PG_RETURN_NULL();
	PG_RETURN_DATUM(row.values[Anum_finished_result - 1]);
}

/* Callback of finished_errors(): return one row. */
static void
put_error(const Finished *finished, void *arg)
{
	ApiRow		row = {0};

	api_row_add(&row, Int64GetDatum(finished->id));
	api_row_add(&row, Int32GetDatum(finished->attempts));
	api_row_add(&row, TimestampTzGetDatum(finished->finished_at));
	add_column(&row, finished, Anum_finished_error);
	api_row_put(&row, arg);
}

/*
 * job_errors(q text, "limit" int = 100, marker timestamptz = NULL)
 * returns table (message_id bigint, attempt int, at timestamptz, error text)
 *
 * The attempts at messages of the queue that have failed with an error in the
 * last _keep_finished seconds, or without that in the last day, of handlers as
 * by message_retry and message_bury, the latest first: those before marker
 * (NULL: from the latest on), at most limit (1 to 10000).
 *
 * Errors: 22004 and 22023 arguments, 42501 neither owner nor admin of q.
 * Source: Oban, the errors of a job.
 */
Datum
sql_job_errors(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	int			limit = arg_check_list_limit(arg_int(fcinfo, 1, "limit"));
	TimestampTz before = DT_NOEND;
	Queue		queue;

	if (!PG_ARGISNULL(2))
		before = PG_GETARG_TIMESTAMPTZ(2);
	InitMaterializedSRF(fcinfo, 0);
	if (queue_open_or_notice(name, QUEUE_INSPECT, &queue))
		finished_errors(&queue, before, limit, put_error, fcinfo);
	return api_check_left(fcinfo, name);
}

/* --- Results --- */

/*
 * message_complete(q text, id bigint, claim_id text, result jsonb = NULL)
 * returns boolean
 *
 * Deletes one message of a claim, as message_delete does, and keeps a result
 * in the history, at most as large as a body.  Where the metadata has no
 * _keep_finished, the result is not kept.
 *
 * Result: true: deleted; false: there is no such message.
 * Errors: QU001 the claim is not live (also when the id is NULL or
 * malformed), QU002 the message is not in it, QU004 it was canceled, 54000
 * result too large, 22004 and 22023 arguments, 42501 no right to claim.
 * Source: Celery, the result of a task.
 */
Datum
sql_message_complete(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "message_complete()");
	Datum		id = arg_required(fcinfo, 1, "id");
	Jsonb	   *result = get_result(fcinfo, 3);
	Queue		queue;
	ClaimId		claim;

	if (!queue_open(name, QUEUE_CLAIM, &queue) ||
		!arg_claim_id(fcinfo, 2, &queue, &claim))
		claim_not_live();
	PG_RETURN_BOOL(claim_delete_messages(&queue, &id, 1, &claim, false,
										 result) > 0);
}

/*
 * job_result(result jsonb) returns void
 *
 * To be called by a handler: the history keeps this as the result of its job,
 * if the attempt succeeds; the last call counts.  It is at most as large as a
 * body.  Where the metadata of the queue has no _keep_finished, it is not
 * kept.
 *
 * Errors: 55000 no handler runs, 54000 result too large, 22004 result.
 * Source: Celery, the result of a task.
 */
Datum
sql_job_result(PG_FUNCTION_ARGS)
{
	(void) arg_required(fcinfo, 0, "result");
	if (!job_attempt_set_result(get_result(fcinfo, 0)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("job_result() can only be called by a handler"),
				 errhint("A worker that has claimed a message passes the result to message_complete().")));
	PG_RETURN_VOID();
}
