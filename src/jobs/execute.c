/*-------------------------------------------------------------------------
 *
 * execute.c
 *	  Running jobs: handlers called with the messages of their queues.
 *
 * NOTES
 *	  Background processes (runner.c) and sessions (job_run) do the same: they
 *	  claim a few messages in one transaction, so that the tries are counted
 *	  whatever happens, and give each a transaction of its own.  In it the
 *	  handler is called and its message deleted, so that both are done or
 *	  neither.  Another one calls the teardown function.  If the job has
 *	  failed, a third one says so (claim_retry_job): then it is free for others.
 *
 *	  Who runs what.  The handler is called as the role that bound it, with
 *	  SECURITY_LOCAL_USERID_CHANGE, in which the server refuses SET ROLE and
 *	  SET SESSION AUTHORIZATION; all that it has deferred is done before that
 *	  is lifted, in a runner even the end of the transaction.  Its settings
 *	  are taken back then.  A runner serves one role for its life, and its
 *	  session belongs to that role, so what a handler may leave in the memory
 *	  of a process never meets another role; what it leaves for the next job
 *	  (temporary tables, availability maps, prepared statements, advisory locks, LISTEN)
 *	  is dropped.
 *
 *	  A session in job_run belongs to the role that logged in.  SET ROLE and
 *	  SET SESSION AUTHORIZATION do not change that: the session goes back to
 *	  that role later, and would run what a handler had left there.  So a
 *	  handler runs unrestricted only if its role is both the one that logged in
 *	  and the current one.  Any other runs with SECURITY_RESTRICTED_OPERATION,
 *	  in which the server refuses most of what could be left behind; and an
 *	  attempt that has used the session's temporary schema is rolled back,
 *	  because a type or function there can take the place of one that the
 *	  session means.
 *
 *	  A runner's transactions are those of the server's main loop.  A session
 *	  is inside of CALL: it commits by SPI, and a try is a subtransaction,
 *	  since an error has to unwind what the handler has on SPI's stack.
 *
 *	  Concurrency is a number of places, each a lock that is held from before
 *	  the claim until its jobs are done; so it counts everybody, also without
 *	  shared memory, and a crash frees them.  A transaction that is rolled back
 *	  loses its place, and the next job takes one again, or is given back.  No
 *	  other lock is held while a handler runs: its queue may be dropped or
 *	  purged, and then the delete finds the claim gone, and all is rolled back.
 *
 *	  The claim of a message at work is renewed by the database's worker (see
 *	  runner_pool.c); where there is none, claims are made for as long as the handler
 *	  may run.  No handler runs for longer than queue.max_handler_time: then it
 *	  is canceled, and if that does not help, the worker terminates the process.
 *
 *	  With synchronous_commit off a crash takes the last commits along.  Were
 *	  the try of a job that brings the server down among them each time, it
 *	  would do so forever.  So the claims of a runner's first second, and those
 *	  of messages that were tried before, which are claimed alone, are on disk
 *	  before their jobs begin, whatever the setting is.  A server that comes
 *	  back gets further each time, until such a job is among these.
 *
 * src/jobs/execute.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_namespace.h"
#include "commands/async.h"
#include "commands/prepare.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/typcache.h"

#include "jobs/execute.h"
#include "jobs/handler.h"
#include "jobs/runner_pool.h"
#include "queue/claim.h"
#include "queue/claim_message.h"
#include "queue/claim_update.h"
#include "queue/message_result.h"
#include "queue/queue_lock.h"
#include "queue/registry.h"
#include "shmem/shmem.h"
#include "util/clock.h"
#include "util/errcodes.h"
#include "util/settings.h"

#define BATCH_MAX			64
#define BATCH_QUICK			(5 * 1000)	/* usec; then it may be larger */
#define BATCH_SLOW			(50 * 1000) /* then it shall be smaller */
#define BATCH_TOO_SLOW		USECS_PER_SEC	/* then others get the rest */
#define SLICE				(100 * 1000)	/* for a queue, before the others */
#define PLACE_PAUSE			(50 * 1000) /* when all places are taken */
#define EMPTY_PAUSE			(20 * 1000) /* when what seems to be there is not
										 * to be had */
