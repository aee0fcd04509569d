/*-------------------------------------------------------------------------
 *
 * claim_scan_row.c
 *	  What a message is to a claim scan, and what becomes of it.
 *
 * NOTES
 *	  A message has a class, by its row as the snapshot of the scan shows it.
 *	  What the header of the row says of other transactions may change at any
 *	  time.  The class and the mode of the scan decide what happens:
 *
 *					claim				sweep				probe
 *		OURS		nothing				nothing				(not met)
 *		CLAIMED		skip until its end	skip until its end	skip
 *		EXPIRED		lock, remove		lock, remove		skip
 *		DUPLICATE	lock, remove		lock, remove		skip
 *		EXHAUSTED	lock, dead letter	lock, dead letter	skip
 *		FREE		choose, hand out	record, skip		count
 *
 *	  Where groups take turns by lanes (lane_scan.c), the step of the pass
 *	  decides what happens to a free message:
 *
 *		LANE_STEP_GIVE	it is given to its lane
 *		LANE_STEP_TAKE	it is chosen, or counted by a probe
 *
 *	  The worker's sweep counts the end of a claim that the message was in
 *	  (counts_end_claim).  What else gives it to its lane leaves it in a range
 *	  for a sweep.
 *
 *	  Removing and moving is done when the pass ends (claim_scan.c), for at
 *	  most EXPIRED_AT_ONCE etc. messages; others are skipped until later.
 *
 *	  Messages are locked without waiting.  When a lock is granted, the row is
 *	  the version that the snapshot saw (message.c), so its class still holds.
 *	  So it does for a free message that is chosen without a lock
 *	  (needs_lock), because the caller changes only that version
 *	  (claim_scan.c).
 *
 *	  A message that is skipped may be free later.  If it lies in a range that
 *	  is reserved in the availability map, it is added to the ranges that are
 *	  returned to the map, with the time when it is due.  That is a second
 *	  later if another transaction has locked it, since no callback may report
 *	  the end of that.
 *
 * src/claim/claim_scan_row.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/transam.h"
#include "storage/procarray.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "claim/claim_scan_internal.h"
#include "claim/dead_letter.h"
#include "map/availability.h"
#include "map/message_ranges.h"
#include "push/dedup.h"
#include "queue/options.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "storage/row.h"

#define LIST_SIZE		16		/* of a new list */

static bool may_be_claimed(const ScanRow *row);
static void add_message(ClaimScan *scan, ChosenMessages *list,
						const ScanRow *row, bool locked);
static bool is_ours(const ClaimScan *scan, const ScanRow *row);
static bool list_has_row(const ChosenMessages *list, const ScanRow *row);
static bool others_run(MultiXactId multi);
static void skip_row(ClaimScan *scan, const ScanRow *row, TimestampTz due,
					 bool is_locked);
static void skip_for_now(ClaimScan *scan, const ScanRow *row);
static void count_end_of_claim(ClaimScan *scan, const ScanRow *row,
							   MessageClass class);
static void set_aside(ClaimScan *scan, ScanRow *row, bool may,
					  ChosenMessages *list);
static bool may_remove(const ClaimScan *scan);
static bool may_move_dead(ClaimScan *scan);
static bool fits_into_claim(const ClaimScan *scan, const ScanRow *row);
static bool choose_row(ClaimScan *scan, ScanRow *row);
static bool needs_lock(const ClaimScan *scan, const ScanRow *row);
static void give_to_lane(ClaimScan *scan, const ScanRow *row);
static void count_free(ClaimScan *scan, ScanRow *row);
static bool lock_row(ClaimScan *scan, ScanRow *row, LockTupleMode mode);
static int	compare_in_lane(const void *a, const void *b);
static int	compare_places(const void *a, const void *b);

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
		may_be_claimed(row);
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
static bool
may_be_claimed(const ScanRow *row)
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

/* --- What is done with it --- */

