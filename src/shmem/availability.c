/*-------------------------------------------------------------------------
 *
 * availability.c
 *	  Where the next claim of a queue begins to look, as all sessions share it.
 *
 * NOTES
 *	  A availability map in shared memory knows, of each priority of a queue, "next":
 *	  the numbers (of ids) below it were handed to some claim to look at; and
 *	  "end": no push was ever given a number from there on.  It knows a few
 *	  ranges of numbers below next in which something is to be looked at
 *	  again, at once or when it is due; and when the next delayed message is,
 *	  and from what time on there are any (what was taken leaves index entries
 *	  behind while somebody may still see it, and they are not looked at).
 *	  All else below next is known to hold nothing to claim.  So a claim looks
 *	  at the index entries that it may want, not at those of messages that
 *	  are claimed or gone, and two claims do not meet.
 *
 *	  Nothing depends on a availability map but time.  One that is lost is made again,
 *	  knows nothing, and the next claim looks from the start.
 *
 *	  Reserve, then look.  A claim takes a range out of the availability map first; only
 *	  then it takes its snapshot and looks.  Then it closes the reservation:
 *	  gives back what it did not look at, and a range for whatever it passed
 *	  that may be claimed later (under a claim: when that ends).  Between
 *	  these two it waits for nothing (claim_scan.c).
 *
 *	  Return after the transaction.  Whatever a transaction does to a message
 *	  is recorded (pending.c), and when others see its end, those of the
 *	  messages that may be free then are returned: if a row was not as it is
 *	  now in the snapshot of a claim that passed it, the transaction that
 *	  changed it ended after that snapshot, so after the reservation, so it
 *	  finds next past the message, or a range taken out, and returns it.  If
 *	  there is no availability map by then, the next one is made later still, and knows
 *	  nothing.  A range that is returned without need costs one look.
 *
 *	  Some ends are told by nobody: COMMIT PREPARED, and that of a transaction
 *	  that locked a row with plain SQL.  Ranges in which that may happen are
 *	  "uncertain": they are looked at once a second, and before a claim answers
 *	  that there is nothing.  So are those in which a look has met an insertion
 *	  under way that it cannot have been told of: in all that the availability map was
 *	  not told of since it was made, or forgot ("unsure").  Rows that were
 *	  written with plain SQL are found when the whole queue is looked at
 *	  again, which happens to one that seems empty every ten seconds, or less
 *	  often where that takes long.
 *
 *	  There is only room for some ranges.  When there are too many, the two
 *	  that cost least are made one, which is due when the first of them was.
 *
 *	  A claim that finds nothing while another's reservation is open waits for
 *	  its closing, and looks again.
 *
 *	  A probe, which only asks whether something is free, looks at the same
 *	  ranges, but does not reserve them; otherwise a concurrent claim would
 *	  skip them.  It tells the availability map nothing of what it has seen.
 *
 *	  The worker's sweep looks at ranges whose time has come, and at all that a
 *	  new availability map knows nothing of.  It reserves nothing either, but marks these
 *	  ranges.  What is reserved of a range, even if it is given back, has no
 *	  mark any more, and a range loses it when something that is returned is
 *	  united with it.  When the sweep's transaction has committed, a range that
 *	  still has its mark was there, and like this, since before the sweep's
 *	  snapshot, as if it had been reserved:
 *	  so what the sweep has seen takes its place.  A range without the mark is
 *	  left as it is.
 *
 *	  Numbers for pushes come out of the availability map too, a block of the sequence
 *	  at a time, so that the ids of a queue lie close together.  The end of a
 *	  priority moves on before the message is inserted.  A new availability map does not
 *	  know where numbers end, so a claim looks up to the last one possible; the
 *	  first push takes a block, and tells.
 *
 *	  A availability map also knows when its queue's worker has to look: when the first
 *	  range, delayed message or lifetime is due.  Whoever makes something
 *	  free, or due earlier than the worker sleeps, wakes it (database_state.c), and
 *	  as many of the sessions that wait for messages (wakeup.c) as there are
 *	  messages.
 *
 *	  The lock in a availability map guards all of it.  The key and wake_at are also read
 *	  without it; see Cursor.
 *
 * src/shmem/availability.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "miscadmin.h"
#include "pgstat.h"

#include "catalog/message_id.h"
#include "catalog/relations.h"
#include "shmem/availability.h"
#include "shmem/database_state.h"
#include "shmem/segment_state.h"
#include "shmem/shmem.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/limits.h"

#define NUMBERS_END		(PG_INT64_MAX >> MESSAGE_ID_LOW_BITS)
#define UNKNOWN			(DT_NOBEGIN + 1)	/* due of what was never looked at */
#define UNCERTAIN_PAUSE			USECS_PER_SEC	/* between looks at a uncertain range */
#define SOON			(100 * 1000)	/* is as good as now, for claims' ends */
#define CLOSE_GAP		64		/* numbers between ranges that are one */
#define OVERDUE_WIDTH	4096	/* numbers of an overdue range at a time */
#define RETURNED_WIDTH	64		/* at least, of one that is free at once */
#define FULL_SCAN_MIN		(10 * USECS_PER_SEC)
#define FULL_SCAN_MAX		(3600 * USECS_PER_SEC)
#define FULL_SCAN_PER_SCAN	50		/* times what the look took */
#define WAIT_MAX		1000	/* ms, for other claims that look */
#define WAIT_STEP		10		/* ms */

