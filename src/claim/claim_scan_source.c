/*-------------------------------------------------------------------------
 *
 * claim_scan_source.c
 *	  Where the messages of a claim scan come from.
 *
 * NOTES
 *	  A pass merges messages from two sources into one sequence, in the order
 *	  in which they are handed out:
 *
 *	  1.  A range of message numbers of one priority, from the availability
 *	  map.  A claim has it reserved; where there are lanes, so has a sweep, and
 *	  a probe if groups have a bound.  Other sweeps and probes have not.  One
 *	  range is scanned at a time.
 *
 *	  2.  The messages that our own transaction has made free.
 *
 *	  With a map, a pass reserves one range after the other, and reads each
 *	  with a new snapshot.  Skipped messages are returned to the map with the
 *	  reservation.  If the result is empty, there was a moment at which the map
 *	  had nothing and no session had anything reserved.  Where groups take
 *	  turns, the ranges are those of lanes (lane_scan.c).
 *
 *	  Each source is read with a snapshot of its own, the latest.  If the
 *	  worker has emptied a segment before we had its tables locked, the
 *	  snapshot is stale, and the source is added again with a new one
 *	  (segment.c).  If a table cannot be locked at once, the scan is blocked
 *	  and nothing more is added.
 *
 * src/claim/claim_scan_source.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "claim/claim_scan_internal.h"
#include "map/availability_reserve.h"
#include "map/availability_view.h"
#include "map/message_ranges.h"
#include "storage/message_scan.h"
#include "storage/pending.h"

/* How the ranges that a claim reserves grow while they hold nothing free */
#define WIDTH_FACTOR		8
#define WIDTH_STEP			32
#define WIDTH_MAX			(PG_INT64_MAX / 16)

static void scan_added(ClaimScan *scan);
static void add_own(ClaimScan *scan);
static void return_own(ClaimScan *scan, int64 scanned_to);
static bool reserve_and_scan(ClaimScan *scan, ReserveRequest *request);
static void scan_view(ClaimScan *scan, const AvailabilityView *view);

/* Push the latest snapshot, until the pass ends. */
void
claim_scan_push_snapshot(ClaimScan *scan)
{
	scan->pass.reservations = availability_reservations;
	message_scan_push_snapshot(scan->pass.rows);
}

/* Returns whether another message has to be scanned. */
bool
claim_scan_wants_more(const ClaimScan *scan)
{
	/* Each message that is given may need a lane of its own. */
	if (scan->pass.lane_step == LANE_STEP_GIVE &&
		scan->request.mode != CLAIM_SCAN_SWEEP)
		return scan->pass.nscanned < (scan->pass.space == 0 ? SWEEP_AT_ONCE :
									  Min(scan->pass.space, SWEEP_AT_ONCE));
	switch (scan->request.mode)
	{
		case CLAIM_SCAN_CLAIM:

			/*
			 * The lane has given its part of the claim, or what is behind a
			 * locked message must not overtake it.
			 */
			if (scan->pass.lane_step == LANE_STEP_TAKE &&
				(scan->result.chosen.n >= scan->pass.lane_goal ||
				 (scan->pass.is_first_out && scan->pass.head_failed)))
				return false;
			return scan->result.chosen.n < scan->request.limit &&
				!scan->pass.does_not_fit && !scan->pass.met_group;
		case CLAIM_SCAN_PROBE:
			return scan->result.nfree == 0 &&
				!(scan->pass.is_first_out && scan->pass.head_failed);
		case CLAIM_SCAN_SWEEP:

			/* The worker does the rest in other transactions. */
			return scan->pass.nscanned < SWEEP_AT_ONCE &&
				scan->pass.exhausted.n < EXHAUSTED_AT_ONCE;
	}
	return false;
}

/* Scan all messages that were added. */
static void
scan_added(ClaimScan *scan)
{
	ScanRow		row;

	while (claim_scan_wants_more(scan) &&
		   message_scan_next(scan->pass.rows, &row))
		claim_scan_row(scan, &row);
}

/*
 * Scan a range of the availability map, merged with the messages that were
 * added before.  Messages in it that may be free later are in pass->skipped
 * then.  Returns the last number of the range that was scanned.
 */
