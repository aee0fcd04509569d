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
extern bool ready_are_known(uint64 *generation);
extern bool ready_were_known(uint64 generation);
extern int32 *ready_flagged(int *n);

#endif							/* QUEUE_WAKEUP_H */
