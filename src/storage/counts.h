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

#include "datatype/timestamp.h"

#include "catalog/message_id.h"
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

/* How a prepared transaction changes the depths of a queue */
typedef struct PreparedDepths
{
	Oid			extension;
	int32		queue_id;
	DepthChange change;
} PreparedDepths;

/* Returns the depth for which a row counts; see counts.c. */
static inline QueueDepth
counts_depth_of(const MessageForm *form, bool is_delayed)
{
	if (is_delayed)
		return DEPTH_DELAYED;
	return form->claim_token == 0 || form->end_counted ? DEPTH_READY :
		DEPTH_CLAIMED;
}

extern void counts_init(void);

/* Counting in a transaction */
extern void counts_add(int32 queue_id, JobCounter counter, int64 n);
extern void counts_add_rows(int32 queue_id, int64 first, int64 last,
							QueueDepth depth, int n);
extern void counts_move_row(int32 queue_id, int64 id, QueueDepth from,
							QueueDepth to);
extern void counts_set_error(int32 queue_id, const char *error);

/* What was counted: the records are those from 0 on; NULL at the end */
extern const CountRecord *counts_record(int i);
extern void counts_read_depths(int32 queue_id, int64 *depths);

/* What a prepared transaction has counted */
extern bool counts_prepare(const CountRecord *record, PreparedDepths *depths);
extern void counts_return_prepared(const PreparedDepths *depths,
								   TransactionId xid);

/* Counting at once */
extern void counts_end_claim(int32 queue_id, uint64 generation);
extern void counts_set_depths(int32 queue_id, const int64 *depths);

#endif							/* QUEUE_COUNTS_H */
