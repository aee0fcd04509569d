/*-------------------------------------------------------------------------
 *
 * claim_scan.c
 *	  What a claim finds: walks over a queue's messages, and locks them.
 *
 * NOTES
 *	  A walk goes over the queue's messages with the latest snapshot, highest
 *	  priority and lowest id first, and locks each free one without waiting.
 *	  One that is locked is somebody else's.  A lock that we get means that
 *	  the row is still as the snapshot saw it (row.c), so it is free and stays
 *	  so.  Messages that have expired, duplicates (dedup.c) and those that were
 *	  claimed too often are set aside for the end of the walk, some of them.
 *
 *	  The latest snapshot is used at every isolation level: a message that was
 *	  pushed or claimed since the transaction began is seen as it is.  At
 *	  REPEATABLE READ no serialization failure comes from that; SERIALIZABLE
 *	  watches our reads and writes as it does all others.
 *
 *	  With shared memory, the queue's availability map (availability.c) says which ranges are
 *	  to be looked at, one after the other, each with a snapshot of its own.
 *	  Delayed messages that are due, and those that our own transaction has
 *	  made free, are merged into them.  An empty answer means that there was a
 *	  moment at which the availability map knew of nothing, and nobody was looking.
 *
 *	  While a walk has something reserved it waits for nothing.  A table that
 *	  it needs and that cannot be locked at once makes it give back what it
 *	  has reserved, wait for the lock, and begin again.  While others have
 *	  something reserved, one that finds nothing waits for them.  When that
 *	  takes long, because they have a lot to look at or their processes are
 *	  stopped, it does without the availability map.
 *
 *	  A probe, which only asks whether something is free, reserves nothing: it
 *	  looks at what the availability map would give to a claim, and tells the availability map
 *	  nothing.
 *
 *	  Without a availability map, a walk goes over all messages of the queue.  An empty
 *	  answer has to mean that there was a moment at which nothing was free.  A
 *	  row that changed between snapshot and lock may be free again; and while
 *	  we find one row after the other locked, others may be pushed that the
 *	  snapshot does not show.  So if nothing was found, we walk again, until
 *	  every row that is locked was so in the walk before: then, unless one was
 *	  let go and locked again, all of them were when the last snapshot was
 *	  taken.
 *
 * src/queue/claim_scan.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "storage/procarray.h"
#include "utils/snapmgr.h"

#include "catalog/message_id.h"
#include "catalog/tables.h"
#include "queue/claim_scan.h"
#include "queue/counters.h"
#include "queue/dead_letter.h"
#include "queue/dedup.h"
#include "queue/options.h"
#include "queue/registry.h"
#include "queue/root_job.h"
#include "shmem/availability.h"
#include "shmem/availability_reserve.h"
#include "shmem/availability_visit.h"
#include "shmem/message_ranges.h"
#include "shmem/shmem.h"
#include "shmem/database_state.h"
#include "storage/message.h"
#include "storage/message_scan.h"
#include "storage/pending.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/limits.h"

/* Due messages that one walk looks at, and expired ones that it removes. */
#define DUE_AT_ONCE			1000
#define EXPIRED_AT_ONCE		1000

/* Duplicates that one walk removes */
#define DUPLICATES_AT_ONCE	1000

/* Messages that one walk sends to the dead letter queue. */
#define EXHAUSTED_AT_ONCE	100

/* Messages that the worker looks at in one transaction. */
#define SWEEP_AT_ONCE		1000

/* Ranges that one walk looks at: far more than there ever are. */
#define LOOKS_MAX			10000

/* How the numbers to look at grow while nothing is found. */
#define WIDTH_FACTOR		8
#define WIDTH_STEP			32
#define WIDTH_MAX			(PG_INT64_MAX / 16)

