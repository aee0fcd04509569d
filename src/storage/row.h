/*-------------------------------------------------------------------------
 *
 * row.h
 *	  Single rows of our tables: find, insert, lock, update, delete.
 *
 * src/storage/row.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_ROW_H
#define QUEUE_ROW_H

#include "access/skey.h"
#include "access/tableam.h"
#include "nodes/lockoptions.h"

#include "catalog/relations.h"
#include "catalog/tables.h"

/* Is the message under a live claim? */
static inline bool
message_is_claimed(const MessageForm *form, TimestampTz now)
{
	return form->claim_token != 0 && form->claimed_until > now;
}

/* A message under a live claim does not expire. */
static inline bool
message_is_expired(const MessageForm *form, TimestampTz now)
{
	return form->expires_at <= now && !message_is_claimed(form, now);
}

/* Of messages, that one transaction of the worker's moves */
#define MOVE_BYTES		(4 * 1024 * 1024)

extern TupleTableSlot *row_slot(MessageTable *table);
extern HeapTuple row_tuple(TupleTableSlot *slot);
extern void message_insert(MessageTable *table, HeapTuple tuple);
extern void message_multi_insert(MessageTable *table, HeapTuple *tuples, int n);
extern TM_Result message_lock(MessageTable *table, TupleTableSlot *slot,
						  LockTupleMode mode, LockWaitPolicy wait);
extern bool message_lock_as_seen(MessageTable *table, TupleTableSlot *slot,
							 LockTupleMode mode, LockWaitPolicy wait);
extern bool message_move(MessageTable *from, TupleTableSlot *slot,
					 MessageTable *to, Size *bytes);
extern TM_Result message_update(MessageTable *table, ItemPointer tid,
							HeapTuple tuple);
extern TM_Result message_delete(MessageTable *table, HeapTuple tuple);
extern void message_update_locked(MessageTable *table, ItemPointer tid,
							  HeapTuple tuple);
extern void message_delete_locked(MessageTable *table, HeapTuple tuple);
extern HeapTuple message_copy_to(MessageTable *from, MessageTable *to,
							 HeapTuple tuple, TimestampTz due_at);
extern void message_set_claim(MessageForm *form, TimestampTz now, int ttl, int grace);
extern void message_clear_claim(MessageForm *form);
extern TM_Result row_update_any(Relation rel, ItemPointer tid,
								HeapTuple tuple);
extern bool row_insert_unique(Relation rel, Relation arbiter,
							  HeapTuple tuple);
extern HeapTuple row_fetch(Relation rel, Oid index, ScanKey keys, int nkeys);
extern bool row_change_in_place(Relation rel, ItemPointer tid, bool write,
					 void (*action) (HeapTuple tuple, void *arg), void *arg);
extern void row_delete_of_queue(Relation rel, Relation index, int32 queue_id);
extern bool row_find_unique(Relation rel, Relation index, ScanKey keys,
							int nkeys, TupleTableSlot *slot);

#endif							/* QUEUE_ROW_H */