int64
claim_scan_range(ClaimScan *scan, const MessageRange *range)
{
	ScanPass   *pass = &scan->pass;
	MessageScan *rows = pass->rows;
	int64		scanned_to = range->first - 1;
	ScanRow		row;

	claim_scan_add_range(scan, range, false);
	while (!message_scan_is_blocked(rows) && claim_scan_wants_more(scan))
	{
		/* Messages that were added before may come behind the next range. */
		if (!message_scan_has_rows(rows, true))
		{
			scanned_to = range->last;
			break;
		}
		message_scan_next(rows, &row);
		pass->nscanned++;
		if (pass->lane_step != LANE_STEP_TAKE ||
			scan_row_is_of_lane(&row, pass->lane))
			claim_scan_row(scan, &row);

		/* The claim ends before it. */
		if (pass->does_not_fit)
			break;
		if (row.in_range)
			scanned_to = message_id_number(row.form.id);

		/* The message that must not be overtaken stays in its lane. */
		if (pass->is_first_out && pass->head_failed && row.in_range)
			scanned_to = message_id_number(row.form.id) - 1;
	}
	message_scan_end_range(rows);

	/* Nothing was scanned, so all of the range is given back as it was. */
	if (message_scan_is_blocked(rows))
		pass->skipped.n = 0;
	return scanned_to;
}

/*
 * Add the messages of a range, with a snapshot that is not stale; with
 * "has_snapshot" that of the last range, which was taken after this one was
 * reserved.
 */
void
claim_scan_add_range(ClaimScan *scan, const MessageRange *range,
					 bool has_snapshot)
{
	ScanPass   *pass = &scan->pass;

	do
	{
		message_scan_end_range(pass->rows);
		pass->skipped.n = 0;
		if (!has_snapshot)
			claim_scan_push_snapshot(scan);
		has_snapshot = false;

		/* What ends before the snapshot is taken finds the range reserved. */
		Assert(pass->reservations == availability_reservations);
		message_scan_add_range(pass->rows, range);
	} while (message_scan_is_stale(pass->rows));
}

/*
 * Add the messages that our transaction has made free, which the map does not
 * have.
 */
static void
add_own(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;

	pending_take_own(scan->request.queue->id, pass->now, &pass->own);
	pass->own_skipped.n = 0;
	pass->own_scanned_to = 0;

	/* Some may be in a range of the map too, and are met twice then. */
	for (int i = 0; i < pass->own.n && !message_scan_is_blocked(pass->rows);
		 i++)
		do
		{
			claim_scan_push_snapshot(scan);
			message_scan_add_numbers(pass->rows, pass->own.items[i].priority,
									 pass->own.items[i].first,
									 pass->own.items[i].last);
		} while (message_scan_is_stale(pass->rows));
}

/* Return what was added of them and was scanned only up to this message. */
static void
return_own(ClaimScan *scan, int64 scanned_to)
{
	if (scan->pass.own.n > 0)
		pending_return_own(scan->request.queue->id, scan->pass.now,
						   &scan->pass.own, &scan->pass.own_skipped,
						   scanned_to);
}

/*
 * There is nothing to scan, but other sessions may give back what they have
 * reserved, or (awaits_move) the worker is about to move delayed messages: wait
 * for one of them, with nothing reserved.  Returns false if the pass is done.
 */
bool
claim_scan_wait(ClaimScan *scan, bool awaits_move)
{
	if (!availability_wait_for_close(scan->request.queue->id,
									 &scan->wait_until))
	{
		/*
		 * To read the whole queue would be of no help if only the worker is
		 * late: nothing is free before it has moved them.
		 */
		scan->pass.gave_up |= !awaits_move;
		return false;
	}

	/* Counting a lane may have set it, too (group_turn.c). */
	return !scan->pass.gave_up;
}

/*
 * A table cannot be locked at once: wait for it with nothing reserved.
 * Returns false if messages are chosen already: they are the result, because
 * their reservation is open, and we must not wait.
 */
bool
claim_scan_begin_again(ClaimScan *scan)
{
	if (scan->result.chosen.n > 0)
		return false;
	Assert(availability_may_wait());
	message_scan_wait_for_lock(scan->pass.rows);
	scan->pass.now = GetCurrentTimestamp();
	return true;
}

/* Give back the part of the range that was not scanned. */
void
claim_scan_give_back(ClaimScan *scan, int64 scanned_to)
{
	availability_give_back(&scanned_to, &scan->pass.skipped, scan->pass.now);
	scan->pass.skipped.n = 0;

	/* What is chosen is free until it is marked, so others have to wait. */
	if (scan->result.chosen.n == 0)
		availability_close();
}

/*
 * A range of this width held nothing free: the next one is wider, so that few
 * are needed to get over many messages that are gone.
 */
void
claim_scan_widen(ReserveRequest *request, int64 width)
{
	request->width = Min(Max(width, request->width), WIDTH_MAX) *
		WIDTH_FACTOR + WIDTH_STEP;
}