static void remember(LockedMessages *list, ScanRow *row);
static void remember_locked(BusyIds *list, const MessageForm *form);
static bool is_subset(const BusyIds *now, const BusyIds *before);
static bool widens_too_far(const ClaimScan *walk, const MessageForm *form);
static void pass(ClaimScan *walk, ScanRow *row, TimestampTz due, bool uncertain);
static bool has_row(const LockedMessages *list, const ScanRow *row);
static bool is_ours(ClaimScan *walk, ScanRow *row);
static bool is_exhausted(ClaimScan *walk, ScanRow *row);
static void take_row(ClaimScan *walk, ScanRow *row);
static LockTupleMode lock_mode(const ClaimScan *walk, const ScanRow *row);
static bool lock_row(ClaimScan *walk, ScanRow *row, LockTupleMode mode);
static void try_row(ClaimScan *walk, ScanRow *row);
static bool is_locked(const ScanRow *row);
static bool is_changing(const ScanRow *row);
static void count_ended(ClaimScan *walk, const ScanRow *row, int *count);
static int	compare_taken(const void *a, const void *b);
static bool wants_more(const ClaimScan *walk);
static void push_snapshot(ClaimScan *walk);
static bool add_delayed(ClaimScan *walk, bool uncertain);
static void close_delayed(ClaimScan *walk);
static void add_own(ClaimScan *walk);
static int64 look_at_range(ClaimScan *walk, const MessageRange *range);
static void take_in_hand(ClaimScan *walk);
static bool reserve_and_look(ClaimScan *walk, ReserveRequest *request);
static void walk_with_map(ClaimScan *walk);
static void walk_plainly(ClaimScan *walk);
static void probe(ClaimScan *walk);
static bool must_walk_again(ClaimScan *walk);
static void remove_all(LockedMessages *list);

static void
remember(LockedMessages *list, ScanRow *row)
{
	if (list->n == list->size)
	{
		list->size = list->size == 0 ? 16 : list->size * 2;
		list->items = list->items == NULL ?
			palloc(list->size * sizeof(LockedMessage)) :
			repalloc(list->items, list->size * sizeof(LockedMessage));
	}
	list->items[list->n].table = row->table;
	list->items[list->n].tuple = heap_copytuple(row->tuple);
	list->n++;
}

static void
remember_locked(BusyIds *list, const MessageForm *form)
{
	if (list->n == list->size)
	{
		list->size = list->size == 0 ? 16 : list->size * 2;
		list->items = list->items == NULL ?
			palloc(list->size * sizeof(int64)) :
			repalloc(list->items, list->size * sizeof(int64));
	}
	list->items[list->n++] = form->id;
}

/* Is everything that is locked now in the other list too? */
static bool
is_subset(const BusyIds *now, const BusyIds *before)
{
	int			j = 0;

	for (int i = 0; i < now->n; i++, j++)
	{
		while (j < before->n && before->items[j] != now->items[i])
			j++;
		if (j == before->n)
			return false;
	}
	return true;
}

/*
 * Would the range of the claim not fit into claim_span with this one, or is
 * it, or the first one, to be claimed alone?
 */
static bool
widens_too_far(const ClaimScan *walk, const MessageForm *form)
{
	int64		number = message_id_number(form->id);

	if (walk->taken.n > 0 && walk->alone &&
		(form->claim_count > 0 ||
		 MESSAGE_FORM(walk->taken.items[0].tuple)->claim_count > 0))
		return true;
	return walk->taken.n > 0 &&
		Max(walk->max_number, number) - Min(walk->min_number, number) >
		PG_INT32_MAX;
}

/* --- One row --- */

/* The row is not for us now; whoever looks when it is due may take it. */
static void
pass(ClaimScan *walk, ScanRow *row, TimestampTz due, bool uncertain)
{
	MessageRange range;

	if (walk->mode == CLAIM_SCAN_PROBE)
		return;
	if (segment_is_delayed(row->table->segment))
	{
		walk->delayed_again |= due == DT_NOBEGIN;
		walk->delayed_uncertain |= uncertain;
		if (uncertain)
			walk->delayed_next = Min(walk->delayed_next, due);
		return;
	}
	if (!row->in_range)
	{
		walk->own_again = true;
		return;
	}
	range.first = range.last = message_id_number(row->form->id);
	range.priority = row->form->priority;
	range.due = due;
	range.scanned_at = DT_NOBEGIN;	/* look_at_range() knows */
	range.uncertain = uncertain;
	range.swept = 0;
	message_ranges_add(&walk->passed, &range, walk->now);
}

