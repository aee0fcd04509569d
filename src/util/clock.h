/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  A clock that is never set, and differences of times.
 *
 * src/util/clock.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLOCK_H
#define QUEUE_CLOCK_H

#include "datatype/timestamp.h"
#include "portability/instr_time.h"

/* Microseconds of a clock that is never set, the same in all processes */
static inline int64
clock_monotonic(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/*
 * Returns whether so many microseconds have passed since this has returned true
 * for *last, which is 0 at first.
 */
static inline bool
clock_has_passed(int64 *last, int64 interval)
{
	int64		now = clock_monotonic();

	if (*last != 0 && now < *last + interval)
		return false;
	*last = now;
	return true;
}

/*
 * Whole seconds from one time to another, within the range of an integer; 0 if
 * the clock was set back between the two.
 */
static inline int
clock_seconds(TimestampTz from, TimestampTz to)
{
	TimestampTz seconds = (to - from) / USECS_PER_SEC;

	return (int) Max(0, Min(seconds, PG_INT32_MAX));
}

#endif							/* QUEUE_CLOCK_H */