/* Process the current message of the scan. */
void
claim_scan_row(ClaimScan *scan, ScanRow *row)
{
	ScanPass   *pass = &scan->pass;
	MessageClass class = scan_row_class(scan, row);

	Assert(row->form.queue_id == scan->request.queue->id);

	if (pass->lane_step == LANE_STEP_GIVE)
		scan_list_add_delivered(scan, row);

	/*
	 * No sweep meets it again: the range is not due any more once we have
	 * passed it.  Claims of a message that they do not give to a lane write
	 * it, and after a rollback it is due as before; probes leave it due.
	 */
	if ((scan->request.mode == CLAIM_SCAN_SWEEP ||
		 pass->lane_step == LANE_STEP_GIVE) && class != MESSAGE_OURS)
		count_end_of_claim(scan, row, class);
	switch (class)
	{
		case MESSAGE_OURS:
			break;
		case MESSAGE_CLAIMED:

			/*
			 * It is due when its claim ends.  Of one of our own there is
			 * another record, with that time.
			 */
			if (row->in_range)
				skip_row(scan, row, row->form.claimed_until, false);
			break;
		case MESSAGE_EXPIRED:
			set_aside(scan, row, may_remove(scan), &pass->expired);
			break;
		case MESSAGE_DUPLICATE:
			set_aside(scan, row, may_remove(scan), &pass->duplicates);
			break;
		case MESSAGE_EXHAUSTED:
			set_aside(scan, row, may_move_dead(scan), &pass->exhausted);
			break;
		case MESSAGE_FREE:
			if (pass->lane_step == LANE_STEP_GIVE)
				give_to_lane(scan, row);
			else if (scan->request.mode != CLAIM_SCAN_CLAIM)
				count_free(scan, row);
			else if (!fits_into_claim(scan, row))
				pass->does_not_fit = true;
			else if (pass->lane_step == LANE_STEP_TAKE ||
					 (scan->has_groups && !pass->uses_map) ||
					 message_row_is_null(row->tuple, Anum_message_group_key))
				/* Only read where a locked message must not be overtaken. */
				pass->head_failed |= !choose_row(scan, row);
			else
			{
				/*
				 * The first message with a group key was pushed after the
				 * queue was opened.  The next pass gives its group a turn,
				 * and obeys its bound.
				 */
				pass->met_group = true;
				skip_row(scan, row, DT_NOBEGIN, false);
			}
			break;
	}

	/* Only read where own ranges are scanned (claim_scan_source.c). */
	if (!row->in_range && !pass->does_not_fit)
		pass->own_scanned_to = row->form.id;
}

/* Count the end of the claim that the message was in, if that has run out. */
static void
count_end_of_claim(ClaimScan *scan, const ScanRow *row, MessageClass class)
{
	ScanPass   *pass = &scan->pass;

	if (!counts_end_claim(row->table, row->tuple, &row->form, pass->now))
		skip_for_now(scan, row);

	/*
	 * The messages of a claim follow each other, so the last token is enough
	 * to count the claim once.
	 */
	else if (class != MESSAGE_CLAIMED && row->form.claim_token != 0 &&
			 !row->form.end_counted &&
			 row->form.claim_token != pass->ended_token)
	{
		pass->nended++;
		pass->ended_token = row->form.claim_token;
	}
}

/* --- Messages that are skipped --- */

/* Skip a message of which is unknown when it can be claimed or removed. */
static void
skip_for_now(ClaimScan *scan, const ScanRow *row)
{
	skip_row(scan, row, availability_recheck_at(scan->pass.now), true);
}

/*
 * Leave the message to a later scan: it may be free when it is due, DT_NOBEGIN
 * for at once; or when another transaction unlocks it.
 */
static void
skip_row(ClaimScan *scan, const ScanRow *row, TimestampTz due, bool is_locked)
{
	ScanPass   *pass = &scan->pass;
	MessageRange range;

	/* A probe has nothing reserved, unless that is a range of a lane. */
	if (scan->request.mode == CLAIM_SCAN_PROBE &&
		pass->lane_step == LANE_STEP_NONE)
		return;

	/* No range is scanned, so there is none to return it to. */
	if (!row->in_range && pass->own.n == 0)
		return;
	range.first = range.last = message_id_number(row->form.id);
	range.priority = row->form.priority;
	range.due = due;
	range.hidden = 0;
	range.is_locked = is_locked;
	range.scanned_at = pass->now;
	range.is_swept = false;

	/* The map knows nothing yet of what our transaction has made free. */
	message_ranges_add(row->in_range ? &pass->skipped : &pass->own_skipped,
					   &range, pass->now);
}

/* --- Messages that are removed or moved --- */

/*
 * Lock a message that is to be removed or moved when the pass ends, if the
 * pass may do that; else skip it.
 */
static void
set_aside(ClaimScan *scan, ScanRow *row, bool may, ChosenMessages *list)
{
	if (!may)
	{
		skip_for_now(scan, row);
		return;
	}

	/* This is the mode that a delete needs, so that it does not wait. */
	if (!lock_row(scan, row, LockTupleExclusive))
		return;
	add_message(scan, list, row, true);
}

/* Returns whether this pass may remove another message. */
static bool
may_remove(const ClaimScan *scan)
{
	return scan->request.mode != CLAIM_SCAN_PROBE &&
		scan->pass.expired.n < EXPIRED_AT_ONCE &&
		scan->pass.duplicates.n < DUPLICATES_AT_ONCE;
}

