/*-------------------------------------------------------------------------
 *
 * availability_reserve.c
 *	  Reserving ranges of an availability map for a claim.
 *
 * NOTES
 *	  See availability.c for the design.  A session may have one range
 *	  reserved at a time, of the map or of a lane, and the delayed messages of
 *	  one queue.  What is reserved is not in the map.  When the session has
 *	  scanned a range, it gives back what others may claim; but it keeps the
 *	  reservation open while there are messages that it has chosen and not
 *	  marked, because these are no longer in the map, and not yet claimed.
 *
 *	  The map counts open reservations ("open"), and is not evicted while
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

#include "access/twophase.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/relations.h"
#include "map/availability.h"
#include "map/availability_reserve.h"
#include "map/lanes.h"
#include "map/shmem_maps.h"
#include "util/clock.h"
#include "util/compat.h"

/* How many numbers a claim reserves, at least */
#define OVERDUE_WIDTH	4096	/* of an overdue range, which may be sparse */
#define RETURNED_WIDTH	64		/* of one that is free at once */
#define LANE_WIDTH		16		/* of one of a lane */

/*
 * While lanes have turns: for how many more there has to be room before a
 * claim gives the overflow to lanes
 */
#define ROOM_MIN		16

/* Ranges of lanes that a view shows */
#define LIST_LANES_MAX	(VIEW_RANGES_MAX - MESSAGE_RANGES_MAX - QUEUE_PRIORITIES)

#define WAIT_MAX		1000	/* ms, for other sessions' reservations */
#define WAIT_STEP		10		/* ms */

/* The reservation of this session; map is NULL if none is open. */
static struct
{
	AvailabilityMap *map;
	MessageRange range;			/* empty once it was given back */
	bool		is_fresh;		/* it was reserved for the first time */
	bool		is_lane;		/* it is one of this lane */
	bool		is_bounded;		/* ... and to be given back even if empty */
	bool		is_overflow;	/* it is of the overflow */
	uint64		lane;
}			reserved;

/*
 * The delayed messages that this session has reserved.  If the close is
 * deferred, "left" is added to the map at the end of the transaction.
 */
static struct
{
	AvailabilityMap *map;
	TimestampTz from;
	bool		is_deferred;
	DelayedInfo left;
}			delayed;

static int	pick_range(const AvailabilityMap *map,
					   const ReserveRequest *request);
static int	pick_fresh(const AvailabilityMap *map);
static void take_fresh(AvailabilityMap *map, int priority, int64 width);
static void take_range(AvailabilityMap *map, int i, int64 width);
static bool reserve(AvailabilityMap *map, const ReserveRequest *request,
					int64 width);
static bool reserve_lane(AvailabilityMap *map, ReserveRequest *request);
static bool reserve_overflow(AvailabilityMap *map, int64 width, bool is_lane);
static bool has_room(const AvailabilityMap *map, ReserveRequest *request);
static bool reserve_of_groups(AvailabilityMap *map,
							  ReserveRequest *request);
static bool reserve_any(AvailabilityMap *map, ReserveRequest *request);
static void reserve_delayed(AvailabilityMap *map, TimestampTz from);
static void add_delivered(AvailabilityMap *map, const LaneRange *ranges,
						  int n);
static void clear_ready(AvailabilityMap *map, TimestampTz now);
static void abandon_reservation(AvailabilityMap *map, bool is_overflow);
static void unlock_returned(AvailabilityMap *map);
static void fill_view(AvailabilityMap *map, TimestampTz now,
					  AvailabilityView *view);
static void sleep_until_close(AvailabilityMap *map);

/* --- A range --- */

/*
 * Reserve the first range of a queue in which something may be free.
 *
 * Returns RESERVE_NONE if there is none, and no other session has a
 * reservation open; the request says whether a delayed message is due even
 * so.  Returns RESERVE_WAIT if other sessions have reservations open, or if
 * there is no room for a map.
 */
