/*-------------------------------------------------------------------------
 *
 * ready.h
 *	  Which queues may have something to claim, according to shared memory.
 *
 * src/queue/ready.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_READY_H
#define QUEUE_READY_H

/* Is the list complete, and was it all the time? */
extern bool ready_is_complete(uint64 *generation);
extern bool ready_was_complete(uint64 generation);

/* The list */
extern int32 ready_next(Oid extension, uint32 *slot);
extern int32 *ready_queue_ids(int *n);
extern int32 *ready_candidates(const char *project, int *n);
extern bool ready_is_claimable(int32 id, const char *project, char *name);

#endif							/* QUEUE_READY_H */