/* Returns whether this pass may make another message a dead letter. */
static bool
may_move_dead(ClaimScan *scan)
{
	if (scan->request.mode == CLAIM_SCAN_PROBE)
		return false;

	/*
	 * Opening the dead letter queue locks it, which comes before the lock on
	 * the first message; and if it cannot be opened now, none is locked.
	 */
	if (scan->pass.exhausted.n == 0 && scan->may_move_dead)
		scan->may_move_dead = dead_letter_can_move(scan->request.queue);
	return scan->may_move_dead &&
		scan->pass.exhausted.n < EXHAUSTED_AT_ONCE;
}

/* --- Messages that are free --- */

/*
 * Returns whether a free message can be in one claim with those that are
 * chosen already.  If not, the claim ends before it.
 */
static bool
fits_into_claim(const ClaimScan *scan, const ScanRow *row)
{
	const ClaimScanResult *result = &scan->result;
	int64		number = message_id_number(row->form.id);

	if (result->chosen.n == 0)
		return true;

	/*
	 * A job that was attempted before is claimed alone, because it may have
	 * crashed the server: no other message is to lose an attempt with it.
	 */
	if (scan->request.isolates &&
		(row->form.claim_count > 0 ||
		 result->chosen.items[0].form.claim_count > 0))
		return false;

	/* The distance of the claim's numbers is stored in its claim_span. */
	return Max(result->max_number, number) -
		Min(result->min_number, number) <= PG_INT32_MAX;
}

/* Choose a message for the caller.  Returns false if it cannot be locked. */
static bool
choose_row(ClaimScan *scan, ScanRow *row)
{
	ClaimScanResult *result = &scan->result;
	int64		number = message_id_number(row->form.id);
	bool		locks = needs_lock(scan, row);
	LockTupleMode mode = LockTupleNoKeyExclusive;

	/*
	 * The lock has the mode that the caller's change of the row needs, so
	 * that the change does not wait: a pop deletes the row; otherwise it is
	 * only marked.
	 */
	if (scan->request.deletes)
		mode = LockTupleExclusive;

	/*
	 * From here on a rollback has to return the message, because its range is
	 * not in the map any more.  Locking it records that too.
	 */
	if (!locks)
		message_record_change(row->table, row->tuple);
	else if (!lock_row(scan, row, mode))
		return false;
	result->min_number = result->chosen.n == 0 ? number :
		Min(result->min_number, number);
	result->max_number = result->chosen.n == 0 ? number :
		Max(result->max_number, number);
	result->priorities |= 1 << row->form.priority;
	if (result->chosen.n == 0 ||
		message_id_compare(row->form.id, scan->pass.last_chosen) > 0)
		scan->pass.last_chosen = row->form.id;
	add_message(scan, &result->chosen, row, locks);
	return true;
}

/* Returns whether a message has to be locked when it is chosen. */
static bool
needs_lock(const ClaimScan *scan, const ScanRow *row)
{
	/*
	 * Without a map all claims meet the same messages, and each has to skip
	 * what others have chosen.  If a transaction has locked or changed the
	 * row, we find out now whether we can have it, and choose another one if
	 * not.
	 */
	return !scan->pass.uses_map ||
		!(row->tuple->t_data->t_infomask & HEAP_XMAX_INVALID);
}

/* Give a message that is free, unless it is locked, to its lane. */
static void
give_to_lane(ClaimScan *scan, const ScanRow *row)
{
	if (scan_row_is_locked(row))
	{
		scan->pass.met_locked = true;
		skip_for_now(scan, row);

		/*
		 * Where there is a bound, the lane has to have it: with a bound of 1
		 * it blocks its group.
		 */
		if (scan->request.queue->group_concurrency <= 0)
			return;
	}
	else
		scan->pass.ngiven++;
	scan_list_add_range(&scan->pass.freed, row);
}

/* A probe or a sweep has met a message that is free, unless it is locked. */
static void
count_free(ClaimScan *scan, ScanRow *row)
{
	if (scan_row_is_locked(row))
	{
		/* With a bound of 1, a probe must not look behind it. */
		scan->pass.met_locked = scan->pass.head_failed = true;
		skip_for_now(scan, row);
	}
	else
	{
		scan->result.nfree++;

		/* A probe gives the whole range of a lane back (take_range). */
		if (scan->pass.lane_step == LANE_STEP_NONE)
			skip_row(scan, row, DT_NOBEGIN, false);
	}
}

/* --- Locks --- */

/*
 * Lock the row without waiting; row->tuple is the locked one then.  Returns
 * false if another transaction has locked or changed it; then it is skipped.
 */
