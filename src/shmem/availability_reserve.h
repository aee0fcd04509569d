/*-------------------------------------------------------------------------
 *
 * availability_reserve.h
 *	  Reserving ranges of an availability map for a claim.
 *
 * src/shmem/availability_reserve.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_AVAILABILITY_RESERVE_H
#define QUEUE_AVAILABILITY_RESERVE_H

#include "datatype/timestamp.h"

#include "shmem/message_ranges.h"
#include "util/limits.h"

/* What a claim asks of availability_reserve() */
typedef struct ReserveRequest
{
	int32		queue_id;
	TimestampTz began;			/* when the call began; it scans uncertain
								 * ranges once */
	TimestampTz now;
	int64		width;			/* how many numbers it wants to scan */
	bool		has_more;		/* it has already found messages */
	bool		delayed_is_due; /* result: there is no range, but a delayed
								 * message is due */
} ReserveRequest;

typedef enum ReserveResult
{
	RESERVE_DONE,				/* a range is reserved */
	RESERVE_NONE,				/* nothing is free */
	RESERVE_WAIT				/* other sessions have reservations open, and
								 * may give something back */
} ReserveResult;

/* What a queue's map says, for a session that only probes */
typedef struct AvailabilityView
{
	int			n;
	MessageRange ranges[MESSAGE_RANGES_MAX + QUEUE_PRIORITIES];
	bool		others;			/* other sessions have reservations open */
	bool		delayed;		/* delayed messages may be due */
	TimestampTz delayed_from;	/* see DelayedInfo */
} AvailabilityView;

/* A range */
extern ReserveResult availability_reserve(ReserveRequest *request,
										  MessageRange *range);
extern void availability_give_back(int64 scanned_to,
								   const MessageRanges *passed,
								   TimestampTz now);
extern void availability_close(void);

/* The delayed messages that are due */
extern bool availability_reserve_delayed(int32 queue_id, TimestampTz now,
										 bool uncertain, TimestampTz *from);
extern void availability_close_delayed(TimestampTz from, TimestampTz due,
									   bool uncertain);
extern void availability_undo_delayed(void);
extern void availability_defer_close_delayed(TimestampTz from,
											 TimestampTz due, bool uncertain);

/* The end of a transaction, in the order of pending.c */
extern void availability_close_all(void);
extern void availability_close_deferred(void);

/* Without a reservation */
extern bool availability_wait_for_close(int32 queue_id, int64 *until);
extern bool availability_view(int32 queue_id, TimestampTz now,
							  AvailabilityView *view);

#endif							/* QUEUE_AVAILABILITY_RESERVE_H */
