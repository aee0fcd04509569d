/*-------------------------------------------------------------------------
 *
 * availability_visit.c
 *	  The worker's visits to queues, its sweeps, and waiting for arrivals.
 *
 * NOTES
 *	  See availability.c for the design.  The worker visits a queue when
 *	  something is due there (wake_at), and whenever its map begins anew,
 *	  because it is not known then whether something is free.  An
 *	  AvailabilityVisit keeps what the map said when the visit began.  The
 *	  worker writes to the map when the visit is over only if that is still the
 *	  same incarnation.  If the worker fails before, the visit stays due.
 *
 *	  A sweep scans a range whose time has come, or of which the map knows
 *	  nothing.  It does not reserve the range, so that claims still get the
 *	  first message that there is; instead it marks it (is_swept).  Claims may
 *	  take the range, or the beginning of it, and nothing is united with it.
 *	  So what is still marked when the sweep ends has been in the map, as it
 *	  is, since before the sweep's snapshot was taken.  That is as good as a
 *	  reservation: what the sweep has seen replaces the range.  In a queue with
 *	  lanes the worker reserves what it scans, and gives what is free to its
 *	  lane at once (lane_scan.c).
 *
 *	  An arrival is the fact that something became free in a queue.  Sessions
 *	  that wait for messages sleep on a condition variable in the map, and
 *	  listeners are notified by the worker.
 *
 * src/map/availability_visit.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "map/availability.h"
#include "map/availability_visit.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "shmem/depth_state.h"
#include "shmem/shmem.h"

/*
 * The map of the queue that this session waits for, or NULL if it does not
 * wait
 */
static AvailabilityMap *waited_for = NULL;

static void fill_visit(AvailabilityVisit *visit, const AvailabilityMap *map);
static AvailabilityMap *find_visited(const AvailabilityVisit *visit);
static void add_unknown_ranges(AvailabilityMap *map, TimestampTz now);

/* --- Visits --- */

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
 * Returns the map that was visited, locked; or NULL if it was given back or has
 * begun anew.
 */
static AvailabilityMap *
find_visited(const AvailabilityVisit *visit)
{
	AvailabilityMap *map = shmem_find_map(visit->extension, visit->queue_id);

	if (map == NULL || map->incarnation == visit->incarnation)
		return map;

	/*
	 * It may have begun anew in this visit, and then no session has woken the
	 * worker for the next one.
	 */
	availability_unlock_and_wake(map, 0);
	return NULL;
}

/*
 * Have the worker visit the queue, and notify its listeners if something is
 * free, because the queue was resumed, for example.
 *
 * With "forget" the map forgets all, and sessions that wait are woken, too: the
 * queue has come from another server, or gone there, or it is not known what a
 * transaction has changed in it.
 */
void
availability_request_visit(Oid extension, int32 queue_id, bool forget)
{
	AvailabilityMap *map = shmem_find_map(extension, queue_id);

	/* The worker finds the queue by visiting all of them. */
	if (map == NULL)
	{
		database_map_missing(database_mine(), DT_NOBEGIN);
		return;
	}
	if (forget)
		availability_reset(map);
	map->incarnation = shmem_next_incarnation();
	pg_atomic_write_u64(&map->first_due, (uint64) DT_NOBEGIN);
	availability_unlock_and_wake(map, forget ? INT_MAX : 0);
}

/*
 * Returns whether the worker has to visit this queue, even if it has not found
 * it before.  The queue gets a map if it has none; *is_borrowed is set if
 * there is no room for that, so that the caller has to give it back.
 */
bool
availability_is_due(int32 queue_id, TimestampTz now, bool *is_borrowed)
{
	AvailabilityMap *map = shmem_find_map(catalog_queue_oid(), queue_id);
	bool		result;

	*is_borrowed = false;

	/*
	 * Where the depths are known, a queue without a map has no messages
	 * (counts.c), and needs none.
	 */
	if (map == NULL && depth_known() != 0)
		return false;
	if (map == NULL)
		map = shmem_get_map(queue_id);
	if (map == NULL)
	{
		map = shmem_borrow_map(queue_id);
		*is_borrowed = map != NULL;
	}

	/* Sessions wait in those that were borrowed before: look again later. */
	if (map == NULL)
	{
		database_map_missing(database_mine(), now);
		return true;
	}

	/* It stays due until the worker has visited it. */
	if (map->examined != map->incarnation)
		availability_set_wake_at(map);
	result = map_wake_at(map) <= now;
	LWLockRelease(&map->lock);
	return result;
}

