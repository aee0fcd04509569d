/*-------------------------------------------------------------------------
 *
 * availability_reserve.c
 *	  Reserving ranges of an availability map for a claim.
 *
 * NOTES
 *	  See availability.c for the design.  A session may have one range
 *	  reserved at a time, of the map or of a lane, and the delayed messages of
 *	  one queue.  What is reserved is not in the map.  When a range was scanned,
 *	  the session gives back what others may claim; but it keeps the
 *	  reservation open while there are messages that it has chosen and not
 *	  marked, since these are in the map no longer, and not yet claimed.
 *
 *	  The map counts open reservations ("open"), and is not evicted while
 *	  there is one.
 *
 *	  A claim that ends with an error leaves its reservations open.  They are
 *	  given back by availability_close_all(), at the latest when the
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

/* How many numbers of a range a claim reserves, at least */
#define OVERDUE_WIDTH	4096	/* of an overdue one, which may be sparse */
#define RETURNED_WIDTH	64		/* of one that is free at once */
#define LANE_WIDTH		16		/* of one of a lane */

/* For how many lanes there has to be room before a claim looks for them */
#define ROOM_MIN		16

/* Ranges of lanes that a view shows */
#define LIST_LANES_MAX	(VIEW_RANGES_MAX - MESSAGE_RANGES_MAX - QUEUE_PRIORITIES)

#define WAIT_MAX		1000	/* ms, for other sessions' reservations */
#define WAIT_STEP		10		/* ms */

