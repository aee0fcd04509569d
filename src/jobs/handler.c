/*-------------------------------------------------------------------------
 *
 * handler.c
 *	  Handlers: which function runs the jobs of a queue, as whom, and whether
 *	  it still may.
 *
 * NOTES
 *	  A handler is a row of queue_data.handler.  It names its functions by
 *	  schema, name and kind of argument, because an OID would not outlive a
 *	  dump or pg_upgrade, and might be another function's by then.
 *
 *	  What a function does is up to its owner.  So a role that binds somebody
 *	  else's function runs, as itself, whatever the owner makes of it later.
 *	  That is for the role to decide when it binds, not for the owner to use
 *	  afterwards: the row has a digest of the definition, and a function that
 *	  belongs neither to the role nor to a superuser is only run while its
 *	  definition is the one that was bound.  Before each job the row of pg_proc
 *	  is looked at; while it is the same version, nothing has changed.
 *
 *	  Where something is missing (the function, the role, a right of the role)
 *	  the queue is paused, and the row says why: so it is not tried over and
 *	  over, and nothing is counted against the jobs.  queue_resume, or binding
 *	  anew, makes it go on.
 *
 *	  A row is changed with the queue's lock for QUEUE_ALTER, but for next_at,
 *	  which is changed in place and has a lock of its own (registry.c).  The queue's own
 *	  invalidation message tells of every change but that.  It comes after the
 *	  commit has woken the worker, who must not go by what was before and fall
 *	  asleep again; so with shared memory a counter tells first.
 *
 * src/jobs/handler.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "jobs/handler.h"
#include "queue/queue_cmds.h"
#include "queue/queue_lock.h"
#include "queue/registry.h"
#include "shmem/database_state.h"
#include "storage/pending.h"
#include "storage/row.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/digest.h"
#include "util/settings.h"

#define CONCURRENCY_MAX			256
#define RATE_MAX				1000000 /* jobs per second */
#define DEFAULT_MAX_CLAIM_COUNT	"{\"_max_claim_count\": 3}"
#define MESSAGE_TYPE			"queue_message"

/* Jobs that may begin at once, as a part of those of a second */
#define RATE_BURST				10

#define Anum_handler_queue_id			1
#define Anum_handler_role				2
#define Anum_handler_concurrency		3
#define Anum_handler_timeout			4
#define Anum_handler_rate				5
#define Anum_handler_next_at			6
#define Anum_handler_bound_at			7
#define Anum_handler_takes_jsonb		8
#define Anum_handler_logs_in			9
#define Anum_handler_digest				10
#define Anum_handler_function_schema	11
#define Anum_handler_function_name		12
#define Anum_handler_search_path		13
#define Anum_handler_teardown_takes_jsonb	14
#define Anum_handler_teardown_schema	15
#define Anum_handler_teardown_name		16
#define Anum_handler_stopped			17

/* The first columns of a row; next_at is changed in place. */
typedef struct HandlerForm
{
	int32		queue_id;
	Oid			role;
	int32		concurrency;
	int32		timeout;
	float4		rate;
	TimestampTz next_at;
} HandlerForm;

/* A scan of all handlers */
typedef struct HandlerScan
{
	Relation	rel;
	RowScan		rows;
} HandlerScan;

PG_FUNCTION_INFO_V1(sql_job_handler);

static HeapTuple fetch(Relation rel, Oid index, int32 queue_id);
static void forget(int32 queue_id);
static void begin_scan(HandlerScan *scan, HandlerVersion *version);
static void end_scan(HandlerScan *scan);
static void read_row(TupleDesc desc, HeapTuple tuple, Handler *handler);
static bool is_message_type(Oid type);
static bool has_right_form(Form_pg_proc form, bool is_handler);
static bool may_run(Oid function, Oid role, bool *schema_is_closed);
static Oid	find_function(const HandlerFunction *function);
static const char *find_and_check(HandlerFunction *function, bool is_handler,
								  Oid role);
