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
 *	  have run out, delayed messages, uncertain ranges, all of a queue of
 *	  which it knows nothing), the pass reserves that, scans up to a number of
 *	  messages of all groups, and gives those that are free to their lanes.
 *	  It locks and chooses nothing.  That comes before any lane: all of it if
 *	  the map knows nothing of the queue, so that no group misses its turn;
 *	  else one step, since the worker does the rest.  So with what had no room
 *	  in lanes and has some now: as many messages as there is room for lanes.
 *
 *	  2. Count.  If the groups have a bound, the pass locks the group of the
 *	  lane (group.c), without waiting, unless the lane is that of the messages
 *	  without a key.  Then it asks how many messages may be under live claims
 *	  (lanes.c), and reads these, with a snapshot that is later than the lock,
 *	  if it matters.  With the rate of the group (group_rate.c), the result is
 *	  how many messages may be taken.
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
 *	  First in, first out.  With a bound of 1, messages of a group are claimed
 *	  in order.  One that was delivered and is not finished comes before all
 *	  others (the head).  So does one that is free and comes before the range
 *	  that was reserved, because a prepared transaction that had claimed it
 *	  was rolled back.  If the head is free, it is taken, and the range goes
 *	  back; if it is delayed or locked, it blocks the group.
 *
 *	  Reservations, snapshots, waiting and the messages that are not free are
 *	  as in claim_scan.c.
 *
 *	  A probe of a queue whose groups have a bound takes the same steps, but
 *	  locks no group, chooses nothing, and gives back all that it has reserved
 *	  if something is free.  It gives nothing to the lanes: if it finds
 *	  nothing in them, and anything is due, it reads the whole queue
 *	  (claim_scan_groups.c).
 *
 * src/claim/lane_scan.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/tables.h"
#include "claim/claim_scan_internal.h"
#include "claim/group_rate.h"
#include "claim/lane_scan.h"
#include "map/availability.h"
#include "map/availability_reserve.h"
#include "map/lanes.h"
#include "map/message_ranges.h"
#include "queue/group.h"
#include "queue/options.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "storage/pending.h"
#include "storage/segment.h"

#define LOCKS_MAX			100 /* groups that one claim locks, at most */

/*
 * How the ranges that a claim reserves of a lane grow while they hold nothing
 */
#define WIDTH_FACTOR		8
#define WIDTH_MAX			(PG_INT64_MAX / 16)

/*
 * The ring of lanes is being passed once.  Each lane that had something in
 * the beginning gives the same number of messages.
 */
typedef struct Round
{
	int			lanes_left;
	int			of_each;		/* messages */
	uint64		lane;			/* that has its turn */
	int			wanted;			/* messages of it */
	int			in_vain;		/* lanes since something was taken last */
} Round;

static void begin_request(const ClaimScan *scan, ReserveRequest *request);
static bool step(ClaimScan *scan, ReserveRequest *request, Round *round);
static void give_range(ClaimScan *scan, const MessageRange *range, int room);
static void give_freed(ClaimScan *scan);
static bool give_delayed(ClaimScan *scan, bool uncertain);
static bool give_uncertain(ClaimScan *scan);
static LaneRange *add_row(LaneRanges *list, const ScanRow *row);
static void give_delivered_delayed(ClaimScan *scan);
static void take(ClaimScan *scan, ReserveRequest *request,
				 const MessageRange *range, Round *round);
static void end_turn(ClaimScan *scan, uint64 lane);
static void begin_turn(const ClaimScan *scan, const ReserveRequest *request,
					   Round *round);
static void give_back(ClaimScan *scan, int64 scanned_to);
static int64 scan_lane(ClaimScan *scan, const LaneTurn *turn,
					   const MessageRange *range, int wanted);
static void probe_lane(ClaimScan *scan, LaneTurn *turn,
					   const MessageRange *range);
static void take_head(ClaimScan *scan, LaneTurn *turn,
					  const MessageRange *range);
static void add_taken(ClaimScan *scan, LaneTurn *turn, int first);
static bool is_bounded(const ClaimScan *scan, uint64 lane);
static int	open_lane(ClaimScan *scan, LaneTurn *turn,
					  const MessageRange *range, uint32 changes, int wanted);
