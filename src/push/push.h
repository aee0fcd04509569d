/*-------------------------------------------------------------------------
 *
 * push.h
 *	  Pushing: checking new messages and writing them.
 *
 * src/push/push.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PUSH_H
#define QUEUE_PUSH_H

#include "utils/jsonb.h"
#include "utils/uuid.h"

#include "push/dedup.h"
#include "queue/registry.h"

/* As ttl or delay of a new message: use the default of the queue */
#define PUSH_DEFAULT	(-1)

/* A message to be pushed; all zeros but the body is valid. */
typedef struct NewMessage
{
	Jsonb	   *body;
	int			ttl;			/* seconds, or PUSH_DEFAULT */
	int			delay;			/* seconds, or PUSH_DEFAULT */
	TimestampTz at;				/* when it is due, in the future; 0: after the
								 * delay */
	int			priority;
	int			claim_count;	/* above 0 only for a dead letter */
	Jsonb	   *attributes;		/* or NULL */
	pg_uuid_t  *dedup_key;		/* digest of the deduplication key, or NULL */
	DedupTerms	dedup;			/* what makes it a duplicate, with a key */
	text	   *group_key;		/* or NULL */
	Jsonb	   *headers;		/* or NULL */
	int64		batch;			/* it is a member of, or NO_BATCH */
	int64		after;			/* the batch that it waits for, or NO_BATCH */
	bool		after_success;	/* a dead letter if a member of that failed */
	bool		is_moved;		/* from another queue, so without client id */
	bool		is_replacement; /* result: its contents were put into the
								 * message with the id */
	int64		id;				/* result; 0 if dropped as a duplicate */
} NewMessage;

/* Checks and defaults */
extern int64 push_size(const NewMessage *message);
extern void push_check_size(const NewMessage *message);
extern void push_set_defaults(const Queue *queue, NewMessage *message);
extern void push_prepare(const Queue *queue, NewMessage *message,
						 int64 *total);

/* Writing */
extern void push_messages(const Queue *queue, NewMessage *messages, int n);
extern int	push_to_topic(const char *topic, const NewMessage *message);

#endif							/* QUEUE_PUSH_H */
