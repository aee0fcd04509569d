/*-------------------------------------------------------------------------
 *
 * cron.c
 *	  Jobs of pg_cron, one for each schedule.
 *
 * NOTES
 *	  The extension pg_cron has all its objects in the schema "cron".  Its jobs
 *	  belong to the role that creates them, and run as that role, either in a
 *	  background worker or, which is its default, over a connection to the
 *	  server that pg_hba.conf must let in.  How each run ended is in
 *	  cron.job_run_details, where a role sees its own runs.
 *
 *	  These tables belong to another extension.  So they are read as the role
 *	  of the job, and only if that may read them.
 *
 * src/jobs/cron.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "jobs/cron.h"
#include "jobs/handler_check.h"
#include "queue/acl.h"
#include "util/compat.h"
#include "util/settings.h"

#define CRON_SCHEMA		"cron"
#define CRON_WORKERS	"cron.use_background_workers"
#define ROUTER_SCHEMA	"queue_router"
#define ROUTER_FUNCTION "due"

/*
 * The block that a job executes: a function, if it belongs to the extension.
 *
 * A job runs as its role, perhaps a superuser, so it must not call a function
 * of another role that has only the name of ours.  The owner of the schema in
 * which our functions are can rename that, or drop it and thereby the
 * extension, and DROP EXTENSION leaves the job behind.  Hence the check, and
 * "queue_router", which belongs to the extension: no other role can rename it
 * between the check and the call.  (What remains is a transaction that drops
 * the extension, makes another "queue_router", and commits just between the
 * two.)  The session may have any search_path.
 */
#define DUE_BODY \
	"BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS d" \
	" JOIN pg_catalog.pg_extension AS e" \
	" ON e.oid OPERATOR(pg_catalog.=) d.refobjid" \
	" WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass" \
	" AND d.objid OPERATOR(pg_catalog.=) pg_catalog.to_regprocedure(%s)" \
	" AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass" \
	" AND d.deptype OPERATOR(pg_catalog.=) 'e'" \
	" AND e.extname OPERATOR(pg_catalog.=) 'queue')" \
	" THEN RAISE EXCEPTION 'extension \"queue\" does not exist';" \
	" END IF; PERFORM %s(%d); END"

static bool may_use_cron_schema(Oid role);
static void execute_cron_query(const char *query, int nargs, Datum *values);
static void add_syntax_hint(void *arg);
static bool cron_uses_connections(void);
static bool may_read_runs(Oid role);
static bool read_failure(int32 id, Oid role, MemoryContext context,
						 char **message, TimestampTz *at);

/* --- Jobs --- */

bool
cron_exists(void)
{
	return OidIsValid(get_extension_oid("pg_cron", true));
}

static bool
may_use_cron_schema(Oid role)
{
	Oid			schema = get_namespace_oid(CRON_SCHEMA, true);

	return OidIsValid(schema) &&
		object_aclcheck(NamespaceRelationId, schema, role,
						ACL_USAGE) == ACLCHECK_OK;
}

/* Check that the current user can use pg_cron. */
void
cron_require(void)
{
	if (!cron_exists())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("job_schedule() needs the extension \"pg_cron\" in this database"),
				 errhint("Install the package postgresql-%d-cron, add pg_cron to \"shared_preload_libraries\", set \"cron.database_name\" to \"%s\" and \"%s\" to on, restart the server, and CREATE EXTENSION pg_cron.",
						 PG_VERSION_NUM / 10000,
						 get_database_name(MyDatabaseId), CRON_WORKERS)));
	if (!may_use_cron_schema(GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for schema %s", CRON_SCHEMA),
				 errdetail("Schedules are jobs of pg_cron."),
				 errhint("A superuser can run: GRANT USAGE ON SCHEMA %s TO %s;",
						 CRON_SCHEMA, acl_role_identifier(GetUserId()))));
}

/* Run a query on pg_cron's functions; all its parameters are of type text. */
static void
execute_cron_query(const char *query, int nargs, Datum *values)
{
	Oid			types[3] = {TEXTOID, TEXTOID, TEXTOID};

	Assert(nargs <= (int) lengthof(types));
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute_with_args(query, nargs, types, values, NULL, false,
							  0) != SPI_OK_SELECT)
		elog(ERROR, "could not execute \"%s\"", query);
	SPI_finish();
}

/* Error context callback of cron.schedule() */
static void
add_syntax_hint(void *arg)
{
	if (geterrcode() == ERRCODE_INVALID_PARAMETER_VALUE)
		errhint("Give minute, hour, day of the month, month and day of the week, as in '30 3 * * *' for every night at 3:30.");
}

/*
 * Create the job of a schedule.  "schema" is that of our functions.  The names
 * in the comment of the command, which those that read cron.job see, cannot
 * end it: they have no asterisk.
 */
