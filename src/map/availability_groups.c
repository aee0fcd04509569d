/*-------------------------------------------------------------------------
 *
 * availability_groups.c
 *	  The availability maps of queues with groups.
 *
 * NOTES
 *	  See availability.c for the design, and for what has no room in lanes.
 *
 *	  1. The first claim, probe or sweep that knows of the groups (has_lanes),
 *	  or of another bound, makes the map forget what it knows.
 *
 *	  2. Groups with a bound.  The lanes have what was delivered and may be
 *	  unfinished, too.  They know all of it (knows_delivered) once the worker
 *	  has read the queue: availability_begin_delivered() says whether it has
 *	  to, and availability_end_delivered() sets the field.  It is cleared with
 *	  the map, and when there is no room for what was delivered.  As long as
 *	  it is not set, claims wait for the worker (availability_is_learning); or
 *	  they read the whole queue, if no worker runs, there is no room, or that
 *	  takes long (whole_scan.c).
 *
 * src/map/availability_groups.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "map/availability.h"
#include "map/availability_groups.h"
#include "map/lanes.h"
#include "map/lanes_table.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"

static AvailabilityMap *find_own_map(int32 queue_id);

/* Returns the map of a queue, locked; or NULL if there is none. */
static AvailabilityMap *
find_own_map(int32 queue_id)
{
	return shmem_find_map(catalog_queue_oid(), queue_id);
}

/*
 * The claims of the queue take lanes in turn, with this bound.  If that is
 * new to the map, which is locked, it forgets what it knows.  Returns whether
 * it has.
 */
bool
availability_set_lanes(AvailabilityMap *map, int bound)
{
	Assert(map_is_locked(map));
	if (map->has_lanes && map->bound == bound)
		return false;

	map->has_lanes = true;
	map->bound = bound;
	availability_clear(map);
	return true;
}

/*
 * Log that availability_set_lanes() has returned true.  To be called after
 * the map was unlocked.
 */
void
availability_log_forgotten(int32 queue_id)
{
	ereport(DEBUG2,
			(errmsg_internal("the availability map of queue number %d has forgotten all: the queue has groups, or another bound of them",
							 queue_id)));
}

/* --- Groups with a bound --- */

/*
 * A transaction has ended which leaves room in a group for so many messages,
 * because those of a range are finished, or (that is NULL) delayed, or because
 * it has unlocked the group.  Or this transaction has made room for its own
 * claims (nmessages is 0): give the lane a turn, even if others have found the
 * group full.
 */
void
availability_make_room(Oid extension, int32 queue_id, LaneId lane,
					   const MessageRange *finished, int64 nmessages)
{
	AvailabilityMap *map = shmem_find_map(extension, queue_id);
	bool		has_turn;

	if (map == NULL)
		return;

	/*
	 * A session that waits may find something even if the lane has nothing,
	 * where claims read the whole queue or the overflow.
	 */
	has_turn = lanes_make_room(map, lane, finished) ||
		!map->knows_delivered || availability_pick_overflow(map) >= 0;
	availability_unlock_and_wake(map, has_turn ? nmessages : 0);
}

/*
 * Returns whether nothing was added to the lane, since this range of it was
 * taken, that comes before the range.
 */
bool
availability_is_first(int32 queue_id, LaneId lane, const MessageRange *range)
{
	AvailabilityMap *map = find_own_map(queue_id);
	const Lane *entry;
	bool		result = true;

	if (map == NULL)
		return true;
	entry = lane_find(map, lane);
	for (int p = range->priority; entry != NULL && p < QUEUE_PRIORITIES; p++)
		if (entry->pieces[p].first != 0 &&
			(p > range->priority ||
			 lane_first_number(&entry->pieces[p]) < range->first))
			result = false;
	LWLockRelease(&map->lock);
	return result;
}

/*
 * Returns whether the lanes tell a claim with this bound how many messages
 * are under live claims.  If not, *learns says whether the worker is about to
 * read the queue for them.
 */
bool
availability_knows_delivered(int32 queue_id, int bound, bool *learns)
{
	AvailabilityMap *map = find_own_map(queue_id);
	bool		result;

	*learns = false;
	if (map == NULL)
		return false;
	if (availability_set_lanes(map, bound))
	{
		/* The worker has to read the queue for its lanes. */
		*learns = availability_is_learning(map);
		availability_unlock_and_wake(map, 0);
		availability_log_forgotten(queue_id);
		return false;
	}
	result = map->knows_delivered;
	*learns = availability_is_learning(map);
	LWLockRelease(&map->lock);
	return result;
}

/*
 * Returns whether the worker is about to read the queue, so that its lanes
 * know what was delivered.  The map is locked.
 */
bool
availability_is_learning(const AvailabilityMap *map)
{
	return map->bound > 0 && !map->knows_delivered && map->learn_at == 0 &&
		database_has_worker();
}

/*
 * The worker begins to read all of the queue, so that its lanes know what was
 * delivered.  Returns the incarnation, or 0 if they know it, or had no room
 * for it and still have none.
 */