/*
 * What this session has reserved (NULL availability map: nothing); given back by force
 * when an error ends the claim.
 */
static Reservation range_open;
static AvailabilityMap *delayed_open = NULL;
static TimestampTz delayed_open_from;

/* What was moved out of there is returned first: see availability_keep_delayed(). */
static bool delayed_kept = false;
static DelayedInfo delayed_left;

/* What the worker has seen in a sweep, until the transaction ends */
static struct
{
	bool		begun;
	bool		disturbed;		/* the last one came to nothing */
	AvailabilityVisit where;
	MessageRanges ranges;		/* those that it looks at */
	int64		looked_to[MAP_RANGES];	/* in each of them */
	MessageRanges passed;
	int			found;
	int			ended;
	TimestampTz now;
}			sweep;

static const DelayedInfo nothing_delayed = {DT_NOEND, DT_NOEND, false};

/* Of what queue this session waits for messages; NULL: of none. */
static AvailabilityMap *waited_for = NULL;

static bool similar(const MessageRange *a, const MessageRange *b,
					TimestampTz now);
static void unite(MessageRange *into, const MessageRange *range);
static int64 cost_of_union(const MessageRange *a, const MessageRange *b,
						   TimestampTz now);
static void remove_range(MessageRanges *ranges, int i);
static void make_room(MessageRanges *ranges, TimestampTz now);
static void append_range(MessageRanges *ranges, const MessageRange *range,
						 TimestampTz now);
static void know_numbers(AvailabilityMap *map, int64 block);
static bool is_before(const MessageRange *a, const MessageRange *b);
static int	pick(const AvailabilityMap *map, const ReserveRequest *request,
				 bool *is_fresh, MessageRange *fresh);
static void take_range(AvailabilityMap *map, int i, int64 width);
static bool reserve(AvailabilityMap *map, const ReserveRequest *request);
static void delayed_add(DelayedInfo *info, TimestampTz from, TimestampTz due,
					   bool uncertain);
static int	count_numbers(const MessageRange *range);
static void set_wake_at(AvailabilityMap *map);
static void fill_visit(AvailabilityVisit *visit, const AvailabilityMap *map);
static AvailabilityMap *find_visited(const AvailabilityVisit *visit);
static void unlock_and_wake(AvailabilityMap *map, int arrivals);
static void unlock_closed(AvailabilityMap *map);
static void set_ready(AvailabilityMap *map, TimestampTz now);
static void sweep_unknown(AvailabilityMap *map, TimestampTz now);
static void begin_sweep_of(MessageRange *range);
static void begin_sweep_of_unknown(AvailabilityMap *map);
static MessageRange *first_overdue(AvailabilityMap *map, TimestampTz now);
static bool cut_swept(AvailabilityMap *map);
static void wait_for_closing(AvailabilityMap *map);

/* Forget what a availability map knows, but for the numbers of pushes. */
void
availability_clear(AvailabilityMap *map, TimestampTz now)
{
	memset(map->next, 0, sizeof(map->next));
	for (int i = 0; i < QUEUE_PRIORITIES && map->knows_numbers; i++)
		map->uncertain_below = Max(map->uncertain_below, map->end[i]);
	map->ranges.n = 0;
	map->delayed.due = map->delayed.from = DT_NOBEGIN;
	map->delayed.uncertain = false;
	map->expires_at = DT_NOBEGIN;
	map->incarnation = shmem_next_incarnation();
	map->quiet = false;
	map->changes++;
	map->full_scan_at = now + FULL_SCAN_MIN;
	shmem_set_flag(map, MAP_READY);
	set_wake_at(map);
}

/* Forget all, also which numbers were given to pushes. */
void
availability_reset(AvailabilityMap *map, TimestampTz now)
{
	map->knows_numbers = false;
	map->block_next = map->block_end = 0;
	map->uncertain_below = NUMBERS_END;
	for (int i = 0; i < QUEUE_PRIORITIES; i++)
		map->end[i] = NUMBERS_END;
	availability_clear(map, now);
}

/* When has the worker to look?  To be called when something has changed. */
static void
set_wake_at(AvailabilityMap *map)
{
	TimestampTz at = Min(map->expires_at, map->delayed.due);

	for (int i = 0; i < map->ranges.n; i++)
		if (map->ranges.items[i].due != DT_NOBEGIN)
			at = Min(at, map->ranges.items[i].due);
	if (map->examined != map->incarnation && !map->quiet)
		at = DT_NOBEGIN;
	pg_atomic_write_u64(&map->wake_at,
						(uint64) Max(at, DT_NOBEGIN + 1));
}

/*
 * Unlock a availability map that has changed.  If something came free, so many messages
 * or fewer, tell as many of those who wait; and the worker.
 */
static void
unlock_and_wake(AvailabilityMap *map, int arrivals)
{
	TimestampTz wake_at;
	int			waiters = 0;

	map->changes++;
	set_wake_at(map);
	wake_at = map_wake_at(map);
	if (arrivals > 0)
	{
		map->arrivals++;
		shmem_set_flag(map, MAP_ARRIVALS);
		shmem_set_flag(map, MAP_READY);
		waiters = Min(map->waiters, arrivals);
	}
	LWLockRelease(&map->lock);
	for (; waiters > 0; waiters--)
		ConditionVariableSignal(&map->arrival);
	database_wake(wake_at, arrivals > 0);
}