static Oid	binding_function(void);
static const char *login_problem(Oid role);
static const char *role_problem(const Handler *handler);
static bool is_trusted(Oid function, Oid role);
static void definition(Oid function, StringInfo buf);
static void digest_of(Oid function, Oid teardown, pg_uuid_t *digest);
static void check_function(Oid oid, bool is_handler,
						   HandlerFunction *function);
static void get_options(FunctionCallInfo fcinfo, Handler *handler);
static void write_row(const Handler *handler, bool delete,
					  bool *was_stopped);
static void set_stopped(int32 queue_id, const char *reason);
static void set_next_at(HeapTuple tuple, void *arg);
static void write_next_at(Handler *handler);

/* --- Rows --- */

void
handler_init(void)
{
	queue_register_drop_callback(forget);
}

/* The row of a queue's handler, or NULL; a copy. */
static HeapTuple
fetch(Relation rel, Oid index, int32 queue_id)
{
	ScanKeyData key;

	ScanKeyInit(&key, Anum_handler_queue_id, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	return row_fetch(rel, index, &key, 1);
}

static void
read_row(TupleDesc desc, HeapTuple tuple, Handler *handler)
{
	Datum		values[Natts_handler];
	bool		isnull[Natts_handler];

	heap_deform_tuple(tuple, desc, values, isnull);
#define VALUE(attribute) values[Anum_handler_##attribute - 1]
#define TEXT(attribute) TextDatumGetCString(VALUE(attribute))
	memset(handler, 0, sizeof(Handler));
	handler->queue_id = DatumGetInt32(VALUE(queue_id));
	handler->role = DatumGetObjectId(VALUE(role));
	handler->concurrency = DatumGetInt32(VALUE(concurrency));
	handler->timeout = DatumGetInt32(VALUE(timeout));
	handler->rate = DatumGetFloat4(VALUE(rate));
	handler->next_at = DatumGetTimestampTz(VALUE(next_at));
	handler->digest = *DatumGetUUIDP(VALUE(digest));
	handler->logs_in = DatumGetBool(VALUE(logs_in));
	handler->search_path = TEXT(search_path);
	handler->run.takes_jsonb = DatumGetBool(VALUE(takes_jsonb));
	handler->run.schema = TEXT(function_schema);
	handler->run.name = TEXT(function_name);
	if (!isnull[Anum_handler_teardown_name - 1])
	{
		handler->teardown.takes_jsonb =
			DatumGetBool(VALUE(teardown_takes_jsonb));
		handler->teardown.schema = TEXT(teardown_schema);
		handler->teardown.name = TEXT(teardown_name);
	}
#undef TEXT
#undef VALUE
}

/* Begin to read all handlers, in the order of their queues. */
static void
begin_scan(HandlerScan *scan, HandlerVersion *version)
{
	Oid			index;

	/* Before: what comes later may or may not be seen. */
	version->generation = catalog_generation();
	version->changes = database_handler_changes();
	scan->rel = catalog_open_handlers(AccessShareLock, &index);
	row_scan_begin(&scan->rows, scan->rel, index, NULL, 0);
}

static void
end_scan(HandlerScan *scan)
{
	row_scan_end(&scan->rows);
	table_close(scan->rel, AccessShareLock);
}

/*
 * All handlers of the database that a role has bound (InvalidOid: any), in the
 * order of their queues; those whose queue is gone are left out.  In the
 * current memory context.
 */
Handler *
handler_all(Oid role, int *n, HandlerVersion *version)
{
	int			size = 16;
	Handler    *handlers = palloc(size * sizeof(Handler));
	HandlerScan scan;
	HeapTuple	tuple;

	begin_scan(&scan, version);
	*n = 0;
	while (HeapTupleIsValid(tuple = row_scan_next(&scan.rows)))
	{
		Handler    *handler;

		if (OidIsValid(role) &&
			((HandlerForm *) GETSTRUCT(tuple))->role != role)
			continue;
		if (*n == size)
		{
			size *= 2;
			handlers = repalloc_huge(handlers, size * sizeof(Handler));
		}
		handler = &handlers[*n];
		read_row(RelationGetDescr(scan.rel), tuple, handler);
		if (queue_name_of(handler->queue_id, handler->project, handler->name,
						  &handler->paused))
			(*n)++;
	}
	end_scan(&scan);
	return handlers;
}

/* The same in brief, without a look at the queues. */
HandlerSummary *
handler_summaries(int *n, HandlerVersion *version)
{
	int			size = 64;
	HandlerSummary *briefs = palloc(size * sizeof(HandlerSummary));
	HandlerScan scan;
	HeapTuple	tuple;

	begin_scan(&scan, version);
	*n = 0;
	while (HeapTupleIsValid(tuple = row_scan_next(&scan.rows)))
	{
		HandlerForm *form = (HandlerForm *) GETSTRUCT(tuple);

		if (*n == size)
		{
			size *= 2;
			briefs = repalloc_huge(briefs, size * sizeof(HandlerSummary));
		}
		briefs[*n].queue_id = form->queue_id;
		briefs[*n].role = form->role;
		briefs[*n].concurrency = form->concurrency;
		briefs[(*n)++].knows_paused = false;
	}
	end_scan(&scan);
	return briefs;
}

/* Are handlers that were read then still as they are? */
bool
handler_is_current(const HandlerVersion *version)
{
	return version->generation == catalog_generation() &&
		version->changes == database_handler_changes();
}

/* Write why the handler cannot run; the caller's lock guards the row. */
static void
set_stopped(int32 queue_id, const char *reason)
{
	Oid			index;
	Relation	rel = catalog_open_handlers(RowExclusiveLock, &index);
	HeapTuple	tuple = fetch(rel, index, queue_id);
	Datum		values[Natts_handler] = {0};
	bool		isnull[Natts_handler] = {false};
	bool		replace[Natts_handler] = {false};

	if (HeapTupleIsValid(tuple))
	{
		values[Anum_handler_stopped - 1] = CStringGetTextDatum(reason);
		replace[Anum_handler_stopped - 1] = true;
		CatalogTupleUpdate(rel, &tuple->t_self,
						   heap_modify_tuple(tuple, RelationGetDescr(rel),
											 values, isnull, replace));
	}
	table_close(rel, NoLock);
}

/* --- Functions --- */

static bool
is_message_type(Oid type)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	result = strcmp(NameStr(((Form_pg_type) GETSTRUCT(tuple))->typname),
					MESSAGE_TYPE) == 0;
	ReleaseSysCache(tuple);
	return result && getExtensionOfObject(TypeRelationId, type) ==
		get_extension_oid("queue", true);
}