ReserveResult
availability_reserve(ReserveRequest *request, MessageRange *range)
{
	AvailabilityMap *map;
	bool		forgotten = false;
	bool		others;

	/* We cannot allocate memory for lanes while we hold the lock of a map. */
	if (request->has_lanes)
		lanes_grow(ROOM_MIN);
	map = shmem_get_map(request->queue_id);
	Assert(reserved.map == NULL || reserved.map == map);
	if (map == NULL)
		return RESERVE_WAIT;
	if (request->has_lanes)
		forgotten = availability_set_lanes(map, request->bound);
	request->met_lanes = map->has_lanes && !request->has_lanes;
	if (reserve_any(map, request))
	{
		/* The reservation may be open already, with nothing in it. */
		if (reserved.map == NULL)
			map->open++;
		reserved.map = map;
		request->is_lane = reserved.is_lane;
		request->lane = reserved.lane;
		LWLockRelease(&map->lock);
		if (forgotten)
			availability_log_forgotten(request->queue_id);
		*range = reserved.range;
		return RESERVE_DONE;
	}

	/*
	 * Other sessions may give back what they have reserved.  But there is no
	 * reason to wait for that if the caller begins again with lanes
	 * (met_lanes), or reads the whole queue (no_room).
	 */
	others = !request->met_lanes && !request->no_room &&
		map->open > (delayed.map == map) + (reserved.map == map);
	request->delayed_is_due = map->delayed.due <= request->now;

	/*
	 * The flag stays if the claim has found something, or if more may be left
	 * than it has asked for.
	 */
	if (!others && !request->has_more && !request->only_due &&
		!request->no_room && delayed.map == NULL)
		clear_ready(map, request->now);
	LWLockRelease(&map->lock);
	if (forgotten)
		availability_log_forgotten(request->queue_id);
	return others ? RESERVE_WAIT : RESERVE_NONE;
}

/*
 * Reserve the first range in the order in which messages are claimed.  An
 * uncertain range that is not due is the last choice.  Returns false if there
 * is no range.
 */
static bool
reserve(AvailabilityMap *map, const ReserveRequest *request, int64 width)
{
	int			i = pick_range(map, request);
	int			priority = pick_fresh(map);
	const MessageRange *range = i >= 0 ? &map->ranges.items[i] : NULL;
	MessageRange fresh;

	if (priority >= 0)
	{
		fresh.priority = priority;
		fresh.first = map->next[priority];

		/* A range that is not due yet is only an uncertain one. */
		reserved.is_fresh = range == NULL || range->due > request->now ||
			message_range_is_before(&fresh, range);
	}
	else
		reserved.is_fresh = false;

	if (reserved.is_fresh)
		take_fresh(map, priority, width);
	else if (i >= 0)
		take_range(map, i, width);
	else
		return false;
	reserved.is_lane = reserved.is_bounded = reserved.is_overflow = false;
	return true;
}

/* --- A range of a queue with groups --- */

/*
 * Reserve a range of the lane that the claim has begun with, or of the lane
 * whose turn it is.  Returns false if no lane has a turn.
 */
static bool
reserve_lane(AvailabilityMap *map, ReserveRequest *request)
{
	int64		width = Max(request->width, LANE_WIDTH);

	/*
	 * The worker takes no lanes; nor does a claim that has taken each of them
	 * in vain, which would take them again and again.
	 */
	if (request->no_lanes)
		return false;
	reserved.is_lane = true;
	reserved.is_fresh = reserved.is_overflow = false;
	reserved.lane = request->lane;

	/* If that lane has nothing more, the next one has its turn. */
	if (!(request->same_lane &&
		  lanes_take_more(map, width, request->lane, &reserved.range)) &&
		!lanes_take(map, width, &reserved.lane, &request->lane_changes,
					&reserved.range))
		return false;

	/* With a bound the lane has no turn until we give the range back. */
	reserved.is_bounded = request->bound > 0;
	return true;
}

/*
 * Reserve the first range of the overflow, to give it to lanes, or (is_lane)
 * to claim it as if it were one lane.  Returns false if there is no overflow.
 */
static bool
reserve_overflow(AvailabilityMap *map, int64 width, bool is_lane)
{
	int			i = availability_pick_overflow(map);

	if (i < 0)
		return false;
	take_range(map, i, width);
	reserved.is_fresh = reserved.is_bounded = false;
	reserved.is_overflow = true;
	reserved.is_lane = is_lane;
	reserved.lane = LANE_OF_OVERFLOW;

	/* What is returned meanwhile stays behind it (is_behind_overflow). */
	map->open_overflow++;
	return true;
}

