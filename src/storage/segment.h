/*-------------------------------------------------------------------------
 *
 * segment.h
 *	  Which segments hold messages, the active ones, and snapshots.
 *
 * src/storage/segment.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SEGMENT_H
#define QUEUE_SEGMENT_H

#include "datatype/timestamp.h"

#include "catalog/message_table.h"
#include "shmem/segment_state.h"

/* What tells whether a snapshot is stale */
typedef uint64 SnapshotToken;

/* Opening the segment that takes new messages, or new delayed ones */
extern bool segment_open_active(MessageTable *table, RingKind kind,
								bool wait);

/* Which segments may hold messages */
extern bool segment_may_hold(int segment, int64 first, int64 last);

/* For the worker: switching a ring to its next segment */
extern void segment_switch_begin(RingState *state);
extern bool segment_switch(RingKind kind, RingState *state,
						   TimestampTz *again);
extern void segment_write_active(RingKind kind, int next);

/* The snapshot to find messages with */
extern SnapshotToken segment_push_snapshot(void);
extern bool segment_snapshot_is_stale(SnapshotToken token);

#endif							/* QUEUE_SEGMENT_H */