/* Can it be called with one argument, for one answer? */
static bool
has_right_form(Form_pg_proc form, bool is_handler)
{
	return form->prokind == PROKIND_FUNCTION && !form->proretset &&
		form->pronargs == 1 &&
		(form->proargtypes.values[0] == JSONBOID ||
		 is_message_type(form->proargtypes.values[0])) &&
		(!is_handler || form->prorettype == BOOLOID);
}

/*
 * May the role call the function by its name?  As for the server's calls by
 * OID, that takes the right to its schema too: many a function is left to be
 * executed by PUBLIC because its schema is closed.
 */
static bool
may_run(Oid function, Oid role, bool *schema_is_closed)
{
	*schema_is_closed =
		object_aclcheck(NamespaceRelationId, get_func_namespace(function),
						role, ACL_USAGE) != ACLCHECK_OK;
	return !*schema_is_closed &&
		object_aclcheck(ProcedureRelationId, function, role,
						ACL_EXECUTE) == ACLCHECK_OK;
}

/* The function of this name, or InvalidOid.  Looks at no right. */
static Oid
find_function(const HandlerFunction *function)
{
	Oid			schema = get_namespace_oid(function->schema, true);
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP,
										   CStringGetDatum(function->name));
	Oid			result = InvalidOid;

	for (int i = 0; i < list->n_members; i++)
	{
		Form_pg_proc form =
			(Form_pg_proc) GETSTRUCT(&list->members[i]->tuple);

		if (form->pronamespace != schema || form->pronargs != 1)
			continue;
		if (function->takes_jsonb ?
			form->proargtypes.values[0] == JSONBOID :
			is_message_type(form->proargtypes.values[0]))
			result = form->oid;
	}
	ReleaseSysCacheList(list);
	return result;
}