/* Returns whether there is room in lanes now for some of the overflow. */
static bool
has_room(const AvailabilityMap *map, ReserveRequest *request)
{
	bool		needs_room = map->nlanes == 0 || request->no_lanes;

	/* The claim has given something to lanes, and takes one of them now. */
	if (request->prefers_lanes && !needs_room)
		return false;
	request->room = lanes_room();

	/*
	 * If the claim has no lane to take, room for one is enough.  Otherwise
	 * there has to be some more, or claim after claim would reserve overflow
	 * for a message or two.
	 */
	return request->room >= (needs_room ? 1 : ROOM_MIN);
}

/*
 * Reserve a range of a queue with groups: one that is due, or of the
 * overflow, or of a lane.  Returns false if there is none, or if the claim
 * has to read the whole queue (no_room).
 */
static bool
reserve_of_groups(AvailabilityMap *map, ReserveRequest *request)
{
	int			i = pick_range(map, request);
	bool		is_due = pick_fresh(map) >= 0 ||
	(i >= 0 && map->ranges.items[i].due <= request->now);
	bool		overflows = !request->only_due &&
	availability_pick_overflow(map) >= 0;

	request->nlanes = map->nlanes;

	/*
	 * A probe that finds nothing in the lanes reads the whole queue if
	 * anything else may be free.  Where transactions may be prepared, a
	 * delayed message may be free although the map does not say so: a scan
	 * that meets its insertion only has it scanned again a second later
	 * (due_messages.c).
	 */
	request->met_others = is_due || i >= 0 || overflows ||
		map->delayed.due <= request->now || map->delayed.uncertain ||
		max_prepared_xacts > 0;

	/* The caller passes the same request for each step. */
	request->room = 0;
	request->no_room = false;

	/* A probe gives nothing to lanes, so it has no use for other ranges. */
	if (request->only_lanes)
		return reserve_lane(map, request);

	/*
	 * What is due comes before the lanes, because a group has no turn for
	 * what is not in its lane.  The claim gives one step of it, and then
	 * prefers lanes, since the worker gives the rest.  But of numbers that
	 * the map knows nothing of it gives all, or any group could miss its
	 * turn.  The range is reserved as a whole: the scan ends after a number
	 * of messages, and the rest is given back.
	 */
	if (is_due && (!request->prefers_lanes || pick_fresh(map) >= 0))
		return reserve(map, request, NUMBERS_END);

	/*
	 * Room has become free.  This comes before the lanes, or the groups in
	 * the overflow would have no turn until all lanes have come to an end.
	 */
	if (overflows && has_room(map, request))
		return reserve_overflow(map, NUMBERS_END, false);

	/* has_room() may have set it, but only the overflow is limited by it. */
	request->room = 0;
	if (reserve_lane(map, request))
		return true;

	/*
	 * There is no lane to take, and no room for one (other queues may keep
	 * all of it).  Without a bound we claim the overflow as if it were one
	 * lane, or nothing of the queue would be claimed until there is room.
	 */
	if (overflows && request->bound <= 0)
		return reserve_overflow(map, request->width, true);

	/*
	 * With a bound we cannot, because only a lane knows how many messages of
	 * its group are under claims: the caller has to read the whole queue.
	 */
	request->no_room = overflows;

	/*
	 * No lane has anything.  What is due may be left, because the claim has
	 * preferred lanes.  An uncertain range that is not due is scanned before
	 * a claim answers that nothing is free; the worker leaves it until it is
	 * due.
	 */
	return !overflows && (is_due || !request->only_due) &&
		reserve(map, request, NUMBERS_END);
}

static bool
reserve_any(AvailabilityMap *map, ReserveRequest *request)
{
	/* The claim learns that the queue has groups, and begins again. */
	if (request->met_lanes)
		return false;
	return request->has_lanes ? reserve_of_groups(map, request) :
		reserve(map, request, request->width);
}

/*
 * Find the first range of the map whose time has come, or else the first
 * uncertain one that this call has not scanned.  Returns its index, or -1 if
 * there is none.
 */
