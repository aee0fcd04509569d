/*-------------------------------------------------------------------------
 *
 * expire.h
 *	  Removing messages whose lifetime is over.
 *
 * src/claim/expire.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_EXPIRE_H
#define QUEUE_EXPIRE_H

#include "datatype/timestamp.h"

#include "catalog/message_table.h"
#include "queue/queue_table.h"

extern void expire_remove(const Queue *queue, MessageTable *table,
						  HeapTuple tuple);
extern bool expire_messages(const Queue *queue, int64 *marker, int64 last,
							TimestampTz *next);

#endif							/* QUEUE_EXPIRE_H */
