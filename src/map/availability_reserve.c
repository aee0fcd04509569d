/*-------------------------------------------------------------------------
 *
 * availability_reserve.c
 *	  Reserving ranges of an availability map for a claim.
 *
 * NOTES
 *	  See availability.c for the design.  A session may have one range
 *	  reserved at a time, of the map or of a lane, or one of each of several
 *	  lanes; and the worker the delayed messages of one queue.  What is reserved
 *	  is not in the map.  When the session has scanned a range, it gives back
 *	  what others may claim; but it keeps the reservation open while there are
 *	  messages that it has chosen and not marked, because these are no longer
 *	  in the map, and not yet claimed.
 *
 *	  The map counts open reservations ("open"), and is not given back while
 *	  there is one.
 *
 *	  A claim that ends with an error leaves its reservations open.
 *	  availability_close_all() gives them back, at the latest when the
 *	  transaction or subtransaction is aborted.
 *
 * src/map/availability_reserve.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "map/availability.h"
#include "map/availability_groups.h"
#include "map/availability_reserve.h"
#include "map/availability_view.h"
#include "map/lanes.h"
#include "map/lanes_table.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "util/xact.h"

/* How many numbers a claim reserves, at least */
#define OVERDUE_WIDTH	4096	/* of an overdue range, which may be sparse */
#define RETURNED_WIDTH	64		/* of one that is free at once */
#define LANE_WIDTH		16		/* of one of a lane */

/*
 * While lanes have turns: for how many more there has to be space before a
 * claim gives the overflow to lanes
 */
#define SPACE_MIN		16

typedef enum ReservedKind
{
	RESERVED_FRESH,				/* numbers that were never reserved before */
	RESERVED_RANGE,				/* another range of the map */
	RESERVED_OVERFLOW,
	RESERVED_LANE,				/* a range of each of one or more lanes */
	RESERVED_BOUNDED_LANE		/* of one that has no turn until the range is
								 * given back */
} ReservedKind;

/* The reservation of this session; map is NULL if none is open. */
static struct
{
	AvailabilityMap *map;
	ReservedKind kind;
	int			n;				/* ranges; 0 once they were given back */
	LaneRange	ranges[LANES_AT_ONCE];	/* in the order of their turns */
	bool		reorders;		/* a lane that was taken had no more, so that
								 * its turn is not where it was */
}			reserved;

/*
 * The delayed messages of which this process, the worker, moves some; map is
 * NULL if it does not.
 */
static struct
{
	AvailabilityMap *map;
	DelayedInfo before;			/* what the map has known of them */
	DelayedInfo after;			/* what it knows if the transaction commits */
}			moving;

uint64		availability_reservations = 0;

static int	pick_fresh(const AvailabilityMap *map);
static void take_fresh(AvailabilityMap *map, int priority, int64 width);
static void take_range(AvailabilityMap *map, int i, int64 width);
static bool reserve_range(AvailabilityMap *map, const ReserveRequest *request,
						  int64 width);
static bool reserve_lane(AvailabilityMap *map, ReserveRequest *request);
static void reserve_overflow(AvailabilityMap *map, ReserveRequest *request,
							 int i, int64 width, bool is_lane);
static bool has_lane_space(const AvailabilityMap *map, ReserveRequest *request);
static bool reserve_of_groups(AvailabilityMap *map,
							  ReserveRequest *request);
static void give_rest_back(AvailabilityMap *map, LaneId lane,
						   MessageRange *rest, TimestampTz now);

/* --- A range --- */

/*
 * Reserve the first range of a queue in which something may be free.
 *
 * Returns RESERVE_NONE if there is none, no other session has a reservation
 * open, and no delayed message is due.  Returns it also, whatever others have
 * open, if the request says that the caller has to do something else
 * (met_lanes, no_space).  Otherwise returns RESERVE_WAIT, also if there is no
 * room for a map.
 */
