/*-------------------------------------------------------------------------
 *
 * pending.h
 *	  Pending changes: what the open transaction did to messages.
 *
 * src/storage/pending.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PENDING_H
#define QUEUE_PENDING_H

#include "datatype/timestamp.h"

#include "catalog/tables.h"
#include "map/lane_id.h"

extern void pending_init(void);

/* Recording, before the change is made */
extern void pending_record_message(const MessageForm *form, LaneId lane,
								   TimestampTz due_before, TimestampTz due);
extern void pending_record_delayed(const MessageForm *form,
								   TimestampTz due_before, TimestampTz due);
extern void pending_record_room(const MessageForm *form, LaneId lane,
								bool is_finished);
extern void pending_record_unlock(int32 queue_id, LaneId lane);
extern void pending_record_queue(int32 queue_id);
extern void pending_record_drop(int32 queue_id);
extern void pending_record_move(int32 queue_id);
extern void pending_record_restore(Oid relid);

#endif							/* QUEUE_PENDING_H */
