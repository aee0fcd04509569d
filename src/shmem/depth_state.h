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
#include "storage/block.h"
#include "utils/snapshot.h"

#include "shmem/shmem.h"

/* The depths of a queue: numbers of messages (counts.c) */
typedef enum QueueDepth
{
	DEPTH_READY,
	DEPTH_CLAIMED,
	DEPTH_DELAYED,
	DEPTHS						/* number of depths */
} QueueDepth;

/* More than a queue has: of one of which is not known whether it is empty */
#define DEPTH_NOT_EMPTY	(PG_INT64_MAX / 2)

/* A recount reads so many pages in one step, from a multiple of that on. */
#define DEPTH_STEP_PAGES	64

/*
 * Returns the position of a page among those of all segments, in the order in
 * which a recount reads them; the pages of one step have the same.
 */
static inline uint64
depth_position(int segment, BlockNumber page)
{
	return ((uint64) segment << 32) | (page - page % DEPTH_STEP_PAGES);
}

/* How a transaction changes the depths of a queue */
typedef struct DepthChange
{
	int64		n[DEPTHS];
	bool		is_used;		/* it has changed anything */
	uint64		position;		/* of all rows that it has changed */
	uint64		counted_in;		/* the generation whose recount had passed
								 * them by then; 0: it had not */
} DepthChange;

/* What becomes of a change that was committed */
typedef enum DepthFate
{
	DEPTH_ADD,					/* it is added to the depths */
	DEPTH_SHOWN,				/* a step of a recount will count it */
	DEPTH_ASK_WORKER			/* one of these; only the worker knows which */
} DepthFate;

/*
 * A part of DatabaseState.  The fields need no lock, except that the
 * generation and the cursor are only changed with the lock of recounts held.
 */
typedef struct DepthState
{
	pg_atomic_uint64 generation;	/* of the last recount */
	pg_atomic_uint64 base;		/* the generation that was counted, and
								 * nothing was lost since; RECOUNT_RUNS while
								 * it is being counted; else 0 */
	pg_atomic_uint32 incomplete;	/* since that generation began, a queue
									 * with messages had no map */
	pg_atomic_uint64 ends_counted;	/* of the claims whose ends were counted,
									 * the latest end */
	pg_atomic_uint64 cursor;	/* the position where the last step of a
								 * recount ended */
} DepthState;

/* Set-up */
extern const SharedArea recount_area;
extern void depth_state_init(DepthState *state);
extern void depth_state_reset(DepthState *state);

/* Whether the depths are known */
extern uint64 depth_known(void);
extern uint64 depth_state_counted(DepthState *state);
extern bool depth_state_is_incomplete(DepthState *state);
extern uint64 depth_generation(void);
extern void depth_lose(void);
extern void depth_set_incomplete(void);

/* A transaction that changes them */
extern uint64 depth_counted_in(uint64 position);
extern DepthFate depth_fate(const DepthChange *change);

/* For the worker: recounts, and changes that wait for it */
extern bool depth_is_lost(void);
extern bool depth_begin_recount(void);
extern Snapshot depth_begin_step(uint64 to);
extern void depth_end_recount(void);
extern bool depth_adds_ended(const DepthChange *change, TransactionId xid);

/* Claims that run out */
extern bool depth_publish_end_of_claim(TimestampTz end);
extern bool depth_end_may_be_counted(TimestampTz end);

#endif							/* QUEUE_DEPTH_STATE_H */
