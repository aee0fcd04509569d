/*-------------------------------------------------------------------------
 *
 * relations.c
 *	  The extension's relations and roles.
 *
 * NOTES
 *	  OIDs are looked up by name at the first call and kept until an
 *	  invalidation message says that one of the relations, or a role, has
 *	  changed.  DROP EXTENSION sends such messages too.  So a session that
 *	  used an extension which was dropped and created again finds the new
 *	  tables.
 *
 *	  The extension writes to its tables without the executor, which would run
 *	  triggers.  So it refuses to write to a table that has a trigger of a
 *	  user, or other columns than those that the extension has created.  As a
 *	  change of a table sends an invalidation message, it is enough to check a
 *	  table when it is opened for the first time since.  (The tables ring and
 *	  segment, which only the worker writes to, are not checked.)
 *
 *	  What is read from small tables, such as the active segments, is kept in
 *	  the same way.
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
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "catalog/tables.h"
#include "util/version.h"
#include "util/xact.h"

#define VERSION_HINT \
	"If the extension has another version in this database, run ALTER EXTENSION queue UPDATE, or restart the server with the library of its version. Otherwise restore %s from a backup."

/* The relations by name */
static const struct
{
	const char *name;
	int			natts;			/* columns of a table that is checked, see
								 * NOTES; else 0 */
	bool		has_index;		/* a table: the index NAME_idx finds its rows */
}			relations[CATALOG_RELATIONS] = {

	[CATALOG_QUEUE] = {"queue", Natts_queue},
	[CATALOG_QUEUE_ID_INDEX] = {"queue_id_idx"},
	[CATALOG_QUEUE_NAME_INDEX] = {"queue_name_idx"},
	[CATALOG_QUEUE_OWNER_INDEX] = {"queue_owner_idx"},
	[CATALOG_QUEUE_DEAD_QUEUE_INDEX] = {"queue_dead_queue_idx"},
	[CATALOG_QUEUE_SOURCE_INDEX] = {"queue_source_idx"},
	[CATALOG_QUEUE_ROLES] = {"queue_roles"},
	[CATALOG_QUEUE_ID] = {"queue_id"},
	[CATALOG_MESSAGE_ID] = {"message_id"},
	[CATALOG_RING] = {"ring"},
	[CATALOG_SEGMENT] = {"segment"},
	[CATALOG_DEDUP_KEY] = {"dedup_key", Natts_dedup_key, true},
	[CATALOG_DEDUP_KEY_TIME_INDEX] = {"dedup_key_time_idx"},
	[CATALOG_ROOT_JOB] = {"root_job", Natts_root_job, true},
	[CATALOG_GROUPED] = {"grouped", Natts_grouped, true},
	[CATALOG_GROUP_RATE] = {"group_rate", Natts_group_rate, true},
	[CATALOG_JOB_COUNTER] = {"job_counter", Natts_job_counter, true},
	[CATALOG_HANDLER] = {"handler", Natts_handler, true},
	[CATALOG_SECRET] = {"secret"},
	[CATALOG_SERVER] = {"server", Natts_server},
	[CATALOG_SHARD] = {"shard", Natts_shard, true},
	[CATALOG_PUSH_ORIGIN] = {"push_origin", Natts_push_origin, true},
	[CATALOG_PUSH_ORIGIN_TIME_INDEX] = {"push_origin_time_idx"},
	[CATALOG_BATCH] = {"batch", Natts_batch, true},
	[CATALOG_BATCH_ID] = {"batch_id"},
	[CATALOG_BATCH_PART] = {"batch_part", Natts_batch_part, true},
	[CATALOG_TOPIC] = {"topic", Natts_topic, true},
	[CATALOG_FINISHED_RING] = {"finished_ring"},
#define FINISHED(i) \
	[CATALOG_FINISHED_0 + (i)] = {"finished_" #i, Natts_finished, true}
	FINISHED(0), FINISHED(1), FINISHED(2), FINISHED(3),
	FINISHED(4), FINISHED(5), FINISHED(6), FINISHED(7),
	FINISHED(8), FINISHED(9), FINISHED(10), FINISHED(11),
	FINISHED(12), FINISHED(13), FINISHED(14), FINISHED(15),
	FINISHED(16), FINISHED(17),
#undef FINISHED
};

/*
 * A ring of the history keeps all rows for as long as the longest
 * _keep_finished of its queues asks for, so what one queue keeps for a year
 * must not be in the tables of another one that keeps it for a second.
 */
const Ring	catalog_rings[RINGS] = {
	[RING_MESSAGES] = {CATALOG_RING, Anum_ring_active, 0, MESSAGE_SEGMENTS},
	[RING_DELAYED] = {CATALOG_RING, Anum_ring_delayed, FIRST_DELAYED_SEGMENT,
	DELAYED_SEGMENTS},
	[RING_FINISHED] = {CATALOG_FINISHED_RING, Anum_finished_ring_active, 0, 8,
	366 * SECS_PER_DAY},
	{CATALOG_FINISHED_RING, Anum_finished_ring_active, 8, 3,
	31 * SECS_PER_DAY},
	{CATALOG_FINISHED_RING, Anum_finished_ring_active, 11, 3, SECS_PER_DAY},
	{CATALOG_FINISHED_RING, Anum_finished_ring_active, 14, 2, SECS_PER_HOUR},
	{CATALOG_FINISHED_RING, Anum_finished_ring_active, 16, 2, SECS_PER_MINUTE}
};

typedef struct Catalog
{
	bool		valid;
	Oid			relations[CATALOG_RELATIONS];
	Oid			table_indexes[CATALOG_RELATIONS];	/* those of has_index */
	Oid			segments[ALL_SEGMENTS];
	Oid			indexes[ALL_SEGMENTS];	/* of segments */
	Oid			due_indexes[ALL_SEGMENTS];	/* of delayed ones */
	Oid			batch_indexes[2][ALL_SEGMENTS]; /* see catalog_batch_index() */
	Oid			roles[CATALOG_ROLES];	/* InvalidOid: dropped */
} Catalog;

static Catalog catalog;

/* Counters of changes */
static uint64 generation = 1;	/* of what the catalog has */
static uint64 tables_generation = 1;	/* of segments, or which is active */
static uint64 topics_generation = 1;	/* of the table of topics */

/* Segments that have not changed since they were checked */
static bool checked[ALL_SEGMENTS];

/* What was read from tables, and in which generation */
static uint64 ring_generation = 1;
static uint64 active_generation = 0;
static int	active_table[RINGS];
static TimestampTz switched_at[RINGS];

static void relation_changed(Datum arg, Oid relid);
static void role_changed(Datum arg, int cacheid, uint32 hashvalue);
static inline const Catalog *get_catalog(void);
static const Catalog *load_catalog(void);
static Oid	look_up_relation(CatalogRelation relation);
static Oid	find_relation(Oid schema, const char *name);
static const char *segment_name(int segment);
static void find_segment_indexes(Catalog *c, Oid schema, int segment);
static void check_table(Relation rel, int natts);
static void read_rings(void);
static void read_ring(Relation rel, HeapTuple tuple);

/* --- What has changed --- */

/* Ask for invalidation messages; called once, when the library is loaded. */
void
catalog_init(void)
{
	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHOID, role_changed, (Datum) 0);
}

