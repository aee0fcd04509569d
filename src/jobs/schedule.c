/*-------------------------------------------------------------------------
 *
 * schedule.c
 *	  Recurring jobs: messages that pg_cron has pushed at their times.
 *
 * NOTES
 *	  A schedule is a row of queue_data.schedule, and a job of pg_cron that
 *	  calls job_due with its number, as the role that made it.  pg_cron knows
 *	  when; the row knows what, and when it was pushed last.  So what pg_cron
 *	  runs twice for one due time, after a restart or because somebody has
 *	  copied the job, is pushed once: pg_cron's times are whole minutes, or in
 *	  newer versions a number of seconds apart.
 *
 *	  pg_cron has its tables in one database of the cluster
 *	  (cron.database_name), so schedules are made there.
 *
 *	  A row is used or changed with a lock on its number, which only the role
 *	  that made it, or a superuser, comes to take: rights are checked before.
 *	  So no role can hold up the schedules of another one.  Two roles that make
 *	  schedules of the same name at once wait for each other, as with tables.
 *
 * src/jobs/schedule.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "queue/push.h"
#include "queue/queue_lock.h"
#include "queue/registry.h"
#include "storage/row.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/settings.h"

#define Anum_schedule_id		1
#define Anum_schedule_role		2
#define Anum_schedule_pushed_at	3
#define Anum_schedule_project	4
#define Anum_schedule_name		5
#define Anum_schedule_queue		6
#define Anum_schedule_cron		7
#define Anum_schedule_body		8

#define USECS_PER_CRON	USECS_PER_MINUTE	/* between due times, at least */

PG_FUNCTION_INFO_V1(sql_job_schedule);
PG_FUNCTION_INFO_V1(sql_job_unschedule);
PG_FUNCTION_INFO_V1(sql_job_due);

static void name_keys(ScanKey keys, const char *name);
static HeapTuple fetch_numbered(Relation rel, int32 id);
static HeapTuple lock_named(Relation rel, Relation index, const char *name);
static HeapTuple lock_numbered(Relation rel, int32 id);
static int32 schedule_id(Relation rel, HeapTuple tuple);
static HeapTuple lock_or_insert(Relation rel, Relation index,
								const char *name, HeapTuple new);
static bool has_pg_cron(void);
static void check_owner(Relation rel, HeapTuple tuple);
static void cron_schedule(int32 id, const char *cron, const char *schema);
static void cron_unschedule(int32 id);
static bool was_pushed(TimestampTz pushed_at, const char *cron,
					   TimestampTz now);

static void
name_keys(ScanKey keys, const char *name)
{
	ScanKeyInit(&keys[0], Anum_schedule_project, BTEqualStrategyNumber,
				F_TEXTEQ, CStringGetTextDatum(setting_project));
	ScanKeyInit(&keys[1], Anum_schedule_name, BTEqualStrategyNumber,
				F_TEXTEQ, CStringGetTextDatum(name));
}

static HeapTuple
fetch_numbered(Relation rel, int32 id)
{
	ScanKeyData key;

	ScanKeyInit(&key, Anum_schedule_id, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(id));
	return row_fetch(rel, InvalidOid, &key, 1);
}

/*
 * The row of this name in the session's project, or NULL; a copy.  It is
 * locked, after the current role's right to it was checked.
 */
static HeapTuple
lock_named(Relation rel, Relation index, const char *name)
{
	ScanKeyData keys[2];

	name_keys(keys, name);
	for (;;)
	{
		HeapTuple	tuple = row_fetch(rel, RelationGetRelid(index), keys, 2);
		HeapTuple	locked;

		if (!HeapTupleIsValid(tuple))
			return NULL;
		locked = lock_numbered(rel, schedule_id(rel, tuple));
		if (HeapTupleIsValid(locked))
			return locked;
	}
}

static int32
schedule_id(Relation rel, HeapTuple tuple)
{
	bool		isnull;

	return DatumGetInt32(heap_getattr(tuple, Anum_schedule_id,
									  RelationGetDescr(rel), &isnull));
}

/* The same for the row of this number. */
static HeapTuple
lock_numbered(Relation rel, int32 id)
{
	HeapTuple	tuple = fetch_numbered(rel, id);

	if (!HeapTupleIsValid(tuple))
		return NULL;
	check_owner(rel, tuple);
	queue_lock_schedule(id);

	/* It may have been changed or dropped meanwhile. */
	tuple = fetch_numbered(rel, id);
	if (HeapTupleIsValid(tuple))
		check_owner(rel, tuple);
	return tuple;
}

static bool
has_pg_cron(void)
{
	return OidIsValid(get_extension_oid("pg_cron", true));
}

