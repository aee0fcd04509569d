/*-------------------------------------------------------------------------
 *
 * lane_scan.c
 *	  A claim scan that takes the groups of a queue in turn, with a map.
 *
 * NOTES
 *	  Shared memory has the lanes of a queue, that is, its groups, in which
 *	  something may be free, in the order of their turns (lanes.c).  A pass
 *	  takes these steps, until the claim is complete or nothing is left:
 *
 *	  1. Give.  If the availability map has anything that is due (claims that
 *	  have run out, what was locked, all of a queue of which it knows
 *	  nothing), the pass reserves that, scans up to a number of messages of all
 *	  groups, and gives those that are free to their lanes.  It chooses nothing,
 *	  and locks only what is to be removed or becomes a dead letter.  That comes
 *	  before any lane: all of it if the map knows nothing of the queue, so that
 *	  no group misses its turn; else one step, since the worker does the rest.
 *	  So with what had no space in lanes and has some now: as many messages as
 *	  there is space for lanes.
 *
 *	  2. Count.  If the groups have a bound, the pass locks the group of the
 *	  lane, without waiting, unless the lane is that of the messages without a
 *	  key, and counts how many messages may be taken (group_turn.c).
 *
 *	  3. Take.  The pass reserves a range of the lane whose turn it is, scans
 *	  it, passing over the messages of other lanes, and chooses one message,
 *	  or as many as the lane's part of a large claim is, and as the bound
 *	  leaves room for.  The rest of the range goes back to the lane.  The
 *	  range is reserved before the group is locked, and if nothing may be
 *	  taken, all of it goes back.  Where there is a bound, the lane has no
 *	  turn in between, so that no other claim overtakes the messages in the
 *	  range.
 *
 *	  A claim of several messages, where there is no bound, does that with many
 *	  lanes at once (lane_takes.c).
 *
 *	  What is chosen is sorted: first one message of each lane, then the
 *	  second ones, and so on.
 *
 *	  When the claim has given the rest of the range back, it depends on what
 *	  it has found where the lane is (lanes.c):
 *
 *		nothing is left in the lane		it rests, or is removed
 *		the group is full				it rests, until something changes
 *		the rate allows nothing			it waits, until the rate does
 *		its first message does not
 *			fit into the claim			it has the first turn
 *		anything else					it has the last turn
 *
 *	  If something of a group was chosen, the group stays locked to the end of
 *	  the transaction.  Otherwise it is unlocked as its turn ends, or as the
 *	  pass ends.
 *
 *	  Reservations, snapshots, waiting and the messages that are not free are
 *	  as in claim_scan.c.
 *
 *	  A probe of a queue whose groups have a bound takes the same steps, but
 *	  locks no group, chooses nothing, and gives the whole range of a lane back
 *	  if something in it is free.
 *
 * src/claim/lane_scan.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "claim/claim_scan_internal.h"
#include "claim/group_turn.h"
#include "claim/lane_scan.h"
#include "claim/lane_takes.h"
#include "map/availability_groups.h"
#include "map/availability_reserve.h"
#include "map/availability_view.h"
#include "map/message_ranges.h"
#include "storage/message.h"
#include "storage/message_scan.h"
#include "storage/pending.h"
#include "storage/prepared.h"

#define DELAYED_AT_ONCE 4000	/* which the worker reads in one step */

/*
 * The ring of lanes is being passed once.  Each lane that had something in
 * the beginning gives the same number of messages.
 */
typedef struct Round
{
	int			lanes_left;
	int			of_each;		/* messages */
	LaneId		lane;			/* that has its turn */
	int			wanted;			/* messages of it */
	int			in_vain;		/* lanes since something was taken last */
	int			nlanes;			/* that had a turn then */
} Round;

static const bool keeps_turn = true;

static void begin_request(const ClaimScan *scan, ReserveRequest *request);
static bool lane_scan_step(ClaimScan *scan, ReserveRequest *request,
						   Round *round);
