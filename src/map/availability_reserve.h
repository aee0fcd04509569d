/*-------------------------------------------------------------------------
 *
 * availability_reserve.h
 *	  Reserving ranges of an availability map for a claim.
 *
 * src/map/availability_reserve.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_AVAILABILITY_RESERVE_H
#define QUEUE_AVAILABILITY_RESERVE_H

#include "datatype/timestamp.h"

#include "map/message_ranges.h"
#include "util/limits.h"

/* How many lanes a claim reserves at once, at most */
#define LANES_AT_ONCE	128

/* What a claim asks of availability_reserve() */
typedef struct ReserveRequest
{
	int32		queue_id;
	TimestampTz began;			/* when the call began; it scans what is
								 * locked once */
	TimestampTz now;
	int64		width;			/* how many numbers it wants to scan */
	bool		has_found;		/* it has already found messages */

	/* Of a queue with groups */
	bool		has_lanes;		/* the claim takes lanes in turn */
	int			bound;			/* of each group; -1 if they have none */
	bool		prefers_lanes;	/* a lane comes before what is due, but not
								 * before numbers of which nothing is known */
	bool		no_lanes;		/* no lane is wanted */
	bool		only_due;		/* nor the overflow, nor what is not due */
	bool		same_lane;		/* continue with this lane, if it has more */
	int			max_lanes;		/* to be reserved at once; above 1 only
								 * without a bound, and not with same_lane */

	/* The result */
	bool		is_lane;		/* the range is one of a lane; else all that
								 * is free there is to be given to its lane */
	LaneId		lane;
	int			nreserved;		/* ranges; several only of lanes */
	int			space;			/* the range is to be given to lanes, and
								 * there is space for so many; 0 if that does
								 * not limit it */
	bool		no_space;		/* what is left has no space in lanes */
	uint32		lane_changes;	/* for availability_end_lane() */
	int			nlanes;			/* lanes that have a turn */
	bool		met_lanes;		/* the claim does not know that there are
								 * groups */
	bool		awaits_move;	/* WAIT: only for the worker, which is about
								 * to move delayed messages that are due */
} ReserveRequest;

typedef enum ReserveResult
{
	RESERVE_DONE,				/* a range is reserved */
	RESERVE_NONE,				/* nothing is reserved: nothing is free, or
								 * the request says why (met_lanes, no_space) */
	RESERVE_WAIT				/* other sessions have reservations open, and
								 * may give something back; or the worker has
								 * to move delayed messages; or there is no
								 * room for a map, and then the wait fails */
} ReserveResult;

/* How often this session has reserved something */
extern uint64 availability_reservations;

/* A range, or one of each of several lanes */
extern ReserveResult availability_reserve(ReserveRequest *request,
										  MessageRange *range);
extern void availability_give_back(const int64 *scanned_to,
								   const MessageRanges *passed,
								   TimestampTz now);
extern void availability_give_to_lanes(const LaneRange *ranges, int n,
									   int nfree, TimestampTz now);
extern void availability_close(void);

/* Several lanes */
extern const LaneRange *availability_reserved(void);
extern int	availability_reserve_more(const LaneId *lanes, int n,
									  int64 width);
extern void availability_end_turns(const LaneId *lanes, const bool *keeps,
								   int n);

/* The worker moves delayed messages that are due */
extern bool availability_begin_move(int32 queue_id, TimestampTz now,
									TimestampTz *from);
extern void availability_moved(TimestampTz from, TimestampTz due);

/* The end of a transaction, in the order of pending.c */
extern void availability_close_all(void);
extern void availability_end_move(bool commit);
extern bool availability_is_reserving(void);
extern bool availability_may_wait(void);

#endif							/* QUEUE_AVAILABILITY_RESERVE_H */
