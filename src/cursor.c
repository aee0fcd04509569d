/*-------------------------------------------------------------------------
 *
 * cursor.c
 *	  Where the next claim of a queue begins to look, as all sessions share it.
 *
 * NOTES
 *	  A cursor in shared memory knows, of each priority of a queue, "next":
 *	  the numbers (of ids) below it were handed to some claim to look at; and
 *	  "end": no push was ever given a number from there on.  It knows a few
 *	  ranges of numbers below next in which something is to be looked at
 *	  again, at once or when it is due; and when the next parked message is,
 *	  and from what time on there are any (what was taken leaves index entries
 *	  behind while somebody may still see it, and they are not looked at).
 *	  All else below next is known to hold nothing to claim.  So a claim looks
 *	  at the index entries that it may want, not at those of messages that
 *	  are claimed or gone, and two claims do not meet.
 *
 *	  Nothing depends on a cursor but time.  One that is lost is made again,
 *	  knows nothing, and the next claim looks from the start.
 *
 *	  Reserve, then look.  A claim takes a range out of the cursor first; only
 *	  then it takes its snapshot and looks.  Then it closes the reservation:
 *	  gives back what it did not look at, and a range for whatever it passed
 *	  that may be claimed later (under a claim: when that ends).  Between
 *	  these two it waits for nothing (walk.c).
 *
 *	  Return after the transaction.  Whatever a transaction does to a message
 *	  is recorded (touch.c), and when others see its end, those of the
 *	  messages that may be free then are returned: if a row was not as it is
 *	  now in the snapshot of a claim that passed it, the transaction that
 *	  changed it ended after that snapshot, so after the reservation, so it
 *	  finds next past the message, or a range taken out, and returns it.  If
 *	  there is no cursor by then, the next one is made later still, and knows
 *	  nothing.  A range that is returned without need costs one look.
 *
 *	  Some ends are told by nobody: COMMIT PREPARED, and that of a transaction
 *	  that locked a row with plain SQL.  Ranges in which that may happen are
 *	  "doubtful": they are looked at once a second, and before a claim answers
 *	  that there is nothing.  So are those in which a look has met an insertion
 *	  under way that it cannot have been told of: in all that the cursor was
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
 *	  skip them.  It tells the cursor nothing of what it has seen.
 *
 *	  The worker's sweep looks at ranges whose time has come, and at all that a
 *	  new cursor knows nothing of.  It reserves nothing either, but marks these
 *	  ranges.  What is reserved of a range, even if it is given back, has no
 *	  mark any more, and a range loses it when something that is returned is
 *	  united with it.  When the sweep's transaction has committed, a range that
 *	  still has its mark was there, and like this, since before the sweep's
 *	  snapshot, as if it had been reserved:
 *	  so what the sweep has seen takes its place.  A range without the mark is
 *	  left as it is.
 *
 *	  Numbers for pushes come out of the cursor too, a block of the sequence
 *	  at a time, so that the ids of a queue lie close together.  The end of a
 *	  priority moves on before the message is inserted.  A new cursor does not
 *	  know where numbers end, so a claim looks up to the last one possible; the
 *	  first push takes a block, and tells.
 *
 *	  A cursor also knows when its queue's worker has to look: when the first
 *	  range, parked message or lifetime is due.  Whoever makes something
 *	  free, or due earlier than the worker sleeps, wakes it (database.c), and
 *	  as many of the sessions that wait for messages (wait.c) as there are
 *	  messages.
 *
 *	  The lock in a cursor guards all of it.  The key and wake_at are also read
 *	  without it; see Cursor.
 *
 * src/cursor.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "access/twophase.h"
#include "miscadmin.h"
#include "pgstat.h"

#define NUMBERS_END		(PG_INT64_MAX >> ID_LOW_BITS)
#define UNKNOWN			(DT_NOBEGIN + 1)	/* due of what was never looked at */
#define DOUBT			USECS_PER_SEC	/* between looks at a doubtful range */
#define SOON			(100 * 1000)	/* is as good as now, for claims' ends */
#define CLOSE_GAP		64		/* numbers between ranges that are one */
#define OVERDUE_WIDTH	4096	/* numbers of an overdue range at a time */
#define RETURNED_WIDTH	64		/* at least, of one that is free at once */
#define RELOOK_MIN		(10 * USECS_PER_SEC)
#define RELOOK_MAX		(3600 * USECS_PER_SEC)
#define RELOOK_PER_WALK	50		/* times what the look took */
#define WAIT_MAX		1000	/* ms, for other claims that look */
#define WAIT_STEP		10		/* ms */

/*
 * What this session has reserved (NULL cursor: nothing); given back by force
 * when an error ends the claim.
 */
static Reservation range_open;
static Cursor *parked_open = NULL;
static TimestampTz parked_open_from;

/* What was moved out of there is returned first: see cursor_keep_parked(). */
static bool parked_kept = false;
static ParkedInfo parked_left;