static bool
lock_row(ClaimScan *scan, ScanRow *row, LockTupleMode mode)
{
	ScanPass   *pass = &scan->pass;

	switch (message_lock(row->table, row->slot, mode, LockWaitSkip))
	{
		case TM_Ok:
			break;
		case TM_WouldBlock:
			scan_list_add_busy(scan, row->form.id);
			pass->met_locked = true;
			skip_row(scan, row, availability_recheck_at(GetCurrentTimestamp()),
					 true);
			return false;
		case TM_Updated:
		case TM_Deleted:		/* or moved to another segment */

			/*
			 * The change may have made it free, which the next scan will see.
			 * To the map its transaction returns it.
			 */
			pass->lost |= !pass->uses_map;
			skip_row(scan, row, DT_NOBEGIN, false);
			return false;
		case TM_Invisible:
		case TM_SelfModified:
		case TM_BeingModified:
		default:
			elog(ERROR, "unexpected result of locking a message");
	}
	row->tuple = row_tuple(row->slot);
	row->form = message_read(row->tuple);
	return true;
}

/* --- What a pass collects --- */

/* Returns the items of a list, enlarged if there is no room for one more. */
void *
scan_list_make_room(void *items, int n, int *size, Size item_size)
{
	if (n < *size)
		return items;
	*size = *size == 0 ? LIST_SIZE : *size * 2;
	return items == NULL ? palloc(*size * item_size) :
		repalloc(items, *size * item_size);
}

/* Add a copy of a message, which lasts until the pass ends. */
static void
add_message(ClaimScan *scan, ChosenMessages *list,
			const ScanRow *row, bool locked)
{
	ChosenMessage *message;

	list->items = scan_list_make_room(list->items, list->n, &list->size,
									  sizeof(ChosenMessage));
	message = &list->items[list->n++];
	message->table = row->table;
	message->tuple = message_scan_copy_row(scan->pass.rows, row);
	message->form = row->form;
	message->locked = locked;
	message->lane = 0;
}

/* Add something that another transaction has locked to pass.busy. */
void
scan_list_add_busy(ClaimScan *scan, int64 id)
{
	BusyIds    *list = &scan->pass.busy;

	list->items = scan_list_make_room(list->items, list->n, &list->size,
									  sizeof(int64));
	list->items[list->n++] = id;
}

/* Add a message to a list of what belongs to lanes. */
void
scan_list_add_range(LaneRanges *list, const ScanRow *row)
{
	LaneRange  *new;

	list->items = scan_list_make_room(list->items, list->n, &list->size,
									  sizeof(LaneRange));
	new = &list->items[list->n++];
	memset(new, 0, sizeof(LaneRange));
	new->lane = message_lane(RelationGetDescr(row->table->heap), row->tuple);
	new->range.first = new->range.last = message_id_number(row->form.id);
	new->range.priority = row->form.priority;
	new->range.due = DT_NOBEGIN;
}

/*
 * Add a message to those that were delivered and may be unfinished, if it is
 * one, and of a group with a bound.
 */
void
scan_list_add_delivered(ClaimScan *scan, const ScanRow *row)
{
	if (scan->request.queue->group_concurrency > 0 &&
		!message_row_is_null(row->tuple, Anum_message_group_key) &&
		(row->form.claim_count > 0 || may_be_claimed(row)))
		scan_list_add_range(&scan->pass.delivered, row);
}

/*
 * Sort what was chosen, by priority and number: an earlier one may have become
 * free after later ones were chosen.  Where lanes take turns, first comes one
 * message of each lane, then the second ones, and so on.
 */
void
scan_list_sort_chosen(ChosenMessages *chosen, bool in_turns)
{
	ChosenMessage *items = chosen->items;

	if (chosen->n <= 1)
		return;
	qsort(items, chosen->n, sizeof(ChosenMessage), compare_in_lane);
	if (!in_turns)
		return;
	items[0].place = 0;
	for (int i = 1; i < chosen->n; i++)
		items[i].place = items[i].lane == items[i - 1].lane ?
			items[i - 1].place + 1 : 0;
	qsort(items, chosen->n, sizeof(ChosenMessage), compare_places);
}

static int
compare_in_lane(const void *a, const void *b)
{
	const ChosenMessage *x = a;
	const ChosenMessage *y = b;

	return x->lane != y->lane ? x->lane - y->lane :
		message_id_compare(x->form.id, y->form.id);
}

static int
compare_places(const void *a, const void *b)
{
	const ChosenMessage *x = a;
	const ChosenMessage *y = b;

	return x->place != y->place ? x->place - y->place : x->lane - y->lane;
}