static bool
is_exhausted(ClaimScan *walk, ScanRow *row)
{
	return options_is_exhausted(walk->queue, row->table, row->tuple);
}

/* The row is locked, and ours. */
static void
take_row(ClaimScan *walk, ScanRow *row)
{
	int64		number = message_id_number(row->form->id);

	walk->min_number = walk->taken.n == 0 ? number :
		Min(walk->min_number, number);
	walk->max_number = walk->taken.n == 0 ? number :
		Max(walk->max_number, number);
	walk->priorities |= 1 << row->form->priority;
	remember(&walk->taken, row);
}

static bool
has_row(const LockedMessages *list, const ScanRow *row)
{
	for (int i = list->n - 1; i >= 0; i--)
		if (list->items[i].table == row->table &&
			ItemPointerEquals(&list->items[i].tuple->t_self,
							  &row->tuple->t_self))
			return true;
	return false;
}

/*
 * Has this walk locked the row before?  Ranges that it looks at may lie over
 * each other.
 */
static bool
is_ours(ClaimScan *walk, ScanRow *row)
{
	HeapTupleHeader header = row->tuple->t_data;

	if ((header->t_infomask & HEAP_XMAX_INVALID) ||
		(!(header->t_infomask & HEAP_XMAX_IS_MULTI) &&
		 !TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmax(header))))
		return false;
	return has_row(&walk->taken, row) || has_row(&walk->expired, row) ||
		has_row(&walk->duplicates, row) || has_row(&walk->exhausted, row);
}

/* Has somebody else a lock on it, as far as can be told without taking one? */
static bool
is_locked(const ScanRow *row)
{
	HeapTupleHeader header = row->tuple->t_data;
	TransactionId xmax = HeapTupleHeaderGetRawXmax(header);

	if (header->t_infomask & HEAP_XMAX_INVALID)
		return false;
	if (header->t_infomask & HEAP_XMAX_IS_MULTI)
		return MultiXactIdIsRunning(xmax, false);
	return !TransactionIdIsCurrentTransactionId(xmax) &&
		TransactionIdIsInProgress(xmax);
}

/*
 * Has somebody locked or changed the version that we see, unless that was
 * taken back?
 */
static bool
is_changing(const ScanRow *row)
{
	HeapTupleHeader header = row->tuple->t_data;

	return is_locked(row) ||
		(!(header->t_infomask & HEAP_XMAX_INVALID) &&
		 !HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) &&
		 !TransactionIdDidAbort(HeapTupleHeaderGetUpdateXid(header)));
}

/*
 * The row was under a claim that ran out; its messages follow each other.  One
 * that ran out before the range was due was met before, and lies in it only
 * because ranges that are close are made one.
 */
static void
count_ended(ClaimScan *walk, const ScanRow *row, int *count)
{
	if (row->form->claim_token != 0 &&
		row->form->claim_token != walk->last_token &&
		walk->due > DT_NOBEGIN + 1 && row->form->claimed_until >= walk->due)
	{
		(*count)++;
		walk->last_token = row->form->claim_token;
	}
}

/*
 * How a message that is handed out has to be locked: as what follows will lock
 * it, or that would have to wait.  A pop deletes it; a delayed message moves
 * to another table; else the row is only marked.
 */
static LockTupleMode
lock_mode(const ClaimScan *walk, const ScanRow *row)
{
	return walk->pops || segment_is_delayed(row->table->segment) ?
		LockTupleExclusive : LockTupleNoKeyExclusive;
}

/* Lock the row without waiting.  False: it is locked, or has changed. */
static bool
lock_row(ClaimScan *walk, ScanRow *row, LockTupleMode mode)
{
	switch (message_lock(row->table, row->slot, mode, LockWaitSkip))
	{
		case TM_Ok:
			return true;
		case TM_WouldBlock:
			remember_locked(&walk->locked, row->form);
			walk->met_locked = true;
			pass(walk, row, availability_recheck_at(GetCurrentTimestamp()), true);
			return false;
		case TM_Updated:
		case TM_Deleted:
			walk->changed = true;
			pass(walk, row, DT_NOBEGIN, false);
			return false;
		case TM_Invisible:
		case TM_SelfModified:
		case TM_BeingModified:
		default:
			elog(ERROR, "unexpected result of locking a message");
	}
	return false;
}

