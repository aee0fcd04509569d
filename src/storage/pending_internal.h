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

#include "map/message_ranges.h"
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

/*
 * A queue has a list of records for each class, so that a claim of the same
 * transaction reads only those in which it may find something.
 */
typedef enum PendingClass
{
	PENDING_FREE,				/* messages that a commit makes free at once */
	PENDING_LATER,				/* ... at a time, such as the end of a claim */
	PENDING_DELAYED,			/* delayed messages that come due */
	PENDING_ROOM,				/* room in groups with a bound */
	PENDING_OTHER				/* nothing that such a claim may find */
} PendingClass;

#define PENDING_CLASSES		(PENDING_OTHER + 1)

/* The records of one class of a queue */
typedef struct PendingRecords
{
	int			latest;			/* or -1 */
	int			unscanned;		/* all records before this one are scanned */
	TimestampTz due;			/* nothing that is not scanned is free before
								 * that */
} PendingRecords;

/* Changes to messages whose numbers are close, or to a queue as a whole */
typedef struct PendingChange
{
	XactRecord	xact;
	Oid			extension;		/* OID of the table queue_data.queue */
	int32		queue_id;
	LaneId		lane;			/* of the messages, or of the group;
								 * LANE_OF_OVERFLOW: of several */
	int			previous;		/* the one before in PendingRecords, or -1 */
	PendingTarget target;
	bool		in_map;			/* after a rollback to a savepoint: own claims
								 * find the messages by the map */
	int64		scanned_to;		/* own claims have scanned the messages up to
								 * this number since */
	TimestampTz expires_at;		/* when the first of the messages expires, or
								 * earlier */
	MessageRange range;			/* due: when they are free after a commit;
								 * DT_NOEND: this change frees nothing */
	TimestampTz due_before;		/* the same after a rollback: when they were
								 * due before; DT_NOEND: they were not there */
} PendingChange;

/* The records of the open transaction, the latest one last */
extern XactList pending_list;

/* What its claims have scanned of them (pending_own.c) */
extern XactList own_scans;

static inline PendingChange *
pending_list_at(int i)
{
	return xact_record(&pending_list, i);
}

/* Returns whether own claims have not scanned all of the record. */
static inline bool
pending_is_unscanned(const PendingChange *record)
{
	return record->scanned_to < record->range.last;
}

/* Returns whether messages are inserted that are free after a commit. */
static inline bool
pending_is_push(const PendingChange *record)
{
	return record->due_before == DT_NOEND &&
		record->target == TARGET_MESSAGES && record->range.due == DT_NOBEGIN;
}

/* pending.c */
extern void pending_forget_all(Oid extension);
extern void pending_return_prepared(const PendingChange *record, bool commit);

/* pending_list.c */
extern bool pending_list_add(const PendingChange *new);
extern PendingRecords *pending_list_find(int32 queue_id, PendingClass class);
extern int32 pending_list_next_queue(int32 queue_id);
extern void pending_list_link(int i);
extern void pending_list_unlink(int first);
extern void pending_list_unscanned(int i);

#endif							/* QUEUE_PENDING_INTERNAL_H */