/* Callback for an invalidation message of a relation; InvalidOid: of all */
static void
relation_changed(Datum arg, Oid relid)
{
	const Oid  *oids = catalog.relations;

	/* A message for the table of queues says that queues may have changed. */
	bool		all = relid == InvalidOid || relid == oids[CATALOG_QUEUE];
	bool		reload = all || relid == oids[CATALOG_SECRET];
	bool		is_aside = false;

	if (relid == InvalidOid || relid == oids[CATALOG_TOPIC])
		topics_generation++;

	/*
	 * The truncation of a segment sends a message as well, every few seconds
	 * on a busy server.  So a message for a segment does not make the rest
	 * invalid: only that segment is checked again.
	 */
	for (int i = 0; i < ALL_SEGMENTS; i++)
		if (all || relid == catalog.segments[i])
		{
			checked[i] = false;
			tables_generation++;
		}
	if (all || relid == oids[CATALOG_RING])
		tables_generation++;
	if (all || relid == oids[CATALOG_RING] ||
		relid == oids[CATALOG_FINISHED_RING])
		ring_generation++;

	/* A table that is checked may have got a trigger or a column. */
	for (int i = 0; i < CATALOG_RELATIONS && !reload; i++)
	{
		reload = relations[i].natts > 0 && relid == oids[i];
		is_aside = reload && (i == CATALOG_TOPIC ||
							  i >= CATALOG_FINISHED_0);
	}
	if (reload)
	{
		catalog.valid = false;

		/*
		 * Tables of the history are truncated now and then, and bindings may
		 * change often.  What sessions know of queues and handlers does not
		 * depend on these.
		 */
		if (!is_aside)
			generation++;
	}
}

