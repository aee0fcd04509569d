/*-------------------------------------------------------------------------
 *
 * job_call.c
 *	  Calling the functions of a handler with a message.
 *
 * NOTES
 *	  A function is called within job_transaction_run(), as its handler's
 *	  role, with the search_path of the session that bound it.  All that it
 *	  has deferred (constraint triggers) is done right after it has returned,
 *	  still as its role, so that nothing is left for the commit.
 *
 *	  What a function may leave behind for the next job must not reach it.  In
 *	  a runner it is dropped: cursors, LISTEN and temporary tables before the
 *	  commit, prepared statements, sequence caches and advisory locks after it
 *	  (job_call_discard).  In a session that belongs to another role, an
 *	  attempt that has used the session's temporary schema is rolled back,
 *	  because a type or function there can take the place of one that the
 *	  session means; job_transaction.c says what prevents the rest.
 *
 * src/jobs/job_call.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_namespace.h"
#include "commands/async.h"
#include "commands/prepare.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/typcache.h"

#include "jobs/handler_check.h"
#include "jobs/job_call.h"
#include "jobs/job_timeout.h"
#include "util/session_lock.h"

/* What the error context callback prints */
typedef struct JobContext
{
	const Handler *handler;
	int64		message_id;
} JobContext;

static void error_context(void *arg);
static Datum form_argument(bool takes_jsonb, Oid type,
						   ResultMessage *message);
static bool has_used_temporary_schema(void);
static void finish_deferred(const JobTransaction *transaction);
static void set_search_path(const JobTransaction *transaction,
							const char *search_path);
static Datum call(const JobTransaction *transaction, const Handler *handler,
				  FmgrInfo *info, Datum argument, int64 message_id);

/* Look the functions up that handler_check() has found. */
void
job_call_prepare(const Handler *handler, JobFunctions *functions,
				 MemoryContext context)
{
	fmgr_info_cxt(handler->function.oid, &functions->function, context);
	if (handler_has_teardown(handler))
		fmgr_info_cxt(handler->teardown.oid, &functions->teardown, context);
	functions->is_valid = true;
}

static void
error_context(void *arg)
{
	JobContext *context = (JobContext *) arg;

	errcontext("job %lld of queue \"%s\", function %s",
			   (long long) context->message_id, context->handler->name,
			   handler_function_name(&context->handler->row.function));
}

static Datum
form_argument(bool takes_jsonb, Oid type, ResultMessage *message)
{
	TupleDesc	desc;
	HeapTuple	tuple;

	if (takes_jsonb)
		return message->values[Anum_queue_message_body - 1];
	desc = lookup_rowtype_tupdesc(type, -1);
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

static void
set_search_path(const JobTransaction *transaction, const char *search_path)
{
	/*
	 * Unless pg_temp is named, it is searched first; but the temporary tables
	 * of the session are not those of the handler's role.
	 */
	if (transaction->is_restricted)
		search_path = psprintf("%s%spg_temp", search_path,
							   *search_path == '\0' ? "" : ", ");
	if (strcmp(namespace_search_path, search_path) != 0)
		(void) set_config_option("search_path", search_path, PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
								 false);
}

/* Call a function.  The caller ends the timeout. */
static Datum
call(const JobTransaction *transaction, const Handler *handler,
	 FmgrInfo *info, Datum argument, int64 message_id)
{
	LOCAL_FCINFO(fcinfo, 1);
	ErrorContextCallback callback;
	JobContext	context = {handler, message_id};
	int			nest_level = NewGUCNestLevel();
	Datum		result;

	callback.callback = error_context;
	callback.arg = &context;
	callback.previous = error_context_stack;
	error_context_stack = &callback;

	set_search_path(transaction, handler->row.search_path);
	job_timeout_start(handler_time_limit(handler));
	InitFunctionCallInfoData(*fcinfo, info, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = argument;
	fcinfo->args[0].isnull = false;
	result = FunctionCallInvoke(fcinfo);
	if (fcinfo->isnull)
		result = (Datum) 0;
	finish_deferred(transaction);
	CHECK_FOR_INTERRUPTS();

	/* The function has caught the error of the cancel, and went on. */
	if (job_timeout_has_fired())
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("handler is still running after its statement was canceled")));
	error_context_stack = callback.previous;

	AtEOXact_GUC(false, nest_level);
	return result;
}

/*
 * Call the handler's function.  Returns what it has returned, NULL as false.
 * The timeout is still running then; the caller ends it.
 */
bool
job_call_handler(const JobTransaction *transaction, const Handler *handler,
				 JobFunctions *functions, ResultMessage *message)
{
	Datum		argument = form_argument(handler->row.function.takes_jsonb,
										 handler->function.argument_type,
										 message);

	return DatumGetBool(call(transaction, handler, &functions->function,
							 argument, message->id));
}

/* Call the handler's teardown function. */
void
job_call_teardown(const JobTransaction *transaction, const Handler *handler,
				  JobFunctions *functions, ResultMessage *message)
{
	Datum		argument = form_argument(handler->row.teardown.takes_jsonb,
										 handler->teardown.argument_type,
										 message);

	(void) call(transaction, handler, &functions->teardown, argument,
				message->id);
	job_timeout_end();
}

/* Drop what a job has left in a runner's session, outside of transactions. */
void
job_call_discard(void)
{
	DropAllPreparedStatements();
	ResetSequenceCaches();
	session_lock_release_user_locks();
}