#define ERROR_PAUSE			USECS_PER_SEC
#define SURE_TIME			USECS_PER_SEC	/* of a runner: see above */

#define TTL_MARGIN			5	/* seconds, beyond the timeout */
#define TTL_RENEWED			30	/* seconds, when the worker renews it */
#define GRACE				3600	/* seconds */
#define END_MARGIN			5	/* seconds, from cancel to terminate */
#define LOCK_TIMEOUT		"100ms"
#define DELETE_TIMEOUT		"1s"	/* then the try has failed */
#define CANCEL_AGAIN		1000	/* ms, for a handler that goes on */
#define LOG_LENGTH			500 /* bytes of each part of a message */
#define LOG_MAX				20	/* failures that are logged */
#define LOG_INTERVAL		(10 * USECS_PER_SEC)	/* in this time */

/* What was claimed of a queue at once. */
typedef struct Batch
{
	Handler    *handler;
	int			limit;			/* messages wanted */
	bool		has_more;		/* there were as many */
	bool		no_place;		/* somebody else has got ours */
	const char *stopped;		/* why the handler cannot run, or NULL */
	int64		claimed_at;		/* of the monotonic clock */
	int			ttl;
	MessageResult result;
	int			turn;			/* the message at work */
	bool		deleting;		/* its handler is done */
	bool		retried;		/* it was given back */
	const char *error;			/* of its try, or NULL */
	bool		has_info;		/* these are good */
	FmgrInfo	run_info;
	FmgrInfo	teardown_info;
} Batch;

typedef void (*Action) (Run *run, Batch *batch);

static TimeoutId timeout_id = MAX_TIMEOUTS;
static volatile sig_atomic_t timed_out = false;

static int	time_limit(const Handler *handler);
static void handler_timeout(void);
static void end_call(void);
static void end_timeout(void);
static void check_no_maps(const Handler *handler);
static void bound_locks(Run *run, const char *timeout);
static void begin(Run *run, const Handler *handler, bool calls);
static void commit(Run *run);
static ErrorData *attempt(Run *run, Batch *batch, Action action);
static ErrorData *attempt_in_session(Run *run, Batch *batch, Action action);
static bool have_place(Run *run, const Handler *handler);
static void claim(Run *run, Batch *batch);
static void prepare(Run *run, Batch *batch);
static Datum argument(const HandlerFunction *function,
					  ResultMessage *message);
static bool touched_temporary(void);
static void settle(Run *run);
static bool call(Run *run, Batch *batch, const HandlerFunction *function,
				 FmgrInfo *info);
static void try_job(Run *run, Batch *batch);
static void retry_job(Run *run, Batch *batch);
static void tear_down(Run *run, Batch *batch);
static void give_back(Run *run, Batch *batch);
static void stop(Run *run, Batch *batch);
static void error_context(void *arg);
static const char *clip(const char *text);
static void report(Run *run, Batch *batch, const ErrorData *error,
				   const char *what);
static void failed(Run *run, Batch *batch, ErrorData *error);
static void retry(Run *run, Batch *batch, ErrorData *lost);
static void set_end(Run *run, Batch *batch);
static void after_try(Run *run, Batch *batch);
static bool is_cancelled(const Run *run, const ErrorData *error);
static ErrorData *run_job(Run *run, Batch *batch);
static void run_batch(Run *run, Batch *batch);
static void adapt(Batch *batch);
static int	claim_ttl(const Run *run, const Handler *handler);

/* For how long may the handler run, in seconds? */
static int
time_limit(const Handler *handler)
{
	return handler->timeout == 0 ? setting_max_handler_time :
		Min(handler->timeout, setting_max_handler_time);
}

/* --- Transactions --- */

/*
 * A handler has had its time.  One that catches the error is cancelled again,
 * and terminated by the worker if that does not help.
 */
