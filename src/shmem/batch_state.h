/*-------------------------------------------------------------------------
 *
 * batch_state.h
 *	  Which batches may have finished, in shared memory.
 *
 * src/shmem/batch_state.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_BATCH_STATE_H
#define QUEUE_BATCH_STATE_H

#include "shmem/shmem.h"

/* As a member's id: above those of all messages */
#define BATCH_NOT_PROBED	PG_INT64_MAX

/* What is known of a batch (batch_state.c) */
typedef enum BatchState
{
	BATCH_NONE,
	BATCH_WITNESS,
	BATCH_MAY_END,
	BATCH_UNKNOWN
} BatchState;

/* How far the worker has come with a batch */
typedef struct BatchProgress
{
	int64		witness;		/* the member that was found last, or
								 * BATCH_NOT_PROBED: none was, or the batch
								 * cannot finish before it is closed */
	int64		marker;			/* what waits for it was read up to this id, */
	int64		left;			/* and the first one that could not be freed,
								 * or 0 */
} BatchProgress;

extern const SharedArea batch_area;
extern void batch_state_clear(Oid database);

/* For sessions, when a transaction has ended */
extern void batch_state_report(int64 batch, int64 first, int64 last);
extern void batch_state_probe_all(void);

/* For the worker */
extern int64 batch_state_take(BatchProgress *progress);
extern int64 batch_state_take_overdue(int64 now, BatchProgress *progress,
									  int64 *next);
extern void batch_state_add(int64 batch, BatchProgress *progress);
extern int64 batch_state_set(int64 batch, BatchState state, bool goes_on,
							 const BatchProgress *progress);

#endif							/* QUEUE_BATCH_STATE_H */
