/*-------------------------------------------------------------------------
 *
 * availability.h
 *	  Availability maps: in which ranges of a queue something may be free.
 *
 * src/map/availability.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_AVAILABILITY_H
#define QUEUE_AVAILABILITY_H

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"

#include "catalog/message_id.h"
#include "catalog/tables.h"
#include "map/message_ranges.h"
#include "shmem/depth_state.h"
#include "shmem/shmem_table.h"
#include "util/limits.h"

/* What is known of the delayed messages of a queue */
typedef struct DelayedInfo
{
	TimestampTz due;			/* when the worker has to move some, or
								 * DT_NOEND */
	TimestampTz from;			/* all of them are delayed until then or later */
} DelayedInfo;

/*
 * The availability map of a queue, in shared memory.
 *
 * Its lock protects all other fields.  The key is changed only while the lock
 * of the table of maps is held as well (shmem_maps.c).
 *
 * The key, wake_at and first_due are atomic because they are also read
 * without the lock, to pass over maps that are of no interest.  What such a
 * read returns may be out of date at once, and the parts of a key may be
 * those of two queues.  So a session that finds its key locks the map and
 * compares again.  A session that misses a key which is being written makes
 * the map, or finds it then, under the lock of the table.  When wake_at is
 * lowered, database_wake() makes the worker read that of all maps afterwards.
 */
typedef struct AvailabilityMap
{
	TableEntry	entry;			/* protected by the lock of the table */
	EntryNumber number;			/* in the table; never changes */
	LWLock		lock;

	/* The key */
	pg_atomic_uint32 database;	/* InvalidOid if the map is not in use */
	pg_atomic_uint32 extension; /* OID of the table queue_data.queue */
	pg_atomic_uint32 queue_id;

	/* The map as a whole */
	EntryNumber owner;			/* of the queue; place_owners.c */
	uint64		incarnation;	/* changes when the map is made or cleared, or
								 * a visit is requested; unique */
	uint32		changes;		/* counts changes that matter to the worker */

	/* Reservations; availability_reserve.c */
	int			open;			/* how many are open */
	bool		waiting;		/* a session waits until one is closed */

	/* Numbers for pushes; availability.c */
	bool		knows_numbers;	/* block_next, block_end, end are known */
	int64		block_next;		/* the rest of the block of numbers */
	int64		block_end;
	uint32		switches;		/* of the ring, when the block was taken */
	TimestampTz numbers_at;		/* when a push was given numbers last */

	/* In which ranges something may be free */
	int64		next[QUEUE_PRIORITIES]; /* all numbers below were reserved
										 * once */
	int64		end[QUEUE_PRIORITIES];	/* no push was given a number from
										 * here on */
	MessageRanges ranges;		/* below "next", unless there are lanes */
	DelayedInfo delayed;

	/* For the worker; availability_visit.c */
	uint64		examined;		/* the incarnation in which it has visited the
								 * queue, and had listeners notified if
								 * something may be free, unless it is paused */
	TimestampTz expires_at;		/* no message expires before */
	TimestampTz new_expires_at; /* the same, of those returned since the
								 * worker's visit began */
	pg_atomic_uint64 wake_at;	/* when the worker has to visit the queue */
	pg_atomic_uint64 first_due; /* see map_first_due() */

	/* Arrivals: messages that became free */
	uint32		arrivals;		/* how often some did */
	int			waiters;		/* sessions that wait for messages */
	ConditionVariable arrival;	/* what they sleep on */

	int64		counts[JOB_COUNTERS];	/* counts.c: not yet written to the
										 * table */

	/* counts.c: numbers of messages */
	uint64		depth_generation;	/* in which they were counted */
	int64		depths[DEPTHS];

	/*
	 * Groups.  Then what is free is in lanes (lanes.c), and the ranges say
	 * when something will be.
	 */
	bool		has_lanes;
	int			bound;			/* of each group; -1 if they have none */
	bool		knows_delivered;	/* the lanes have all that was delivered
									 * of groups with a bound, and may be
									 * unfinished */
	TimestampTz learn_at;		/* after there was no room for that: when the
								 * worker may read all of the queue again;
								 * else 0 */
	int64		overflow[QUEUE_PRIORITIES]; /* what had no room in lanes is
											 * not below */
	int			open_overflow;	/* reservations of it that are open */
	EntryNumber first_lane;		/* in the ring of turns, or 0 */
	EntryNumber first_resting;	/* in the ring of the lanes that rest, or 0 */
	EntryNumber waiting_lanes;	/* the root of the heap of those that wait, or
								 * 0 */
	int			nlanes;			/* in the ring of turns */
	uint32		lane_changes;	/* counts changes of lanes */
} AvailabilityMap;