static void
handler_timeout(void)
{
	timed_out = true;
	InterruptPending = true;
	QueryCancelPending = true;
	SetLatch(MyLatch);
}

/* The time of a handler includes the deletion of its message. */
static void
end_call(void)
{
	disable_timeout(timeout_id, false);
	CHECK_FOR_INTERRUPTS();
}

/* An error may have come just before the cancel. */
static void
end_timeout(void)
{
	disable_timeout(timeout_id, false);
	if (timed_out)
		QueryCancelPending = false;
}

/* The session may have opened a availability map with rights that the role lacks. */
static void
check_no_maps(const Handler *handler)
{
	if (!ThereAreNoReadyPortals())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot run jobs of queue \"%s\" while the session has open cursors",
						handler->name),
				 errdetail("The handler belongs to another role, which could read them."),
				 errhint("Close them with CLOSE ALL, or log in as the handler's role.")));
}

/*
 * Outside of handlers a runner waits for no lock for long: the role could hold
 * one, and so keep the runner from other roles.
 */
static void
bound_locks(Run *run, const char *timeout)
{
	if (!run->is_session)
		(void) set_config_option("lock_timeout", timeout, PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
								 false);
}

/* Begin to work for a handler: as its role, in its queue's project. */
static void
begin(Run *run, const Handler *handler, bool calls)
{
	int			context = SECURITY_LOCAL_USERID_CHANGE;

	run->is_restricted = run->is_session &&
		(handler->role != run->user ||
		 handler->role != GetAuthenticatedUserId());
	if (!run->is_session)
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
	}
	else if (run->is_restricted)
	{
		context |= SECURITY_RESTRICTED_OPERATION;
		check_no_maps(handler);
	}
	run->nest_level = NewGUCNestLevel();
	if (!calls)
		bound_locks(run, LOCK_TIMEOUT);
	if (strcmp(setting_project, handler->project) != 0)
		settings_set_label("queue.project", handler->project, false);
	SetUserIdAndSecContext(handler->role, context);
	MemoryContextSwitchTo(run->job_context);
}

static void
commit(Run *run)
{
	AtEOXact_GUC(false, run->nest_level);
	if (run->is_session)
	{
		/* The next transaction begins at once, as the session's user. */
		SetUserIdAndSecContext(run->user, 0);
		SPI_commit();
	}
	else
	{
		CommitTransactionCommand();
		SetUserIdAndSecContext(run->user, 0);
	}
	MemoryContextSwitchTo(run->job_context);
}

/*
 * Do something in a transaction.  NULL: it is committed.  Else it was rolled
 * back, and the error is returned.
 */
static ErrorData *
attempt(Run *run, Batch *batch, Action action)
{
	ErrorData  *volatile error = NULL;

	if (run->is_session)
		return attempt_in_session(run, batch, action);
	PG_TRY();
	{
		begin(run, batch->handler, action == try_job || action == tear_down);
		PushActiveSnapshot(GetTransactionSnapshot());
		action(run, batch);
		PopActiveSnapshot();
		commit(run);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(run->context);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		run->slot = -1;		/* an abort lets go of all locks */
		Assert(GetUserId() == run->user);
		MemoryContextSwitchTo(run->job_context);
	}
	PG_END_TRY();
	end_timeout();
	return error;
}