/* What the worker has seen in a sweep, until the transaction ends */
static struct
{
	bool		begun;
	bool		disturbed;		/* the last one came to nothing */
	CursorVisit where;
	MessageRanges ranges;		/* those that it looks at */
	int64		looked_to[CURSOR_RANGES];	/* in each of them */
	MessageRanges passed;
	int			found;
	int			ended;
	TimestampTz now;
}			sweep;

static const ParkedInfo nothing_parked = {DT_NOEND, DT_NOEND, false};

/* Of what queue this session waits for messages; NULL: of none. */
static Cursor *waited_for = NULL;

static bool similar(const MessageRange *a, const MessageRange *b,
					TimestampTz now);
static void unite(MessageRange *into, const MessageRange *range);
static int64 cost_of_union(const MessageRange *a, const MessageRange *b,
						   TimestampTz now);
static void remove_range(MessageRanges *ranges, int i);
static void make_room(MessageRanges *ranges, TimestampTz now);
static void append_range(MessageRanges *ranges, const MessageRange *range,
						 TimestampTz now);
static void know_numbers(Cursor *cursor, int64 block);
static bool is_before(const MessageRange *a, const MessageRange *b);
static int	pick(const Cursor *cursor, const CursorWish *wish,
				 bool *is_fresh, MessageRange *fresh);
static void take_range(Cursor *cursor, int i, int64 width);
static bool reserve(Cursor *cursor, const CursorWish *wish);
static void parked_add(ParkedInfo *info, TimestampTz from, TimestampTz due,
					   bool doubtful);
static int	count_numbers(const MessageRange *range);
static void set_wake_at(Cursor *cursor);
static void fill_visit(CursorVisit *visit, const Cursor *cursor);
static Cursor *find_visited(const CursorVisit *visit);
static void unlock_and_wake(Cursor *cursor, int news);
static void unlock_closed(Cursor *cursor);
static void set_ready(Cursor *cursor, TimestampTz now);
static void sweep_unknown(Cursor *cursor, TimestampTz now);
static void begin_sweep_of(MessageRange *range);
static void begin_sweep_of_unknown(Cursor *cursor);
static MessageRange *first_overdue(Cursor *cursor, TimestampTz now);
static bool cut_swept(Cursor *cursor);
static void wait_for_closing(Cursor *cursor);

bool
cursor_is_shared(void)
{
	return shmem_exists();
}

/* Forget what a cursor knows, but for the numbers of pushes. */
void
cursor_clear(Cursor *cursor, TimestampTz now)
{
	memset(cursor->next, 0, sizeof(cursor->next));
	for (int i = 0; i < QUEUE_PRIORITIES && cursor->knows_numbers; i++)
		cursor->unsure_below = Max(cursor->unsure_below, cursor->end[i]);
	cursor->ranges.n = 0;
	cursor->parked.due = cursor->parked.from = DT_NOBEGIN;
	cursor->parked.doubtful = false;
	cursor->expires_at = DT_NOBEGIN;
	cursor->incarnation = shmem_next_incarnation();
	cursor->quiet = false;
	cursor->changes++;
	cursor->relook_at = now + RELOOK_MIN;
	shmem_set_flag(cursor, CURSOR_READY);
	set_wake_at(cursor);
}

/* Forget all, also which numbers were given to pushes. */
void
cursor_reset(Cursor *cursor, TimestampTz now)
{
	cursor->knows_numbers = false;
	cursor->block_next = cursor->block_end = 0;
	cursor->unsure_below = NUMBERS_END;
	for (int i = 0; i < QUEUE_PRIORITIES; i++)
		cursor->end[i] = NUMBERS_END;
	cursor_clear(cursor, now);
}

/* When has the worker to look?  To be called when something has changed. */
static void
set_wake_at(Cursor *cursor)
{
	TimestampTz at = Min(cursor->expires_at, cursor->parked.due);

	for (int i = 0; i < cursor->ranges.n; i++)
		if (cursor->ranges.items[i].due != DT_NOBEGIN)
			at = Min(at, cursor->ranges.items[i].due);
	if (cursor->examined != cursor->incarnation && !cursor->quiet)
		at = DT_NOBEGIN;
	pg_atomic_write_u64(&cursor->wake_at,
						(uint64) Max(at, DT_NOBEGIN + 1));
}

/*
 * Unlock a cursor that has changed.  If something came free, so many messages
 * or fewer, tell as many of those who wait; and the worker.
 */
static void
unlock_and_wake(Cursor *cursor, int news)
{
	TimestampTz wake_at;
	int			waiters = 0;

	cursor->changes++;
	set_wake_at(cursor);
	wake_at = cursor_wake_at(cursor);
	if (news > 0)
	{
		cursor->news++;
		shmem_set_flag(cursor, CURSOR_NEWS);
		shmem_set_flag(cursor, CURSOR_READY);
		waiters = Min(cursor->waiters, news);
	}
	LWLockRelease(&cursor->lock);
	for (; waiters > 0; waiters--)
		ConditionVariableSignal(&cursor->arrival);
	database_wake(wake_at, news > 0);
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

	return a->priority == b->priority && a->doubtful == b->doubtful &&
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
	if (!into->doubtful)
		into->looked_at = range->looked_at;
	else if (range->doubtful)
		into->looked_at = Min(into->looked_at, range->looked_at);
	into->doubtful |= range->doubtful;
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
	if (ranges->n == CURSOR_RANGES)
		make_room(ranges, now);
	ranges->items[ranges->n++] = *range;
}

