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
#include "util/xact.h"

/* What a record is about. */
typedef enum PendingTarget
{
	TARGET_MESSAGES,			/* messages in the ring that claims scan */
	TARGET_DELAYED,				/* delayed messages */
	TARGET_ROOM,				/* messages of a group with a bound that are
								 * finished */
	TARGET_TURN,				/* messages of such a group that do not count
								 * toward the bound any more, for now; or
								 * none: the group is unlocked */

	/* A queue as a whole */
	TARGET_QUEUE,				/* it was resumed, for example */
	TARGET_DROP,				/* it is dropped */
	TARGET_MOVE					/* it comes from another server, or goes there */
} PendingTarget;

/* Changes to messages whose numbers are close, or to a queue as a whole */
typedef struct PendingChange
{
	XactRecord	xact;
	Oid			extension;		/* OID of the table queue_data.queue */
	int32		queue_id;
	LaneId		lane;			/* of the messages, or of the group */
	int			previous;		/* the one before of the same queue, or -1 */
	PendingTarget target;
	TimestampTz expires_at;		/* when the first of the messages expires, or
								 * earlier */
	MessageRange range;			/* due: when they are free after a commit;
								 * DT_NOEND: this change frees nothing */
	TimestampTz due_before;		/* the same after a rollback: when they were
								 * due before; DT_NOEND: they were not there */
} PendingChange;

/* Ranges of messages that the transaction has changed */
typedef struct OwnRanges
{
	int			n;
	int			size;			/* of items, allocated */
	MessageRange *items;
} OwnRanges;

/* The records of the open transaction, the latest one last */
extern XactList pending_changes;

/* Recording, before the change is made */
extern void pending_record_change(const MessageForm *form,
								  PendingTarget target, LaneId lane,
								  TimestampTz due_before, TimestampTz due);
extern void pending_record_queue(int32 queue_id, PendingTarget target,
								 LaneId lane);
extern void pending_record_restore(Oid relid);

/* What the open transaction may claim of its own changes */
extern bool pending_next_queue(int32 *queue_id);
extern void pending_take_own(int32 queue_id, TimestampTz now,
							 MessageRanges *taken);
extern void pending_return_own(int32 queue_id, TimestampTz now,
							   MessageRanges *taken,
							   const MessageRanges *skipped, int64 scanned_to);
extern void pending_give_turns(int32 queue_id);
extern void pending_add_of_lane(int32 queue_id, LaneId lane, OwnRanges *own);

/* For prepared.c */
extern void pending_return(const PendingChange *record, bool commit);
extern void pending_forget_all(Oid extension);

#endif							/* QUEUE_PENDING_H */
