/*-------------------------------------------------------------------------
 *
 * claim_scan_lanes.c
 *	  A claim scan that takes the groups of a queue in turn, with a map.
 *
 * NOTES
 *	  Shared memory has the lanes of a queue, that is, its groups, in which
 *	  something may be free, in the order of their turns (lanes.c).  A pass
 *	  takes these steps, until the claim is complete or nothing is left:
 *
 *	  1. Give.  If the availability map has anything that is due (claims that
 *	  have run out, delayed messages, uncertain ranges, all of a queue of which
 *	  it knows nothing), the pass reserves that, scans up to a number of
 *	  messages of all groups, and gives those that are free to their lanes.
 *	  It locks and chooses nothing.  All of this comes before any lane, so that
 *	  no group misses its turn.
 *
 *	  2. Take.  The pass reserves a range of the lane whose turn it is, scans
 *	  it, passing over the messages of other lanes, and chooses one message, or
 *	  as many as the lane's part of a large claim is.  The rest of the range
 *	  goes back to the lane.
 *
 *	  What is chosen is sorted: first one message of each lane, then the second
 *	  ones, and so on.
 *
 *	  Reservations, snapshots, waiting and the messages that are not free are
 *	  the same as in claim_scan.c.  What this transaction has made free itself
 *	  is not in the lanes before it ends; so if there is anything of that, the
 *	  claim reads the whole queue instead (claim_scan_groups.c), and likewise
 *	  if the groups have a bound.
 *
 * src/queue/claim_scan_lanes.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/tables.h"
#include "queue/claim_scan_internal.h"
#include "shmem/availability_reserve.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "storage/pending.h"

/* How the ranges that a claim reserves of a lane grow while they hold nothing */
#define WIDTH_FACTOR		8
#define WIDTH_MAX			(PG_INT64_MAX / 16)

/*
 * The ring of lanes is being passed once.  Each lane that had something in the
 * beginning gives the same number of messages.
 */
typedef struct Round
{
	int			lanes_left;
	int			of_each;		/* messages */
	uint64		lane;			/* that has its turn */
	int			wanted;			/* messages of it */
} Round;

static void begin_request(const ClaimScan *scan, ReserveRequest *request);
static bool step(ClaimScan *scan, ReserveRequest *request, Round *round);
static bool give_range(ClaimScan *scan, const MessageRange *range);
static bool give_freed(ClaimScan *scan);
static bool give_delayed(ClaimScan *scan, bool uncertain);
static bool give_uncertain(ClaimScan *scan);
static void take(ClaimScan *scan, ReserveRequest *request,
				 const MessageRange *range, Round *round);
static void begin_turn(const ClaimScan *scan, const ReserveRequest *request,
					   Round *round);
static void set_turns(ClaimScan *scan, uint64 lane, int first);
static LaneTurn *turn_of(ScanPass *pass, uint64 lane);
static bool begin_again(ClaimScan *scan);
static int	compare_turns(const void *a, const void *b);

/* Can a pass take the lanes of the queue in turn? */
bool
claim_scan_has_lanes(const ClaimScan *scan)
{
	const Queue *queue = scan->request.queue;

	return queue->group_concurrency <= 0 &&
		!pending_has_own(queue->id, scan->pass.now);
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
}

/* One pass of a claim */
void
claim_scan_lanes(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;
	ChosenMessages *chosen = &scan->result.chosen;
	ReserveRequest request;
	Round		round = {0};
	bool		goes_on = true;

	begin_request(scan, &request);
	message_scan_no_wait(pass->rows);
	(void) give_delayed(scan, false);
	while (goes_on && claim_scan_wants_more(scan))
	{
		if (!message_scan_is_blocked(pass->rows))
			goes_on = step(scan, &request, &round);
		if (message_scan_is_blocked(pass->rows))
			goes_on = begin_again(scan);
		request.now = pass->now = GetCurrentTimestamp();
	}
	if (chosen->n > 1)
		qsort(chosen->items, chosen->n, sizeof(ChosenMessage),
			  compare_turns);
}

