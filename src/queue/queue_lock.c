/*-------------------------------------------------------------------------
 *
 * queue_lock.c
 *	  Heavyweight locks on queues, and on what belongs to them.
 *
 * NOTES
 *	  1. What is locked.  The lock of a queue itself has the tag of a relation,
 *	  (database, QUEUE_LOCK_OID + id): only such locks have a fast path, and
 *	  without it all sessions that use a queue would wait for one partition of
 *	  the lock table.  No relation has such an OID before a server has assigned
 *	  two billion others; then, locks on a table might conflict with those on a
 *	  queue.  All other locks here are object locks on the table of queues:
 *	  (database, queue_data.queue, id, sub-id).  The id is a queue's unless
 *	  stated otherwise.
 *
 *	  sub-id		mode					held while
 *
 *	  QUEUE			RowExclusive			pushing, claiming, deleting
 *					ShareUpdateExclusive	changing the queue's row or its
 *											handler; others push and claim on
 *					Exclusive				purging, dropping
 *	  DEAD_LETTERS	Share					relying on where the queue's dead
 *											letters go, to exclude a cycle
 *					Exclusive				changing where they go
 *	  RATE			Exclusive				starting jobs of a queue with a
 *											rate
 *	  ROLE			Share					writing a reference to a role; the
 *											id is the role's (role.c)
 *					Exclusive				removing the record of a role
 *	  SHARD			RowExclusive			creating a queue in a sharded
 *											database; the id is its shard
 *					Exclusive				moving it to another server
 *	  SLOT + n		Exclusive				running the queue's handler: its
 *											concurrency is the number of slots
 *
 *	  All are held to the end of the transaction, so that another session sees
 *	  what was committed under the lock, except for slots.  A slot is held by
 *	  the session, over the transactions of a run, until it is released, a
 *	  transaction aborts or the process exits (session_lock.c).
 *
 *	  2. Many queues in one transaction.  The lock table has room for some
 *	  thousand locks only.  A transaction that pushes to or claims from more
 *	  than MAX_QUEUE_LOCKS queues locks the rows of the further ones instead
 *	  (FOR KEY SHARE).  Therefore purge and drop lock the row as well (FOR
 *	  UPDATE), after the queue.  No lock stands for more than one queue, so
 *	  that a session never waits because of a queue that it does not use.
 *
 *	  3. Waiting.  The worker never waits for a lock on a queue: it calls
 *	  queue_lock_try before it opens one.  If it creates a dead letter queue,
 *	  it waits for a millisecond (queue_try_require_dead_letters).  A runner
 *	  waits for a moment only (batch_limit_lock_wait).  Locks on roles and
 *	  slots are never waited for.
 *
 *	  4. After waiting, what was read before may no longer hold.  A function
 *	  that waits therefore processes invalidation messages at the end, and the
 *	  caller reads again what it relies on: queue_open_as,
 *	  lock_dead_letter_chain in dead_letter_queue.c.
 *
 *	  5. Order.  A function takes the locks that it waits for in this order:
 *
 *		QUEUE, of the queue that the statement names; then its row
 *		QUEUE, of its dead letter queue or of a dead letter's origin; or SHARD,
 *		of one of these that is created
 *		DEAD_LETTERS, in the order of ids
 *		RATE
 *		tables of messages, then their rows
 *		LWLocks of shared memory, none of which is held while one of the above
 *		is taken
 *
 *	  Users can combine statements in any order, as with tables, and then the
 *	  deadlock detector resolves a cycle.  Sessions that only push, claim and
 *	  delete cannot be part of a cycle of queue locks, since RowExclusive does
 *	  not conflict with itself; except where such a call buries a message and
 *	  gives its queue a dead letter queue (claim_prepare_bury).  A range of
 *	  messages is reserved in the availability map only after all of these
 *	  locks are taken: a claim must not wait while it keeps a range from
 *	  others.
 *
 * src/queue/queue_lock.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"

#include "catalog/relations.h"
#include "map/availability_reserve.h"
#include "queue/queue_lock.h"
#include "queue/queue_table.h"
#include "util/compat.h"
#include "util/session_lock.h"

#define QUEUE_LOCK_OID	((Oid) 1 << 31) /* ids of queues are positive */
#define MAX_QUEUE_LOCKS	64		/* per transaction */

