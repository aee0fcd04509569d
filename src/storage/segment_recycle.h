/*-------------------------------------------------------------------------
 *
 * segment_recycle.h
 *	  Recycling: a segment without messages is truncated.
 *
 * src/storage/segment_recycle.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SEGMENT_RECYCLE_H
#define QUEUE_SEGMENT_RECYCLE_H

#include "storage/ring.h"

extern const RingKind segment_ring_kind;

#endif							/* QUEUE_SEGMENT_RECYCLE_H */
