/*-------------------------------------------------------------------------
 *
 * delayed.c
 *	  Moving delayed messages that are due into the ring that claims scan.
 *
 * NOTES
 *	  When delayed messages are due, the worker moves them to the active
 *	  segment, a limited number in each transaction.  There, they are in the
 *	  order in which messages are claimed.  As with a push, the end of the
 *	  transaction publishes that something has become free, so listeners are
 *	  notified.
 *
 *	  A claim that comes first takes the messages from where they are.  It has
 *	  to sort all that are due, since the index is in the order of time
 *	  (due_messages.c).
 *
 * src/storage/delayed.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "catalog/message_table.h"
#include "map/availability.h"
#include "map/availability_reserve.h"
#include "storage/delayed.h"
#include "storage/message.h"
#include "storage/message_scan.h"
#include "storage/segment.h"

#define MOVE_AT_ONCE	1000	/* messages */

static bool move_due_messages(MessageScan *scan, MessageTable *active,
							  Size *bytes);

/*
 * Move the messages of a scan to the active segment, until these are too many
 * bytes for one transaction.  Returns false if some were locked.
 */
static bool
move_due_messages(MessageScan *scan, MessageTable *active, Size *bytes)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "a delayed message to be moved",
												  ALLOCSET_DEFAULT_SIZES);
	ScanRow		row;
	bool		all = true;

	while (*bytes < MESSAGE_MOVE_BYTES && message_scan_next(scan, &row))
	{
		MemoryContext old = MemoryContextSwitchTo(context);

		/*
		 * Claims find what others have locked now.  What is not taken stays
		 * in message_scan_due_left().
		 */
		if (message_move(row.table, row.slot, active, bytes))
			message_scan_take_due(scan);
		else
			all = false;
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	return all;
}

/*
 * Move some of the delayed messages of a queue that are due, and set *more if
 * there may be others.  Returns false if none is due.
 *
 * The caller holds a lock on the queue, and commits next.
 */
bool
delayed_move_due(int32 queue_id, bool *more)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz from;
	TimestampTz next;
	MessageScan *scan;
	MessageTable active;
	bool		uncertain;
	Size		bytes = 0;

	if (!availability_reserve_delayed(queue_id, now, false, true, &from))
		return false;

	/* It does not become stale: only this process empties segments. */
	segment_push_snapshot();
	scan = message_scan_begin(queue_id, RowExclusiveLock);
	message_scan_no_wait(scan);
	(void) message_scan_add_due(scan, from, now, MOVE_AT_ONCE, more, &next);

	/* Claims may wait for the reservation to end, so we do not wait. */
	if (message_scan_is_blocked(scan) ||
		!segment_open_active(&active, RING_MESSAGES, false))
		message_scan_lock_error();
	uncertain = !move_due_messages(scan, &active, &bytes);
	*more |= bytes >= MESSAGE_MOVE_BYTES;

	/* No callback may report when what we have left becomes free. */
	if (uncertain)
		next = Min(next, availability_recheck_at(now));

	/*
	 * The reservation stays open until the end of the transaction, which
	 * returns the moved messages to the map: a claim that finds nothing
	 * before waits.  If there are more messages, they are due at once.
	 */
	availability_defer_close_delayed(message_scan_due_left(scan),
									 *more ? DT_NOBEGIN : next, uncertain);
	message_scan_end(scan);
	message_table_close(&active, true);
	PopActiveSnapshot();
	CommandCounterIncrement();
	return true;
}