static int
pick_range(const AvailabilityMap *map, const ReserveRequest *request)
{
	int			best = -1;
	int			uncertain = -1;

	for (int i = 0; i < map->ranges.n; i++)
	{
		const MessageRange *range = &map->ranges.items[i];
		int		   *which = &best;

		/* That is overflow, which availability_pick_overflow() finds. */
		if (request->has_lanes && range->due == DT_NOBEGIN)
			continue;
		if (range->due > request->now)
		{
			/*
			 * To answer that nothing is free, one scan of it since the call
			 * began is enough, by whatever session.
			 */
			if (!range->uncertain || range->scanned_at >= request->began)
				continue;
			which = &uncertain;
		}
		if (*which < 0 ||
			message_range_is_before(range, &map->ranges.items[*which]))
			*which = i;
	}
	return best >= 0 ? best : uncertain;
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
	MessageRange *range = &reserved.range;
	int64	   *next = &map->next[priority];
	int64		end = map->end[priority];

	range->priority = priority;
	range->first = *next;

	/*
	 * New messages are dense.  But if nothing was scanned yet, they may be
	 * anywhere below "end": reserve all of it.
	 */
	range->last = *next == 0 || width >= end - *next ?
		end - 1 : *next + width - 1;

	/* Where there are lanes, a range that is free at once is overflow. */
	range->due = map->has_lanes ? DUE_UNKNOWN : DT_NOBEGIN;
	range->uncertain = *next < map->uncertain_below;
	range->scanned_at = DT_NOBEGIN;
	range->insertion = false;
	range->delayed = false;
	range->swept = 0;
	*next = range->last + 1;
}

/* Take a range out of the map, or the beginning of a wide one. */
static void
take_range(AvailabilityMap *map, int i, int64 width)
{
	MessageRange *range = &map->ranges.items[i];

	width = Max(width, range->due == DT_NOBEGIN ?
				RETURNED_WIDTH : OVERDUE_WIDTH);
	reserved.range = *range;
	reserved.range.swept = 0;

	/*
	 * In a range without a known end, messages may be anywhere: in steps of
	 * our width we might never come to them.
	 */
	if (range->last - range->first < width || range->last == NUMBERS_END - 1)
		message_ranges_remove(&map->ranges, i);
	else
	{
		reserved.range.last = range->first + width - 1;
		range->first += width;
	}
}

/*
 * The caller has scanned the range up to that number: give back the rest of
 * it, and the messages in it that may be free later ("passed").  The
 * reservation stays open.
 */
void
availability_give_back(int64 scanned_to, const MessageRanges *passed,
					   TimestampTz now)
{
	AvailabilityMap *map = reserved.map;
	MessageRange rest = reserved.range;

	Assert(map != NULL);
	rest.first = Max(rest.first, scanned_to + 1);

	/* availability_close_all() must not give it back again after an error. */
	reserved.range.last = reserved.range.first - 1;

	/*
	 * A lane of a queue with a bound, and the overflow, have to be given back
	 * even if nothing is left: before that the lane has no turn, and what
	 * comes behind the overflow enters no lane.
	 */
	if (rest.first > rest.last && passed->n == 0 && !reserved.is_bounded &&
		!reserved.is_overflow)
		return;

	LWLockAcquire(&map->lock, LW_EXCLUSIVE);
	if (reserved.is_lane && !reserved.is_overflow)
	{
		reserved.is_bounded = false;

		/* Without room in the lane it becomes overflow. */
		if (!lanes_give_back(map, reserved.lane, &rest))
			(void) availability_add_range(map, reserved.lane, &rest, now);
	}
	else if (rest.first <= rest.last)
	{
		int64	   *next = &map->next[rest.priority];

		/* If it had no known end, a push may have set one meanwhile. */
		rest.last = Min(rest.last, map->end[rest.priority] - 1);

		/*
		 * Unless numbers behind it were reserved since, "next" goes back, and
		 * the rest needs no range: it counts as never reserved.
		 */
		if (reserved.is_fresh && *next == rest.last + 1)
			*next = rest.first;
		else if (rest.first <= rest.last)
			message_ranges_add(&map->ranges, &rest, now);
	}
	for (int i = 0; i < passed->n; i++)
	{
		/* It belongs to a lane, but we do not know to which one. */
		if (map->has_lanes && passed->items[i].due == DT_NOBEGIN)
			availability_add_overflow(map, &passed->items[i], now);
		else
			message_ranges_add(&map->ranges, &passed->items[i], now);
	}
	if (reserved.is_overflow)
	{
		reserved.is_overflow = false;
		map->open_overflow--;
		availability_close_overflow(map);
	}
	unlock_returned(map);
}

/*
 * Something is free in these ranges of lanes, of the queue of which we have
 * something reserved.
 */
