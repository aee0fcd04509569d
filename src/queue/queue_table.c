/*-------------------------------------------------------------------------
 *
 * queue_table.c
 *	  The table of queues: its rows, and a queue as other modules use it.
 *
 * NOTES
 *	  These functions read the table queue_data.queue with the latest
 *	  snapshot, whatever the isolation level: a session must not use a queue
 *	  that was dropped, nor create one that exists.  They take no lock on a
 *	  queue.  registry.c has what a push or claim needs: a cache in front of
 *	  the table, privileges and locks.
 *
 *	  A name is unique in its project.  An id is never used again, so no
 *	  other queue gets the id of a dropped one.
 *
 * src/queue/queue_table.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/stratnum.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"

#include "catalog/numbers.h"
#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "catalog/tables.h"
#include "map/availability.h"
#include "queue/options.h"
#include "queue/queue_table.h"
#include "queue/role.h"
#include "queue/shard.h"
#include "storage/row.h"
#include "util/compat.h"
#include "util/settings.h"

static int	compare_to_id(const void *id, const void *entry);
static bool has_rows(CatalogRelation table, int32 queue_id);
static void fill_queue_row(const char *name, Jsonb *metadata, Oid owner,
						   int32 source_id, Datum *values, bool *isnull);

/* --- Rows --- */

/*
 * Returns a copy of the row of a queue in the session's project, or NULL if
 * there is none.
 */
HeapTuple
queue_table_fetch(Relation rel, const char *name)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], Anum_queue_project, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(setting_project));
	ScanKeyInit(&keys[1], Anum_queue_name, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(name));
	return row_fetch(rel, catalog_oid(CATALOG_QUEUE_NAME_INDEX), keys, 2);
}

/*
 * Returns a copy of the row of the queue with this id, or NULL if there is
 * none; with skip_malformed, also if the row is malformed.
 */
HeapTuple
queue_table_fetch_by_id(Relation rel, int32 id, bool skip_malformed)
{
	Oid			index = catalog_oid(CATALOG_QUEUE_ID_INDEX);
	ScanKeyData key;

	ScanKeyInit(&key, Anum_queue_id, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(id));
	return skip_malformed ? row_fetch_valid(rel, index, &key, 1) :
		row_fetch(rel, index, &key, 1);
}

/* Get a column that has the id of a queue; 0 for NULL. */
int32
queue_table_id(Relation rel, HeapTuple tuple, int attribute)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, attribute, RelationGetDescr(rel),
									 &isnull);

	return isnull ? 0 : DatumGetInt32(value);
}

/*
 * Returns whether the queue has a row in this table: a root job was
 * registered in it, or a message with a group key was pushed to it.  The
 * first one sends an invalidation message for the table of queues.
 */
static bool
has_rows(CatalogRelation table, int32 queue_id)
{
	Oid			index;
	Relation	rel = catalog_open(table, AccessShareLock, &index);
	ScanKeyData key;
	bool		found;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	found = RelationGetNumberOfBlocks(rel) > 0 &&
		HeapTupleIsValid(row_fetch(rel, index, &key, 1));
	table_close(rel, AccessShareLock);
	return found;
}

void
queue_table_summarize(Relation rel, HeapTuple tuple, QueueSummary *queue)
{
	text_to_cstring_buffer(DatumGetTextPP(row_getattr(rel, tuple,
													  Anum_queue_project)),
						   queue->project, sizeof(queue->project));
	text_to_cstring_buffer(DatumGetTextPP(row_getattr(rel, tuple,
													  Anum_queue_name)),
						   queue->name, sizeof(queue->name));
	queue->owner = DatumGetObjectId(row_getattr(rel, tuple, Anum_queue_owner));
	queue->paused = DatumGetBool(row_getattr(rel, tuple, Anum_queue_paused));
	queue->created_at =
		DatumGetTimestampTz(row_getattr(rel, tuple, Anum_queue_created_at));
}

void
queue_table_load(Relation rel, HeapTuple tuple, Queue *queue)
{
	memset(queue, 0, sizeof(Queue));
	queue->id = queue_table_id(rel, tuple, Anum_queue_id);
	queue->owner = DatumGetObjectId(row_getattr(rel, tuple, Anum_queue_owner));
	queue->paused = DatumGetBool(row_getattr(rel, tuple, Anum_queue_paused));
	strlcpy(queue->name,
			TextDatumGetCString(row_getattr(rel, tuple, Anum_queue_name)),
			sizeof(queue->name));
	queue->dead_id = queue_table_id(rel, tuple, Anum_queue_dead_queue_id);
	queue->source_id = queue_table_id(rel, tuple, Anum_queue_source_id);
	options_parse(DatumGetJsonbP(row_getattr(rel, tuple, Anum_queue_metadata)),
				  queue, false);
	queue->has_roots = has_rows(CATALOG_ROOT_JOB, queue->id);
	queue->has_groups = has_rows(CATALOG_GROUPED, queue->id);
}

/* --- Queues by id --- */

