/*-------------------------------------------------------------------------
 *
 * ready.h
 *	  Which queues may have something to claim, according to shared memory.
 *
 * src/claim/ready.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_READY_H
#define QUEUE_READY_H

#include "queue/queue_table.h"

/* Whether the list of queues that are ready is complete, and has been so */
extern bool ready_is_complete(uint64 *generation);
extern bool ready_was_complete(uint64 generation);
extern bool ready_may_be(int32 queue_id);

/* Of all queues */
extern List *ready_queue_ids(void);
extern List *ready_ids_in_projects(void);

/* Of the queues from which the current role may claim */
extern void ready_begin(void);
extern bool ready_next_claimable(uint32 *slot, QueueSummary *summary,
								 Queue *queue);

#endif							/* QUEUE_READY_H */