/* The reservation of this session; map is NULL if none is open. */
static struct
{
	AvailabilityMap *map;
	MessageRange range;			/* empty: it was given back */
	bool		is_fresh;		/* it was reserved for the first time */
	bool		is_lane;		/* it is one of this lane */
	bool		is_bounded;		/* ... and to be given back even if empty */
	bool		is_overflow;	/* it had no room in lanes */
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
 * RESERVE_NONE: there is none, and no other session has a reservation open;
 * but a delayed message may be due, as the request says then.  RESERVE_WAIT:
 * other sessions have reservations open, or there is no room for a map.
 */
ReserveResult
availability_reserve(ReserveRequest *request, MessageRange *range)
{
	AvailabilityMap *map;
	bool		forgotten = false;
	bool		others;

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
	others = !request->met_lanes && !request->no_room &&
		map->open > (delayed.map == map) + (reserved.map == map);
	request->delayed_is_due = map->delayed.due <= request->now;
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
 * uncertain range that is not due is the last choice.  False: there is none.
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

static bool
reserve_lane(AvailabilityMap *map, ReserveRequest *request)
{
	int64		width = Max(request->width, LANE_WIDTH);

	if (request->no_lanes)
		return false;
	reserved.is_lane = true;
	reserved.is_fresh = reserved.is_overflow = false;
	reserved.lane = request->lane;
	if (!(request->same_lane &&
		  lanes_take_more(map, width, request->lane, &reserved.range)) &&
		!lanes_take(map, width, &reserved.lane, &request->lane_changes,
					&reserved.range))
		return false;
	reserved.is_bounded = request->bound > 0;
	return true;
}

/*
 * Reserve what had no room in lanes, to give it to them, or to claim it as if
 * it were one lane.
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
	map->open_overflow++;
	return true;
}

/*
 * Is there room now for what had none?  While lanes have their turns, there has
 * to be some more, so that few claims look for it.
 */
static bool
has_room(const AvailabilityMap *map, ReserveRequest *request)
{
	bool		needs_room = map->nlanes == 0 || request->no_lanes;

	if (request->prefers_lanes && !needs_room)
		return false;
	request->room = lanes_room();
	return request->room >= (needs_room ? 1 : ROOM_MIN);
}

/*
 * Reserve what is due, as a whole, or else what had no room in lanes, if it has
 * now, or else a range of a lane.  If there is no lane, and no room for one:
 * without a bound, what had no room is like one lane; with a bound, the claim
 * has to read the whole queue (no_room).  Uncertain ranges that are not due are
 * the last choice.
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
	request->met_others = is_due || i >= 0 || overflows ||
		map->delayed.due <= request->now || map->delayed.uncertain ||
		max_prepared_xacts > 0;
	request->room = 0;
	request->no_room = false;
	if (request->only_lanes)
		return reserve_lane(map, request);
	if (is_due && (!request->prefers_lanes || pick_fresh(map) >= 0))
		return reserve(map, request, NUMBERS_END);
	if (overflows && has_room(map, request))
		return reserve_overflow(map, NUMBERS_END, false);
	request->room = 0;
	if (reserve_lane(map, request))
		return true;
	if (overflows && request->bound <= 0)
		return reserve_overflow(map, request->width, true);
	request->no_room = overflows;
	return !overflows && (is_due || !request->only_due) &&
		reserve(map, request, NUMBERS_END);
}

static bool
reserve_any(AvailabilityMap *map, ReserveRequest *request)
{
	if (request->met_lanes)
		return false;
	return request->has_lanes ? reserve_of_groups(map, request) :
		reserve(map, request, request->width);
}

/*
 * The first range of the map whose time has come; or else the first uncertain
 * one that this call has not scanned.  -1: there is none.
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

		if (request->has_lanes && range->due == DT_NOBEGIN)
			continue;
		if (range->due > request->now)
		{
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

/* The highest priority with numbers that were never reserved, or -1 */
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

	/*
	 * New messages are dense.  But if nothing was scanned yet, they may be
	 * anywhere below "end": reserve all of it.
	 */
	range->priority = priority;
	range->first = *next;
	range->last = *next == 0 || width >= end - *next ?
		end - 1 : *next + width - 1;
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

	/* In a range without a known end, messages may be anywhere. */
	if (range->last - range->first < width || range->last == NUMBERS_END - 1)
		message_ranges_remove(&map->ranges, i);
	else
	{
		reserved.range.last = range->first + width - 1;
		range->first += width;
	}
}

/*
 * The range was scanned up to that number: give back the rest of it, and the
 * messages in it that may be free later ("passed").  The reservation stays
 * open.
 */
void
availability_give_back(int64 scanned_to, const MessageRanges *passed,
					   TimestampTz now)
{
	AvailabilityMap *map = reserved.map;
	MessageRange rest = reserved.range;

	Assert(map != NULL);
	rest.first = Max(rest.first, scanned_to + 1);
	reserved.range.last = reserved.range.first - 1;
	if (rest.first > rest.last && passed->n == 0 && !reserved.is_bounded &&
		!reserved.is_overflow)
		return;

	LWLockAcquire(&map->lock, LW_EXCLUSIVE);
	if (reserved.is_lane && !reserved.is_overflow)
	{
		reserved.is_bounded = false;
		if (!lanes_give_back(map, reserved.lane, &rest))
			(void) availability_add_range(map, reserved.lane, &rest, now);
	}
	else if (rest.first <= rest.last)
	{
		int64	   *next = &map->next[rest.priority];

		/* If it had no known end, a push may have set one meanwhile. */
		rest.last = Min(rest.last, map->end[rest.priority] - 1);
		if (reserved.is_fresh && *next == rest.last + 1)
			*next = rest.first;
		else if (rest.first <= rest.last)
			message_ranges_add(&map->ranges, &rest, now);
	}
	for (int i = 0; i < passed->n; i++)
	{
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
 * Something is free in these ranges of lanes, of the queue that has something
 * reserved.  What was reserved because there is room now is behind nothing.
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

		if (!reserved.is_overflow)
			availability_add_range(map, given->lane, &given->range, now);
		else if (!lanes_add(map, given->lane, &given->range, false))
			availability_add_overflow(map, &given->range, now);
	}
	availability_unlock_and_wake(map, n);
}

/* The same for messages of groups with a bound that may be unfinished. */
void
availability_give_delivered(const LaneRange *ranges, int n)
{
	AvailabilityMap *map = reserved.map != NULL ? reserved.map : delayed.map;

	Assert(map != NULL);
	LWLockAcquire(&map->lock, LW_EXCLUSIVE);
	add_delivered(map, ranges, n);
}

/* The same without a reservation */
void
availability_learn_delivered(int32 queue_id, const LaneRange *ranges, int n)
{
	AvailabilityMap *map = shmem_get_map(queue_id);

	if (map != NULL)
		add_delivered(map, ranges, n);
}

/* The map is locked, and gets unlocked. */
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
	if (lost)
		availability_unlock_and_wake(map, 0);
	else
		LWLockRelease(&map->lock);
}

