/*-------------------------------------------------------------------------
 *
 * finished_ring.h
 *	  The tables of the history: switching and truncating them.
 *
 * src/queue/finished_ring.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_FINISHED_RING_H
#define QUEUE_FINISHED_RING_H

#include "datatype/timestamp.h"

extern bool finished_ring_step(void *arg);

#endif							/* QUEUE_FINISHED_RING_H */
