/*-------------------------------------------------------------------------
 *
 * park.c
 *	  Bringing parked messages that are due into the ring.
 *
 * NOTES
 *	  A parked message that is due is taken by the claim that wants it, which
 *	  moves it to the active segment as it marks it: so it is written once.
 *	  But the index of the parked ones is in the order of time, and a claim
 *	  has to sort all that are due to hand them out in their order.  When it
 *	  finds that they are many (a backlog of older messages is before them, or
 *	  all were due at once), it says so, and the worker brings them in, some at
 *	  a time: in the ring they are in order.
 *
 *	  Messages that have expired, and those that somebody has locked, are left
 *	  to the claims.
 *
 * src/park.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "access/xact.h"
#include "utils/snapmgr.h"

#define BRING_AT_ONCE	1000

static bool bring_in(ScanRow *row, MessageTable *active);

/* Move a message to the active segment; false: somebody has it. */
static bool
bring_in(ScanRow *row, MessageTable *active)
{
	HeapTuple	parked;

	switch (row_lock(row->table, row->slot, LockTupleNoKeyExclusive,
					 LockWaitSkip))
	{
		case TM_Ok:
			break;
		case TM_WouldBlock:
		case TM_Updated:
		case TM_Deleted:
			return false;
		case TM_Invisible:
		case TM_SelfModified:
		case TM_BeingModified:
		default:
			elog(ERROR, "unexpected result of locking a parked message");
	}
	parked = heap_copytuple(row_tuple(row->slot));
	row_insert(active, row_copy_to(row->table, active, parked, 0));
	row_delete_locked(row->table, parked);
	return true;
}

/*
 * Bring some of the messages of a queue in that are due.  True: there may be
 * many more.  The caller holds a lock on the queue, and commits soon: until
 * then nobody else can have them, and who finds nothing waits (ring.c).
 */
bool
park_bring_in(int32 queue_id)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz from;
	TimestampTz next;
	MessageScan *scan;
	MessageTable active;
	ScanRow		row;
	bool		more;
	bool		doubtful = false;

	if (!cursor_reserve_parked(queue_id, now, false, &from))
		return false;
	ring_begin_move();
	ring_push_snapshot();
	ring_open_active(&active);
	scan = scan_begin(queue_id, true, RowExclusiveLock);
	(void) scan_add_due(scan, from, now, BRING_AT_ONCE, &more, &next);
	while (scan_next(scan, &row))
	{
		if (row_is_expired(row.form, now))
			doubtful = true;
		else if (bring_in(&row, &active))
			scan_take_due(scan);
		else
			doubtful = true;
	}
	if (doubtful)
		next = Min(next, cursor_doubt(now));
	cursor_close_parked(scan_due_left(scan), more ? DT_NOBEGIN : next,
						doubtful, false);
	scan_end(scan);
	queue_close_table(&active, true);
	PopActiveSnapshot();
	CommandCounterIncrement();
	return more;
}