/* Callback for an invalidation message of a role: it may be one of ours. */
static void
role_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	catalog.valid = false;
	generation++;
}

/*
 * Have all sessions look up the relations, and read queues, anew when this
 * transaction commits.  We use nothing of what the session knows: a script that
 * creates or updates the extension has not made all relations yet.
 */
void
catalog_invalidate(void)
{
	Oid			queues = look_up_relation(CATALOG_QUEUE);

	if (OidIsValid(queues))
		CacheInvalidateRelcacheByRelid(queues);
}

/*
 * Returns a number that changes whenever the definition of a table other than
 * the segments, or a role, may have changed.
 */
uint64
catalog_generation(void)
{
	return generation;
}

/* Returns a number that changes when a segment changes or a ring switches. */
uint64
catalog_tables_generation(void)
{
	return tables_generation;
}

/* Returns a number that changes when a binding of a topic may have changed. */
uint64
catalog_topics_generation(void)
{
	return topics_generation;
}

/* --- Relations and roles --- */

/* Returns the OIDs; called for each message. */
static inline const Catalog *
get_catalog(void)
{
	return catalog.valid ? &catalog : load_catalog();
}

/* Look up all OIDs, and check the tables. */
static const Catalog *
load_catalog(void)
{
	Catalog		c = {0};
	uint64		before = generation;
	Oid			schema = get_namespace_oid(CATALOG_SCHEMA, true);

	Assert(!xact_has_ended);
	for (int i = 0; i < CATALOG_RELATIONS; i++)
	{
		c.relations[i] = find_relation(schema, relations[i].name);
		if (relations[i].has_index)
			c.table_indexes[i] =
				find_relation(schema, psprintf("%s_idx", relations[i].name));
	}
	for (int i = 0; i < ALL_SEGMENTS; i++)
	{
		c.segments[i] = find_relation(schema, segment_name(i));
		find_segment_indexes(&c, schema, i);
	}
	c.roles[CATALOG_PRODUCER] = get_role_oid("queue_producer", true);
	c.roles[CATALOG_CONSUMER] = get_role_oid("queue_consumer", true);
	c.roles[CATALOG_ADMIN] = get_role_oid("queue_admin", true);

	/*
	 * Now the callback knows the relations.  They are valid only when all
	 * tables have been checked: if that fails, or is canceled, the next call
	 * checks them again.
	 */
	catalog = c;
	memset(checked, 0, sizeof(checked));
	tables_generation++;
	ring_generation++;
	for (int i = 0; i < CATALOG_RELATIONS; i++)
		if (relations[i].natts > 0)
		{
			Relation	rel = table_open(c.relations[i], AccessShareLock);

			check_table(rel, relations[i].natts);
			table_close(rel, AccessShareLock);
		}

	/*
	 * If the callback was called meanwhile, these OIDs are used once, and
	 * looked up again the next time.
	 */
	catalog.valid = (generation == before);
	return &catalog;
}

/* Returns the OID that a relation has now, or InvalidOid. */
static Oid
look_up_relation(CatalogRelation relation)
{
	return get_relname_relid(relations[relation].name,
							 get_namespace_oid(CATALOG_SCHEMA, true));
}

/*
 * Returns the OID of a relation.  Raises an error if it does not exist, as when
 * the extension is of an earlier version: no function works before the update.
 */
static Oid
find_relation(Oid schema, const char *name)
{
	Oid			relid = get_relname_relid(name, schema);

	if (OidIsValid(relid))
		return relid;
	if (!OidIsValid(get_extension_oid("queue", true)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"queue\" does not exist in this database"),
				 errhint("Create it with CREATE EXTENSION queue.")));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("relation \"%s.%s\" does not exist",
					CATALOG_SCHEMA, name),
			 errdetail("The library, version %s, needs it.", QUEUE_VERSION),
			 errhint(VERSION_HINT, "it")));
}

static const char *
segment_name(int segment)
{
	return segment_is_delayed(segment) ?
		psprintf("delayed_%d", segment - FIRST_DELAYED_SEGMENT) :
		psprintf("message_%d", segment);
}