static ErrorData *
attempt_in_session(Run *run, Batch *batch, Action action)
{
	ErrorData  *volatile error = NULL;
	ResourceOwner owner;

	begin(run, batch->handler, action == try_job || action == tear_down);
	owner = CurrentResourceOwner;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(run->job_context);
	PG_TRY();
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		action(run, batch);
		PopActiveSnapshot();
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(run->context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	end_timeout();
	CurrentResourceOwner = owner;

	/* The commit may fail too; then the next transaction has begun. */
	PG_TRY();
	{
		commit(run);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(run->context);
		if (error == NULL)
			error = CopyErrorData();
		FlushErrorState();
		run->slot = -1;		/* an abort lets go of all locks */
	}
	PG_END_TRY();
	MemoryContextSwitchTo(run->job_context);
	return error;
}

/* --- What is done in transactions --- */

/* False: so many as may already work for the queue. */
static bool
have_place(Run *run, const Handler *handler)
{
	if (run->slot < 0)
		run->slot = queue_lock_acquire_slot(handler->queue_id,
									  handler->concurrency);
	run->slot_of = handler->queue_id;
	return run->slot >= 0;
}

/* Claim messages, if the handler can run, and may now. */
static void
claim(Run *run, Batch *batch)
{
	Handler    *handler = batch->handler;
	TimestampTz now = GetCurrentTimestamp();
	int			limit = batch->limit;
	Queue		queue;
	ClaimTerms	terms;

	batch->claimed_at = clock_monotonic();
	batch->stopped = handler_check(handler);
	if (batch->stopped != NULL)
	{
		batch->stopped = MemoryContextStrdup(run->context, batch->stopped);
		return;
	}
	if (!queue_open(handler->name, QUEUE_CLAIM, &queue) ||
		queue.id != handler->queue_id || queue.paused)
		return;
	if (!handler_is_current(&run->version))
		return;					/* it may be another one's by now */
	if (!have_place(run, handler))
	{
		handler->not_before = batch->claimed_at + PLACE_PAUSE;
		return;
	}
	if (handler->rate > 0)
	{
		limit = Min(limit, handler_allowance(handler, now));
		if (limit == 0)
		{
			handler->not_before = batch->claimed_at +
				(handler->next_at - now);
			return;
		}
	}

	message_result_to_array(&batch->result, run->context, limit);
	terms.ttl = batch->ttl;
	terms.grace = GRACE;
	terms.limit = limit;
	batch->has_more = claim_for_handler(&queue, &terms,
										&batch->result) == limit;
	if (batch->result.n == 0)
		return;
	if (handler->rate > 0)
		handler_spend(handler, batch->result.n);
	if (batch->claimed_at < run->began + SURE_TIME ||
		batch->result.messages[0].claim_count > 1)
		ForceSyncCommit();
}

/*
 * Get ready to call the handler; sets batch->stopped if it cannot be called
 * any more.
 */
static void
prepare(Run *run, Batch *batch)
{
	Handler    *handler = batch->handler;

	if (!handler_is_same(&handler->run) ||
		(handler->teardown.name != NULL &&
		 !handler_is_same(&handler->teardown)))
	{
		const char *problem = handler_check(handler);

		batch->has_info = false;
		if (problem != NULL)
		{
			batch->stopped = MemoryContextStrdup(run->context, problem);
			return;
		}
	}
	if (!batch->has_info)
	{
		fmgr_info_cxt(handler->run.oid, &batch->run_info, run->context);
		if (handler->teardown.name != NULL)
			fmgr_info_cxt(handler->teardown.oid, &batch->teardown_info,
						  run->context);
		batch->has_info = true;
	}
}

static Datum
argument(const HandlerFunction *function, ResultMessage *message)
{
	TupleDesc	desc;
	HeapTuple	tuple;

	if (function->takes_jsonb)
		return message->values[Anum_queue_message_body - 1];
	desc = lookup_rowtype_tupdesc(function->argument, -1);
	if (desc->natts != Natts_queue_message)
		elog(ERROR, "type queue_message has %d attributes", desc->natts);
	tuple = heap_form_tuple(desc, message->values, message->isnull);
	ReleaseTupleDesc(desc);
	return HeapTupleGetDatum(tuple);
}

/*
 * Has the transaction used a temporary table, or made anything in the
 * session's temporary schema?  The server's flag tells of tables, but not of a
 * type or function whose name has the schema's real name before it.  All that
 * is in a schema depends on it.
 */
static bool
touched_temporary(void)
{
	Oid			schema;
	Oid			toast_schema;
	Relation	rel;
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		result = false;

	if ((MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE) != 0)
		return true;
	GetTempNamespaceState(&schema, &toast_schema);
	if (!OidIsValid(schema))
		return false;
	rel = table_open(DependRelationId, AccessShareLock);
	ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(NamespaceRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(schema));
	scan = systable_beginscan(rel, DependReferenceIndexId, true, SnapshotSelf,
							  2, keys);
	while (!result && HeapTupleIsValid(tuple = systable_getnext(scan)))
		result = TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

/*
 * The function has returned.  What it has deferred is done now, still as its
 * role, and what that defers in turn; so nothing is left for the commit.  What
 * it would leave behind in a runner is dropped, in a session refused.
 */
static void
settle(Run *run)
{
	AfterTriggerFireDeferred();
	if (run->is_restricted && touched_temporary())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("handler has used the temporary schema of a session that is not its role's"),
				 errhint("Leave the job to a runner, or log in as the handler's role to run it.")));
	if (run->is_session)
		return;
	PortalHashTableDeleteAll();
	Async_UnlistenAll();
	if (touched_temporary())
		ResetTempTableNamespace();
}

