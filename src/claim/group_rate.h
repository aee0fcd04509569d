/*-------------------------------------------------------------------------
 *
 * group_rate.h
 *	  How fast the messages of a group are handed out.
 *
 * src/claim/group_rate.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_GROUP_RATE_H
#define QUEUE_GROUP_RATE_H

#include "access/htup.h"
#include "datatype/timestamp.h"
#include "storage/block.h"

#include "catalog/message_table.h"
#include "map/lane_id.h"
#include "queue/queue_table.h"
#include "util/xact.h"

/* How often rows that are not needed any more are removed */
#define GROUP_RATE_PAUSE	(60 * USECS_PER_SEC)

extern XactList group_deliveries;

/* For claims and pops of queues with a rate */
extern void group_rate_prepare(void);
extern int	group_rate_allowance(const Queue *queue, LaneId lane,
								 TimestampTz *next_at);
extern void group_rate_record(const Queue *queue, MessageTable *table,
							  HeapTuple tuple);

/* For the worker: how far the removal of rows has come */
typedef struct RateSweep
{
	BlockNumber page;			/* the next one of the table */
	bool		left;			/* rows were met that are still needed */
} RateSweep;

extern bool group_rate_forget(void *arg);

#endif							/* QUEUE_GROUP_RATE_H */
