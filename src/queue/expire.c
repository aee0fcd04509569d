/*-------------------------------------------------------------------------
 *
 * expire.c
 *	  Removing messages whose lifetime is over.
 *
 * NOTES
 *	  Nobody ever sees an expired message; removing it only gives its room
 *	  back.  A claim that comes by it does that, and the worker at its time.
 *	  There is no index over lifetimes, so the worker looks at all messages of
 *	  a queue when the first of them may have expired, some at a time.
 *
 * src/queue/expire.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/snapmgr.h"

#include "catalog/tables.h"
#include "queue/counters.h"
#include "queue/dedup.h"
#include "queue/expire.h"
#include "shmem/availability.h"
#include "shmem/database_state.h"
#include "storage/message.h"
#include "storage/message_scan.h"
#include "storage/row.h"
#include "storage/segment.h"

/* Messages that one call looks at, and removes. */
#define LOOK_AT_ONCE	10000
#define REMOVE_AT_ONCE	1000

static bool remove_row(ScanRow *row);

/* Remove an expired message, unless somebody has it locked. */
static bool
remove_row(ScanRow *row)
{
	HeapTuple	tuple;

	/* As the delete will lock it: so that does not wait for anything. */
	if (!message_lock_as_seen(row->table, row->slot, LockTupleExclusive,
						  LockWaitSkip))
		return false;
	tuple = heap_copytuple(row_tuple(row->slot));
	message_delete_locked(row->table, tuple);
	dedup_drop_key(row->table, tuple);
	heap_freetuple(tuple);
	return true;
}

/*
 * Remove expired messages of a queue, from the one after the marker on, which
 * moves.  *next is lowered to when the first of the others will expire.
 * True: that was all.
 */
bool
expire_messages(int32 queue_id, int64 *marker, TimestampTz *next)
{
	TimestampTz now = GetCurrentTimestamp();
	MessageScan *scan;
	ScanRow		row;
	int			looked = 0;
	int			removed = 0;
	bool		all = true;

	segment_push_snapshot();
	scan = message_scan_begin_list(queue_id, *marker + 1, RowExclusiveLock, true);
	while (message_scan_next(scan, &row))
	{
		if (looked == LOOK_AT_ONCE || removed == REMOVE_AT_ONCE)
		{
			all = false;
			break;
		}
		looked++;
		*marker = row.form->id;
		if (!message_is_expired(row.form, now))
			*next = Min(*next, Max(row.form->expires_at,
								   message_is_claimed(row.form, now) ?
								   row.form->claimed_until : DT_NOBEGIN));
		else if (remove_row(&row))
			removed++;
		else
			*next = Min(*next, availability_recheck_at(now));
	}
	message_scan_end(scan);
	PopActiveSnapshot();
	CommandCounterIncrement();
	database_count(COUNT_REMOVED, removed);
	counters_add(queue_id, JOB_EXPIRED, removed);
	return all;
}
