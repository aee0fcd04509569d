/*-------------------------------------------------------------------------
 *
 * availability.c
 *	  Availability maps: in which ranges of a queue something may be free.
 *
 * NOTES
 *	  A claim that scanned the index of a queue from its start would meet the
 *	  entries of all messages that are claimed, and of all that are gone while
 *	  a snapshot may still see them.  The availability map of the queue, in
 *	  shared memory, leads it to the ranges of message numbers in which
 *	  something may be free; and two claims are led to different ranges.
 *
 *	  1. What a map knows.  For each priority, "next": all numbers below were
 *	  once given to a claim to scan; and "end": no push was given a number
 *	  from there on.  So what lies between the two was never scanned.  Below
 *	  "next" the map has a few ranges in which something is free, at once or
 *	  at a later time (when a claim runs out).  All other numbers below "next"
 *	  are known to have nothing to claim.  Of the delayed messages the map
 *	  knows when the next one is due, and a time from which on the others are
 *	  delayed, so that a scan by time can begin behind the index entries that
 *	  earlier ones have left.  A queue with groups is different; see 12.
 *
 *	  2. Reserve, then take the snapshot, then scan.  A claim takes a range
 *	  out of the map first (availability_reserve).  Only then it takes its
 *	  snapshot and scans the range.  Then it gives back what it has not
 *	  scanned, and adds a range for each message that it passed and that may
 *	  be free later (availability_give_back).  Until then it waits for
 *	  nothing, so tables must be opened and locked before.  It closes the
 *	  reservation (availability_close) when it has marked what it has chosen.
 *
 *	  3. Return after the transaction has left the proc array.  What a
 *	  transaction does to a message is recorded (pending.c).  A callback after
 *	  commit or abort, when other sessions see the transaction as ended,
 *	  returns the ranges of the messages that may be free then
 *	  (availability_return).
 *
 *	  Together, 2 and 3 strand no message.  If a scan did not see a row as it
 *	  is now, the transaction that changed the row ended after the scan's
 *	  snapshot was taken, and so after the reservation.  Its callback runs
 *	  later still, finds the range reserved, or "next" above the number, and
 *	  returns it.  A range that is returned without need costs one scan of it.
 *
 *	  4. Correctness never depends on a map.  Rows say what is free; the map
 *	  only says where to scan.  It may be cleared or absent at any time: a map
 *	  that is made anew knows nothing, and the next claim scans from the start.
 *
 *	  5. Without a callback.  None runs at COMMIT PREPARED, nor as a transaction
 *	  ends that has locked a row with plain SQL.  What a prepared transaction
 *	  has changed is in a list, from which the worker returns it (prepared.c).
 *	  A message that was locked is due a second later
 *	  (availability_recheck_at), and scanned before a claim answers that
 *	  nothing is free.  Rows that plain SQL has written are noticed by a
 *	  trigger, or, if it was disabled, by a call of queue_data.forget().
 *
 *	  6. A map has room for a few ranges.  When there are too many, the two
 *	  whose union costs least are united (message_ranges.c).
 *
 *	  7. Waiting.  A claim that finds nothing while another session has a
 *	  reservation open waits until that is closed, and tries again
 *	  (availability_wait_for_close).
 *
 *	  8. Probes, which only ask whether something is free, scan the same
 *	  ranges as a claim would, but do not reserve them: otherwise a concurrent
 *	  claim would skip them.  For the same reason they report nothing to the
 *	  map (availability_view).  Those of groups with a bound take lanes, as
 *	  claims do, and give them back (lane_scan.c).
 *
 *	  9. Sweeps.  The worker scans ranges whose time has come, and all that a
 *	  new map knows nothing of, to find out what has become free.  It does not
 *	  reserve them either; see availability_visit.c.  In a queue with lanes it
 *	  does, as claims do.
 *
 *	  10. Numbers for pushes come from the map, which takes a block of the
 *	  sequence at a time, so that the messages of a queue lie close together
 *	  in the index.  A push raises "end" before it inserts.  A new map does
 *	  not know where the numbers end.  Claims then scan to the last number
 *	  possible, until the first push takes a block: all numbers used before
 *	  are lower.
 *
 *	  11. Waking.  A map knows when the worker has to visit the queue: when
 *	  the first range, delayed message or lifetime is due (wake_at).  A
 *	  session that makes something free, or due before the worker's sleep
 *	  ends, wakes the worker (database_state.c).  It also wakes waiting
 *	  sessions (wakeup.c), one for each message that became free.
 *
 *	  12. Groups.  In a queue with groups, what is free at once is in lanes
 *	  (lanes.c), and the map only says when something will be, and of what
 *	  nothing is known.  What is returned as free at once goes to the lane of
 *	  its message.  A claim first gives free messages that are due to their
 *	  lanes (availability_give_to_lanes); then it reserves ranges of the lanes
 *	  in turn (reserve_of_groups).
 *
 *	  What finds no room in its lane stays in the map, as free at once: the
 *	  overflow.  To keep the order in each group, what comes behind the
 *	  overflow (is_behind_overflow) stays there too.  So the lanes come to an
 *	  end, and leave room.  A claim that finds room reserves the first part of
 *	  the overflow, scans as many messages as there is room for lanes, and
 *	  gives them to their lanes.
 *
 *	  13. Locking.  The lock of a map protects all of it, and its lanes.  It
 *	  is held for the calculation only, never during a scan.  The lock of the
 *	  table of maps (shmem_maps.c) is taken before it, that of all lanes
 *	  (lanes_table.c) after it, and no other lock of queues while it is held.
 *	  The key, wake_at and first_due are also read without the lock; see
 *	  AvailabilityMap.
 *
 * src/map/availability.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/numbers.h"
#include "catalog/relations.h"
#include "map/availability.h"
#include "map/lanes.h"
#include "map/lanes_table.h"
#include "map/map_check.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "shmem/segment_state.h"
#include "shmem/shmem.h"
#include "util/xact.h"

#define RECHECK_PAUSE		USECS_PER_SEC	/* between scans of a message that
											 * is locked */