/* Does it belong to who would do the role no harm? */
static bool
is_trusted(Oid function, Oid role)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		return false;
	owner = ((Form_pg_proc) GETSTRUCT(tuple))->proowner;
	ReleaseSysCache(tuple);
	return owner == role || superuser_arg(owner);
}

/* Append what a function is, in words that do not depend on the session. */
static void
definition(Oid function, StringInfo buf)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	char	   *owner;
	Datum		source;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", function);
	owner = GetUserNameFromId(((Form_pg_proc) GETSTRUCT(tuple))->proowner,
							  true);
	ReleaseSysCache(tuple);
	source = DirectFunctionCall1(pg_get_functiondef,
								 ObjectIdGetDatum(function));
	appendStringInfo(buf, "%s\n%s\n", owner == NULL ? "" : owner,
					 TextDatumGetCString(source));
}

static void
digest_of(Oid function, Oid teardown, pg_uuid_t *digest)
{
	/* What the words depend on; constants are printed by their types. */
	static const char *const settings[][2] = {
		{"search_path", "pg_catalog, pg_temp"},
		{"quote_all_identifiers", "off"},
		{"standard_conforming_strings", "on"},
		{"DateStyle", "ISO, MDY"},
		{"IntervalStyle", "postgres"},
		{"TimeZone", "UTC"},
		{"extra_float_digits", "3"},
		{"bytea_output", "hex"},
		{"lc_monetary", "C"},
	};
	StringInfoData buf;
	int			nest_level = NewGUCNestLevel();

	for (int i = 0; i < (int) lengthof(settings); i++)
		(void) set_config_option(settings[i][0], settings[i][1], PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
								 false);
	initStringInfo(&buf);
	definition(function, &buf);
	if (OidIsValid(teardown))
		definition(teardown, &buf);
	digest_text(buf.data, digest);
	pfree(buf.data);
	AtEOXact_GUC(true, nest_level);
}

/* Is the function still as it was when it was last checked? */
bool
handler_is_same(const HandlerFunction *function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID,
										ObjectIdGetDatum(function->oid));
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	result = function->xmin == HeapTupleHeaderGetRawXmin(tuple->t_data) &&
		ItemPointerEquals(unconstify(ItemPointerData *, &function->tid),
						  &tuple->t_self);
	ReleaseSysCache(tuple);
	return result;
}

/*
 * NULL: the role may run it, and this version of it is remembered.  Else the
 * reason why it cannot.
 */
static const char *
find_and_check(HandlerFunction *function, bool is_handler, Oid role)
{
	HeapTuple	tuple;
	Form_pg_proc form;
	bool		fits;
	bool		closed;

	function->oid = find_function(function);
	if (!OidIsValid(function->oid))
		return psprintf("function %s does not exist",
						handler_function_name(function));

	/* It may have been dropped and made anew. */
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function->oid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", function->oid);
	form = (Form_pg_proc) GETSTRUCT(tuple);
	fits = has_right_form(form, is_handler);
	function->argument = form->proargtypes.values[0];
	function->xmin = HeapTupleHeaderGetRawXmin(tuple->t_data);
	function->tid = tuple->t_self;
	ReleaseSysCache(tuple);
	if (!fits)
		return psprintf("%s is not a function%s any more",
						handler_function_name(function),
						is_handler ? " that returns boolean" : "");
	if (!may_run(function->oid, role, &closed))
		return psprintf("role \"%s\" may not %s function %s",
						GetUserNameFromId(role, true),
						closed ? "use the schema of" : "execute",
						handler_function_name(function));
	return NULL;
}

