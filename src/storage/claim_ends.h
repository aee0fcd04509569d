/*-------------------------------------------------------------------------
 *
 * claim_ends.h
 *	  Counting messages as ready whose claims have run out.
 *
 * src/storage/claim_ends.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLAIM_ENDS_H
#define QUEUE_CLAIM_ENDS_H

#include "access/htup.h"
#include "datatype/timestamp.h"

#include "catalog/message_table.h"
#include "catalog/tables.h"

extern bool claim_end_count(MessageTable *table, HeapTuple tuple,
							const MessageForm *form, TimestampTz now);

#endif							/* QUEUE_CLAIM_ENDS_H */