void
availability_give_to_lanes(const LaneRange *ranges, int n, TimestampTz now)
{
	AvailabilityMap *map = reserved.map != NULL ? reserved.map : delayed.map;

	Assert(map != NULL);
	LWLockAcquire(&map->lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		const LaneRange *given = &ranges[i];

		/*
		 * What comes from the overflow that we have reserved is the first of
		 * it, so it may enter any lane.  Otherwise is_behind_overflow() would
		 * leave it in the overflow for ever.
		 */
		if (!reserved.is_overflow)
			availability_add_range(map, given->lane, &given->range, now);
		else if (!lanes_add(map, given->lane, &given->range, false))
			availability_add_overflow(map, &given->range, now);
	}
	availability_unlock_and_wake(map, n);
}

/*
 * Messages of groups with a bound in these ranges were delivered, and may be
 * unfinished.  We have something of the queue reserved.
 */
void
availability_give_delivered(const LaneRange *ranges, int n)
{
	AvailabilityMap *map = reserved.map != NULL ? reserved.map : delayed.map;

	Assert(map != NULL);
	LWLockAcquire(&map->lock, LW_EXCLUSIVE);
	add_delivered(map, ranges, n);
}

/*
 * Messages of groups with a bound in these ranges of a queue were delivered,
 * and may be unfinished.  We need not have anything reserved.
 */
void
availability_learn_delivered(int32 queue_id, const LaneRange *ranges, int n)
{
	AvailabilityMap *map = shmem_get_map(queue_id);

	if (map != NULL)
		add_delivered(map, ranges, n);
}

/* Add what was delivered to its lanes, and unlock the map. */
static void
add_delivered(AvailabilityMap *map, const LaneRange *ranges, int n)
{
	bool		lost = false;

	for (int i = 0; i < n; i++)
		if (!lanes_add_delivered(map, ranges[i].lane, &ranges[i].range))
		{
			availability_lose_delivered(map);
			lost = true;
		}

	/* The worker has to know when to read the queue again (learn_at). */
	if (lost)
		availability_unlock_and_wake(map, 0);
	else
		LWLockRelease(&map->lock);
}

/*
 * The claim has chosen nothing of the lane, because its first message cannot
 * be in the same claim as what was chosen before: the lane is the first one
 * again.
 */
void
availability_keep_turn(void)
{
	AvailabilityMap *map = reserved.map;

	Assert(map != NULL && reserved.is_lane);
	LWLockAcquire(&map->lock, LW_EXCLUSIVE);
	lanes_keep_turn(map, reserved.lane);
	LWLockRelease(&map->lock);
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
	LWLockAcquire(&map->lock, LW_EXCLUSIVE);
	reserved.map = NULL;
	map->open--;
	unlock_returned(map);
}

/* --- The delayed messages that are due --- */

/*
 * Reserve the delayed messages that are due; if "uncertain" is set, also when
 * one may have become free without a callback.  Sets *from to a time before
 * which none of those in the tables is due.  Returns false if none is due.
 */
bool
availability_reserve_delayed(int32 queue_id, TimestampTz now, bool uncertain,
							 TimestampTz *from)
{
	AvailabilityMap *map = shmem_get_map(queue_id);
	bool		result;

	Assert(delayed.map == NULL);
	if (map == NULL)
		return false;

	/*
	 * Where transactions may be prepared, a message may have become free
	 * although the map does not call it uncertain: a scan that meets its
	 * insertion only has it scanned again a second later (due_messages.c).
	 */
	result = map->delayed.due <= now ||
		(uncertain && (map->delayed.uncertain || max_prepared_xacts > 0));
	if (result)
	{
		/* Those that were given to lanes are left to the worker. */
		TimestampTz given = map->delayed.given;

		*from = map->delayed.from;
		reserve_delayed(map, *from);
		map->delayed.given = given;
	}
	LWLockRelease(&map->lock);
	return result;
}

/*
 * For the worker: reserve the delayed messages that it has to move, which are
 * those that are due, and those that claims have given to lanes and that are
 * still where they were.  Sets *from to a time before which none of these is
 * due.  Returns false if there are none.
 */
bool
availability_reserve_to_move(int32 queue_id, TimestampTz now,
							 TimestampTz *from)
{
	AvailabilityMap *map = shmem_get_map(queue_id);
	bool		result;

	Assert(delayed.map == NULL);
	if (map == NULL)
		return false;
	result = map->delayed.due <= now || map->delayed.given <= now;
	if (result)
	{
		*from = Min(map->delayed.from, map->delayed.given);
		reserve_delayed(map, *from);
	}
	LWLockRelease(&map->lock);
	return result;
}