/*
 * Take the row that the scan stands on, if it is to be had; or do what the
 * walk is for.
 */
static void
try_row(ClaimScan *walk, ScanRow *row)
{
	bool		expired = message_is_expired(row->form, walk->now);
	bool		unwanted;
	bool		exhausted;

	if (is_ours(walk, row))
		return;
	if (message_is_claimed(row->form, walk->now))
	{
		/* A prepared transaction may release it, or have done so just now. */
		if (is_changing(row))
			pass(walk, row, Min(availability_recheck_at(walk->now),
								row->form->claimed_until), true);
		else
			pass(walk, row, row->form->claimed_until, false);
		return;
	}
	unwanted = expired ||
		dedup_is_duplicate(walk->queue, row->table, row->tuple);
	if (unwanted && (walk->expired.n == EXPIRED_AT_ONCE ||
					 walk->duplicates.n == DUPLICATES_AT_ONCE ||
					 walk->mode == CLAIM_SCAN_PROBE))
	{
		pass(walk, row, availability_recheck_at(walk->now), true);
		return;
	}
	exhausted = !unwanted && is_exhausted(walk, row);
	if (exhausted)
	{
		/* With a lock on the dead letter queue, before one on the message */
		if (walk->exhausted.n == 0 && walk->may_move_dead &&
			walk->mode != CLAIM_SCAN_PROBE)
			walk->may_move_dead = dead_letter_can_move(walk->queue);
		if (walk->exhausted.n == EXHAUSTED_AT_ONCE || !walk->may_move_dead ||
			walk->mode == CLAIM_SCAN_PROBE)
		{
			pass(walk, row, availability_recheck_at(walk->now), true);
			return;
		}
	}
	else if (!unwanted && walk->mode != CLAIM_SCAN_LOCK)
	{
		if (walk->mode == CLAIM_SCAN_SWEEP)
			count_ended(walk, row, &walk->ended_free);
		if (is_locked(row))
		{
			walk->met_locked = true;
			pass(walk, row, availability_recheck_at(walk->now), true);
		}
		else
		{
			walk->found++;
			pass(walk, row, DT_NOBEGIN, false);
		}
		return;
	}
	if (!lock_row(walk, row, unwanted || exhausted ? LockTupleExclusive :
				  lock_mode(walk, row)))
		return;
	row->tuple = row_tuple(row->slot);
	row->form = MESSAGE_FORM(row->tuple);
	message_scan_take_due(walk->scan);
	if (walk->mode == CLAIM_SCAN_SWEEP)
		count_ended(walk, row, &walk->ended);

	if (unwanted)
		remember(expired ? &walk->expired : &walk->duplicates, row);
	else if (is_exhausted(walk, row))
		remember(&walk->exhausted, row);
	else
		take_row(walk, row);
}

static bool
wants_more(const ClaimScan *walk)
{
	switch (walk->mode)
	{
		case CLAIM_SCAN_PROBE:
			return walk->found == 0;
		case CLAIM_SCAN_SWEEP:
			return walk->looked < SWEEP_AT_ONCE &&
				walk->exhausted.n < EXHAUSTED_AT_ONCE;
		case CLAIM_SCAN_LOCK:
		default:
			return walk->taken.n < walk->limit && !walk->full;
	}
}

static void
push_snapshot(ClaimScan *walk)
{
	segment_push_snapshot();
	walk->nsnapshots++;
}

/* --- With shared memory --- */

/*
 * Add the delayed messages that are due, if any; "uncertain": also when one
 * may have been let go.  True: the scan has them.
 */