#define LANES_PAUSE			(USECS_PER_SEC / 50)	/* between visits to wake
													 * lanes */

#define LEARN_PAUSE			(10 * USECS_PER_SEC)	/* until the worker reads
													 * a queue again */

static void lower_first_due(AvailabilityMap *map, TimestampTz due);
static void lower_expiry(AvailabilityMap *map, TimestampTz expires_at);
static void raise_end(AvailabilityMap *map, int priority, int64 end);
static void know_numbers(AvailabilityMap *map, int64 block);
static void add_delivered(AvailabilityMap *map, LaneId lane,
						  const MessageRange *range);
static bool is_behind_overflow(const AvailabilityMap *map,
							   const MessageRange *range);
static int64 take_from_block(AvailabilityMap *map, int64 block,
							 uint32 switches, int wanted, int *n);

/* --- Forgetting what a map knows --- */

/*
 * Forget what a map knows, but not the numbers of pushes.  The caller has
 * locked the map.
 */
void
availability_clear(AvailabilityMap *map)
{
	Assert(map_is_locked(map));
	lanes_forget(map);
	memset(map->next, 0, sizeof(map->next));
	map->knows_delivered = false;

	/* It was cleared because a prepared transaction has ended. */
	if (map->learn_at == DT_NOEND)
		map->learn_at = 0;
	map->ranges.n = 0;
	availability_close_overflow(map);

	/* Any delayed message may be due. */
	map->delayed.due = map->delayed.from = DT_NOBEGIN;
	map->expires_at = DT_NOBEGIN;
	map->incarnation = shmem_next_incarnation();
	map->changes++;
	shmem_set_flag(map, MAP_READY);
	availability_set_wake_at(map);
}

/*
 * Forget all that a map knows, also which numbers were given to pushes.  The
 * caller has locked the map.
 */
void
availability_reset(AvailabilityMap *map)
{
	map->knows_numbers = false;
	map->block_next = map->block_end = 0;
	for (int i = 0; i < QUEUE_PRIORITIES; i++)
		map->end[i] = NUMBERS_END;
	availability_clear(map);
}