/* Find the indexes of a segment that are scanned. */
static void
find_segment_indexes(Catalog *c, Oid schema, int segment)
{
	const char *name = segment_name(segment);

	c->batch_indexes[false][segment] =
		find_relation(schema, psprintf("%s_batch_idx", name));
	if (!segment_is_delayed(segment))
	{
		c->indexes[segment] = find_relation(schema, psprintf("%s_idx", name));
		return;
	}
	c->indexes[segment] = find_relation(schema, psprintf("%s_id_idx", name));
	c->due_indexes[segment] =
		find_relation(schema, psprintf("%s_due_idx", name));
	c->batch_indexes[true][segment] =
		find_relation(schema, psprintf("%s_after_idx", name));
}

/* Raise an error if the extension cannot write to the table. */
static void
check_table(Relation rel, int natts)
{
	if (RelationGetNumberOfAttributes(rel) != natts)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s.%s\" has %d columns",
						CATALOG_SCHEMA, RelationGetRelationName(rel),
						RelationGetNumberOfAttributes(rel)),
				 errdetail("The library, version %s, expects %d, and finds them by number; a dropped column still counts.",
						   QUEUE_VERSION, natts),
				 errhint(VERSION_HINT, "the table")));
	for (int i = 0; rel->trigdesc != NULL && i < rel->trigdesc->numtriggers; i++)
	{
		const Trigger *trigger = &rel->trigdesc->triggers[i];

		/* The extension's own triggers are for plain SQL only. */
		if (get_func_namespace(trigger->tgfoid) == RelationGetNamespace(rel))
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s.%s\" has a trigger",
						CATALOG_SCHEMA, RelationGetRelationName(rel)),
				 errdetail("The extension writes to its tables without running triggers."),
				 errhint("Drop the trigger \"%s\".", trigger->tgname)));
	}
}

/*
 * Keep the extension from being dropped until the transaction ends.  For
 * background processes: never waits.
 *
 * DROP EXTENSION locks all that belongs to the extension, so one lock on the
 * table of queues is enough.  We do not lock the extension as an object,
 * because any role can have that locked, by ALTER FUNCTION ... DEPENDS ON
 * EXTENSION with a function of its own.
 */
ExtensionHold
catalog_hold_extension(void)
{
	Oid			extension = get_extension_oid("queue", true);

	if (!OidIsValid(extension))
		return EXTENSION_MISSING;
	if (!ConditionalLockRelationOid(look_up_relation(CATALOG_QUEUE),
									AccessShareLock))
		return EXTENSION_LOCKED;

	/* It may have been dropped just before the lock was taken. */
	AcceptInvalidationMessages();
	if (get_extension_oid("queue", true) != extension)
		return EXTENSION_MISSING;
	return OidIsValid(look_up_relation(CATALOG_NEWEST)) ? EXTENSION_HELD :
		EXTENSION_OUTDATED;
}

/* Returns the OID of the table of queues, which identifies the extension. */
Oid
catalog_queue_oid(void)
{
	return get_catalog()->relations[CATALOG_QUEUE];
}

Oid
catalog_oid(CatalogRelation relation)
{
	return get_catalog()->relations[relation];
}

/* Returns the OID of a role; InvalidOid if it was dropped. */
Oid
catalog_role_oid(CatalogRole role)
{
	return get_catalog()->roles[role];
}

/* --- Opening tables --- */

/*
 * Open the table of queues, as nearly every function does; so we refuse
 * parallel mode here, in which the latest snapshot cannot be taken.
 */
Relation
catalog_open_queues(LOCKMODE lockmode)
{
	PreventCommandIfParallelMode("functions of the extension \"queue\"");
	return catalog_open(CATALOG_QUEUE, lockmode, NULL);
}

/* Open a table or a segment that was just locked. */
Relation
catalog_open_locked(Oid relid)
{
	Relation	rel = try_table_open(relid, NoLock);

	/*
	 * It was dropped while we waited for the lock, and so was the extension:
	 * load_catalog() raises the error that says so.  If the extension was
	 * created again meanwhile, table_open() raises one.
	 */
	if (rel == NULL)
	{
		(void) load_catalog();
		rel = table_open(relid, NoLock);
	}
	return rel;
}

/*
 * Open a table, and set *index to the OID of the index that finds its rows,
 * unless "index" is NULL.
 */
Relation
catalog_open(CatalogRelation table, LOCKMODE lockmode, Oid *index)
{
	Oid			oid = catalog_oid(table);
	Relation	rel;

	Assert(!xact_has_ended);
	LockRelationOid(oid, lockmode);
	rel = catalog_open_locked(oid);

	/* Only now, because REINDEX CONCURRENTLY needs a lock that conflicts. */
	Assert(index == NULL || relations[table].has_index);
	if (index != NULL)
		*index = get_catalog()->table_indexes[table];
	return rel;
}