/* Reserve something and scan it.  False: there is nothing. */
static bool
step(ClaimScan *scan, ReserveRequest *request, Round *round)
{
	ScanPass   *pass = &scan->pass;
	MessageRange range;

	request->has_more = scan->result.chosen.n > 0;
	if (!request->same_lane)
		request->width = scan->request.limit;
	switch (availability_reserve(request, &range))
	{
		case RESERVE_DONE:
			if (request->is_lane)
			{
				take(scan, request, &range, round);
				return true;
			}
			return give_range(scan, &range);
		case RESERVE_WAIT:
			if (request->has_more)
				return false;
			pass->gave_up = !availability_wait_for_close(request->queue_id,
														 &scan->wait_until);
			return !pass->gave_up;
		case RESERVE_NONE:
			break;
	}
	if (request->has_more)
		return false;
	return request->delayed_is_due ? give_delayed(scan, false) :
		give_uncertain(scan);
}

/*
 * A table cannot be locked at once.  If messages are chosen already, they are
 * the result (false).  Else wait for the table with nothing reserved.
 */
static bool
begin_again(ClaimScan *scan)
{
	availability_undo_delayed();
	memset(&scan->pass.delayed, 0, sizeof(DelayedPart));
	if (scan->result.chosen.n > 0)
		return false;
	message_scan_wait_for_lock(scan->pass.rows);
	return true;
}

/* --- Giving free messages to their lanes --- */

/* A message is free. */
void
claim_scan_free_row(ClaimScan *scan, const ScanRow *row)
{
	LaneRanges *freed = &scan->pass.freed;
	LaneRange  *new;

	freed->items = claim_scan_make_room(freed->items, freed->n, &freed->size,
										sizeof(LaneRange));
	new = &freed->items[freed->n++];
	memset(new, 0, sizeof(LaneRange));
	new->lane = message_lane(RelationGetDescr(row->table->heap), row->tuple);
	new->range.first = new->range.last = message_id_number(row->form.id);
	new->range.priority = row->form.priority;
	new->range.due = DT_NOBEGIN;
	new->range.delayed = segment_is_delayed(row->table->segment);
}

/* False: there is no room for lanes, so the whole queue has to be read. */
static bool
give_freed(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;
	bool		done = availability_give_to_lanes(pass->freed.items,
												  pass->freed.n, pass->now);

	pass->freed.n = 0;
	pass->gave_up |= !done && scan->result.chosen.n == 0;
	return !pass->gave_up;
}

/* The same for what is free in a range that was reserved. */
static bool
give_range(ClaimScan *scan, const MessageRange *range)
{
	ScanPass   *pass = &scan->pass;
	int64		scanned_to;
	bool		done;

	pass->nscanned = 0;
	pass->lane_step = LANE_STEP_GIVE;
	scanned_to = claim_scan_range(scan, range);
	pass->lane_step = LANE_STEP_NONE;
	done = give_freed(scan);
	availability_give_back(scanned_to, &pass->skipped, pass->now);
	if (scan->result.chosen.n == 0)
		availability_close();
	return done;
}

/*
 * The same for delayed messages that are due; uncertain: also if the map only
 * cannot rule out that one is.  False: there are none.
 */
static bool
give_delayed(ClaimScan *scan, bool uncertain)
{
	ScanPass   *pass = &scan->pass;
	ScanRow		row;
	bool		goes_on;

	if (!claim_scan_add_delayed(scan, uncertain))
		return message_scan_is_blocked(pass->rows);
	if (message_scan_is_blocked(pass->rows))
		return true;
	if (!pass->delayed.reserved)
	{
		/* Some that we have delayed ourselves have become due meanwhile. */
		message_scan_end_parts(pass->rows);
		pass->lost = true;
		return false;
	}
	pass->lane_step = LANE_STEP_GIVE;
	while (message_scan_next(pass->rows, &row))
		claim_scan_row(scan, &row);
	pass->lane_step = LANE_STEP_NONE;
	goes_on = give_freed(scan);
	claim_scan_close_delayed(scan);
	message_scan_end_parts(pass->rows);
	return goes_on;
}

