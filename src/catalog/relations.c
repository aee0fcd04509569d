/*-------------------------------------------------------------------------
 *
 * relations.c
 *	  The extension's relations and roles: where they are, and opening them.
 *
 * NOTES
 *	  OIDs are looked up by name at the first call and kept until an
 *	  invalidation message says that one of these relations, or a role, has
 *	  changed.  DROP EXTENSION sends such messages too, so that a session
 *	  which used an extension that was dropped and made anew finds the new
 *	  tables.
 *
 *	  We write to the tables without the executor, which would run triggers.
 *	  So a table with a trigger of a user is refused rather than written to
 *	  without running it, and one whose columns are not those that we made.
 *	  The triggers that the extension makes itself run when other SQL writes
 *	  (queue_data.restored, in wakeup.c), and only then have to.  Changing
 *	  a table sends an invalidation message, so it is enough to look at it
 *	  when it is opened for the first time since.
 *
 *	  The truncation of a segment (segment_recycle.c) sends one too, every few seconds on
 *	  a busy server.  So a message for a table of messages does not make the
 *	  rest invalid: only that table is looked at again.
 *
 * src/catalog/relations.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "commands/sequence.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "catalog/message_id.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "queue/counters.h"

#define QUEUE_SCHEMA	"queue_data"
#define SECRET_BYTES	32

#define Anum_secret_created_at	1
#define Anum_secret_key			2

typedef struct Catalog
{
	bool		valid;
	Oid			queue;
	Oid			queue_id_index;
	Oid			queue_name_index;
	Oid			queue_owner_index;
	Oid			queue_dead_queue_index;
	Oid			queue_source_index;
	Oid			queue_roles;	/* view */
	Oid			queue_id;		/* sequence */
	Oid			message_id;		/* sequence */
	Oid			ring;
	Oid			segment;
	Oid			pending_key;
	Oid			pending_key_index;
	Oid			root;
	Oid			root_index;
	Oid			counters_add;
	Oid			job_count_index;
	Oid			handler;
	Oid			handler_index;
	Oid			schedule;
	Oid			schedule_name_index;
	Oid			schedule_id;	/* sequence */
	Oid			secret;
	Oid			message[QUEUE_RELATIONS];
	Oid			message_index[QUEUE_RELATIONS];
	Oid			due_index[QUEUE_RELATIONS]; /* of delayed ones */
	Oid			producer;		/* roles; InvalidOid when dropped */
	Oid			consumer;
	Oid			admin;
} Catalog;

static Catalog catalog;

/* Counts what made the catalog invalid, and changes of tables of messages. */
static uint64 generation = 1;
static uint64 tables_generation = 1;
static uint64 lookup_generation = 1;	/* see catalog_lookup_changed() */

/* Tables of messages that have not changed since they were looked at. */
static bool checked[QUEUE_RELATIONS];

/* What was read from the tables; of one generation each. */
static uint64 ring_generation = 1;
static uint64 active_generation = 0;
static int	active_segment[RING_KINDS];
static uint64 secret_generation = 0;
static unsigned char secret[SECRET_BYTES];

static void relation_changed(Datum arg, Oid relid);
static void role_changed(Datum arg, int cacheid, uint32 hashvalue);
static const Catalog *load_catalog(void);
static inline const Catalog *get_catalog(void);
static Oid	find_relation(Oid schema, const char *name);
static void check_table(Relation rel, int natts);
static void find_indexes(Catalog *c, Oid schema, int segment);
static Relation open_with_index(const Oid *table, const Oid *table_index,
								LOCKMODE lockmode, Relation *index);
static void recheck(int segment, Relation rel);
static void open_locked(MessageTable *table, int segment, Oid relid,
						LOCKMODE lockmode);
static void check_small_table(Oid relid, int natts);

/* Ask for invalidation messages; called once, when the library is loaded. */
void
catalog_init(void)
{
	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHOID, role_changed, (Datum) 0);
}

static void
relation_changed(Datum arg, Oid relid)
{
	bool		all = relid == InvalidOid || relid == catalog.queue;

	if (relid == InvalidOid || relid == catalog.queue_id_index)
		lookup_generation++;
	for (int i = 0; i < QUEUE_RELATIONS; i++)
		if (all || relid == catalog.message[i])
		{
			checked[i] = false;
			tables_generation++;
		}
	if (all || relid == catalog.ring)
	{
		ring_generation++;
		tables_generation++;
	}
	if (all || relid == catalog.secret || relid == catalog.pending_key ||
		relid == catalog.root || relid == catalog.counters_add ||
		relid == catalog.handler || relid == catalog.schedule)
	{
		catalog.valid = false;
		generation++;
	}
}