static void give_range(ClaimScan *scan, const MessageRange *range, int space);
static bool give_delivered_delayed(ClaimScan *scan, uint64 incarnation);
static void take_of_lane(ClaimScan *scan, ReserveRequest *request,
						 const MessageRange *range, Round *round);
static void divide_wanted(Round *round, const ReserveRequest *request,
						  int wanted);
static void take_of_lanes(ClaimScan *scan, ReserveRequest *request,
						  Round *round);
static int	lanes_at_once(const ClaimScan *scan, const ReserveRequest *request,
						  const Round *round);
static void take_range(ClaimScan *scan, const GroupTurn *turn,
					   const MessageRange *range, int wanted);

/*
 * Returns whether a pass can take the lanes of the queue in turn.  If not, it
 * has to read the whole queue (whole_scan.c).
 */
bool
lane_scan_has_lanes(ClaimScan *scan)
{
	const Queue *queue = scan->request.queue;
	bool		learns;

	if (queue->group_concurrency <= 0)
		return true;

	/*
	 * What was delivered may be incomplete until the worker has read the
	 * queue: wait for that, since it takes less than to read all here.
	 */
	while (!availability_knows_delivered(queue->id, queue->group_concurrency,
										 &learns))
		if (!learns || !availability_wait_for_close(queue->id,
													&scan->wait_until))
			return false;
	return true;
}

/* --- A pass --- */

static void
begin_request(const ClaimScan *scan, ReserveRequest *request)
{
	memset(request, 0, sizeof(ReserveRequest));
	request->queue_id = scan->request.queue->id;
	request->began = scan->began;
	request->now = scan->pass.now;
	request->has_lanes = true;
	request->bound = scan->request.queue->group_concurrency;
}

/* One pass of a claim, or of a probe of a queue with a bound */
void
lane_scan_pass(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;
	ReserveRequest request;
	Round		round = {0};
	bool		goes_on = true;

	begin_request(scan, &request);

	/* Others wait for the end of our reservations. */
	message_scan_no_wait(pass->rows);
	if (request.bound > 0)
	{
		/* Also without a rate: lanes may wait for one that was removed. */
		availability_wake_lanes(request.queue_id);

		/* A group in which we have made room is full only for others. */
		pending_give_turns(request.queue_id);
	}
	while (goes_on && claim_scan_wants_more(scan))
	{
		CHECK_FOR_INTERRUPTS();

		goes_on = lane_scan_step(scan, &request, &round);
		if (message_scan_is_blocked(pass->rows))
			goes_on = claim_scan_begin_again(scan);
		request.now = pass->now = GetCurrentTimestamp();
	}
	scan_list_sort_chosen(&scan->result.chosen, true);
}

/* Reserve something and scan it.  Returns false if the pass is done. */
static bool
lane_scan_step(ClaimScan *scan, ReserveRequest *request, Round *round)
{
	ScanPass   *pass = &scan->pass;
	MessageRange range;

	request->has_found = scan->result.chosen.n > 0;

	/* take_of_lane() widens the next range of a lane that gave nothing. */
	if (!request->same_lane)
		request->width = scan->request.limit;
	request->max_lanes = lanes_at_once(scan, request, round);
	switch (availability_reserve(request, &range))
	{
		case RESERVE_DONE:
			if (request->is_lane)
			{
				if (request->nreserved > 1)
					take_of_lanes(scan, request, round);
				else
					take_of_lane(scan, request, &range, round);
				return true;
			}

			/* Lanes come next; what else is due is left to the worker. */
			request->prefers_lanes = true;
			give_range(scan, &range, request->space);

			/* Lanes have something again, though all had given nothing. */
			if (pass->ngiven > 0)
			{
				round->in_vain = 0;
				request->no_lanes = false;
			}
			return true;
		case RESERVE_WAIT:

			/* We must not wait while what we have chosen is reserved. */
			if (request->has_found)
				return false;
			return claim_scan_wait(scan, request->awaits_move);
		case RESERVE_NONE:
			break;
	}

	/*
	 * Something is free, and there is no room for it in lanes: the whole
	 * queue has to be read.  But a claim that has something need not be
	 * complete.
	 */
	pass->gave_up |= request->no_space && !request->has_found;
	return false;
}

