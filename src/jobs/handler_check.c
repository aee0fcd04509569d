/*-------------------------------------------------------------------------
 *
 * handler_check.c
 *	  Whether a handler may run: what its functions are, and what its role may
 *	  do.
 *
 * NOTES
 *	  A handler is bound by a role and runs as that role, so whatever the
 *	  owner of the function makes of it runs with the privileges of the role.
 *	  Therefore the function must belong to the role or to a superuser, both
 *	  when it is bound and when it runs.
 *
 *	  handler_check() verifies everything that a handler needs, before each
 *	  claim.  Before each job handler_is_same() only asks whether any function
 *	  has changed since.
 *
 *	  Nothing is stored of a handler that cannot run.  Its jobs wait, and are
 *	  not counted as failed; it is checked again after a second, and so goes
 *	  on by itself when the reason is gone.  The worker, which starts no runner
 *	  for it, logs the reason (worker_jobs.c), and job_list() shows it.
 *
 *	  A restore loads handlers before what their jobs need.  So a handler whose
 *	  row was written with SQL (a trigger sets loaded_by) waits until the
 *	  session that has written it has ended, and no session of a superuser
 *	  called pg_restore is connected, which may be another one of the same
 *	  restore.  Sessions end with a crash of the server, too.
 *
 * src/jobs/handler_check.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"

#include "catalog/relations.h"
#include "jobs/handler_check.h"
#include "queue/acl.h"
#include "queue/registry.h"
#include "util/compat.h"

#define MESSAGE_TYPE	"queue_message"

/* Whether a role may call a function by its name */
typedef enum CallPrivilege
{
	CALL_ALLOWED,
	CALL_NEEDS_USAGE,			/* on the function's schema */
	CALL_NEEDS_EXECUTE			/* on the function */
} CallPrivilege;

/* Counts the changes of functions; 0 if they are not counted yet */
static uint64 functions_generation = 0;

static bool is_message_type(Oid type);
static bool has_right_signature(Form_pg_proc form, bool is_teardown);
static CallPrivilege call_privilege(Oid function, Oid role);
static void check_callable(Form_pg_proc form, const char *parameter);
static HeapTuple find_function(const FunctionName *name);
static void function_changed(Datum arg, int cacheid, uint32 hashvalue);
static const char *find_and_check_function(const FunctionName *name,
										   bool is_teardown, Oid role,
										   FoundFunction *function);
static Oid	job_handler_oid(void);
static bool may_be_loading(const PgBackendStatus *entry, void *arg);
static const char *load_problem(Handler *handler);
static const char *role_problem(const Handler *handler);

/* --- Functions and roles --- */

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

	/* Another schema may have a type of that name. */
	return result && getExtensionOfObject(TypeRelationId, type) ==
		get_extension_oid("queue", true);
}

/*
 * Returns whether it is a function of one message that returns boolean or, as
 * a teardown function, at most one value of any type.
 */
static bool
has_right_signature(Form_pg_proc form, bool is_teardown)
{
	return form->prokind == PROKIND_FUNCTION && !form->proretset &&
		(is_teardown || form->prorettype == BOOLOID) &&
		form->pronargs == 1 &&
		(form->proargtypes.values[0] == JSONBOID ||
		 is_message_type(form->proargtypes.values[0]));
}

/*
 * The server checks no privilege on the schema when it calls a function by
 * OID.  We do, because an owner may leave EXECUTE to PUBLIC where PUBLIC
 * cannot use the schema.
 */
static CallPrivilege
call_privilege(Oid function, Oid role)
{
	if (object_aclcheck(NamespaceRelationId, get_func_namespace(function),
						role, ACL_USAGE) != ACLCHECK_OK)
		return CALL_NEEDS_USAGE;
	if (object_aclcheck(ProcedureRelationId, function, role,
						ACL_EXECUTE) != ACLCHECK_OK)
		return CALL_NEEDS_EXECUTE;
	return CALL_ALLOWED;
}

/*
 * Returns NULL if the role may log in to this database, otherwise the reason
 * why not.
 */
const char *
handler_login_problem(Oid role)
{
	HeapTuple	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role));
	const char *problem;
	bool		can_login;
	bool		is_forever;
	bool		is_over;
	Datum		until;

	if (!HeapTupleIsValid(tuple))
		return psprintf("Role %u, which bound the handler, does not exist.",
						role);
	can_login = ((Form_pg_authid) GETSTRUCT(tuple))->rolcanlogin;
	until = SysCacheGetAttr(AUTHOID, tuple, Anum_pg_authid_rolvaliduntil,
							&is_forever);
	is_over = !is_forever &&
		DatumGetTimestampTz(until) < GetCurrentTimestamp();
	ReleaseSysCache(tuple);		/* until may point into it */
	if (!can_login)
		problem = "may not log in";
	else if (is_over)
		problem = "is no longer valid (VALID UNTIL)";
	else if (object_aclcheck(DatabaseRelationId, MyDatabaseId, role,
							 ACL_CONNECT) != ACLCHECK_OK)
		problem = "may not connect to the database";
	else
		return NULL;
	return psprintf("Role \"%s\", which bound the handler, %s.",
					GetUserNameFromId(role, true), problem);
}