ReserveResult
availability_reserve(ReserveRequest *request, MessageRange *range)
{
	AvailabilityMap *map;
	ReserveResult result = RESERVE_NONE;
	bool		forgotten = false;

	/* What was reserved before is given back by now. */
	Assert(!xact_has_ended);
	Assert(reserved.n == 0);
	map = shmem_get_map(request->queue_id);

	/* While we have something reserved, its map is not given back. */
	Assert(reserved.map == NULL || reserved.map == map);
	if (map == NULL)
		return RESERVE_WAIT;

	/* The map begins anew if it knows of no groups, or of another bound. */
	if (request->has_lanes)
		forgotten = availability_set_lanes(map, request->bound);

	/* Set anew by what reserves a lane, or overflow as if it were one. */
	request->is_lane = false;
	request->awaits_move = false;

	/* The claim learns that the queue has groups, and begins again. */
	request->met_lanes = map->has_lanes && !request->has_lanes;
	if (!request->met_lanes &&
		(request->has_lanes ? reserve_of_groups(map, request) :
		 reserve_range(map, request, request->width)))
	{
		/* The reservation may be open already, with nothing in it. */
		if (reserved.map == NULL)
			map->open++;
		reserved.map = map;
		*range = reserved.ranges[0].range;
		request->nreserved = reserved.n;
		availability_reservations++;
		result = RESERVE_DONE;
	}
	else
	{
		bool		others = map->open > (reserved.map == map);

		/*
		 * Other sessions may give back what they have reserved; our own
		 * reservation does not count.  But there is no reason to wait for
		 * that if the caller begins again with lanes (met_lanes), or reads
		 * the whole queue (no_space).  The worker itself (only_due) moves
		 * what is delayed in its next step.
		 */
		request->awaits_move = !others && !request->only_due &&
			availability_awaits_move(map, request->now);
		if (!request->met_lanes && !request->no_space &&
			(others || request->awaits_move))
			result = RESERVE_WAIT;

		/*
		 * MAP_READY stays if the claim has found something, or if the worker
		 * has not asked for all that there is.
		 */
		if (!request->has_found && !request->only_due)
			(void) availability_check_ready(map, request->now);
	}
	LWLockRelease(&map->lock);
	if (forgotten)
		availability_log_forgotten(request->queue_id);
	return result;
}

/*
 * Reserve the first range in the order in which messages are claimed.  What is
 * locked and not due is the last choice.  Returns false if there is no range.
 */
static bool
reserve_range(AvailabilityMap *map, const ReserveRequest *request,
			  int64 width)
{
	int			i = message_ranges_pick(&map->ranges, request->now,
										request->began, request->has_lanes);
	int			priority = pick_fresh(map);
	bool		is_fresh = priority >= 0;

	if (i >= 0 && is_fresh)
	{
		const MessageRange *range = &map->ranges.items[i];

		/* Where there are lanes, a range may lie above "next". */
		is_fresh = range->due > request->now || priority > range->priority ||
			(priority == range->priority &&
			 map->next[priority] < range->first);
	}
	if (!is_fresh && i < 0)
		return false;
	if (is_fresh)
		take_fresh(map, priority, width);
	else
		take_range(map, i, width);
	return true;
}

/* --- A range of a queue with groups --- */

/*
 * Reserve a range of the lane that the claim has begun with, or of the lane
 * whose turn it is.  Returns false if no lane has a turn, or if the claim wants
 * none.
 */