void
ranges_add(MessageRanges *ranges, const MessageRange *range, TimestampTz now)
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
 * This block was taken from the sequence after the cursor had forgotten all
 * numbers: so no push was ever given one from there on.
 */
static void
know_numbers(Cursor *cursor, int64 block)
{
	cursor->knows_numbers = true;
	cursor->block_next = block;
	cursor->block_end = block + ID_BLOCK;
	cursor->unsure_below = block;
	for (int i = 0; i < QUEUE_PRIORITIES; i++)
	{
		cursor->next[i] = Min(cursor->next[i], block);
		cursor->end[i] = block;
	}
}

/*
 * A queue is being created: it has no messages.  If that is rolled back
 * nobody ever asks for it.
 */
void
cursor_begin_queue(int32 queue_id)
{
	int64		block;
	Cursor	   *cursor;

	if (!cursor_is_shared())
		return;
	touch_new_queue();
	block = queue_next_block();
	cursor = shmem_get_cursor(queue_id);
	if (cursor == NULL)
		return;
	know_numbers(cursor, block);
	for (int i = 0; i < QUEUE_PRIORITIES; i++)
		cursor->next[i] = block;
	cursor->unsure_below = 0;
	cursor->turns = ring_turns();
	cursor->parked = nothing_parked;
	cursor->expires_at = DT_NOEND;
	cursor->examined = cursor->incarnation;
	shmem_clear_flag(cursor, CURSOR_READY);
	set_wake_at(cursor);
	LWLockRelease(&cursor->lock);
}

/*
 * Numbers for new messages of these priorities (a bit for each): returns the
 * first of *n, which are at most wanted and at least one.
 */