/* Returns whether this session has locked the map, and may change it. */
static inline bool
map_is_locked(const AvailabilityMap *map)
{
	return LWLockHeldByMeInMode(unconstify(LWLock *, &map->lock),
								LW_EXCLUSIVE);
}

static inline Oid
map_database(const AvailabilityMap *map)
{
	return (Oid) pg_atomic_read_u32(unconstify(pg_atomic_uint32 *,
											   &map->database));
}

static inline Oid
map_extension(const AvailabilityMap *map)
{
	return (Oid) pg_atomic_read_u32(unconstify(pg_atomic_uint32 *,
											   &map->extension));
}

static inline int32
map_queue_id(const AvailabilityMap *map)
{
	return (int32) pg_atomic_read_u32(unconstify(pg_atomic_uint32 *,
												 &map->queue_id));
}

static inline TimestampTz
map_wake_at(const AvailabilityMap *map)
{
	return (TimestampTz) pg_atomic_read_u64(unconstify(pg_atomic_uint64 *,
													   &map->wake_at));
}

/*
 * Returns how long the worker may put off its first visit to the queue
 * (worker_due.c): until something is known to be due there, or DT_NOEND.
 * After that visit it is DT_NOBEGIN.
 */
static inline TimestampTz
map_first_due(const AvailabilityMap *map)
{
	return (TimestampTz) pg_atomic_read_u64(unconstify(pg_atomic_uint64 *,
													   &map->first_due));
}

/* Nothing is delayed */
#define NOTHING_DELAYED		((DelayedInfo) {DT_NOEND, DT_NOEND})

/*
 * When a range is due of which nothing is known: it counts as overdue, but
 * not as free at once.
 */
#define DUE_UNKNOWN			(DT_NOBEGIN + 1)

/* Behind all message numbers */
#define NUMBERS_END			(PG_INT64_MAX >> MESSAGE_ID_LOW_BITS)

/* Forgetting what a map knows */
extern void availability_clear(AvailabilityMap *map);
extern void availability_reset(AvailabilityMap *map);

/* Numbers for pushes */
extern void availability_begin_queue(int32 queue_id);
extern int64 availability_take_numbers(int32 queue_id, int priorities,
									   int wanted, int *n);

/* Returning what a transaction has changed, after its end */
extern void availability_return(Oid extension, int32 queue_id, LaneId lane,
								const MessageRange *range,
								TimestampTz expires_at, TimestampTz now);
extern void availability_return_delayed(Oid extension, int32 queue_id,
										TimestampTz due,
										TimestampTz expires_at);
extern void availability_prepare(Oid extension, int32 queue_id, LaneId lane,
								 const MessageRange *range);
extern TimestampTz availability_recheck_at(TimestampTz now);
extern void availability_tell_due(int32 queue_id, TimestampTz due);

/* Inside src/map, with the map locked */
extern void availability_add_range(AvailabilityMap *map, LaneId lane,
								   const MessageRange *range,
								   TimestampTz now);
extern void availability_add_overflow(AvailabilityMap *map,
									  const MessageRange *range,
									  TimestampTz now);
extern int	availability_pick_overflow(const AvailabilityMap *map);
extern void availability_close_overflow(AvailabilityMap *map);
extern void availability_add_delayed(AvailabilityMap *map, TimestampTz from,
									 TimestampTz due);
extern void availability_lose_delivered(AvailabilityMap *map);
extern void availability_set_wake_at(AvailabilityMap *map);
extern bool availability_check_ready(AvailabilityMap *map, TimestampTz now);
extern void availability_unlock_and_wake(AvailabilityMap *map,
										 int64 arrivals);
extern void availability_unlock_returned(AvailabilityMap *map);

#endif							/* QUEUE_AVAILABILITY_H */