static bool lock_group(ClaimScan *scan, LaneTurn *turn);
static int	rate_room(ClaimScan *scan, LaneTurn *turn);
static int	count_room(ClaimScan *scan, LaneTurn *turn, int wanted);
static void count_rows(ClaimScan *scan, const LaneTurn *turn,
					   const MessageRange *ranges, int n);
static void find_head(ClaimScan *scan, const ScanRow *row, bool was_delivered,
					  bool is_locked);
static MessageRange *list_delivered(const ClaimScan *scan, uint64 lane,
									int *n);
static void close_lane(ClaimScan *scan, LaneTurn *turn, bool is_full);
static LaneTurn *turn_of(ScanPass *pass, uint64 lane);
static bool begin_again(ClaimScan *scan);
static void sort_chosen(ChosenMessages *chosen);
static int	compare_in_lane(const void *a, const void *b);
static int	compare_places(const void *a, const void *b);

/*
 * Returns whether a pass can take the lanes of the queue in turn.  If not, it
 * has to read the whole queue (claim_scan_groups.c).
 */
bool
lane_scan_has_lanes(const ClaimScan *scan)
{
	const Queue *queue = scan->request.queue;

	/*
	 * What this transaction has made free is not in the lanes before it ends.
	 * If groups have a bound, nor is what it has claimed among what they have
	 * as delivered; and that may be incomplete, until the worker has read the
	 * queue.
	 */
	if (queue->group_concurrency <= 0)
		return !pending_has_own(queue->id, scan->pass.now);
	return !pending_has_own(queue->id, DT_NOEND - 1) &&
		availability_knows_delivered(queue->id, queue->group_concurrency);
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
	request->only_lanes = scan->request.mode == CLAIM_SCAN_PROBE;
}

/* One pass of a claim, or of a probe of a queue with a bound */
void
lane_scan_pass(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;
	ChosenMessages *chosen = &scan->result.chosen;
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
	if (!request.only_lanes)
		(void) give_delayed(scan, false);
	while (goes_on && claim_scan_wants_more(scan))
	{
		CHECK_FOR_INTERRUPTS();

		/* give_delayed() may have met a table that is locked. */
		if (!message_scan_is_blocked(pass->rows))
			goes_on = step(scan, &request, &round);
		if (message_scan_is_blocked(pass->rows))
			goes_on = begin_again(scan);
		request.now = pass->now = GetCurrentTimestamp();
	}
	if (chosen->n > 1)
		sort_chosen(chosen);
}

/* Reserve something and scan it.  Returns false if the pass is done. */
static bool
step(ClaimScan *scan, ReserveRequest *request, Round *round)
{
	ScanPass   *pass = &scan->pass;
	MessageRange range;
	int			before;

	request->has_more = scan->result.chosen.n > 0;

	/* take() widens the next range of a lane that has given nothing. */
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

			/* Lanes come next; what else is due is left to the worker. */
			request->prefers_lanes = true;
			before = scan->result.nfree;
			give_range(scan, &range, request->room);

			/* Lanes have something again, though all had given nothing. */
			if (scan->result.nfree > before)
			{
				round->in_vain = 0;
				request->no_lanes = false;
			}
			return true;
		case RESERVE_WAIT:

			/* We must not wait while what we have chosen is reserved. */
			if (request->has_more)
				return false;

			/* The worker must not wait; a probe too many does no harm. */
			if (scan->request.no_wait)
			{
				scan->result.nfree = 1;
				return false;
			}
			pass->gave_up = !availability_wait_for_close(request->queue_id,
														 &scan->wait_until);
			return !pass->gave_up;
		case RESERVE_NONE:
			break;
	}

	/* A claim that has something need not be complete. */
	if (request->has_more)
		return false;

	/*
	 * A probe gives nothing to lanes, and a claim cannot where there is no
	 * room.  If there is something to give, the whole queue has to be read.
	 */
	if (request->only_lanes || request->no_room)
	{
		pass->gave_up = request->met_others;
		return false;
	}

	/*
	 * Delayed messages have come due since we have looked, or another session
	 * has given them back.  If another one reserves them first, we will wait
	 * for it.  If we have left some unread ourselves, the next pass reads
	 * more.
	 */
	if (request->delayed_is_due && !pass->delayed.more_due)
	{
		(void) give_delayed(scan, false);

		/* Some may be our own: then only another pass can go on. */
		return !pass->lost && !pass->gave_up;
	}
	return give_uncertain(scan);
}

