/*-------------------------------------------------------------------------
 *
 * error_state.h
 *	  The last errors of queues that are not in the table yet.
 *
 * src/shmem/error_state.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_ERROR_STATE_H
#define QUEUE_ERROR_STATE_H

#include "datatype/timestamp.h"

#include "shmem/shmem.h"

#define QUEUE_ERROR_LENGTH	1000	/* bytes */

typedef struct QueueError
{
	Oid			database;		/* InvalidOid: the entry is free */
	Oid			extension;
	int32		queue_id;
	TimestampTz error_at;
	char		message[QUEUE_ERROR_LENGTH + 1];
} QueueError;

extern const SharedArea error_area;
extern void error_state_set(Oid extension, int32 queue_id, const char *text,
							TimestampTz error_at);
extern bool error_state_get(Oid extension, int32 queue_id,
							QueueError *error);
extern bool error_state_next(int *from, QueueError *error);
extern void error_state_remove(const QueueError *error);

#endif							/* QUEUE_ERROR_STATE_H */
