/*-------------------------------------------------------------------------
 *
 * depth_state.h
 *	  What the sessions of a database share about the depths of its queues.
 *
 * src/shmem/depth_state.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DEPTH_STATE_H
#define QUEUE_DEPTH_STATE_H

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "utils/snapshot.h"

/*
 * A part of DatabaseState.  No lock protects it: each field is atomic, except
 * that the generation is only changed with the lock of recounts held.
 */
typedef struct DepthState
{
	pg_atomic_uint64 generation;	/* of the last recount, an even number;
									 * odd: its snapshot is being taken */
	pg_atomic_uint64 base;		/* the generation that was counted, or 0 */
	pg_atomic_uint32 lost;		/* changes of depths were lost since that
								 * generation began */
	pg_atomic_uint32 incomplete;	/* since then, a queue with messages had
									 * no map */
	pg_atomic_uint64 ends_counted;	/* of the claims whose ends were counted,
									 * the latest end */
	pg_atomic_uint32 counter;	/* pid of the process that counts all messages
								 * in the worker's place, or 0 */
} DepthState;

/* Set-up */
extern void depth_init(void);
extern void depth_state_init(DepthState *state);
extern void depth_state_reset(DepthState *state);

/* Whether the depths are known */
extern bool depth_is_known(uint64 *generation);
extern bool depth_has_base(uint64 generation);
extern bool depth_state_is_known(DepthState *state);
extern bool depth_state_is_counted(DepthState *state, uint64 *generation);
extern uint64 depth_generation(void);
extern void depth_lose_mine(void);
extern void depth_set_incomplete(void);

/* A transaction that has changed them */
extern void depth_before_commit(void);
extern bool depth_after_commit(uint64 *generation);

/* For the worker: a recount, and ends of claims */
extern bool depth_is_lost(void);
extern Snapshot depth_begin_recount(void);
extern void depth_end_recount(void);
extern bool depth_enter_counter(int worker_pid);
extern void depth_leave_counter(void);
extern bool depth_has_counter(void);
extern void depth_count_end(TimestampTz end);

/* For a change of a message whose claim has ended then */
extern bool depth_end_may_be_counted(TimestampTz end);

#endif							/* QUEUE_DEPTH_STATE_H */
