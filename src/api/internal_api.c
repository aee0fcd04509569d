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
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "queue/registry.h"
#include "queue/role.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "util/args.h"
#include "util/compat.h"

#define Natts_workers	(7 + WORKER_COUNTERS)

PG_FUNCTION_INFO_V1(sql_queue_record_roles);
PG_FUNCTION_INFO_V1(sql_queue_roles_written);
PG_FUNCTION_INFO_V1(sql_queue_roles_exist);
PG_FUNCTION_INFO_V1(sql_queue_workers);

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
	queue_prevent("record_roles()");
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