/* --- Giving free messages to their lanes --- */

/*
 * Scan a range that was reserved, and give what is free in it to the lanes.
 * There is space for "space" of them, or for any number if that is 0.
 */
static void
give_range(ClaimScan *scan, const MessageRange *range, int space)
{
	ScanPass   *pass = &scan->pass;
	int64		scanned_to;

	pass->nscanned = pass->ngiven = 0;
	pass->space = space;
	pass->lane_step = LANE_STEP_GIVE;
	scanned_to = claim_scan_range(scan, range);
	pass->lane_step = LANE_STEP_NONE;

	/*
	 * This comes before the rest is given back, because only until then the
	 * map treats the messages as overflow for which there is space now.
	 */
	availability_learn_delivered(scan->request.queue->id,
								 pass->delivered.items, pass->delivered.n);
	availability_give_to_lanes(pass->freed.items, pass->freed.n,
							   pass->ngiven, pass->now);
	pass->freed.n = pass->delivered.n = 0;
	claim_scan_give_back(scan, scanned_to);
}

/*
 * For the worker: give some of what is due to the lanes.  If they have to
 * learn what was delivered, that is all of the queue, and they know it when
 * nothing is left: after a restart, and when the map was cleared or the bound
 * has changed.  The steps need not be one transaction, since other sessions
 * claim and finish messages between any two ranges, too.  Returns false if
 * nothing is due.
 */
bool
lane_scan_give_due(ClaimScan *scan)
{
	const Queue *queue = scan->request.queue;
	uint64		incarnation = queue->group_concurrency <= 0 ? 0 :
	availability_begin_delivered(queue->id, queue->group_concurrency);
	ReserveRequest request;
	MessageRange range;

	if (queue->group_concurrency > 0)
		availability_wake_lanes(queue->id);
	begin_request(scan, &request);
	request.no_lanes = request.only_due = true;

	if (availability_reserve(&request, &range) == RESERVE_DONE)
	{
		give_range(scan, &range, 0);

		/* The worker does not wait for a lock that a user may hold. */
		if (message_scan_is_blocked(scan->pass.rows))
			message_scan_lock_error();
		return true;
	}
	if (incarnation == 0)
		return false;
	if (give_delivered_delayed(scan, incarnation))
		return true;

	availability_end_delivered(queue->id, incarnation, prepared_is_unknown());
	return false;
}

/*
 * Add some of the delayed messages that were delivered before to what was
 * delivered of their lanes.  They are in no range of the map, but with a bound
 * of 1 they block their groups.  Returns false if there are no more.
 */
static bool
give_delivered_delayed(ClaimScan *scan, uint64 incarnation)
{
	/* How far they were read for this incarnation of the map */
	static uint64 read_for = 0;
	static int64 low;
	ScanPass   *pass = &scan->pass;
	LaneRanges *list = &pass->delivered;
	int64		next = low;
	int			nread = 0;
	ScanRow		row;

	/* It is another queue, or its map was cleared: read from the beginning. */
	if (incarnation != read_for)
		next = PG_INT64_MIN;

	message_scan_add_delayed_list(pass->rows, next);
	while (nread < DELAYED_AT_ONCE && message_scan_next(pass->rows, &row))
	{
		scan_list_add_delivered(scan, &row);
		next = row.form.id + 1;
		nread++;
	}
	message_scan_end_parts(pass->rows);
	if (message_scan_is_blocked(pass->rows))
		message_scan_lock_error();
	availability_learn_delivered(scan->request.queue->id, list->items,
								 list->n);
	list->n = 0;
	ereport(DEBUG2,
			(errmsg_internal("read %d delayed messages of queue number %d",
							 nread, scan->request.queue->id)));
	read_for = incarnation;
	low = next;
	return nread == DELAYED_AT_ONCE;
}

/* --- Taking messages of a lane --- */

/*
 * Choose messages of a lane.  A round takes as many of each lane as leave
 * none of them behind; the next round takes what is missing, from the first
 * lane on, so that the next claim begins with the lane behind the last one.
 */