/* --- Waking --- */

/*
 * Set the time when the worker has to visit the queue.  To be called when
 * anything has changed in the map, which is locked.
 */
void
availability_set_wake_at(AvailabilityMap *map)
{
	TimestampTz at = Min(map->expires_at, map->delayed.due);

	Assert(map_is_locked(map));

	/* Many lanes may wait: wake them together, soon after the first one. */
	if (map->waiting_lanes != 0)
		at = Min(at, (lane_at(map->waiting_lanes)->not_before /
					  LANES_PAUSE + 1) * LANES_PAUSE);

	/* Where there are lanes, what is free at once has no room in them. */
	for (int i = 0; i < map->ranges.n; i++)
		if (!map->has_lanes || map->ranges.items[i].due != DT_NOBEGIN)
			at = Min(at, message_range_sweep_at(&map->ranges.items[i]));

	/*
	 * The lanes may have room for what was delivered by then; or claims wait
	 * for the worker, which has not read all of the queue yet (learn_at is
	 * 0).
	 */
	if (map->bound > 0 && !map->knows_delivered)
		at = Min(at, map->learn_at);

	/* The worker has to visit it, since it has begun anew. */
	if (map->examined != map->incarnation)
		at = DT_NOBEGIN;
	pg_atomic_write_u64(&map->wake_at,
						(uint64) Max(at, DT_NOBEGIN + 1));
}

/*
 * Unlock a map that has changed, and wake the worker if it sleeps too long.
 * If messages became free ("arrivals": as many at most), also have listeners
 * notified, and wake as many waiting sessions.
 */
void
availability_unlock_and_wake(AvailabilityMap *map, int64 arrivals)
{
	TimestampTz wake_at;
	int			waiters = 0;

	map->changes++;
	availability_set_wake_at(map);
	wake_at = map_wake_at(map);
	if (arrivals > 0)
	{
		map->arrivals++;
		shmem_set_flag(map, MAP_ARRIVALS);
		shmem_set_flag(map, MAP_READY);
		waiters = (int) Min(map->waiters, arrivals);
	}
	map_check(map);
	LWLockRelease(&map->lock);
	for (; waiters > 0; waiters--)
		ConditionVariableSignal(&map->arrival);
	database_wake(wake_at, arrivals > 0);
}

/*
 * Unlock a map to which something was returned, or of which a reservation was
 * closed, and wake the sessions that wait for that.
 */
void
availability_unlock_returned(AvailabilityMap *map)
{
	bool		waiting = map->waiting;

	map->waiting = false;
	availability_unlock_and_wake(map, 0);
	if (waiting)
		ConditionVariableBroadcast(shmem_close_condition(map));
}

/*
 * Returns whether something may be free now; if not, clears the flag of that.
 * The map is locked.
 */
bool
availability_check_ready(AvailabilityMap *map, TimestampTz now)
{
	Assert(map_is_locked(map));

	/* What is reserved may be free, and is not in the map. */
	if (map->open > 0 || map->delayed.due <= now || map->nlanes > 0)
		return true;
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (map->next[p] < map->end[p])
			return true;
	for (int i = 0; i < map->ranges.n; i++)
		if (map->ranges.items[i].due <= now)
			return true;
	shmem_clear_flag(map, MAP_READY);
	return false;
}

/* --- Numbers for pushes --- */

/*
 * The caller has taken this block from the sequence after the map had
 * forgotten all numbers, so no push was given a number from there on.
 */
static void
know_numbers(AvailabilityMap *map, int64 block)
{
	map->knows_numbers = true;
	map->block_next = block;
	map->block_end = block + MESSAGE_ID_BLOCK;
	for (int i = 0; i < QUEUE_PRIORITIES; i++)
	{
		/* A claim may have scanned to the last number possible. */
		map->next[i] = Min(map->next[i], block);
		map->end[i] = block;
	}
}

/*
 * A queue is being created, so its map knows all of it: there are no
 * messages.  If that is rolled back, the queue's id is never used again.
 */