/*
 * A table cannot be locked at once.  Wait for it with nothing reserved.
 * Returns false if messages are chosen already: they are the result, because
 * their reservation is open, and we must not wait.
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

/* Add a message to a list of what belongs to lanes. */
static LaneRange *
add_row(LaneRanges *list, const ScanRow *row)
{
	LaneRange  *new;

	list->items = claim_scan_make_room(list->items, list->n, &list->size,
									   sizeof(LaneRange));
	new = &list->items[list->n++];
	memset(new, 0, sizeof(LaneRange));
	new->lane = message_lane(RelationGetDescr(row->table->heap), row->tuple);
	new->range.first = new->range.last = message_id_number(row->form.id);
	new->range.priority = row->form.priority;
	new->range.due = DT_NOBEGIN;
	return new;
}

/* Note that a message is free, so that its lane gets it. */
void
lane_scan_free_row(ClaimScan *scan, const ScanRow *row)
{
	add_row(&scan->pass.freed, row)->range.delayed =
		segment_is_delayed(row->table->segment);
}

/* Note that a message was delivered and may be unfinished. */
void
lane_scan_delivered_row(ClaimScan *scan, const ScanRow *row)
{
	(void) add_row(&scan->pass.delivered, row);
}

/* Give the messages that were noted to their lanes. */
static void
give_freed(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;

	availability_give_delivered(pass->delivered.items, pass->delivered.n);
	availability_give_to_lanes(pass->freed.items, pass->freed.n, pass->now);
	pass->freed.n = pass->delivered.n = 0;
}

/*
 * Scan a range that was reserved, and give what is free in it to the lanes.
 * There is room for "room" of them, or for any number if that is 0.
 */
static void
give_range(ClaimScan *scan, const MessageRange *range, int room)
{
	ScanPass   *pass = &scan->pass;
	int64		scanned_to;

	pass->nscanned = 0;
	pass->room = room;
	pass->lane_step = LANE_STEP_GIVE;
	scanned_to = claim_scan_range(scan, range);
	pass->lane_step = LANE_STEP_NONE;

	/*
	 * This comes before the rest is given back, because only until then the
	 * map treats the messages as overflow for which there is room now.
	 */
	give_freed(scan);
	availability_give_back(scanned_to, &pass->skipped, pass->now);

	/* What is chosen is free until it is marked, so others have to wait. */
	if (scan->result.chosen.n == 0)
		availability_close();

	/*
	 * A prepared transaction may have ended, and left room in a group.  No
	 * callback has woken the sessions that wait for that.
	 */
	if (range->uncertain && scan->request.queue->group_concurrency > 0)
		availability_wake_waiter(scan->request.queue->id);
}

/*
 * Give delayed messages that are due to their lanes; with "uncertain" also if
 * the map only cannot rule out that one is due.  Returns false if there are
 * none, or if none of many could be given.
 */
static bool
give_delayed(ClaimScan *scan, bool uncertain)
{
	ScanPass   *pass = &scan->pass;
	int			before;
	ScanRow		row;

	/* If a table is locked, lane_scan_pass() begins again. */
	if (!claim_scan_add_delayed(scan, uncertain))
		return message_scan_is_blocked(pass->rows);
	if (message_scan_is_blocked(pass->rows))
		return true;
	if (!pass->delayed.reserved)
	{
		/*
		 * Only some that this transaction has delayed itself have come due.
		 * Lanes do not get them before it ends: the next pass reads all.
		 */
		message_scan_end_parts(pass->rows);
		pass->lost = true;
		return false;
	}
	before = scan->result.nfree;
	pass->lane_step = LANE_STEP_GIVE;
	while (message_scan_next(pass->rows, &row))
		claim_scan_row(scan, &row);
	pass->lane_step = LANE_STEP_NONE;
	give_freed(scan);

	/* They stay where they are, and the worker still has to move them. */
	availability_delayed_given();
	claim_scan_close_delayed(scan);
	message_scan_end_parts(pass->rows);

	/*
	 * There are more, but none of these could be given.  The next pass reads
	 * more of them, because this one would only meet the same again.
	 */
	if (pass->delayed.more_due && scan->result.nfree == before)
		return false;
	pass->delayed.more_due = false;
	return true;
}

