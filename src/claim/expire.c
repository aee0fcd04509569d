/*-------------------------------------------------------------------------
 *
 * expire.c
 *	  Removing messages whose lifetime is over.
 *
 * NOTES
 *	  No function returns an expired message, so removing it only frees its
 *	  space.  A message that was canceled expires when its claim ends
 *	  (cancel.c).  A claim scan removes those that it meets; the background
 *	  worker removes the others.  There is no index on lifetimes: when the
 *	  first message of a queue may have expired, the worker scans the queue, in
 *	  several transactions if there are many messages (worker_expiry.c).
 *
 * src/claim/expire.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"


#include "claim/expire.h"
#include "map/availability.h"
#include "push/message_end.h"
#include "shmem/database_state.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "storage/row.h"

/* One call scans, and removes, at most so many messages */
#define SCAN_AT_ONCE	10000
#define REMOVE_AT_ONCE	1000

/*
 * Remove an expired message, or a canceled one whose claim has ended, which
 * this transaction has locked.
 */
void
expire_remove(const Queue *queue, MessageTable *table, HeapTuple tuple)
{
	(void) message_end(queue, table, tuple, message_read(tuple).is_canceled ?
					   END_CANCELED : END_EXPIRED, NULL);
}

/*
 * Remove expired messages of a queue, with ids above *marker, which is
 * advanced, up to last.  *next is lowered to the time when the next of these
 * messages expires.  Returns whether all were scanned; if not, it has to be
 * called again.
 */
bool
expire_messages(const Queue *queue, int64 *marker, int64 last,
				TimestampTz *next)
{
	TimestampTz now = GetCurrentTimestamp();
	MessageScan *scan;
	ScanRow		row;
	int			scanned = 0;
	int			removed = 0;
	bool		all = true;

	scan = message_scan_begin_list(queue->id, *marker + 1, RowExclusiveLock);
	while (message_scan_next(scan, &row) && row.form.id <= last)
	{
		if (scanned == SCAN_AT_ONCE || removed == REMOVE_AT_ONCE)
		{
			all = false;
			break;
		}
		scanned++;
		*marker = row.form.id;

		if (!message_is_expired(&row.form, now))
			*next = Min(*next, message_expires_at(&row.form));

		/* Lock it as the delete does, so that the delete does not wait. */
		else if (message_lock_as_seen(row.table, row.slot,
									  LockTupleExclusive, LockWaitSkip))
		{
			row.tuple = row_tuple(row.slot);
			expire_remove(queue, row.table, row.tuple);
			removed++;
		}

		/* Another transaction has locked it, and may leave it as it is. */
		else
			*next = Min(*next, availability_recheck_at(now));
	}
	message_scan_end(scan);
	CommandCounterIncrement();
	database_count(COUNT_REMOVED, removed);
	return all;
}