void
availability_begin_queue(int32 queue_id)
{
	int64		block;
	AvailabilityMap *map;

	block = numbers_next_block();
	map = shmem_get_map(queue_id);
	if (map == NULL)
		return;
	know_numbers(map, block);
	for (int i = 0; i < QUEUE_PRIORITIES; i++)
		map->next[i] = block;
	map->switches = segment_switches();
	map->delayed = NOTHING_DELAYED;
	map->expires_at = DT_NOEND;

	/* The worker need not visit the queue before something is due. */
	map->examined = map->incarnation;
	pg_atomic_write_u64(&map->first_due, (uint64) DT_NOBEGIN);
	shmem_clear_flag(map, MAP_READY);
	availability_set_wake_at(map);
	LWLockRelease(&map->lock);
}

/*
 * Take numbers for new messages of these priorities (a bit for each).
 * Returns the first of *n numbers, at least one and at most "wanted".
 */
int64
availability_take_numbers(int32 queue_id, int priorities, int wanted, int *n)
{
	int64		block = 0;		/* a new one; 0: none was taken */
	uint64		taken_for = 0;	/* incarnation for which it was taken */
	uint32		switches = segment_switches();

	Assert(!xact_has_ended);
	for (;;)
	{
		AvailabilityMap *map = shmem_get_map(queue_id);
		int64		first;

		/*
		 * There is no room for a map.  One that is made later knows nothing,
		 * and a push that it gives numbers to takes a later block: so claims
		 * scan ours.
		 */
		if (map == NULL && block != 0)
		{
			*n = Min(wanted, MESSAGE_ID_BLOCK);
			return block;
		}
		if (map == NULL)
		{
			block = numbers_next_block();
			continue;
		}

		/*
		 * After a switch of the ring, leave out the rest of the block: newer
		 * segments have higher numbers.
		 */
		if (block == 0 && map->switches != switches)
			map->block_next = map->block_end;

		/*
		 * We need a block; or a new one, because know_numbers() must not get
		 * one that was taken before the map was made or reset.  Taking a
		 * block may write WAL, which we do not do while we hold the lock.
		 */
		if ((block == 0 && map->block_next == map->block_end) ||
			(!map->knows_numbers && map->incarnation != taken_for))
		{
			taken_for = map->incarnation;
			LWLockRelease(&map->lock);
			block = numbers_next_block();
			continue;
		}
		if (!map->knows_numbers)
			know_numbers(map, block);
		first = take_from_block(map, block, switches, wanted, n);
		map->numbers_at = GetCurrentStatementStartTimestamp();
		for (int i = 0; i < QUEUE_PRIORITIES; i++)
			if (priorities & (1 << i))
				raise_end(map, i, first + *n);

		/* Already now, because the same transaction may claim. */
		shmem_set_flag(map, MAP_READY);
		LWLockRelease(&map->lock);
		return first;
	}
}

/* A push is being given numbers of this priority below "end". */
static void
raise_end(AvailabilityMap *map, int priority, int64 end)
{
	bool		scanned = map->next[priority] >= map->end[priority];

	Assert(map_is_locked(map) && map->knows_numbers);
	map->end[priority] = Max(map->end[priority], end);

	/*
	 * Where there are lanes, new numbers need no scan, because the push
	 * returns its messages to their lanes.  But "next" must not pass numbers
	 * of which nothing is known, as in a map that was made or cleared.
	 */
	if (map->has_lanes && scanned)
		map->next[priority] = map->end[priority];
}

/*
 * Take *n numbers, at most "wanted": from the block that the caller has
 * taken, if it is not 0, or else from the map's.
 */