static void
role_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	catalog.valid = false;
	generation++;
}

/*
 * A number that changes whenever something that was read from the tables
 * outside of messages may have changed.
 */
uint64
catalog_generation(void)
{
	return generation;
}

/* One that changes when a table of messages was changed as a whole. */
uint64
catalog_tables_generation(void)
{
	return tables_generation;
}

/*
 * This transaction is about to be prepared, and has created or resumed
 * queues.  No callback runs when it is committed; but COMMIT PREPARED sends
 * the invalidation messages that it has left, also after a restart.  So it
 * leaves one for an index that only DDL invalidates otherwise, and the worker
 * looks for those (worker.c).
 */
void
catalog_lookup_changed(void)
{
	CacheInvalidateRelcacheByRelid(get_catalog()->queue_id_index);
}

/* A number that changes when such a message comes */
uint64
catalog_lookup_generation(void)
{
	return lookup_generation;
}

static Oid
find_relation(Oid schema, const char *name)
{
	Oid			relid = OidIsValid(schema) ?
		get_relname_relid(name, schema) : InvalidOid;

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s.%s\" does not exist",
						QUEUE_SCHEMA, name),
				 errhint("The extension \"queue\" is not complete in this database; restore it from a backup.")));
	return relid;
}

/* What is where; asked for with each message. */
static inline const Catalog *
get_catalog(void)
{
	return catalog.valid ? &catalog : load_catalog();
}

static const Catalog *
load_catalog(void)
{
	Catalog		c = {0};
	uint64		before = generation;
	Oid			schema;

	schema = get_namespace_oid(QUEUE_SCHEMA, true);
	c.queue = find_relation(schema, "queue");
	c.queue_id_index = find_relation(schema, "queue_id_idx");
	c.queue_name_index = find_relation(schema, "queue_name_idx");
	c.queue_owner_index = find_relation(schema, "queue_owner_idx");
	c.queue_dead_queue_index = find_relation(schema, "queue_dead_queue_idx");
	c.queue_source_index = find_relation(schema, "queue_source_idx");
	c.queue_roles = find_relation(schema, "queue_roles");
	c.queue_id = find_relation(schema, "queue_id");
	c.message_id = find_relation(schema, "message_id");
	c.ring = find_relation(schema, "ring");
	c.pending_key = find_relation(schema, "dedup_key");
	c.pending_key_index = find_relation(schema, "dedup_key_idx");
	c.root = find_relation(schema, "root_job");
	c.root_index = find_relation(schema, "root_job_idx");
	c.counters_add = find_relation(schema, "job_counter");
	c.job_count_index = find_relation(schema, "job_counter_idx");
	c.handler = find_relation(schema, "handler");
	c.handler_index = find_relation(schema, "handler_idx");
	c.schedule = find_relation(schema, "schedule");
	c.schedule_name_index = find_relation(schema, "schedule_name_idx");
	c.schedule_id = find_relation(schema, "schedule_id");
	c.secret = find_relation(schema, "secret");
	c.segment = find_relation(schema, "segment");
	for (int i = 0; i < QUEUE_RELATIONS; i++)
	{
		c.message[i] = segment_is_delayed(i) ?
			find_relation(schema, psprintf("delayed_%d", i - QUEUE_DELAYED)) :
			find_relation(schema, psprintf("message_%d", i));
		find_indexes(&c, schema, i);
	}
	c.producer = get_role_oid("queue_producer", true);
	c.consumer = get_role_oid("queue_consumer", true);
	c.admin = get_role_oid("queue_admin", true);

	/*
	 * Now the callback knows the relations.  If it was called meanwhile, what
	 * we have serves this once, and is loaded again the next time.
	 */
	catalog = c;
	catalog.valid = (generation == before);
	memset(checked, 0, sizeof(checked));
	tables_generation++;
	ring_generation++;
	check_small_table(c.queue, Natts_queue);
	check_small_table(c.pending_key, Natts_dedup_key);
	check_small_table(c.root, Natts_root_job);
	check_small_table(c.counters_add, Natts_job_counter);
	check_small_table(c.handler, Natts_handler);
	check_small_table(c.schedule, Natts_schedule);
	return &catalog;
}

