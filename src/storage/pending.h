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
#include "map/message_ranges.h"

/* What a rollback makes of a change to a message. */
typedef enum PendingKind
{
	PENDING_INSERT,				/* the message never existed */
	PENDING_CHANGE				/* the message is as free as it was before */
} PendingKind;

/* Ranges of messages that a transaction has made free itself */
typedef struct OwnRanges
{
	int			n;
	int			size;			/* of items, allocated */
	MessageRange *items;
} OwnRanges;

extern void pending_init(void);

/* Recording, before the change is made */
extern void pending_record_message(const MessageForm *form, uint64 lane,
								   TimestampTz due, PendingKind kind);
extern void pending_record_delayed(const MessageForm *form,
								   TimestampTz delayed_from, TimestampTz due,
								   PendingKind kind);
extern void pending_record_room(const MessageForm *form, uint64 lane,
								bool is_finished);
extern void pending_record_unlock(int32 queue_id, uint64 lane);
extern void pending_record_queue(int32 queue_id);
extern void pending_record_drop(int32 queue_id);
extern void pending_record_move(int32 queue_id);
extern void pending_record_restore(Oid relid);

/* What the transaction itself may claim of its changes (pending_own.c) */
extern bool pending_next_queue(int32 *queue_id);
extern int	pending_take_own(int32 queue_id, TimestampTz now, OwnRanges *own);
extern void pending_rescan_own(int scans, int64 scanned_to);
extern bool pending_has_own(int32 queue_id, TimestampTz until);
extern void pending_give_turns(int32 queue_id);
extern bool pending_has_lane(int32 queue_id, uint64 lane);
extern bool pending_has_own_delayed(int32 queue_id, TimestampTz now,
									TimestampTz *from);

#endif							/* QUEUE_PENDING_H */
