/*-------------------------------------------------------------------------
 *
 * availability_visit.h
 *	  The worker's visits to queues, its sweeps, and waiting for arrivals.
 *
 * src/map/availability_visit.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_AVAILABILITY_VISIT_H
#define QUEUE_AVAILABILITY_VISIT_H

#include "datatype/timestamp.h"

#include "map/availability.h"
#include "map/message_ranges.h"

/* An availability map as it was when the worker began to visit its queue */
typedef struct AvailabilityVisit
{
	Oid			extension;
	int32		queue_id;
	uint64		incarnation;
	uint32		changes;
	uint32		arrivals;
	bool		examined;		/* in this incarnation */
	TimestampTz expires_at;
} AvailabilityVisit;

/* Visits */
extern void availability_request_visit(Oid extension, int32 queue_id,
									   bool forget);
extern bool availability_is_due(int32 queue_id, TimestampTz now,
								bool *is_borrowed);
extern void availability_begin_visit(int32 queue_id, AvailabilityVisit *visit);
extern void availability_end_visit(const AvailabilityVisit *visit,
								   bool paused);
extern void availability_found_no_queue(const AvailabilityVisit *visit);
extern void availability_end_expiry(const AvailabilityVisit *visit,
									TimestampTz expires_at);

/* Notifications */
extern bool availability_next_arrivals(Oid extension, uint32 *from,
									   AvailabilityVisit *visit);
extern void availability_notified(const AvailabilityVisit *visit);

/* Sweeps */
extern bool availability_begin_sweep(int32 queue_id, TimestampTz now,
									 MessageRange *range);
extern bool availability_end_sweep(int32 queue_id, int64 scanned_to,
								   const MessageRanges *passed, int nfree,
								   TimestampTz now);

/* Queues that are dropped */
extern void availability_drop_queue(Oid extension, int32 queue_id);

/* Sessions that wait for messages */
extern AvailabilityMap *availability_begin_wait(int32 queue_id);
extern void availability_end_wait(bool pass_on);

#endif							/* QUEUE_AVAILABILITY_VISIT_H */