static int64
take_from_block(AvailabilityMap *map, int64 block, uint32 switches,
				int wanted, int *n)
{
	int64		first;

	/*
	 * A block that another session took after the caller's and left in the
	 * map stays there, so that later pushes get higher numbers.
	 */
	if (block >= map->block_end)
	{
		map->block_next = block;
		map->block_end = block + MESSAGE_ID_BLOCK;
		map->switches = switches;
	}

	/* The map has a later block: we use ours, and leave out its rest. */
	if (block != 0 && block != map->block_next)
	{
		*n = Min(wanted, MESSAGE_ID_BLOCK);
		return block;
	}
	Assert(map->block_next < map->block_end);
	first = map->block_next;
	*n = (int) Min(wanted, map->block_end - first);
	map->block_next += *n;
	return first;
}

/* --- Returning what a transaction has changed --- */

/*
 * Something will be due at that time in a queue whose map is locked: the
 * worker must not put off its first visit for longer.
 */
static void
lower_first_due(AvailabilityMap *map, TimestampTz due)
{
	if (due < map_first_due(map))
		pg_atomic_write_u64(&map->first_due, (uint64) due);
}

/*
 * A recount has met a message that is due at that time.  That matters only
 * until the worker has visited the queue for the first time.
 */
void
availability_tell_due(int32 queue_id, TimestampTz due)
{
	AvailabilityMap *map = shmem_has_room() ? shmem_get_map(queue_id) :
	shmem_find_map(catalog_queue_oid(), queue_id);

	if (map == NULL)
		return;
	lower_first_due(map, due);
	LWLockRelease(&map->lock);
	database_wake(due, false);
}

/* A message that is returned expires at that time or later. */
static void
lower_expiry(AvailabilityMap *map, TimestampTz expires_at)
{
	map->expires_at = Min(map->expires_at, expires_at);
	map->new_expires_at = Min(map->new_expires_at, expires_at);
}

/*
 * A transaction has ended, and messages in this range may be free when it is
 * due.  No message in the range expires before expires_at.
 */
void
availability_return(Oid extension, int32 queue_id, LaneId lane,
					const MessageRange *range, TimestampTz expires_at,
					TimestampTz now)
{
	AvailabilityMap *map = shmem_find_map(extension, queue_id);
	MessageRange below = *range;

	/*
	 * A map that is made from now on knows nothing, so claims scan the range.
	 * But the worker has to know when it is due.
	 */
	if (map == NULL)
	{
		database_map_missing(database_mine(), range->due);
		return;
	}

	/*
	 * Claims will scan what is not below "next" anyway, so it needs no range
	 * of its own.  But where there are lanes, messages enter them at once.
	 */
	if (!map->has_lanes)
		below.last = Min(below.last, map->next[below.priority] - 1);
	if (below.first <= below.last)
		availability_add_range(map, lane, &below, now);
	lower_expiry(map, expires_at);

	/* What is free at once is not left to the worker's first visit. */
	if (range->due != DT_NOBEGIN)
		lower_first_due(map, range->due);
	availability_unlock_and_wake(map, range->due == DT_NOBEGIN ?
								 range->last - range->first + 1 : 0);
}

/*
 * A transaction has ended, and the worker may have to move a delayed message
 * when it is due.  It does not expire before expires_at.
 */
void
availability_return_delayed(Oid extension, int32 queue_id, TimestampTz due,
							TimestampTz expires_at)
{
	AvailabilityMap *map = shmem_find_map(extension, queue_id);

	/* The worker has to know when it is due. */
	if (map == NULL)
	{
		database_map_missing(database_mine(), due);
		return;
	}
	availability_add_delayed(map, due, due);
	lower_expiry(map, expires_at);
	lower_first_due(map, due);
	availability_unlock_and_wake(map, 0);
}

/* Add to what a map, which is locked, knows of delayed messages. */
void
availability_add_delayed(AvailabilityMap *map, TimestampTz from,
						 TimestampTz due)
{
	DelayedInfo *delayed = &map->delayed;

	Assert(map_is_locked(map));
	delayed->from = Min(delayed->from, from);
	delayed->due = Min(delayed->due, Max(due, DUE_UNKNOWN));
}

/*
 * Returns when to scan a message again that another transaction has locked:
 * no callback may report the end of that.
 */
TimestampTz
availability_recheck_at(TimestampTz now)
{
	return now + RECHECK_PAUSE;
}

