/*-------------------------------------------------------------------------
 *
 * internal_api.c
 *	  The SQL functions of schema queue_data: for the extension's own views,
 *	  triggers and dumps.
 *
 * NOTES
 *	  Users do not call these functions, except for library_version() and
 *	  record_roles().  They are grouped by the object that calls them.
 *
 * src/api/internal_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "api/api_arg.h"
#include "catalog/relations.h"
#include "jobs/runner_pool.h"
#include "queue/acl.h"
#include "queue/role.h"
#include "shmem/database_state.h"
#include "storage/pending.h"
#include "storage/segment_recycle.h"
#include "util/args.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/version.h"

PG_FUNCTION_INFO_V1(sql_queue_library_version);
PG_FUNCTION_INFO_V1(sql_queue_record_roles);
PG_FUNCTION_INFO_V1(sql_queue_roles_written);
PG_FUNCTION_INFO_V1(sql_queue_roles_exist);
PG_FUNCTION_INFO_V1(sql_queue_workers);
PG_FUNCTION_INFO_V1(sql_queue_restored);
PG_FUNCTION_INFO_V1(sql_queue_forget);
PG_FUNCTION_INFO_V1(sql_queue_not_replicated);
PG_FUNCTION_INFO_V1(sql_queue_superusers_only);
PG_FUNCTION_INFO_V1(sql_queue_handler_loaded);
PG_FUNCTION_INFO_V1(sql_queue_segment_is_whole);
PG_FUNCTION_INFO_V1(sql_queue_runners);

static int	parse_version(const char *version);
static HeapTuple get_new_row(FunctionCallInfo fcinfo, const char *function);

/* --- Versions --- */

/*
 * A number that is greater for a later version; the third part is not needed.
 */
static int
parse_version(const char *version)
{
	int			major;
	int			minor;

	if (sscanf(version, "%4d.%4d", &major, &minor) != 2)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is no version", version),
				 errhint("Give two numbers, such as \"1.0\".")));
	return major * 10000 + minor;
}

/*
 * queue_data.library_version(required text) returns text
 *
 * The version of the library that this session has loaded.  That may be
 * another one than on the disk, or than that of the extension in this
 * database.  A script that updates the extension calls it with its own
 * version, so that it fails with a hint, and not because a C function is
 * missing.  When it commits, all sessions look again which tables there are,
 * and a worker is started for the database.
 *
 * Errors: 55000 the library is older than required, 22023 no version.
 */
Datum
sql_queue_library_version(PG_FUNCTION_ARGS)
{
	const char *required = arg_text(fcinfo, 0);

	if (required != NULL &&
		parse_version(QUEUE_VERSION) < parse_version(required))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("version %s of the extension \"queue\" needs a library of that version",
						required),
				 errdetail("This session has loaded the library of version %s.",
						   QUEUE_VERSION),
				 errhint("If the new library is installed, restart the server (or connect again, if \"shared_preload_libraries\" does not have it), and repeat the command.")));
	if (creating_extension)
	{
		catalog_invalidate();
		database_record_change(CHANGE_EXTENSION_CREATED);
	}
	PG_RETURN_TEXT_P(cstring_to_text(QUEUE_VERSION));
}

/* --- Roles that queues refer to --- */

/*
 * queue_data.record_roles() returns void
 *
 * Records the roles of all queues in pg_shdepend: after pg_upgrade, or when a
 * role cannot be dropped although queue_data.queue_roles does not show it,
 * which two transactions can cause that change queues of one role at a time.
 *
 * Errors: 25006 read-only transaction.
 */
Datum
sql_queue_record_roles(PG_FUNCTION_ARGS)
{
	api_check_can_write("record_roles()");
	role_record_all();
	PG_RETURN_VOID();
}

/*
 * queue_data.roles_written() returns trigger
 *
 * The trigger on queue_data.queue and queue_data.topic: rows were written by
 * other SQL than the extension's functions.  Records the roles that they refer
 * to, and has all sessions read the rows anew.
 *
 * Errors: 39P01 called, but not as a trigger.
 */
Datum
sql_queue_roles_written(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = api_check_trigger(fcinfo, "roles_written");

	CommandCounterIncrement();	/* to see the rows */
	CacheInvalidateRelcache(trigger->tg_relation);
	role_record_all();
	return PointerGetDatum(NULL);
}

/*
 * queue_data.roles_exist(name text, owner regrole, push_roles regrole[],
 *						  claim_roles regrole[], admin_roles regrole[])
 * returns boolean
 *
 * The filter with which pg_dump reads queue_data.queue.
 *
 * Result: true.
 * Errors: 22004 no name, 55000 a role does not exist.
 */
Datum
sql_queue_roles_exist(PG_FUNCTION_ARGS)
{
	char	   *name = TextDatumGetCString(arg_required(fcinfo, 0, "name"));

	if (!PG_ARGISNULL(1))
		role_check_exists(name, PG_GETARG_OID(1));
	for (int i = 2; i < PG_NARGS(); i++)
	{
		Datum	   *roles;
		int			n;

		if (PG_ARGISNULL(i))
			continue;
		n = acl_roles(PG_GETARG_ARRAYTYPE_P(i), &roles);
		for (int j = 0; j < n; j++)
			role_check_exists(name, DatumGetObjectId(roles[j]));
	}
	PG_RETURN_BOOL(true);
}

