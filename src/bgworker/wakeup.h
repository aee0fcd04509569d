/*-------------------------------------------------------------------------
 *
 * wakeup.h
 *	  Waiting for something to claim.
 *
 * src/bgworker/wakeup.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_WAKEUP_H
#define QUEUE_WAKEUP_H

#define CHANNEL_LENGTH		38	/* bytes of a channel's name */

extern void wakeup_channel_name(const char *project, const char *name,
								char *channel);
extern bool wakeup_wait(const char *name, int timeout_ms, bool in_statement);

/* For await.c */
extern long wakeup_ms_until(int64 then, int64 now, long max);
extern void wakeup_check_client(void);
extern void wakeup_commit(void);

#endif							/* QUEUE_WAKEUP_H */
