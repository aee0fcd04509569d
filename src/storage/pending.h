/*-------------------------------------------------------------------------
 *
 * pending.h
 *	  What this transaction did to messages, and what follows when it ends.
 *
 * src/storage/pending.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PENDING_H
#define QUEUE_PENDING_H

#include "datatype/timestamp.h"

#include "catalog/tables.h"
#include "shmem/availability.h"

extern void pending_init(void);
extern void pending_queue(int32 queue_id);
extern void pending_message(const MessageForm *form, bool delayed,
						  TimestampTz due, bool on_abort);
extern bool pending_next_own(int32 queue_id, TimestampTz now,
						   MessageRange *range);
extern void pending_rescan_own(int32 queue_id);
extern void pending_delayed(const MessageForm *form, TimestampTz until,
						 TimestampTz due, bool on_abort);
extern bool pending_has_own_delayed(int32 queue_id, TimestampTz now,
								 TimestampTz *from);
extern bool pending_next_queue(int32 *queue_id);

#endif							/* QUEUE_PENDING_H */
