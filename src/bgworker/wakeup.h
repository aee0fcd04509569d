/*-------------------------------------------------------------------------
 *
 * wakeup.h
 *	  The SQL functions for those who wait for messages: which channel to
 *	  listen on, waiting, and which queues are ready.
 *
 * src/bgworker/wakeup.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_WAKEUP_H
#define QUEUE_WAKEUP_H

#define CHANNEL_LENGTH		38

extern void wakeup_channel_name(const char *project, const char *name,
							   char *channel);

#endif							/* QUEUE_WAKEUP_H */
