/*-------------------------------------------------------------------------
 *
 * segment_recycle.h
 *	  Turning the ring: the next segment takes new messages, and one that holds
 *	  none is truncated.
 *
 * src/storage/segment_recycle.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SEGMENT_RECYCLE_H
#define QUEUE_SEGMENT_RECYCLE_H

#include "datatype/timestamp.h"

extern bool segment_recycle_step(TimestampTz *again);

#endif							/* QUEUE_SEGMENT_RECYCLE_H */