/* Locks on queues that this transaction has taken */
static LocalTransactionId counted_xid = InvalidLocalTransactionId;
static int	nlocks;

static LOCKMODE lock_mode(QueueAccess access);
static void set_queue_tag(LOCKTAG *tag, int32 id, int sub_id);
static LockAcquireResult acquire_lock(int32 id, LockSubId sub_id,
									  LOCKMODE mode, bool wait);
static QueueLockResult lock_queue_row(int32 queue_id, LockTupleMode mode,
									  bool wait);
static QueueLockResult lock_row_for_use(int32 queue_id, bool wait);

static LOCKMODE
lock_mode(QueueAccess access)
{
	switch (access)
	{
		case QUEUE_PUSH:
		case QUEUE_CLAIM:
			return RowExclusiveLock;
		case QUEUE_ALTER:
			return ShareUpdateExclusiveLock;
		case QUEUE_PURGE:
		case QUEUE_DROP:

			/*
			 * Not AccessExclusive, which would be the same here, but which
			 * PostgreSQL writes to WAL for a relation.
			 */
			return ExclusiveLock;
		case QUEUE_DESCRIBE:
		case QUEUE_READ:
		case QUEUE_INSPECT:
			break;
	}
	elog(ERROR, "unrecognized access to a queue: %d", (int) access);
}

static void
set_queue_tag(LOCKTAG *tag, int32 id, int sub_id)
{
	if (sub_id == LOCK_QUEUE)
		SET_LOCKTAG_RELATION(*tag, MyDatabaseId, QUEUE_LOCK_OID + id);
	else
		SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, catalog_queue_oid(),
						   (uint32) id, sub_id);
}

static LockAcquireResult
acquire_lock(int32 id, LockSubId sub_id, LOCKMODE mode, bool wait)
{
	LOCKTAG		tag;

	set_queue_tag(&tag, id, sub_id);
	return LockAcquire(&tag, mode, false, !wait);
}

/* --- The queue --- */

/*
 * Lock the row of a queue to the end of the transaction.  The lock on the
 * table is kept as well, or VACUUM FULL would lose the lock on the row.
 */
static QueueLockResult
lock_queue_row(int32 queue_id, LockTupleMode mode, bool wait)
{
	Relation	rel = catalog_open_queues(RowShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	HeapTuple	tuple = queue_table_fetch_by_id(rel, queue_id, false);
	QueueLockResult result = QUEUE_LOCK_KEPT;
	TM_FailureData failure;

	if (!HeapTupleIsValid(tuple))
		result = QUEUE_LOCK_GONE;
	else
	{
		PushActiveSnapshot(GetLatestSnapshot());
		switch (table_tuple_lock(rel, &tuple->t_self, GetActiveSnapshot(),
								 slot, GetCurrentCommandId(true), mode,
								 wait ? LockWaitBlock : LockWaitSkip,
								 TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS |
								 TUPLE_LOCK_FLAG_FIND_LAST_VERSION,
								 &failure))
		{
			case TM_Ok:
				break;
			case TM_WouldBlock:
				result = QUEUE_LOCK_BUSY;
				break;
			case TM_Deleted:
				result = QUEUE_LOCK_GONE;
				break;
			case TM_Updated:
			case TM_Invisible:
			case TM_SelfModified:
			case TM_BeingModified:
			default:
				elog(ERROR, "unexpected result of locking a queue");
		}
		PopActiveSnapshot();
	}
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, NoLock);
	return result;
}

/* Lock a queue for a push or claim by its row. */
static QueueLockResult
lock_row_for_use(int32 queue_id, bool wait)
{
	QueueLockResult result;

	if (wait)
		return lock_queue_row(queue_id, LockTupleKeyShare, true);

	/*
	 * Even with LockWaitSkip, table_tuple_lock waits for a lock on the next
	 * version of the row.  A session that has one has the lock of the queue,
	 * too, so we try that first.
	 */
	if (!queue_lock_try(queue_id))
		return QUEUE_LOCK_BUSY;
	result = lock_queue_row(queue_id, LockTupleKeyShare, false);
	queue_unlock(queue_id, QUEUE_PUSH);
	return result;
}

