/*-------------------------------------------------------------------------
 *
 * job_transaction.c
 *	  Transactions in which jobs run, as the role of their handler, and the
 *	  calls of its functions.
 *
 * NOTES
 *	  A runner's transactions are like those of the server's main loop.  A
 *	  session in job_run is inside a CALL: it commits through SPI, and the
 *	  work is done in a subtransaction, because an error must unwind what a
 *	  function has put on SPI's stack.
 *
 *	  The work is done as the role that bound the handler, with
 *	  SECURITY_LOCAL_USERID_CHANGE, in which the server refuses SET ROLE and
 *	  SET SESSION AUTHORIZATION.  A runner keeps that state until its
 *	  transaction has ended.  Settings that were changed are restored.
 *
 *	  A runner serves a single role for its whole life, and its session
 *	  belongs to that role.  So whatever a function leaves in the memory of
 *	  the process never meets another role.
 *
 *	  A session in job_run belongs to the role that logged in, also during SET
 *	  ROLE and SET SESSION AUTHORIZATION: it will return to that role, and
 *	  would then run what a function had left behind.  So a function of
 *	  another role runs with SECURITY_RESTRICTED_OPERATION, in which the
 *	  server refuses most of what could be left behind, and finish_deferred()
 *	  refuses the use of the session's temporary schema.  Advisory locks are
 *	  not refused: the session may hold none, and those of the function are
 *	  released after the attempt, and the seed of random() is set anew.
 *
 *	  A function of a handler is called within such a transaction, with the
 *	  search_path of the session that bound it.  All that it has deferred
 *	  (constraint triggers) is done right after it has returned, still as its
 *	  role, so that nothing is left for the commit.
 *
 *	  What a function may leave behind for the next job must not reach it.  In
 *	  a runner it is dropped: cursors, LISTEN and temporary tables before the
 *	  commit, prepared statements, sequence caches and advisory locks after it
 *	  (job_call_discard).  In a session that belongs to another role, an
 *	  attempt that has used the session's temporary schema is rolled back,
 *	  because a type or function there can take the place of one that the
 *	  session means.
 *
 *	  When the time limit of a function is up, the running statement is
 *	  canceled, as by statement_timeout.  A function may catch that error and go
 *	  on, so it is canceled again each second.  If that does not help either,
 *	  the worker terminates the process (worker_jobs.c).  The limit covers
 *	  the deletion of the job's message too.
 *
 * src/jobs/job_transaction.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_namespace.h"
#include "commands/async.h"
#include "commands/prepare.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

#include "jobs/handler_check.h"
#include "jobs/job_transaction.h"
#include "util/session_lock.h"
#include "util/settings.h"

/* What the error context callback prints */
typedef struct JobContext
{
	const Handler *handler;
	int64		message_id;
} JobContext;

#define CANCEL_INTERVAL		1000	/* ms, between two cancels */

static TimeoutId timeout_id = MAX_TIMEOUTS; /* not registered yet */
static volatile sig_atomic_t has_fired = false;

static void job_transaction_reset_seed(void);
static void job_timeout_reset(void);
static void check_session(const JobTransaction *transaction,
						  const Handler *handler);
static void act_as_handler(JobTransaction *transaction,
						   const Handler *handler);
static ErrorData *save_error(const JobTransaction *transaction);
static ErrorData *run_in_runner(JobTransaction *transaction,
								const Handler *handler,
								JobAction action, Batch *batch);
static ErrorData *run_in_session(JobTransaction *transaction,
								 const Handler *handler,
								 JobAction action, Batch *batch);
static void add_job_context(void *arg);
static Datum form_argument(const FunctionName *name,
						   const FoundFunction *function,
						   ResultMessage *message);
static bool has_used_temporary_schema(void);
static void finish_deferred(const JobTransaction *transaction);
static void cancel_statement(void);

