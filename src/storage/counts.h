/*-------------------------------------------------------------------------
 *
 * counts.h
 *	  What the open transaction counts.
 *
 * src/storage/counts.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_COUNTS_H
#define QUEUE_COUNTS_H

#include "access/htup.h"
#include "datatype/timestamp.h"

#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "shmem/depth_state.h"
#include "util/xact.h"

/* How long after they were added the worker writes counts to the table */
#define COUNTS_PAUSE	USECS_PER_SEC

/* What a subtransaction has counted of a queue */
typedef struct CountRecord
{
	XactRecord	xact;
	Oid			extension;
	int32		queue_id;
	int64		n[JOB_COUNTERS];
	DepthChange depths;
	char	   *error;			/* the queue's last error, or NULL */
	TimestampTz error_at;
} CountRecord;

extern XactList count_records;

/* Counting in a transaction */
extern void counts_add(int32 queue_id, JobCounter counter, int64 n);
extern void counts_add_rows(int32 queue_id, uint64 position,
							QueueDepth depth, int n);
extern void counts_set_error(int32 queue_id, const char *error);

/* Reading */
extern void counts_read_depths(int32 queue_id, int64 *depths);

/* For the worker: counting at once */
extern void counts_add_ended(const CountRecord *record, TransactionId xid);
extern void counts_set_depths(int32 queue_id, const int64 *depths);
extern bool counts_end_claim(MessageTable *table, HeapTuple tuple,
							 const MessageForm *form, TimestampTz now);

#endif							/* QUEUE_COUNTS_H */
