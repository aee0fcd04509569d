/*-------------------------------------------------------------------------
 *
 * claim_keep.c
 *	  Claims of those who run jobs inside the server.
 *
 * NOTES
 *	  A runner claims a few messages at once and runs them one after the
 *	  other.  All were counted as tried when they were claimed; those whose
 *	  turn did not come are given back as if they had not been.
 *
 *	  That is done by the runner, or by the database's worker, when the runner
 *	  is gone or busy with one of them for long.  So the rows may be changing:
 *	  they are locked, and looked at again.
 *
 * src/queue/claim_keep.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/snapmgr.h"

#include "catalog/tables.h"
#include "queue/claim_keep.h"
#include "queue/registry.h"
#include "storage/claim_id.h"
#include "storage/message_scan.h"
#include "storage/row.h"
#include "storage/segment.h"

static bool hold_row(ScanRow *row, int64 keep, int ttl, LockWaitPolicy wait);

/* Do it with one row, which is locked.  False: look again. */
static bool
hold_row(ScanRow *row, int64 keep, int ttl, LockWaitPolicy wait)
{
	HeapTuple	tuple;
	MessageForm *form;
	ItemPointerData tid;

	if (!message_lock_as_seen(row->table, row->slot, LockTupleNoKeyExclusive,
						  wait))
		return false;
	tuple = heap_copytuple(row_tuple(row->slot));
	form = MESSAGE_FORM(tuple);
	tid = tuple->t_self;
	if (form->id == keep)
		message_set_claim(form, GetCurrentTimestamp(), ttl, form->claim_grace);
	else
	{
		form->claim_count--;
		message_clear_claim(form);
	}
	message_update_locked(row->table, &tid, tuple);
	heap_freetuple(tuple);
	return true;
}

/*
 * Give back what is left of a live claim, uncounted, but for the message
 * "keep" (0: none), whose claim begins anew for ttl seconds.  wait: what to do
 * about a message that another transaction has locked, LockWaitBlock or
 * LockWaitError.
 */
void
claim_keep_only(const Queue *queue, const ClaimId *claim, int64 keep, int ttl,
		  LockWaitPolicy wait)
{
	bool		again;

	do
	{
		MessageScan *scan;
		ScanRow		row;

		CHECK_FOR_INTERRUPTS();
		again = false;
		segment_push_snapshot();
		scan = scan_begin_claim(queue->id, claim, RowExclusiveLock, true);
		while (scan_next(scan, &row))
			if (row.form->claim_token == claim->token &&
				message_is_claimed(row.form, GetCurrentTimestamp()) &&
				!hold_row(&row, keep, ttl, wait))
				again = true;
		scan_end(scan);
		PopActiveSnapshot();
		CommandCounterIncrement();

		/* Those that were given back no longer have the token. */
	} while (again);
}