/*
 * Lock a queue to the end of the transaction, and process invalidation
 * messages.  Only the locks of push and claim can be had without waiting.
 */
QueueLockResult
queue_lock(int32 queue_id, QueueAccess access, bool wait)
{
	LOCKMODE	mode = lock_mode(access);
	QueueLockResult result = QUEUE_LOCK_KEPT;

	Assert(wait || mode == RowExclusiveLock);
	Assert(!wait || availability_may_wait());
	if (counted_xid != my_local_xid())
	{
		counted_xid = my_local_xid();
		nlocks = 0;
	}

	/* The lock table has no room for more locks of this transaction. */
	if (mode == RowExclusiveLock && nlocks >= MAX_QUEUE_LOCKS)
	{
		result = lock_row_for_use(queue_id, wait);
		AcceptInvalidationMessages();
		return result;
	}

	switch (acquire_lock(queue_id, LOCK_QUEUE, mode, wait))
	{
		case LOCKACQUIRE_NOT_AVAIL:
			return QUEUE_LOCK_BUSY;
		case LOCKACQUIRE_OK:
			nlocks++;
			result = QUEUE_LOCK_TAKEN;
			break;
		case LOCKACQUIRE_ALREADY_HELD:
		case LOCKACQUIRE_ALREADY_CLEAR:
			break;
	}

	/* Exclude the sessions that have locked the row instead, too. */
	if (mode >= ExclusiveLock &&
		lock_queue_row(queue_id, LockTupleExclusive, wait) == QUEUE_LOCK_GONE)
	{
		if (result == QUEUE_LOCK_TAKEN)
			queue_unlock(queue_id, access);
		result = QUEUE_LOCK_GONE;
	}
	AcceptInvalidationMessages();
	return result;
}

/* Release the lock of a queue that is not used after all. */
void
queue_unlock(int32 queue_id, QueueAccess access)
{
	LOCKTAG		tag;

	set_queue_tag(&tag, queue_id, LOCK_QUEUE);
	LockRelease(&tag, lock_mode(access), false);
}

/*
 * Lock a queue as push and claim do.  Returns false if that would take
 * waiting.  The queue may have been dropped.
 */
bool
queue_lock_try(int32 queue_id)
{
	return acquire_lock(queue_id, LOCK_QUEUE, RowExclusiveLock, false) !=
		LOCKACQUIRE_NOT_AVAIL;
}

/* --- What belongs to a queue --- */

/*
 * Lock something else than a queue to the end of the transaction.  Returns
 * false if that would take waiting, and "wait" is not set.
 */
bool
queue_lock_part(int32 id, LockSubId sub_id, LOCKMODE mode, bool wait)
{
	if (acquire_lock(id, sub_id, mode, wait) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	if (wait)
		AcceptInvalidationMessages();
	return true;
}

/* --- Slots --- */

/*
 * Acquire one of the slots for concurrent runs of a queue's handler, without
 * waiting, until it is released or the session ends.  Returns the number of
 * the slot, or -1 when all are taken.
 */
int
queue_lock_acquire_slot(int32 queue_id, int nslots)
{
	LOCKTAG		tag;

	for (int i = 0; i < nslots; i++)
	{
		set_queue_tag(&tag, queue_id, LOCK_SLOT + i);
		switch (session_lock_try(&tag, ExclusiveLock))
		{
			case LOCKACQUIRE_OK:
				return i;
			case LOCKACQUIRE_NOT_AVAIL:
				break;
			case LOCKACQUIRE_ALREADY_HELD:
			case LOCKACQUIRE_ALREADY_CLEAR:

				/*
				 * This session runs a handler that calls job_run, so the slot
				 * is taken.
				 */
				LockRelease(&tag, ExclusiveLock, true);
				break;
		}
	}
	return -1;
}

/*
 * Release a slot.  queue_table is the OID of the table of queues, which
 * cannot be looked up outside of a transaction.
 */
void
queue_lock_release_slot(Oid queue_table, int32 queue_id, int slot)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, queue_table, (uint32) queue_id,
					   LOCK_SLOT + slot);
	LockRelease(&tag, ExclusiveLock, true);
}