/* The indexes of a table of messages that we scan. */
static void
find_indexes(Catalog *c, Oid schema, int segment)
{
	if (segment_is_delayed(segment))
	{
		int			i = segment - QUEUE_DELAYED;

		c->message_index[segment] =
			find_relation(schema, psprintf("delayed_%d_id_idx", i));
		c->due_index[segment] =
			find_relation(schema, psprintf("delayed_%d_due_idx", i));
	}
	else
		c->message_index[segment] =
			find_relation(schema, psprintf("message_%d_idx", segment));
}

/*
 * A table of messages was opened that has changed, or was never looked at.
 * REINDEX CONCURRENTLY gives its indexes other OIDs.
 */
static void
recheck(int segment, Relation rel)
{
	check_table(rel, segment_is_delayed(segment) ?
				Natts_delayed : Natts_message);

	/* Should it change while we look, look again the next time. */
	checked[segment] = true;
	find_indexes(&catalog, RelationGetNamespace(rel), segment);
}

/* The same for one that is only opened to look at it. */
static void
check_small_table(Oid relid, int natts)
{
	Relation	rel = table_open(relid, AccessShareLock);
	bool		valid = catalog.valid;

	/* After an error, look again the next time. */
	catalog.valid = false;
	check_table(rel, natts);
	catalog.valid = valid;
	table_close(rel, AccessShareLock);
}

/* Can we write to the table? */
static void
check_table(Relation rel, int natts)
{
	if (RelationGetNumberOfAttributes(rel) != natts)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s.%s\" has %d columns",
						QUEUE_SCHEMA, RelationGetRelationName(rel),
						RelationGetNumberOfAttributes(rel)),
				 errdetail("The extension made it with %d, and finds them by their place.",
						   natts),
				 errhint("Restore the table from a backup; a dropped column leaves its place.")));
	for (int i = 0; rel->trigdesc != NULL && i < rel->trigdesc->numtriggers; i++)
	{
		const Trigger *trigger = &rel->trigdesc->triggers[i];

		if (get_func_namespace(trigger->tgfoid) == RelationGetNamespace(rel))
			continue;			/* the extension's own */
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s.%s\" has a trigger",
						QUEUE_SCHEMA, RelationGetRelationName(rel)),
				 errdetail("The extension writes to its tables without running triggers."),
				 errhint("Drop the trigger \"%s\".", trigger->tgname)));
	}
}

Oid
catalog_queue_oid(void)
{
	return get_catalog()->queue;
}

Relation
catalog_open_queues(LOCKMODE lockmode)
{
	PreventCommandIfParallelMode("functions of the extension \"queue\"");
	return table_open(get_catalog()->queue, lockmode);
}

Oid
catalog_queue_id_index_oid(void)
{
	return get_catalog()->queue_id_index;
}

Oid
catalog_queue_name_index_oid(void)
{
	return get_catalog()->queue_name_index;
}

Oid
catalog_queue_owner_index_oid(void)
{
	return get_catalog()->queue_owner_index;
}

Oid
catalog_queue_dead_queue_index_oid(void)
{
	return get_catalog()->queue_dead_queue_index;
}

Oid
catalog_queue_source_index_oid(void)
{
	return get_catalog()->queue_source_index;
}

/* The view that lists the roles of queues */
Oid
catalog_queue_roles_oid(void)
{
	return get_catalog()->queue_roles;
}

Oid
catalog_producer_role(void)
{
	return get_catalog()->producer;
}

Oid
catalog_consumer_role(void)
{
	return get_catalog()->consumer;
}

Oid
catalog_admin_role(void)
{
	return get_catalog()->admin;
}

/*
 * Open all indexes of a table that have to get entries: ours, and those that
 * an administrator makes or, by REINDEX CONCURRENTLY, has in the making.  We
 * enter plain columns only.
 */
void
catalog_open_indexes(Relation rel, IndexList *indexes)
{
	List	   *oids = RelationGetIndexList(rel);
	ListCell   *cell;

	indexes->n = 0;
	indexes->relations = palloc(list_length(oids) * sizeof(Relation));
	foreach(cell, oids)
	{
		Relation	index = index_open(lfirst_oid(cell), RowExclusiveLock);

		if (!index->rd_index->indisready)
		{
			index_close(index, RowExclusiveLock);
			continue;
		}
		if (index->rd_rel->relam != BTREE_AM_OID ||
			index->rd_index->indisexclusion ||
			RelationGetIndexExpressions(index) != NIL ||
			RelationGetIndexPredicate(index) != NIL)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("index \"%s\" on table \"%s.%s\" is not a plain btree index",
							RelationGetRelationName(index), QUEUE_SCHEMA,
							RelationGetRelationName(rel)),
					 errdetail("The extension writes to its tables without evaluating expressions and predicates."),
					 errhint("Drop the index.")));
		indexes->relations[indexes->n++] = index;
	}
	list_free(oids);
}