/* Once in a pass that has found nothing.  False: there are none. */
static bool
give_uncertain(ClaimScan *scan)
{
	DelayedPart *delayed = &scan->pass.delayed;

	if (delayed->scanned_uncertain)
		return false;
	delayed->scanned_uncertain = true;
	return give_delayed(scan, true);
}

/* For the worker: give some of what is due.  False: nothing is. */
bool
claim_scan_give_due(ClaimScan *scan)
{
	ReserveRequest request;
	MessageRange range;

	begin_request(scan, &request);
	request.only_due = true;
	if (availability_reserve(&request, &range) != RESERVE_DONE)
		return false;
	(void) give_range(scan, &range);
	return true;
}

/* --- Taking messages of a lane --- */

/* Is the row one of those that are scanned now? */
bool
claim_scan_is_of_lane(const ClaimScan *scan, const ScanRow *row)
{
	return scan->pass.lane_step != LANE_STEP_TAKE ||
		message_lane(RelationGetDescr(row->table->heap),
					 row->tuple) == scan->pass.lane;
}

/*
 * Choose messages of a lane.  A round takes as many of each lane as leave none
 * of them behind; the next round takes what is missing, from the first lane on,
 * so that the next claim begins with the lane behind the last one.
 */
static void
take(ClaimScan *scan, ReserveRequest *request, const MessageRange *range,
	 Round *round)
{
	ScanPass   *pass = &scan->pass;
	int			before = scan->result.chosen.n;
	int64		scanned_to;

	if (!request->same_lane || request->lane != round->lane)
		begin_turn(scan, request, round);
	pass->lane_step = LANE_STEP_TAKE;
	pass->lane = request->lane;
	pass->lane_goal = before + round->wanted;
	scanned_to = claim_scan_range(scan, range);
	pass->lane_step = LANE_STEP_NONE;
	availability_give_back(scanned_to, &pass->skipped, pass->now);
	if (scan->result.chosen.n == 0)
		availability_close();

	/* If that was not enough, try more of the same lane. */
	round->wanted -= scan->result.chosen.n - before;
	request->same_lane = round->wanted > 0;
	if (scan->result.chosen.n == before)
		request->width = Min(Max(range->last - range->first + 1,
								 request->width) * WIDTH_FACTOR, WIDTH_MAX);
	else
		set_turns(scan, request->lane, before);
}

/* The next lane has its turn, or the first one of a new round. */
static void
begin_turn(const ClaimScan *scan, const ReserveRequest *request, Round *round)
{
	int			wanted = scan->request.limit - scan->result.chosen.n;

	if (round->lanes_left == 0)
	{
		round->lanes_left = Max(request->nlanes, 1);
		round->of_each = Max(wanted / round->lanes_left, 1);
	}
	round->lanes_left--;
	round->lane = request->lane;
	round->wanted = Min(wanted, round->of_each);
}

/* Give the messages that were chosen from "first" on their places. */
static void
set_turns(ClaimScan *scan, uint64 lane, int first)
{
	ChosenMessages *chosen = &scan->result.chosen;
	LaneTurn   *turn;

	if (scan->request.limit == 1)
		return;
	turn = turn_of(&scan->pass, lane);
	for (int i = first; i < chosen->n; i++)
		chosen->items[i].turn = ((int64) turn->taken++ << 32) +
			(turn - scan->pass.turns.items);
}

static LaneTurn *
turn_of(ScanPass *pass, uint64 lane)
{
	LaneTurns  *turns = &pass->turns;

	for (int i = 0; i < turns->n; i++)
		if (turns->items[i].lane == lane)
			return &turns->items[i];
	turns->items = claim_scan_make_room(turns->items, turns->n, &turns->size,
										sizeof(LaneTurn));
	turns->items[turns->n].lane = lane;
	turns->items[turns->n].taken = 0;
	return &turns->items[turns->n++];
}

static int
compare_turns(const void *a, const void *b)
{
	const ChosenMessage *x = a;
	const ChosenMessage *y = b;

	return x->turn < y->turn ? -1 : (x->turn > y->turn);
}
