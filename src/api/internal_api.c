/*-------------------------------------------------------------------------
 *
 * internal_api.c
 *	  The SQL functions of schema queue_data: for the extension's own views,
 *	  triggers and dumps.
 *
 * NOTES
 *	  Users do not call these functions, except for record_roles().  They are
 *	  grouped by the object that calls them.
 *
 * src/api/internal_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "api/arguments.h"
#include "jobs/runner_pool.h"
#include "queue/role.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "storage/pending.h"
#include "storage/segment_recycle.h"
#include "util/args.h"
#include "util/clock.h"
#include "util/compat.h"

#define Natts_workers	(7 + WORKER_COUNTERS)
#define Natts_runners	7

PG_FUNCTION_INFO_V1(sql_queue_record_roles);
PG_FUNCTION_INFO_V1(sql_queue_roles_written);
PG_FUNCTION_INFO_V1(sql_queue_roles_exist);
PG_FUNCTION_INFO_V1(sql_queue_workers);
PG_FUNCTION_INFO_V1(sql_queue_restored);
PG_FUNCTION_INFO_V1(sql_queue_segment_is_whole);
PG_FUNCTION_INFO_V1(sql_queue_runners);

/* --- Roles that queues refer to --- */

/*
 * queue_data.record_roles() returns void
 *
 * Records the roles of all queues anew: after pg_upgrade, or when a role
 * cannot be dropped although queue_data.queue_roles does not show it, which
 * comes of two transactions that changed the queues of one role at once.
 */
Datum
sql_queue_record_roles(PG_FUNCTION_ARGS)
{
	api_check_can_write("record_roles()");
	role_record_all();
	PG_RETURN_VOID();
}

/* The trigger on queue_data.queue: rows were written with SQL. */
Datum
sql_queue_roles_written(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" was not called by trigger manager",
						"roles_written")));
	CommandCounterIncrement();	/* to see the rows */
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
	char	   *name;

	if (PG_ARGISNULL(0))
		arg_missing("name");
	name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	if (!PG_ARGISNULL(1))
		role_check_exists(name, PG_GETARG_OID(1));
	for (int i = 2; i < PG_NARGS(); i++)
	{
		Datum	   *roles;
		int			n;

		if (PG_ARGISNULL(i))
			continue;
		deconstruct_array(PG_GETARG_ARRAYTYPE_P(i), REGROLEOID, sizeof(Oid),
						  true, TYPALIGN_INT, &roles, NULL, &n);
		for (int j = 0; j < n; j++)
			role_check_exists(name, DatumGetObjectId(roles[j]));
	}
	PG_RETURN_BOOL(true);
}

/* --- Views of processes --- */

static Datum
time_or_null(TimestampTz time, bool *isnull)
{
	*isnull = time == 0 || !IS_VALID_TIMESTAMP(time);
	return TimestampTzGetDatum(time);
}

/*
 * queue_data.workers() returns a row for each database that has a
 * worker, or had or shall have one; behind the view queue_workers.
 */
Datum
sql_queue_workers(PG_FUNCTION_ARGS)
{
	static const char *const states[] = {"none", "wanted", "starting", "idle",
	"busy"};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	if (!shmem_exists())
		return (Datum) 0;
	for (int i = 0; i < DATABASES_MAX; i++)
	{
		DatabaseState state;
		Datum		values[Natts_workers];
		bool		isnull[Natts_workers] = {false};
		TimestampTz next;

		LWLockAcquire(shmem_database_lock(), LW_SHARED);
		state = shmem_databases()[i];
		LWLockRelease(shmem_database_lock());
		if (!OidIsValid(state.database) || state.state == WORKER_NONE)
			continue;
		next = (TimestampTz) pg_atomic_read_u64(&state.next_due);
		values[0] = ObjectIdGetDatum(state.database);
		values[1] = CStringGetTextDatum(states[state.state]);
		values[2] = Int32GetDatum(state.pid);
		isnull[2] = state.pid == 0;
		values[3] = time_or_null(state.last_run, &isnull[3]);
		values[4] = time_or_null(next, &isnull[4]);
		for (int j = 0; j < WORKER_COUNTERS; j++)
			values[5 + j] =
				Int64GetDatum((int64) pg_atomic_read_u64(&state.counters[j]));
		values[5 + WORKER_COUNTERS] = CStringGetTextDatum(state.last_error);
		isnull[5 + WORKER_COUNTERS] = state.last_error[0] == '\0';
		values[6 + WORKER_COUNTERS] =
			time_or_null(state.last_error_at, &isnull[6 + WORKER_COUNTERS]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 isnull);
	}
	return (Datum) 0;
}

/* --- Rows that other SQL writes or reads --- */

/*
 * queue_data.restored() returns trigger
 *
 * The trigger on the tables of queues, messages and handlers: rows were
 * written by other SQL than the extension's functions (a restore, the initial
 * copy of a subscription).  When that commits, sessions and the worker forget
 * what they know of these tables.
 *
 * Errors: 39P01 called, but not as a trigger.
 */
Datum
sql_queue_restored(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" was not called by trigger manager",
						"queue_data.restored")));
	pending_record_restore(RelationGetRelid(((TriggerData *) fcinfo->context)->tg_relation));
	PG_RETURN_POINTER(NULL);
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
										   NULL, QUEUE_RELATIONS - 1, NULL,
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
 * the view queue_runners.  queue_id and message_id: what it works on, or NULL.
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
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Runner	   *runners;
	int			n;
	TimestampTz now = GetCurrentTimestamp();
	int64		now_monotonic = clock_monotonic();

	InitMaterializedSRF(fcinfo, 0);
	runners = pool_list(&n);
	for (int i = 0; i < n; i++)
	{
		const Runner *runner = &runners[i];
		Datum		values[Natts_runners];
		bool		isnull[Natts_runners] = {false};

		values[0] = ObjectIdGetDatum(runner->database);
		values[1] = ObjectIdGetDatum(runner->role);
		values[2] = Int32GetDatum(runner->pid);
		isnull[2] = runner->pid == 0;
		values[3] = CStringGetTextDatum(runner->is_session ? "session" :
										states[runner->state]);
		values[4] = TimestampTzGetDatum(now -
										(now_monotonic - runner->since));
		values[5] = Int32GetDatum(runner->queue_id);
		isnull[5] = runner->queue_id == 0;
		values[6] = Int64GetDatum(runner->message_id);
		isnull[6] = runner->message_id == 0;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 isnull);
	}
	return (Datum) 0;
}