/* The function job_handler, which is executed to bind; cached. */
static Oid
binding_function(void)
{
	static Oid	function = InvalidOid;
	static uint64 generation = 0;
	uint64		looked_up = catalog_generation();
	Oid			extension;
	CatCList   *list;

	if (generation == looked_up)
		return function;
	function = InvalidOid;
	extension = get_extension_oid("queue", true);
	list = SearchSysCacheList1(PROCNAMEARGSNSP,
							   CStringGetDatum("job_handler"));
	for (int i = 0; i < list->n_members; i++)
	{
		Oid			oid = ((Form_pg_proc) GETSTRUCT(&list->members[i]->tuple))->oid;

		if (getExtensionOfObject(ProcedureRelationId, oid) == extension)
			function = oid;
	}
	ReleaseSysCacheList(list);

	/* Last, or an error above would leave the function unknown. */
	generation = looked_up;
	return function;
}

/* NULL: the role may log in to this database.  Else the reason why not. */
static const char *
login_problem(Oid role)
{
	HeapTuple	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role));
	bool		may;
	bool		is_forever;
	bool		is_over;
	Datum		until;

	if (!HeapTupleIsValid(tuple))
		return "does not exist";
	may = ((Form_pg_authid) GETSTRUCT(tuple))->rolcanlogin;
	until = SysCacheGetAttr(AUTHOID, tuple, Anum_pg_authid_rolvaliduntil,
							&is_forever);
	is_over = !is_forever &&
		DatumGetTimestampTz(until) < GetCurrentTimestamp();
	ReleaseSysCache(tuple);		/* until may point into it */
	if (!may)
		return "may not log in any more";
	if (is_over)
		return "is not valid any more (VALID UNTIL)";
	if (object_aclcheck(DatabaseRelationId, MyDatabaseId, role,
						ACL_CONNECT) != ACLCHECK_OK)
		return "may not connect to the database any more";
	return NULL;
}

/*
 * NULL: the role still has what it needed to bind a handler; and if it could
 * log in then, it still can.  (A role that cannot may own queues and handlers,
 * too.)  Else the reason why it may not go on.
 */
static const char *
role_problem(const Handler *handler)
{
	const char *problem = NULL;
	bool		closed;

	if (!OidIsValid(binding_function()) ||
		!may_run(binding_function(), handler->role, &closed))
		problem = "may not execute job_handler any more";
	else if (handler->logs_in)
		problem = login_problem(handler->role);
	return problem == NULL ? NULL :
		psprintf("role \"%s\", which bound it, %s",
				 GetUserNameFromId(handler->role, true), problem);
}

/* A function as people write it */
char *
handler_function_name(const HandlerFunction *function)
{
	return psprintf("%s(%s)",
					quote_qualified_identifier(function->schema,
											   function->name),
					function->takes_jsonb ? "jsonb" : MESSAGE_TYPE);
}

/*
 * Find the functions of a handler, in the project of its queue.  NULL: it may
 * run.  Else the reason why it cannot.
 */
const char *
handler_check(Handler *handler)
{
	bool		has_teardown = handler->teardown.name != NULL;
	const char *problem;
	Queue		queue;
	pg_uuid_t	digest;

	/* What was compared once need not be again. */
	if (handler->is_as_bound)
		handler->is_as_bound = handler_is_same(&handler->run) &&
			(!has_teardown || handler_is_same(&handler->teardown));

	if (GetUserNameFromId(handler->role, true) == NULL)
		return psprintf("role %u, which bound it, does not exist",
						handler->role);
	if (queue_find_as(handler->name, handler->role, QUEUE_ALTER,
					  &queue) != QUEUE_OK)
		return psprintf("role \"%s\", which bound it, has no right to that on queue \"%s\" any more",
						GetUserNameFromId(handler->role, true),
						handler->name);
	problem = role_problem(handler);
	if (problem == NULL)
		problem = find_and_check(&handler->run, true, handler->role);
	if (problem == NULL && has_teardown)
		problem = find_and_check(&handler->teardown, false, handler->role);
	if (problem != NULL || handler->is_as_bound ||
		(is_trusted(handler->run.oid, handler->role) &&
		 (!has_teardown ||
		  is_trusted(handler->teardown.oid, handler->role))))
		return problem;

	digest_of(handler->run.oid, handler->teardown.oid, &digest);
	if (memcmp(&digest, &handler->digest, sizeof(digest)) != 0)
		return psprintf("function %s%s belongs to somebody else than role \"%s\", and was altered since that bound it",
						handler_function_name(&handler->run),
						has_teardown ? ", or its teardown," : "",
						GetUserNameFromId(handler->role, true));
	handler->is_as_bound = true;
	return NULL;
}

