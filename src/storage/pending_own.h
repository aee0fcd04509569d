/*-------------------------------------------------------------------------
 *
 * pending_own.h
 *	  What the open transaction may claim of its own changes.
 *
 * src/storage/pending_own.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PENDING_OWN_H
#define QUEUE_PENDING_OWN_H

#include "datatype/timestamp.h"

#include "map/message_ranges.h"

/* Ranges of messages that a transaction has made free itself */
typedef struct OwnRanges
{
	int			n;
	int			size;			/* of items, allocated */
	MessageRange *items;
} OwnRanges;

extern bool pending_next_queue(int32 *queue_id);
extern int	pending_take_own(int32 queue_id, TimestampTz now, OwnRanges *own);
extern void pending_rescan_own(int scans, int64 scanned_to);
extern void pending_give_turns(int32 queue_id);
extern void pending_add_of_lane(int32 queue_id, LaneId lane, OwnRanges *own);

#endif							/* QUEUE_PENDING_OWN_H */