uint64
availability_begin_delivered(int32 queue_id, int bound)
{
	AvailabilityMap *map = shmem_get_map(queue_id);
	TimestampTz now = GetCurrentTimestamp();
	uint64		result = 0;
	bool		forgotten;

	if (map == NULL)
		return 0;
	forgotten = availability_set_lanes(map, bound);
	if (!map->knows_delivered && map->learn_at <= now)
	{
		/* There is still no room: the worker would read in vain. */
		if (map->learn_at != 0 && lanes_space(map) == 0)
			availability_lose_delivered(map);
		else
		{
			/* What had no room is to be scanned again, with all else. */
			if (map->learn_at != 0)
				availability_clear(map);
			map->learn_at = 0;
			result = map->incarnation;
		}
	}
	availability_set_wake_at(map);
	LWLockRelease(&map->lock);
	if (forgotten)
		availability_log_forgotten(queue_id);
	if (result != 0)
		ereport(DEBUG2,
				(errmsg_internal("reading all of queue number %d to learn which groups have claimed messages",
								 queue_id)));
	return result;
}

/*
 * The worker has read all that the map knew nothing of: the lanes know what
 * was delivered, unless that has changed, or is not all.  If a prepared
 * transaction may have claimed messages without our knowing of it, they know
 * it only after the map was cleared at the end of that.
 */
void
availability_end_delivered(int32 queue_id, uint64 incarnation,
						   bool is_unknown)
{
	AvailabilityMap *map = find_own_map(queue_id);
	bool		complete;

	if (map == NULL)
		return;
	if (is_unknown && map->incarnation == incarnation)
		map->learn_at = DT_NOEND;

	/* A claim may still have reserved some of what we know nothing of. */
	complete = map->incarnation == incarnation && map->learn_at == 0 &&
		map->open == 0;
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		complete = complete && map->next[p] >= map->end[p];

	for (int i = 0; i < map->ranges.n; i++)
		complete = complete && map->ranges.items[i].due != DUE_UNKNOWN;
	map->knows_delivered = complete;

	/* Visit again: the claim gives what it has reserved to the lanes soon. */
	if (map->open > 0)
		map->incarnation = shmem_next_incarnation();
	availability_unlock_and_wake(map, 0);
}

/*
 * Messages of groups with a bound in these ranges were delivered, and may be
 * unfinished.
 */
void
availability_learn_delivered(int32 queue_id, const LaneRange *ranges, int n)
{
	AvailabilityMap *map = shmem_get_map(queue_id);
	bool		lost = false;

	if (map == NULL)
		return;
	for (int i = 0; i < n; i++)
		lost |= !lanes_add_delivered(map, ranges[i].lane, &ranges[i].range);

	/* The worker has to know when to read the queue again (learn_at). */
	if (lost)
	{
		availability_lose_delivered(map);
		availability_unlock_and_wake(map, 0);
	}
	else
		LWLockRelease(&map->lock);
}

/*
 * List what was delivered of a group and may be unfinished.  Returns how many
 * ranges there are, or max + 1 if more than max; or -1 if the lanes do not
 * know that.
 */
int
availability_list_delivered(int32 queue_id, LaneId lane, MessageRange *ranges,
							int max)
{
	AvailabilityMap *map = find_own_map(queue_id);
	const Lane *entry;
	int			n = -1;

	if (map == NULL)
		return -1;
	if (map->knows_delivered)
	{
		entry = lane_find(map, lane);
		n = entry == NULL ? 0 :
			lane_list_pieces(&entry->delivered, ranges, max);
	}
	LWLockRelease(&map->lock);
	return n;
}

/*
 * A claim that has locked the group has read the messages in the old ranges,
 * and has found these to be unfinished.
 */
void
availability_set_delivered(int32 queue_id, LaneId lane,
						   const MessageRange *old, int nold,
						   const LaneRange *found, int nfound)
{
	AvailabilityMap *map = find_own_map(queue_id);

	if (map == NULL)
		return;
	if (lanes_set_delivered(map, lane, old, nold, found, nfound))
		LWLockRelease(&map->lock);
	else
	{
		availability_lose_delivered(map);
		availability_unlock_and_wake(map, 0);
	}
}

/* A claim or a probe is done with a lane; see lanes_end(). */
void
availability_end_lane(int32 queue_id, LaneId lane, uint32 changes,
					  bool is_full, bool is_left, TimestampTz not_before)
{
	AvailabilityMap *map = find_own_map(queue_id);
	bool		has_turn;

	if (map == NULL)
		return;

	/*
	 * Sessions that were woken may have passed over the group because it was
	 * locked, so we wake one if there may be something in it.  If there is
	 * not, they have missed nothing; and woken again, they would find nothing
	 * and wake others in turn, for ever.
	 */
	has_turn = lanes_end(map, lane, changes, is_full, is_left, not_before);
	availability_unlock_and_wake(map, has_turn ? 1 : 0);
}

/* Give a turn to the lanes that have waited for this time. */
void
availability_wake_lanes(int32 queue_id)
{
	AvailabilityMap *map = find_own_map(queue_id);
	int			n;

	if (map == NULL)
		return;
	n = lanes_wake(map, GetCurrentTimestamp());
	if (n > 0)
		availability_unlock_and_wake(map, n);
	else
		LWLockRelease(&map->lock);
}