/*
 * Reserve all delayed messages of a map, which is locked.  It knows of none
 * of them until they are closed.
 */
static void
reserve_delayed(AvailabilityMap *map, TimestampTz from)
{
	delayed.from = from;
	delayed.map = map;
	map->open++;
	map->delayed = NOTHING_DELAYED;
}

/*
 * The claim has given messages that were reserved to lanes.  They stay where
 * they are until they are claimed, or the worker moves them.
 */
void
availability_delayed_given(void)
{
	AvailabilityMap *map = delayed.map;

	Assert(map != NULL);
	LWLockAcquire(&map->lock, LW_EXCLUSIVE);
	map->delayed.given = Min(map->delayed.given, delayed.from);
	LWLockRelease(&map->lock);
}

/*
 * The caller has scanned the delayed messages.  Those that are left are
 * delayed until "from" or later, and have to be scanned again when the first
 * one is "due".
 */
void
availability_close_delayed(TimestampTz from, TimestampTz due, bool uncertain)
{
	AvailabilityMap *map = delayed.map;

	Assert(map != NULL);
	LWLockAcquire(&map->lock, LW_EXCLUSIVE);
	delayed.map = NULL;
	availability_add_delayed(map, from, due, uncertain);
	map->open--;
	unlock_returned(map);
}

/*
 * The caller has not scanned the delayed messages to the end: give them back
 * as they were.
 */
void
availability_undo_delayed(void)
{
	/* A deferred close waits for the end of the transaction. */
	if (delayed.map != NULL && !delayed.is_deferred)
		availability_close_delayed(delayed.from, DT_NOBEGIN, false);
}

/*
 * For the worker, which has scanned the delayed messages, and has moved some
 * of them in this transaction: close the reservation when the transaction has
 * ended, as availability_close_delayed() does.  The map knows nothing of what
 * was moved before that is returned at the end; so a claim that finds nothing
 * has to wait until then.
 */
void
availability_defer_close_delayed(TimestampTz from, TimestampTz due,
								 bool uncertain)
{
	Assert(delayed.map != NULL);
	delayed.is_deferred = true;
	delayed.left.from = from;
	delayed.left.due = due;
	delayed.left.uncertain = uncertain;
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

	if (reserved.map != NULL)
		availability_give_back(-1, &none, GetCurrentTimestamp());
	availability_close();
	availability_undo_delayed();
}

/*
 * The worker's transaction has ended, and the delayed messages that it has
 * moved were returned: close their reservation.
 */
void
availability_close_deferred(void)
{
	if (delayed.is_deferred)
	{
		delayed.is_deferred = false;
		availability_close_delayed(delayed.left.from, delayed.left.due,
								   delayed.left.uncertain);
	}
}

/*
 * The transaction has ended, and the session cannot give back what it has
 * reserved: close the reservations, and have the maps begin anew
 * (shmem_miss()).
 */
void
availability_abandon_all(void)
{
	if (reserved.map != NULL)
	{
		abandon_reservation(reserved.map, reserved.is_overflow);
		reserved.is_overflow = false;
		reserved.map = NULL;
	}
	if (delayed.map != NULL)
		abandon_reservation(delayed.map, false);
	delayed.map = NULL;
	delayed.is_deferred = false;
}

static void
abandon_reservation(AvailabilityMap *map, bool is_overflow)
{
	bool		waiting;

	LWLockAcquire(&map->lock, LW_EXCLUSIVE);

	/* A claim that sees the reservation closed sees this too. */
	shmem_miss(map_extension(map), map_queue_id(map));
	map->open--;
	map->open_overflow -= is_overflow ? 1 : 0;
	waiting = map->waiting;
	map->waiting = false;
	LWLockRelease(&map->lock);
	if (waiting)
		ConditionVariableBroadcast(shmem_close_condition(map));
}

/* Returns whether this session has anything reserved. */
bool
availability_is_reserving(void)
{
	return reserved.map != NULL || delayed.map != NULL;
}

/*
 * Unlock a map to which something was returned, or of which a reservation was
 * closed, and wake the sessions that wait for that.
 */
