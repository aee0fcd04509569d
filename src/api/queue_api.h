/*-------------------------------------------------------------------------
 *
 * queue_api.h
 *	  The SQL functions on queues themselves.
 *
 * src/api/queue_api.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_QUEUE_API_H
#define QUEUE_QUEUE_API_H

extern bool queue_set_paused(const char *name, bool paused);

#endif							/* QUEUE_QUEUE_API_H */
