/*-------------------------------------------------------------------------
 *
 * message_pass.h
 *	  One pass over the messages of all queues.
 *
 * src/storage/message_pass.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MESSAGE_PASS_H
#define QUEUE_MESSAGE_PASS_H

#include "utils/rel.h"
#include "utils/snapshot.h"

#include "catalog/tables.h"

/* The segments; those that are not open are NULL. */
typedef struct MessagePass
{
	Relation	segments[ALL_SEGMENTS];
} MessagePass;

/* due_at is when a delayed message is due, or 0 if it is not delayed. */
typedef void (*MessagePassCallback) (const MessageForm *form,
									 TimestampTz due_at, void *arg);

extern bool message_pass_open(MessagePass *pass, bool wait);
extern bool message_pass_is_long(const MessagePass *pass);
extern void message_pass_read(MessagePass *pass, Snapshot snapshot,
							  MessagePassCallback callback, void *arg);
extern void message_pass_close(MessagePass *pass);

#endif							/* QUEUE_MESSAGE_PASS_H */
