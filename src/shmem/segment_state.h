/*-------------------------------------------------------------------------
 *
 * segment_state.h
 *	  What sessions share about the ring of segments.
 *
 * src/shmem/segment_state.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SEGMENT_STATE_H
#define QUEUE_SEGMENT_STATE_H

#include "port/atomics.h"

#include "catalog/tables.h"

/* segment.c: which segments hold messages, and which takes new ones */
typedef struct RingState RingState;

/*
 * What all sessions know of the ring of segments.  Each of these is changed by
 * itself, and read after the snapshot was taken.
 */
typedef struct RingSegment
{
	pg_atomic_uint64 low;		/* of the numbers of messages that may be */
	pg_atomic_uint64 high;		/* there; above high: there is none */
} RingSegment;

struct RingState
{
	pg_atomic_uint32 extension; /* whose: the OID of its table queue */
	pg_atomic_uint32 changed;	/* one where messages were deleted of late */
	pg_atomic_uint32 switches;		/* how often it turned */
	pg_atomic_uint32 active[RING_KINDS];	/* as the worker last saw it */
	pg_atomic_uint32 emptied;	/* how often one was */
	pg_atomic_uint32 moves;		/* begun and ended: odd while there is one */
	pg_atomic_uint64 written[RING_KINDS];	/* bytes, into the active segment */
	pg_atomic_uint64 due;		/* when the worker has to see to it */
	RingSegment segments[QUEUE_RELATIONS];
};

#endif							/* QUEUE_SEGMENT_STATE_H */
