/*-------------------------------------------------------------------------
 *
 * map_scan.c
 *	  A claim scan that takes one range of the availability map at a time.
 *
 * NOTES
 *	  The map (availability.c) gives a claim one range of message numbers
 *	  after the other, reserved for it, and the scan reads each range with a
 *	  new snapshot.  Merged into that are the delayed messages that are due,
 *	  which are reserved together, and the messages that our own transaction
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
#include "storage/segment.h"

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
	(void) claim_scan_add_delayed(scan, false);
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
			{
				(void) claim_scan_add_delayed(scan, false);
				claim_scan_add_own(scan);
			}
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
	 * scanned: our own ones are left to our next claim, and delayed ones go
	 * back as due at once.
	 */
	if (pass->own_skipped)
		pending_rescan_own(pass->own_scans, 0);
	else if (!claim_scan_wants_more(scan))
		pending_rescan_own(pass->own_scans, pass->own_scanned_to);
	pass->delayed.rescan |= !claim_scan_wants_more(scan);
	claim_scan_close_delayed(scan);
}

/*
 * Scan the first range that the map has; if it has none, the messages that
 * were added: delayed ones and those that our own transaction has made free.
 * Returns false if the pass is done.
 */
static bool
reserve_and_scan(ClaimScan *scan, ReserveRequest *request)
{
	ScanPass   *pass = &scan->pass;
	bool		has_rows = message_scan_has_rows(pass->rows, false);
	bool		uncertain;
	int			before;
	MessageRange range;

	/*
	 * We may have to wait for other sessions, and must not do so with the
	 * delayed messages reserved.
	 */
	if (!has_rows)
		claim_scan_close_delayed(scan);
	request->has_found = has_rows || scan->result.chosen.n > 0;
	switch (availability_reserve(request, &range))
	{
		case RESERVE_DONE:
			before = scan->result.chosen.n;
			availability_give_back(claim_scan_range(scan, &range),
								   &pass->skipped, pass->now);

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
			return claim_scan_wait(scan);
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
	{
		claim_scan_added(scan);
		return true;
	}

	/* A claim that has something need not be complete. */
	return scan->result.chosen.n == 0 &&
		claim_scan_may_add_delayed(scan, request, &uncertain) &&
		(claim_scan_add_delayed(scan, uncertain) || !uncertain ||
		 message_scan_is_blocked(pass->rows));
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
		if (!view.others || !claim_scan_wait(scan))
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
	TimestampTz from = view->delayed ? view->delayed_from : DT_NOEND;
	TimestampTz own_from;
	TimestampTz next_due;

	if (pending_has_own_delayed(scan->request.queue->id, pass->now,
								&own_from))
		from = Min(from, own_from);
	do
	{
		message_scan_end_parts(pass->rows);
		claim_scan_push_snapshot(scan);
		for (int i = 0; i < view->n && claim_scan_wants_more(scan); i++)
		{
			message_scan_add_range(pass->rows, &view->ranges[i], NULL);
			claim_scan_added(scan);
			message_scan_end_range(pass->rows);
		}
		if (from != DT_NOEND && claim_scan_wants_more(scan))
		{
			(void) message_scan_add_due(pass->rows, from, pass->now,
										scan->max_due,
										&pass->delayed.more_due, &next_due);
			claim_scan_added(scan);
		}
	} while (claim_scan_wants_more(scan) && segment_snapshot_is_stale());
}