/* How many messages may be in a range? */
static int
count_numbers(const MessageRange *range)
{
	return (int) Min(range->last - range->first + 1, INT_MAX);
}

/* --- Sets of ranges --- */

/*
 * May these be one range?  Not when one is due much later: it would be
 * looked at in vain.  Nor when only one is free at once: the worker does not
 * look there.
 */
static bool
similar(const MessageRange *a, const MessageRange *b, TimestampTz now)
{
	TimestampTz sooner = Min(a->due, b->due);
	TimestampTz later = Max(a->due, b->due);

	return a->priority == b->priority && a->uncertain == b->uncertain &&
		(a->due == DT_NOBEGIN) == (b->due == DT_NOBEGIN) &&
		(later <= now ||
		 (sooner > now &&
		  later - sooner <= Max((later - now) / 4, SOON)));
}

static void
unite(MessageRange *into, const MessageRange *range)
{
	into->first = Min(into->first, range->first);
	into->last = Max(into->last, range->last);
	into->due = Min(into->due, range->due);
	if (!into->uncertain)
		into->scanned_at = range->scanned_at;
	else if (range->uncertain)
		into->scanned_at = Min(into->scanned_at, range->scanned_at);
	into->uncertain |= range->uncertain;
	if (into->swept != range->swept)
		into->swept = 0;
}

/* How many numbers would be looked at in vain if these were one? */
static int64
cost_of_union(const MessageRange *a, const MessageRange *b, TimestampTz now)
{
	const MessageRange *sooner = a->due <= b->due ? a : b;
	const MessageRange *later = a->due <= b->due ? b : a;
	MessageRange both = *a;

	unite(&both, b);
	if (similar(a, b, now))
		return Max(a->first, b->first) - Min(a->last, b->last);

	if ((a->due == DT_NOBEGIN) != (b->due == DT_NOBEGIN))
		return PG_INT64_MAX / 2 + (both.last - both.first) / 2;

	/*
	 * A sweep goes over part of an overdue range, and would find it again as
	 * it was if what it has passed there were made part of the rest.  If that
	 * must be, then where sweeps come last.
	 */
	if (sooner->due <= now && later->due > now)
		return PG_INT64_MAX / 4 + a->priority;
	return (both.last - both.first) - (sooner->last - sooner->first);
}

static void
remove_range(MessageRanges *ranges, int i)
{
	ranges->items[i] = ranges->items[--ranges->n];
}

/*
 * Unite the two ranges that it costs least.  There are more than priorities,
 * so two have the same one.
 */
static void
make_room(MessageRanges *ranges, TimestampTz now)
{
	int64		least = PG_INT64_MAX;
	int			into = -1;
	int			from = -1;

	for (int i = 0; i < ranges->n; i++)
		for (int j = i + 1; j < ranges->n; j++)
		{
			const MessageRange *a = &ranges->items[i];
			const MessageRange *b = &ranges->items[j];
			int64		cost;

			if (a->priority != b->priority)
				continue;
			cost = cost_of_union(a, b, now);
			if (into < 0 || cost < least)
			{
				least = cost;
				into = i;
				from = j;
			}
		}
	Assert(into >= 0);
	unite(&ranges->items[into], &ranges->items[from]);
	remove_range(ranges, from);
}

static void
append_range(MessageRanges *ranges, const MessageRange *range,
			 TimestampTz now)
{
	if (ranges->n == MAP_RANGES)
		make_room(ranges, now);
	ranges->items[ranges->n++] = *range;
}

void
availability_add_range(MessageRanges *ranges, const MessageRange *range, TimestampTz now)
{
	for (int i = ranges->n - 1; i >= 0; i--)
	{
		MessageRange *old = &ranges->items[i];

		if (range->first <= old->last + CLOSE_GAP &&
			old->first <= range->last + CLOSE_GAP &&
			similar(old, range, now))
		{
			unite(old, range);
			return;
		}
	}
	append_range(ranges, range, now);
}

/* --- Numbers for pushes --- */

/*
 * This block was taken from the sequence after the availability map had forgotten all
 * numbers: so no push was ever given one from there on.
 */
static void
know_numbers(AvailabilityMap *map, int64 block)
{
	map->knows_numbers = true;
	map->block_next = block;
	map->block_end = block + MESSAGE_ID_BLOCK;
	map->uncertain_below = block;
	for (int i = 0; i < QUEUE_PRIORITIES; i++)
	{
		map->next[i] = Min(map->next[i], block);
		map->end[i] = block;
	}
}

/*
 * A queue is being created: it has no messages.  If that is rolled back
 * nobody ever asks for it.
 */
void
availability_begin_queue(int32 queue_id)
{
	int64		block;
	AvailabilityMap	   *map;

	if (!shmem_exists())
		return;
	database_record_change(CHANGE_QUEUE_CREATED);
	block = catalog_next_block();
	map = shmem_get_map(queue_id);
	if (map == NULL)
		return;
	know_numbers(map, block);
	for (int i = 0; i < QUEUE_PRIORITIES; i++)
		map->next[i] = block;
	map->uncertain_below = 0;
	map->switches = segment_switches();
	map->delayed = nothing_delayed;
	map->expires_at = DT_NOEND;
	map->examined = map->incarnation;
	shmem_clear_flag(map, MAP_READY);
	set_wake_at(map);
	LWLockRelease(&map->lock);
}

/*
 * Numbers for new messages of these priorities (a bit for each): returns the
 * first of *n, which are at most wanted and at least one.
 */