/* The worker begins a visit.  There may be no room for the queue's map. */
void
availability_begin_visit(int32 queue_id, AvailabilityVisit *visit)
{
	AvailabilityMap *map = shmem_get_map(queue_id);

	if (map == NULL)
		return;
	fill_visit(visit, map);
	pg_atomic_write_u64(&map->first_due, (uint64) DT_NOBEGIN);
	map->new_expires_at = DT_NOEND;
	LWLockRelease(&map->lock);
}

/*
 * The worker has done all that is due in the queue.  If something may be free
 * there, have listeners notified, because it may be that none was; but not if
 * the queue is paused, since it is visited again when it is resumed.
 */
void
availability_end_visit(const AvailabilityVisit *visit, bool paused)
{
	AvailabilityMap *map = find_visited(visit);
	bool		may_be_free;

	if (map == NULL)
		return;
	map->examined = visit->incarnation;
	may_be_free = availability_check_ready(map, GetCurrentTimestamp());
	availability_unlock_and_wake(map, may_be_free && !paused ? INT_MAX : 0);
}

/*
 * The queue does not exist, or is not visible yet, so there is nothing to do.
 * That stays so until availability_is_due() is called.  But if something has
 * changed since the visit began, the worker comes back, because what it has
 * read may be out of date.
 */
void
availability_found_no_queue(const AvailabilityVisit *visit)
{
	AvailabilityMap *map = find_visited(visit);

	if (map == NULL)
		return;
	if (map->changes == visit->changes)
	{
		availability_clear(map);
		shmem_clear_flag(map, MAP_READY);
		pg_atomic_write_u64(&map->wake_at, (uint64) DT_NOEND);
	}
	LWLockRelease(&map->lock);
	ereport(DEBUG2,
			(errmsg_internal("the availability map of queue number %d has forgotten all: the queue does not exist, or is not visible yet",
							 visit->queue_id)));
}

/*
 * The worker has scanned all messages of the queue, and removed those that
 * had expired.  The next one of those that it has met expires at that time.
 */
void
availability_end_expiry(const AvailabilityVisit *visit, TimestampTz expires_at)
{
	AvailabilityMap *map = find_visited(visit);

	if (map == NULL)
		return;
	map->expires_at = Min(expires_at, map->new_expires_at);
	availability_unlock_and_wake(map, 0);
}

/* --- Notifications --- */

/*
 * Find the next queue of the extension whose listeners are to be notified,
 * beginning with map number *from, which moves on.  Returns false if there is
 * no other.
 */
bool
availability_next_arrivals(Oid extension, uint32 *from,
						   AvailabilityVisit *visit)
{
	AvailabilityMap *map;

	while ((map = shmem_next_flagged(MAP_ARRIVALS, NULL, from)) != NULL)
	{
		if (map_database(map) != MyDatabaseId ||
			map_extension(map) != extension)
			continue;
		shmem_lock(&map->lock, LW_EXCLUSIVE);
		fill_visit(visit, map);
		LWLockRelease(&map->lock);

		/* Another queue may have got the map before we locked it. */
		if (visit->extension == extension)
			return true;
	}
	return false;
}

/*
 * The listeners were notified, in a transaction that has committed; or the
 * queue is paused, and a visit finds out if something is free once it is
 * resumed.
 */
void
availability_notified(const AvailabilityVisit *visit)
{
	AvailabilityMap *map = find_visited(visit);

	if (map == NULL)
		return;

	/* Otherwise more has arrived, and the flag stays for that. */
	if (map->arrivals == visit->arrivals)
		shmem_clear_flag(map, MAP_ARRIVALS);
	availability_unlock_and_wake(map, 0);
}

/* --- Sweeps --- */

/*
 * Turn what a map knows nothing of into ranges that are overdue.  Claims scan
 * them as before.
 */