/* A function as it is written in SQL */
char *
handler_function_name(const FunctionName *name)
{
	return psprintf("%s(%s)",
					quote_qualified_identifier(name->schema, name->name),
					name->takes_jsonb ? "jsonb" : MESSAGE_TYPE);
}

/* --- Binding --- */

/* Check that the current role may bind this function. */
static void
check_callable(Form_pg_proc form, const char *parameter)
{
	CallPrivilege privilege = call_privilege(form->oid, GetUserId());

	if (isAnyTempNamespace(form->pronamespace))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must not be a temporary function",
						parameter),
				 errhint("Create the function in a schema that other sessions see.")));
	if (privilege != CALL_ALLOWED)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for function %s",
						format_procedure_qualified(form->oid)),
				 errdetail("Jobs are run as the role that binds the function."),
				 privilege == CALL_NEEDS_USAGE ?
				 errhint("The schema's owner can run: GRANT USAGE ON SCHEMA %s TO %s;",
						 quote_identifier(get_namespace_name(form->pronamespace)),
						 acl_role_identifier(GetUserId())) :
				 errhint("The function's owner can run: GRANT EXECUTE ON FUNCTION %s TO %s;",
						 format_procedure_qualified(form->oid),
						 acl_role_identifier(GetUserId()))));

	/* The owner could have anything done as this role. */
	if (form->proowner != GetUserId() && !superuser_arg(form->proowner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("function %s belongs neither to role \"%s\" nor to a superuser",
						format_procedure_qualified(form->oid),
						GetUserNameFromId(GetUserId(), false)),
				 errdetail("Jobs are run as the role that binds the function, so nobody else may alter it."),
				 errhint("A superuser can run: ALTER FUNCTION %s OWNER TO %s;",
						 format_procedure_qualified(form->oid),
						 acl_role_identifier(GetUserId()))));
}

/*
 * Check that the current role may bind a function as the handler or as its
 * teardown function, and return its name.
 */
void
handler_check_function(Oid function, bool is_teardown, FunctionName *name)
{
	const char *parameter = is_teardown ? "teardown" : "handler";
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc form;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("parameter \"%s\": there is no function %u",
						parameter, function),
				 errhint("Give its name and argument, as in 'do_job(queue_message)'.")));
	form = (Form_pg_proc) GETSTRUCT(tuple);
	if (!has_right_signature(form, is_teardown))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be a function of one argument%s, not %s",
						parameter, is_teardown ? "" : " that returns boolean",
						format_procedure_qualified(function)),
				 errhint("Its argument is of type queue_message, or jsonb to get only the body.")));
	check_callable(form, parameter);
	name->takes_jsonb = form->proargtypes.values[0] == JSONBOID;
	name->schema = get_namespace_name(form->pronamespace);
	name->name = pstrdup(NameStr(form->proname));
	ReleaseSysCache(tuple);
}

/* --- Running --- */

/*
 * Returns a copy of the row in pg_proc of the function of this name, or NULL
 * if there is none.  Checks no privilege.
 */
static HeapTuple
find_function(const FunctionName *name)
{
	Oid			schema = get_namespace_oid(name->schema, true);
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP,
										   CStringGetDatum(name->name));
	HeapTuple	result = NULL;

	for (int i = 0; i < list->n_members; i++)
	{
		HeapTuple	tuple = &list->members[i]->tuple;
		Form_pg_proc form = (Form_pg_proc) GETSTRUCT(tuple);

		if (form->pronamespace == schema && form->pronargs == 1 &&
			(name->takes_jsonb ? form->proargtypes.values[0] == JSONBOID :
			 is_message_type(form->proargtypes.values[0])))
			result = heap_copytuple(tuple);
	}
	ReleaseSysCacheList(list);
	return result;
}

/* Callback for an invalidation message of pg_proc */
static void
function_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	functions_generation++;
}

/* Returns whether no function has changed since handler_check(). */
bool
handler_is_same(const Handler *handler)
{
	return handler->functions_generation == functions_generation;
}

/*
 * Find the function of a name.  Returns NULL if the role may run it, otherwise
 * the reason why not.
 */
