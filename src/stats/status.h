/*-------------------------------------------------------------------------
 *
 * status.h
 *	  The state of each queue, for monitoring.
 *
 * src/stats/status.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_STATUS_H
#define QUEUE_STATUS_H

#include "datatype/timestamp.h"

#include "catalog/tables.h"
#include "map/availability.h"
#include "queue/queue_table.h"

/* The depths of a queue */
typedef struct QueueStatus
{
	int32		queue_id;
	int64		depths[DEPTHS];
	TimestampTz oldest_free;	/* when the oldest free one was pushed, or
								 * DT_NOEND if there is none */
} QueueStatus;

extern QueueStatus *status_read(const QueueEntry *queues, int n, bool dead,
								bool *known);

#endif							/* QUEUE_STATUS_H */
