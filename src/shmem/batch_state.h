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

extern void batch_state_init(void);
extern void batch_state_clear(Oid database);

/* For sessions, when a transaction has ended */
extern void batch_state_report(int64 batch, int64 first, int64 last);
extern void batch_state_probe_all(void);

/* For the worker */
extern bool batch_state_is_pending(void);
extern int64 batch_state_take(int64 *witness);
extern uint64 batch_state_generation(void);
extern int64 batch_state_add(int64 batch);
extern void batch_state_set(int64 batch, BatchState state, int64 witness);
extern void batch_state_retry(void);

#endif							/* QUEUE_BATCH_STATE_H */
