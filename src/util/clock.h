/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  A clock that is never set.
 *
 * src/util/clock.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLOCK_H
#define QUEUE_CLOCK_H

#include "portability/instr_time.h"

/* Microseconds of a clock that is never set, the same in all processes */
static inline int64
clock_monotonic(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

#endif							/* QUEUE_CLOCK_H */
