/*-------------------------------------------------------------------------
 *
 * segment_switch.h
 *	  Switching: the next segment of a ring takes new messages.
 *
 * src/storage/segment_switch.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SEGMENT_SWITCH_H
#define QUEUE_SEGMENT_SWITCH_H

#include "datatype/timestamp.h"

#include "shmem/segment_state.h"

/* A ring of segments */
typedef struct Ring
{
	int			first;			/* number of its first segment */
	int			n;				/* how many it has */
} Ring;

extern const Ring segment_rings[RING_KINDS];

extern void segment_switch_begin(RingState *state);
extern bool segment_switch(RingKind kind, RingState *state,
						   TimestampTz *again);

#endif							/* QUEUE_SEGMENT_SWITCH_H */