/* Open a table, and the index that finds its rows. */
Relation
catalog_open_with_index(CatalogRelation table, LOCKMODE lockmode,
						Relation *index)
{
	Oid			oid;
	Relation	rel = catalog_open(table, lockmode, &oid);

	*index = index_open(oid, lockmode);
	return rel;
}

/*
 * Returns whether a table may have pages.  Does not wait for a lock: if the
 * table is locked, it may.
 */
bool
catalog_has_pages(Oid relid)
{
	Relation	rel;
	bool		result;

	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		return true;
	rel = catalog_open_locked(relid);
	result = RelationGetNumberOfBlocks(rel) > 0;
	table_close(rel, AccessShareLock);
	return result;
}

/* --- Segments --- */

Oid
catalog_segment_oid(int segment)
{
	return get_catalog()->segments[segment];
}

/*
 * Get the indexes of a segment that the caller has opened; *due_index is
 * InvalidOid if its messages are not delayed.
 */
void
catalog_segment_indexes(int segment, Relation rel, Oid *index, Oid *due_index)
{
	/* With the lock, what is known of the indexes stays true. */
	(void) get_catalog();

	/* It has changed, say by REINDEX CONCURRENTLY, which changes OIDs. */
	if (!checked[segment])
	{
		check_table(rel, Natts_message);

		/* A message that arrives during the lookup causes another one. */
		checked[segment] = true;
		find_segment_indexes(&catalog, RelationGetNamespace(rel), segment);
	}
	*index = catalog.indexes[segment];
	*due_index = catalog.due_indexes[segment];
}

/*
 * Returns the index of the members of batches, or (if "waiting" is set) of
 * what waits for a batch, in a segment that the caller has opened.
 */
Oid
catalog_batch_index(int segment, bool waiting)
{
	return catalog.batch_indexes[waiting][segment];
}

/* --- Rings --- */

/* Read which tables of the rings are active, if that may have changed. */
static void
read_rings(void)
{
	uint64		before;

	(void) get_catalog();
	if (active_generation == ring_generation)
		return;

	/* A message that arrives while we read makes us read again. */
	before = ring_generation;
	for (int i = 0; i < RINGS; i++)
		active_table[i] = NO_SEGMENT;
	catalog_read_table(CATALOG_RING, read_ring);
	catalog_read_table(CATALOG_FINISHED_RING, read_ring);
	if (active_table[RING_MESSAGES] == NO_SEGMENT)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("table \"queue_data.ring\" is empty"),
				 errhint("As a superuser, name any segments to write to, and have all sessions connect again: INSERT INTO queue_data.ring (active, delayed) VALUES (0, 16);")));
	active_generation = before;
}

/* Callback of catalog_read_table */
static void
read_ring(Relation rel, HeapTuple tuple)
{
	for (int i = 0; i < RINGS; i++)
	{
		const Ring *ring = &catalog_rings[i];
		int			active;

		if (RelationGetRelid(rel) != catalog.relations[ring->row])
			continue;

		/* The number tells of which ring of the history the row is. */
		active = DatumGetInt16(row_getattr(rel, tuple, ring->active));
		if (active < ring->first || active >= ring->first + ring->n)
			continue;
		active_table[i] = active;
		switched_at[i] = DatumGetTimestampTz(row_getattr(rel, tuple,
														 ring->active + 1));
	}
}

/*
 * Returns the active table of a ring, which takes new rows; NO_SEGMENT for one
 * of the history whose row a superuser has deleted.  A switch of the ring
 * sends an invalidation message for the table of that row; an inserter calls
 * this again after it has locked the active table.
 */
int
catalog_active_table(RingKind ring)
{
	read_rings();
	return active_table[ring];
}

/* Returns when that table has become the active one. */
TimestampTz
catalog_switched_at(RingKind ring)
{
	read_rings();
	return switched_at[ring];
}

/* --- Small tables --- */

/* Read all rows of a small table with the latest snapshot. */
void
catalog_read_table(CatalogRelation table,
				   void (*read_row) (Relation rel, HeapTuple tuple))
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	Relation	rel = catalog_open(table, AccessShareLock, NULL);
	TableScanDesc scan = table_beginscan_strat(rel, snapshot, 0, NULL, true,
											   true);
	HeapTuple	tuple;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		(void) row_check(ERROR, rel, tuple);
		read_row(rel, tuple);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	UnregisterSnapshot(snapshot);
}
