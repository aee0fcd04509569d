/*-------------------------------------------------------------------------
 *
 * scan_row.c
 *	  What a message is to a claim scan.
 *
 * NOTES
 *	  These functions only look at a row as the snapshot of the scan shows it,
 *	  and lock nothing.  What the header of the row says of other transactions
 *	  may change at any time.
 *
 * src/claim/scan_row.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/transam.h"
#include "storage/procarray.h"

#include "catalog/message_id.h"
#include "claim/scan_row.h"
#include "map/lanes.h"
#include "push/dedup.h"
#include "queue/options.h"
#include "storage/message.h"
#include "storage/message_row.h"

static bool is_ours(const ClaimScan *scan, const ScanRow *row);
static bool list_has_row(const ChosenMessages *list, const ScanRow *row);
static bool others_run(MultiXactId multi);

/* --- Classes --- */

MessageClass
scan_row_class(const ClaimScan *scan, const ScanRow *row)
{
	const Queue *queue = scan->request.queue;

	if (is_ours(scan, row))
		return MESSAGE_OURS;
	if (message_is_claimed(&row->form, scan->pass.now))
		return MESSAGE_CLAIMED;
	if (message_is_expired(&row->form, scan->pass.now))
		return MESSAGE_EXPIRED;
	if (dedup_is_duplicate(queue, row->table, row->tuple))
		return MESSAGE_DUPLICATE;
	if (options_is_exhausted(queue, row->table, row->tuple))
		return MESSAGE_EXHAUSTED;
	return MESSAGE_FREE;
}

/* Returns whether this pass has chosen or locked the row before. */
static bool
is_ours(const ClaimScan *scan, const ScanRow *row)
{
	HeapTupleHeader header = row->tuple->t_data;

	/* Most rows come behind all that were chosen, and need no search. */
	if (scan->result.chosen.n > 0 &&
		message_id_compare(row->form.id, scan->pass.last_chosen) <= 0 &&
		list_has_row(&scan->result.chosen, row))
		return true;

	/* Most rows are not locked by this transaction, and need no search. */
	if ((header->t_infomask & HEAP_XMAX_INVALID) ||
		(!(header->t_infomask & HEAP_XMAX_IS_MULTI) &&
		 !TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmax(header))))
		return false;
	return list_has_row(&scan->pass.expired, row) ||
		list_has_row(&scan->pass.duplicates, row) ||
		list_has_row(&scan->pass.exhausted, row);
}

static bool
list_has_row(const ChosenMessages *list, const ScanRow *row)
{
	for (int i = list->n - 1; i >= 0; i--)
		if (list->items[i].table == row->table &&
			ItemPointerEquals(&list->items[i].tuple->t_self,
							  &row->tuple->t_self))
			return true;
	return false;
}

/* Returns whether the message counts toward the bound of its group. */
bool
scan_row_counts_as_claimed(const ScanRow *row, MessageClass class)
{
	if (class == MESSAGE_CLAIMED)
		return true;

	/*
	 * Another transaction may be claiming a free message, and may be renewing
	 * a claim that has ended, whatever else the message is.
	 */
	return class != MESSAGE_OURS &&
		(class == MESSAGE_FREE || row->form.claim_token != 0) &&
		scan_row_may_be_claimed(row);
}

/* --- Other transactions --- */

/*
 * Returns whether another transaction has locked the row, as far as its
 * header shows.  Another one may lock it a moment later.
 */
bool
scan_row_is_locked(const ScanRow *row)
{
	HeapTupleHeader header = row->tuple->t_data;
	TransactionId xmax = HeapTupleHeaderGetRawXmax(header);

	if (header->t_infomask & HEAP_XMAX_INVALID)
		return false;
	if (header->t_infomask & HEAP_XMAX_IS_MULTI)
		return others_run(xmax);
	return !TransactionIdIsCurrentTransactionId(xmax) &&
		TransactionIdIsInProgress(xmax);
}

/* Returns whether a member that is not of our transaction is in progress. */
static bool
others_run(MultiXactId multi)
{
	MultiXactMember *members;
	int			n = GetMultiXactIdMembers(multi, &members, false, false);
	bool		result = false;

	for (int i = 0; i < n && !result; i++)
		result = !TransactionIdIsCurrentTransactionId(members[i].xid) &&
			TransactionIdIsInProgress(members[i].xid);
	if (n > 0)
		pfree(members);
	return result;
}

/*
 * Returns whether another transaction has locked the version that the
 * snapshot sees, or has updated or deleted it.  That does not count if it was
 * rolled back or ended by a crash, so we ask for its commit.
 */
bool
scan_row_is_changing(const ScanRow *row)
{
	HeapTupleHeader header = row->tuple->t_data;

	return scan_row_is_locked(row) ||
		(!(header->t_infomask & HEAP_XMAX_INVALID) &&
		 !HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) &&
		 TransactionIdDidCommit(HeapTupleHeaderGetUpdateXid(header)));
}

/*
 * Returns whether another transaction may be claiming the message, or renewing
 * its claim.
 */
bool
scan_row_may_be_claimed(const ScanRow *row)
{
	uint16		infomask = row->tuple->t_data->t_infomask;

	/*
	 * A push that is a duplicate locks the message in share mode, and changes
	 * nothing.
	 */
	if (HEAP_XMAX_IS_LOCKED_ONLY(infomask) &&
		!HEAP_XMAX_IS_EXCL_LOCKED(infomask))
		return false;
	return scan_row_is_changing(row);
}

/* --- Its lane --- */

/*
 * Returns whether the message is claimed with this lane: what had no room is
 * claimed as one lane.
 */
bool
scan_row_is_of_lane(const ScanRow *row, LaneId lane)
{
	return lane_equals(lane, LANE_OF_OVERFLOW) ||
		lane_equals(message_lane(RelationGetDescr(row->table->heap),
								 row->tuple), lane);
}