/* A schedule belongs to the role that made it. */
static void
check_owner(Relation rel, HeapTuple tuple)
{
	TupleDesc	desc = RelationGetDescr(rel);
	bool		isnull;
	Oid			role = DatumGetObjectId(heap_getattr(tuple, Anum_schedule_role,
													 desc, &isnull));
	const char *name = TextDatumGetCString(heap_getattr(tuple,
														Anum_schedule_name,
														desc, &isnull));

	if (role == GetUserId() || superuser())
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for schedule \"%s\"", name),
			 errhint("It belongs to the role that made it.")));
}

/* --- pg_cron's side --- */

static void
cron_schedule(int32 id, const char *cron, const char *schema)
{
	Oid			types[3] = {TEXTOID, TEXTOID, TEXTOID};
	Datum		values[3];

	values[0] = CStringGetTextDatum(psprintf("queue %d", id));
	values[1] = CStringGetTextDatum(cron);
	values[2] = CStringGetTextDatum(psprintf("SELECT %s.job_due(%d)",
											 quote_identifier(schema), id));
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute_with_args("SELECT cron.schedule($1, $2, $3)", 3, types,
							  values, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not call cron.schedule");
	SPI_finish();
}

/* Whoever has made it; it may be gone. */
static void
cron_unschedule(int32 id)
{
	Oid			types[1] = {TEXTOID};
	Datum		values[1];

	values[0] = CStringGetTextDatum(psprintf("queue %d", id));
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute_with_args("SELECT cron.unschedule(jobid) FROM cron.job "
							  "WHERE jobname OPERATOR(pg_catalog.=) $1",
							  1, types, values, NULL, false,
							  0) != SPI_OK_SELECT)
		elog(ERROR, "could not call cron.unschedule");
	SPI_finish();
}

/*
 * Insert a row, unless there is one of that name: then that is returned as by
 * lock_named.  Waits for a transaction that is making one.
 */
static HeapTuple
lock_or_insert(Relation rel, Relation index, const char *name, HeapTuple new)
{
	HeapTuple	old = NULL;
	ScanKeyData keys[2];

	name_keys(keys, name);
	do
	{
		CHECK_FOR_INTERRUPTS();
		if (HeapTupleIsValid(row_find_unique(rel, index, keys, 2)))
			old = lock_named(rel, index, name);
	} while (!HeapTupleIsValid(old) && !row_insert_unique(rel, index, new));
	return old;
}

/*
 * job_schedule(name text, cron text, q text, body jsonb) returns void
 *
 * Has body pushed to queue q, of the session's project, whenever the cron
 * expression says so, at most once for each due time, as the current user.
 * A schedule of that name is replaced.
 *
 * Errors: 55000 pg_cron is not there, 22004 and 22023 arguments, 42501 no
 * right to push, to use pg_cron, or the schedule is somebody else's.
 * Source: MediaWiki has cron call runJobs; Amazon EventBridge for SQS.
 */
Datum
sql_job_schedule(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "name");
	const char *queue_name;
	Queue		queue;
	Relation	rel;
	Relation	index;
	HeapTuple	new;
	HeapTuple	old;
	Datum		values[Natts_schedule];
	bool		isnull[Natts_schedule] = {false};

	queue_prevent("job_schedule()");
	if (PG_ARGISNULL(1))
		arg_missing("cron");
	queue_name = queue_name_arg(fcinfo, 2, "q");
	if (PG_ARGISNULL(3))
		arg_missing("body");
	if (!has_pg_cron())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("job_schedule() needs the extension \"pg_cron\" in this database"),
				 errhint("Install the package postgresql-%d-cron, add pg_cron to \"shared_preload_libraries\", set \"cron.database_name\" to \"%s\", restart the server, and CREATE EXTENSION pg_cron.",
						 PG_VERSION_NUM / 10000,
						 get_database_name(MyDatabaseId))));
	queue_open_for_push(queue_name, &queue);

	rel = catalog_open_schedules(RowExclusiveLock, &index);
	values[Anum_schedule_id - 1] =
		Int32GetDatum((int32) catalog_next_schedule_id());
	values[Anum_schedule_role - 1] = ObjectIdGetDatum(GetUserId());
	values[Anum_schedule_pushed_at - 1] = TimestampTzGetDatum(DT_NOBEGIN);
	values[Anum_schedule_project - 1] = CStringGetTextDatum(setting_project);
	values[Anum_schedule_name - 1] = CStringGetTextDatum(name);
	values[Anum_schedule_queue - 1] = CStringGetTextDatum(queue_name);
	values[Anum_schedule_cron - 1] = PG_GETARG_DATUM(1);
	values[Anum_schedule_body - 1] = PG_GETARG_DATUM(3);
	new = heap_form_tuple(RelationGetDescr(rel), values, isnull);
	old = lock_or_insert(rel, index, name, new);
	if (HeapTupleIsValid(old))
	{
		/* pg_cron identifies a job by its name and the role that made it. */
		values[Anum_schedule_id - 1] = Int32GetDatum(schedule_id(rel, old));
		cron_unschedule(DatumGetInt32(values[Anum_schedule_id - 1]));
		CatalogTupleDelete(rel, &old->t_self);
		CommandCounterIncrement();
		CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), values,
												isnull));
	}
	index_close(index, NoLock);
	table_close(rel, NoLock);
	CommandCounterIncrement();
	cron_schedule(DatumGetInt32(values[Anum_schedule_id - 1]),
				  text_to_cstring(PG_GETARG_TEXT_PP(1)),
				  get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid)));
	PG_RETURN_VOID();
}