static void
add_unknown_ranges(AvailabilityMap *map, TimestampTz now)
{
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (map->next[p] == 0 && map->end[p] > 0)
		{
			MessageRange range = {0};

			range.priority = p;
			range.last = map->end[p] - 1;
			range.due = DUE_UNKNOWN;
			message_ranges_add(&map->ranges, &range, now);
			map->next[p] = map->end[p];
		}
}

/*
 * Begin to sweep the first range whose time has come, and mark it.  Returns
 * false if there is none.
 */
bool
availability_begin_sweep(int32 queue_id, TimestampTz now, MessageRange *range)
{
	AvailabilityMap *map = shmem_get_map(queue_id);
	MessageRange *first = NULL;

	if (map == NULL)
		return false;
	if (map->has_lanes)
	{
		/*
		 * The worker does not know yet that the queue has groups.  What is
		 * free would have to go to its lane.
		 */
		LWLockRelease(&map->lock);
		return false;
	}
	add_unknown_ranges(map, now);
	for (int i = 0; i < map->ranges.n; i++)
	{
		MessageRange *item = &map->ranges.items[i];

		/* It is what the last sweep has left. */
		item->is_swept = false;
		if (message_range_sweep_at(item) <= now &&
			(first == NULL || message_range_is_before(item, first)))
			first = item;
	}
	if (first != NULL)
	{
		*range = *first;
		first->is_swept = true;
	}
	LWLockRelease(&map->lock);
	return first != NULL;
}

/*
 * The worker has scanned the range that it has marked up to that number, and
 * met nfree free messages; "passed" are all messages that may be free.  This
 * replaces the range.  Returns false, and changes nothing, if claims have taken
 * all of it.
 */
bool
availability_end_sweep(int32 queue_id, int64 scanned_to,
					   const MessageRanges *passed, int nfree,
					   TimestampTz now)
{
	AvailabilityMap *map = shmem_find_map(catalog_queue_oid(), queue_id);
	MessageRange *swept;
	int			i = 0;

	if (map == NULL)
		return false;
	while (i < map->ranges.n && !map->ranges.items[i].is_swept)
		i++;
	if (i == map->ranges.n)
	{
		LWLockRelease(&map->lock);
		return false;
	}

	/* What is left keeps its mark, so that it is not united with "passed". */
	swept = &map->ranges.items[i];
	swept->first = Max(swept->first, scanned_to + 1);
	if (swept->first > swept->last)
		message_ranges_remove(&map->ranges, i);
	for (int j = 0; j < passed->n; j++)
		availability_add_range(map, LANE_OF_OVERFLOW, &passed->items[j], now);
	availability_unlock_and_wake(map, nfree);
	return true;
}

/* --- Queues that are dropped --- */

/*
 * The queue was dropped, or has moved to another server: other queues get its
 * room, and the worker has nothing to do here.
 */
void
availability_drop_queue(Oid extension, int32 queue_id)
{
	AvailabilityMap *map = shmem_find_map(extension, queue_id);

	if (map == NULL)
		return;

	/* If it comes back, its counts in the table include these. */
	memset(map->counts, 0, sizeof(map->counts));
	shmem_clear_flag(map, MAP_COUNTED);
	if (map->waiters > 0)
		ConditionVariableBroadcast(&map->arrival);
	LWLockRelease(&map->lock);
	shmem_give_back_map(extension, queue_id);
}

/* --- Sessions that wait for messages --- */

/*
 * Let this session be woken when something becomes free in the queue.
 * Returns the map, on whose condition variable the session has to sleep; or
 * NULL if there is no room for that.
 */
AvailabilityMap *
availability_begin_wait(int32 queue_id)
{
	AvailabilityMap *map = shmem_get_map(queue_id);

	Assert(waited_for == NULL);
	if (map == NULL)
		return NULL;
	map->waiters++;
	waited_for = map;
	LWLockRelease(&map->lock);
	return map;
}

/*
 * End the wait, if there is one.  With "pass_on" another session is woken,
 * because this one may have been, and will not claim the message.
 */
void
availability_end_wait(bool pass_on)
{
	AvailabilityMap *map = waited_for;

	if (map == NULL)
		return;
	waited_for = NULL;
	ConditionVariableCancelSleep();
	shmem_lock(&map->lock, LW_EXCLUSIVE);
	map->waiters--;
	LWLockRelease(&map->lock);
	if (pass_on)
		ConditionVariableSignal(&map->arrival);
}