int64
availability_take_numbers(int32 queue_id, int priorities, int wanted, int *n)
{
	int64		block = 0;		/* a new one, when there is one */
	uint64		taken_for = 0;	/* which availability map, as it was then */
	uint32		switches = segment_switches();

	for (;;)
	{
		AvailabilityMap	   *map = shmem_get_map(queue_id);
		int64		first;

		/* One that is made after the block was taken knows of it. */
		if (map == NULL && block != 0)
		{
			*n = Min(wanted, MESSAGE_ID_BLOCK);
			return block;
		}
		if (map == NULL)
		{
			block = catalog_next_block();
			continue;
		}

		/* The ring has turned since: leave out the rest of the block. */
		if (block == 0 && map->switches != switches)
			map->block_next = map->block_end;
		if ((block == 0 && map->block_next == map->block_end) ||
			(!map->knows_numbers && map->incarnation != taken_for))
		{
			taken_for = map->incarnation;
			LWLockRelease(&map->lock);
			block = catalog_next_block();
			continue;
		}
		if (!map->knows_numbers)
			know_numbers(map, block);

		/*
		 * A block that others took after ours, and put here, stays: who pushes
		 * later shall get a higher number.
		 */
		if (block >= map->block_end)
		{
			map->block_next = block;
			map->block_end = block + MESSAGE_ID_BLOCK;
			map->switches = switches;
		}
		if (block == 0 || block == map->block_next)
		{
			first = map->block_next;
			*n = (int) Min(wanted, map->block_end - first);
			map->block_next += *n;
		}
		else
		{
			first = block;
			*n = Min(wanted, MESSAGE_ID_BLOCK);
		}
		for (int i = 0; i < QUEUE_PRIORITIES; i++)
			if (priorities & (1 << i))
				map->end[i] = Max(map->end[i], first + *n);

		/* For ourselves already, should we ask. */
		shmem_set_flag(map, MAP_READY);
		LWLockRelease(&map->lock);
		return first;
	}
}

/* --- Reserving --- */

/* The order in which messages are handed out. */
static bool
is_before(const MessageRange *a, const MessageRange *b)
{
	return a->priority != b->priority ? a->priority > b->priority :
		a->first < b->first;
}

/*
 * The range to look at first, or -1 for none.  *is_fresh: it is what lies
 * between next and end of a priority.
 */
static int
pick(const AvailabilityMap *map, const ReserveRequest *request, bool *is_fresh,
	 MessageRange *fresh)
{
	int			best = -1;
	int			uncertain = -1;

	for (int i = 0; i < map->ranges.n; i++)
	{
		const MessageRange *range = &map->ranges.items[i];
		int		   *which = &best;

		if (range->due > request->now)
		{
			/* Not yet; but has this call looked at it? */
			if (!range->uncertain || range->scanned_at >= request->began)
				continue;
			which = &uncertain;
		}
		if (*which < 0 ||
			is_before(range, &map->ranges.items[*which]))
			*which = i;
	}

	*is_fresh = false;
	for (int p = QUEUE_PRIORITIES - 1; p >= 0; p--)
		if (map->next[p] < map->end[p])
		{
			fresh->priority = p;
			fresh->first = map->next[p];
			*is_fresh = best < 0 ||
				is_before(fresh, &map->ranges.items[best]);
			break;
		}
	return *is_fresh || best >= 0 ? best : uncertain;
}

/* Take a range out of the availability map, or its beginning if it is wide. */
static void
take_range(AvailabilityMap *map, int i, int64 width)
{
	MessageRange *range = &map->ranges.items[i];

	width = Max(width, range->due == DT_NOBEGIN ?
				RETURNED_WIDTH : OVERDUE_WIDTH);
	range_open.range = *range;
	range_open.range.swept = 0;

	/* What was never looked at may be anywhere. */
	if (range->last - range->first < width || range->last == NUMBERS_END - 1)
		remove_range(&map->ranges, i);
	else
	{
		range_open.range.last = range->first + width - 1;
		range->first += width;
	}
}

/* Reserve what there is, in a availability map that is locked. */
static bool
reserve(AvailabilityMap *map, const ReserveRequest *request)
{
	MessageRange *range = &range_open.range;
	int			i = pick(map, request, &range_open.is_fresh, range);

	if (range_open.is_fresh)
	{
		int64	   *next = &map->next[range->priority];
		int64		end = map->end[range->priority];
		bool		is_first = *next == 0;

		/* What is new is dense; what was never looked at may be anywhere. */
		range->last = is_first || request->width >= end - *next ?
			end - 1 : *next + request->width - 1;
		range->due = DT_NOBEGIN;

		/* We may not be told of all in it. */
		range->uncertain = *next < map->uncertain_below;
		range->scanned_at = DT_NOBEGIN;
		range->swept = 0;
		*next = range->last + 1;
	}
	else if (i >= 0)
		take_range(map, i, request->width);
	else
		return false;
	range_open.map = map;
	map->open++;
	return true;
}

