/*-------------------------------------------------------------------------
 *
 * availability.h
 *	  Where the next claim of a queue begins to look, as all sessions share it.
 *
 * src/shmem/availability.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_AVAILABILITY_H
#define QUEUE_AVAILABILITY_H

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"

#include "catalog/tables.h"
#include "util/limits.h"

/*
 * A range of message numbers (ids without their low bits) of one priority, in
 * which something may be free.
 */
typedef struct MessageRange
{
	int64		first;
	int64		last;
	TimestampTz due;			/* when; DT_NOBEGIN: at once */
	TimestampTz scanned_at;		/* if uncertain: all of it, since then */
	int16		priority;
	bool		uncertain;		/* nobody tells when */
	uint8		swept;			/* in a availability map: the worker looks at it, and
								 * nothing has happened to it since; its
								 * number in the sweep, from 1 on */
} MessageRange;

/* More than priorities, so that two can always be made one */
#define MAP_RANGES	12

typedef struct MessageRanges
{
	int			n;
	MessageRange items[MAP_RANGES];
} MessageRanges;

/* What is known of a queue's delayed messages */
typedef struct DelayedInfo
{
	TimestampTz due;			/* the next one */
	TimestampTz from;			/* none was delayed until earlier, or they are
								 * gone */
	bool		uncertain;		/* nobody tells when one is let go */
} DelayedInfo;

/*
 * What all sessions know of a queue, in shared memory.  The lock guards
 * everything; the key is only changed with the lock of the array held too.
 *
 * The key and wake_at are atomic since they are also read without the lock, to
 * pass by availability maps that are of no interest without touching their locks.  What
 * such a read returns may be out of date at once, and the parts of a key may
 * be those of two queues.  So a session that finds its key locks the availability map and
 * looks again; one that misses a key that is being written makes the availability map,
 * or finds it then, under the lock of the array; and when wake_at is lowered,
 * the worker is told to look at all availability maps after that (database_wake).
 */
typedef struct AvailabilityMap
{
	LWLock		lock;
	bool		used;			/* of late */
	bool		waiting;		/* somebody waits for a closing */
	bool		knows_numbers;	/* block_next, block_end, end mean something */
	pg_atomic_uint32 database;	/* key; InvalidOid: never used */
	pg_atomic_uint32 extension; /* key: the OID of its table queue */
	pg_atomic_uint32 queue_id;	/* key */
	int			open;			/* reservations */
	uint64		incarnation;	/* since it began anew; never the same */
	int64		block_next;		/* numbers for pushes */
	int64		block_end;
	uint32		switches;			/* of the ring, when they were taken */
	int64		next[QUEUE_PRIORITIES]; /* claims were given all below */
	int64		end[QUEUE_PRIORITIES];	/* pushes were given none from here */
	int64		uncertain_below;	/* we may not be told of all numbers below */
	DelayedInfo	delayed;
	uint32		changes;		/* so far, of what the worker has to see to */
	uint32		arrivals;			/* how often something came free */
	uint32		notified;			/* "news", when listeners were last notified */
	uint64		examined;		/* the incarnation of which the worker knows
								 * whether there is something to claim */
	bool		quiet;			/* it has nothing to do about that now */
	TimestampTz expires_at;		/* the first of the messages, or later */
	TimestampTz new_expires_at; /* the same, of those that came since the
								 * worker's visit began */
	pg_atomic_uint64 wake_at;	/* when the worker has to look: the next of
								 * all that is due */
	int			waiters;		/* sessions that wait for messages */
	ConditionVariable arrival;	/* what they sleep on */
	int64		counts[JOB_COUNTERS];	/* not written to the table yet */
	TimestampTz full_scan_at;		/* all of the queue, once it seems empty */
	MessageRanges ranges;
} AvailabilityMap;

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

/* availability.c: where claims look, as all sessions share it */
typedef struct ReserveRequest
{
	int32		queue_id;
	TimestampTz began;			/* the call; uncertain ranges that were looked
								 * at since are not again */
	TimestampTz now;
	int64		width;			/* numbers to look at */
	bool		has_more;		/* messages in hand */
	bool		delayed_is_due;	/* out: there was no range, but this */
} ReserveRequest;