/* Call a function with the message whose turn it is.  False: it said so. */
static bool
call(Run *run, Batch *batch, const HandlerFunction *function, FmgrInfo *info)
{
	LOCAL_FCINFO(fcinfo, 1);
	ErrorContextCallback callback;
	Handler    *handler = batch->handler;
	const char *search_path = handler->search_path;
	int			nest_level = NewGUCNestLevel();
	bool		result;

	/* The temporary tables of somebody else's session are not the role's. */
	if (run->is_restricted)
		search_path = psprintf("%s%spg_temp", search_path,
							   *search_path == '\0' ? "" : ", ");
	callback.callback = error_context;
	callback.arg = batch;
	callback.previous = error_context_stack;
	error_context_stack = &callback;

	if (strcmp(namespace_search_path, search_path) != 0)
		(void) set_config_option("search_path", search_path, PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
								 false);
	timed_out = false;
	enable_timeout_every(timeout_id,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													 time_limit(handler) * 1000),
						 CANCEL_AGAIN);
	InitFunctionCallInfoData(*fcinfo, info, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value =
		argument(function, &batch->result.messages[batch->turn]);
	fcinfo->args[0].isnull = false;
	result = DatumGetBool(FunctionCallInvoke(fcinfo)) && !fcinfo->isnull;
	settle(run);
	CHECK_FOR_INTERRUPTS();
	if (timed_out)
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("handler is still running after its statement was canceled")));
	error_context_stack = callback.previous;

	AtEOXact_GUC(false, nest_level);
	return result;
}

/* Call the handler, and delete its message. */
static void
try_job(Run *run, Batch *batch)
{
	Handler    *handler = batch->handler;
	int64		id = batch->result.messages[batch->turn].id;
	Queue		queue;

	batch->deleting = false;
	batch->no_place = !have_place(run, handler);
	if (batch->no_place)
		return;
	prepare(run, batch);
	if (batch->stopped != NULL)
		return;
	if (!call(run, batch, &handler->run, &batch->run_info))
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
				 errmsg("handler returned false")));
	batch->deleting = true;
	if (!queue_lock_try(handler->queue_id))
		bound_locks(run, DELETE_TIMEOUT);
	if (!queue_open(handler->name, QUEUE_CLAIM, &queue) ||
		queue.id != handler->queue_id ||
		!claim_delete_message(&queue, id, &batch->result.claim))
		claim_not_live();
	end_call();
}

static void
retry_job(Run *run, Batch *batch)
{
	Queue		queue;
	TimestampTz due;

	batch->retried = false;
	if (!queue_open(batch->handler->name, QUEUE_CLAIM, &queue) ||
		queue.id != batch->handler->queue_id)
		return;
	(void) claim_retry_job(&queue, batch->result.messages[batch->turn].id,
						   &batch->result.claim, batch->error, LockWaitBlock,
						   &due);
	batch->retried = true;
}

