/*-------------------------------------------------------------------------
 *
 * push.h
 *	  Writing new messages.
 *
 * src/queue/push.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PUSH_H
#define QUEUE_PUSH_H

#include "utils/jsonb.h"
#include "utils/uuid.h"

#include "queue/registry.h"

/* A message to be pushed. */
typedef struct NewMessage
{
	Jsonb	   *body;
	int			ttl;			/* seconds */
	int			delay;			/* seconds */
	int			priority;
	int			claim_count;	/* of a dead letter */
	Jsonb	   *attributes;			/* or NULL */
	pg_uuid_t  *dedup;			/* or NULL */
	bool		moved;			/* not pushed by this session's client */
	int64		id;				/* out; 0: dropped as a duplicate */
} NewMessage;

extern void push_messages(const Queue *queue, NewMessage *messages, int n);

#endif							/* QUEUE_PUSH_H */