/*
 * job_unschedule(name text) returns boolean
 *
 * Ends a schedule.  Result: true: ended; false: there was none.
 * Errors: 22004 and 22023 name, 42501 it is somebody else's.
 */
Datum
sql_job_unschedule(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "name");
	Relation	rel;
	Relation	index;
	HeapTuple	old;

	queue_prevent("job_unschedule()");
	rel = catalog_open_schedules(RowExclusiveLock, &index);
	old = lock_named(rel, index, name);
	if (HeapTupleIsValid(old))
	{
		CatalogTupleDelete(rel, &old->t_self);
		CommandCounterIncrement();
		if (has_pg_cron())
			cron_unschedule(schedule_id(rel, old));
	}
	index_close(index, NoLock);
	table_close(rel, NoLock);
	PG_RETURN_BOOL(HeapTupleIsValid(old));
}

/* Is this due time's push done? */
static bool
was_pushed(TimestampTz pushed_at, const char *cron, TimestampTz now)
{
	int			seconds = 0;
	char		unit[8];

	/* Newer versions know "<n> seconds", from the end of the last one. */
	if (sscanf(cron, " %d %7s", &seconds, unit) == 2 && seconds > 0 &&
		pg_strncasecmp(unit, "second", 6) == 0)
		return pushed_at > now - seconds * USECS_PER_SEC / 2 &&
			pushed_at <= now;
	return pushed_at / USECS_PER_CRON == now / USECS_PER_CRON;
}

/*
 * job_due(schedule int) returns boolean
 *
 * What pg_cron calls: pushes a schedule's message, unless that was done.
 *
 * Result: true: pushed.  False: it was already, or there is no such schedule.
 * Errors: 42501 it is somebody else's; as queue_push.
 */
Datum
sql_job_due(PG_FUNCTION_ARGS)
{
	NewMessage	message = {0};
	Relation	rel;
	Relation	index;
	HeapTuple	tuple;
	Datum		values[Natts_schedule];
	bool		isnull[Natts_schedule];
	bool		replace[Natts_schedule] = {false};
	TimestampTz now;

	queue_prevent("job_due()");
	if (PG_ARGISNULL(0))
		arg_missing("schedule");
	rel = catalog_open_schedules(RowExclusiveLock, &index);
	index_close(index, NoLock);
	tuple = lock_numbered(rel, PG_GETARG_INT32(0));
	if (!HeapTupleIsValid(tuple))
	{
		table_close(rel, NoLock);
		PG_RETURN_BOOL(false);
	}
	heap_deform_tuple(tuple, RelationGetDescr(rel), values, isnull);

	/* The clock is read with the lock held. */
	now = GetCurrentTimestamp();
	if (was_pushed(DatumGetTimestampTz(values[Anum_schedule_pushed_at - 1]),
				   TextDatumGetCString(values[Anum_schedule_cron - 1]), now))
	{
		table_close(rel, NoLock);
		PG_RETURN_BOOL(false);
	}
	replace[Anum_schedule_pushed_at - 1] = true;
	values[Anum_schedule_pushed_at - 1] = TimestampTzGetDatum(now);
	CatalogTupleUpdate(rel, &tuple->t_self,
					   heap_modify_tuple(tuple, RelationGetDescr(rel), values,
										 isnull, replace));
	table_close(rel, NoLock);

	settings_set_label("queue.project",
					TextDatumGetCString(values[Anum_schedule_project - 1]),
					true);
	message.body = DatumGetJsonbP(values[Anum_schedule_body - 1]);
	message.ttl = PUSH_DEFAULT;
	message.delay = PUSH_DEFAULT;
	push_message(queue_name_text(DatumGetTextPP(values[Anum_schedule_queue - 1]),
								 "q"),
				 &message);
	PG_RETURN_BOOL(true);
}
