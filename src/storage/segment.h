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

#include "catalog/relations.h"
#include "shmem/segment_state.h"

extern void segment_open_active(MessageTable *table);
extern bool segment_try_open_active(MessageTable *table);
extern void segment_open_delayed(MessageTable *table);
extern bool segment_refresh(void);
extern bool segment_in_use(int segment);
extern bool segment_may_hold(int segment, int64 first, int64 last);
extern void segment_publish(int segment, int64 number);
extern void segment_forget_published(void);
extern void segment_count_bytes(int segment, Size bytes);
extern void segment_record_delete(int segment);
extern void segment_end_transaction(bool commit);
extern uint32 segment_switches(void);
extern void segment_push_snapshot(void);
extern bool segment_snapshot_is_stale(void);
extern void segment_renew_snapshot(void);
extern void segment_begin_move(void);
extern void segment_end_move(void);
extern uint32 segment_moves(void);
extern bool segment_wait_for_move(uint32 moves);
extern RingState *segment_state_own(void);
extern void segment_found_rows(int segment);
extern void segment_set_empty(int segment);
extern bool segment_is_free(int segment);

#endif							/* QUEUE_SEGMENT_H */
