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

#include "datatype/timestamp.h"
#include "utils/rel.h"
#include "utils/snapshot.h"

extern bool segment_recycle_step(void *arg);
extern bool segment_has_dump(void);
extern void segment_truncate(Relation rel, const char *name);
extern bool segment_is_truncating(void);
extern bool segment_is_whole(int segment, Snapshot snapshot);

#endif							/* QUEUE_SEGMENT_RECYCLE_H */