/*
 * It cannot run: pause its queue.  In a transaction, in the queue's project;
 * whoever the current user is.
 */
void
handler_stop(const Handler *handler, const char *reason)
{
	Oid			user;
	int			context;
	Queue		queue;

	/* The role may not have the right any more. */
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID,
						   context | SECURITY_LOCAL_USERID_CHANGE);
	if (queue_open(handler->name, QUEUE_ALTER, &queue) &&
		queue.id == handler->queue_id)
	{
		(void) queue_set_paused(handler->name, true);
		set_stopped(queue.id, reason);
		queue_invalidate();
	}
	SetUserIdAndSecContext(user, context);
	ereport(LOG,
			(errmsg("queue \"%s\" is paused: its handler cannot run",
					handler->name),
			 errdetail_internal("%s.", reason),
			 errhint("See to that, then call queue_resume, or bind the handler anew with job_handler.")));
}

/* --- Rates --- */

static void
set_next_at(HeapTuple tuple, void *arg)
{
	((HandlerForm *) GETSTRUCT(tuple))->next_at =
		((Handler *) arg)->next_at;
}

/*
 * This is written in place: it leaves no dead rows, and does not disturb a
 * session that binds the handler anew.
 */
static void
write_next_at(Handler *handler)
{
	Oid			index;
	Relation	rel = catalog_open_handlers(RowExclusiveLock, &index);
	HeapTuple	tuple;

	/* The snapshot keeps the row where it was found. */
	PushActiveSnapshot(GetLatestSnapshot());
	tuple = fetch(rel, index, handler->queue_id);
	if (HeapTupleIsValid(tuple))
		(void) row_change_in_place(rel, &tuple->t_self, set_next_at,
								   handler);
	PopActiveSnapshot();
	table_close(rel, NoLock);
}

/*
 * How many jobs may begin now, at most?  *next_at: the next one, if none may.
 * Nobody else asks until the transaction ends.
 */
int
handler_allowance(Handler *handler, TimestampTz now)
{
	double		interval = USECS_PER_SEC / handler->rate;
	double		burst = Max(1.0, handler->rate / RATE_BURST);
	Oid			index;
	Relation	rel;
	HeapTuple	tuple;
	bool		isnull;

	queue_lock_rate(handler->queue_id);
	rel = catalog_open_handlers(AccessShareLock, &index);
	tuple = fetch(rel, index, handler->queue_id);
	if (!HeapTupleIsValid(tuple))
	{
		table_close(rel, AccessShareLock);
		return 0;
	}
	handler->next_at =
		DatumGetTimestampTz(heap_getattr(tuple, Anum_handler_next_at,
										 RelationGetDescr(rel), &isnull));
	table_close(rel, AccessShareLock);

	/* What was not used is lost, but for a few. */
	handler->next_at = Max(handler->next_at,
						   now - (TimestampTz) ((burst - 1) * interval));

	/*
	 * It is further ahead only if the clock has stepped back.  That is written
	 * down, so that the wait is no longer than one interval.
	 */
	if (handler->next_at > now + (TimestampTz) interval)
	{
		handler->next_at = now + (TimestampTz) interval;
		write_next_at(handler);
	}
	if (handler->next_at > now)
		return 0;
	return (int) Min((now - handler->next_at) / interval + 1, INT_MAX / 2);
}

