/*-------------------------------------------------------------------------
 *
 * due_messages.h
 *	  Delayed messages that are due, in the order in which they are claimed.
 *
 * src/storage/due_messages.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DUE_MESSAGES_H
#define QUEUE_DUE_MESSAGES_H

#include "catalog/message_table.h"

/* Which messages to read from a table of delayed messages */
typedef struct DueRequest
{
	int32		queue_id;
	TimestampTz from;			/* skip index entries of earlier times */
	TimestampTz due;			/* messages that are due by then */
	int			max;			/* how many of them */
} DueRequest;

typedef struct DueMessage
{
	int64		id;
	TimestampTz due_at;			/* DT_NOEND: the caller has taken it */
	ItemPointerData tid;
} DueMessage;

/* Messages of one table, the highest priority first, then by id */
typedef struct DueMessages
{
	int			n;
	int			size;			/* how many there is room for */
	int			next;			/* the next one to be returned */
	DueMessage *items;
	TimestampTz unread_from;	/* those that were not read are due from then
								 * on */
} DueMessages;

extern DueMessages *due_messages_read(MessageTable *table,
									  TupleTableSlot *slot,
									  const DueRequest *request, bool *more,
									  TimestampTz *next);
extern bool due_messages_next(DueMessages *list, MessageTable *table,
							  TupleTableSlot *slot);
extern void due_messages_take(DueMessages *list);
extern TimestampTz due_messages_left(const DueMessages *list);
extern void due_messages_free(DueMessages *list);

#endif							/* QUEUE_DUE_MESSAGES_H */