/* Sleep until another session closes a reservation, or a little while. */
static void
wait_for_closing(AvailabilityMap *map)
{
	ConditionVariable *closing = shmem_closing(map);

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

/*
 * Wait until no other session has anything of the queue reserved, or one
 * closes a reservation.  False: that has taken long.  *until: set by the first
 * call; 0 before.
 */
bool
availability_wait(int32 queue_id, int64 *until)
{
	AvailabilityMap	   *map = shmem_find_map(catalog_queue_oid(), queue_id);
	int64		now = clock_monotonic();

	if (*until == 0)
		*until = now + WAIT_MAX * 1000;
	if (map != NULL)
		LWLockRelease(&map->lock);
	if (now >= *until)
		return false;
	if (map != NULL)
		wait_for_closing(map);
	else
	{
		/* There was no room for one. */
		CHECK_FOR_INTERRUPTS();
		pg_usleep(1000);
	}
	return true;
}

/*
 * Reserve the first range of a queue in which something may be free.
 *
 * RESERVE_NONE: there is none, and no other session looks at one; but delayed
 * messages may be due, as the wish says then.  RESERVE_WAIT: others have
 * something reserved, and may give some of it back.
 *
 * The session may have one range reserved at a time, and one reservation of
 * delayed messages.
 */
ReserveResult
availability_reserve(ReserveRequest *request, MessageRange *range)
{
	AvailabilityMap	   *map = shmem_get_map(request->queue_id);
	bool		others;

	Assert(range_open.map == NULL);
	if (map == NULL)
		return RESERVE_WAIT;
	if (reserve(map, request))
	{
		LWLockRelease(&map->lock);
		*range = range_open.range;
		return RESERVE_DONE;
	}
	others = map->open > (delayed_open == map ? 1 : 0);
	request->delayed_is_due = map->delayed.due <= request->now;
	if (!others && !request->has_more && delayed_open == NULL)
		set_ready(map, request->now);
	LWLockRelease(&map->lock);
	return others ? RESERVE_WAIT : RESERVE_NONE;
}

/* Is there nothing to look at now?  Then the queue is not ready. */
static void
set_ready(AvailabilityMap *map, TimestampTz now)
{
	if (map->open > 0 || map->delayed.due <= now)
		return;
	for (int i = 0; i < map->ranges.n; i++)
		if (map->ranges.items[i].due <= now)
			return;
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (map->next[p] < map->end[p])
			return;
	shmem_clear_flag(map, MAP_READY);
}

/*
 * What a claim would look at now, to be looked at without a reservation: so
 * nothing of it may be told to the availability map.  False: there is no room for the
 * queue's availability map.
 */
bool
availability_view(int32 queue_id, TimestampTz now, AvailabilityView *view)
{
	AvailabilityMap	   *map = shmem_get_map(queue_id);

	if (map == NULL)
		return false;
	view->n = 0;
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
	set_ready(map, now);
	LWLockRelease(&map->lock);
	return true;
}

/*
 * Unlock a availability map of which a reservation was closed, and wake the sessions
 * that wait for that.
 */
static void
unlock_closed(AvailabilityMap *map)
{
	bool		tell = map->waiting;

	Assert(map->open > 0);
	map->open--;
	map->waiting = false;
	unlock_and_wake(map, 0);
	if (tell)
		ConditionVariableBroadcast(shmem_closing(map));
}

/*
 * The range was looked at, up to that number; passed are those messages in
 * it that may be claimed later.
 */
void
availability_close(int64 looked_to, const MessageRanges *passed, TimestampTz now)
{
	AvailabilityMap	   *map = range_open.map;
	MessageRange rest = range_open.range;

	Assert(map != NULL);
	rest.first = Max(rest.first, looked_to + 1);
	LWLockAcquire(&map->lock, LW_EXCLUSIVE);
	range_open.map = NULL;
	if (rest.first <= rest.last)
	{
		int64	   *next = &map->next[rest.priority];

		/* One that went to the end of all numbers, which is known by now. */
		rest.last = Min(rest.last, map->end[rest.priority] - 1);
		if (range_open.is_fresh && *next == rest.last + 1)
			*next = rest.first;
		else if (rest.first <= rest.last)
			availability_add_range(&map->ranges, &rest, now);
	}
	if (passed != NULL)
		for (int i = 0; i < passed->n; i++)
			availability_add_range(&map->ranges, &passed->items[i], now);
	unlock_closed(map);
}

static void
delayed_add(DelayedInfo *info, TimestampTz from, TimestampTz due, bool uncertain)
{
	info->from = Min(info->from, from);
	info->due = Min(info->due, due);
	info->uncertain |= uncertain;
}

/*
 * Reserve the delayed messages that are due; false: none is.  With "uncertain"
 * look also when one may have been unlocked without a notice.  *from:
 * none of those that are there was delayed until earlier.
 */
bool
availability_reserve_delayed(int32 queue_id, TimestampTz now, bool uncertain,
					  TimestampTz *from)
{
	AvailabilityMap	   *map = shmem_get_map(queue_id);
	bool		result;

	Assert(delayed_open == NULL);
	if (map == NULL)
		return false;
	result = map->delayed.due <= now ||
		(uncertain && (map->delayed.uncertain || max_prepared_xacts > 0));
	if (result)
	{
		*from = delayed_open_from = map->delayed.from;
		delayed_open = map;
		map->open++;
		map->delayed = nothing_delayed;
	}
	LWLockRelease(&map->lock);
	return result;
}

/*
 * They were looked at.  Those that are left were delayed until "from" at the
 * earliest; they are to be looked at again when it is "due".
 */
void
availability_close_delayed(TimestampTz from, TimestampTz due, bool uncertain)
{
	AvailabilityMap	   *map = delayed_open;

	Assert(map != NULL);
	LWLockAcquire(&map->lock, LW_EXCLUSIVE);
	delayed_open = NULL;
	delayed_add(&map->delayed, from, Max(due, DT_NOBEGIN + 1), uncertain);
	unlock_closed(map);
}

/*
 * The same for the worker, which has moved some of them in this transaction.
 * The availability map knows nothing of these before they are returned at its end, so the
 * reservation stays open until then: a claim that finds nothing waits.
 */
void
availability_keep_delayed(TimestampTz from, TimestampTz due, bool uncertain)
{
	Assert(delayed_open != NULL);
	delayed_kept = true;
	delayed_left.from = from;
	delayed_left.due = due;
	delayed_left.uncertain = uncertain;
}

/* All was returned. */
void
availability_close_kept(void)
{
	if (delayed_kept)
	{
		delayed_kept = false;
		availability_close_delayed(delayed_left.from, delayed_left.due,
							delayed_left.uncertain);
	}
}

/* Give back what is reserved, as it was: an error has ended the claim. */
void
availability_close_all(void)
{
	if (range_open.map != NULL)
		availability_close(-1, NULL, GetCurrentTimestamp());
	if (delayed_open != NULL && !delayed_kept)
		availability_close_delayed(delayed_open_from, DT_NOBEGIN, false);
}

/* --- Sweeping --- */

/*
 * Of what a new availability map knows nothing, make ranges whose time has come.  Claims
 * look at them as before.
 */
static void
sweep_unknown(AvailabilityMap *map, TimestampTz now)
{
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (map->next[p] == 0 && map->end[p] > 0)
		{
			MessageRange range = {0};

			range.priority = p;
			range.last = map->end[p] - 1;
			range.due = UNKNOWN;
			range.scanned_at = DT_NOBEGIN;
			range.uncertain = map->uncertain_below > 0;
			availability_add_range(&map->ranges, &range, now);
			map->next[p] = map->end[p];
		}
}

/* Let the sweep look at this range, and mark it. */
static void
begin_sweep_of(MessageRange *range)
{
	int			n = sweep.ranges.n;

	sweep.looked_to[n] = range->first - 1;
	sweep.ranges.items[n] = *range;
	range->swept = ++sweep.ranges.n;
}

/* Let it look at all that nothing is known of, high priorities first. */
static void
begin_sweep_of_unknown(AvailabilityMap *map)
{
	for (int p = QUEUE_PRIORITIES - 1; p >= 0; p--)
		for (int i = 0; i < map->ranges.n; i++)
			if (map->ranges.items[i].priority == p &&
				map->ranges.items[i].due == UNKNOWN)
				begin_sweep_of(&map->ranges.items[i]);
}

/* The first range whose time has come; NULL: there is none. */
static MessageRange *
first_overdue(AvailabilityMap *map, TimestampTz now)
{
	MessageRange *first = NULL;

	for (int i = 0; i < map->ranges.n; i++)
	{
		MessageRange *range = &map->ranges.items[i];

		if (range->due != DT_NOBEGIN && range->due <= now &&
			(first == NULL || is_before(range, first)))
			first = range;
	}
	return first;
}

/*
 * The worker is about to look at all that the availability map knows nothing of, or else
 * at the first range whose time has come.  It reserves nothing, so that claims
 * find all that is there; instead the ranges are marked.  Returns them, and
 * their number; 0: there is none, or (*disturbed) claims have come in the way
 * of the last sweep.
 */
int
availability_begin_sweep(int32 queue_id, TimestampTz now,
				   const MessageRange **ranges, bool *disturbed)
{
	AvailabilityMap	   *map;
	MessageRange *overdue;

	*disturbed = sweep.disturbed && sweep.where.queue_id == queue_id;
	sweep.begun = sweep.disturbed = false;
	map = *disturbed ? NULL : shmem_get_map(queue_id);
	if (map == NULL)
		return 0;

	/* A sweep that failed has left its marks. */
	for (int i = 0; i < map->ranges.n; i++)
		map->ranges.items[i].swept = 0;
	sweep.ranges.n = 0;
	sweep_unknown(map, now);
	begin_sweep_of_unknown(map);
	overdue = sweep.ranges.n == 0 ? first_overdue(map, now) : NULL;
	if (overdue != NULL)
		begin_sweep_of(overdue);
	fill_visit(&sweep.where, map);
	LWLockRelease(&map->lock);
	*ranges = sweep.ranges.items;
	return sweep.ranges.n;
}

/* It has looked at one of them, up to that number. */
void
availability_swept(int i, int64 looked_to)
{
	sweep.looked_to[i] = looked_to;
}

/*
 * It is done.  It found so many free messages, and claims that have run out;
 * passed is all that may be claimed.  This counts if the transaction commits.
 */
void
availability_end_sweep(const MessageRanges *passed, int found, int ended,
				 TimestampTz now)
{
	sweep.begun = true;
	sweep.passed = *passed;
	sweep.found = found;
	sweep.ended = ended;
	sweep.now = now;
}

/*
 * Take what was swept out of the availability map.  What has a mark was there, and like
 * this, since before the sweep's snapshots were taken, as if it had been
 * reserved.  False: nothing is as it was.
 */
static bool
cut_swept(AvailabilityMap *map)
{
	bool		found = false;

	for (int i = map->ranges.n - 1; i >= 0; i--)
	{
		MessageRange *marked = &map->ranges.items[i];
		int64		looked_to;

		if (marked->swept == 0)
			continue;
		Assert(marked->swept <= sweep.ranges.n);
		looked_to = sweep.looked_to[marked->swept - 1];
		marked->swept = 0;
		found = true;
		if (marked->last <= looked_to)
			remove_range(&map->ranges, i);
		else
			marked->first = Max(marked->first, looked_to + 1);
	}
	return found;
}

/* The transaction is over.  Reads no catalog. */
void
availability_publish_sweep(bool commit)
{
	AvailabilityMap	   *map;
	bool		counts;

	if (!sweep.begun)
		return;
	sweep.begun = false;
	map = commit ? find_visited(&sweep.where) : NULL;
	if (map == NULL)
		return;
	counts = cut_swept(map);
	sweep.disturbed = !counts;
	for (int i = 0; i < sweep.passed.n && counts; i++)
		availability_add_range(&map->ranges, &sweep.passed.items[i], sweep.now);
	unlock_and_wake(map, counts ? sweep.found : 0);
	if (counts)
	{
		database_count_now(COUNT_EXPIRED_CLAIMS, sweep.ended);
	}
}

/* --- Returning --- */

/*
 * A transaction is over, and messages in this range may be claimed when it
 * is due.  Those that no claim was given yet need no range of their own,
 * unless they are uncertain: then they stay so.  None of them expires before
 * expires_at.
 */
void
availability_return(Oid extension, int32 queue_id, const MessageRange *range,
			  TimestampTz expires_at, TimestampTz now)
{
	AvailabilityMap	   *map = shmem_find_map(extension, queue_id);
	MessageRange below = *range;

	if (map == NULL)
	{
		database_map_evicted(database_mine(), range->due);
		return;
	}
	if (!below.uncertain)
		below.last = Min(below.last, map->next[below.priority] - 1);
	if (below.first <= below.last)
		availability_add_range(&map->ranges, &below, now);
	map->expires_at = Min(map->expires_at, expires_at);
	map->new_expires_at = Min(map->new_expires_at, expires_at);
	unlock_and_wake(map, range->due == DT_NOBEGIN ?
					count_numbers(range) : 0);
}

/*
 * A transaction is over, and a message that is delayed until "from" may be
 * claimed when it is "due".
 */
void
availability_return_delayed(Oid extension, int32 queue_id, TimestampTz from,
					 TimestampTz due, bool uncertain)
{
	AvailabilityMap	   *map = shmem_find_map(extension, queue_id);

	if (map == NULL)
	{
		database_map_evicted(database_mine(), due);
		return;
	}
	due = Max(due, DT_NOBEGIN + 1);
	delayed_add(&map->delayed, from, due, uncertain);
	unlock_and_wake(map, 0);
}

/* --- For the worker, and those who wait --- */

static void
fill_visit(AvailabilityVisit *visit, const AvailabilityMap *map)
{
	visit->extension = map_extension(map);
	visit->queue_id = map_queue_id(map);
	visit->incarnation = map->incarnation;
	visit->changes = map->changes;
	visit->arrivals = map->arrivals;
	visit->examined = map->examined == map->incarnation;
	visit->expires_at = map->expires_at;
}

/*
 * The queue's availability map, locked, if it still is the one that was visited, and has
 * not forgotten what it knew since; else NULL.
 */
static AvailabilityMap *
find_visited(const AvailabilityVisit *visit)
{
	AvailabilityMap	   *map = shmem_find_map(visit->extension, visit->queue_id);

	if (map == NULL || map->incarnation == visit->incarnation)
		return map;
	LWLockRelease(&map->lock);
	return NULL;
}

/*
 * The worker shall look whether the queue has something to claim, and notify
 * its listeners if so: it was resumed, for example.
 */
void
availability_examine(Oid extension, int32 queue_id)
{
	AvailabilityMap	   *map = shmem_find_map(extension, queue_id);

	if (map == NULL)
	{
		database_map_evicted(database_mine(), DT_NOBEGIN);
		return;
	}
	map->incarnation = shmem_next_incarnation();
	map->quiet = false;
	unlock_and_wake(map, 0);
}

/*
 * Has the worker to see to this queue, whether or not it was found to have
 * nothing to do there?  The queue gets a availability map if it has none.
 */
bool
availability_is_due(int32 queue_id, TimestampTz now)
{
	AvailabilityMap	   *map = shmem_get_map(queue_id);
	bool		result;

	if (map == NULL)
	{
		database_map_evicted(database_mine(), now);
		return true;
	}

	/* It stays due until the worker has seen to it, should that fail. */
	if (map->examined != map->incarnation)
	{
		map->quiet = false;
		set_wake_at(map);
	}
	result = map_wake_at(map) <= now;
	LWLockRelease(&map->lock);
	return result;
}

/* The worker begins to see to a queue.  False: there is no room for that. */
bool
availability_begin_visit(int32 queue_id, AvailabilityVisit *visit)
{
	AvailabilityMap	   *map = shmem_get_map(queue_id);

	if (map == NULL)
		return false;
	fill_visit(visit, map);
	map->new_expires_at = DT_NOEND;
	LWLockRelease(&map->lock);
	return true;
}

/*
 * It has looked whether there is something to claim, of which it may be that
 * no listener was notified.
 */
void
availability_end_visit(const AvailabilityVisit *visit, bool found)
{
	AvailabilityMap	   *map = find_visited(visit);

	if (map == NULL)
		return;
	map->examined = visit->incarnation;
	unlock_and_wake(map, found ? INT_MAX : 0);
}

/*
 * The worker has nothing to tell about a queue, because it is paused, or has
 * nothing to do there at all, because it does not exist, or not yet.  Unless
 * something has changed since the visit began, that stays so until
 * availability_is_due() is asked.
 */
void
availability_set_quiet(const AvailabilityVisit *visit, bool exists)
{
	AvailabilityMap	   *map = find_visited(visit);

	if (map == NULL)
		return;
	if (exists && map->changes == visit->changes)
	{
		/* What else is due there stays so. */
		map->quiet = true;
		unlock_and_wake(map, 0);
		return;
	}
	if (map->changes == visit->changes)
	{
		availability_clear(map, GetCurrentTimestamp());
		shmem_clear_flag(map, MAP_READY);
		pg_atomic_write_u64(&map->wake_at, (uint64) DT_NOEND);
	}
	LWLockRelease(&map->lock);
}

/*
 * All messages of the queue were looked at, and those that had expired were
 * removed; the next one will at that time.
 */
void
availability_end_expiry(const AvailabilityVisit *visit, TimestampTz expires_at)
{
	AvailabilityMap	   *map = find_visited(visit);

	if (map == NULL)
		return;
	map->expires_at = Min(expires_at, map->new_expires_at);
	unlock_and_wake(map, 0);
}

/*
 * A queue whose listeners are to be notified: the first one from the availability map
 * with number *from on, which moves on.
 */
bool
availability_next_arrivals(Oid extension, uint32 *from, AvailabilityVisit *visit)
{
	AvailabilityMap	   *map;

	while ((map = shmem_next_flagged(MAP_ARRIVALS, from)) != NULL)
	{
		if (map_database(map) != MyDatabaseId ||
			map_extension(map) != extension)
			continue;
		LWLockAcquire(&map->lock, LW_EXCLUSIVE);
		fill_visit(visit, map);
		LWLockRelease(&map->lock);
		if (visit->extension == extension)
			return true;
	}
	return false;
}

/*
 * They were notified, in a transaction that has committed; or (told is false)
 * they cannot be now, and the worker has to look at the queue again.  News
 * that came since are told the next time.
 */
void
availability_notified(const AvailabilityVisit *visit, bool notified)
{
	AvailabilityMap	   *map = find_visited(visit);

	if (map == NULL)
		return;
	if (map->arrivals == visit->arrivals)
	{
		map->notified = visit->arrivals;
		shmem_clear_flag(map, MAP_ARRIVALS);
	}
	if (!notified && map->examined == map->incarnation)
	{
		map->incarnation = shmem_next_incarnation();
		map->quiet = false;
	}
	unlock_and_wake(map, 0);
}

/*
 * From now on this session is among those that are told.  NULL: there is no
 * room for that.
 */
AvailabilityMap *
availability_wait_begin(int32 queue_id)
{
	AvailabilityMap	   *map = shmem_get_map(queue_id);

	Assert(waited_for == NULL);
	if (map == NULL)
		return NULL;
	map->waiters++;
	LWLockRelease(&map->lock);
	waited_for = map;

	/* Those that are waited for cannot make room for others. */
	if (shmem_is_crowded(map))
	{
		availability_wait_end(false);
		return NULL;
	}
	return map;
}

/*
 * No more; without harm where it was not.  If it may have been told of a
 * message and does not see to it, somebody else shall be.
 */
void
availability_wait_end(bool pass_on)
{
	AvailabilityMap	   *map = waited_for;

	if (map == NULL)
		return;
	waited_for = NULL;
	ConditionVariableCancelSleep();
	LWLockAcquire(&map->lock, LW_EXCLUSIVE);
	map->waiters--;
	LWLockRelease(&map->lock);
	if (pass_on)
		ConditionVariableSignal(&map->arrival);
}

/* When a uncertain range is to be looked at again. */
TimestampTz
availability_recheck_at(TimestampTz now)
{
	return now + UNCERTAIN_PAUSE;
}

/*
 * The queue seems to be empty.  Is it time to look at all of it again?  Should
 * that fail, the next time comes FULL_SCAN_MIN later.
 */
bool
availability_full_scan_is_due(int32 queue_id, TimestampTz now)
{
	AvailabilityMap	   *map = shmem_find_map(catalog_queue_oid(), queue_id);
	bool		result;

	if (map == NULL)
		return false;
	result = now >= map->full_scan_at ||
		map->full_scan_at > now + FULL_SCAN_MAX;	/* the clock stepped back */
	if (result)
		map->full_scan_at = now + FULL_SCAN_MIN;
	LWLockRelease(&map->lock);
	return result;
}

/* Forget all that is known of a queue. */
void
availability_forget(int32 queue_id)
{
	AvailabilityMap	   *map = shmem_find_map(catalog_queue_oid(), queue_id);

	if (map == NULL)
		return;

	/* Also for what has a number that no push was given here. */
	availability_reset(map, GetCurrentTimestamp());
	LWLockRelease(&map->lock);
}

/* That has been done, whatever was found; it began then. */
void
availability_full_scan_done(int32 queue_id, TimestampTz began)
{
	AvailabilityMap	   *map = shmem_find_map(catalog_queue_oid(), queue_id);
	TimestampTz now = GetCurrentTimestamp();

	if (map == NULL)
		return;
	map->full_scan_at = now + Min(Max(FULL_SCAN_PER_SCAN * (now - began),
									  FULL_SCAN_MIN), FULL_SCAN_MAX);
	LWLockRelease(&map->lock);
}
