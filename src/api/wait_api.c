/*-------------------------------------------------------------------------
 *
 * wait_api.c
 *	  The SQL functions for waiting: queue_channel, queue_wait, queue_await,
 *	  queue_ready.
 *
 * src/api/wait_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "api/api_arg.h"
#include "bgworker/wakeup.h"
#include "claim/claim_scan.h"
#include "claim/ready.h"
#include "queue/registry.h"
#include "queue/shard.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/limits.h"
#include "util/settings.h"

PG_FUNCTION_INFO_V1(sql_queue_channel);
PG_FUNCTION_INFO_V1(sql_queue_wait);
PG_FUNCTION_INFO_V1(sql_queue_wait_in_statement);
PG_FUNCTION_INFO_V1(sql_queue_await);
PG_FUNCTION_INFO_V1(sql_queue_ready);
PG_FUNCTION_INFO_V1(sql_queue_ready_in_projects);
PG_FUNCTION_INFO_V1(sql_queue_is_empty);

static void check_may_wait(FunctionCallInfo fcinfo, const char *function);
static int	get_wait_args(FunctionCallInfo fcinfo, char *name);
static void put_if_ready(const char *project, const Queue *queue,
						 MessageTables *tables, FunctionCallInfo fcinfo);
static bool put_flagged_ready(FunctionCallInfo fcinfo);
static void put_listed_ready(FunctionCallInfo fcinfo, const List *ids,
							 bool has_project);

/*
 * queue_channel(q text) returns text
 *
 * The channel to LISTEN on: a notification follows whenever queue q, of the
 * session's project, gets something to claim.  The payload is the queue's
 * name.  The queue need not exist yet.
 *
 * Result: a name of 38 bytes, always the same for project and queue.  A
 * NOTICE, once in a session, if nothing sends notifications.
 * Errors: 22004 and 22023 name.
 */
Datum
sql_queue_channel(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	char		channel[CHANNEL_LENGTH + 1];

	shard_check(name);
	api_notice_no_worker("no notifications are sent");
	wakeup_channel_name(setting_project, name, channel);
	PG_RETURN_TEXT_P(cstring_to_text(channel));
}

/*
 * Returns the timeout.  The queue's name is copied, because the transaction
 * may end.
 */
static int
get_wait_args(FunctionCallInfo fcinfo, char *name)
{
	api_check_can_write("queue_wait()");
	strlcpy(name, arg_queue_name(fcinfo, 0, "q"), QUEUE_NAME_LENGTH + 1);
	return arg_check_bounds("timeout_ms", arg_int(fcinfo, 1, "timeout_ms"), 0,
							NULL, INT_MAX, NULL, " ms");
}

/* Check that the procedure can end the transaction in which it was called. */
static void
check_may_wait(FunctionCallInfo fcinfo, const char *function)
{
	if (fcinfo->context != NULL && IsA(fcinfo->context, CallContext) &&
		!castNode(CallContext, fcinfo->context)->atomic &&
		!IsSubTransaction() && !(MyXactFlags & XACT_FLAGS_PIPELINING))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
			 errmsg("%s cannot wait here", function),
			 errdetail("It ends the transaction to wait, so it cannot be called inside a transaction block, a pipeline, a function, or a procedure with SECURITY DEFINER or SET."),
			 errhint("Call it by itself, with autocommit, or with a timeout of 0 to check once.")));
}

/*
 * CALL queue_wait(q text, timeout_ms int, INOUT ready boolean = NULL)
 *
 * Waits until queue q has something to claim, at most timeout_ms
 * milliseconds; 0 checks once.  It has no wait without end.
 *
 * Result: ready: whether it has.  Another session may be quicker to claim it.
 * Errors: 22004 and 22023 arguments, 42501 no right to claim, 25006 read-only,
 * 25001 unless timeout_ms is 0: called where it cannot wait, in a transaction
 * block, a pipeline, a function, or a procedure with SECURITY DEFINER or SET.
 * Source: Amazon SQS, long polling.
 */
Datum
sql_queue_wait(PG_FUNCTION_ARGS)
{
	char		name[QUEUE_NAME_LENGTH + 1];
	int			timeout = get_wait_args(fcinfo, name);
	ApiRow		row = {0};

	if (timeout > 0)
		check_may_wait(fcinfo, "queue_wait()");
	api_row_add(&row, BoolGetDatum(wakeup_wait(name, timeout, false)));
	return api_row_return(&row, fcinfo);
}

/*
 * queue_router.wait(q text, timeout_ms int) returns boolean
 *
 * Waits as queue_wait() does, but within the statement, which holds a snapshot
 * all the while.  For queue_proxy, which can only call functions, and does so
 * for seconds.
 *
 * Result: whether the queue has something to claim.
 * Errors: 22004 and 22023 arguments, 42501 no right to claim, 25006 read-only.
 */
Datum
sql_queue_wait_in_statement(PG_FUNCTION_ARGS)
{
	char		name[QUEUE_NAME_LENGTH + 1];
	int			timeout = get_wait_args(fcinfo, name);

	PG_RETURN_BOOL(wakeup_wait(name, timeout, true));
}

/*
 * CALL queue_await(q text, id bigint, timeout_ms int = NULL,
 *					INOUT result jsonb = NULL)
 *
 * Waits until a message of queue q is finished, at most timeout_ms
 * milliseconds (NULL: without end); 0 looks once.  Returns at once if it was
 * finished in the last _keep_finished seconds.
 *
 * Result: result: {"outcome", "result", "error"}, as queue_finished shows
 * them; {"outcome": "unknown"} if there is neither the message nor a row in
 * the history; NULL after the timeout.  A NOTICE if the queue has no history.
 * Errors: 22004 and 22023 arguments, 42501 as queue_finished, 25006 read-only,
 * 25001 unless timeout_ms is 0: called where it cannot wait, as queue_wait.
 * Source: Celery, AsyncResult.get.
 */