/* So many of them do. */
void
handler_spend(Handler *handler, int n)
{
	handler->next_at += (TimestampTz) (n * (USECS_PER_SEC / handler->rate));
	write_next_at(handler);
}

/* --- Binding --- */

static void
check_function(Oid oid, bool is_handler, HandlerFunction *function)
{
	const char *parameter = is_handler ? "handler" : "teardown";
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(oid));
	Form_pg_proc form;
	bool		closed;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("parameter \"%s\": there is no function %u",
						parameter, oid)));
	form = (Form_pg_proc) GETSTRUCT(tuple);
	if (!has_right_form(form, is_handler))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be a function of one argument%s, not %s",
						parameter,
						is_handler ? " that returns boolean" : "",
						format_procedure_qualified(oid)),
				 errhint("Its argument is of type queue_message, or jsonb to get only the body.")));
	if (isAnyTempNamespace(form->pronamespace))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must not be a temporary function",
						parameter),
				 errhint("Create the function in a schema that other sessions see.")));
	if (!may_run(oid, GetUserId(), &closed))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for function %s",
						format_procedure_qualified(oid)),
				 errhint("Jobs are run as the role that binds the function, which needs the privilege %s.",
						 closed ? "USAGE on its schema" : "EXECUTE")));

	function->oid = oid;
	function->takes_jsonb = form->proargtypes.values[0] == JSONBOID;
	function->schema = get_namespace_name(form->pronamespace);
	function->name = pstrdup(NameStr(form->proname));
	ReleaseSysCache(tuple);
}

/* Concurrency, timeout and rate */
static void
get_options(FunctionCallInfo fcinfo, Handler *handler)
{
	if (PG_ARGISNULL(2))
		arg_missing("concurrency");
	handler->concurrency = arg_check_bounds("concurrency",
											  PG_GETARG_INT32(2), 1, NULL,
											  CONCURRENCY_MAX, NULL, "");
	if (!PG_ARGISNULL(3))
		handler->timeout = arg_check_bounds("timeout", PG_GETARG_INT32(3),
											  1, NULL,
											  setting_max_handler_time,
											  PG_GETARG_INT32(3) < 1 ? NULL :
											  "queue.max_handler_time",
											  " seconds");
	if (!PG_ARGISNULL(4))
	{
		handler->rate = PG_GETARG_FLOAT4(4);
		if (!(handler->rate > 0 && handler->rate <= RATE_MAX))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("parameter \"%s\" must be above 0 and at most %d jobs per second, not %g",
							"rate", RATE_MAX, handler->rate),
					 errhint("Give a rate in these bounds, 0.1 for one job in ten seconds, or NULL for any.")));
	}
}

