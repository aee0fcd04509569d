/*-------------------------------------------------------------------------
 *
 * group.c
 *	  Groups of messages: which queues have any, and locks.
 *
 * NOTES
 *	  A group is all messages of a queue with the same key.  Where a number
 *	  has to stand for it, that is its lane (lane.c).
 *
 *	  1. Queues with groups.  queue_data.grouped has a row for each queue to
 *	  which a message with a key was pushed.  The session's cache of queues
 *	  has that (Queue.has_groups), so claims of other queues do not look for
 *	  groups.  Transactions that push the first such message at the same time
 *	  write a row each: none waits for another one.
 *
 *	  2. Locks.  Where a group has a bound, a claim locks the group before it
 *	  counts the messages that are under live claims, and keeps the lock until
 *	  its transaction ends, also if that is prepared.  So what it has counted
 *	  and what it adds are one step for other claims, whether they take lanes
 *	  or read the whole queue.  The callback that adds what was claimed to the
 *	  lane runs before the lock is released.  The lock is a heavyweight one,
 *	  and is never waited for.
 *
 * src/queue/group.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "queue/group.h"
#include "queue/registry.h"
#include "storage/message_row.h"
#include "storage/pending.h"
#include "util/xact.h"

#define GROUP_LOCKS_MAX		1000

/* A message that this transaction has popped from a group with a bound */
typedef struct GroupPop
{
	XactRecord	xact;
	int32		queue_id;
	LaneId		lane;
} GroupPop;

/* Counts the groups that this transaction has locked. */
XactList	group_locks = {
	.record_size = sizeof(XactRecord)
};
XactList	group_pops = {
	.record_size = sizeof(GroupPop)
};

static bool is_of_bounded_group(const Queue *queue, HeapTuple tuple);
static void set_group_tag(LOCKTAG *tag, int32 queue_id, LaneId lane);

/* --- Queues with groups --- */

/*
 * A message with a group key is being pushed to a queue that has none so far.
 * When the push commits, the invalidation message updates Queue.has_groups in
 * all sessions.
 */
void
group_register(int32 queue_id)
{
	Relation	rel = catalog_open(CATALOG_GROUPED, RowExclusiveLock, NULL);
	Datum		values[Natts_grouped] = {Int32GetDatum(queue_id)};
	bool		isnull[Natts_grouped] = {false};

	CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), values,
											isnull));
	table_close(rel, NoLock);
	queue_invalidate();
}

static bool
is_of_bounded_group(const Queue *queue, HeapTuple tuple)
{
	return queue->group_concurrency > 0 &&
		!message_row_is_null(tuple, Anum_message_group_key);
}

/*
 * A message is being deleted (it is finished) or delayed, which may make room
 * in a group with a bound.  When that commits, sessions that wait are woken.
 */
void
group_make_room(const Queue *queue, MessageTable *table, HeapTuple tuple,
				bool is_finished)
{
	MessageForm form;

	if (!is_of_bounded_group(queue, tuple))
		return;
	form = message_read(tuple);

	/* A rollback makes no room. */
	pending_record_change(&form, is_finished ? TARGET_ROOM : TARGET_TURN,
						  message_lane(RelationGetDescr(table->heap), tuple),
						  DT_NOEND, DT_NOBEGIN);
}

/* --- Pops --- */

/*
 * The transaction has popped a message.  It counts toward the bound of its
 * group until the transaction ends.
 */
void
group_record_pop(const Queue *queue, MessageTable *table, HeapTuple tuple)
{
	GroupPop   *pop;

	if (!is_of_bounded_group(queue, tuple))
		return;
	pop = xact_add(&group_pops);
	pop->queue_id = queue->id;
	pop->lane = message_lane(RelationGetDescr(table->heap), tuple);
}

/* Returns how many messages of a group this transaction has popped. */
int
group_popped(int32 queue_id, LaneId lane)
{
	int			n = 0;

	for (int i = 0; i < group_pops.n; i++)
	{
		const GroupPop *pop = xact_record(&group_pops, i);

		n += pop->queue_id == queue_id && lane_equals(pop->lane, lane);
	}
	return n;
}

/* --- Locks --- */

static void
set_group_tag(LOCKTAG *tag, int32 queue_id, LaneId lane)
{
	/*
	 * The tag of an object has no room for the queue's id and 48 bits of the
	 * lane.  So this is one of the server's "user locks", which nothing else
	 * has used since advisory locks exist.  No function takes one for a user.
	 */
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, (uint32) queue_id,
					   (uint32) lane.hash, (uint16) (lane.hash >> 32));
	tag->locktag_type = LOCKTAG_USERLOCK;
}

/*
 * Lock a group to the end of the transaction.  Returns false if another
 * transaction has locked it.  *is_new says that this transaction had not
 * locked it before.
 */
bool
group_try_lock(int32 queue_id, LaneId lane, bool *is_new)
{
	LOCKTAG		tag;
	LockAcquireResult result;

	set_group_tag(&tag, queue_id, lane);
	result = LockAcquire(&tag, ExclusiveLock, false, true);
	*is_new = result == LOCKACQUIRE_OK;
	if (!*is_new)
		return result != LOCKACQUIRE_NOT_AVAIL;

	/* The lock table has room for some thousand locks only. */
	if (group_locks.n == GROUP_LOCKS_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("transaction has claimed from more than %d groups with a bound",
						GROUP_LOCKS_MAX),
				 errhint("Commit after each claim, or claim fewer messages.")));
	(void) xact_add(&group_locks);
	return true;
}

/*
 * Unlock a group of which nothing was claimed, and which this subtransaction
 * had not locked before.
 */
void
group_unlock(int32 queue_id, LaneId lane)
{
	LOCKTAG		tag;

	Assert(group_locks.n > 0 &&
		   ((XactRecord *) xact_record(&group_locks,
									   group_locks.n - 1))->nest_level ==
		   GetCurrentTransactionNestLevel());
	set_group_tag(&tag, queue_id, lane);
	LockRelease(&tag, ExclusiveLock, false);
	group_locks.n--;
}

/*
 * Returns the other transaction that has locked the group, as a hash of its
 * virtual id, or 0 if there is none.
 */
uint64
group_locked_by(int32 queue_id, LaneId lane)
{
	LOCKTAG		tag;
	VirtualTransactionId *holders;
	int			n;
	uint64		result = 0;

	set_group_tag(&tag, queue_id, lane);
	holders = GetLockConflicts(&tag, ExclusiveLock, &n);
	if (n > 0)
		result = Max(hash_bytes_extended((const unsigned char *) holders,
										 sizeof(VirtualTransactionId),
										 lane.hash),
					 1);
	pfree(holders);
	return result;
}