/* Read the queue with this id.  Returns false if there is none. */
bool
queue_by_id(int32 id, Queue *queue)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	HeapTuple	tuple = queue_table_fetch_by_id(rel, id, false);

	if (HeapTupleIsValid(tuple))
		queue_table_load(rel, tuple, queue);
	table_close(rel, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

/*
 * Read what is short of a queue, also if its shard is on another server.
 * Returns false if there is no such queue.
 *
 * This is called for many queues in turn, so one with a malformed row counts
 * as missing: an error would stop the others, too.
 */
bool
queue_summary(int32 id, QueueSummary *queue)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	HeapTuple	tuple = queue_table_fetch_by_id(rel, id, true);

	if (HeapTupleIsValid(tuple))
		queue_table_summarize(rel, tuple, queue);
	table_close(rel, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

/* The same, but returns false also if the queue is on another server. */
bool
queue_local_summary(int32 id, QueueSummary *queue)
{
	return queue_summary(id, queue) &&
		shard_is_local(queue->project, queue->name);
}

/* Returns the owner of a queue, or InvalidOid if queue_summary() finds none. */
Oid
queue_owner(int32 id)
{
	QueueSummary queue;

	return queue_summary(id, &queue) ? queue.owner : InvalidOid;
}

/* --- Lists of queues --- */

/*
 * List the ids of the queues that were created for this one
 * (Anum_queue_source_id) or send their dead letters to it
 * (Anum_queue_dead_queue_id).
 */
List *
queue_referring(int attribute, int32 id)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	ScanKeyData key;
	RowScan		scan;
	HeapTuple	tuple;
	List	   *ids = NIL;

	ScanKeyInit(&key, attribute, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(id));
	row_scan_begin(&scan, rel, attribute == Anum_queue_source_id ?
				   catalog_oid(CATALOG_QUEUE_SOURCE_INDEX) :
				   catalog_oid(CATALOG_QUEUE_DEAD_QUEUE_INDEX), &key, 1);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
		ids = lappend_int(ids, queue_table_id(rel, tuple, Anum_queue_id));
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
	return ids;
}

static int
compare_to_id(const void *id, const void *entry)
{
	int32		x = *(const int32 *) id;
	int32		y = *(const int32 *) entry;

	return x < y ? -1 : x > y;
}

/*
 * Find a queue in an array of n structs of this size, each of which begins
 * with the id of a queue, in the order of the ids.  Returns NULL if it is not
 * there.
 */
void *
queue_find_entry(void *array, int n, Size size, int32 id)
{
	return bsearch(&id, array, n, size, compare_to_id);
}

/*
 * List all queues of a project, by name, or of all projects if that is NULL,
 * by id.  A filter, unless it is NULL, says which of them.
 */
QueueEntry *
queue_all(const char *project, QueueFilter filter, int *n)
{
	/* What the filter allocates is freed for each of very many queues. */
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "a queue of a list",
												  ALLOCSET_DEFAULT_SIZES);
	Relation	rel = catalog_open_queues(AccessShareLock);
	ScanKeyData key;
	RowScan		scan;
	HeapTuple	tuple;
	int			size = 64;
	QueueEntry *queues = palloc(size * sizeof(QueueEntry));

	*n = 0;
	if (project != NULL)
		ScanKeyInit(&key, Anum_queue_project, BTEqualStrategyNumber, F_TEXTEQ,
					CStringGetTextDatum(project));
	row_scan_begin(&scan, rel,
				   catalog_oid(project == NULL ? CATALOG_QUEUE_ID_INDEX :
							   CATALOG_QUEUE_NAME_INDEX), &key,
				   project == NULL ? 0 : 1);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		CHECK_FOR_INTERRUPTS();
		if (filter != NULL)
		{
			MemoryContext old = MemoryContextSwitchTo(context);
			bool		passes = filter(rel, tuple);

			MemoryContextSwitchTo(old);
			MemoryContextReset(context);
			if (!passes)
				continue;
		}
		if (*n == size)
		{
			size *= 2;
			queues = repalloc_huge(queues, size * sizeof(QueueEntry));
		}
		queues[*n].id = queue_table_id(rel, tuple, Anum_queue_id);
		queues[*n].name =
			TextDatumGetCString(row_getattr(rel, tuple, Anum_queue_name));
		queues[*n].paused =
			DatumGetBool(row_getattr(rel, tuple, Anum_queue_paused));
		queues[*n].dead_id = queue_table_id(rel, tuple,
											Anum_queue_dead_queue_id);
		(*n)++;
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
	MemoryContextDelete(context);
	return queues;
}

/*
 * Describe a queue of the session's project.  Returns false if there is no
 * such queue; it is an error if it is on another server.
 */
bool
queue_describe(const char *name, QueueSummary *queue, Jsonb **metadata)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	HeapTuple	tuple = queue_table_fetch(rel, name);

	if (HeapTupleIsValid(tuple))
	{
		queue_table_summarize(rel, tuple, queue);
		*metadata = DatumGetJsonbP(row_getattr(rel, tuple,
											   Anum_queue_metadata));
	}
	table_close(rel, AccessShareLock);
	if (!HeapTupleIsValid(tuple))
		(void) shard_check_missing(name);
	else
		shard_check(name);
	return HeapTupleIsValid(tuple);
}

