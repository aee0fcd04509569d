/*-------------------------------------------------------------------------
 *
 * message.h
 *	  Messages: find, insert, lock, update, delete and move them.
 *
 * src/storage/message.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MESSAGE_H
#define QUEUE_MESSAGE_H

#include "access/genam.h"
#include "access/tableam.h"
#include "nodes/lockoptions.h"

#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "shmem/depth_state.h"

/* The states of messages; bits, so that a filter may name several */
typedef enum MessageState
{
	STATE_FREE = 1,
	STATE_CLAIMED = 2,			/* under a live claim */
	STATE_CANCELED = 4,			/* so, and to be removed when that ends */
	STATE_DELAYED = 8,			/* not due yet */
	STATE_WAITING = 16			/* due when a batch has finished */
} MessageState;

#define ALL_MESSAGE_STATES	31

/* A message that was found by its id */
typedef struct FoundMessage
{
	MessageTable table;			/* open */
	TupleTableSlot *slot;
	HeapTuple	tuple;			/* in slot */
	MessageForm form;			/* read from tuple */
} FoundMessage;

/* A transaction of the worker moves about so many bytes of messages. */
#define MESSAGE_MOVE_BYTES		(4 * 1024 * 1024)

/* Returns whether the message is under a live claim. */
static inline bool
message_is_claimed(const MessageForm *form, TimestampTz now)
{
	return form->claim_token != 0 && form->claimed_until > now;
}

/*
 * Returns when the message expires if it stays as it is.  A message under a
 * live claim does not expire.  Neither does one in a table of delayed
 * messages, because it must not expire before it can be claimed, however long
 * no worker runs: it lives for some time after it is moved out of that table
 * (message_copy_to).
 */
static inline TimestampTz
message_expires_at(const MessageForm *form)
{
	return form->is_delayed ? DT_NOEND :
		Max(form->expires_at, form->claimed_until);
}

/* Returns whether the lifetime of the message is over. */
static inline bool
message_is_expired(const MessageForm *form, TimestampTz now)
{
	return message_expires_at(form) <= now;
}

/* Reading */
extern MessageState message_state(TupleDesc desc, HeapTuple tuple,
								  const MessageForm *form, TimestampTz now);
extern const char *message_state_name(MessageState state);
extern QueueDepth message_depth(const MessageTable *table, HeapTuple tuple,
								TimestampTz *until);
extern TimestampTz message_due_at(MessageTable *table, HeapTuple tuple);
extern bool message_exists(int32 queue_id, int64 id);
extern bool message_find(int32 queue_id, int64 id, LOCKMODE lockmode,
						 FoundMessage *found);
extern bool message_find_number(int32 queue_id, int64 number, int priority,
								LOCKMODE lockmode, FoundMessage *found);
extern void message_close_found(FoundMessage *found);

/* Before a change that is made later */
extern void message_record_change(MessageTable *table, HeapTuple tuple);

/* Locking */
extern TM_Result message_lock(MessageTable *table, TupleTableSlot *slot,
							  LockTupleMode mode, LockWaitPolicy wait);
extern bool message_lock_as_seen(MessageTable *table, TupleTableSlot *slot,
								 LockTupleMode mode, LockWaitPolicy wait);
extern bool message_lock_found(FoundMessage *found, LockTupleMode mode,
							   LockWaitPolicy wait);
extern void message_return_at_commit(MessageTable *table, HeapTuple tuple);

/* Writing */
extern void message_insert(MessageTable *table, HeapTuple tuple);
extern void message_multi_insert(MessageTable *table, HeapTuple *tuples,
								 int n);
extern bool message_delete(MessageTable *table, HeapTuple tuple);
extern bool message_update_as_seen(MessageTable *table, HeapTuple old,
								   HeapTuple new);
extern bool message_delete_as_seen(MessageTable *table, HeapTuple tuple,
								   bool wait);
extern void message_update_locked(MessageTable *table, HeapTuple old,
								  HeapTuple new);
extern void message_delete_locked(MessageTable *table, HeapTuple tuple);
extern void message_count(const MessageTable *table, HeapTuple tuple);

/* Moving to another table */
extern HeapTuple message_copy_to(MessageTable *from, MessageTable *to,
								 HeapTuple tuple, TimestampTz due_at);
extern bool message_move(MessageTable *from, TupleTableSlot *slot,
						 MessageTable *to, Size *bytes);

#endif							/* QUEUE_MESSAGE_H */
