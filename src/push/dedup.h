/*-------------------------------------------------------------------------
 *
 * dedup.h
 *	  Deduplication keys: dropping pushes of messages that already wait.
 *
 * src/push/dedup.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DEDUP_H
#define QUEUE_DEDUP_H

#include "access/htup.h"
#include "access/tupdesc.h"
#include "nodes/lockoptions.h"
#include "utils/uuid.h"

#include "catalog/message_table.h"
#include "queue/registry.h"

/* What makes a push with a key a duplicate, besides a message that waits */
typedef enum DedupMode
{
	DEDUP_WAITING,				/* nothing */
	DEDUP_UNFINISHED,			/* a message under a live claim */
	DEDUP_REPLACE				/* nothing; one that waits is replaced */
} DedupMode;

typedef struct DedupTerms
{
	DedupMode	mode;
	int			period;			/* and a push in the last so many seconds; 0:
								 * none */
} DedupTerms;

/* A push that takes a key */
typedef struct DedupTake
{
	const Queue *queue;
	const pg_uuid_t *digest;	/* of the key */
	int64		id;				/* of the new message */
	DedupTerms	terms;
	LockWaitPolicy wait;		/* LockWaitBlock or LockWaitSkip */
} DedupTake;

/* What came of taking a key */
typedef enum TakeResult
{
	KEY_TAKEN,					/* its row has the new message */
	KEY_DUPLICATE,				/* the push is a duplicate */
	KEY_BUSY					/* its row was changed: try again; or another
								 * transaction is in the way, and we do not
								 * wait */
} TakeResult;

/* Longest period, in seconds */
#define DEDUP_MAX_PERIOD	2592000

/* A message in the row of its key */
typedef struct DedupEntry
{
	int32		queue_id;
	pg_uuid_t	digest;			/* of the key */
	int64		id;				/* of the message */
} DedupEntry;

/* For the worker */
extern bool dedup_forget_step(void *arg);

/* For pushes */
extern TakeResult dedup_take_key(const DedupTake *take, int64 *waiting);

/* For deletes */
extern DedupEntry *dedup_entry_of(TupleDesc desc, HeapTuple tuple);
extern void dedup_drop_entry(const DedupEntry *entry);

/* For claims */
extern bool dedup_is_duplicate(const Queue *queue, MessageTable *table,
							   HeapTuple tuple);

#endif							/* QUEUE_DEDUP_H */
