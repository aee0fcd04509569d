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

/* What became of a recount */
typedef enum RecountResult
{
	RECOUNT_DONE,				/* the caller commits, then publishes it */
	RECOUNT_LOCKED,				/* a table is locked, or shared memory has no
								 * entry of the database any more */
	RECOUNT_LONG				/* it was not begun, as it would take long */
} RecountResult;

extern RecountResult recount_messages(bool may_take_long, bool by_worker);

#endif							/* QUEUE_RECOUNT_H */