/*
 * Before a pass answers that there is nothing, once: give delayed messages
 * that may have become free without a callback.  Returns false if there are
 * none.
 */
static bool
give_uncertain(ClaimScan *scan)
{
	DelayedPart *delayed = &scan->pass.delayed;

	if (delayed->scanned_uncertain)
		return false;
	delayed->scanned_uncertain = true;
	return give_delayed(scan, true);
}

/*
 * For the worker: give some of what is due to the lanes, or all if they have
 * to learn what was delivered.  That is so after a restart, and when the map
 * was cleared or the bound has changed.  Returns false if nothing is due.
 */
bool
lane_scan_give_due(ClaimScan *scan)
{
	const Queue *queue = scan->request.queue;
	uint64		incarnation = queue->group_concurrency <= 0 ? 0 :
	availability_begin_delivered(queue->id, queue->group_concurrency);
	ReserveRequest request;
	MessageRange range;
	bool		found = false;

	if (queue->group_concurrency > 0)
		availability_wake_lanes(queue->id);
	begin_request(scan, &request);
	request.no_lanes = request.only_due = true;

	/* When too many are to become dead letters, others are left for later. */
	while (scan->pass.exhausted.n < EXHAUSTED_AT_ONCE &&
		   availability_reserve(&request, &range) == RESERVE_DONE)
	{
		found = true;
		give_range(scan, &range, 0);

		/* The worker does not wait for a lock that a user may hold. */
		if (message_scan_is_blocked(scan->pass.rows))
			message_scan_lock_error();
		if (incarnation == 0)
			return true;
	}
	if (incarnation == 0)
		return found;
	give_delivered_delayed(scan);
	availability_end_delivered(queue->id, incarnation);
	return found;
}

/*
 * Add the delayed messages that were delivered before to what was delivered
 * of their lanes.  They are in no range of the map, but with a bound of 1
 * they block their groups.
 */
static void
give_delivered_delayed(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;
	LaneRanges *list = &pass->delivered;
	ScanRow		row;

	claim_scan_push_snapshot(scan);
	message_scan_add_list(pass->rows, PG_INT64_MIN, true);
	while (message_scan_next(pass->rows, &row))
		if (segment_is_delayed(row.table->segment))
			claim_scan_note_delivered(scan, &row);
	message_scan_end_parts(pass->rows);
	if (message_scan_is_blocked(pass->rows))
		message_scan_lock_error();
	availability_learn_delivered(scan->request.queue->id, list->items,
								 list->n);
	list->n = 0;
}

/* --- Taking messages of a lane --- */

/* Returns whether the row counts for the step of the pass. */
bool
lane_scan_is_of_lane(const ClaimScan *scan, const ScanRow *row)
{
	/* All rows are given; what had no room is claimed as one lane. */
	return scan->pass.lane_step < LANE_STEP_COUNT ||
		scan->pass.lane == LANE_OF_OVERFLOW ||
		message_lane(RelationGetDescr(row->table->heap),
					 row->tuple) == scan->pass.lane;
}

/*
 * Choose messages of a lane.  A round takes as many of each lane as leave
 * none of them behind; the next round takes what is missing, from the first
 * lane on, so that the next claim begins with the lane behind the last one.
 */