int64
cursor_take_numbers(int32 queue_id, int priorities, int wanted, int *n)
{
	int64		block = 0;		/* a new one, when there is one */
	uint64		taken_for = 0;	/* which cursor, as it was then */
	uint32		turns = ring_turns();

	for (;;)
	{
		Cursor	   *cursor = shmem_get_cursor(queue_id);
		int64		first;

		/* One that is made after the block was taken knows of it. */
		if (cursor == NULL && block != 0)
		{
			*n = Min(wanted, ID_BLOCK);
			return block;
		}
		if (cursor == NULL)
		{
			block = queue_next_block();
			continue;
		}

		/* The ring has turned since: leave out the rest of the block. */
		if (block == 0 && cursor->turns != turns)
			cursor->block_next = cursor->block_end;
		if ((block == 0 && cursor->block_next == cursor->block_end) ||
			(!cursor->knows_numbers && cursor->incarnation != taken_for))
		{
			taken_for = cursor->incarnation;
			LWLockRelease(&cursor->lock);
			block = queue_next_block();
			continue;
		}
		if (!cursor->knows_numbers)
			know_numbers(cursor, block);

		/*
		 * A block that others took after ours, and put here, stays: who pushes
		 * later shall get a higher number.
		 */
		if (block >= cursor->block_end)
		{
			cursor->block_next = block;
			cursor->block_end = block + ID_BLOCK;
			cursor->turns = turns;
		}
		if (block == 0 || block == cursor->block_next)
		{
			first = cursor->block_next;
			*n = (int) Min(wanted, cursor->block_end - first);
			cursor->block_next += *n;
		}
		else
		{
			first = block;
			*n = Min(wanted, ID_BLOCK);
		}
		for (int i = 0; i < QUEUE_PRIORITIES; i++)
			if (priorities & (1 << i))
				cursor->end[i] = Max(cursor->end[i], first + *n);

		/* For ourselves already, should we ask. */
		shmem_set_flag(cursor, CURSOR_READY);
		LWLockRelease(&cursor->lock);
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
pick(const Cursor *cursor, const CursorWish *wish, bool *is_fresh,
	 MessageRange *fresh)
{
	int			best = -1;
	int			doubtful = -1;

	for (int i = 0; i < cursor->ranges.n; i++)
	{
		const MessageRange *range = &cursor->ranges.items[i];
		int		   *which = &best;

		if (range->due > wish->now)
		{
			/* Not yet; but has this call looked at it? */
			if (!range->doubtful || range->looked_at >= wish->began)
				continue;
			which = &doubtful;
		}
		if (*which < 0 ||
			is_before(range, &cursor->ranges.items[*which]))
			*which = i;
	}

	*is_fresh = false;
	for (int p = QUEUE_PRIORITIES - 1; p >= 0; p--)
		if (cursor->next[p] < cursor->end[p])
		{
			fresh->priority = p;
			fresh->first = cursor->next[p];
			*is_fresh = best < 0 ||
				is_before(fresh, &cursor->ranges.items[best]);
			break;
		}
	return *is_fresh || best >= 0 ? best : doubtful;
}

/* Take a range out of the cursor, or its beginning if it is wide. */
static void
take_range(Cursor *cursor, int i, int64 width)
{
	MessageRange *range = &cursor->ranges.items[i];

	width = Max(width, range->due == DT_NOBEGIN ?
				RETURNED_WIDTH : OVERDUE_WIDTH);
	range_open.range = *range;
	range_open.range.swept = 0;

	/* What was never looked at may be anywhere. */
	if (range->last - range->first < width || range->last == NUMBERS_END - 1)
		remove_range(&cursor->ranges, i);
	else
	{
		range_open.range.last = range->first + width - 1;
		range->first += width;
	}
}

/* Reserve what there is, in a cursor that is locked. */
static bool
reserve(Cursor *cursor, const CursorWish *wish)
{
	MessageRange *range = &range_open.range;
	int			i = pick(cursor, wish, &range_open.is_fresh, range);

	if (range_open.is_fresh)
	{
		int64	   *next = &cursor->next[range->priority];
		int64		end = cursor->end[range->priority];
		bool		is_first = *next == 0;

		/* What is new is dense; what was never looked at may be anywhere. */
		range->last = is_first || wish->width >= end - *next ?
			end - 1 : *next + wish->width - 1;
		range->due = DT_NOBEGIN;

		/* We may not be told of all in it. */
		range->doubtful = *next < cursor->unsure_below;
		range->looked_at = DT_NOBEGIN;
		range->swept = 0;
		*next = range->last + 1;
	}
	else if (i >= 0)
		take_range(cursor, i, wish->width);
	else
		return false;
	range_open.cursor = cursor;
	cursor->open++;
	return true;
}

/* Sleep until another session closes a reservation, or a little while. */
static void
wait_for_closing(Cursor *cursor)
{
	ConditionVariable *closing = shmem_closing(cursor);

	ConditionVariablePrepareToSleep(closing);
	LWLockAcquire(&cursor->lock, LW_EXCLUSIVE);
	if (cursor->open > 0)
	{
		cursor->waiting = true;
		LWLockRelease(&cursor->lock);
		ConditionVariableTimedSleep(closing, WAIT_STEP,
									compat_wait_event("QueueCursor"));
	}
	else
		LWLockRelease(&cursor->lock);
	ConditionVariableCancelSleep();
	CHECK_FOR_INTERRUPTS();
}

/*
 * Wait until no other session has anything of the queue reserved, or one
 * closes a reservation.  False: that has taken long.  *until: set by the first
 * call; 0 before.
 */
bool
cursor_wait(int32 queue_id, int64 *until)
{
	Cursor	   *cursor = shmem_find_cursor(queue_table_oid(), queue_id);
	int64		now = queue_monotonic_time();

	if (*until == 0)
		*until = now + WAIT_MAX * 1000;
	if (cursor != NULL)
		LWLockRelease(&cursor->lock);
	if (now >= *until)
		return false;
	if (cursor != NULL)
		wait_for_closing(cursor);
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
cursor_reserve(CursorWish *wish, MessageRange *range)
{
	Cursor	   *cursor = shmem_get_cursor(wish->queue_id);
	bool		others;

	Assert(range_open.cursor == NULL);
	if (cursor == NULL)
		return RESERVE_WAIT;
	if (reserve(cursor, wish))
	{
		LWLockRelease(&cursor->lock);
		*range = range_open.range;
		return RESERVE_DONE;
	}
	others = cursor->open > (parked_open == cursor ? 1 : 0);
	wish->parked_is_due = cursor->parked.due <= wish->now;
	if (!others && !wish->has_more && parked_open == NULL)
		set_ready(cursor, wish->now);
	LWLockRelease(&cursor->lock);
	return others ? RESERVE_WAIT : RESERVE_NONE;
}

/* Is there nothing to look at now?  Then the queue is not ready. */
static void
set_ready(Cursor *cursor, TimestampTz now)
{
	if (cursor->open > 0 || cursor->parked.due <= now)
		return;
	for (int i = 0; i < cursor->ranges.n; i++)
		if (cursor->ranges.items[i].due <= now)
			return;
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (cursor->next[p] < cursor->end[p])
			return;
	shmem_clear_flag(cursor, CURSOR_READY);
}

/*
 * What a claim would look at now, to be looked at without a reservation: so
 * nothing of it may be told to the cursor.  False: there is no room for the
 * queue's cursor.
 */
bool
cursor_view(int32 queue_id, TimestampTz now, CursorView *view)
{
	Cursor	   *cursor = shmem_get_cursor(queue_id);

	if (cursor == NULL)
		return false;
	view->n = 0;
	for (int i = 0; i < cursor->ranges.n; i++)
		if (cursor->ranges.items[i].due <= now ||
			cursor->ranges.items[i].doubtful)
			view->ranges[view->n++] = cursor->ranges.items[i];
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (cursor->next[p] < cursor->end[p])
		{
			MessageRange *range = &view->ranges[view->n++];

			memset(range, 0, sizeof(MessageRange));
			range->priority = p;
			range->first = cursor->next[p];
			range->last = cursor->end[p] - 1;
		}
	view->others = cursor->open > 0;
	view->parked = cursor->parked.due <= now || cursor->parked.doubtful ||
		max_prepared_xacts > 0;
	view->parked_from = cursor->parked.from;
	set_ready(cursor, now);
	LWLockRelease(&cursor->lock);
	return true;
}

/*
 * Unlock a cursor of which a reservation was closed, and wake the sessions
 * that wait for that.
 */
static void
unlock_closed(Cursor *cursor)
{
	bool		tell = cursor->waiting;

	Assert(cursor->open > 0);
	cursor->open--;
	cursor->waiting = false;
	unlock_and_wake(cursor, 0);
	if (tell)
		ConditionVariableBroadcast(shmem_closing(cursor));
}

/*
 * The range was looked at, up to that number; passed are those messages in
 * it that may be claimed later.
 */
void
cursor_close(int64 looked_to, const MessageRanges *passed, TimestampTz now)
{
	Cursor	   *cursor = range_open.cursor;
	MessageRange rest = range_open.range;

	Assert(cursor != NULL);
	rest.first = Max(rest.first, looked_to + 1);
	LWLockAcquire(&cursor->lock, LW_EXCLUSIVE);
	range_open.cursor = NULL;
	if (rest.first <= rest.last)
	{
		int64	   *next = &cursor->next[rest.priority];

		/* One that went to the end of all numbers, which is known by now. */
		rest.last = Min(rest.last, cursor->end[rest.priority] - 1);
		if (range_open.is_fresh && *next == rest.last + 1)
			*next = rest.first;
		else if (rest.first <= rest.last)
			ranges_add(&cursor->ranges, &rest, now);
	}
	if (passed != NULL)
		for (int i = 0; i < passed->n; i++)
			ranges_add(&cursor->ranges, &passed->items[i], now);
	unlock_closed(cursor);
}

static void
parked_add(ParkedInfo *info, TimestampTz from, TimestampTz due, bool doubtful)
{
	info->from = Min(info->from, from);
	info->due = Min(info->due, due);
	info->doubtful |= doubtful;
}

/*
 * Reserve the parked messages that are due; false: none is.  With "doubtful"
 * look also when one may have been unlocked without a notice.  *from:
 * none of those that are there was parked until earlier.
 */
bool
cursor_reserve_parked(int32 queue_id, TimestampTz now, bool doubtful,
					  TimestampTz *from)
{
	Cursor	   *cursor = shmem_get_cursor(queue_id);
	bool		result;

	Assert(parked_open == NULL);
	if (cursor == NULL)
		return false;
	result = cursor->parked.due <= now ||
		(doubtful && (cursor->parked.doubtful || max_prepared_xacts > 0));
	if (result)
	{
		*from = parked_open_from = cursor->parked.from;
		parked_open = cursor;
		cursor->open++;
		cursor->parked = nothing_parked;
	}
	LWLockRelease(&cursor->lock);
	return result;
}

/*
 * They were looked at.  Those that are left were parked until "from" at the
 * earliest; they are to be looked at again when it is "due".
 */
void
cursor_close_parked(TimestampTz from, TimestampTz due, bool doubtful)
{
	Cursor	   *cursor = parked_open;

	Assert(cursor != NULL);
	LWLockAcquire(&cursor->lock, LW_EXCLUSIVE);
	parked_open = NULL;
	parked_add(&cursor->parked, from, Max(due, DT_NOBEGIN + 1), doubtful);
	unlock_closed(cursor);
}

/*
 * The same for the worker, which has moved some of them in this transaction.
 * The cursor knows nothing of these before they are returned at its end, so the
 * reservation stays open until then: a claim that finds nothing waits.
 */
void
cursor_keep_parked(TimestampTz from, TimestampTz due, bool doubtful)
{
	Assert(parked_open != NULL);
	parked_kept = true;
	parked_left.from = from;
	parked_left.due = due;
	parked_left.doubtful = doubtful;
}

/* All was returned. */
void
cursor_close_kept(void)
{
	if (parked_kept)
	{
		parked_kept = false;
		cursor_close_parked(parked_left.from, parked_left.due,
							parked_left.doubtful);
	}
}

/* Give back what is reserved, as it was: an error has ended the claim. */
void
cursor_close_all(void)
{
	if (range_open.cursor != NULL)
		cursor_close(-1, NULL, GetCurrentTimestamp());
	if (parked_open != NULL && !parked_kept)
		cursor_close_parked(parked_open_from, DT_NOBEGIN, false);
}

/* --- Sweeping --- */

/*
 * Of what a new cursor knows nothing, make ranges whose time has come.  Claims
 * look at them as before.
 */
static void
sweep_unknown(Cursor *cursor, TimestampTz now)
{
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (cursor->next[p] == 0 && cursor->end[p] > 0)
		{
			MessageRange range = {0};

			range.priority = p;
			range.last = cursor->end[p] - 1;
			range.due = UNKNOWN;
			range.looked_at = DT_NOBEGIN;
			range.doubtful = cursor->unsure_below > 0;
			ranges_add(&cursor->ranges, &range, now);
			cursor->next[p] = cursor->end[p];
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
begin_sweep_of_unknown(Cursor *cursor)
{
	for (int p = QUEUE_PRIORITIES - 1; p >= 0; p--)
		for (int i = 0; i < cursor->ranges.n; i++)
			if (cursor->ranges.items[i].priority == p &&
				cursor->ranges.items[i].due == UNKNOWN)
				begin_sweep_of(&cursor->ranges.items[i]);
}

/* The first range whose time has come; NULL: there is none. */
static MessageRange *
first_overdue(Cursor *cursor, TimestampTz now)
{
	MessageRange *first = NULL;

	for (int i = 0; i < cursor->ranges.n; i++)
	{
		MessageRange *range = &cursor->ranges.items[i];

		if (range->due != DT_NOBEGIN && range->due <= now &&
			(first == NULL || is_before(range, first)))
			first = range;
	}
	return first;
}

/*
 * The worker is about to look at all that the cursor knows nothing of, or else
 * at the first range whose time has come.  It reserves nothing, so that claims
 * find all that is there; instead the ranges are marked.  Returns them, and
 * their number; 0: there is none, or (*disturbed) claims have come in the way
 * of the last sweep.
 */
int
cursor_begin_sweep(int32 queue_id, TimestampTz now,
				   const MessageRange **ranges, bool *disturbed)
{
	Cursor	   *cursor;
	MessageRange *overdue;

	*disturbed = sweep.disturbed && sweep.where.queue_id == queue_id;
	sweep.begun = sweep.disturbed = false;
	cursor = *disturbed ? NULL : shmem_get_cursor(queue_id);
	if (cursor == NULL)
		return 0;

	/* A sweep that failed has left its marks. */
	for (int i = 0; i < cursor->ranges.n; i++)
		cursor->ranges.items[i].swept = 0;
	sweep.ranges.n = 0;
	sweep_unknown(cursor, now);
	begin_sweep_of_unknown(cursor);
	overdue = sweep.ranges.n == 0 ? first_overdue(cursor, now) : NULL;
	if (overdue != NULL)
		begin_sweep_of(overdue);
	fill_visit(&sweep.where, cursor);
	LWLockRelease(&cursor->lock);
	*ranges = sweep.ranges.items;
	return sweep.ranges.n;
}

/* It has looked at one of them, up to that number. */
void
cursor_swept(int i, int64 looked_to)
{
	sweep.looked_to[i] = looked_to;
}

/*
 * It is done.  It found so many free messages, and claims that have run out;
 * passed is all that may be claimed.  This counts if the transaction commits.
 */
void
cursor_end_sweep(const MessageRanges *passed, int found, int ended,
				 TimestampTz now)
{
	sweep.begun = true;
	sweep.passed = *passed;
	sweep.found = found;
	sweep.ended = ended;
	sweep.now = now;
}

/*
 * Take what was swept out of the cursor.  What has a mark was there, and like
 * this, since before the sweep's snapshots were taken, as if it had been
 * reserved.  False: nothing is as it was.
 */
static bool
cut_swept(Cursor *cursor)
{
	bool		found = false;

	for (int i = cursor->ranges.n - 1; i >= 0; i--)
	{
		MessageRange *marked = &cursor->ranges.items[i];
		int64		looked_to;

		if (marked->swept == 0)
			continue;
		Assert(marked->swept <= sweep.ranges.n);
		looked_to = sweep.looked_to[marked->swept - 1];
		marked->swept = 0;
		found = true;
		if (marked->last <= looked_to)
			remove_range(&cursor->ranges, i);
		else
			marked->first = Max(marked->first, looked_to + 1);
	}
	return found;
}

/* The transaction is over.  Reads no catalog. */
void
cursor_publish_sweep(bool commit)
{
	Cursor	   *cursor;
	bool		counts;

	if (!sweep.begun)
		return;
	sweep.begun = false;
	cursor = commit ? find_visited(&sweep.where) : NULL;
	if (cursor == NULL)
		return;
	counts = cut_swept(cursor);
	sweep.disturbed = !counts;
	for (int i = 0; i < sweep.passed.n && counts; i++)
		ranges_add(&cursor->ranges, &sweep.passed.items[i], sweep.now);
	unlock_and_wake(cursor, counts ? sweep.found : 0);
	if (counts)
	{
		database_count(COUNT_EXPIRED_CLAIMS, sweep.ended);
		database_end(true);
	}
}

/* --- Returning --- */

/*
 * A transaction is over, and messages in this range may be claimed when it
 * is due.  Those that no claim was given yet need no range of their own,
 * unless they are doubtful: then they stay so.  None of them expires before
 * expires_at.
 */
void
cursor_return(Oid extension, int32 queue_id, const MessageRange *range,
			  TimestampTz expires_at, TimestampTz now)
{
	Cursor	   *cursor = shmem_find_cursor(extension, queue_id);
	MessageRange below = *range;

	if (cursor == NULL)
	{
		database_lose(database_mine(), range->due);
		return;
	}
	if (!below.doubtful)
		below.last = Min(below.last, cursor->next[below.priority] - 1);
	if (below.first <= below.last)
		ranges_add(&cursor->ranges, &below, now);
	cursor->expires_at = Min(cursor->expires_at, expires_at);
	cursor->new_expires_at = Min(cursor->new_expires_at, expires_at);
	unlock_and_wake(cursor, range->due == DT_NOBEGIN ?
					count_numbers(range) : 0);
}

/*
 * A transaction is over, and a message that is parked until "from" may be
 * claimed when it is "due".
 */
void
cursor_return_parked(Oid extension, int32 queue_id, TimestampTz from,
					 TimestampTz due, bool doubtful)
{
	Cursor	   *cursor = shmem_find_cursor(extension, queue_id);

	if (cursor == NULL)
	{
		database_lose(database_mine(), due);
		return;
	}
	due = Max(due, DT_NOBEGIN + 1);
	parked_add(&cursor->parked, from, due, doubtful);
	unlock_and_wake(cursor, 0);
}

/* --- For the worker, and those who wait --- */

static void
fill_visit(CursorVisit *visit, const Cursor *cursor)
{
	visit->extension = cursor_extension(cursor);
	visit->queue_id = cursor_queue_id(cursor);
	visit->incarnation = cursor->incarnation;
	visit->changes = cursor->changes;
	visit->news = cursor->news;
	visit->examined = cursor->examined == cursor->incarnation;
	visit->expires_at = cursor->expires_at;
}

/*
 * The queue's cursor, locked, if it still is the one that was visited, and has
 * not forgotten what it knew since; else NULL.
 */
static Cursor *
find_visited(const CursorVisit *visit)
{
	Cursor	   *cursor = shmem_find_cursor(visit->extension, visit->queue_id);

	if (cursor == NULL || cursor->incarnation == visit->incarnation)
		return cursor;
	LWLockRelease(&cursor->lock);
	return NULL;
}

/*
 * The worker shall look whether the queue has something to claim, and notify
 * its listeners if so: it was resumed, for example.
 */
void
cursor_examine(Oid extension, int32 queue_id)
{
	Cursor	   *cursor = shmem_find_cursor(extension, queue_id);

	if (cursor == NULL)
	{
		database_lose(database_mine(), DT_NOBEGIN);
		return;
	}
	cursor->incarnation = shmem_next_incarnation();
	cursor->quiet = false;
	unlock_and_wake(cursor, 0);
}

/*
 * Has the worker to see to this queue, whether or not it was found to have
 * nothing to do there?  The queue gets a cursor if it has none.
 */
bool
cursor_is_due(int32 queue_id, TimestampTz now)
{
	Cursor	   *cursor = shmem_get_cursor(queue_id);
	bool		result;

	if (cursor == NULL)
	{
		database_lose(database_mine(), now);
		return true;
	}

	/* It stays due until the worker has seen to it, should that fail. */
	if (cursor->examined != cursor->incarnation)
	{
		cursor->quiet = false;
		set_wake_at(cursor);
	}
	result = cursor_wake_at(cursor) <= now;
	LWLockRelease(&cursor->lock);
	return result;
}

/* The worker begins to see to a queue.  False: there is no room for that. */
bool
cursor_begin_visit(int32 queue_id, CursorVisit *visit)
{
	Cursor	   *cursor = shmem_get_cursor(queue_id);

	if (cursor == NULL)
		return false;
	fill_visit(visit, cursor);
	cursor->new_expires_at = DT_NOEND;
	LWLockRelease(&cursor->lock);
	return true;
}

/*
 * It has looked whether there is something to claim, of which it may be that
 * no listener was notified.
 */
void
cursor_end_visit(const CursorVisit *visit, bool found)
{
	Cursor	   *cursor = find_visited(visit);

	if (cursor == NULL)
		return;
	cursor->examined = visit->incarnation;
	unlock_and_wake(cursor, found ? INT_MAX : 0);
}

/*
 * The worker has nothing to tell about a queue, because it is paused, or has
 * nothing to do there at all, because it does not exist, or not yet.  Unless
 * something has changed since the visit began, that stays so until
 * cursor_is_due() is asked.
 */
void
cursor_silence(const CursorVisit *visit, bool exists)
{
	Cursor	   *cursor = find_visited(visit);

	if (cursor == NULL)
		return;
	if (exists && cursor->changes == visit->changes)
	{
		/* What else is due there stays so. */
		cursor->quiet = true;
		unlock_and_wake(cursor, 0);
		return;
	}
	if (cursor->changes == visit->changes)
	{
		cursor_clear(cursor, GetCurrentTimestamp());
		shmem_clear_flag(cursor, CURSOR_READY);
		pg_atomic_write_u64(&cursor->wake_at, (uint64) DT_NOEND);
	}
	LWLockRelease(&cursor->lock);
}

/*
 * All messages of the queue were looked at, and those that had expired were
 * removed; the next one will at that time.
 */
void
cursor_end_expiry(const CursorVisit *visit, TimestampTz expires_at)
{
	Cursor	   *cursor = find_visited(visit);

	if (cursor == NULL)
		return;
	cursor->expires_at = Min(expires_at, cursor->new_expires_at);
	unlock_and_wake(cursor, 0);
}

/*
 * A queue whose listeners are to be notified: the first one from the cursor
 * with number *from on, which moves on.
 */
bool
cursor_next_news(Oid extension, uint32 *from, CursorVisit *visit)
{
	Cursor	   *cursor;

	while ((cursor = shmem_next_flagged(CURSOR_NEWS, from)) != NULL)
	{
		if (cursor_database(cursor) != MyDatabaseId ||
			cursor_extension(cursor) != extension)
			continue;
		LWLockAcquire(&cursor->lock, LW_EXCLUSIVE);
		fill_visit(visit, cursor);
		LWLockRelease(&cursor->lock);
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
cursor_end_news(const CursorVisit *visit, bool told)
{
	Cursor	   *cursor = find_visited(visit);

	if (cursor == NULL)
		return;
	if (cursor->news == visit->news)
	{
		cursor->told = visit->news;
		shmem_clear_flag(cursor, CURSOR_NEWS);
	}
	if (!told && cursor->examined == cursor->incarnation)
	{
		cursor->incarnation = shmem_next_incarnation();
		cursor->quiet = false;
	}
	unlock_and_wake(cursor, 0);
}

/*
 * From now on this session is among those that are told.  NULL: there is no
 * room for that.
 */
Cursor *
cursor_wait_begin(int32 queue_id)
{
	Cursor	   *cursor = shmem_get_cursor(queue_id);

	Assert(waited_for == NULL);
	if (cursor == NULL)
		return NULL;
	cursor->waiters++;
	LWLockRelease(&cursor->lock);
	waited_for = cursor;

	/* Those that are waited for cannot make room for others. */
	if (shmem_is_crowded(cursor))
	{
		cursor_wait_end(false);
		return NULL;
	}
	return cursor;
}

/*
 * No more; without harm where it was not.  If it may have been told of a
 * message and does not see to it, somebody else shall be.
 */
void
cursor_wait_end(bool pass_on)
{
	Cursor	   *cursor = waited_for;

	if (cursor == NULL)
		return;
	waited_for = NULL;
	ConditionVariableCancelSleep();
	LWLockAcquire(&cursor->lock, LW_EXCLUSIVE);
	cursor->waiters--;
	LWLockRelease(&cursor->lock);
	if (pass_on)
		ConditionVariableSignal(&cursor->arrival);
}

/* When a doubtful range is to be looked at again. */
TimestampTz
cursor_doubt(TimestampTz now)
{
	return now + DOUBT;
}

/*
 * The queue seems to be empty.  Is it time to look at all of it again?  Should
 * that fail, the next time comes RELOOK_MIN later.
 */
bool
cursor_relook(int32 queue_id, TimestampTz now)
{
	Cursor	   *cursor = shmem_find_cursor(queue_table_oid(), queue_id);
	bool		result;

	if (cursor == NULL)
		return false;
	result = now >= cursor->relook_at ||
		cursor->relook_at > now + RELOOK_MAX;	/* the clock stepped back */
	if (result)
		cursor->relook_at = now + RELOOK_MIN;
	LWLockRelease(&cursor->lock);
	return result;
}

/* Forget all that is known of a queue. */
void
cursor_forget(int32 queue_id)
{
	Cursor	   *cursor = shmem_find_cursor(queue_table_oid(), queue_id);

	if (cursor == NULL)
		return;

	/* Also for what has a number that no push was given here. */
	cursor_reset(cursor, GetCurrentTimestamp());
	LWLockRelease(&cursor->lock);
}

/* That has been done, whatever was found; it began then. */
void
cursor_relooked(int32 queue_id, TimestampTz began)
{
	Cursor	   *cursor = shmem_find_cursor(queue_table_oid(), queue_id);
	TimestampTz now = GetCurrentTimestamp();

	if (cursor == NULL)
		return;
	cursor->relook_at = now + Min(Max(RELOOK_PER_WALK * (now - began),
									  RELOOK_MIN), RELOOK_MAX);
	LWLockRelease(&cursor->lock);
}
