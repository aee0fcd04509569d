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
#include "map/availability.h"
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
	int64		depths[DEPTHS];
	ClaimedMessages claimed;	/* messages that it has claimed */
	char	   *error;			/* the queue's last error, or NULL */
	TimestampTz error_at;
} CountRecord;

/* Returns the depth for which a row counts; see counts.c. */
static inline QueueDepth
counts_depth_of(const MessageForm *form, bool is_delayed)
{
	if (is_delayed)
		return DEPTH_DELAYED;
	return form->claim_token == 0 || form->end_counted ? DEPTH_READY :
		DEPTH_CLAIMED;
}

/* Returns a set of this one message, which is claimed. */
static inline ClaimedMessages
counts_claimed(const MessageForm *form)
{
	return (ClaimedMessages)
	{
		.end = form->claimed_until,
			.first = message_id_number(form->id),
			.last = message_id_number(form->id),
			.priorities = 1 << form->priority
	};
}

extern void counts_init(void);

/* Counting in a transaction */
extern void counts_add(int32 queue_id, JobCounter counter, int64 n);
extern void counts_add_rows(int32 queue_id, QueueDepth depth, int n,
							const ClaimedMessages *claimed);
extern void counts_add_depths(int32 queue_id, const int64 *depths,
							  const ClaimedMessages *claimed);
extern void counts_set_error(int32 queue_id, const char *error, int length);

/* What was counted: the records are those from 0 on; NULL at the end */
extern const CountRecord *counts_record(int i);
extern void counts_read_depths(int32 queue_id, int64 *depths);

/* For the worker: counting at once */
extern void counts_end_claim(int32 queue_id);
extern void counts_set_depths(int32 queue_id, const int64 *depths,
							  const ClaimedMessages *claimed);

#endif							/* QUEUE_COUNTS_H */
