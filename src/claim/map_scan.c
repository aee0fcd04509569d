/*-------------------------------------------------------------------------
 *
 * map_scan.c
 *	  A claim scan that takes one range of the availability map at a time.
 *
 * NOTES
 *	  The map (availability.c) gives a claim one range of message numbers
 *	  after the other, reserved for it, and the scan reads each range with a
 *	  new snapshot.  Merged into that are the messages that our own transaction
 *	  has made free, of which the map does not know yet.  Skipped messages are
 *	  returned to the map with the reservation.  If the result is empty, there
 *	  was a moment at which the map had nothing and no session had anything
 *	  reserved.
 *
 *	  A probe reserves nothing, since a concurrent claim would skip its
 *	  ranges.  It scans what the map would give to a claim, and reports
 *	  nothing to the map.
 *
 * src/claim/map_scan.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "claim/claim_scan_internal.h"
#include "claim/map_scan.h"
#include "map/availability_reserve.h"
#include "map/availability_view.h"
#include "map/message_ranges.h"
#include "storage/message_scan.h"
#include "storage/pending_own.h"

/* Ranges that one pass scans: far more than there can be */
#define RANGES_MAX			10000

static bool reserve_and_scan(ClaimScan *scan, ReserveRequest *request);
static int	compare_messages(const void *a, const void *b);
static void scan_view(ClaimScan *scan, const AvailabilityView *view);

/*
 * A pass that reserves one range of the map after the other, until the claim
 * is complete or nothing is left.
 */
void
map_scan_pass(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;
	ChosenMessages *chosen = &scan->result.chosen;
	ReserveRequest request = {0};
	bool		goes_on = true;

	request.queue_id = scan->request.queue->id;
	request.began = scan->began;
	request.width = scan->request.limit;
	request.now = pass->now;

	/* Others wait for the end of our reservations. */
	message_scan_no_wait(pass->rows);
	claim_scan_add_own(scan);
	for (int i = 0; i < RANGES_MAX && goes_on && claim_scan_wants_more(scan);
		 i++)
	{
		/* What was added before may have met a table that is locked. */
		if (!message_scan_is_blocked(pass->rows))
			goes_on = reserve_and_scan(scan, &request);
		if (message_scan_is_blocked(pass->rows))
		{
			pending_rescan_own(pass->own_scans, 0);
			goes_on = claim_scan_begin_again(scan);
			if (goes_on)
				claim_scan_add_own(scan);
		}
		if (goes_on)
			request.now = pass->now = GetCurrentTimestamp();
	}

	/* A range that comes earlier may have been returned meanwhile. */
	if (chosen->n > 1)
		qsort(chosen->items, chosen->n, sizeof(ChosenMessage),
			  compare_messages);

	/*
	 * A claim that is complete may have left rows that it has added and not
	 * scanned: they are left to our next claim.
	 */
	if (pass->own_skipped)
		pending_rescan_own(pass->own_scans, 0);
	else if (!claim_scan_wants_more(scan))
		pending_rescan_own(pass->own_scans, pass->own_scanned_to);
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
	int64		scanned_to;
	MessageRange range;

	request->has_found = has_rows || scan->result.chosen.n > 0;
	switch (availability_reserve(request, &range))
	{
		case RESERVE_DONE:
			before = scan->result.chosen.n;
			scanned_to = claim_scan_range(scan, &range);
			availability_give_back(&scanned_to, &pass->skipped, pass->now);

			/*
			 * What is chosen is free until it is marked, so others have to
			 * wait.
			 */
			if (scan->result.chosen.n == 0)
				availability_close();
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
		claim_scan_added(scan);
	return has_rows;
}

/* In the order in which messages are claimed */
static int
compare_messages(const void *a, const void *b)
{
	const ChosenMessage *x = a;
	const ChosenMessage *y = b;

	return message_id_compare(x->form.id, y->form.id);
}

/*
 * One pass, with nothing reserved.  What other sessions have reserved is not
 * in the view of the map, so if there is nothing else, we wait for them.
 */
void
map_scan_probe(ClaimScan *scan)
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
		claim_scan_add_own(scan);
		claim_scan_added(scan);

		/* Our next claim has to find our own messages too. */
		pending_rescan_own(pass->own_scans, 0);
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
			claim_scan_added(scan);
			message_scan_end_range(pass->rows);
		}
	} while (claim_scan_wants_more(scan) && message_scan_is_stale(pass->rows));
}