Datum
sql_queue_await(PG_FUNCTION_ARGS)
{
	char		name[QUEUE_NAME_LENGTH + 1];
	int64		id = DatumGetInt64(arg_required(fcinfo, 1, "id"));
	int			timeout = AWAIT_FOREVER;
	Jsonb	   *result;
	ApiRow		row = {0};

	api_check_can_write("queue_await()");

	/* The name is copied, because the transaction may end. */
	strlcpy(name, arg_queue_name(fcinfo, 0, "q"), sizeof(name));
	if (!PG_ARGISNULL(2))
		timeout = arg_check_bounds("timeout_ms", PG_GETARG_INT32(2), 0, NULL,
								   INT_MAX, NULL, " ms");
	if (timeout != 0)
		check_may_wait(fcinfo, "queue_await()");
	result = await_message(name, id, timeout);
	api_row_add_or_null(&row, JsonbPGetDatum(result), result == NULL);
	return api_row_return(&row, fcinfo);
}

/*
 * Put a queue into the result if it has something to claim: its name, after
 * its project unless that is NULL.  The caller frees the memory, as there may
 * be very many queues.
 */
static void
put_if_ready(const char *project, const Queue *queue, MessageTables *tables,
			 FunctionCallInfo fcinfo)
{
	ApiRow		row = {0};

	CHECK_FOR_INTERRUPTS();
	if (!claim_scan_probe(queue, tables))
		return;
	if (project != NULL)
		api_row_add_text(&row, project);
	api_row_add_text(&row, queue->name);
	api_row_put(&row, fcinfo);
}

/*
 * Visit the queues whose maps have the flag.  Returns false if others may be
 * ready, too.
 */
static bool
put_flagged_ready(FunctionCallInfo fcinfo)
{
	QueueSummary summary;
	Queue		queue;
	uint64		generation;
	uint32		slot = 0;
	MessageTables tables = {0};
	MemoryContext context;
	MemoryContext old;

	if (!ready_is_complete(&generation))
		return false;
	context = AllocSetContextCreate(CurrentMemoryContext,
									"a queue that is probed",
									ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	ready_begin();
	while (ready_next_claimable(&slot, &summary, &queue))
	{
		put_if_ready(NULL, &queue, &tables, fcinfo);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old);
	message_tables_close(&tables, false);
	return ready_was_complete(generation);
}

/* Visit these queues, and put the project of each into the result, if asked. */
static void
put_listed_ready(FunctionCallInfo fcinfo, const List *ids, bool has_project)
{
	MessageTables tables = {0};
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "a queue that is probed",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	ListCell   *cell;

	foreach(cell, ids)
	{
		QueueSummary summary;
		Queue		queue;

		CHECK_FOR_INTERRUPTS();
		if (queue_check_claimable(lfirst_int(cell), NULL, &summary,
								  &queue) == QUEUE_OK)
			put_if_ready(has_project ? summary.project : NULL, &queue,
						 &tables, fcinfo);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old);
	message_tables_close(&tables, false);
}

/*
 * queue_ready() returns setof text
 *
 * The names of the queues of the session's project that have something to
 * claim, as far as the session may claim from them.
 *
 * Its cost grows with the number of ready queues that the session may claim
 * from where the library is preloaded and the database's worker runs;
 * elsewhere with the number of all queues.
 * Source: MediaWiki, JobQueueAggregator.
 */
Datum
sql_queue_ready(PG_FUNCTION_ARGS)
{
	List	   *ids = NIL;
	QueueEntry *queues;
	int			n;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	if (put_flagged_ready(fcinfo))
		return (Datum) 0;

	/* List all queues; what has the flag is found again. */
	tuplestore_clear(((ReturnSetInfo *) fcinfo->resultinfo)->setResult);
	queues = queue_list_readable(&n);
	for (int i = 0; i < n; i++)
		if (ready_may_be(queues[i].id))
			ids = lappend_int(ids, queues[i].id);
	put_listed_ready(fcinfo, ids, false);
	return (Datum) 0;
}

/*
 * queue_ready_in_projects() returns table (project text, queue text)
 *
 * The queues of all projects that have something to claim, as far as the
 * session may claim from them.  Its cost grows as that of queue_ready(), with
 * the ready queues of all projects.
 * Source: MediaWiki, JobQueueAggregator, for a farm of wikis.
 */
Datum
sql_queue_ready_in_projects(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	put_listed_ready(fcinfo, ready_ids_in_projects(), true);
	return (Datum) 0;
}

/*
 * queue_is_empty(q text) returns boolean
 *
 * Whether a claim of queue q would find nothing now.  With an availability
 * map its cost does not depend on the number of messages.
 *
 * Result: true also for an unknown queue, and for one that is paused.
 * Errors: 22004 and 22023 name, 42501 no right to claim.
 * Source: MediaWiki, JobQueue::isEmpty.
 */
Datum
sql_queue_is_empty(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	Queue		queue;
	bool		found = queue_open_or_notice(name, QUEUE_READ, &queue) &&
	!queue.paused && claim_scan_probe(&queue, NULL);

	queue_check_left(name, found);
	PG_RETURN_BOOL(!found);
}
