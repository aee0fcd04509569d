/*-------------------------------------------------------------------------
 *
 * push_batch.h
 *	  New messages that are members of a batch, or wait for one.
 *
 * src/push/push_batch.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PUSH_BATCH_H
#define QUEUE_PUSH_BATCH_H

#include "push/push.h"
#include "storage/batches.h"

extern void batch_open(int64 id, Batch *batch);
extern void push_use_batches(const Queue *queue, NewMessage *messages,
							 int n);
extern Jsonb *push_batch_headers(Jsonb *headers, const Batch *batch);

#endif							/* QUEUE_PUSH_BATCH_H */