static void
tear_down(Run *run, Batch *batch)
{
	prepare(run, batch);
	if (batch->stopped == NULL)
		(void) call(run, batch, &batch->handler->teardown,
					&batch->teardown_info);
	end_call();
}

/* Those whose turn did not come count as not tried. */
static void
give_back(Run *run, Batch *batch)
{
	Queue		queue;

	if (queue_open(batch->handler->name, QUEUE_CLAIM, &queue) &&
		queue.id == batch->handler->queue_id)
		claim_keep_only(&queue, &batch->result.claim, 0, 0, LockWaitBlock);
}

static void
stop(Run *run, Batch *batch)
{
	handler_stop(batch->handler, batch->stopped);
}

/* --- Errors --- */

static void
error_context(void *arg)
{
	Batch	   *batch = (Batch *) arg;

	errcontext("job %lld of queue \"%s\", function %s",
			   (long long) batch->result.messages[batch->turn].id,
			   batch->handler->name,
			   handler_function_name(&batch->handler->run));
}

static const char *
clip(const char *text)
{
	int			length = strlen(text);
	int			clipped = pg_mbcliplen(text, length, LOG_LENGTH);

	return clipped == length ? text : psprintf("%.*s...", clipped, text);
}

/* Say how many failures were not logged. */
void
run_end_log(Run *run)
{
	if (run->unlogged > 0)
		ereport(run->is_session ? WARNING : LOG,
				(errmsg("%lld more failures of jobs were not logged",
						(long long) run->unlogged),
				 errdetail("At most %d are logged in %d seconds.", LOG_MAX,
						   (int) (LOG_INTERVAL / USECS_PER_SEC)),
				 errhint("job_stats shows the last error of a queue, and queue_dead_letters that of each dead letter.")));
	run->log_began = clock_monotonic();
	run->logged = 0;
	run->unlogged = 0;
}

/*
 * Write an error to the log, or send it to the session.  What a handler says
 * is clipped, and no more than LOG_MAX failures are logged in a LOG_INTERVAL,
 * or a handler that always fails would fill the disk.
 */
static void
report(Run *run, Batch *batch, const ErrorData *error, const char *what)
{
	if (clock_monotonic() >= run->log_began + LOG_INTERVAL)
		run_end_log(run);
	if (run->logged >= LOG_MAX)
	{
		run->unlogged++;
		return;
	}
	run->logged++;
	ereport(run->is_session ? WARNING : LOG,
			(errcode(error->sqlerrcode),
			 errmsg("%s of queue \"%s\" failed: %s", what,
					batch->handler->name, clip(error->message)),
			 error->detail ? errdetail_internal("%s", clip(error->detail)) : 0,
			 error->hint ? errhint("%s", clip(error->hint)) : 0,
			 error->context ? errcontext("%s", clip(error->context)) : 0));
}

/* --- Jobs --- */