static bool
reserve_lane(AvailabilityMap *map, ReserveRequest *request)
{
	int64		width = Max(request->width, LANE_WIDTH);
	LaneRange  *first = &reserved.ranges[0];
	uint32		changes;		/* of no use without a bound */
	int			max;

	/*
	 * The worker takes no lanes; nor does a claim that has taken each of them
	 * in vain, which would take them again and again.
	 */
	if (request->no_lanes)
		return false;

	/*
	 * If that lane has nothing more, the next one has its turn.  For another
	 * range of one lane, lane_changes stays that of the first, because the
	 * group was counted then.
	 */
	if (!(request->same_lane &&
		  lanes_take_more(map, width, request->lane, &first->range)) &&
		!lanes_take(map, width, &request->lane, &request->lane_changes,
					&first->range))
		return false;

	/*
	 * With a bound, each lane, also that of the messages without a key, has
	 * no turn until we give the range back.
	 */
	reserved.kind = request->bound > 0 ? RESERVED_BOUNDED_LANE :
		RESERVED_LANE;
	first->lane = request->lane;
	reserved.n = 1;
	request->is_lane = true;

	/* No lane is to be taken twice. */
	max = Min(Min(request->max_lanes, request->nlanes), LANES_AT_ONCE);
	while (reserved.n < max &&
		   lanes_take(map, width, &reserved.ranges[reserved.n].lane,
					  &changes, &reserved.ranges[reserved.n].range))
		reserved.n++;
	reserved.reorders = map->nlanes < request->nlanes;
	return true;
}

/*
 * Reserve range i of the map, the first one of the overflow: to give it to
 * lanes, or (is_lane) to claim it as if it were one lane.
 */
static void
reserve_overflow(AvailabilityMap *map, ReserveRequest *request, int i,
				 int64 width, bool is_lane)
{
	take_range(map, i, width);
	reserved.kind = RESERVED_OVERFLOW;
	request->is_lane = is_lane;
	request->lane = reserved.ranges[0].lane = LANE_OF_OVERFLOW;

	/* What is returned meanwhile stays behind it (is_behind_overflow). */
	map->open_overflow++;
}

/* Returns whether there is space in lanes now for some of the overflow. */
static bool
has_lane_space(const AvailabilityMap *map, ReserveRequest *request)
{
	bool		has_no_lane = map->nlanes == 0 || request->no_lanes;

	/* The claim has given something to lanes, and takes one of them now. */
	if (request->prefers_lanes && !has_no_lane)
		return false;
	request->space = lanes_space(map);

	/*
	 * If the claim has no lane to take, space for one is enough.  Otherwise
	 * there has to be some more, or claim after claim would reserve overflow
	 * for a message or two.
	 */
	return request->space >= (has_no_lane ? 1 : SPACE_MIN);
}

/*
 * Reserve a range of a queue with groups: one that is due, or of the
 * overflow, or of a lane.  Returns false if there is none, or if the claim
 * has to read the whole queue (no_space).
 */
static bool
reserve_of_groups(AvailabilityMap *map, ReserveRequest *request)
{
	int			i = message_ranges_pick(&map->ranges, request->now,
										request->began, true);
	bool		has_fresh = pick_fresh(map) >= 0;
	bool		is_due = i >= 0 && map->ranges.items[i].due <= request->now;
	int			overflow = -1;

	/* The worker leaves to claims what is free at once. */
	if (!request->only_due)
		overflow = availability_pick_overflow(map);

	/*
	 * Before one is taken: the caller ends a round of all lanes by it, and
	 * availability_add_lanes() takes no more than these.
	 */
	request->nlanes = map->nlanes;

	/* The caller passes the same request for each step. */
	request->space = 0;
	request->no_space = false;

	/*
	 * What is due comes before the lanes, because a group has no turn for
	 * what is not in its lane.  The claim gives one step of it, and then
	 * prefers lanes, since the worker gives the rest.  But of numbers that
	 * the map knows nothing of it gives all, or any group could miss its
	 * turn; meanwhile also what is due before them.  The range is reserved as
	 * a whole: the scan ends after a number of messages, and the rest is
	 * given back.
	 */
	if (has_fresh || (is_due && !request->prefers_lanes))
		return reserve_range(map, request, NUMBERS_END);

	/*
	 * Room has become free.  This comes before the lanes, or the groups in
	 * the overflow would have no turn until all lanes have come to an end.
	 */
	if (overflow >= 0 && has_lane_space(map, request))
	{
		reserve_overflow(map, request, overflow, NUMBERS_END, false);
		return true;
	}

	/*
	 * has_lane_space() may have set it, but only the overflow is limited by
	 * it.
	 */
	request->space = 0;

	/*
	 * There is nothing to give to lanes, or no space for it, or the claim has
	 * given its step: it takes a lane.
	 */
	if (reserve_lane(map, request))
		return true;

	/*
	 * No lane has anything for us.  What is due may be left, because the
	 * claim has preferred lanes; with overflow there is no space for it. What
	 * is locked is scanned before a claim answers that nothing is free; the
	 * worker leaves it until it is due.
	 */
	if (overflow < 0)
		return (is_due || !request->only_due) &&
			reserve_range(map, request, NUMBERS_END);

	/*
	 * There is overflow, and no space for it in lanes (other queues may keep
	 * all of it).  Without a bound we claim it as if it were one lane, or
	 * nothing of the queue would be claimed until there is space.  With a
	 * bound, only a lane knows how many messages of its group are under
	 * claims: the caller has to read the whole queue.
	 */
	request->no_space = request->bound > 0;
	if (!request->no_space)
		reserve_overflow(map, request, overflow, request->width, true);
	return !request->no_space;
}