static bool
add_delayed(ClaimScan *walk, bool uncertain)
{
	TimestampTz from;
	TimestampTz own_from;
	bool		own;
	int			n;

	if (walk->delayed_open)
		return false;
	own = pending_has_own_delayed(walk->queue->id, walk->now, &own_from);
	walk->delayed_open = availability_reserve_delayed(walk->queue->id, walk->now,
											  uncertain, &from);
	if (!walk->delayed_open && !own)
		return false;
	if (own)
		from = walk->delayed_open ? Min(from, own_from) : own_from;
	do
	{
		push_snapshot(walk);
		n = message_scan_add_due(walk->scan, from, walk->now, walk->max_due,
						 &walk->more_due, &walk->delayed_next);
	} while (!message_scan_is_blocked(walk->scan) && segment_snapshot_is_stale());
	walk->delayed_again = walk->more_due;
	if (n == 0 && !message_scan_is_blocked(walk->scan))
		close_delayed(walk);
	return n > 0;
}

/* All of them that we shall look at were looked at. */
static void
close_delayed(ClaimScan *walk)
{
	if (walk->delayed_open)
		availability_close_delayed(message_scan_due_left(walk->scan),
							walk->delayed_again ? DT_NOBEGIN :
							walk->delayed_next, walk->delayed_uncertain);
	walk->delayed_open = false;
}

/* Add what this transaction has made free, of which no availability map knows. */
static void
add_own(ClaimScan *walk)
{
	MessageRange range;

	/* A row that is found twice is taken once. */
	while (!message_scan_is_blocked(walk->scan) &&
		   pending_next_own(walk->queue->id, walk->now, &range))
		do
		{
			push_snapshot(walk);
			message_scan_add_numbers(walk->scan, range.priority, range.first,
							 range.last);
		} while (!message_scan_is_blocked(walk->scan) && segment_snapshot_is_stale());
}

/*
 * Look at a range that the availability map leaves to us; what may be claimed later is
 * in walk->passed then.  Returns the last number that was looked at.
 */
static int64
look_at_range(ClaimScan *walk, const MessageRange *range)
{
	int64		looked_to = range->first - 1;
	ScanRow		row;

	walk->due = range->due;
	do
	{
		message_scan_end_range(walk->scan);
		walk->passed.n = 0;
		push_snapshot(walk);
		message_scan_add_range(walk->scan, range,
					   range->uncertain ? &walk->passed : NULL);
	} while (!message_scan_is_blocked(walk->scan) && segment_snapshot_is_stale());
	while (!message_scan_is_blocked(walk->scan) && wants_more(walk))
	{
		if (!message_scan_range_has_rows(walk->scan))
		{
			looked_to = range->last;
			break;
		}
		message_scan_next(walk->scan, &row);
		walk->full = widens_too_far(walk, row.form);
		if (walk->full)
			break;
		walk->looked++;
		if (row.in_range)
			looked_to = message_id_number(row.form->id);
		try_row(walk, &row);
	}
	message_scan_end_range(walk->scan);
	if (message_scan_is_blocked(walk->scan))
		walk->passed.n = 0;

	/*
	 * A call that has begun since our snapshot has to look at the uncertain
	 * ones itself.
	 */
	for (int i = 0; i < walk->passed.n; i++)
		walk->passed.items[i].scanned_at = walk->now;
	return looked_to;
}

/* Take what the scan has in hand, beside ranges. */
static void
take_in_hand(ClaimScan *walk)
{
	ScanRow		row;

	while (wants_more(walk) && message_scan_next(walk->scan, &row))
	{
		walk->full = widens_too_far(walk, row.form);
		if (!walk->full)
			try_row(walk, &row);
	}
}

/*
 * Take from the first range that the availability map has, or from what the scan has in
 * hand if there is none.  False: there is nothing.
 */
