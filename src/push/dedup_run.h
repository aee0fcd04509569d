/*-------------------------------------------------------------------------
 *
 * dedup_run.h
 *	  Runs of messages that cover messages with the same deduplication key.
 *
 * src/push/dedup_run.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DEDUP_RUN_H
#define QUEUE_DEDUP_RUN_H

#include "access/htup.h"
#include "access/tupdesc.h"
#include "utils/snapshot.h"
#include "utils/uuid.h"

#include "queue/registry.h"

/* The run of a claimed message that covers twins */
typedef struct DedupRun
{
	pg_uuid_t	digest;			/* of the key */
	int			n;
	int64	   *twins;			/* ids of the messages that it covers */
	int64		joined;			/* of the key's row, when the run began */
} DedupRun;

/* How a run ended */
typedef enum DedupRunEnd
{
	RUN_COMPLETED,				/* the message was deleted under its claim */
	RUN_POPPED					/* it was handed out and deleted at once */
} DedupRunEnd;

extern HeapTuple dedup_begin_run(TupleDesc desc, HeapTuple tuple,
								 Snapshot snapshot);
extern DedupRun *dedup_run_of(TupleDesc desc, HeapTuple tuple);
extern void dedup_finish_run(const Queue *queue, const DedupRun *run,
							 DedupRunEnd end);

#endif							/* QUEUE_DEDUP_RUN_H */
