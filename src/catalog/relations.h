/*-------------------------------------------------------------------------
 *
 * relations.h
 *	  The extension's relations and roles: where they are, and opening them.
 *
 * src/catalog/relations.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_RELATIONS_H
#define QUEUE_RELATIONS_H

#include "executor/tuptable.h"
#include "storage/lockdefs.h"
#include "utils/rel.h"

#include "catalog/tables.h"

/* The indexes of a table that get an entry for each of its rows. */
typedef struct IndexList
{
	int			n;
	Relation   *relations;
} IndexList;

/* An opened table that holds messages. */
typedef struct MessageTable
{
	int			segment;		/* below QUEUE_RELATIONS */
	Relation	heap;
	Relation	index;			/* (queue_id, priority desc, id); of delayed
								 * (queue_id, id) */
	Relation	due_index;		/* of delayed: (queue_id, due_at) */
	LOCKMODE	lockmode;
	TupleTableSlot *out;		/* for rows to be written; NULL when
								 * opened for reading */
	IndexList	all;			/* unless opened for reading */
} MessageTable;

extern void catalog_init(void);
extern uint64 catalog_generation(void);
extern uint64 catalog_tables_generation(void);
extern uint64 catalog_lookup_generation(void);
extern void catalog_lookup_changed(void);
extern Oid	catalog_queue_oid(void);
extern Relation catalog_open_queues(LOCKMODE lockmode);
extern Oid	catalog_queue_id_index_oid(void);
extern Oid	catalog_queue_name_index_oid(void);
extern Oid	catalog_queue_owner_index_oid(void);
extern Oid	catalog_queue_dead_queue_index_oid(void);
extern Oid	catalog_queue_source_index_oid(void);
extern Oid	catalog_queue_roles_oid(void);
extern void message_table_open(MessageTable *table, int segment,
							 LOCKMODE lockmode);
extern bool message_table_try_open(MessageTable *table, int segment,
								 LOCKMODE lockmode);
extern void message_table_close(MessageTable *table, bool keep_lock);
extern void catalog_open_indexes(Relation rel, IndexList *indexes);
extern void catalog_close_indexes(IndexList *indexes);
extern bool message_table_has_pages(int segment);
extern Relation catalog_open_dedup_keys(LOCKMODE lockmode, Relation *index);
extern int	catalog_active_segment(RingKind kind);
extern Relation catalog_open_ring(LOCKMODE lockmode);
extern Relation catalog_open_segments(LOCKMODE lockmode);
extern Oid	catalog_segment_oid(int segment);
extern Relation catalog_open_root_jobs(LOCKMODE lockmode, Relation *index);
extern Relation catalog_open_job_counters(LOCKMODE lockmode, Relation *index);
extern bool catalog_lock_job_counters(void);
extern Relation catalog_open_handlers(LOCKMODE lockmode, Oid *index);
extern Relation catalog_open_schedules(LOCKMODE lockmode, Relation *index);
extern int32 catalog_next_schedule_id(void);
extern int64 catalog_next_block(void);
extern int32 catalog_next_queue_id(void);
extern const unsigned char *catalog_secret(void);
extern Oid	catalog_producer_role(void);
extern Oid	catalog_consumer_role(void);
extern Oid	catalog_admin_role(void);

#endif							/* QUEUE_RELATIONS_H */