static bool
reserve_and_look(ClaimScan *walk, ReserveRequest *request)
{
	bool		in_hand = message_scan_has_rows(walk->scan);
	int			before = walk->taken.n;
	MessageRange range;

	/* A walk that waits for others must not have anything reserved. */
	if (!in_hand)
		close_delayed(walk);
	request->has_more = in_hand || walk->taken.n > 0;
	switch (availability_reserve(request, &range))
	{
		case RESERVE_DONE:
			availability_close(look_at_range(walk, &range), &walk->passed,
						 walk->now);
			if (walk->taken.n == before && request->width < WIDTH_MAX)
				request->width = request->width * WIDTH_FACTOR + WIDTH_STEP;
			return true;
		case RESERVE_WAIT:
			if (request->has_more)
				break;
			walk->gave_up = !availability_wait_for_close(walk->queue->id, &walk->wait_until);
			return !walk->gave_up;
		case RESERVE_NONE:
			break;
	}
	if (in_hand)
	{
		take_in_hand(walk);
		return true;
	}
	if (walk->taken.n > 0)
		return false;

	/* If others get these first, we wait for them. */
	if (request->delayed_is_due && !walk->more_due)
	{
		(void) add_delayed(walk, false);
		return true;
	}
	if (walk->delayed_uncertain_done)
		return false;
	walk->delayed_uncertain_done = true;
	return add_delayed(walk, true) || message_scan_is_blocked(walk->scan);
}

/* Highest priority first, oldest first */
static int
compare_taken(const void *a, const void *b)
{
	const MessageForm *x = MESSAGE_FORM(((const LockedMessage *) a)->tuple);
	const MessageForm *y = MESSAGE_FORM(((const LockedMessage *) b)->tuple);

	if (x->priority != y->priority)
		return x->priority > y->priority ? -1 : 1;
	return x->id < y->id ? -1 : (x->id > y->id);
}

static void
walk_with_map(ClaimScan *walk)
{
	ReserveRequest	request = {0};
	bool		goes_on = true;

	request.queue_id = walk->queue->id;
	request.began = walk->began;
	request.width = walk->limit;
	request.now = walk->now;
	message_scan_no_wait(walk->scan);
	(void) add_delayed(walk, false);
	add_own(walk);
	for (int looks = 0; goes_on && wants_more(walk) && looks < LOOKS_MAX;
		 looks++)
	{
		if (!message_scan_is_blocked(walk->scan))
			goes_on = reserve_and_look(walk, &request);
		if (message_scan_is_blocked(walk->scan))
		{
			availability_close_all();
			walk->delayed_open = false;
			walk->delayed_again = walk->delayed_uncertain = false;
			walk->delayed_uncertain_done = false;
			pending_rescan_own(walk->queue->id);
			if (walk->taken.n > 0)
				break;
			message_scan_wait_for_lock(walk->scan);
			walk->now = GetCurrentTimestamp();
			(void) add_delayed(walk, false);
			add_own(walk);
			goes_on = true;
		}
		request.now = walk->now = GetCurrentTimestamp();
	}

	/* What came free meanwhile, or is overdue, may have come late. */
	if (walk->taken.n > 1)
		qsort(walk->taken.items, walk->taken.n, sizeof(LockedMessage),
			  compare_taken);

	/* There may be some that we have not come to. */
	if (walk->own_again || !wants_more(walk))
		pending_rescan_own(walk->queue->id);
	walk->delayed_again |= !wants_more(walk);
	close_delayed(walk);
}

/*
 * Look whether something is free, with nothing reserved.  What others have
 * reserved is not seen, so if there is nothing else we wait for them.
 */
static void
probe(ClaimScan *walk)
{
	MessageScan *scan = walk->scan;
	AvailabilityView	view;

	for (;;)
	{
		TimestampTz from = DT_NOEND;
		TimestampTz own_from;
		TimestampTz next;

		if (!availability_view(walk->queue->id, walk->now, &view))
		{
			walk->gave_up = true;
			return;
		}
		if (view.delayed)
			from = view.delayed_from;
		if (pending_has_own_delayed(walk->queue->id, walk->now, &own_from))
			from = Min(from, own_from);
		do
		{
			message_scan_end_parts(scan);
			push_snapshot(walk);
			for (int i = 0; i < view.n; i++)
				message_scan_add_range(scan, &view.ranges[i], NULL);
			if (from != DT_NOEND)
				(void) message_scan_add_due(scan, from, walk->now, walk->max_due,
									&walk->more_due, &next);
		} while (segment_snapshot_is_stale());
		add_own(walk);
		take_in_hand(walk);
		pending_rescan_own(walk->queue->id);
		if (walk->found > 0 || !view.others)
			return;
		if (walk->hasty)
		{
			walk->found = 1;
			return;
		}
		walk->gave_up = !availability_wait_for_close(walk->queue->id, &walk->wait_until);
		if (walk->gave_up)
			return;
		walk->now = GetCurrentTimestamp();
	}
}

