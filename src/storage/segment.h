/*-------------------------------------------------------------------------
 *
 * segment.h
 *	  Which segments hold messages, and which one takes new ones.
 *
 * src/storage/segment.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SEGMENT_H
#define QUEUE_SEGMENT_H

#include "catalog/message_table.h"
#include "shmem/segment_state.h"

extern void segment_open_active(MessageTable *table);
extern bool segment_try_open_active(MessageTable *table);
extern void segment_open_delayed(MessageTable *table);
extern bool segment_refresh(void);
extern bool segment_in_use(int segment);
extern bool segment_may_hold(int segment, int64 first, int64 last);
extern void segment_push_snapshot(void);
extern bool segment_snapshot_is_stale(void);
extern void segment_renew_snapshot(void);

#endif							/* QUEUE_SEGMENT_H */
