/*-------------------------------------------------------------------------
 *
 * message_list.h
 *	  Reading the messages of a queue without claiming them.
 *
 * src/queue/message_list.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MESSAGE_LIST_H
#define QUEUE_MESSAGE_LIST_H

#include "utils/jsonb.h"

#include "catalog/tables.h"
#include "queue/message_result.h"
#include "queue/registry.h"
#include "storage/message.h"
#include "storage/message_scan.h"

/* Which messages are listed */
typedef struct MessageFilter
{
	int64		first_id;		/* this one and those after it */
	int64		limit;
	int64		read_max;		/* messages that are read */
	int			states;			/* those in one of these MessageStates */
	bool		own;			/* also those of this session's client id */
	Jsonb	   *body;			/* only those whose body contains this; NULL
								 * for all */
} MessageFilter;

/* To initialize one that all messages pass */
#define ALL_MESSAGES \
{ \
	.first_id = PG_INT64_MIN, \
	.limit = PG_INT64_MAX, \
	.read_max = PG_INT64_MAX, \
	.states = ALL_MESSAGE_STATES, \
	.own = true \
}

/*
 * Called for a message, in a memory context that is reset after it.  Returns
 * whether the message counts toward the limit.
 */
typedef bool (*MessageCallback) (const ScanRow *row, TimestampTz now,
								 void *arg);

/* Messages by their state */
typedef struct StateCounts
{
	int64		free;
	int64		claimed;		/* under a live claim */
	int64		delayed;		/* not due yet */
} StateCounts;

/* The messages of a queue, counted */
typedef struct MessageCounts
{
	StateCounts states;
	int64		total;
	TimestampTz now;			/* when they were counted */
	MessageForm oldest;			/* lowest id; only valid if total > 0 */
	MessageForm newest;			/* highest id; likewise */
} MessageCounts;

extern int64 message_list_each(const Queue *queue,
							   const MessageFilter *filter,
							   MessageCallback callback, void *arg);
extern int64 message_list(const Queue *queue, const MessageFilter *filter,
						  MessageResult *result);
extern void message_list_one(const Queue *queue, int64 id,
							 MessageResult *result);
extern void message_list_found(const Queue *queue, FoundMessage *found,
							   MessageResult *result);
extern void message_list_add(StateCounts *counts, const ScanRow *row,
							 TimestampTz now);
extern void message_list_count(const Queue *queue, MessageCounts *counts);

#endif							/* QUEUE_MESSAGE_LIST_H */
