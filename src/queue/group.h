/*-------------------------------------------------------------------------
 *
 * group.h
 *	  Groups of messages: which queues have any, and locks.
 *
 * src/queue/group.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_GROUP_H
#define QUEUE_GROUP_H

#include "access/htup.h"

#include "catalog/message_table.h"
#include "map/lane_id.h"
#include "queue/queue_table.h"
#include "util/xact.h"

/* Queues with groups */
extern void group_register(int32 queue_id);
extern void group_make_room(const Queue *queue, MessageTable *table,
							HeapTuple tuple, bool is_finished);

/* Pops of this transaction */
extern XactList group_pops;
extern void group_record_pop(const Queue *queue, MessageTable *table,
							 HeapTuple tuple);
extern int	group_popped(int32 queue_id, LaneId lane);

/* Locks */
extern XactList group_locks;
extern bool group_try_lock(int32 queue_id, LaneId lane, bool *is_new);
extern void group_unlock(int32 queue_id, LaneId lane);
extern uint64 group_locked_by(int32 queue_id, LaneId lane);

#endif							/* QUEUE_GROUP_H */