/*
 * Returns the highest priority with numbers that were never reserved, or -1
 * if there are none.
 */
static int
pick_fresh(const AvailabilityMap *map)
{
	int			p = QUEUE_PRIORITIES - 1;

	while (p >= 0 && map->next[p] >= map->end[p])
		p--;
	return p;
}

/* Reserve numbers between "next" and "end" of a priority. */
static void
take_fresh(AvailabilityMap *map, int priority, int64 width)
{
	MessageRange *range = &reserved.ranges[0].range;
	int64	   *next = &map->next[priority];
	int64		end = map->end[priority];
	bool		is_unknown;

	memset(range, 0, sizeof(MessageRange));
	range->priority = priority;
	range->first = *next;

	/*
	 * New messages are dense.  But if nothing was scanned yet, they may be
	 * anywhere below "end": reserve all of it.
	 */
	range->last = *next == 0 || width >= end - *next ?
		end - 1 : *next + width - 1;

	/*
	 * Messages that were there before the map may be claimed, and only a
	 * sweep of what we give back counts the ends of these claims.  Lanes are
	 * given all of it in this order, before there is anything to claim; where
	 * there are lanes, a range that is free at once is overflow.
	 */
	is_unknown = *next == 0 && !map->has_lanes;
	range->due = is_unknown || map->has_lanes ? DUE_UNKNOWN : DT_NOBEGIN;
	reserved.kind = is_unknown ? RESERVED_RANGE : RESERVED_FRESH;
	*next = range->last + 1;
	reserved.n = 1;
}

/* Take a range out of the map, or the beginning of a wide one. */
static void
take_range(AvailabilityMap *map, int i, int64 width)
{
	MessageRange *range = &map->ranges.items[i];
	MessageRange *taken = &reserved.ranges[0].range;

	width = Max(width, range->due == DT_NOBEGIN ?
				RETURNED_WIDTH : OVERDUE_WIDTH);
	*taken = *range;
	reserved.kind = RESERVED_RANGE;
	reserved.n = 1;

	/* The sweep may still replace what is left of the range. */
	taken->is_swept = false;

	/*
	 * In a range without a known end, messages may be anywhere: in steps of
	 * our width we might never come to them.
	 */
	if (range->last - range->first < width || range->last == NUMBERS_END - 1)
		message_ranges_remove(&map->ranges, i);
	else
	{
		taken->last = range->first + width - 1;
		range->first += width;
	}
}

/* Give back what is left of a range that was reserved.  The map is locked. */
static void
give_rest_back(AvailabilityMap *map, LaneId lane, MessageRange *rest,
			   TimestampTz now)
{
	int64	   *next = &map->next[rest->priority];

	if (reserved.kind == RESERVED_LANE ||
		reserved.kind == RESERVED_BOUNDED_LANE)
	{
		/* If there is no space in the lane, the rest becomes overflow. */
		if (!lanes_give_back(map, lane, rest))
			availability_add_overflow(map, rest, now);
		return;
	}
	if (rest->first > rest->last)
		return;

	/* If it had no known end, a push may have set one meanwhile. */
	rest->last = Min(rest->last, map->end[rest->priority] - 1);

	/*
	 * Unless numbers behind it were reserved since, "next" goes back, and the
	 * rest needs no range: it counts as never reserved.
	 */
	if (reserved.kind == RESERVED_FRESH && *next == rest->last + 1)
		*next = rest->first;

	/* Of the overflow, too: availability_close_overflow() follows. */
	else if (rest->first <= rest->last)
		message_ranges_add(&map->ranges, rest, now);
}