/* --- Without --- */

/* Go over all messages of the queue. */
static void
walk_plainly(ClaimScan *walk)
{
	TimestampTz next;

	message_scan_everywhere(walk->scan);
	do
	{
		message_scan_end_parts(walk->scan);
		push_snapshot(walk);
		message_scan_add_ids(walk->scan, 0, QUEUE_PRIORITIES - 1, PG_INT64_MIN,
						  PG_INT64_MAX);
		(void) message_scan_add_due(walk->scan, DT_NOBEGIN, walk->now, walk->max_due,
							&walk->more_due, &next);
	} while (segment_snapshot_is_stale());
	take_in_hand(walk);
}

/* --- Both --- */

/* Is there a availability map to go by?  On a standby nobody tells it anything. */
bool
claim_scan_uses_map(void)
{
	return shmem_exists() && !RecoveryInProgress();
}

void
claim_scan_init(ClaimScan *walk, const Queue *queue, int limit)
{
	memset(walk, 0, sizeof(ClaimScan));
	walk->queue = queue;
	walk->limit = limit;
	walk->max_due = Max(DUE_AT_ONCE, limit);
	walk->may_move_dead = true;
}

/* Lock up to limit free messages. */
void
claim_scan_run(ClaimScan *walk)
{
	Queue		dead;

	walk->now = walk->scan_began = GetCurrentTimestamp();
	walk->moves = segment_moves();
	walk->met_locked = false;
	if (walk->began == 0)
		walk->began = walk->now;
	root_job_forget();

	/* What is not known yet of the dead letter queue is read before. */
	if (walk->queue->dead_id != 0)
		(void) queue_find_as(walk->queue->dead_queue, walk->queue->owner,
							 QUEUE_DESCRIBE, &dead);
	walk->scan = message_scan_begin(walk->queue->id,
							walk->mode == CLAIM_SCAN_PROBE ?
							AccessShareLock : RowExclusiveLock);
	if (walk->full_scan)
		message_scan_everywhere(walk->scan);
	if (walk->plain || !claim_scan_uses_map())
	{
		walk_plainly(walk);
		return;
	}

	/* Learn which numbers are in which segment. */
	(void) segment_state_own();
	if (walk->mode == CLAIM_SCAN_PROBE)
		probe(walk);
	else
		walk_with_map(walk);
}

static void
remove_all(LockedMessages *list)
{
	for (int i = 0; i < list->n; i++)
	{
		message_delete_locked(list->items[i].table, list->items[i].tuple);
		dedup_drop_key(list->items[i].table, list->items[i].tuple);
	}
}

/*
 * The caller is done with what was taken: do what was set aside, and let go
 * of the tables.
 */
void
claim_scan_end(ClaimScan *walk)
{
	remove_all(&walk->expired);
	remove_all(&walk->duplicates);
	counters_add(walk->queue->id, JOB_EXPIRED, walk->expired.n);
	counters_add(walk->queue->id, JOB_DUPLICATES, walk->duplicates.n);
	CommandCounterIncrement();
	for (int i = 0; i < walk->exhausted.n; i++)
	{
		LockedMessage	   *dead = &walk->exhausted.items[i];

		walk->may_move_dead = walk->may_move_dead &&
			dead_letter_move(walk->queue, dead->table, dead->tuple);

		/* One that stays is locked by us until the transaction ends. */
		if (!walk->may_move_dead)
			message_return_at_commit(dead->table, dead->tuple);
	}
	message_scan_end(walk->scan);
	if (walk->full_scan)
	{
		/* What a probe has found, claims have to find too. */
		if (walk->mode == CLAIM_SCAN_PROBE && walk->found > 0)
			availability_reset_queue(walk->queue->id);
		availability_full_scan_done(walk->queue->id, walk->scan_began);
	}
	for (; walk->nsnapshots > 0; walk->nsnapshots--)
		PopActiveSnapshot();
}