/* Get ready.  The memory contexts are children of the current one. */
void
job_transaction_init(JobTransaction *transaction, bool is_session)
{
	memset(transaction, 0, sizeof(JobTransaction));
	transaction->is_session = is_session;
	transaction->user = GetUserId();

	/* A cancel ends what a transaction does, never the process of a runner. */
	if (!is_session)
		HOLD_CANCEL_INTERRUPTS();
	transaction->error_context =
		AllocSetContextCreate(CurrentMemoryContext, "jobs",
							  ALLOCSET_DEFAULT_SIZES);

	/* Not a child of the other, which is reset less often. */
	transaction->job_context =
		AllocSetContextCreate(CurrentMemoryContext, "job",
							  ALLOCSET_DEFAULT_SIZES);
}

/*
 * Check that a session that belongs to another role than the handler has
 * nothing that the handler must not reach.
 */
static void
check_session(const JobTransaction *transaction, const Handler *handler)
{
	/* A cursor may have privileges that the handler's role lacks. */
	if (!ThereAreNoReadyPortals())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot run jobs of queue \"%s\" while the session has open cursors",
						handler->queue.name),
				 errdetail("The handler belongs to another role, which could read them."),
				 errhint("Close them with CLOSE ALL, or log in as the handler's role.")));

	/*
	 * Advisory locks belong to the session, so the handler could release
	 * those that it finds, and would be granted them once more.  What it
	 * takes itself is released after each attempt, which is safe because the
	 * session held none before.  To check that once is enough, until a
	 * handler of the session's own role has run, which may keep its locks.
	 */
	if (!transaction->is_clean && session_lock_has_user_locks())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot run jobs of queue \"%s\" while the session holds advisory locks",
						handler->queue.name),
				 errdetail("The handler belongs to another role, which could release them."),
				 errhint("Release them with pg_advisory_unlock_all(), or log in as the handler's role.")));
}

/*
 * Undo what handlers of other roles have left in this session: their advisory
 * locks, and the seed of random().
 */
void
job_transaction_clean_session(const JobTransaction *transaction)
{
	if (!transaction->is_clean)
		return;
	LockReleaseAll(USER_LOCKMETHOD, true);
	job_transaction_reset_seed();
}

/* Whatever setseed() was called with, nobody knows what random() returns. */
static void
job_transaction_reset_seed(void)
{
	uint32		seed;

	if (pg_strong_random(&seed, sizeof(seed)))
		(void) DirectFunctionCall1(setseed,
								   Float8GetDatum((double) seed / PG_UINT32_MAX));
}

/* Begin to act as a handler's role, in its queue's project. */
static void
act_as_handler(JobTransaction *transaction, const Handler *handler)
{
	Oid			role = handler->row.role;
	int			context = SECURITY_LOCAL_USERID_CHANGE;

	/*
	 * What a function leaves behind does no harm only if its role is both the
	 * current role and the one that logged in, to which the session returns.
	 */
	transaction->is_restricted = transaction->is_session &&
		(role != transaction->user || role != GetAuthenticatedUserId());
	if (transaction->is_restricted)
	{
		context |= SECURITY_RESTRICTED_OPERATION;
		check_session(transaction, handler);
	}
	transaction->is_clean = transaction->is_restricted;
	transaction->nest_level = NewGUCNestLevel();
	if (strcmp(setting_project, handler->queue.project) != 0)
		settings_set("queue.project", handler->queue.project, false);
	SetUserIdAndSecContext(role, context);
	MemoryContextSwitchTo(transaction->job_context);
}

/* In PG_CATCH: a copy of the error */
static ErrorData *
save_error(const JobTransaction *transaction)
{
	ErrorData  *error;

	MemoryContextSwitchTo(transaction->error_context);
	error = CopyErrorData();
	FlushErrorState();
	return error;
}