static const char *
find_and_check_function(const FunctionName *name, bool is_teardown, Oid role,
						FoundFunction *function)
{
	HeapTuple	tuple = find_function(name);
	Form_pg_proc form;
	CallPrivilege privilege;

	function->oid = InvalidOid;
	if (!HeapTupleIsValid(tuple))
		return psprintf("Function %s does not exist.",
						handler_function_name(name));
	form = (Form_pg_proc) GETSTRUCT(tuple);
	function->oid = form->oid;
	function->argument_type = form->proargtypes.values[0];

	/* It may have been dropped and created again, as another kind. */
	if (!has_right_signature(form, is_teardown))
		return psprintf("%s is no longer a function that returns %s.",
						handler_function_name(name),
						is_teardown ? "a single value" : "boolean");

	/* Whoever can alter the function could have anything done as the role. */
	if (form->proowner != role && !superuser_arg(form->proowner))
		return psprintf("Function %s belongs neither to role \"%s\", which bound the handler, nor to a superuser.",
						handler_function_name(name),
						GetUserNameFromId(role, true));
	privilege = call_privilege(function->oid, role);
	if (privilege == CALL_ALLOWED)
		return NULL;
	return psprintf("Role \"%s\" has no privilege %s function %s.",
					GetUserNameFromId(role, true),
					privilege == CALL_NEEDS_USAGE ?
					"USAGE on the schema of" : "EXECUTE on",
					handler_function_name(name));
}

/*
 * Returns the SQL function job_handler, which a role needs to bind; cached.
 */
static Oid
job_handler_oid(void)
{
	static Oid	function = InvalidOid;
	static uint64 generation = 0;
	uint64		looked_up = catalog_generation();
	CatCList   *list;

	if (generation == looked_up)
		return function;
	function = InvalidOid;
	list = SearchSysCacheList1(PROCNAMEARGSNSP,
							   CStringGetDatum("job_handler"));
	for (int i = 0; i < list->n_members; i++)
	{
		Oid			oid = ((Form_pg_proc) GETSTRUCT(&list->members[i]->tuple))->oid;

		if (getExtensionOfObject(ProcedureRelationId, oid) ==
			get_extension_oid("queue", true))
			function = oid;
	}
	ReleaseSysCacheList(list);

	/* Last, so that after an error above the next call looks it up again. */
	generation = looked_up;
	return function;
}

/* Returns whether a session has loaded the row, or may be of that restore. */
static bool
may_be_loading(const PgBackendStatus *entry, void *arg)
{
	return entry->st_proc_start_timestamp == *(TimestampTz *) arg ||
		(entry->st_appname != NULL &&
		 strcmp(entry->st_appname, "pg_restore") == 0 &&
		 superuser_arg(entry->st_userid));
}

/*
 * Returns NULL if no restore is under way that has loaded the handler,
 * otherwise the reason why it has to wait.
 */
static const char *
load_problem(Handler *handler)
{
	int			pid = 0;

	/* To read what all sessions are takes long, so we remember the answer. */
	if (!handler->load_has_ended && handler->row.loaded_by != 0)
		pid = compat_find_session(MyDatabaseId, may_be_loading,
								  &handler->row.loaded_by);
	handler->load_has_ended = pid == 0;
	if (pid == 0)
		return NULL;
	return psprintf("It was loaded with SQL, as by a restore, and the session with process id %d is still connected.",
					pid);
}

/*
 * Returns NULL if the role may still bind a handler to the queue and, if it
 * could log in when it bound this one, may still log in.  (A role that cannot
 * log in may own queues and handlers too.)  Otherwise the reason why not.
 */
static const char *
role_problem(const Handler *handler)
{
	Oid			role = handler->row.role;
	const char *name = GetUserNameFromId(role, true);

	if (name == NULL)
		return psprintf("Role %u, which bound the handler, does not exist.",
						role);
	/* To bind a handler takes the same privilege. */
	if (!queue_may_inspect(handler->row.queue_id, role))
		return psprintf("Role \"%s\", which bound the handler, may not bind one to queue \"%s\".",
						name, handler->queue.name);
	if (!OidIsValid(job_handler_oid()) ||
		call_privilege(job_handler_oid(), role) != CALL_ALLOWED)
		return psprintf("Role \"%s\", which bound the handler, may not execute job_handler.",
						name);
	return handler->row.logs_in ? handler_login_problem(role) : NULL;
}

/*
 * Find the functions of a handler.  Returns NULL if it may run, otherwise the
 * reason why not, as a sentence.
 */
const char *
handler_check(Handler *handler)
{
	const HandlerRow *row = &handler->row;
	const char *problem = load_problem(handler);

	if (functions_generation == 0)
	{
		CacheRegisterSyscacheCallback(PROCOID, function_changed, (Datum) 0);
		functions_generation = 1;
	}

	/* A message that arrives meanwhile causes another check. */
	handler->functions_generation = functions_generation;
	if (problem == NULL)
		problem = role_problem(handler);
	if (problem == NULL)
		problem = find_and_check_function(&row->function, false, row->role,
										  &handler->function);
	if (problem == NULL && handler_has_teardown(handler))
		problem = find_and_check_function(&row->teardown, true, row->role,
										  &handler->teardown);
	return problem;
}

/* Report that a handler cannot run. */
void
handler_report_stopped(const Handler *handler, int elevel, const char *problem)
{
	ereport(elevel,
			(errmsg("handler of queue \"%s\" cannot run", handler->queue.name),
			 errdetail_internal("%s", problem),
			 errhint("Its jobs wait, and go on by themselves when that has changed.")));
}
