/*-------------------------------------------------------------------------
 *
 * relations.h
 *	  The extension's relations and roles.
 *
 * src/catalog/relations.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_RELATIONS_H
#define QUEUE_RELATIONS_H

#include "storage/lockdefs.h"
#include "utils/rel.h"

#include "catalog/tables.h"

#define CATALOG_SCHEMA	"queue_data"

/*
 * The relations of schema queue_data, but for the segments, and the indexes
 * that catalog_open() finds
 */
typedef enum CatalogRelation
{
	CATALOG_QUEUE,
	CATALOG_QUEUE_ID_INDEX,
	CATALOG_QUEUE_NAME_INDEX,
	CATALOG_QUEUE_OWNER_INDEX,
	CATALOG_QUEUE_DEAD_QUEUE_INDEX,
	CATALOG_QUEUE_SOURCE_INDEX,
	CATALOG_QUEUE_ROLES,		/* view: the roles that queues name */
	CATALOG_QUEUE_ID,			/* sequence */
	CATALOG_MESSAGE_ID,			/* sequence: blocks of message numbers */
	CATALOG_RING,
	CATALOG_SEGMENT,
	CATALOG_DEDUP_KEY,
	CATALOG_DEDUP_KEY_TIME_INDEX,
	CATALOG_ROOT_JOB,
	CATALOG_GROUPED,
	CATALOG_GROUP_RATE,
	CATALOG_JOB_COUNTER,
	CATALOG_HANDLER,
	CATALOG_SECRET,
	CATALOG_SERVER,
	CATALOG_SHARD,
	CATALOG_PUSH_ORIGIN,
	CATALOG_PUSH_ORIGIN_TIME_INDEX,
	CATALOG_BATCH,
	CATALOG_BATCH_ID,			/* sequence */
	CATALOG_BATCH_PART,
	CATALOG_TOPIC,
	CATALOG_FINISHED_RING,
	CATALOG_FINISHED_0,			/* FINISHED_SEGMENTS tables */
	CATALOG_RELATIONS = CATALOG_FINISHED_0 + FINISHED_SEGMENTS	/* number */
} CatalogRelation;

/* One that the version before does not have */
#define CATALOG_NEWEST	CATALOG_DEDUP_KEY_TIME_INDEX

/* The roles that the extension creates */
typedef enum CatalogRole
{
	CATALOG_PRODUCER,			/* queue_producer */
	CATALOG_CONSUMER,			/* queue_consumer */
	CATALOG_ADMIN,				/* queue_admin */
	CATALOG_ROLES				/* number of roles */
} CatalogRole;

extern void catalog_init(void);

/* What has changed */
extern uint64 catalog_generation(void);
extern uint64 catalog_tables_generation(void);
extern uint64 catalog_topics_generation(void);
extern void catalog_invalidate(void);

/* Relations and roles */
extern Oid	catalog_queue_oid(void);
extern Oid	catalog_oid(CatalogRelation relation);
extern Oid	catalog_role_oid(CatalogRole role);

/* Keeping the extension from being dropped */
typedef enum ExtensionHold
{
	EXTENSION_HELD,				/* until the transaction ends */
	EXTENSION_LOCKED,			/* DROP EXTENSION runs, or LOCK TABLE */
	EXTENSION_MISSING,			/* it does not exist */
	EXTENSION_OUTDATED			/* its tables are those of an earlier version */
} ExtensionHold;

extern ExtensionHold catalog_hold_extension(void);

/* Opening a table, and the index that finds its rows */
extern Relation catalog_open_queues(LOCKMODE lockmode);
extern Relation catalog_open_locked(Oid relid);
extern Relation catalog_open(CatalogRelation table, LOCKMODE lockmode,
							 Oid *index);
extern Relation catalog_open_with_index(CatalogRelation table,
										LOCKMODE lockmode, Relation *index);
extern bool catalog_has_pages(Oid relid);

/* Segments; see also message_table.h */
extern Oid	catalog_segment_oid(int segment);
extern void catalog_segment_indexes(int segment, Relation rel, Oid *index,
									Oid *due_index);
extern Oid	catalog_batch_index(int segment, bool waiting);

/* A ring of tables; the first one of the history has the longest keep_max */
typedef struct Ring
{
	CatalogRelation row;		/* the table that says which one is active: */
	int			active;			/* this column, and the next one since when */
	int			first;			/* number of its first table */
	int			n;				/* how many it has */
	int64		keep_max;		/* seconds: of queues that keep their history
								 * no longer than this */
} Ring;

extern const Ring catalog_rings[RINGS];

extern int	catalog_active_table(RingKind ring);
extern TimestampTz catalog_switched_at(RingKind ring);

/* Small tables */
extern void catalog_read_table(CatalogRelation table,
							   void (*read_row) (Relation rel,
												 HeapTuple tuple));

#endif							/* QUEUE_RELATIONS_H */