static ErrorData *
run_in_runner(JobTransaction *transaction, const Handler *handler,
			  JobAction action, Batch *batch)
{
	ErrorData  *volatile error = NULL;

	/* A cancel that came between two transactions was not for this one. */
	QueryCancelPending = false;
	RESUME_CANCEL_INTERRUPTS();
	PG_TRY();
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		act_as_handler(transaction, handler);
		PushActiveSnapshot(GetTransactionSnapshot());
		action(batch);
		PopActiveSnapshot();
		AtEOXact_GUC(false, transaction->nest_level);

		/* Whatever runs at the commit runs as the handler's role. */
		CommitTransactionCommand();
		SetUserIdAndSecContext(transaction->user, 0);
	}
	PG_CATCH();
	{
		error = save_error(transaction);
		AbortCurrentTransaction();
		transaction->lost_locks = true;
		Assert(GetUserId() == transaction->user);
	}
	PG_END_TRY();

	/* An error has set the counter to 0, as RESUME_CANCEL_INTERRUPTS did. */
	HOLD_CANCEL_INTERRUPTS();
	job_timeout_reset();
	return error;
}

static ErrorData *
run_in_session(JobTransaction *transaction, const Handler *handler,
			   JobAction action, Batch *batch)
{
	ErrorData  *volatile error = NULL;
	ResourceOwner owner;

	act_as_handler(transaction, handler);
	owner = CurrentResourceOwner;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(transaction->job_context);
	PG_TRY();
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		action(batch);
		PopActiveSnapshot();
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		error = save_error(transaction);
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	job_timeout_reset();
	CurrentResourceOwner = owner;

	/* The commit may fail too; then SPI has begun the next transaction. */
	PG_TRY();
	{
		AtEOXact_GUC(false, transaction->nest_level);

		/* SPI begins the next transaction at once, as the session's user. */
		SetUserIdAndSecContext(transaction->user, 0);
		SPI_commit();
	}
	PG_CATCH();
	{
		ErrorData  *commit_error = save_error(transaction);

		if (error == NULL)
			error = commit_error;
		transaction->lost_locks = true;
	}
	PG_END_TRY();
	return error;
}

/*
 * Execute an action in a transaction of its own, as the handler's role.
 * Returns NULL if that was committed; otherwise it was rolled back, and the
 * error is returned.
 */
ErrorData *
job_transaction_run(JobTransaction *transaction, const Handler *handler,
					JobAction action, Batch *batch)
{
	ErrorData  *error;

	transaction->lost_locks = false;
	error = transaction->is_session ?
		run_in_session(transaction, handler, action, batch) :
		run_in_runner(transaction, handler, action, batch);
	MemoryContextSwitchTo(transaction->job_context);
	return error;
}

/* --- Calling the functions of a handler --- */

/* Error context callback of a job */
static void
add_job_context(void *arg)
{
	JobContext *context = (JobContext *) arg;

	errcontext("job %lld of queue \"%s\", function %s",
			   (long long) context->message_id, context->handler->queue.name,
			   handler_function_name(&context->handler->row.function));
}

static Datum
form_argument(const FunctionName *name, const FoundFunction *function,
			  ResultMessage *message)
{
	TupleDesc	desc;
	HeapTuple	tuple;

	if (name->takes_jsonb)
		return message->values[Anum_queue_message_body - 1];
	desc = lookup_rowtype_tupdesc(function->argument_type, -1);
	if (desc->natts != Natts_queue_message)
		elog(ERROR, "type queue_message has %d attributes", desc->natts);
	tuple = heap_form_tuple(desc, message->values, message->isnull);
	ReleaseTupleDesc(desc);
	return HeapTupleGetDatum(tuple);
}

/*
 * Returns whether this transaction has used a temporary table, or created
 * anything in the session's temporary schema.  The server's flag covers
 * tables only, not a type or function that was created with the schema's real
 * name; but everything in a schema depends on it.
 */
static bool
has_used_temporary_schema(void)
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
 * The function has returned: do what it has deferred, and what that defers in
 * turn.  Then drop, or refuse, what it would leave behind.
 */
