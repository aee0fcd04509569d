/*-------------------------------------------------------------------------
 *
 * message_ranges.h
 *	  A small set of ranges of message numbers.
 *
 * src/map/message_ranges.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MESSAGE_RANGES_H
#define QUEUE_MESSAGE_RANGES_H

#include "datatype/timestamp.h"

#include "map/lane_id.h"
#include "util/limits.h"

/*
 * A range of message numbers (ids without their low bits) of one priority, in
 * which something may be free to claim.
 */
typedef struct MessageRange
{
	int64		first;
	int64		last;
	TimestampTz due;			/* when; DT_NOBEGIN if at once */
	TimestampTz hidden;			/* if at once: when something else in it will
								 * be, or 0 */
	TimestampTz scanned_at;		/* if is_locked: when all of it was last
								 * scanned */
	int16		priority;
	bool		is_locked;		/* another transaction has locked something
								 * there, and no callback may report its end */
	bool		is_swept;		/* in an availability map: the worker sweeps
								 * it, so it is united with no other */
} MessageRange;

/* A range of a lane */
typedef struct LaneRange
{
	LaneId		lane;
	MessageRange range;
} LaneRange;

/*
 * So many that two ranges always have the same priority, besides one that is
 * swept
 */
#define MESSAGE_RANGES_MAX	(QUEUE_PRIORITIES + 2)

typedef struct MessageRanges
{
	int			n;
	MessageRange items[MESSAGE_RANGES_MAX];
} MessageRanges;

extern void message_ranges_add(MessageRanges *ranges,
							   const MessageRange *range, TimestampTz now);
extern void message_ranges_remove(MessageRanges *ranges, int i);
extern int	message_ranges_pick(const MessageRanges *ranges, TimestampTz now,
								TimestampTz began, bool has_lanes);

/*
 * Returns when the worker has to sweep a range, or DT_NOEND: what is free at
 * once is left to claims.
 */
static inline TimestampTz
message_range_sweep_at(const MessageRange *range)
{
	if (range->due != DT_NOBEGIN)
		return range->due;
	return range->hidden != 0 ? range->hidden : DT_NOEND;
}

/*
 * Returns whether claims take a before b: the higher priority first, then the
 * lower number.
 */
static inline bool
message_range_is_before(const MessageRange *a, const MessageRange *b)
{
	return a->priority != b->priority ? a->priority > b->priority :
		a->first < b->first;
}

#endif							/* QUEUE_MESSAGE_RANGES_H */