typedef struct Reservation
{
	AvailabilityMap	   *map;
	MessageRange range;
	bool		is_fresh;		/* no claim was given it before */
} Reservation;

typedef enum ReserveResult
{
	RESERVE_DONE,
	RESERVE_NONE,				/* there is nothing to look at */
	RESERVE_WAIT				/* others look, and may give something back */
} ReserveResult;

/* What a queue's availability map says, for a session that changes nothing */
typedef struct AvailabilityView
{
	int			n;
	MessageRange ranges[MAP_RANGES + QUEUE_PRIORITIES];
	bool		others;			/* have something reserved */
	bool		delayed;			/* delayed messages may be due */
	TimestampTz delayed_from;	/* see ParkedInfo */
} AvailabilityView;

/* A availability map as the worker found it, when it began to see to a queue */
typedef struct AvailabilityVisit
{
	Oid			extension;
	int32		queue_id;
	uint64		incarnation;
	uint32		changes;
	uint32		arrivals;
	bool		examined;		/* this incarnation was */
	TimestampTz expires_at;
} AvailabilityVisit;

extern void availability_clear(AvailabilityMap *map, TimestampTz now);
extern void availability_reset(AvailabilityMap *map, TimestampTz now);
extern void availability_add_range(MessageRanges *ranges, const MessageRange *range,
					   TimestampTz now);
extern void availability_begin_queue(int32 queue_id);
extern int64 availability_take_numbers(int32 queue_id, int priorities, int wanted,
								 int *n);
extern ReserveResult availability_reserve(ReserveRequest *request, MessageRange *range);
extern void availability_close(int64 looked_to, const MessageRanges *passed,
						 TimestampTz now);
extern bool availability_wait(int32 queue_id, int64 *until);
extern bool availability_view(int32 queue_id, TimestampTz now, AvailabilityView *view);
extern bool availability_reserve_delayed(int32 queue_id, TimestampTz now,
								  bool uncertain, TimestampTz *from);
extern void availability_close_delayed(TimestampTz from, TimestampTz due,
								bool uncertain);
extern void availability_keep_delayed(TimestampTz from, TimestampTz due,
							   bool uncertain);
extern void availability_close_kept(void);
extern int	availability_begin_sweep(int32 queue_id, TimestampTz now,
							   const MessageRange **ranges, bool *disturbed);
extern void availability_swept(int i, int64 looked_to);
extern void availability_end_sweep(const MessageRanges *passed, int found,
							 int ended, TimestampTz now);
extern void availability_publish_sweep(bool commit);
extern void availability_close_all(void);
extern void availability_return(Oid extension, int32 queue_id,
						  const MessageRange *range, TimestampTz expires_at,
						  TimestampTz now);
extern void availability_return_delayed(Oid extension, int32 queue_id,
								 TimestampTz from, TimestampTz due,
								 bool uncertain);
extern TimestampTz availability_recheck_at(TimestampTz now);
extern bool availability_full_scan_is_due(int32 queue_id, TimestampTz now);
extern void availability_forget(int32 queue_id);
extern void availability_full_scan_done(int32 queue_id, TimestampTz began);
extern void availability_end_expiry(const AvailabilityVisit *visit,
							  TimestampTz expires_at);
extern void availability_examine(Oid extension, int32 queue_id);
extern bool availability_is_due(int32 queue_id, TimestampTz now);
extern bool availability_begin_visit(int32 queue_id, AvailabilityVisit *visit);
extern void availability_end_visit(const AvailabilityVisit *visit, bool found);
extern void availability_set_quiet(const AvailabilityVisit *visit, bool exists);
extern bool availability_next_arrivals(Oid extension, uint32 *from,
							 AvailabilityVisit *visit);
extern void availability_notified(const AvailabilityVisit *visit, bool notified);
extern AvailabilityMap *availability_wait_begin(int32 queue_id);
extern void availability_wait_end(bool pass_on);

#endif							/* QUEUE_AVAILABILITY_H */