/* --- Views of processes --- */

/*
 * queue_data.workers() returns setof record (the columns are below)
 *
 * One row for each database that has a worker, had one, or is to get one;
 * behind the view queue_workers.
 */
Datum
sql_queue_workers(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {
		[WORKER_NONE] = "none",
		[WORKER_WANTED] = "wanted",
		[WORKER_STARTING] = "starting",
		[WORKER_IDLE] = "idle",
		[WORKER_BUSY] = "busy"
	};
	DatabaseState *states;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	states = database_list(&n);
	for (int i = 0; i < n; i++)
	{
		DatabaseState *state = &states[i];
		ApiRow		row = {0};

		api_row_add(&row, ObjectIdGetDatum(state->database));
		api_row_add_text(&row, names[state->state]);
		api_row_add_or_null(&row, Int32GetDatum(state->pid), state->pid == 0);
		api_row_add_time(&row, state->last_run);
		api_row_add_time(&row,
						 (TimestampTz) pg_atomic_read_u64(&state->next_due));
		for (int j = 0; j < WORKER_COUNTERS; j++)
		{
			uint64		counter = pg_atomic_read_u64(&state->counters[j]);

			api_row_add(&row, Int64GetDatum((int64) counter));
		}
		api_row_add_text(&row, state->last_error[0] == '\0' ? NULL :
						 state->last_error);
		api_row_add_time(&row, state->last_error_at);
		api_row_put(&row, fcinfo);
	}
	return (Datum) 0;
}

/* --- Rows that other SQL writes or reads --- */

/*
 * queue_data.restored() returns trigger
 *
 * The trigger on the tables of queues, messages and handlers: rows were
 * written or deleted by other SQL than the extension's functions (a restore,
 * or a TRUNCATE that is not the worker's).  When that commits, sessions and
 * the worker forget what they know of these tables.
 *
 * Errors: 39P01 called, but not as a trigger.
 */
Datum
sql_queue_restored(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = api_check_trigger(fcinfo, "queue_data.restored");

	if (!segment_is_truncating())
		pending_record_restore(RelationGetRelid(trigger->tg_relation));
	PG_RETURN_POINTER(NULL);
}

/* Returns the row that is to be written, for a trigger before each row. */
static HeapTuple
get_new_row(FunctionCallInfo fcinfo, const char *function)
{
	TriggerData *trigger = api_check_trigger(fcinfo, function);

	if (!TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" was not called by trigger manager before a row",
						function)));
	return TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ?
		trigger->tg_newtuple : trigger->tg_trigtuple;
}

/*
 * queue_data.forget() returns void
 *
 * To be called after rows of the tables of queues, messages and handlers were
 * written or deleted with SQL while their triggers were disabled.  When that
 * commits, sessions and the worker forget what they know of these tables.
 *
 * Errors: none.
 */
Datum
sql_queue_forget(PG_FUNCTION_ARGS)
{
	pending_record_restore(InvalidOid);
	PG_RETURN_VOID();
}

/*
 * queue_data.not_replicated() returns trigger
 *
 * The trigger on all tables of the extension, before each row: what a
 * subscription writes is left out.  The rows of a publisher must not mix with
 * those of this database, which may have the same numbers, nor may its jobs
 * run here once more.
 *
 * Errors: 39P01 called, but not as a trigger before a row.
 */
Datum
sql_queue_not_replicated(PG_FUNCTION_ARGS)
{
	HeapTuple	tuple = get_new_row(fcinfo, "queue_data.not_replicated");

	PG_RETURN_POINTER(IsLogicalWorker() ? NULL : tuple);
}

/*
 * queue_data.superusers_only() returns trigger
 *
 * The trigger on all tables of the extension, before each statement: a role
 * that is not a superuser may not write them with SQL, whatever it was
 * granted (as by pg_write_all_data), because a row names the role as which a
 * handler runs, the roles that may claim from a queue, and more.  The
 * extension's own functions run no triggers.
 *
 * Errors: 39P01 called, but not as a trigger; 42501 not a superuser.
 */
Datum
sql_queue_superusers_only(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = api_check_trigger(fcinfo,
											 "queue_data.superusers_only");

	/* The role that runs the statement, also after SET ROLE */
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for table \"%s.%s\"",
						CATALOG_SCHEMA,
						RelationGetRelationName(trigger->tg_relation)),
				 errdetail("Only superusers may write the tables of the extension with SQL, because their rows say which role runs a job, and who may use a queue."),
				 errhint("Call the functions of the extension.")));
	PG_RETURN_POINTER(NULL);
}

/*
 * queue_data.handler_loaded() returns trigger
 *
 * The trigger on queue_data.handler, before each row that SQL writes, as a
 * restore does: it sets loaded_by to the time when the session began, so that
 * the handler waits until it has ended (handler_check.c).
 *
 * Errors: 39P01 called, but not as a trigger before a row.
 */
