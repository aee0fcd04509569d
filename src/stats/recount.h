/*-------------------------------------------------------------------------
 *
 * recount.h
 *	  Counting the depths of all queues anew; for the worker.
 *
 * src/stats/recount.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_RECOUNT_H
#define QUEUE_RECOUNT_H

extern bool recount_begin(void);
extern bool recount_step(void);

#endif							/* QUEUE_RECOUNT_H */
