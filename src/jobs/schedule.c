/*-------------------------------------------------------------------------
 *
 * schedule.c
 *	  Schedules: messages that pg_cron has pushed at given times.
 *
 * NOTES
 *	  A schedule is a row of queue_data.schedule plus a job of pg_cron, which
 *	  calls job_due() with the number of the row, as the role that created the
 *	  schedule.  pg_cron knows when to push; the row knows what, and when that
 *	  was last done.  pg_cron may run a job twice for one due time, after a
 *	  restart or when its job was copied; the row makes that one push.  Due
 *	  times are whole minutes or, in newer versions of pg_cron, a number of
 *	  seconds apart.
 *
 *	  pg_cron keeps its tables in one database of the cluster
 *	  (cron.database_name), so schedules can be created only there.
 *
 *	  Locking: a row is read for a change, or changed, under a lock on its
 *	  number that lasts until the end of the transaction.  Ownership is checked
 *	  before the lock is taken, so only the role that created a schedule, or a
 *	  superuser, can hold it up.  Two roles that create schedules of the same
 *	  name at the same time wait for each other, as with tables.
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
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "catalog/numbers.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "jobs/cron.h"
#include "jobs/schedule.h"
#include "push/push.h"
#include "queue/acl.h"
#include "queue/missing_queue.h"
#include "queue/queue_lock.h"
#include "queue/registry.h"
#include "storage/row.h"
#include "util/settings.h"

/* Due times in cron syntax are at least this far apart. */
#define USECS_PER_CRON	USECS_PER_MINUTE

/*
 * The first columns of a row, which have a fixed width and are never null, so
 * that this struct lies over them.
 */
typedef struct ScheduleForm
{
	int32		id;
	Oid			role;
	TimestampTz pushed_at;
} ScheduleForm;

#define SCHEDULE_FORM(tuple) ((ScheduleForm *) GETSTRUCT(tuple))

static void init_name_keys(ScanKey keys, const char *name);
static void check_schedule_owner(Relation rel, HeapTuple tuple);
static HeapTuple fetch_schedule(Relation rel, int32 id);
static HeapTuple lock_schedule(Relation rel, int32 id);
static HeapTuple lock_schedule_of_name(Relation rel, Oid index,
									   const char *name);
static HeapTuple insert_or_lock_schedule(Relation rel, Relation index,
										 const char *name, HeapTuple new);
static Relation begin_schedule_scan(RowScan *scan);
static bool was_pushed(TimestampTz pushed_at, const char *cron,
					   TimestampTz now);

/* --- Rows --- */

/* Keys that find a schedule of the session's project by name. */
static void
init_name_keys(ScanKey keys, const char *name)
{
	ScanKeyInit(&keys[0], Anum_schedule_project, BTEqualStrategyNumber,
				F_TEXTEQ, CStringGetTextDatum(setting_project));
	ScanKeyInit(&keys[1], Anum_schedule_name, BTEqualStrategyNumber,
				F_TEXTEQ, CStringGetTextDatum(name));
}

/* A schedule belongs to the role that created it. */
static void
check_schedule_owner(Relation rel, HeapTuple tuple)
{
	Oid			role = SCHEDULE_FORM(tuple)->role;
	bool		isnull;
	Datum		name = heap_getattr(tuple, Anum_schedule_name,
									RelationGetDescr(rel), &isnull);

	if (role == GetUserId() || superuser())
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for schedule \"%s\"",
					TextDatumGetCString(name)),
			 errhint("Only the role that created it, %s, and superusers can change it: SET ROLE, or log in as one of these.",
					 acl_role_identifier(role))));
}

static HeapTuple
fetch_schedule(Relation rel, int32 id)
{
	ScanKeyData key;

	ScanKeyInit(&key, Anum_schedule_id, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(id));
	return row_fetch(rel, InvalidOid, &key, 1);
}

/*
 * Lock the schedule of this number, after checking that it belongs to the
 * current role.  Returns a copy of its row, or NULL if there is none.
 */
static HeapTuple
lock_schedule(Relation rel, int32 id)
{
	HeapTuple	tuple = fetch_schedule(rel, id);

	if (!HeapTupleIsValid(tuple))
		return NULL;
	check_schedule_owner(rel, tuple);
	queue_lock_schedule(id);

	/* It may have been changed or dropped in the meantime. */
	tuple = fetch_schedule(rel, id);
	if (HeapTupleIsValid(tuple))
		check_schedule_owner(rel, tuple);
	return tuple;
}

/*
 * Lock the schedule of this name in the session's project, after checking
 * that it belongs to the current role.  Returns a copy of its row, or NULL if
 * there is none.
 */