static void
take(ClaimScan *scan, ReserveRequest *request, const MessageRange *range,
	 Round *round)
{
	ScanPass   *pass = &scan->pass;
	int			before = scan->result.chosen.n;
	LaneTurn   *turn = turn_of(pass, request->lane);
	int			wanted;

	/* We did not want more of the last lane, or it has no more. */
	if (!request->same_lane || request->lane != round->lane)
	{
		end_turn(scan, round->lane);
		begin_turn(scan, request, round);
	}
	wanted = round->wanted;
	if (is_bounded(scan, turn->lane))
	{
		int			room = open_lane(scan, turn, range,
									 request->lane_changes, wanted);

		wanted = Min(wanted, room);
	}

	/*
	 * If nothing of the lane may be taken now, all of the range goes back.
	 * The head of a group is not in the range.
	 */
	if (wanted <= 0)
		give_back(scan, range->first - 1);
	else if (request->only_lanes)
		probe_lane(scan, turn, range);
	else if (turn->has_head)
		take_head(scan, turn, range);
	else
		give_back(scan, scan_lane(scan, turn, range, wanted));
	add_taken(scan, turn, before);

	/* The next claim begins with a message that did not fit into this one. */
	if (pass->claim_is_full && scan->result.chosen.n == before)
		availability_keep_turn();

	/*
	 * If that was not enough, try more of the same lane, in a wider range if
	 * this one had nothing; but not if its group is full, nor beyond a
	 * message that must not be overtaken.
	 */
	round->wanted -= scan->result.chosen.n - before;
	request->same_lane = wanted > 0 && !pass->head_failed &&
		round->wanted > 0;
	if (scan->result.chosen.n > before)
		round->in_vain = 0;
	else if (request->same_lane)
		request->width = Min(Max(range->last - range->first + 1,
								 request->width) * WIDTH_FACTOR, WIDTH_MAX);
	else
		round->in_vain++;

	/* After all lanes have given nothing, only what is due is left. */
	request->no_lanes = round->in_vain > request->nlanes;
}

/*
 * The turn of a lane is over.  If nothing was chosen, its group is unlocked
 * at once, so that other claims can take it.
 */
static void
end_turn(ClaimScan *scan, uint64 lane)
{
	LaneTurn   *turn;

	if (!is_bounded(scan, lane))
		return;
	turn = turn_of(&scan->pass, lane);
	if (turn->is_locked && turn->taken == 0)
		close_lane(scan, turn, false);
}

/*
 * The next lane has its turn.  When the ring was passed once, a new round
 * divides what is still wanted among the lanes.
 */
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

/* Give back the part of the range that was not scanned. */
static void
give_back(ClaimScan *scan, int64 scanned_to)
{
	availability_give_back(scanned_to, &scan->pass.skipped, scan->pass.now);
	scan->pass.skipped.n = 0;

	/* What is chosen is free until it is marked, so others have to wait. */
	if (scan->result.chosen.n == 0)
		availability_close();
}

/*
 * Choose messages in a range of the lane.  Returns the last number that was
 * scanned.
 */
static int64
scan_lane(ClaimScan *scan, const LaneTurn *turn, const MessageRange *range,
		  int wanted)
{
	ScanPass   *pass = &scan->pass;
	int64		scanned_to;

	pass->lane_step = LANE_STEP_TAKE;
	pass->lane = turn->lane;
	pass->lane_goal = scan->result.chosen.n + wanted;
	pass->is_first_out = is_bounded(scan, turn->lane) &&
		scan->request.queue->group_concurrency == 1;
	pass->head_failed = false;
	scanned_to = claim_scan_range(scan, range);
	pass->lane_step = LANE_STEP_NONE;

	/* Where the bound is not 1, a message that failed is only skipped. */
	pass->head_failed &= pass->is_first_out;
	pass->is_first_out = false;
	return scanned_to;
}

/* Find out whether the head of the group, or one of the range, is free. */
static void
probe_lane(ClaimScan *scan, LaneTurn *turn, const MessageRange *range)
{
	int64		scanned_to = scan_lane(scan, turn,
									   turn->has_head ? &turn->head : range, 1);

	if (scan->result.nfree == 0)
	{
		/* The head comes first, so nothing in the range is free either. */
		scan->pass.head_failed |= turn->has_head;
		give_back(scan, turn->has_head ? range->first - 1 : scanned_to);
		return;
	}

	/* A claim is to find the lane as it was, with its turn. */
	scan->pass.skipped.n = 0;
	availability_give_back(range->first - 1, &scan->pass.skipped,
						   scan->pass.now);
	availability_keep_turn();
	availability_close();
}

/* Choose the head of the group; all of the range goes back. */
static void
take_head(ClaimScan *scan, LaneTurn *turn, const MessageRange *range)
{
	int			before = scan->result.chosen.n;

	(void) scan_lane(scan, turn, &turn->head, 1);
	scan->pass.head_failed = scan->result.chosen.n == before;
	give_back(scan, range->first - 1);
}

