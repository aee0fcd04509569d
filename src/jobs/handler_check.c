/*-------------------------------------------------------------------------
 *
 * handler_check.c
 *	  Whether a handler may run: what its functions are, and what its role may
 *	  do.
 *
 * NOTES
 *	  A handler is bound by a role and runs as that role, so whatever the
 *	  owner of the function makes of it later runs with the privileges of the
 *	  role.  The role accepts that when it binds the function, but only for the
 *	  function as it is then: the handler's row has a digest of the definition,
 *	  and a function that belongs neither to the role nor to a superuser runs
 *	  only while its definition is the one that was bound.
 *
 *	  handler_check() verifies everything that a handler needs, before each
 *	  claim.  Before each job handler_is_same() only compares the versions of
 *	  the functions' rows in pg_proc with those that were verified.
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
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"

#include "catalog/relations.h"
#include "jobs/handler_check.h"
#include "queue/acl.h"
#include "queue/registry.h"
#include "util/compat.h"
#include "util/digest.h"

#define MESSAGE_TYPE	"queue_message"

/* Whether a role may call a function by its name */
typedef enum CallPrivilege
{
	CALL_ALLOWED,
	CALL_NEEDS_USAGE,			/* on the function's schema */
	CALL_NEEDS_EXECUTE			/* on the function */
} CallPrivilege;

/* Whether a role may log in to this database */
typedef enum LoginPrivilege
{
	LOGIN_ALLOWED,
	LOGIN_NO_ROLE,				/* the role does not exist */
	LOGIN_NOT_ALLOWED,			/* NOLOGIN */
	LOGIN_EXPIRED,				/* VALID UNTIL has passed */
	LOGIN_NEEDS_CONNECT			/* on the database */
} LoginPrivilege;

static bool is_message_type(Oid type);
static bool has_right_signature(Form_pg_proc form);
static CallPrivilege call_privilege(Oid function, Oid role);
static LoginPrivilege login_privilege(Oid role);
static HeapTuple get_function(Oid oid, const char *parameter);
static void check_callable(Form_pg_proc form, const char *parameter,
						   FunctionName *name);
static void append_definition(StringInfo buf, Oid function);
static Oid	find_function(const FunctionName *name);
static bool has_version(const FoundFunction *function);
static bool is_trusted(Oid function, Oid role);
static const char *find_and_check(const FunctionName *name,
								  bool is_teardown, Oid role,
								  FoundFunction *function);
static Oid	job_handler_oid(void);
static const char *login_problem(Oid role);
static const char *role_problem(const Handler *handler);
static const char *functions_problem(Handler *handler);
static const char *definition_problem(Handler *handler);

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
 * Returns whether it is a function of one message that returns at most one
 * value.
 */
static bool
has_right_signature(Form_pg_proc form)
{
	return form->prokind == PROKIND_FUNCTION && !form->proretset &&
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

static LoginPrivilege
login_privilege(Oid role)
{
	HeapTuple	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role));
	bool		can_login;
	bool		is_forever;
	bool		is_over;
	Datum		until;

	if (!HeapTupleIsValid(tuple))
		return LOGIN_NO_ROLE;
	can_login = ((Form_pg_authid) GETSTRUCT(tuple))->rolcanlogin;
	until = SysCacheGetAttr(AUTHOID, tuple, Anum_pg_authid_rolvaliduntil,
							&is_forever);
	is_over = !is_forever &&
		DatumGetTimestampTz(until) < GetCurrentTimestamp();
	ReleaseSysCache(tuple);		/* until may point into it */
	if (!can_login)
		return LOGIN_NOT_ALLOWED;
	if (is_over)
		return LOGIN_EXPIRED;
	if (object_aclcheck(DatabaseRelationId, MyDatabaseId, role,
						ACL_CONNECT) != ACLCHECK_OK)
		return LOGIN_NEEDS_CONNECT;
	return LOGIN_ALLOWED;
}

bool
handler_role_may_log_in(Oid role)
{
	return login_privilege(role) == LOGIN_ALLOWED;
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

static HeapTuple
get_function(Oid oid, const char *parameter)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(oid));

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("parameter \"%s\": there is no function %u",
						parameter, oid),
				 errhint("Give its name and argument, as in 'do_job(queue_message)'.")));
	return tuple;
}

/* Check that the current role may bind this function, and return its name. */
static void
check_callable(Form_pg_proc form, const char *parameter, FunctionName *name)
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

	name->takes_jsonb = form->proargtypes.values[0] == JSONBOID;
	name->schema = get_namespace_name(form->pronamespace);
	name->name = pstrdup(NameStr(form->proname));
}