static void
take_of_lane(ClaimScan *scan, ReserveRequest *request,
			 const MessageRange *range, Round *round)
{
	ScanPass   *pass = &scan->pass;
	ChosenMessages *chosen = &scan->result.chosen;
	int			before = chosen->n;
	GroupTurn  *turn;
	int			wanted;

	if (round->in_vain == 0)
		round->nlanes = request->nlanes;

	/*
	 * We did not want more of the last lane, or it has no more.  At first
	 * that is the lane without a key, of which nothing was locked.
	 */
	if (!request->same_lane || !lane_equals(request->lane, round->lane))
	{
		/*
		 * If nothing was chosen of the last lane, its group is unlocked at
		 * once, so that other claims can take it.
		 */
		if (group_turn_is_bounded(scan, round->lane))
		{
			turn = group_turn_find(pass, round->lane);
			if (turn->is_locked && turn->taken == 0)
				group_turn_close(scan, turn, false);
		}

		wanted = scan->request.limit - chosen->n;
		divide_wanted(round, request, wanted);
		round->lanes_left--;
		round->lane = request->lane;
		round->wanted = Min(wanted, round->of_each);
	}
	turn = group_turn_find(pass, request->lane);
	wanted = round->wanted;
	if (group_turn_is_bounded(scan, request->lane))
	{
		int			room = group_turn_open(scan, turn, range,
										   request->lane_changes, wanted);

		wanted = Min(wanted, room);
	}

	/* If nothing of the lane may be taken now, all of the range goes back. */
	if (wanted <= 0)
		claim_scan_give_back(scan, range->first - 1);
	else
		take_range(scan, turn, range, wanted);
	turn->room -= chosen->n - before;	/* where there is a bound */
	turn->taken += chosen->n - before;
	for (int i = before; i < chosen->n; i++)
		chosen->items[i].lane = turn - pass->turns.items;

	/*
	 * The next claim begins with a message that did not fit into this one, or
	 * whose group was one too many.  Others were chosen before, so that our
	 * reservation is open.
	 */
	if (pass->does_not_fit && chosen->n == before)
		availability_end_turns(&request->lane, &keeps_turn, 1);

	/*
	 * If that was not enough, try more of the same lane, in a wider range if
	 * this one had nothing; but not if its group is full, nor beyond a
	 * message that must not be overtaken.
	 */
	round->wanted -= chosen->n - before;
	request->same_lane = wanted > 0 && !pass->head_failed &&
		round->wanted > 0;
	if (chosen->n > before)
		round->in_vain = 0;
	else if (request->same_lane)
		claim_scan_widen(request, range->last - range->first + 1);
	else
		round->in_vain++;

	/*
	 * After all lanes have given nothing, only what is due is left.  A lane
	 * that is full, or waits for its rate, has no turn any more, so we count
	 * those that had one before.
	 */
	request->no_lanes = round->in_vain > Max(round->nlanes, request->nlanes);
}

/* If the ring was passed once, divide what is still wanted anew. */
static void
divide_wanted(Round *round, const ReserveRequest *request, int wanted)
{
	if (round->lanes_left > 0)
		return;

	/* There may be none if the overflow is claimed as a lane. */
	round->lanes_left = Max(request->nlanes, 1);
	round->of_each = Max(wanted / round->lanes_left, 1);

	/* The claim cannot lock so many groups, so it takes more of each. */
	if (request->bound > 0 && round->lanes_left > GROUP_LOCKS_OF_CLAIM)
		round->of_each = (wanted + GROUP_LOCKS_OF_CLAIM - 1) /
			GROUP_LOCKS_OF_CLAIM;
}

/*
 * Returns how many lanes are to be reserved at once: those that are left in
 * the round, as long as there is something wanted of each.
 */