/*
 * Call a function for the queues of the session's project, by name: those
 * after the marker, or from the first one on if that is NULL, whose name
 * matches the regular expression, or any if that is NULL, at most limit.
 */
void
queue_list(text *marker, int limit, text *pattern,
		   QueueListCallback callback, void *arg)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	ScanKeyData keys[2];
	RowScan		scan;
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], Anum_queue_project, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(setting_project));
	ScanKeyInit(&keys[1], Anum_queue_name, BTGreaterStrategyNumber, F_TEXT_GT,
				marker != NULL ? PointerGetDatum(marker) :
				CStringGetTextDatum(""));
	row_scan_begin(&scan, rel, catalog_oid(CATALOG_QUEUE_NAME_INDEX), keys, 2);
	while (limit > 0 && HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		QueueSummary queue;

		CHECK_FOR_INTERRUPTS();
		if (pattern != NULL &&
			!DatumGetBool(DirectFunctionCall2Coll(textregexeq,
												  C_COLLATION_OID,
												  row_getattr(rel, tuple,
															  Anum_queue_name),
												  PointerGetDatum(pattern))))
			continue;
		queue_table_summarize(rel, tuple, &queue);
		if (!shard_is_local(setting_project, queue.name))
			continue;
		callback(&queue, DatumGetJsonbP(row_getattr(rel, tuple,
													Anum_queue_metadata)),
				 arg);
		limit--;
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
}

/* --- Writing --- */

/* All columns but the id */
static void
fill_queue_row(const char *name, Jsonb *metadata, Oid owner, int32 source_id,
			   Datum *values, bool *isnull)
{
	/* The server has set one from postgresql.conf in an unknown encoding. */
	pg_verifymbstr(setting_project, strlen(setting_project), false);

	values[Anum_queue_owner - 1] = ObjectIdGetDatum(owner);
	values[Anum_queue_paused - 1] = BoolGetDatum(false);
	values[Anum_queue_created_at - 1] =
		TimestampTzGetDatum(GetCurrentTimestamp());
	values[Anum_queue_project - 1] = CStringGetTextDatum(setting_project);
	values[Anum_queue_name - 1] = CStringGetTextDatum(name);
	values[Anum_queue_metadata - 1] = metadata != NULL ?
		JsonbPGetDatum(metadata) :
		DirectFunctionCall1(jsonb_in, CStringGetDatum("{}"));

	/* A dead letter queue gets its messages from its source queue. */
	if (source_id != 0)
	{
		values[Anum_queue_push_roles - 1] =
			PointerGetDatum(construct_empty_array(REGROLEOID));
		values[Anum_queue_source_id - 1] = Int32GetDatum(source_id);
	}
	values[Anum_queue_lane_secret - 1] = OidFunctionCall0(F_GEN_RANDOM_UUID);
	isnull[Anum_queue_push_roles - 1] = source_id == 0;
	isnull[Anum_queue_source_id - 1] = source_id == 0;
	isnull[Anum_queue_claim_roles - 1] = true;
	isnull[Anum_queue_admin_roles - 1] = true;
	isnull[Anum_queue_dead_queue_id - 1] = true;
}

/*
 * Create a queue in the session's project.  metadata may be NULL.  source_id
 * is the queue whose dead letters this one takes, or 0.
 *
 * Waits for a transaction that has created a queue of this name and has not
 * ended.  Returns false if another session has created it.  It is an error if
 * it would be on another server.
 */
bool
queue_insert(const char *name, Jsonb *metadata, Oid owner, int32 source_id)
{
	Relation	rel = catalog_open_queues(RowExclusiveLock);
	Relation	name_index = index_open(catalog_oid(CATALOG_QUEUE_NAME_INDEX),
										RowExclusiveLock);
	Datum		values[Natts_queue] = {0};
	bool		isnull[Natts_queue] = {false};
	ScanKeyData keys[2];
	bool		created = false;

	shard_lock(name);
	fill_queue_row(name, metadata, owner, source_id, values, isnull);

	ScanKeyInit(&keys[0], Anum_queue_project, BTEqualStrategyNumber, F_TEXTEQ,
				values[Anum_queue_project - 1]);
	ScanKeyInit(&keys[1], Anum_queue_name, BTEqualStrategyNumber, F_TEXTEQ,
				values[Anum_queue_name - 1]);
	while (!created &&
		   !HeapTupleIsValid(row_find_unique(rel, name_index, keys, 2,
											 NULL, NULL)))
	{
		values[Anum_queue_id - 1] = Int32GetDatum(numbers_next_queue_id());
		created = row_insert_unique(rel, name_index,
									heap_form_tuple(RelationGetDescr(rel),
													values, isnull));
	}

	index_close(name_index, NoLock);
	table_close(rel, NoLock);
	CommandCounterIncrement();
	if (created)
	{
		role_record(owner);
		availability_begin_queue(DatumGetInt32(values[Anum_queue_id - 1]));
	}
	return created;
}