static HeapTuple
lock_schedule_of_name(Relation rel, Oid index, const char *name)
{
	ScanKeyData keys[2];

	init_name_keys(keys, name);
	for (;;)
	{
		HeapTuple	tuple = row_fetch(rel, index, keys, 2);
		HeapTuple	locked;

		if (!HeapTupleIsValid(tuple))
			return NULL;
		locked = lock_schedule(rel, SCHEDULE_FORM(tuple)->id);

		/*
		 * Otherwise it was dropped meanwhile; another one may have the name
		 * by now.
		 */
		if (HeapTupleIsValid(locked))
			return locked;
	}
}

/*
 * Insert a row and return NULL, unless there is a schedule of that name: then
 * return the row of that, locked.  Waits for a concurrent transaction that
 * inserts one.
 */
static HeapTuple
insert_or_lock_schedule(Relation rel, Relation index, const char *name,
						HeapTuple new)
{
	HeapTuple	old = NULL;
	ScanKeyData keys[2];

	init_name_keys(keys, name);
	do
	{
		CHECK_FOR_INTERRUPTS();
		if (HeapTupleIsValid(row_find_unique(rel, index, keys, 2, NULL, NULL)))
			old = lock_schedule_of_name(rel, RelationGetRelid(index), name);
	} while (!HeapTupleIsValid(old) && !row_insert_unique(rel, index, new));
	return old;
}

/* --- Schedules --- */

/*
 * Create a schedule of the session's project, or replace the one of that
 * name.
 */
void
schedule_create(const char *name, const char *cron, const char *queue_name,
				Jsonb *body, const char *schema)
{
	Queue		queue;
	Relation	rel;
	Relation	index;
	HeapTuple	new;
	HeapTuple	old;
	Datum		values[Natts_schedule];
	bool		isnull[Natts_schedule] = {false};
	int32		id;

	cron_require();
	if (!queue_open_or_notice(queue_name, QUEUE_PUSH, &queue))
		queue_open_or_create(queue_name, QUEUE_PUSH, &queue);
	rel = catalog_open_with_index(CATALOG_SCHEDULE, RowExclusiveLock,
								  &index);
	id = numbers_next_schedule_id();
	values[Anum_schedule_id - 1] = Int32GetDatum(id);
	values[Anum_schedule_role - 1] = ObjectIdGetDatum(GetUserId());
	values[Anum_schedule_pushed_at - 1] = TimestampTzGetDatum(DT_NOBEGIN);
	values[Anum_schedule_project - 1] = CStringGetTextDatum(setting_project);
	values[Anum_schedule_name - 1] = CStringGetTextDatum(name);
	values[Anum_schedule_queue - 1] = CStringGetTextDatum(queue_name);
	values[Anum_schedule_cron - 1] = CStringGetTextDatum(cron);
	values[Anum_schedule_body - 1] = JsonbPGetDatum(body);
	new = heap_form_tuple(RelationGetDescr(rel), values, isnull);
	old = insert_or_lock_schedule(rel, index, name, new);
	if (HeapTupleIsValid(old))
	{
		/*
		 * pg_cron identifies a job by its name and its role, which need not
		 * be those of the new schedule: so drop the old job.
		 */
		id = SCHEDULE_FORM(old)->id;
		cron_unschedule(id);
		CatalogTupleDelete(rel, &old->t_self);
		CommandCounterIncrement();
		SCHEDULE_FORM(new)->id = id;
		CatalogTupleInsert(rel, new);
	}
	index_close(index, NoLock);
	table_close(rel, NoLock);
	CommandCounterIncrement();
	cron_schedule(id, name, queue_name, cron, schema);
	cron_warn(name, queue_name);
}

/* Drop a schedule.  Returns false if there is none of that name. */
bool
schedule_drop(const char *name)
{
	Oid			index;
	Relation	rel = catalog_open(CATALOG_SCHEDULE, RowExclusiveLock, &index);
	HeapTuple	old = lock_schedule_of_name(rel, index, name);

	if (HeapTupleIsValid(old))
	{
		CatalogTupleDelete(rel, &old->t_self);
		CommandCounterIncrement();
		if (cron_exists())
			cron_unschedule(SCHEDULE_FORM(old)->id);
	}
	table_close(rel, NoLock);
	return HeapTupleIsValid(old);
}

/* Returns whether the message of the current due time was already pushed. */
static bool
was_pushed(TimestampTz pushed_at, const char *cron, TimestampTz now)
{
	int			seconds = 0;
	char		unit[8];

	/*
	 * Newer versions of pg_cron accept "<n> seconds", counted from the end of
	 * the last run.  So two due times are at least that far apart.
	 */
	if (sscanf(cron, " %d %7s", &seconds, unit) == 2 && seconds > 0 &&
		pg_strncasecmp(unit, "second", 6) == 0)
		return pushed_at > now - seconds * USECS_PER_SEC / 2 &&
			pushed_at <= now;
	return pushed_at / USECS_PER_CRON == now / USECS_PER_CRON;
}