/* Check that the current role may bind a function as the handler. */
void
handler_check_function(Oid function, FunctionName *name)
{
	HeapTuple	tuple = get_function(function, "handler");
	Form_pg_proc form = (Form_pg_proc) GETSTRUCT(tuple);

	if (!has_right_signature(form) || form->prorettype != BOOLOID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be a function of one argument that returns boolean, not %s",
						"handler", format_procedure_qualified(function)),
				 errhint("Its argument is of type queue_message, or jsonb to get only the body.")));
	check_callable(form, "handler", name);
	ReleaseSysCache(tuple);
}

/* Check that the current role may bind a function as the teardown function. */
void
handler_check_teardown(Oid function, FunctionName *name)
{
	HeapTuple	tuple = get_function(function, "teardown");
	Form_pg_proc form = (Form_pg_proc) GETSTRUCT(tuple);

	if (!has_right_signature(form))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be a function of one argument, not %s",
						"teardown", format_procedure_qualified(function)),
				 errhint("Its argument is of type queue_message, or jsonb to get only the body.")));
	check_callable(form, "teardown", name);
	ReleaseSysCache(tuple);
}

/* Append the owner of a function and its definition. */
static void
append_definition(StringInfo buf, Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	char	   *owner;
	Datum		definition;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", function);
	owner = GetUserNameFromId(((Form_pg_proc) GETSTRUCT(tuple))->proowner,
							  true);
	ReleaseSysCache(tuple);
	definition = DirectFunctionCall1(pg_get_functiondef,
									 ObjectIdGetDatum(function));
	appendStringInfo(buf, "%s\n%s\n", owner == NULL ? "" : owner,
					 TextDatumGetCString(definition));
}

/* Compute a digest of what the functions are, the same in each session. */
void
handler_digest(Oid function, Oid teardown, pg_uuid_t *digest)
{
	/*
	 * The settings that a printed definition depends on; constants in it are
	 * printed by the output functions of their types.
	 */
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
	append_definition(&buf, function);
	if (OidIsValid(teardown))
		append_definition(&buf, teardown);
	digest_text(buf.data, digest);
	pfree(buf.data);
	AtEOXact_GUC(true, nest_level);
}

/* --- Running --- */

/*
 * Returns the function of this name, or InvalidOid if there is none.  Checks
 * no privilege.
 */
static Oid
find_function(const FunctionName *name)
{
	Oid			schema = get_namespace_oid(name->schema, true);
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP,
										   CStringGetDatum(name->name));
	Oid			result = InvalidOid;

	for (int i = 0; i < list->n_members; i++)
	{
		Form_pg_proc form =
		(Form_pg_proc) GETSTRUCT(&list->members[i]->tuple);

		if (form->pronamespace != schema || form->pronargs != 1)
			continue;
		if (name->takes_jsonb ?
			form->proargtypes.values[0] == JSONBOID :
			is_message_type(form->proargtypes.values[0]))
			result = form->oid;
	}
	ReleaseSysCacheList(list);
	return result;
}

/*
 * Returns whether the function's row in pg_proc is the version that was
 * found.
 */
static bool
has_version(const FoundFunction *function)
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
 * Returns whether the functions are still those that handler_check() has
 * found.
 */
bool
handler_is_same(const Handler *handler)
{
	return has_version(&handler->function) &&
		(!handler_has_teardown(handler) || has_version(&handler->teardown));
}

/*
 * Returns whether the function belongs to the role itself or to a superuser.
 */
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

/*
 * Find the function of a name.  Returns NULL if the role may run it, otherwise
 * the reason why not.
 */
static const char *
find_and_check(const FunctionName *name, bool is_teardown, Oid role,
			   FoundFunction *function)
{
	HeapTuple	tuple;
	Form_pg_proc form;
	bool		fits;

	function->oid = find_function(name);
	if (!OidIsValid(function->oid))
		return psprintf("Function %s does not exist.",
						handler_function_name(name));

	/* It may have been dropped and created again, as another kind. */
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function->oid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", function->oid);
	form = (Form_pg_proc) GETSTRUCT(tuple);
	fits = has_right_signature(form) &&
		(is_teardown || form->prorettype == BOOLOID);
	function->argument_type = form->proargtypes.values[0];
	function->xmin = HeapTupleHeaderGetRawXmin(tuple->t_data);
	function->tid = tuple->t_self;
	ReleaseSysCache(tuple);
	if (!fits && is_teardown)
		return psprintf("%s is no longer a function that returns a single value.",
						handler_function_name(name));
	if (!fits)
		return psprintf("%s is no longer a function that returns boolean.",
						handler_function_name(name));

	switch (call_privilege(function->oid, role))
	{
		case CALL_NEEDS_USAGE:
			return psprintf("Role \"%s\" has no privilege USAGE on the schema of function %s.",
							GetUserNameFromId(role, true),
							handler_function_name(name));
		case CALL_NEEDS_EXECUTE:
			return psprintf("Role \"%s\" has no privilege EXECUTE on function %s.",
							GetUserNameFromId(role, true),
							handler_function_name(name));
		case CALL_ALLOWED:
			break;
	}
	return NULL;
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

	/* Last, so that after an error above the next call looks it up again. */
	generation = looked_up;
	return function;
}