/* A try has failed, and was rolled back. */
static void
failed(Run *run, Batch *batch, ErrorData *error)
{
	char		what[64];

	snprintf(what, sizeof(what), "job %lld",
			 (long long) batch->result.messages[batch->turn].id);
	if (timed_out && error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		error->message = MemoryContextStrdup(run->context,
											 psprintf("timeout of %d s",
													  time_limit(batch->handler)));
	run->failed++;
	report(run, batch, error, what);
	batch->error = error->message;
	batch->has_info = false;
}

/*
 * Let it be tried again, unless it is another one's by now.  "lost": the
 * handler was done, but its claim was over.  If it has ended that itself,
 * which was rolled back, it has failed.
 */
static void
retry(Run *run, Batch *batch, ErrorData *lost)
{
	ErrorData  *error = attempt(run, batch, retry_job);

	if (lost == NULL)
	{
		if (error != NULL && error->sqlerrcode != ERRCODE_CLAIM_NOT_LIVE &&
			error->sqlerrcode != ERRCODE_MESSAGE_NOT_IN_CLAIM)
			report(run, batch, error, "retry");
		return;
	}
	if (error == NULL && batch->retried)
	{
		run->failed++;
		lost->message = unconstify(char *, batch->error);
		lost->detail = NULL;
		lost->hint = "A message is deleted when its handler returns true: let it leave that, and the claim, alone.";
	}
	report(run, batch, lost, "end of a job");
}

/* When is this process to be ended, should the function go on for too long? */
static void
set_end(Run *run, Batch *batch)
{
	pool_set_message(batch->result.messages[batch->turn].id,
					 time_limit(batch->handler) + END_MARGIN);
}

/* What comes after each try.  Its errors change nothing. */
static void
after_try(Run *run, Batch *batch)
{
	ErrorData  *error;

	if (batch->handler->teardown.name == NULL)
		return;
	set_end(run, batch);
	error = attempt(run, batch, tear_down);
	if (error != NULL)
	{
		batch->has_info = false;
		report(run, batch, error, "teardown of a job");
	}
}

/*
 * Has somebody cancelled the session?  A handler, of another role perhaps,
 * may raise the same code, but only the server does so from there.
 */
static bool
is_cancelled(const Run *run, const ErrorData *error)
{
	return run->is_session && !timed_out &&
		error->sqlerrcode == ERRCODE_QUERY_CANCELED &&
		error->funcname != NULL &&
		strcmp(error->funcname, "ProcessInterrupts") == 0;
}

/*
 * Run the job whose turn it is.  The error, if somebody has cancelled the
 * session that runs it.
 */
static ErrorData *
run_job(Run *run, Batch *batch)
{
	ErrorData  *error;
	ErrorData  *lost = NULL;
	ErrorData  *cancelled = NULL;

	set_end(run, batch);
	batch->error = NULL;
	error = attempt(run, batch, try_job);
	if (error == NULL && (batch->stopped != NULL || batch->no_place))
		return NULL;
	if (error == NULL)
		run->ok++;
	else if (batch->deleting && error->sqlerrcode == ERRCODE_CLAIM_NOT_LIVE)
	{
		lost = error;
		batch->error = "handler has ended the claim of its own message";
		batch->has_info = false;
	}
	else
	{
		if (is_cancelled(run, error))
			cancelled = error;
		failed(run, batch, error);
	}

	after_try(run, batch);
	if (batch->error != NULL)
		retry(run, batch, lost);
	if (!run->is_session)
	{
		DropAllPreparedStatements();
		ResetSequenceCaches();
		LockReleaseAll(USER_LOCKMETHOD, true);
	}
	MemoryContextReset(run->job_context);
	return cancelled;
}

/* May no other job begin? */
bool
run_is_over(const Run *run)
{
	return run->ok + run->failed >= run->max_jobs ||
		clock_monotonic() >= run->until;
}

/* Run what was claimed. */
static void
run_batch(Run *run, Batch *batch)
{
	ErrorData  *cancelled = NULL;
	int			n = batch->result.n;

	pool_set_claim(batch->handler->queue_id, &batch->result.claim,
				   batch->ttl, n > 1);
	pool_set_more(batch->has_more);
	for (batch->turn = 0; batch->turn < n; batch->turn++)
	{
		/* Those who have waited with it shall not wait for long. */
		if (batch->turn > 0 &&
			(run_is_over(run) || pool_must_leave() || ProcDiePending ||
			 clock_monotonic() > batch->claimed_at + BATCH_TOO_SLOW))
			break;
		cancelled = run_job(run, batch);
		if (cancelled != NULL || batch->stopped != NULL || batch->no_place)
			break;
	}
	if (cancelled != NULL || batch->turn < n)
	{
		ErrorData  *error = attempt(run, batch, give_back);

		if (error != NULL)
			report(run, batch, error, "end of a claim");
	}
	pool_clear_claim();
	if (cancelled != NULL)
		ReThrowError(cancelled);
}

/* How many shall be claimed the next time? */
static void
adapt(Batch *batch)
{
	int64		took = clock_monotonic() - batch->claimed_at;
	Handler    *handler = batch->handler;

	if (took > BATCH_SLOW)
		handler->batch = Max(handler->batch / 2, 1);
	else if (took < BATCH_QUICK && batch->result.n == handler->batch)
		handler->batch = Min(handler->batch * 2, BATCH_MAX);
}

/* The queue is done with for now. */
void
run_give_slot(Run *run)
{
	if (run->slot >= 0)
		queue_lock_release_slot(run->extension, run->slot_of, run->slot);
	run->slot = -1;
}

/* For how long is a message claimed?  Its teardown is a part of that. */
static int
claim_ttl(const Run *run, const Handler *handler)
{
	int			ttl = time_limit(handler) + TTL_MARGIN;

	if (run->is_renewed)
		return Min(ttl, TTL_RENEWED);
	return handler->teardown.name == NULL ? ttl : ttl + time_limit(handler);
}

/*
 * Run jobs of one queue for a while.  False: none was to be had; then, unless
 * it says something else, the handler is to be left alone for a moment.
 */
bool
run_queue(Run *run, Handler *handler)
{
	int64		until = clock_monotonic() + SLICE;
	bool		result = false;
	bool		more = true;

	if (timeout_id == MAX_TIMEOUTS)
		timeout_id = RegisterTimeout(USER_TIMEOUT, handler_timeout);
	handler->batch = Max(handler->batch, 1);
	while (more)
	{
		Batch		batch = {0};
		ErrorData  *error;

		CHECK_FOR_INTERRUPTS();
		batch.handler = handler;
		batch.limit = (int) Min(handler->batch,
								run->max_jobs - run->ok - run->failed);
		batch.ttl = claim_ttl(run, handler);
		error = attempt(run, &batch, claim);
		if (error != NULL && run->is_session)
			ReThrowError(error);
		if (error != NULL)
		{
			if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
				report(run, &batch, error, "claim");
			handler->not_before = clock_monotonic() + ERROR_PAUSE;
		}
		else if (batch.result.n > 0)
		{
			result = true;
			run_batch(run, &batch);
			adapt(&batch);
		}
		else if (batch.stopped == NULL && pool_exists() &&
				 handler->not_before <= batch.claimed_at &&
				 shmem_is_flagged(run->extension, handler->queue_id,
								  MAP_READY))
			handler->not_before = batch.claimed_at + EMPTY_PAUSE;
		if (batch.stopped != NULL)
		{
			handler->paused = true;
			error = attempt(run, &batch, stop);
			if (error != NULL)
			{
				report(run, &batch, error, "pause");
				handler->paused = false;
				handler->not_before = clock_monotonic() + ERROR_PAUSE;
			}
		}
		more = error == NULL && batch.stopped == NULL && batch.has_more &&
			!batch.no_place &&
			!run_is_over(run) && !pool_must_leave() &&
			clock_monotonic() < until;
		MemoryContextReset(run->context);
		MemoryContextReset(run->job_context);
	}
	run_give_slot(run);
	return result;
}

/* Get ready to run jobs, as the current user. */
void
run_init(Run *run, bool is_session)
{
	int			context;

	memset(run, 0, sizeof(Run));
	run->is_session = is_session;
	run->is_renewed = !is_session;
	run->max_jobs = PG_INT64_MAX;
	run->until = PG_INT64_MAX;
	run->began = run->log_began = clock_monotonic();
	run->slot = -1;
	GetUserIdAndSecContext(&run->user, &context);
	run->handler_context = AllocSetContextCreate(CurrentMemoryContext,
												 "handlers",
												 ALLOCSET_DEFAULT_SIZES);
	run->context = AllocSetContextCreate(CurrentMemoryContext, "jobs",
										 ALLOCSET_DEFAULT_SIZES);

	/* Not inside of the other: its like are reset at other times. */
	run->job_context = AllocSetContextCreate(CurrentMemoryContext, "job",
											 ALLOCSET_DEFAULT_SIZES);
}
