/*-------------------------------------------------------------------------
 *
 * dedup_table.h
 *	  The rows of queue_data.dedup_key.
 *
 * src/push/dedup_table.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DEDUP_TABLE_H
#define QUEUE_DEDUP_TABLE_H

#include "access/htup.h"
#include "utils/rel.h"
#include "utils/snapshot.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

/* A deduplication key of a queue, and the messages that were pushed with it */
typedef struct DedupKey
{
	int32		queue_id;
	pg_uuid_t	digest;			/* of the key */
	int			n;
	int64	   *ids;			/* of the messages, the latest one first */
	int64		joined;			/* see dedup.c */
	int64		version;		/* of the row; or of the last one, or 0 */

	/* Of the last push with a period, or DT_NOBEGIN */
	TimestampTz pushed_at;
	TimestampTz kept_until;		/* the row stays so long */
} DedupKey;

/* Arrays of ids; also for the column twins of a message */
extern Datum dedup_table_form_ids(const int64 *ids, int n);
extern int64 *dedup_table_get_ids(Datum array, int *n);

/*
 * Reading.  These take queue_id and digest from *key and set the rest.  They
 * return NULL or false if the key has no row.
 */
extern HeapTuple dedup_table_find(Relation rel, Relation index,
								  DedupKey *key, bool *locked);
extern HeapTuple dedup_table_fetch(Relation rel, Relation index,
								   DedupKey *key, Snapshot snapshot);
extern void dedup_table_get(Relation rel, HeapTuple tuple, DedupKey *key);
extern bool dedup_table_read(Snapshot snapshot, DedupKey *key);

/* Writing */
extern bool dedup_table_insert(Relation rel, Relation index, DedupKey *key,
							   bool wait);
extern bool dedup_table_update(Relation rel, HeapTuple tuple, DedupKey *key);

#endif							/* QUEUE_DEDUP_TABLE_H */
