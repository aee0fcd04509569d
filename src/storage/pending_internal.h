/*-------------------------------------------------------------------------
 *
 * pending_internal.h
 *	  The records of pending changes, shared by pending.c and pending_list.c.
 *
 * src/storage/pending_internal.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PENDING_INTERNAL_H
#define QUEUE_PENDING_INTERNAL_H

#include "storage/pending.h"
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
	uint64		lane;			/* of the messages, or of the group;
								 * LANE_OF_OVERFLOW: of several */
	int			previous;		/* earlier record with the same hash, or -1 */
	PendingTarget target;
	PendingKind kind;
	bool		scanned;		/* a claim of this transaction has scanned it
								 * since */
	TimestampTz expires_at;		/* when the first of the messages expires, or
								 * earlier */
	TimestampTz delayed_from;	/* TARGET_DELAYED: the first due time of the
								 * messages */
	MessageRange range;			/* due: when they are free after a commit;
								 * DT_NOEND: this change frees nothing */
} PendingChange;

/* The records of the open transaction, the latest one last */
extern XactList pending_list;

static inline PendingChange *
pending_list_at(int i)
{
	return xact_record(&pending_list, i);
}

/* Returns whether messages are inserted that are free after a commit. */
static inline bool
pending_is_push(const PendingChange *record)
{
	return record->kind == PENDING_INSERT &&
		record->target == TARGET_MESSAGES && record->range.due == DT_NOBEGIN;
}

/* pending_list.c */
extern bool pending_list_add(const PendingChange *new);
extern PendingChange *pending_list_next(int32 queue_id,
										const PendingChange *after);
extern void pending_list_truncate(int n);

#endif							/* QUEUE_PENDING_INTERNAL_H */