/*
 * The caller has scanned each range up to that number (NULL: nothing of them):
 * give back the rest, and the messages that may be free later ("passed").  The
 * reservation stays open.
 */
void
availability_give_back(const int64 *scanned_to, const MessageRanges *passed,
					   TimestampTz now)
{
	AvailabilityMap *map = reserved.map;
	int			n = reserved.n;

	/*
	 * A lane of a queue with a bound, and the overflow, have to be given back
	 * even if nothing is left: before that the lane has no turn, and what
	 * comes behind the overflow enters no lane.
	 */
	bool		changes = passed->n > 0 ||
	reserved.kind == RESERVED_BOUNDED_LANE ||
	reserved.kind == RESERVED_OVERFLOW;

	Assert(map != NULL && n > 0);

	/* availability_close_all() must not give it back again after an error. */
	reserved.n = 0;
	for (int i = 0; i < n; i++)
	{
		MessageRange *rest = &reserved.ranges[i].range;

		Assert(scanned_to == NULL || scanned_to[i] <= rest->last);
		if (scanned_to != NULL)
			rest->first = Max(rest->first, scanned_to[i] + 1);
		changes |= rest->first <= rest->last;
	}
	if (!changes)
		return;

	shmem_lock(&map->lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
		give_rest_back(map, reserved.ranges[i].lane,
					   &reserved.ranges[i].range, now);

	/* Where there are lanes, we do not know to which one these belong. */
	for (int i = 0; i < passed->n; i++)
		availability_add_range(map, LANE_OF_OVERFLOW, &passed->items[i], now);

	/* Only now, because what we have given back may be overflow. */
	if (reserved.kind == RESERVED_OVERFLOW)
	{
		map->open_overflow--;
		availability_close_overflow(map);
	}
	availability_unlock_returned(map);
}

/*
 * Add these ranges to lanes of the queue of which we have something reserved.
 * They have messages of which so many are free, and the others are locked.
 */
void
availability_give_to_lanes(const LaneRange *ranges, int n, int nfree,
						   TimestampTz now)
{
	AvailabilityMap *map = reserved.map;
	bool		is_first = reserved.kind == RESERVED_OVERFLOW;

	Assert(reserved.n == 1);
	shmem_lock(&map->lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		/*
		 * What comes from the overflow that we have reserved is the first of
		 * it, so it may enter any lane: is_behind_overflow() would leave it
		 * in the overflow for ever.  That ends when there is no room for one:
		 * another queue may make room, and the next one may be behind it in
		 * the same lane.
		 */
		is_first = is_first &&
			lanes_add(map, ranges[i].lane, &ranges[i].range, false);
		if (!is_first)
			availability_add_range(map, ranges[i].lane, &ranges[i].range, now);
	}
	availability_unlock_and_wake(map, nfree);
}

/*
 * Close the reservation, if one is open: what the claim has chosen is marked,
 * or it has chosen nothing.
 */
void
availability_close(void)
{
	AvailabilityMap *map = reserved.map;

	if (map == NULL)
		return;
	shmem_lock(&map->lock, LW_EXCLUSIVE);
	reserved.map = NULL;
	map->open--;
	availability_unlock_returned(map);
}

/* --- Several lanes --- */

/* Returns what is reserved. */
const LaneRange *
availability_reserved(void)
{
	return reserved.ranges;
}

/*
 * The claim has given its ranges of lanes back, and its reservation is still
 * open: reserve another range of each of n lanes that has more, whether or not
 * it is its turn.  Returns how many have; they are in the same order.
 */
int
availability_reserve_more(const LaneId *lanes, int n, int64 width)
{
	AvailabilityMap *map = reserved.map;

	Assert(reserved.n == 0 && reserved.kind == RESERVED_LANE && map != NULL);
	shmem_lock(&map->lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		LaneRange  *next = &reserved.ranges[reserved.n];

		next->lane = lanes[i];
		if (lanes_take_more(map, width, lanes[i], &next->range))
			reserved.n++;
	}
	reserved.reorders = true;
	availability_reservations++;
	LWLockRelease(&map->lock);
	return reserved.n;
}

/*
 * The claim is done with the n lanes that it has reserved first: those that
 * keep their turns are the first ones again, and the others the last ones, in
 * the same order.  A lane keeps its turn if the claim has chosen nothing of it,
 * because its first message cannot be in the same claim as what was chosen
 * before.
 */
void
availability_end_turns(const LaneId *lanes, const bool *keeps, int n)
{
	AvailabilityMap *map = reserved.map;
	bool		any_keeps = false;

	Assert(reserved.n == 0 && map != NULL);
	for (int i = 0; i < n; i++)
		any_keeps |= keeps[i];
	if (!any_keeps && !reserved.reorders)
		return;
	shmem_lock(&map->lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
		if (!keeps[i])
			(void) lanes_end_turn(map, lanes[i]);
	for (int i = n - 1; i >= 0; i--)
		if (keeps[i])
			lanes_keep_turn(map, lanes[i]);
	LWLockRelease(&map->lock);
}

/* --- The worker moves delayed messages --- */

/*
 * If the worker has to move delayed messages of the queue, reserve them: then
 * the map knows of none until the transaction has ended, and a claim that finds
 * nothing waits for that.  Sets *from to a time before which none of them is
 * due.  Returns false if none is due.
 */
bool
availability_begin_move(int32 queue_id, TimestampTz now, TimestampTz *from)
{
	AvailabilityMap *map = shmem_get_map(queue_id);
	bool		is_due;

	Assert(moving.map == NULL);

	/* There is no room for a map: any of them may be due. */
	*from = DT_NOBEGIN;
	if (map == NULL)
		return true;
	is_due = map->delayed.due <= now;
	if (is_due)
	{
		moving.map = map;
		moving.before = moving.after = map->delayed;
		*from = map->delayed.from;
		map->delayed = NOTHING_DELAYED;
		map->open++;
	}
	LWLockRelease(&map->lock);
	return is_due;
}

/*
 * Those that are left are delayed until "from" or later, and the worker has to
 * move some again when they are "due".
 */
void
availability_moved(TimestampTz from, TimestampTz due)
{
	moving.after.from = from;
	moving.after.due = due;

	/* A queue without a map is found by a scan of all queues. */
	if (moving.map == NULL && due != DT_NOEND)
		database_map_missing(database_mine(), due);
}

/*
 * The worker's transaction has ended, and what it has moved was returned to
 * the map: close the reservation.
 */
void
availability_end_move(bool commit)
{
	AvailabilityMap *map = moving.map;
	const DelayedInfo *left = commit ? &moving.after : &moving.before;

	if (map == NULL)
		return;
	moving.map = NULL;
	shmem_lock(&map->lock, LW_EXCLUSIVE);
	availability_add_delayed(map, left->from, left->due);
	map->open--;
	availability_unlock_returned(map);
}

/* --- The end of a transaction --- */

/*
 * Give back what is reserved, as it was.  If anything is, an error has ended
 * the claim.
 */
void
availability_close_all(void)
{
	static const MessageRanges none = {0};

	if (reserved.n > 0)
		availability_give_back(NULL, &none, GetCurrentTimestamp());
	availability_close();
}

/* Returns whether this session has anything reserved. */
bool
availability_is_reserving(void)
{
	return reserved.map != NULL || moving.map != NULL;
}

/* Returns whether this session may wait for another one. */
bool
availability_may_wait(void)
{
	return !availability_is_reserving() && !xact_has_ended;
}