static void
finish_deferred(const JobTransaction *transaction)
{
	AfterTriggerFireDeferred();
	if (transaction->is_restricted && has_used_temporary_schema())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("handler has used the temporary schema of a session that belongs to another role"),
				 errhint("Leave the job to a runner, or log in as the handler's role to run it.")));

	/*
	 * Drop the cursors that the function has left open.  The commit would run
	 * what is left of a pinned one, and in a session as the session's role;
	 * to drop a pinned one is an error, so the attempt fails.  A session that
	 * runs handlers of its own role keeps its cursors.
	 */
	if (!transaction->is_session || transaction->is_restricted)
		PortalHashTableDeleteAll();
	if (transaction->is_session)
		return;
	Async_UnlistenAll();
	if (has_used_temporary_schema())
		ResetTempTableNamespace();
}

/*
 * Call the handler's function, or its teardown function.  Returns whether the
 * function has returned true.  The timeout is still running then; the caller
 * ends it.
 */
bool
job_call_function(const JobTransaction *transaction, const Handler *handler,
				  JobFunctions *functions, bool is_teardown,
				  ResultMessage *message)
{
	LOCAL_FCINFO(fcinfo, 1);
	const HandlerRow *row = &handler->row;
	Datum		argument = is_teardown ?
	form_argument(&row->teardown, &handler->teardown, message) :
	form_argument(&row->function, &handler->function, message);
	JobContext	job = {handler, message->id};
	ErrorContextCallback frame = {error_context_stack, add_job_context, &job};
	int			nest_level = NewGUCNestLevel();
	const char *search_path = row->search_path;
	int			limit;
	Datum		result;

	error_context_stack = &frame;

	/*
	 * Unless pg_temp is named, it is searched first; but the temporary tables
	 * of the session are not those of the handler's role.
	 */
	if (transaction->is_restricted)
		search_path = psprintf("%s%spg_temp", search_path,
							   *search_path == '\0' ? "" : ", ");
	if (strcmp(namespace_search_path, search_path) != 0)
		settings_set("search_path", search_path, false);
	if (timeout_id == MAX_TIMEOUTS)
		timeout_id = RegisterTimeout(USER_TIMEOUT, cancel_statement);
	has_fired = false;
	limit = handler_time_limit(handler) * 1000;
	enable_timeout_every(timeout_id,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													 limit),
						 CANCEL_INTERVAL);
	InitFunctionCallInfoData(*fcinfo, is_teardown ? &functions->teardown :
							 &functions->function, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = argument;
	fcinfo->args[0].isnull = false;
	result = FunctionCallInvoke(fcinfo);
	finish_deferred(transaction);
	CHECK_FOR_INTERRUPTS();

	/* The function has caught the error of the cancel, and went on. */
	if (job_timeout_has_fired())
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("handler is still running after its statement was canceled")));
	error_context_stack = frame.previous;
	AtEOXact_GUC(false, nest_level);
	return !fcinfo->isnull && DatumGetBool(result);
}

/* Drop what a job has left in a runner's session, outside of transactions. */
void
job_call_discard(void)
{
	DropAllPreparedStatements();
	ResetSequenceCaches();
	LockReleaseAll(USER_LOCKMETHOD, true);
	job_transaction_reset_seed();
}

/* --- The time limit of a function --- */

/* Called in the signal handler of the timeout. */
static void
cancel_statement(void)
{
	has_fired = true;
	InterruptPending = true;
	QueryCancelPending = true;
	SetLatch(MyLatch);
}

/* Stop the timeout.  If it has fired, this raises the error. */
void
job_timeout_end(void)
{
	disable_timeout(timeout_id, false);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Stop the timeout, if it is running, after the transaction has ended.  If it
 * has fired after an error or after the last check for interrupts, it must not
 * cancel what follows.
 */
static void
job_timeout_reset(void)
{
	if (timeout_id == MAX_TIMEOUTS)
		return;
	disable_timeout(timeout_id, false);
	if (has_fired)
		QueryCancelPending = false;
}

/* Returns whether the timeout has fired since it was last started. */
bool
job_timeout_has_fired(void)
{
	return has_fired;
}
