/*-------------------------------------------------------------------------
 *
 * park.c
 *	  Bringing parked messages that are due into the ring.
 *
 * NOTES
 *	  When delayed messages are due, the worker moves them to the active
 *	  segment, some at a time.  There they are in the order in which they are
 *	  handed out; and as with a push, the end of the transaction says that
 *	  something came free, so that listeners are notified.
 *
 *	  A claim that comes first takes those that it wants from where they are.
 *	  It has to sort all that are due, since the index is in the order of
 *	  time.
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
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#define BRING_AT_ONCE	1000

/*
 * Bring some of the messages of a queue in that are due; *more: there may be
 * others.  False: none is.  The caller holds a lock on the queue, and commits
 * next: until then other sessions cannot claim them, and a claim that finds
 * nothing waits.
 */
bool
park_bring_in(int32 queue_id, bool *more)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz from;
	TimestampTz next;
	MessageScan *scan;
	MessageTable active;
	ScanRow		row;
	bool		doubtful = false;
	Size		bytes = 0;
	MemoryContext context;

	if (!cursor_reserve_parked(queue_id, now, false, &from))
		return false;
	ring_push_snapshot();
	scan = scan_begin(queue_id, true, RowExclusiveLock);
	scan_no_wait(scan);
	(void) scan_add_due(scan, from, now, BRING_AT_ONCE, more, &next);
	if (scan_is_blocked(scan) || !ring_try_open_active(&active))
		scan_is_locked_out();
	context = AllocSetContextCreate(CurrentMemoryContext,
									"a message to be brought in",
									ALLOCSET_DEFAULT_SIZES);
	while (bytes < MOVE_BYTES && scan_next(scan, &row))
	{
		MemoryContext old = MemoryContextSwitchTo(context);

		if (!row_is_expired(row.form, now) &&
			row_move(row.table, row.slot, &active, &bytes))
			scan_take_due(scan);
		else
			doubtful = true;
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	*more |= bytes >= MOVE_BYTES;
	if (doubtful)
		next = Min(next, cursor_doubt(now));
	cursor_keep_parked(scan_due_left(scan), *more ? DT_NOBEGIN : next,
					   doubtful);
	scan_end(scan);
	queue_close_table(&active, true);
	PopActiveSnapshot();
	CommandCounterIncrement();
	return true;
}