/* Close them; the locks stay. */
void
catalog_close_indexes(IndexList *indexes)
{
	for (int i = 0; i < indexes->n; i++)
		index_close(indexes->relations[i], NoLock);
	pfree(indexes->relations);
}

/* Open a table of messages and its indexes. */
void
message_table_open(MessageTable *table, int segment, LOCKMODE lockmode)
{
	Oid			relid = get_catalog()->message[segment];

	LockRelationOid(relid, lockmode);
	open_locked(table, segment, relid, lockmode);
}

/* The same if that takes no waiting for locks; else false. */
bool
message_table_try_open(MessageTable *table, int segment, LOCKMODE lockmode)
{
	Oid			relid = get_catalog()->message[segment];
	List	   *indexes;
	ListCell   *cell;
	Relation	heap;
	bool		all = true;

	if (!ConditionalLockRelationOid(relid, lockmode))
		return false;
	heap = table_open(relid, NoLock);
	indexes = RelationGetIndexList(heap);
	foreach(cell, indexes)
		all = all && ConditionalLockRelationOid(lfirst_oid(cell), lockmode);
	list_free(indexes);
	table_close(heap, NoLock);
	if (all)
		open_locked(table, segment, relid, lockmode);
	return all;
}

/* Open a table of messages that is locked. */
static void
open_locked(MessageTable *table, int segment, Oid relid, LOCKMODE lockmode)
{
	const Catalog *c;

	table->segment = segment;
	table->lockmode = lockmode;
	table->heap = table_open(relid, NoLock);

	/* With the lock, what is known of the indexes stays true. */
	c = get_catalog();
	if (!checked[segment])
		recheck(segment, table->heap);
	table->index = index_open(c->message_index[segment], lockmode);
	table->due_index = segment_is_delayed(segment) ?
		index_open(c->due_index[segment], lockmode) : NULL;
	table->out = NULL;
	if (lockmode != AccessShareLock)
	{
		table->out = MakeSingleTupleTableSlot(RelationGetDescr(table->heap),
											  &TTSOpsHeapTuple);
		catalog_open_indexes(table->heap, &table->all);
	}
}

/*
 * Close what message_table_open opened.  Who may have written keeps the lock
 * to the end of the transaction, so that nobody truncates the table before.
 */
void
message_table_close(MessageTable *table, bool keep_lock)
{
	LOCKMODE	lockmode = keep_lock ? NoLock : table->lockmode;

	if (table->out != NULL)
	{
		ExecDropSingleTupleTableSlot(table->out);
		catalog_close_indexes(&table->all);
	}
	if (table->due_index != NULL)
		index_close(table->due_index, lockmode);
	index_close(table->index, lockmode);
	table_close(table->heap, lockmode);
	table->heap = NULL;
}

/*
 * Has the table of messages any page?  Perhaps, if it is locked: the caller
 * does not wait to find out.
 */
bool
message_table_has_pages(int segment)
{
	Oid			relid = get_catalog()->message[segment];
	Relation	rel;
	bool		result;

	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		return true;
	rel = table_open(relid, NoLock);
	result = RelationGetNumberOfBlocks(rel) > 0;
	table_close(rel, AccessShareLock);
	return result;
}

/*
 * Open a table of ours and its index, of which the catalog has the OIDs there.
 */
static Relation
open_with_index(const Oid *table, const Oid *table_index, LOCKMODE lockmode,
				Relation *index)
{
	Relation	rel;

	(void) get_catalog();
	rel = table_open(*table, lockmode);

	/* With the lock, what is known of the index stays true. */
	(void) get_catalog();
	*index = index_open(*table_index, lockmode);
	return rel;
}

Relation
catalog_open_dedup_keys(LOCKMODE lockmode, Relation *index)
{
	return open_with_index(&catalog.pending_key, &catalog.pending_key_index,
						   lockmode, index);
}

Relation
catalog_open_root_jobs(LOCKMODE lockmode, Relation *index)
{
	return open_with_index(&catalog.root, &catalog.root_index, lockmode,
						   index);
}

Relation
catalog_open_job_counters(LOCKMODE lockmode, Relation *index)
{
	return open_with_index(&catalog.counters_add, &catalog.job_count_index,
						   lockmode, index);
}

/*
 * Lock the table of counts for writing, unless one would have to wait.
 * False: not now, or the extension is gone.
 */