/* The messages that were chosen from "first" on are of this lane. */
static void
add_taken(ClaimScan *scan, LaneTurn *turn, int first)
{
	ChosenMessages *chosen = &scan->result.chosen;

	turn->room -= chosen->n - first;
	turn->taken += chosen->n - first;
	for (int i = first; i < chosen->n; i++)
		chosen->items[i].lane = turn - scan->pass.turns.items;
}

/* Returns what the pass has done with a lane, or a new entry for it. */
static LaneTurn *
turn_of(ScanPass *pass, uint64 lane)
{
	LaneTurns  *turns = &pass->turns;
	LaneTurn   *turn;

	for (int i = 0; i < turns->n; i++)
		if (turns->items[i].lane == lane)
			return &turns->items[i];
	turns->items = claim_scan_make_room(turns->items, turns->n, &turns->size,
										sizeof(LaneTurn));
	turn = &turns->items[turns->n++];
	memset(turn, 0, sizeof(LaneTurn));
	turn->lane = lane;
	return turn;
}

/*
 * Sort what was chosen: one message of each lane, then the second ones, and
 * so on.  Those of one lane need sorting too, because an earlier one may have
 * become free after later ones were chosen.
 */
static void
sort_chosen(ChosenMessages *chosen)
{
	ChosenMessage *items = chosen->items;

	qsort(items, chosen->n, sizeof(ChosenMessage), compare_in_lane);
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

/* --- Groups with a bound --- */

static bool
is_bounded(const ClaimScan *scan, uint64 lane)
{
	return scan->request.queue->group_concurrency > 0 &&
		lane != LANE_WITHOUT_KEY;
}

/*
 * Lock the group of a lane, and return how many messages of it may be taken:
 * 0 if it is full, its rate allows none now, or another transaction has
 * locked it.
 */
static int
open_lane(ClaimScan *scan, LaneTurn *turn, const MessageRange *range,
		  uint32 changes, int wanted)
{
	const Queue *queue = scan->request.queue;
	ScanPass   *pass = &scan->pass;

	/* The pass has locked and counted it before. */
	if (turn->is_locked)
		return turn->room;
	turn->changes = changes;
	turn->not_before = 0;
	if (!lock_group(scan, turn))
		return 0;

	/*
	 * The end of another transaction has added something to the lane that
	 * comes before the range.  The next pass takes the lane again.
	 */
	if (queue->group_concurrency == 1 &&
		!availability_is_first(queue->id, turn->lane, range))
	{
		pass->lost = true;
		close_lane(scan, turn, false);
		return 0;
	}
	memset(&pass->count, 0, sizeof(LaneCount));
	pass->count.range = range;
	turn->room = rate_room(scan, turn);
	if (turn->room > 0)
	{
		int			room = count_room(scan, turn, Min(wanted, turn->room));

		turn->room = Min(turn->room, room);
	}

	/*
	 * The lane may rest if what was counted leaves no room, since whatever
	 * becomes of these messages gives it a turn again.  But none of them may
	 * be locked or being changed, because no callback reports the end of a
	 * prepared transaction.
	 */
	if (turn->room <= 0)
		close_lane(scan, turn, pass->count.n > 0 && !pass->count.uncertain);
	return turn->room;
}

/* Returns how many messages of the group its rate allows. */
static int
rate_room(ClaimScan *scan, LaneTurn *turn)
{
	const Queue *queue = scan->request.queue;
	int			room = INT_MAX;

	if (queue->group_rate > 0)
		room = group_rate_allowance(queue, turn->lane, &turn->not_before);

	/* Not for long, because the rate may be changed meanwhile. */
	turn->not_before = Min(turn->not_before, scan->pass.now + LANE_WAIT_MAX);
	return room;
}

/*
 * Lock the group, unless this is a probe, which only asks whether it is
 * locked.  Returns false if another transaction has locked it, or the claim
 * has enough locks.
 */
static bool
lock_group(ClaimScan *scan, LaneTurn *turn)
{
	ScanPass   *pass = &scan->pass;
	uint64		holder;

	if (pass->turns.nlocks == LOCKS_MAX)
		return false;
	if (scan->request.mode != CLAIM_SCAN_PROBE)
	{
		turn->is_locked = group_try_lock(scan->request.queue->id, turn->lane,
										 &turn->is_new_lock);
		if (turn->is_locked)
		{
			pass->turns.nlocks++;
			return true;
		}
	}
	holder = group_locked_by(scan->request.queue->id, turn->lane);
	if (scan->request.mode == CLAIM_SCAN_PROBE && holder == 0)
		return true;

	/*
	 * That is final if the next pass finds the same transaction there.  If it
	 * has ended meanwhile, the group may have something for us.
	 */
	pass->turns.met_locked = true;
	if (holder == 0)
		pass->lost = true;
	else
		claim_scan_add_busy(scan, (int64) holder);
	return false;
}

/*
 * Returns the ranges of what was delivered of the group and may be
 * unfinished.  Sets *n to -1 if the lanes do not know that any more.
 */
static MessageRange *
list_delivered(const ClaimScan *scan, uint64 lane, int *n)
{
	int			size = 16;
	MessageRange *ranges = palloc(size * sizeof(MessageRange));

	for (;;)
	{
		*n = availability_list_delivered(scan->request.queue->id, lane,
										 ranges, size);
		if (*n <= size)
			return ranges;
		size = *n;
		ranges = repalloc(ranges, size * sizeof(MessageRange));
	}
}

/*
 * Returns how many messages of the group, which is locked, its bound leaves
 * room for.  What this transaction has popped counts too, until it ends.
 */
static int
count_room(ClaimScan *scan, LaneTurn *turn, int wanted)
{
	ScanPass   *pass = &scan->pass;
	int			bound = scan->request.queue->group_concurrency;
	int			room = bound - group_popped(scan->request.queue->id, turn->lane);
	int64		most = 0;		/* under live claims */
	int			n;
	MessageRange *ranges = list_delivered(scan, turn->lane, &n);

	if (n < 0)
	{
		/*
		 * The map was cleared, or there was no room for what was delivered:
		 * then only a pass that reads the whole queue can count.
		 */
		pass->gave_up = scan->result.chosen.n == 0;
		return 0;
	}
	for (int i = 0; i < n; i++)
		most += ranges[i].last - ranges[i].first + 1;

	/*
	 * If there is room enough even if all of these are under live claims, we
	 * need not read them.  But with a bound of 1 one of them is the head of
	 * the group, if it is not finished.
	 */
	if (n > 0 && (bound == 1 || most + wanted > room))
	{
		count_rows(scan, turn, ranges, n);
		most = pass->count.live;
	}
	pfree(ranges);
	turn->has_head = pass->count.has_head;
	turn->head = pass->count.head;
	return pass->count.is_blocked ||
		message_scan_is_blocked(pass->rows) ? 0 : (int) (room - most);
}

/*
 * Read the messages of the group that are in these ranges, with a snapshot
 * that is later than the lock.  Those that are unfinished replace the ranges
 * in the lane.
 */
static void
count_rows(ClaimScan *scan, const LaneTurn *turn, const MessageRange *ranges,
		   int n)
{
	ScanPass   *pass = &scan->pass;
	LaneRanges *found = &pass->delivered;
	MessageRange *left;
	ScanRow		row;

	do
	{
		message_scan_end_parts(pass->rows);
		claim_scan_push_snapshot(scan);
		for (int i = 0; i < n; i++)
			message_scan_add_range(pass->rows, &ranges[i], NULL);
	} while (!message_scan_is_blocked(pass->rows) &&
			 segment_snapshot_is_stale());
	pass->now = GetCurrentTimestamp();
	pass->lane_step = LANE_STEP_COUNT;
	pass->lane = turn->lane;
	while (!message_scan_is_blocked(pass->rows) &&
		   message_scan_next(pass->rows, &row))
		if (lane_scan_is_of_lane(scan, &row))
			claim_scan_row(scan, &row);
	pass->lane_step = LANE_STEP_NONE;
	message_scan_end_parts(pass->rows);

	/*
	 * Only what the lock protects is exact, so a probe replaces nothing.  Nor
	 * does a transaction that has changed a message of the group itself: a
	 * rollback would bring back what it has deleted.
	 */
	if (!message_scan_is_blocked(pass->rows) && turn->is_locked &&
		!pending_has_lane(scan->request.queue->id, turn->lane))
	{
		left = palloc(Max(found->n, 1) * sizeof(MessageRange));
		for (int i = 0; i < found->n; i++)
			left[i] = found->items[i].range;
		availability_set_delivered(scan->request.queue->id, turn->lane,
								   ranges, n, left, found->n);
		pfree(left);
	}
	found->n = 0;
}

/* Count a message of the group that was delivered, or may have been. */
void
lane_scan_count_row(ClaimScan *scan, const ScanRow *row, bool is_live,
					bool is_free, bool is_locked, bool is_changing)
{
	LaneCount  *count = &scan->pass.count;
	bool		was_delivered = is_free && row->form.claim_count > 0 &&
	options_attempts(row->table, row->tuple) > 0;

	/* The ranges may overlap, and their messages are merged in order. */
	if (count->n > 0 && row->form.id == count->last_id)
		return;
	if (is_live)
		count->live++;

	/* It stays in the lane's list until it is finished. */
	if (is_live || was_delivered)
	{
		count->last_id = row->form.id;
		lane_scan_delivered_row(scan, row);
		count->n++;
		count->uncertain |= is_changing || is_locked;
	}
	if (is_free && !is_live && scan->request.queue->group_concurrency == 1)
		find_head(scan, row, was_delivered, is_locked);
}

/*
 * With a bound of 1: the message, which is not under a claim, may be the head
 * of its group, or block it.
 */
static void
find_head(ClaimScan *scan, const ScanRow *row, bool was_delivered,
		  bool is_locked)
{
	LaneCount  *count = &scan->pass.count;
	bool		is_delayed = segment_is_delayed(row->table->segment);
	bool		is_due = !is_delayed ||
	message_due_at(row->table, row->tuple) <= scan->pass.now;
	MessageRange head = {0};

	head.first = head.last = message_id_number(row->form.id);
	head.priority = row->form.priority;
	head.due = DT_NOBEGIN;
	head.scanned_at = DT_NOBEGIN;
	head.delayed = is_delayed;
	if (!was_delivered)
	{
		/*
		 * It is free after all, if a prepared transaction that had claimed it
		 * was rolled back.  It is the head only if it comes before the range,
		 * and before others like it, and blocks nothing while it is delayed.
		 */
		if (!is_due || count->has_head ||
			!message_range_is_before(&head, count->range))
			return;

		/* It stays in the lane's list until it is handed out. */
		lane_scan_delivered_row(scan, row);
		count->uncertain |= is_locked;
	}

	/* One that was delivered comes before one that was not. */
	if (is_locked || !is_due)
		count->is_blocked = true;
	else if (!count->has_head ||
			 (was_delivered && !count->head_was_delivered))
	{
		count->has_head = true;
		count->head_was_delivered = was_delivered;
		count->head = head;
	}
}

/*
 * Nothing of the group was chosen: unlock it.  Its lane rests if the group is
 * full, and nothing has changed since the lane was taken.
 */
static void
close_lane(ClaimScan *scan, LaneTurn *turn, bool is_full)
{
	bool		was_locked = turn->is_locked;

	/* An older lock protects what this transaction has claimed before. */
	if (turn->is_new_lock)
	{
		group_unlock(scan->request.queue->id, turn->lane);
		scan->pass.turns.nlocks--;
		turn->is_locked = turn->is_new_lock = false;
	}
	availability_end_lane(scan->request.queue->id, turn->lane, turn->changes,
						  was_locked, is_full, turn->not_before);
}

/*
 * The pass ends.  Groups of which something was chosen stay locked to the end
 * of the transaction.
 */
void
lane_scan_end(ClaimScan *scan)
{
	LaneTurns  *turns = &scan->pass.turns;

	for (int i = 0; i < turns->n; i++)
	{
		LaneTurn   *turn = &turns->items[i];

		if (!is_bounded(scan, turn->lane) || !turn->is_locked)
			continue;

		/*
		 * Other claims have passed over a group that stays locked.  The end
		 * of the transaction gives its lane a turn, and wakes sessions that
		 * wait, if there is more.
		 */
		if (turn->taken == 0)
			close_lane(scan, turn, false);
		else
			pending_record_unlock(scan->request.queue->id, turn->lane);
	}
}