/* Add a range of a lane to a map, which is locked. */
void
availability_add_range(AvailabilityMap *map, LaneId lane,
					   const MessageRange *range, TimestampTz now)
{
	Assert(map_is_locked(map) && range->first <= range->last);
	if (!map->has_lanes)
		message_ranges_add(&map->ranges, range, now);
	else if (range->due == DT_NOBEGIN)
	{
		/*
		 * It enters its lane, unless it may be of several.  If it comes
		 * behind the overflow, it enters only between what the lane has, or
		 * it would overtake messages of its group.
		 */
		if (lane_equals(lane, LANE_OF_OVERFLOW) ||
			!lanes_add(map, lane, range, is_behind_overflow(map, range)))
			availability_add_overflow(map, range, now);
	}
	else
	{
		/*
		 * What is due later is or may be under a claim.  The lanes of groups
		 * with a bound have to know it, or the next claim would count too
		 * few.
		 */
		add_delivered(map, lane, range);
		message_ranges_add(&map->ranges, range, now);
	}
}

/* Something in the range may be under a claim.  The map is locked. */
static void
add_delivered(AvailabilityMap *map, LaneId lane, const MessageRange *range)
{
	if (map->bound > 0 && lane_is_group(lane) &&
		!lanes_add_delivered(map, lane, range))
		availability_lose_delivered(map);
}

/*
 * A transaction is prepared that has changed messages in this range.  When it
 * has ended, they may count toward the bound of their group before the worker
 * returns them.
 */
void
availability_prepare(Oid extension, int32 queue_id, LaneId lane,
					 const MessageRange *range)
{
	AvailabilityMap *map = shmem_find_map(extension, queue_id);

	if (map == NULL)
		return;
	add_delivered(map, lane, range);
	availability_unlock_and_wake(map, 0);
}

/*
 * There was no room in the lanes for something that was delivered: claims
 * read the whole queue, until the worker has read it when there is room.  The
 * map is locked.
 */
void
availability_lose_delivered(AvailabilityMap *map)
{
	Assert(map_is_locked(map) && map->has_lanes);
	map->knows_delivered = false;
	map->learn_at = GetCurrentTimestamp() + LEARN_PAUSE;
}

/* --- What has no room in lanes --- */

/*
 * Returns whether the range comes behind overflow of the same or a higher
 * priority.
 */
static bool
is_behind_overflow(const AvailabilityMap *map, const MessageRange *range)
{
	for (int p = range->priority; p < QUEUE_PRIORITIES; p++)
		if (map->overflow[p] <= range->first)
			return true;
	return false;
}

/* Something is free in the range, and there is no room for it in its lane. */
void
availability_add_overflow(AvailabilityMap *map, const MessageRange *range,
						  TimestampTz now)
{
	Assert(map_is_locked(map) && map->has_lanes && range->due == DT_NOBEGIN);
	map->overflow[range->priority] = Min(map->overflow[range->priority],
										 range->first);
	message_ranges_add(&map->ranges, range, now);
}

/* Returns the index of the first range that had no room, or -1 if none is. */
int
availability_pick_overflow(const AvailabilityMap *map)
{
	int			best = -1;

	for (int i = 0; i < map->ranges.n; i++)
		if (map->ranges.items[i].due == DT_NOBEGIN &&
			(best < 0 || message_range_is_before(&map->ranges.items[i],
												 &map->ranges.items[best])))
			best = i;
	return best;
}

/*
 * A reservation of overflow was closed, or all was forgotten: find out where
 * the overflow begins now.
 */
void
availability_close_overflow(AvailabilityMap *map)
{
	Assert(map_is_locked(map));

	/* Another session has reserved some, which is not in the ranges. */
	if (map->open_overflow > 0)
		return;
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		map->overflow[p] = NUMBERS_END;
	for (int i = 0; i < map->ranges.n && map->has_lanes; i++)
	{
		const MessageRange *range = &map->ranges.items[i];

		if (range->due == DT_NOBEGIN)
			map->overflow[range->priority] =
				Min(map->overflow[range->priority], range->first);
	}
}
