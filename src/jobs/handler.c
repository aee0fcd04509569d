/*-------------------------------------------------------------------------
 *
 * handler.c
 *	  Handlers: which function runs the jobs of a queue, and how.
 *
 * NOTES
 *	  A handler is a row of queue_data.handler.  It names its functions by
 *	  schema, name and kind of argument, because an OID would not outlive a
 *	  dump or pg_upgrade.  handler_check.c says whether the function of that
 *	  name may be run now.
 *
 *	  Locking: a row is inserted, changed or deleted with the queue opened for
 *	  QUEUE_ALTER.  The exception is next_at, which is changed in place under
 *	  a lock of its own (LOCK_RATE).
 *
 *	  Processes keep handlers in memory.  The queue's invalidation message
 *	  reports each change except that of next_at.  But it is sent after the
 *	  commit has woken the worker, which must not act on what it read before
 *	  and go back to sleep.  So the transaction also increases a counter in
 *	  shared memory before it wakes the worker.
 *
 * src/jobs/handler.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "commands/queue_cmds.h"
#include "jobs/handler.h"
#include "jobs/handler_check.h"
#include "queue/queue_lock.h"
#include "queue/registry.h"
#include "shmem/database_state.h"
#include "storage/pending.h"
#include "storage/row.h"
#include "util/settings.h"

#define DEFAULT_MAX_CLAIM_COUNT	"{\"_max_claim_count\": 12}"

/* The part of a second's jobs that may begin at once */
#define RATE_BURST				10

/* The longest time between two jobs, in microseconds */
#define INTERVAL_MAX			(365.0 * USECS_PER_DAY)

/*
 * The first columns of a row, which have a fixed width and are never null, so
 * that this struct lies over them.
 */
typedef struct HandlerForm
{
	int32		queue_id;
	Oid			role;
	int32		concurrency;
	int32		timeout;
	float4		rate;
	TimestampTz next_at;
} HandlerForm;

#define HANDLER_FORM(tuple) ((HandlerForm *) GETSTRUCT(tuple))

static HeapTuple fetch_handler(Relation rel, Oid index, int32 queue_id);
static void read_handler_row(TupleDesc desc, HeapTuple tuple,
							 HandlerRow *row);
static Relation begin_handler_scan(RowScan *scan, HandlerVersion *version);
static HeapTuple form_handler_row(Relation rel, const HandlerRow *row);
static void set_next_at(HeapTuple tuple, void *arg);
static void write_next_at(const HandlerRow *row);
static double interval_of(const HandlerRow *row);

/* --- Reading --- */

