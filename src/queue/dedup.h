/*-------------------------------------------------------------------------
 *
 * dedup.h
 *	  Deduplication keys of messages.
 *
 * src/queue/dedup.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DEDUP_H
#define QUEUE_DEDUP_H

#include "access/htup.h"
#include "utils/snapshot.h"
#include "utils/uuid.h"

#include "catalog/relations.h"
#include "queue/registry.h"

/* A message that was pushed with a key */
typedef struct DedupUse
{
	int32		queue_id;
	pg_uuid_t	digest;
	int64		id;
} DedupUse;

/* A run that stands for others with its key */
typedef struct DedupRun
{
	pg_uuid_t	digest;
	int64		joined;			/* pushes that it may not have seen */
	int			n;
	int64	   *twins;			/* ids */
} DedupRun;

extern bool dedup_take_key(const Queue *queue, const pg_uuid_t *digest, int64 id);
extern DedupUse *dedup_use_of(TupleDesc desc, HeapTuple tuple);
extern void dedup_drop_use(const DedupUse *use);
extern void dedup_drop_key(MessageTable *table, HeapTuple tuple);
extern void dedup_drop_all(int32 queue_id);
extern bool dedup_is_duplicate(const Queue *queue, MessageTable *table,
							 HeapTuple tuple);
extern HeapTuple dedup_begin_run(TupleDesc desc, HeapTuple tuple,
						   Snapshot snapshot);
extern DedupRun *dedup_run_of(TupleDesc desc, HeapTuple tuple);
extern void dedup_finish_run(const Queue *queue, const DedupRun *run, bool popped);

#endif							/* QUEUE_DEDUP_H */