/*
 * Nothing of the lane was chosen, because it cannot be in the same claim as what
 * was chosen before: it is the first one again.
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

/* What was chosen in it is marked, or nothing was.  May be called again. */
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
 * Reserve the delayed messages that are due.  False: none is.  If "uncertain"
 * is set, also when one may have become free without a callback.  *from: those
 * in the tables are delayed until then or later.
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
	result = map->delayed.due <= now ||
		(uncertain && (map->delayed.uncertain || max_prepared_xacts > 0));
	if (result)
	{
		TimestampTz given = map->delayed.given;

		*from = map->delayed.from;
		reserve_delayed(map, *from);
		map->delayed.given = given;
	}
	LWLockRelease(&map->lock);
	return result;
}

/*
 * The same for the worker, which moves them; also those that claims have given
 * to lanes, and that are still where they were.
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

/* The map is locked. */
static void
reserve_delayed(AvailabilityMap *map, TimestampTz from)
{
	delayed.from = from;
	delayed.map = map;
	map->open++;
	map->delayed = NOTHING_DELAYED;
}

/*
 * Messages that were reserved were given to lanes, and stay where they are until
 * they are claimed, or the worker moves them.
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
 * They were scanned.  Those that are left are delayed until "from" or later,
 * and have to be scanned again when the first one is "due".
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

/* They were not scanned to the end: give them back as they were. */
void
availability_undo_delayed(void)
{
	if (delayed.map != NULL && !delayed.is_deferred)
		availability_close_delayed(delayed.from, DT_NOBEGIN, false);
}

/*
 * As availability_close_delayed(), for the worker, which has moved some of
 * them in this transaction.  The map knows nothing of these until they are
 * returned at its end; so the reservation stays open until then, and a claim
 * that finds nothing waits.
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

/* Give back what is reserved, as it was: an error has ended the claim. */
void
availability_close_all(void)
{
	static const MessageRanges none = {0};

	if (reserved.map != NULL)
		availability_give_back(-1, &none, GetCurrentTimestamp());
	availability_close();
	availability_undo_delayed();
}

/* The transaction has ended, and the messages that it moved were returned. */
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
 * reserved: close the reservations, and have the maps begin anew (shmem_miss()).
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
	shmem_miss(map_extension(map), map_queue_id(map));
	map->open--;
	map->open_overflow -= is_overflow ? 1 : 0;
	waiting = map->waiting;
	map->waiting = false;
	LWLockRelease(&map->lock);
	if (waiting)
		ConditionVariableBroadcast(shmem_close_condition(map));
}

/* Has this session anything reserved? */
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
 * If nothing can be free now, clear the flag that says otherwise.  The map is
 * locked.
 */
static void
clear_ready(AvailabilityMap *map, TimestampTz now)
{
	if (map->open > 0 || map->delayed.due <= now || pick_fresh(map) >= 0 ||
		map->nlanes > 0)
		return;
	for (int i = 0; i < map->ranges.n; i++)
		if (map->ranges.items[i].due <= now)
			return;
	shmem_clear_flag(map, MAP_READY);
}

/*
 * What a claim would scan now, for a session that scans it without a
 * reservation and reports nothing to the map.  False: there is no room for the
 * queue's map.
 */
bool
availability_view(int32 queue_id, bool has_lanes, TimestampTz now,
				  AvailabilityView *view)
{
	AvailabilityMap *map = shmem_get_map(queue_id);

	if (map == NULL)
		return false;
	if (has_lanes)
		availability_set_lanes(map, -1);
	fill_view(map, now, view);
	clear_ready(map, now);
	LWLockRelease(&map->lock);
	return true;
}

/*
 * The same for a session that only looks, and makes no claim wait: nothing is
 * changed.  False: the queue has no map.
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
 * one open; for WAIT_STEP at most.  False: the waits of the call have taken
 * WAIT_MAX together, or there is no memory for any map.  *until is 0 before the
 * first wait of a call.
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
		/* There was no room for a map. */
		CHECK_FOR_INTERRUPTS();
		pg_usleep(1000);
	}
	return true;
}

static void
sleep_until_close(AvailabilityMap *map)
{
	ConditionVariable *closing = shmem_close_condition(map);

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