bool
catalog_lock_job_counters(void)
{
	Oid			schema = get_namespace_oid(QUEUE_SCHEMA, true);
	Oid			relid = OidIsValid(schema) ?
		get_relname_relid("job_counter", schema) : InvalidOid;

	if (!OidIsValid(relid) ||
		!ConditionalLockRelationOid(relid, RowExclusiveLock))
		return false;

	/* Who drops the extension has waited, or is done. */
	schema = get_namespace_oid(QUEUE_SCHEMA, true);
	return OidIsValid(schema) &&
		get_relname_relid("job_counter", schema) == relid;
}

Relation
catalog_open_handlers(LOCKMODE lockmode, Oid *index)
{
	Relation	rel = table_open(get_catalog()->handler, lockmode);

	*index = get_catalog()->handler_index;
	return rel;
}

/* The index is that of names. */
Relation
catalog_open_schedules(LOCKMODE lockmode, Relation *index)
{
	return open_with_index(&catalog.schedule, &catalog.schedule_name_index,
						   lockmode, index);
}

int32
catalog_next_schedule_id(void)
{
	return (int32) nextval_internal(get_catalog()->schedule_id, false);
}

/*
 * The segment of a ring that new messages go to.  Who turns the ring sends an
 * invalidation message for its table; who inserts looks again once it has
 * locked the segment.
 */
int
catalog_active_segment(RingKind kind)
{
	const Catalog *c = get_catalog();

	if (active_generation != ring_generation)
	{
		uint64		before = ring_generation;
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
		Relation	rel = table_open(c->ring, AccessShareLock);
		TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);
		HeapTuple	tuple = heap_getnext(scan, ForwardScanDirection);

		if (!HeapTupleIsValid(tuple))
			elog(ERROR, "queue_data.ring is empty");
		for (RingKind i = 0; i < RING_KINDS; i++)
		{
			bool		isnull;
			int			segment =
				DatumGetInt16(heap_getattr(tuple, i == RING_DELAYED ?
										   Anum_ring_delayed : Anum_ring_active,
										   RelationGetDescr(rel), &isnull));

			if (segment < 0 || segment >= QUEUE_RELATIONS ||
				segment_kind(segment) != i)
				elog(ERROR, "queue_data.ring names segment %d", segment);
			active_segment[i] = segment;
		}
		table_endscan(scan);
		table_close(rel, AccessShareLock);
		UnregisterSnapshot(snapshot);
		active_generation = before;
	}
	return active_segment[kind];
}

/* For who turns the ring: the table that says which segment is active. */
Relation
catalog_open_ring(LOCKMODE lockmode)
{
	return table_open(get_catalog()->ring, lockmode);
}

/* The table that remembers truncations. */
Relation
catalog_open_segments(LOCKMODE lockmode)
{
	return table_open(get_catalog()->segment, lockmode);
}

Oid
catalog_segment_oid(int segment)
{
	return get_catalog()->message[segment];
}

/* The next block of message numbers: the first of MESSAGE_ID_BLOCK of them. */
int64
catalog_next_block(void)
{
	return nextval_internal(get_catalog()->message_id, false) <<
		MESSAGE_ID_BLOCK_BITS;
}

int32
catalog_next_queue_id(void)
{
	return (int32) nextval_internal(get_catalog()->queue_id, false);
}

/* The key that claim ids are signed with: the oldest in its table. */
const unsigned char *
catalog_secret(void)
{
	const Catalog *c = get_catalog();

	if (secret_generation != generation)
	{
		uint64		before = generation;
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
		Relation	rel = table_open(c->secret, AccessShareLock);
		TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);
		TimestampTz oldest = DT_NOEND;
		HeapTuple	tuple;

		while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
		{
			TupleDesc	desc = RelationGetDescr(rel);
			bool		isnull;
			TimestampTz created =
				DatumGetTimestampTz(heap_getattr(tuple, Anum_secret_created_at,
												 desc, &isnull));
			bytea	   *key = DatumGetByteaPP(heap_getattr(tuple,
														   Anum_secret_key,
														   desc, &isnull));

			if (created < oldest && VARSIZE_ANY_EXHDR(key) == SECRET_BYTES)
			{
				oldest = created;
				memcpy(secret, VARDATA_ANY(key), SECRET_BYTES);
			}
		}
		if (oldest == DT_NOEND)
			elog(ERROR, "queue_data.secret holds no key");
		table_endscan(scan);
		table_close(rel, AccessShareLock);
		UnregisterSnapshot(snapshot);
		secret_generation = before;
	}
	return secret;
}
