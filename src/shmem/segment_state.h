/*-------------------------------------------------------------------------
 *
 * segment_state.h
 *	  What the sessions of a database share about its rings of tables.
 *
 * src/shmem/segment_state.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SEGMENT_STATE_H
#define QUEUE_SEGMENT_STATE_H

#include "port/atomics.h"

#include "catalog/tables.h"
#include "util/settings.h"

#define SEGMENT_SWITCH_PAUSE	(2 * USECS_PER_SEC) /* between two switches of
													 * a ring of segments */
#define HISTORY_PAUSE			(2 * USECS_PER_SEC) /* from a row of the
													 * history to the worker */

/*
 * The numbers of the messages that may be in a segment, which holds none if
 * low is above high.  A session reads them after it has taken its snapshot.
 * Of a table of the history, it only counts whether there are any.
 */
typedef struct RingSegment
{
	pg_atomic_uint64 low;
	pg_atomic_uint64 high;
} RingSegment;

/* The worker attends to the rings of these separately */
typedef enum RingKindId
{
	RINGS_OF_MESSAGES,
	RINGS_OF_HISTORY,
	RING_KINDS					/* number of kinds */
} RingKindId;

/*
 * The rings of tables of a database; a part of DatabaseState.  No lock
 * protects it: each field is atomic, and none depends on another, except that
 * "extension" is set last, with the lock of the databases held.
 */
typedef struct RingState
{
	pg_atomic_uint32 extension; /* OID of the table queue_data.queue that the
								 * other fields describe */
	pg_atomic_uint64 changed;	/* bit for each table that the worker has to
								 * check, as messages were deleted from it
								 * since it did so last, or rows will be too
								 * old */
	pg_atomic_uint32 switches;	/* how often the ring of messages has switched
								 * to its next segment */
	pg_atomic_uint32 active[RINGS]; /* active tables, as of the last visit of
									 * the worker */
	pg_atomic_uint32 emptied;	/* how often a segment was emptied */
	pg_atomic_uint32 moves;		/* moves begun and ended: odd while the worker
								 * moves messages */
	pg_atomic_uint64 written[RINGS];	/* bytes written to the active segment */
	pg_atomic_uint64 due[RING_KINDS];	/* when the worker has to attend to
										 * the rings */
	RingSegment segments[RING_TABLES];
} RingState;

/*
 * Returns whether a segment is full after so many bytes.  Half of each page
 * stays free for the updates that claim messages.
 */
static inline bool
segment_is_full(uint64 written)
{
	return setting_segment_size > 0 &&
		written >= (uint64) setting_segment_size * 1024 / 2;
}

extern void segment_state_init(RingState *ring);

/* The state of this database's segments */
extern RingState *segment_state(void);
extern RingState *segment_state_own(void);

/* Which numbers a segment may hold */
extern void segment_publish(int segment, int64 number);
extern void segment_publish_finished(int table);
extern void segment_found_rows(int segment);
extern void segment_set_empty(int segment);
extern bool segment_is_free(int segment);

/* What makes the worker switch to the next segment, or recycle a segment */
extern uint32 segment_switches(void);
extern void segment_count_bytes(int segment, Size bytes);
extern void segment_record_delete(int segment);

/* Messages that the worker moves to another segment */
extern void segment_begin_move(void);
extern uint32 segment_moves(void);
extern bool segment_wait_for_move(uint32 moves);

/* The end of a transaction, in the order of pending.c */
extern void segment_end_transaction(bool commit);
extern void segment_end_move(void);

#endif							/* QUEUE_SEGMENT_STATE_H */