/*
 * Push the message of a schedule, unless that was done for the current due
 * time.  Returns false if it was, or if there is no such schedule.
 */
bool
schedule_push(int32 id)
{
	NewMessage	message = {0};
	Relation	rel = catalog_open(CATALOG_SCHEDULE, RowExclusiveLock, NULL);
	HeapTuple	tuple = lock_schedule(rel, id);
	Datum		values[Natts_schedule];
	bool		isnull[Natts_schedule];
	bool		is_due = false;
	char	   *queue;

	if (HeapTupleIsValid(tuple))
	{
		/* Read the clock with the lock held: it never precedes pushed_at. */
		TimestampTz now = GetCurrentTimestamp();
		Datum		cron;

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, isnull);
		cron = values[Anum_schedule_cron - 1];
		is_due = !was_pushed(SCHEDULE_FORM(tuple)->pushed_at,
							 TextDatumGetCString(cron), now);
		if (is_due)
		{
			SCHEDULE_FORM(tuple)->pushed_at = now;
			CatalogTupleUpdate(rel, &tuple->t_self, tuple);
		}
	}
	table_close(rel, NoLock);
	if (!is_due)
		return false;

	settings_set("queue.project",
				 TextDatumGetCString(values[Anum_schedule_project - 1]),
				 true);
	message.body = DatumGetJsonbP(values[Anum_schedule_body - 1]);
	message.ttl = PUSH_DEFAULT;
	message.delay = PUSH_DEFAULT;
	queue = TextDatumGetCString(values[Anum_schedule_queue - 1]);
	queue_check_name(queue, "q");
	push_message(queue, &message);
	return true;
}

/* Begin to scan the schedules of the session's project. */
static Relation
begin_schedule_scan(RowScan *scan)
{
	Oid			index;
	Relation	rel = catalog_open(CATALOG_SCHEDULE, AccessShareLock, &index);
	ScanKeyData key;

	ScanKeyInit(&key, Anum_schedule_project, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(setting_project));
	row_scan_begin(scan, rel, index, &key, 1);
	return rel;
}

/*
 * Call a function with each schedule of the session's project that the current
 * role may see: its own, and those that push to a queue whose owner or admin
 * it is.
 */
void
schedule_list(ScheduleAction action, void *arg)
{
	bool		has_cron = cron_exists();
	RowScan		scan;
	Relation	rel = begin_schedule_scan(&scan);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		Datum		values[Natts_schedule];
		bool		isnull[Natts_schedule];
		Schedule	schedule;
		Oid			role = SCHEDULE_FORM(tuple)->role;
		TimestampTz at;

		CHECK_FOR_INTERRUPTS();
		heap_deform_tuple(tuple, RelationGetDescr(rel), values, isnull);
		schedule.queue = TextDatumGetCString(values[Anum_schedule_queue - 1]);
		if (!has_privs_of_role(GetUserId(), role) &&
			!queue_may_inspect(0, schedule.queue, GetUserId()))
			continue;
		schedule.name = TextDatumGetCString(values[Anum_schedule_name - 1]);
		schedule.cron = TextDatumGetCString(values[Anum_schedule_cron - 1]);
		schedule.body = values[Anum_schedule_body - 1];
		schedule.pushed_at = SCHEDULE_FORM(tuple)->pushed_at;
		if (!has_cron ||
			!cron_failure(SCHEDULE_FORM(tuple)->id, role, &schedule.error, &at))
			schedule.error = NULL;
		action(&schedule, arg);
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
}

/*
 * Returns whether the latest run has failed of a schedule that pushes to this
 * queue, of the session's project; if so, *error says why.  *at is DT_NOBEGIN
 * if it is unknown when.
 */
bool
schedule_failure(const char *queue_name, char **error, TimestampTz *at)
{
	Relation	rel;
	RowScan		scan;
	HeapTuple	tuple;
	bool		failed = false;

	if (!cron_exists())
		return false;
	rel = begin_schedule_scan(&scan);
	while (!failed && HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		Datum		values[Natts_schedule];
		bool		isnull[Natts_schedule];
		char	   *message;

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, isnull);
		if (strcmp(TextDatumGetCString(values[Anum_schedule_queue - 1]),
				   queue_name) != 0)
			continue;
		failed = cron_failure(DatumGetInt32(values[Anum_schedule_id - 1]),
							  DatumGetObjectId(values[Anum_schedule_role - 1]),
							  &message, at);
		if (failed)
			*error = psprintf("schedule \"%s\" failed: %s",
							  TextDatumGetCString(values[Anum_schedule_name - 1]),
							  message);
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
	return failed;
}
