/*-------------------------------------------------------------------------
 *
 * recount.h
 *	  Counting the depths of all queues anew; for the worker.
 *
 * src/queue/recount.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_RECOUNT_H
#define QUEUE_RECOUNT_H

extern int64 recount_pause(void);
extern void recount_messages(void);

#endif							/* QUEUE_RECOUNT_H */
