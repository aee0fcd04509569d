/*-------------------------------------------------------------------------
 *
 * finished_ring.h
 *	  The rings of the history: when they switch, and which rows are kept.
 *
 * src/queue/finished_ring.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_FINISHED_RING_H
#define QUEUE_FINISHED_RING_H

#include "storage/ring.h"

extern const RingKind finished_ring_kind;

#endif							/* QUEUE_FINISHED_RING_H */
