/*-------------------------------------------------------------------------
 *
 * cancel.h
 *	  Canceling messages.
 *
 * src/claim/cancel.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CANCEL_H
#define QUEUE_CANCEL_H

#include "utils/jsonb.h"

#include "queue/registry.h"
#include "util/xact.h"

/* Interrupts the job of a message; called when its cancel has committed. */
typedef void (*CancelCallback) (int32 queue_id, int64 id);

extern XactList cancel_records;

extern void cancel_init(CancelCallback interrupt);

extern int64 cancel_messages(const Queue *queue, Datum *ids, int n,
							 const char *reason, bool *is_pending);
extern int64 cancel_where(const Queue *queue, Jsonb *part,
						  const char *reason);
extern int64 cancel_batch(int64 batch);
extern bool cancel_is_own(int32 queue_id, int64 id);
extern bool cancel_is_pending(int32 queue_id, int64 id);

#endif							/* QUEUE_CANCEL_H */
