/*-------------------------------------------------------------------------
 *
 * push_once.h
 *	  Pushes that take effect once, however often they are repeated.
 *
 * src/push/push_once.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PUSH_ONCE_H
#define QUEUE_PUSH_ONCE_H

#include "push/push.h"

/* What a push goes back to: names it for all of its repetitions. */
typedef struct PushOrigin
{
	text	   *name;
	int64		id;
} PushOrigin;

extern void push_message_once(const char *queue_name,
							  const PushOrigin *origin, NewMessage *message);

#endif							/* QUEUE_PUSH_ONCE_H */
