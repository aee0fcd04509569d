/*-------------------------------------------------------------------------
 *
 * status.h
 *	  The state of each queue, for monitoring.
 *
 * src/queue/status.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_STATUS_H
#define QUEUE_STATUS_H

#include "datatype/timestamp.h"

#include "catalog/tables.h"
#include "queue/message_list.h"

/* What queue_data.queue_status shows of a queue, as far as it is counted */
typedef struct QueueStatus
{
	int32		queue_id;
	StateCounts states;			/* its messages */
	TimestampTz oldest_free;	/* when the oldest free one was pushed;
								 * DT_NOEND: there is none */
	int64		n[JOB_COUNTERS];
} QueueStatus;

extern QueueStatus *status_read(int *n);
extern QueueStatus *status_find(QueueStatus *list, int n, int32 queue_id);

#endif							/* QUEUE_STATUS_H */
