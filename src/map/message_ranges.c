/*-------------------------------------------------------------------------
 *
 * message_ranges.c
 *	  A small set of ranges of message numbers.
 *
 * NOTES
 *	  A set has room for MESSAGE_RANGES_MAX ranges.  A range that is added is
 *	  united with one that is close to it and due at about the same time.
 *	  When the set is full, the two ranges whose union costs least are united:
 *	  the cost is the number of index entries that claims and sweeps may scan
 *	  in vain because of it.  A union is due when the first of its parts was,
 *	  so nothing is found later than it would have been.  If only one part is
 *	  free at once, the union remembers when the worker has to sweep the other.
 *	  A range that the worker is sweeping is united with none: the sweep must
 *	  not replace a part that it has not scanned, nor find a part again that it
 *	  has.
 *
 *	  Sets are in availability maps, where the lock of the map protects them,
 *	  and in local memory.
 *
 * src/map/message_ranges.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "map/message_ranges.h"

#define UNITE_GAP			64	/* numbers between ranges that are united */
#define UNITE_DUE			(100 * 1000)	/* microseconds between their due
											 * times, at least */

/* Costs of unions that are made only when no other is left */
#define COST_HIDDEN			(PG_INT64_MAX / 4)
#define COST_RESWEEP		(PG_INT64_MAX / 2)

static bool is_overdue(const MessageRange *range, TimestampTz now);
static bool are_similar(const MessageRange *a, const MessageRange *b,
						TimestampTz now);
static void unite_ranges(MessageRange *into, const MessageRange *range);
static int64 cost_of_union(const MessageRange *a, const MessageRange *b,
						   TimestampTz now);
static void unite_cheapest(MessageRanges *ranges, const MessageRange *new,
						   TimestampTz now);

/*
 * Add a range to the set, or let a similar one grow that is close to it.
 */
void
message_ranges_add(MessageRanges *ranges, const MessageRange *range,
				   TimestampTz now)
{
	Assert(range->first <= range->last);
	for (int i = ranges->n - 1; i >= 0; i--)
	{
		MessageRange *old = &ranges->items[i];

		if (!old->is_swept &&
			range->first <= old->last + UNITE_GAP &&
			old->first <= range->last + UNITE_GAP &&
			are_similar(old, range, now))
		{
			unite_ranges(old, range);
			return;
		}
	}
	if (ranges->n == MESSAGE_RANGES_MAX)
		unite_cheapest(ranges, range, now);
	else
		ranges->items[ranges->n++] = *range;
}

/* Remove range i.  The last one becomes range i then. */
void
message_ranges_remove(MessageRanges *ranges, int i)
{
	Assert(i >= 0 && i < ranges->n);
	ranges->items[i] = ranges->items[--ranges->n];
}

/* Returns whether the worker has to sweep the range now. */
static bool
is_overdue(const MessageRange *range, TimestampTz now)
{
	return message_range_sweep_at(range) <= now;
}

/*
 * Returns whether these ranges may be united without need.  They may not if
 * one is due much later, because it would be scanned in vain; nor if only one
 * is free at once, which the worker need not sweep; nor if the worker has to
 * sweep only one of them now.
 */
static bool
are_similar(const MessageRange *a, const MessageRange *b, TimestampTz now)
{
	TimestampTz sooner = Min(a->due, b->due);
	TimestampTz later = Max(a->due, b->due);

	return a->priority == b->priority && a->is_locked == b->is_locked &&
		(a->due == DT_NOBEGIN) == (b->due == DT_NOBEGIN) &&
		is_overdue(a, now) == is_overdue(b, now) &&
		(later <= now ||
		 (sooner > now &&
		  later - sooner <= Max((later - now) / 4, UNITE_DUE)));
}

/* Let a range grow, so that it includes another one. */
static void
unite_ranges(MessageRange *into, const MessageRange *range)
{
	TimestampTz sweep_at = Min(message_range_sweep_at(into),
							   message_range_sweep_at(range));

	into->first = Min(into->first, range->first);
	into->last = Max(into->last, range->last);
	into->hidden = sweep_at == DT_NOEND ? 0 : sweep_at;
	into->due = Min(into->due, range->due);

	/* scanned_at counts only for the part that is locked. */
	if (!into->is_locked)
		into->scanned_at = range->scanned_at;
	else if (range->is_locked)
		into->scanned_at = Min(into->scanned_at, range->scanned_at);
	into->is_locked |= range->is_locked;
}

/*
 * Returns how many numbers may be scanned in vain if these ranges are united.
 */
static int64
cost_of_union(const MessageRange *a, const MessageRange *b, TimestampTz now)
{
	const MessageRange *sooner = a->due <= b->due ? a : b;
	int64		width = Max(a->last, b->last) - Min(a->first, b->first);

	/* Only what is between them: it may be nothing. */
	if (are_similar(a, b, now))
		return Max(a->first, b->first) - Min(a->last, b->last);

	/*
	 * The part that the worker has swept already, or need not sweep yet,
	 * would be swept now.  If that has to be, then in the lowest priority,
	 * which is swept last: otherwise the worker might never come to an end.
	 */
	if (is_overdue(a, now) != is_overdue(b, now))
		return COST_RESWEEP + a->priority;

	/* To find the part that is not free at once, the worker sweeps all. */
	if ((a->due == DT_NOBEGIN) != (b->due == DT_NOBEGIN))
		return COST_HIDDEN + width / 2;

	/* All but the part that is due first would be scanned too early. */
	return width - (sooner->last - sooner->first);
}

/*
 * The set is full, and another range is added: unite the two ranges of one
 * priority whose union costs least.  The new one may be one of them; otherwise
 * it takes the place of one.
 */
static void
unite_cheapest(MessageRanges *ranges, const MessageRange *new,
			   TimestampTz now)
{
	int64		least = PG_INT64_MAX;
	int			into = -1;
	int			from = -1;

	for (int i = 0; i < ranges->n; i++)
		for (int j = i + 1; j <= ranges->n; j++)
		{
			const MessageRange *a = &ranges->items[i];
			const MessageRange *b = j < ranges->n ? &ranges->items[j] : new;
			int64		cost;

			if (a->priority != b->priority || a->is_swept || b->is_swept)
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
	if (from == ranges->n)
		unite_ranges(&ranges->items[into], new);
	else
	{
		unite_ranges(&ranges->items[into], &ranges->items[from]);
		ranges->items[from] = *new;
	}
}

/*
 * Find the first range whose time has come, or else the first one with
 * something locked that was not scanned since then ("began").  Returns its
 * index, or -1 if there is none.
 */
int
message_ranges_pick(const MessageRanges *ranges, TimestampTz now,
					TimestampTz began, bool has_lanes)
{
	int			best = -1;
	int			locked = -1;

	for (int i = 0; i < ranges->n; i++)
	{
		const MessageRange *range = &ranges->items[i];
		int		   *which = &best;

		/* That is overflow, which availability_pick_overflow() finds. */
		if (has_lanes && range->due == DT_NOBEGIN)
			continue;
		if (range->due > now)
		{
			/*
			 * To answer that nothing is free, one scan of it since the call
			 * began is enough, by whatever session.
			 */
			if (!range->is_locked || range->scanned_at >= began)
				continue;
			which = &locked;
		}
		if (*which < 0 ||
			message_range_is_before(range, &ranges->items[*which]))
			*which = i;
	}
	return best >= 0 ? best : locked;
}