Datum
sql_queue_handler_loaded(PG_FUNCTION_ARGS)
{
	HeapTuple	tuple = get_new_row(fcinfo, "queue_data.handler_loaded");
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	int			column = Anum_handler_loaded_by;
	Datum		value = TimestampTzGetDatum(MyStartTimestamp);
	bool		isnull = false;

	PG_RETURN_POINTER(heap_modify_tuple_by_cols(tuple,
												RelationGetDescr(trigger->tg_relation),
												1, &column, &value, &isnull));
}

/*
 * queue_data.segment_is_whole(segment int) returns boolean
 *
 * The filter with which pg_dump reads a segment.
 *
 * Result: true, if the segment was not truncated since the snapshot of the
 * statement was taken, so that the snapshot shows all that was in it.
 * Errors: 22023 no such segment, 55000 it was truncated.
 * Source: DESIGN, "Truncation is not MVCC".
 */
Datum
sql_queue_segment_is_whole(PG_FUNCTION_ARGS)
{
	int			segment = arg_check_bounds("segment", PG_GETARG_INT32(0), 0,
										   NULL, ALL_SEGMENTS - 1, NULL,
										   "");

	if (!segment_is_whole(segment, GetActiveSnapshot()))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("segment %d of queue_data was emptied since the snapshot was taken",
						segment),
				 errdetail("Messages that were in it then have been consumed, but an older snapshot has to show them."),
				 errhint("Run the dump again; while a program whose application_name is \"pg_dump\" is connected, no table is emptied.")));
	PG_RETURN_BOOL(true);
}

/* --- Runners --- */

/*
 * queue_data.runners() returns setof record (database oid, role oid,
 *		pid integer, state text, since timestamptz, queue_id integer,
 *		message_id bigint)
 *
 * One row for each process or session that runs jobs, of any database; behind
 * the view queue_runners.  queue_id and message_id: the job that it runs, or
 * NULL.
 */
Datum
sql_queue_runners(PG_FUNCTION_ARGS)
{
	static const char *const states[] = {
		[RUNNER_NONE] = "none",
		[RUNNER_STARTING] = "starting",
		[RUNNER_IDLE] = "idle",
		[RUNNER_CALLED] = "called",
		[RUNNER_BUSY] = "busy",
		[RUNNER_GONE] = "gone"
	};
	TimestampTz now = GetCurrentTimestamp();
	int64		monotonic = clock_monotonic();
	Runner	   *runners;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	runners = pool_list(&n, false);
	for (int i = 0; i < n; i++)
	{
		const Runner *runner = &runners[i];
		ApiRow		row = {0};

		api_row_add(&row, ObjectIdGetDatum(runner->database));
		api_row_add(&row, ObjectIdGetDatum(runner->role));
		api_row_add_or_null(&row, Int32GetDatum(runner->pid), runner->pid == 0);
		api_row_add_text(&row, runner->is_session ? "session" :
						 states[runner->state]);

		/* "now" and "monotonic" are the same moment by two clocks. */
		api_row_add(&row,
					TimestampTzGetDatum(now - (monotonic - runner->since)));
		api_row_add_or_null(&row, Int32GetDatum(runner->queue_id),
							runner->queue_id == 0);
		api_row_add_or_null(&row, Int64GetDatum(runner->message_id),
							runner->message_id == 0);
		api_row_put(&row, fcinfo);
	}
	return (Datum) 0;
}

/* --- The router --- */

PG_FUNCTION_INFO_V1(sql_queue_call_settings);

/* In the order of queue_proxy.settings() */
static const char *const call_settings[] = {
	"queue.project",
	"queue.client_id",
	"queue.durable_claims",
	"lock_timeout",
	"transaction_read_only"
};

/*
 * queue_router.call_settings(settings text[]) returns boolean
 *
 * Sets queue.project, queue.client_id, queue.durable_claims, lock_timeout and
 * transaction_read_only, in this order, until the transaction ends.  NULL
 * leaves a setting as it is.  The router calls this in the statement of a
 * call.
 *
 * Result: true.
 * Errors: those of SET; 22023 another number of values.
 */
Datum
sql_queue_call_settings(PG_FUNCTION_ARGS)
{
	Datum	   *values;
	bool	   *nulls;
	int			n;

	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false,
					  TYPALIGN_INT, &values, &nulls, &n);
	if (n != lengthof(call_settings))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must have %d elements, not %d",
						"settings", (int) lengthof(call_settings), n),
				 errhint("Update the extension queue_proxy of the router.")));
	for (int i = 0; i < n; i++)
	{
		const char *current;
		const char *value;

		if (nulls[i])
			continue;
		current = GetConfigOption(call_settings[i], true, false);
		value = TextDatumGetCString(values[i]);

		/* To set a setting to the value that it has takes longer. */
		if (current == NULL || strcmp(current, value) != 0)
			(void) set_config_option(call_settings[i], value,
									 superuser() ? PGC_SUSET : PGC_USERSET,
									 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0,
									 false);
	}
	PG_RETURN_BOOL(true);
}