/* Returns NULL if the role may log in, otherwise the reason why not. */
static const char *
login_problem(Oid role)
{
	const char *name = GetUserNameFromId(role, true);

	switch (login_privilege(role))
	{
		case LOGIN_ALLOWED:
			break;
		case LOGIN_NO_ROLE:
			return psprintf("Role %u, which bound the handler, does not exist.",
							role);
		case LOGIN_NOT_ALLOWED:
			return psprintf("Role \"%s\", which bound the handler, may no longer log in.",
							name);
		case LOGIN_EXPIRED:
			return psprintf("Role \"%s\", which bound the handler, is no longer valid (VALID UNTIL).",
							name);
		case LOGIN_NEEDS_CONNECT:
			return psprintf("Role \"%s\", which bound the handler, may no longer connect to the database.",
							name);
	}
	return NULL;
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
	Queue		queue;

	if (name == NULL)
		return psprintf("Role %u, which bound the handler, does not exist.",
						role);
	if (queue_find_as(handler->name, role, QUEUE_ALTER, &queue) != QUEUE_OK)
		return psprintf("Role \"%s\", which bound the handler, may no longer bind one to queue \"%s\".",
						name, handler->name);
	if (!OidIsValid(job_handler_oid()) ||
		call_privilege(job_handler_oid(), role) != CALL_ALLOWED)
		return psprintf("Role \"%s\", which bound the handler, may no longer execute job_handler.",
						name);
	return handler->row.logs_in ? login_problem(role) : NULL;
}

/* Find the functions.  Returns NULL if the role may run them. */
static const char *
functions_problem(Handler *handler)
{
	const HandlerRow *row = &handler->row;
	const char *problem = find_and_check(&row->function, false, row->role,
										 &handler->function);

	if (problem == NULL && handler_has_teardown(handler))
		problem = find_and_check(&row->teardown, true, row->role,
								 &handler->teardown);
	return problem;
}

/* Returns NULL if the functions are trusted, or are those that were bound. */
static const char *
definition_problem(Handler *handler)
{
	const HandlerRow *row = &handler->row;
	bool		has_teardown = handler_has_teardown(handler);
	pg_uuid_t	digest;

	if (handler->is_as_bound ||
		(is_trusted(handler->function.oid, row->role) &&
		 (!has_teardown || is_trusted(handler->teardown.oid, row->role))))
		return NULL;
	handler_digest(handler->function.oid, handler->teardown.oid, &digest);

	/*
	 * To print the definitions takes long.  So we remember the answer until
	 * the functions' rows in pg_proc change.
	 */
	if (memcmp(&digest, &row->digest, sizeof(digest)) == 0)
	{
		handler->is_as_bound = true;
		return NULL;
	}
	if (!has_teardown)
		return psprintf("Function %s is not owned by role \"%s\", and was altered after that role bound it.",
						handler_function_name(&row->function),
						GetUserNameFromId(row->role, true));
	return psprintf("Function %s, or the teardown function %s, is not owned by role \"%s\", and was altered after that role bound it.",
					handler_function_name(&row->function),
					handler_function_name(&row->teardown),
					GetUserNameFromId(row->role, true));
}

/*
 * Find the functions of a handler, whose queue is in the session's project.
 * Returns NULL if it may run, otherwise the reason why not, as a sentence.
 */
const char *
handler_check(Handler *handler)
{
	const char *problem;

	/*
	 * We must do this before the functions are looked up again, which
	 * replaces the versions that were found to be as bound.
	 */
	if (handler->is_as_bound)
		handler->is_as_bound = handler_is_same(handler);

	problem = role_problem(handler);
	if (problem == NULL)
		problem = functions_problem(handler);
	if (problem == NULL)
		problem = definition_problem(handler);
	return problem;
}