static int
lanes_at_once(const ClaimScan *scan, const ReserveRequest *request,
			  const Round *round)
{
	int			wanted = scan->request.limit - scan->result.chosen.n;

	/*
	 * A group with a bound is locked and counted alone.  And a message that
	 * is to be claimed alone comes first only if its lane is read first.
	 */
	if (request->same_lane || request->bound > 0 || scan->request.isolates ||
		scan->request.mode != CLAIM_SCAN_CLAIM)
		return 1;
	return round->lanes_left > 0 ? Min(wanted, round->lanes_left) : wanted;
}

/*
 * Choose messages of several lanes that were reserved at once, each of which
 * gives its part of the round.
 */
static void
take_of_lanes(ClaimScan *scan, ReserveRequest *request, Round *round)
{
	int			n = request->nreserved;
	int			wanted = scan->request.limit - scan->result.chosen.n;
	const LaneRange *reserved = availability_reserved();
	LaneTake	takes[LANES_AT_ONCE];
	LaneId		lanes[LANES_AT_ONCE];
	bool		keeps[LANES_AT_ONCE];

	divide_wanted(round, request, wanted);
	round->lanes_left -= n;
	for (int i = 0; i < n; i++)
	{
		LaneTake   *take = &takes[i];

		/*
		 * From one that may not fit into a claim with the first one on, they
		 * keep their turns: read by number, it could come last for ever.
		 */
		if (Max(reserved[i].range.last, reserved[0].range.last) -
			Min(reserved[i].range.first, reserved[0].range.first) >
			PG_INT32_MAX / 2)
			wanted = 0;
		take->lane = lanes[i] = reserved[i].lane;
		take->wanted = Min(wanted, round->of_each);
		take->turn = group_turn_find(&scan->pass, take->lane) -
			scan->pass.turns.items;
		wanted -= take->wanted;
	}
	lane_takes_scan(scan, takes, n);

	/* There was no room for it in the claim, or a table is locked. */
	for (int i = 0; i < n; i++)
		keeps[i] = takes[i].scanned_to < takes[i].range.first;

	/* Those that have given too little are read again, in wider ranges. */
	do
	{
		claim_scan_widen(request, request->width);
		n = lane_takes_continue(scan, takes, n, request->width);
		if (n > 0)
			lane_takes_scan(scan, takes, n);
	} while (n > 0);
	availability_end_turns(lanes, keeps, request->nreserved);

	/* What is chosen is free until it is marked, so others have to wait. */
	if (scan->result.chosen.n == 0)
		availability_close();

	/* Lanes that have given nothing are empty, so they have no turn. */
	round->in_vain = 0;
	round->lane = LANE_WITHOUT_KEY;
}

/*
 * Choose messages in the range of a lane, or the head of its group, which is
 * not in the range and comes first.  A probe only finds out whether one is
 * free.
 */
static void
take_range(ClaimScan *scan, const GroupTurn *turn, const MessageRange *range,
		   int wanted)
{
	ScanPass   *pass = &scan->pass;
	bool		has_head = turn->count.has_head;
	int			before = scan->result.chosen.n;
	int64		scanned_to;

	pass->lane_step = LANE_STEP_TAKE;
	pass->lane = turn->lane;
	pass->lane_goal = before + wanted;
	pass->is_first_out = group_turn_is_bounded(scan, turn->lane) &&
		scan->request.queue->group_concurrency == 1;
	pass->head_failed = false;
	scanned_to = claim_scan_range(scan, has_head ? &turn->count.head : range);
	pass->lane_step = LANE_STEP_NONE;

	/* Where the bound is not 1, a message that failed is only skipped. */
	pass->head_failed &= pass->is_first_out;
	pass->is_first_out = false;
	if (scan->result.nfree > 0)
	{
		/* A claim is to find the lane as the probe has, with its turn. */
		pass->skipped.n = 0;
		availability_give_back(NULL, &pass->skipped, pass->now);
		availability_end_turns(&turn->lane, &keeps_turn, 1);
		availability_close();
		return;
	}
	if (has_head)
	{
		/* Nothing in the range may overtake the head. */
		pass->head_failed = scan->result.chosen.n == before;
		scanned_to = range->first - 1;
	}
	claim_scan_give_back(scan, scanned_to);
}
