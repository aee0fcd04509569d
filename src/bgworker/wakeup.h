/*-------------------------------------------------------------------------
 *
 * wakeup.h
 *	  Waiting for something to claim, or for the end of a message.
 *
 * src/bgworker/wakeup.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_WAKEUP_H
#define QUEUE_WAKEUP_H

#include "utils/jsonb.h"

#define CHANNEL_LENGTH		38	/* bytes of a channel's name */

extern void wakeup_channel_name(const char *project, const char *name,
								char *channel);
extern bool wakeup_wait(const char *name, int timeout_ms, bool in_statement);

/* The end of a message */
#define AWAIT_FOREVER	(-1)	/* as a timeout */

extern Jsonb *await_message(const char *name, int64 id, int timeout_ms);

#endif							/* QUEUE_WAKEUP_H */
