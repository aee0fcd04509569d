/*-------------------------------------------------------------------------
 *
 * availability_view.h
 *	  What availability maps say, for a session that reserves nothing.
 *
 * src/map/availability_view.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_AVAILABILITY_VIEW_H
#define QUEUE_AVAILABILITY_VIEW_H

#include "datatype/timestamp.h"

#include "map/availability.h"
#include "map/message_ranges.h"

#define VIEW_RANGES_MAX		(4 * MESSAGE_RANGES_MAX + QUEUE_PRIORITIES)

/* What a queue's map says, for a session that reserves nothing */
typedef struct AvailabilityView
{
	int			n;
	MessageRange ranges[VIEW_RANGES_MAX];
	bool		incomplete;		/* there are more lanes than fit */
	bool		others;			/* other sessions have reservations open */
	bool		awaits_move;	/* the worker is about to move delayed
								 * messages that are due */
} AvailabilityView;

/* How well a map leads claims; the first one that applies */
typedef enum MapState
{
	MAP_STATE_FULL,				/* not all that belongs to lanes had room */
	MAP_STATE_NEW,				/* it knows nothing of some messages: all of
								 * the queue will be scanned once */
	MAP_STATE_COMPLETE			/* claims scan only where something may be
								 * free */
} MapState;

typedef struct MapStatus
{
	int32		queue_id;
	MapState	state;
	bool		ready;			/* something may be free to claim */
	int64		unscanned;		/* numbers of pushes that no claim was given
								 * yet; -1 if not known */
	int			ranges;			/* in which something may be free */
	int64		numbers;		/* in these ranges; -1 if not known */
	bool		uncertain;		/* something is locked in one of them, and
								 * scanned again and again */
	int			lanes;			/* that have a turn; -1 if the queue has no
								 * groups, as far as the map knows */
	int			reservations;	/* that are open */
	bool		claims_wait;	/* until one of them is closed */
	int			waiters;		/* sessions that wait for messages */
	uint64		incarnation;
	TimestampTz visit_at;		/* when the worker has to visit the queue;
								 * before MIN_TIMESTAMP if at once, DT_NOEND
								 * if never */
} MapStatus;

extern bool availability_view(int32 queue_id, bool has_lanes,
							  TimestampTz now, AvailabilityView *view);
extern bool availability_peek(int32 queue_id, TimestampTz now,
							  AvailabilityView *view);
extern bool availability_awaits_move(const AvailabilityMap *map,
									 TimestampTz now);
extern bool availability_wait_for_close(int32 queue_id, int64 *until);
extern MapStatus *availability_list(int *n);

#endif							/* QUEUE_AVAILABILITY_VIEW_H */