void
cron_schedule(int32 id, const char *name, const char *queue_name,
			  const char *cron, const char *schema)
{
	Datum		values[3];
	const char *function;
	char	   *body;
	ErrorContextCallback hint = {error_context_stack, add_syntax_hint, NULL};

	function = quote_qualified_identifier(ROUTER_SCHEMA, ROUTER_FUNCTION);
	body = psprintf(DUE_BODY,
					quote_literal_cstr(psprintf("%s(integer)", function)),
					function, id);
	values[0] = CStringGetTextDatum(psprintf("queue %d", id));
	values[1] = CStringGetTextDatum(cron);
	values[2] = CStringGetTextDatum(psprintf("/* schedule \"%s\" of queue \"%s\" */ DO %s",
											 name, queue_name,
											 quote_literal_cstr(body)));
	error_context_stack = &hint;
	execute_cron_query("SELECT cron.schedule($1, $2, $3)", 3, values);
	error_context_stack = hint.previous;
}

/* Drop the job of a schedule, if it exists, whichever role owns it. */
void
cron_unschedule(int32 id)
{
	Datum		name = CStringGetTextDatum(psprintf("queue %d", id));

	execute_cron_query("SELECT cron.unschedule(jobid) FROM cron.job "
					   "WHERE jobname OPERATOR(pg_catalog.=) $1", 1, &name);
}

/* --- Jobs that fail --- */

/* Returns whether pg_cron runs jobs over connections to the server. */
static bool
cron_uses_connections(void)
{
	const char *value = GetConfigOption(CRON_WORKERS, true, false);

	return value == NULL || strcmp(value, "on") != 0;
}

/*
 * Warn if a job of the current user will not run, or not without a change of
 * pg_hba.conf.
 */
void
cron_warn(const char *schedule, const char *queue_name)
{
	const char *role = acl_role_identifier(GetUserId());
	const char *host = GetConfigOption("cron.host", true, false);

	if (!handler_role_may_log_in(GetUserId()))
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("schedule \"%s\" will not run: role %s may not log in to this database",
						schedule, role),
				 errhint("Run ALTER ROLE %s LOGIN, or make the schedule as another role.",
						 role)));
	else if (cron_uses_connections())
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("schedule \"%s\" runs only if role %s can connect without a password",
						schedule, role),
				 errdetail("\"%s\" is off, so pg_cron connects to host \"%s\".",
						   CRON_WORKERS, host == NULL ? "localhost" : host),
				 errhint("Set \"%s\" to on and restart the server, or let the role in by pg_hba.conf. If a run fails, job_stats('%s') shows it.",
						 CRON_WORKERS, queue_name)));
}

static bool
may_read_runs(Oid role)
{
	static const char *const tables[] = {"job", "job_run_details"};
	Oid			schema = get_namespace_oid(CRON_SCHEMA, true);

	if (GetUserNameFromId(role, true) == NULL || !may_use_cron_schema(role))
		return false;
	for (int i = 0; i < (int) lengthof(tables); i++)
	{
		Oid			table = get_relname_relid(tables[i], schema);

		if (!OidIsValid(table) ||
			pg_class_aclcheck(table, role, ACL_SELECT) != ACLCHECK_OK)
			return false;
	}
	return true;
}

/*
 * Read, as the current user, whether the latest run of the job that has ended
 * has failed, and how.  The caller is connected to SPI.
 */
static bool
read_failure(int32 id, Oid role, MemoryContext context, char **message,
			 TimestampTz *at)
{
	Oid			types[2] = {TEXTOID, TEXTOID};
	Datum		values[2];
	HeapTuple	row;
	TupleDesc	desc;
	bool		isnull;
	Datum		ended;

	values[0] = CStringGetTextDatum(psprintf("queue %d", id));
	values[1] = CStringGetTextDatum(GetUserNameFromId(role, false));
	if (SPI_execute_with_args("SELECT status, return_message, end_time "
							  "FROM cron.job_run_details WHERE jobid = "
							  "(SELECT jobid FROM cron.job"
							  " WHERE jobname = $1 AND username = $2) "
							  "AND status IN ('succeeded', 'failed') "
							  "ORDER BY runid DESC LIMIT 1",
							  2, types, values, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read cron.job_run_details");
	if (SPI_processed == 0)
		return false;
	row = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	if (strcmp(SPI_getvalue(row, desc, 1), "failed") != 0)
		return false;
	*message = SPI_getvalue(row, desc, 2);
	*message = MemoryContextStrdup(context, *message == NULL ? "" : *message);
	ended = SPI_getbinval(row, desc, 3, &isnull);
	*at = isnull ? DT_NOBEGIN : DatumGetTimestampTz(ended);
	return true;
}

/*
 * Returns whether the latest run of a role's job has failed; if so, *message
 * says why.  *at is DT_NOBEGIN if pg_cron has not recorded when, which is so
 * if it could not connect.
 */
bool
cron_failure(int32 id, Oid role, char **message, TimestampTz *at)
{
	MemoryContext context = CurrentMemoryContext;
	Oid			user;
	int			security;
	int			nest_level;
	bool		result;

	if (!may_read_runs(role))
		return false;
	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(role, security | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION);
	nest_level = NewGUCNestLevel();
	settings_set("search_path", "pg_catalog, pg_temp", false);
	settings_set("row_security", "on", false);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	result = read_failure(id, role, context, message, at);
	SPI_finish();
	AtEOXact_GUC(false, nest_level);
	SetUserIdAndSecContext(user, security);
	if (result && cron_uses_connections())
		*message = psprintf("%s (\"%s\" is off)", *message, CRON_WORKERS);
	return result;
}