/* --- By the availability map --- */

/*
 * A pass that reserves one range of the map after the other, until the claim
 * is complete or nothing is left.
 */
void
claim_scan_map(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;
	ReserveRequest request = {0};
	bool		goes_on = true;

	request.queue_id = scan->request.queue->id;
	request.began = scan->began;
	request.width = scan->request.limit;
	request.now = pass->now;

	/* Others wait for the end of our reservations. */
	message_scan_no_wait(pass->rows);
	add_own(scan);
	while (goes_on && claim_scan_wants_more(scan))
	{
		CHECK_FOR_INTERRUPTS();

		/* What was added before may have met a table that is locked. */
		if (!message_scan_is_blocked(pass->rows))
			goes_on = reserve_and_scan(scan, &request);
		if (message_scan_is_blocked(pass->rows))
		{
			return_own(scan, 0);
			goes_on = claim_scan_begin_again(scan);
			if (goes_on)
				add_own(scan);
		}
		if (goes_on)
			request.now = pass->now = GetCurrentTimestamp();
	}

	/* A range that comes earlier may have been returned meanwhile. */
	scan_list_sort_chosen(&scan->result.chosen, false);

	/*
	 * A claim that is complete may have left rows that it has added and not
	 * scanned: they are left to our next claim.
	 */
	return_own(scan, claim_scan_wants_more(scan) ?
			   message_id_make(NUMBERS_END - 1, 0, 0) : pass->own_scanned_to);
}

/*
 * Scan the first range that the map has; if it has none, the messages that
 * were added because our own transaction has made them free.  Returns false if
 * the pass is done.
 */
static bool
reserve_and_scan(ClaimScan *scan, ReserveRequest *request)
{
	ScanPass   *pass = &scan->pass;
	bool		has_rows = message_scan_has_rows(pass->rows, false);
	int			before;
	MessageRange range;

	request->has_found = has_rows || scan->result.chosen.n > 0;
	switch (availability_reserve(request, &range))
	{
		case RESERVE_DONE:
			before = scan->result.chosen.n;
			claim_scan_give_back(scan, claim_scan_range(scan, &range));
			if (scan->result.chosen.n == before)
				claim_scan_widen(request, request->width);
			return true;
		case RESERVE_WAIT:

			/*
			 * There are rows left to scan; or messages are chosen, so that
			 * our reservation is open, and we must not wait.
			 */
			if (request->has_found)
				break;
			return claim_scan_wait(scan, request->awaits_move);
		case RESERVE_NONE:

			/* Another session has found out that the queue has groups. */
			if (request->met_lanes)
			{
				pass->met_group = true;
				return false;
			}
			break;
	}
	if (has_rows)
		scan_added(scan);
	return has_rows;
}

/*
 * One pass, with nothing reserved.  What other sessions have reserved is not
 * in the view of the map, so if there is nothing else, we wait for them.
 */
void
claim_scan_probe_map(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;
	int32		queue_id = scan->request.queue->id;
	AvailabilityView view;

	Assert(!availability_is_reserving());
	for (;;)
	{
		/* There is no room for a map of this queue. */
		if (!availability_view(queue_id, scan->has_groups, pass->now, &view))
		{
			pass->gave_up = true;
			return;
		}
		scan_view(scan, &view);
		add_own(scan);
		scan_added(scan);

		/* Our next claim has to find our own messages too. */
		return_own(scan, 0);
		if (scan->result.nfree > 0)
			return;

		/* There are more lanes than the view has room for. */
		if (view.incomplete)
		{
			pass->gave_up = true;
			return;
		}
		if ((!view.others && !view.awaits_move) ||
			!claim_scan_wait(scan, !view.others))
			return;
		pass->now = GetCurrentTimestamp();
	}
}

/*
 * Scan what the map would give to a claim, and what it does not have yet, with
 * one snapshot.  The ranges are added one by one, since the first free message
 * is enough.
 */
static void
scan_view(ClaimScan *scan, const AvailabilityView *view)
{
	ScanPass   *pass = &scan->pass;

	do
	{
		message_scan_end_parts(pass->rows);
		claim_scan_push_snapshot(scan);
		for (int i = 0; i < view->n && claim_scan_wants_more(scan); i++)
		{
			message_scan_add_range(pass->rows, &view->ranges[i]);
			scan_added(scan);
			message_scan_end_range(pass->rows);
		}
	} while (claim_scan_wants_more(scan) && message_scan_is_stale(pass->rows));
}