static void
unlock_returned(AvailabilityMap *map)
{
	bool		waiting = map->waiting;

	Assert(map->open >= 0);
	map->waiting = false;
	availability_unlock_and_wake(map, 0);
	if (waiting)
		ConditionVariableBroadcast(shmem_close_condition(map));
}

/* --- Without a reservation --- */

/*
 * If nothing can be free now, clear the flag that something may be.  The map
 * is locked.
 */
static void
clear_ready(AvailabilityMap *map, TimestampTz now)
{
	/* What is reserved may be free, and is not in the map. */
	if (map->open > 0 || map->delayed.due <= now || pick_fresh(map) >= 0 ||
		map->nlanes > 0)
		return;
	for (int i = 0; i < map->ranges.n; i++)
		if (map->ranges.items[i].due <= now)
			return;
	shmem_clear_flag(map, MAP_READY);
}

/*
 * View what a claim would scan now, for a probe, which reserves nothing and
 * reports nothing to the map.  Returns false if there is no room for the
 * queue's map.
 */
bool
availability_view(int32 queue_id, bool has_lanes, TimestampTz now,
				  AvailabilityView *view)
{
	AvailabilityMap *map = shmem_get_map(queue_id);

	if (map == NULL)
		return false;

	/* Probes of groups with a bound take lanes instead. */
	if (has_lanes)
		availability_set_lanes(map, -1);
	fill_view(map, now, view);
	clear_ready(map, now);
	LWLockRelease(&map->lock);
	return true;
}

/*
 * View what a claim would scan now, and change nothing: for monitoring.
 * Returns false if the queue has no map.
 */
bool
availability_peek(int32 queue_id, TimestampTz now, AvailabilityView *view)
{
	AvailabilityMap *map = shmem_find_map(catalog_queue_oid(), queue_id);

	if (map == NULL)
		return false;
	fill_view(map, now, view);
	LWLockRelease(&map->lock);
	return true;
}

/* Fill a view of a map, which is locked. */
static void
fill_view(AvailabilityMap *map, TimestampTz now, AvailabilityView *view)
{
	view->incomplete = !lanes_list(map, view->ranges, LIST_LANES_MAX,
								   &view->n);
	for (int i = 0; i < map->ranges.n; i++)
		if (map->ranges.items[i].due <= now ||
			map->ranges.items[i].uncertain)
			view->ranges[view->n++] = map->ranges.items[i];
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (map->next[p] < map->end[p])
		{
			MessageRange *range = &view->ranges[view->n++];

			memset(range, 0, sizeof(MessageRange));
			range->priority = p;
			range->first = map->next[p];
			range->last = map->end[p] - 1;
		}
	view->others = map->open > 0;
	view->delayed = map->delayed.due <= now || map->delayed.uncertain ||
		max_prepared_xacts > 0;
	view->delayed_from = map->delayed.from;
}

/*
 * Wait until another session closes a reservation of the queue, or none has
 * one open; for WAIT_STEP at most.  Returns false if the waits of the call
 * have taken WAIT_MAX together, or if there is no memory for any map.  *until
 * is 0 before the first wait of a call.
 */
bool
availability_wait_for_close(int32 queue_id, int64 *until)
{
	AvailabilityMap *map = shmem_find_map(catalog_queue_oid(), queue_id);
	int64		now = clock_monotonic();

	if (*until == 0)
		*until = now + WAIT_MAX * 1000;
	if (map != NULL)
		LWLockRelease(&map->lock);
	if (now >= *until || (map == NULL && shmem_count_maps() == 0))
		return false;
	if (map != NULL)
		sleep_until_close(map);
	else
	{
		/* The queue has no map, as all others are in use right now. */
		CHECK_FOR_INTERRUPTS();
		pg_usleep(1000);
	}
	return true;
}

static void
sleep_until_close(AvailabilityMap *map)
{
	ConditionVariable *closing = shmem_close_condition(map);

	/* First, so that a close after our test of the map wakes us. */
	ConditionVariablePrepareToSleep(closing);
	LWLockAcquire(&map->lock, LW_EXCLUSIVE);
	if (map->open > 0)
	{
		map->waiting = true;
		LWLockRelease(&map->lock);
		ConditionVariableTimedSleep(closing, WAIT_STEP,
									compat_wait_event("QueueAvailabilityMap"));
	}
	else
		LWLockRelease(&map->lock);
	ConditionVariableCancelSleep();
	CHECK_FOR_INTERRUPTS();
}
