/*-------------------------------------------------------------------------
 *
 * segment.h
 *	  Which segments hold messages, opening the active one, and snapshots.
 *
 * src/storage/segment.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SEGMENT_H
#define QUEUE_SEGMENT_H

#include "catalog/message_table.h"

/* What tells whether a snapshot is stale */
typedef uint64 SnapshotToken;

/* Opening the segment that takes new messages, or new delayed ones */
extern bool segment_open_active(MessageTable *table, RingKind kind,
								bool wait);

/* Which segments may hold messages */
extern bool segment_may_hold(int segment, int64 first, int64 last);

/* The snapshot to find messages with */
extern SnapshotToken segment_push_snapshot(void);
extern bool segment_snapshot_is_stale(SnapshotToken token);

#endif							/* QUEUE_SEGMENT_H */