/* Write a handler's row, or delete it. */
static void
write_row(const Handler *handler, bool delete, bool *was_stopped)
{
	Oid			index;
	Relation	rel = catalog_open_handlers(RowExclusiveLock, &index);
	HeapTuple	old = fetch(rel, index, handler->queue_id);
	Datum		values[Natts_handler] = {0};
	bool		isnull[Natts_handler] = {false};

	*was_stopped = HeapTupleIsValid(old) &&
		!heap_attisnull(old, Anum_handler_stopped, NULL);
	if (HeapTupleIsValid(old))
		CatalogTupleDelete(rel, &old->t_self);
	if (!delete)
	{
		TimestampTz now = GetCurrentTimestamp();
		bool		has_teardown = handler->teardown.name != NULL;

#define SET(attribute, value) values[Anum_handler_##attribute - 1] = (value)
		SET(queue_id, Int32GetDatum(handler->queue_id));
		SET(role, ObjectIdGetDatum(handler->role));
		SET(concurrency, Int32GetDatum(handler->concurrency));
		SET(timeout, Int32GetDatum(handler->timeout));
		SET(rate, Float4GetDatum(handler->rate));
		SET(next_at, TimestampTzGetDatum(now));
		SET(bound_at, TimestampTzGetDatum(now));
		SET(takes_jsonb, BoolGetDatum(handler->run.takes_jsonb));
		SET(logs_in, BoolGetDatum(handler->logs_in));
		SET(digest, UUIDPGetDatum(&handler->digest));
		SET(function_schema, CStringGetTextDatum(handler->run.schema));
		SET(function_name, CStringGetTextDatum(handler->run.name));
		SET(search_path, CStringGetTextDatum(handler->search_path));
		if (has_teardown)
		{
			SET(teardown_takes_jsonb,
				BoolGetDatum(handler->teardown.takes_jsonb));
			SET(teardown_schema,
				CStringGetTextDatum(handler->teardown.schema));
			SET(teardown_name, CStringGetTextDatum(handler->teardown.name));
		}
#undef SET
		isnull[Anum_handler_teardown_takes_jsonb - 1] = !has_teardown;
		isnull[Anum_handler_teardown_schema - 1] = !has_teardown;
		isnull[Anum_handler_teardown_name - 1] = !has_teardown;
		isnull[Anum_handler_stopped - 1] = true;
		CommandCounterIncrement();
		CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), values,
												isnull));
	}
	table_close(rel, NoLock);
	queue_invalidate();
	database_record_change(CHANGE_HANDLERS);
}

/* Callback when a queue is dropped. */
static void
forget(int32 queue_id)
{
	Oid			index;
	Relation	rel = catalog_open_handlers(RowExclusiveLock, &index);
	HeapTuple	old = fetch(rel, index, queue_id);

	if (HeapTupleIsValid(old))
		CatalogTupleDelete(rel, &old->t_self);
	table_close(rel, NoLock);
}

/*
 * job_handler(q text, handler regprocedure, concurrency int = 1,
 *			   timeout int = NULL, rate real = NULL,
 *			   teardown regprocedure = NULL) returns void
 *
 * Binds queue q to a function of (queue_message) or (jsonb) that returns
 * boolean: background workers, and job_run, call it for each message, as the
 * current user, with the search_path of now.  At most "concurrency" at a time,
 * for at most "timeout" seconds each (NULL, and at most:
 * queue.max_handler_time), at most "rate" per second
 * (NULL: any).  The function "teardown", of the same arguments, is called
 * after each try.  Where the queue's metadata does not say _max_claim_count,
 * sets it to 3.  NULL as the handler unbinds the queue.
 *
 * Errors: 42704 unknown queue, 22004 and 22023 arguments, 42501 not the
 * queue's owner, or no right to execute the function or to use its schema.
 * Source: MediaWiki, Job::run, Job::tearDown, $wgJobClasses.
 */
Datum
sql_job_handler(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Handler		handler = {0};
	Queue		queue;
	bool		was_stopped;

	queue_prevent("job_handler()");
	get_options(fcinfo, &handler);
	queue_open_existing(name, QUEUE_ALTER, &queue);
	handler.queue_id = queue.id;
	if (PG_ARGISNULL(1))
	{
		write_row(&handler, true, &was_stopped);
		PG_RETURN_VOID();
	}

	check_function(PG_GETARG_OID(1), true, &handler.run);
	if (!PG_ARGISNULL(5))
		check_function(PG_GETARG_OID(5), false, &handler.teardown);
	handler.role = GetUserId();
	handler.logs_in = login_problem(handler.role) == NULL;
	handler.search_path = namespace_search_path;
	digest_of(handler.run.oid, handler.teardown.oid, &handler.digest);
	write_row(&handler, false, &was_stopped);
	if (queue.max_claim_count < 0)
	{
		Datum		patch = DirectFunctionCall1(jsonb_in,
												CStringGetDatum(DEFAULT_MAX_CLAIM_COUNT));

		(void) queue_update_metadata(name, DatumGetJsonbP(patch));
	}
	if (was_stopped)
		(void) queue_set_paused(name, false);

	/* There may be jobs already. */
	pending_record_queue(queue.id);
	PG_RETURN_VOID();
}