static bool
must_walk_again(ClaimScan *walk)
{
	if (walk->gave_up)
	{
		walk->gave_up = false;
		walk->plain = true;
		segment_refresh();
		return true;
	}
	if (walk->more_due ||
		(walk->met_locked && segment_wait_for_move(walk->moves)))
		return true;
	if (walk->plain || !claim_scan_uses_map())
		return walk->changed ||
			!is_subset(&walk->locked, &walk->locked_before) || segment_refresh();
	if (!availability_full_scan_is_due(walk->queue->id, walk->now))
		return false;
	walk->full_scan = true;
	segment_refresh();
	if (walk->mode == CLAIM_SCAN_PROBE)
		walk->plain = true;
	else
		availability_reset_queue(walk->queue->id);
	return true;
}

/* The walk found nothing.  Is another one needed to say so? */
bool
claim_scan_again(ClaimScan *walk)
{
	if (!must_walk_again(walk))
		return false;

	if (walk->more_due && walk->max_due < INT_MAX / 10)
		walk->max_due *= 10;
	if (walk->locked_before.items != NULL)
		pfree(walk->locked_before.items);
	walk->locked_before = walk->locked;
	memset(&walk->locked, 0, sizeof(BusyIds));
	walk->expired.n = walk->duplicates.n = walk->exhausted.n = 0;
	walk->changed = walk->more_due = false;
	walk->delayed_again = walk->delayed_uncertain = false;
	walk->delayed_uncertain_done = false;
	walk->own_again = false;
	return true;
}

/*
 * Is there anything to claim?  Takes nothing.  A hasty caller does not wait
 * for others that may give something back, but takes it for granted.
 */
bool
claim_scan_probe(const Queue *queue, bool hasty)
{
	ClaimScan		walk;

	claim_scan_init(&walk, queue, 1);
	walk.mode = CLAIM_SCAN_PROBE;
	walk.hasty = hasty;
	do
	{
		claim_scan_run(&walk);
		claim_scan_end(&walk);
	} while (walk.found == 0 && claim_scan_again(&walk));
	return walk.found > 0;
}

/*
 * Look at some of what is overdue: claims that have run out, ranges that are
 * uncertain, and a queue of which nothing is known.  What was seen counts when
 * the transaction has committed; call again then, for the rest.  False: there
 * is nothing, or (*disturbed) not now, since claims are made of these
 * messages.  Only where there is shared memory.
 */
bool
claim_scan_sweep(const Queue *queue, bool *disturbed)
{
	ClaimScan		walk;
	const MessageRange *ranges;
	MessageRanges passed;
	int			n;

	claim_scan_init(&walk, queue, 1);
	walk.mode = CLAIM_SCAN_SWEEP;
	walk.began = walk.scan_began = walk.now = GetCurrentTimestamp();
	n = availability_begin_sweep(queue->id, walk.now, &ranges, disturbed);
	if (n == 0)
		return false;
	root_job_forget();
	(void) segment_state_own();
	walk.scan = message_scan_begin(queue->id, RowExclusiveLock);
	message_scan_no_wait(walk.scan);
	passed.n = 0;
	for (int i = 0; i < n && wants_more(&walk); i++)
	{
		availability_swept(i, look_at_range(&walk, &ranges[i]));
		if (message_scan_is_blocked(walk.scan))
			message_scan_lock_error();
		for (int j = 0; j < walk.passed.n; j++)
			message_ranges_add(&passed, &walk.passed.items[j], walk.now);
	}
	availability_end_sweep(&passed, walk.found, walk.ended_free, walk.now);
	database_count(COUNT_EXPIRED_CLAIMS, walk.ended);
	database_count(COUNT_REMOVED, walk.expired.n);
	database_count(COUNT_DEAD_LETTERS, walk.exhausted.n);
	claim_scan_end(&walk);
	return true;
}
