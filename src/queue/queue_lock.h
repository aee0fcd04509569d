/*-------------------------------------------------------------------------
 *
 * queue_lock.h
 *	  Heavyweight locks on queues, and on what belongs to them.
 *
 * src/queue/queue_lock.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_QUEUE_LOCK_H
#define QUEUE_QUEUE_LOCK_H

#include "queue/acl.h"

/* What is locked; but for LOCK_QUEUE, sub-ids of an object: queue_lock.c */
typedef enum LockSubId
{
	LOCK_QUEUE = 0,
	LOCK_DEAD_LETTERS = 1,
	LOCK_RATE = 2,
	LOCK_ROLE = 3,
	LOCK_SHARD = 4,
	LOCK_SLOT = 16				/* and above */
} LockSubId;

/* What became of locking a queue */
typedef enum QueueLockResult
{
	QUEUE_LOCK_TAKEN,			/* a lock that queue_unlock can release */
	QUEUE_LOCK_KEPT,			/* this transaction has the lock already, or a
								 * lock on the row: it stays */
	QUEUE_LOCK_BUSY,			/* not without waiting */
	QUEUE_LOCK_GONE				/* the queue does not exist any more */
} QueueLockResult;

/* The queue */
extern QueueLockResult queue_lock(int32 queue_id, QueueAccess access,
								  bool wait);
extern void queue_unlock(int32 queue_id, QueueAccess access);
extern bool queue_lock_try(int32 queue_id);

/* What belongs to it, and more */
extern bool queue_lock_part(int32 id, LockSubId sub_id, LOCKMODE mode,
							bool wait);

/* Slots for the concurrent runs of a handler */
extern int	queue_lock_acquire_slot(int32 queue_id, int nslots);
extern void queue_lock_release_slot(Oid queue_table, int32 queue_id,
									int slot);

#endif							/* QUEUE_QUEUE_LOCK_H */