/* Returns a copy of the row of a queue's handler, or NULL if it has none. */
static HeapTuple
fetch_handler(Relation rel, Oid index, int32 queue_id)
{
	ScanKeyData key;

	ScanKeyInit(&key, Anum_handler_queue_id, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	return row_fetch(rel, index, &key, 1);
}

static void
read_handler_row(TupleDesc desc, HeapTuple tuple, HandlerRow *row)
{
	Datum		values[Natts_handler];
	bool		isnull[Natts_handler];

	heap_deform_tuple(tuple, desc, values, isnull);
#define VALUE(attribute) values[Anum_handler_##attribute - 1]
#define TEXT(attribute) TextDatumGetCString(VALUE(attribute))
	row->queue_id = DatumGetInt32(VALUE(queue_id));
	row->role = DatumGetObjectId(VALUE(role));
	row->options.concurrency = DatumGetInt32(VALUE(concurrency));
	row->options.timeout = DatumGetInt32(VALUE(timeout));
	row->options.rate = DatumGetFloat4(VALUE(rate));
	row->next_at = DatumGetTimestampTz(VALUE(next_at));
	row->logs_in = DatumGetBool(VALUE(logs_in));
	row->search_path = TEXT(search_path);
	row->function.takes_jsonb = DatumGetBool(VALUE(takes_jsonb));
	row->function.schema = TEXT(function_schema);
	row->function.name = TEXT(function_name);

	/* The columns of the teardown function are all null, or none is. */
	if (!isnull[Anum_handler_teardown_schema - 1] &&
		!isnull[Anum_handler_teardown_name - 1])
	{
		row->teardown.takes_jsonb = DatumGetBool(VALUE(teardown_takes_jsonb));
		row->teardown.schema = TEXT(teardown_schema);
		row->teardown.name = TEXT(teardown_name);
	}
	if (!isnull[Anum_handler_loaded_by - 1])
		row->loaded_by = DatumGetTimestampTz(VALUE(loaded_by));
#undef TEXT
#undef VALUE
}

/* Begin to scan all handlers, in the order of their queues. */
static Relation
begin_handler_scan(RowScan *scan, HandlerVersion *version)
{
	Relation	rel;
	Oid			index;

	/*
	 * We must do this before the snapshot is taken, because that may or may
	 * not show a change that is made in between.
	 */
	version->generation = catalog_generation();
	version->changes = database_handler_changes();
	rel = catalog_open(CATALOG_HANDLER, AccessShareLock, &index);
	row_scan_begin(scan, rel, index, NULL, 0);
	return rel;
}

/*
 * Read all handlers of the database that a role has bound, or any role if
 * that is InvalidOid.
 */
void
handler_list_read(HandlerList *list, Oid role)
{
	int			size = 16;
	MemoryContext old;
	Relation	rel;
	RowScan		scan;
	HeapTuple	tuple;

	MemoryContextReset(list->context);
	old = MemoryContextSwitchTo(list->context);
	list->items = palloc(size * sizeof(Handler));
	list->n = 0;

	/*
	 * DROP EXTENSION locks the table of queues, which is read below, before
	 * that of handlers.
	 */
	table_close(catalog_open_queues(AccessShareLock), NoLock);
	rel = begin_handler_scan(&scan, &list->version);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		Handler    *handler;

		if (OidIsValid(role) && HANDLER_FORM(tuple)->role != role)
			continue;
		if (list->n == size)
		{
			size *= 2;
			list->items = repalloc_huge(list->items, size * sizeof(Handler));
		}
		handler = &list->items[list->n];
		memset(handler, 0, sizeof(Handler));
		read_handler_row(RelationGetDescr(rel), tuple, &handler->row);

		/*
		 * We leave out a queue that is on another server, or was dropped
		 * since.
		 */
		if (queue_local_summary(handler->row.queue_id, &handler->queue))
			list->n++;
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
	MemoryContextSwitchTo(old);
}

/* Read the handler of a queue.  Returns false if it has none. */
bool
handler_read(int32 queue_id, Handler *handler)
{
	Oid			index;
	Relation	rel = catalog_open(CATALOG_HANDLER, AccessShareLock, &index);
	HeapTuple	tuple = fetch_handler(rel, index, queue_id);

	memset(handler, 0, sizeof(Handler));
	if (HeapTupleIsValid(tuple))
		read_handler_row(RelationGetDescr(rel), tuple, &handler->row);
	table_close(rel, AccessShareLock);
	return HeapTupleIsValid(tuple) &&
		queue_local_summary(queue_id, &handler->queue);
}

/*
 * Returns summaries of all handlers, in the order of their queues, without
 * reading the queues.
 */
HandlerSummary *
handler_summaries(int *n, HandlerVersion *version)
{
	int			size = 64;
	HandlerSummary *summaries = palloc(size * sizeof(HandlerSummary));
	RowScan		scan;
	Relation	rel = begin_handler_scan(&scan, version);
	HeapTuple	tuple;

	*n = 0;
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		HandlerForm *form = HANDLER_FORM(tuple);
		HandlerSummary *summary;

		if (*n == size)
		{
			size *= 2;
			summaries = repalloc_huge(summaries,
									  size * sizeof(HandlerSummary));
		}
		summary = &summaries[(*n)++];
		memset(summary, 0, sizeof(HandlerSummary));
		summary->queue_id = form->queue_id;
		summary->role = form->role;
		summary->concurrency = form->concurrency;
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
	return summaries;
}

/*
 * Returns whether no handler has changed since this version was read; zeros
 * stand for handlers that have not been read.
 */
bool
handler_is_current(const HandlerVersion *version)
{
	return version->generation == catalog_generation() &&
		version->changes == database_handler_changes();
}

/* Returns for how many seconds a job may run. */
int
handler_time_limit(const Handler *handler)
{
	int			timeout = handler->row.options.timeout;

	return timeout == 0 ? setting_max_handler_time :
		Min(timeout, setting_max_handler_time);
}

/* --- Changing --- */

static HeapTuple
form_handler_row(Relation rel, const HandlerRow *row)
{
	Datum		values[Natts_handler] = {0};
	bool		isnull[Natts_handler];
	TimestampTz now = GetCurrentTimestamp();

	/* A column that is not set is null: loaded_by, and perhaps the teardown */
	memset(isnull, true, sizeof(isnull));
#define SET(attribute, value) \
	(values[Anum_handler_##attribute - 1] = (value), \
	 isnull[Anum_handler_##attribute - 1] = false)
	SET(queue_id, Int32GetDatum(row->queue_id));
	SET(role, ObjectIdGetDatum(row->role));
	SET(concurrency, Int32GetDatum(row->options.concurrency));
	SET(timeout, Int32GetDatum(row->options.timeout));
	SET(rate, Float4GetDatum(row->options.rate));
	SET(next_at, TimestampTzGetDatum(now));
	SET(bound_at, TimestampTzGetDatum(now));
	SET(logs_in, BoolGetDatum(row->logs_in));
	SET(search_path, CStringGetTextDatum(row->search_path));
	SET(takes_jsonb, BoolGetDatum(row->function.takes_jsonb));
	SET(function_schema, CStringGetTextDatum(row->function.schema));
	SET(function_name, CStringGetTextDatum(row->function.name));
	if (row->teardown.name != NULL)
	{
		SET(teardown_takes_jsonb, BoolGetDatum(row->teardown.takes_jsonb));
		SET(teardown_schema, CStringGetTextDatum(row->teardown.schema));
		SET(teardown_name, CStringGetTextDatum(row->teardown.name));
	}
#undef SET
	return heap_form_tuple(RelationGetDescr(rel), values, isnull);
}

/*
 * Bind a queue to a function, and perhaps a teardown function (or
 * InvalidOid), as the current role.
 */
void
handler_bind(const char *queue_name, Oid function, Oid teardown,
			 const HandlerOptions *options)
{
	HandlerRow	row = {0};
	Queue		queue;
	Relation	rel;

	queue_open_or_create(queue_name, QUEUE_ALTER, &queue);
	row.queue_id = queue.id;
	row.role = GetUserId();
	row.options = *options;
	handler_check_function(function, false, &row.function);
	if (OidIsValid(teardown))
		handler_check_function(teardown, true, &row.teardown);
	row.logs_in = handler_login_problem(row.role) == NULL;
	row.search_path = namespace_search_path;

	row_delete_of_queue(CATALOG_HANDLER, queue.id);
	CommandCounterIncrement();
	rel = catalog_open(CATALOG_HANDLER, RowExclusiveLock, NULL);
	CatalogTupleInsert(rel, form_handler_row(rel, &row));
	table_close(rel, NoLock);
	queue_invalidate();
	database_record_change(CHANGE_HANDLERS);

	/* Without a limit, a job that always fails would be retried for ever. */
	if (queue.max_claim_count < 0)
	{
		Datum		patch = DirectFunctionCall1(jsonb_in,
												CStringGetDatum(DEFAULT_MAX_CLAIM_COUNT));

		(void) queue_update_metadata(queue_name, DatumGetJsonbP(patch));
	}

	/*
	 * The queue may have messages already, of which a runner is to be told.
	 */
	pending_record_queue(queue.id, TARGET_QUEUE, LANE_WITHOUT_KEY);
}

/* Remove the handler of a queue, if it has one. */
void
handler_unbind(const char *queue_name)
{
	Queue		queue;

	queue_open_existing(queue_name, QUEUE_ALTER, &queue);
	row_delete_of_queue(CATALOG_HANDLER, queue.id);
	queue_invalidate();
	database_record_change(CHANGE_HANDLERS);
}

/* --- The rate of jobs --- */

static void
set_next_at(HeapTuple tuple, void *arg)
{
	HANDLER_FORM(tuple)->next_at = ((const HandlerRow *) arg)->next_at;
}

/*
 * Write next_at in place: this leaves no dead row versions, and does not
 * conflict with a session that binds the handler again.
 */
static void
write_next_at(const HandlerRow *row)
{
	Oid			index;
	Relation	rel = catalog_open(CATALOG_HANDLER, RowExclusiveLock, &index);
	HeapTuple	tuple;

	/* The snapshot keeps the row where it was found. */
	PushActiveSnapshot(GetLatestSnapshot());
	tuple = fetch_handler(rel, index, row->queue_id);
	if (HeapTupleIsValid(tuple))
		(void) row_act_in_place(rel, &tuple->t_self, true, set_next_at,
								unconstify(HandlerRow *, row));
	PopActiveSnapshot();
	table_close(rel, NoLock);
}

/*
 * Returns the microseconds between two jobs.  Any rate above zero is valid,
 * so the time is bounded lest it overflow.
 */
static double
interval_of(const HandlerRow *row)
{
	return Min(USECS_PER_SEC / row->options.rate, INTERVAL_MAX);
}

/*
 * Returns how many jobs may begin now by the handler's rate.  If none may,
 * row.next_at says when the next one may.  Locks the rate until the end of
 * the transaction.
 */
int
handler_allowance(Handler *handler, TimestampTz now)
{
	HandlerRow *row = &handler->row;
	double		interval = interval_of(row);
	double		burst = Max(1.0, row->options.rate / RATE_BURST);
	Handler		current;

	(void) queue_lock_part(row->queue_id, LOCK_RATE, ExclusiveLock, true);
	if (!handler_read(row->queue_id, &current))
		return 0;
	row->next_at = current.row.next_at;

	/* Only a burst of the jobs that could have begun may be made up for. */
	row->next_at = Max(row->next_at,
					   now - (TimestampTz) ((burst - 1) * interval));

	/*
	 * It is more than one interval ahead only if the clock was set back.
	 * Write that down, so that the wait is not longer than one interval.
	 */
	if (row->next_at > now + (TimestampTz) interval)
	{
		row->next_at = now + (TimestampTz) interval;
		write_next_at(row);
	}
	if (row->next_at > now)
		return 0;
	return (int) Min((now - row->next_at) / interval + 1, INT_MAX / 2);
}

/* Count n jobs that begin now. */
void
handler_spend(Handler *handler, int n)
{
	HandlerRow *row = &handler->row;

	row->next_at += (TimestampTz) (n * interval_of(row));
	write_next_at(row);
}
