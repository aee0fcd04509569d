/*-------------------------------------------------------------------------
 *
 * availability_view.h
 *	  What an availability map says, for a session that reserves nothing.
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

extern bool availability_view(int32 queue_id, bool has_lanes,
							  TimestampTz now, AvailabilityView *view);
extern bool availability_peek(int32 queue_id, TimestampTz now,
							  AvailabilityView *view);
extern bool availability_awaits_move(const AvailabilityMap *map,
									 TimestampTz now);
extern bool availability_wait_for_close(int32 queue_id, int64 *until);

#endif							/* QUEUE_AVAILABILITY_VIEW_H */
