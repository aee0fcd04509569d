/*-------------------------------------------------------------------------
 *
 * delayed.c
 *	  Bringing delayed messages that are due into the ring.
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
 * src/storage/delayed.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "catalog/message_table.h"
#include "shmem/availability.h"
#include "shmem/availability_reserve.h"
#include "storage/delayed.h"
#include "storage/message.h"
#include "storage/message_scan.h"
#include "storage/segment.h"

#define BRING_AT_ONCE	1000

/*
 * Bring some of the messages of a queue in that are due; *more: there may be
 * others.  False: none is.  The caller holds a lock on the queue, and commits
 * next: until then other sessions cannot claim them, and a claim that finds
 * nothing waits.
 */
bool
delayed_move_due(int32 queue_id, bool *more)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz from;
	TimestampTz next;
	MessageScan *scan;
	MessageTable active;
	ScanRow		row;
	bool		uncertain = false;
	Size		bytes = 0;
	MemoryContext context;

	if (!availability_reserve_delayed(queue_id, now, false, &from))
		return false;
	segment_push_snapshot();
	scan = message_scan_begin(queue_id, RowExclusiveLock);
	message_scan_no_wait(scan);
	(void) message_scan_add_due(scan, from, now, BRING_AT_ONCE, more, &next);
	if (message_scan_is_blocked(scan) || !segment_try_open_active(&active))
		message_scan_lock_error();
	context = AllocSetContextCreate(CurrentMemoryContext,
									"a message to be brought in",
									ALLOCSET_DEFAULT_SIZES);
	while (bytes < MESSAGE_MOVE_BYTES && message_scan_next(scan, &row))
	{
		MemoryContext old = MemoryContextSwitchTo(context);

		if (!message_is_expired(row.form, now) &&
			message_move(row.table, row.slot, &active, &bytes))
			message_scan_take_due(scan);
		else
			uncertain = true;
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	*more |= bytes >= MESSAGE_MOVE_BYTES;
	if (uncertain)
		next = Min(next, availability_recheck_at(now));
	availability_defer_close_delayed(message_scan_due_left(scan), *more ? DT_NOBEGIN : next,
					   uncertain);
	message_scan_end(scan);
	message_table_close(&active, true);
	PopActiveSnapshot();
	CommandCounterIncrement();
	return true;
}
