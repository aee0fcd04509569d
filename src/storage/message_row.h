/*-------------------------------------------------------------------------
 *
 * message_row.h
 *	  The rows of messages: reading and forming them.
 *
 * src/storage/message_row.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MESSAGE_ROW_H
#define QUEUE_MESSAGE_ROW_H

#include "access/htup_details.h"
#include "access/tupdesc.h"
#include "utils/jsonb.h"
#include "utils/rel.h"

#include "catalog/tables.h"
#include "map/availability.h"

/* Rows that no function wrote */
extern bool message_row_check(int elevel, Relation rel, HeapTuple tuple);

/*
 * heap_attisnull() for a column that is nullable, and absent in rows of older
 * versions; inline, since each message is asked several times.
 */
static inline bool
message_row_is_null(HeapTuple tuple, int column)
{
	HeapTupleHeader row = tuple->t_data;

	return column > HeapTupleHeaderGetNatts(row) ||
		(HeapTupleHasNulls(tuple) && att_isnull(column - 1, row->t_bits));
}

/* Reading */
extern LaneId message_lane(TupleDesc desc, HeapTuple tuple);
extern MessageForm message_read(HeapTuple tuple);
extern int64 message_row_id(HeapTuple tuple);
extern int32 message_row_queue(HeapTuple tuple);
extern bool message_row_is_held(HeapTuple tuple, TimestampTz *until);

/* Forming */
extern HeapTuple message_row_form(TupleDesc desc, const MessageForm *form,
								  Datum *values, bool *isnull);
extern HeapTuple message_row_change(TupleDesc desc, HeapTuple tuple,
									const MessageForm *form);

/* What a claim changes */
extern void message_set_claim(MessageForm *form, TimestampTz now, int ttl,
							  int grace);
extern void message_hide(MessageForm *form, TimestampTz from,
						 TimestampTz until, int grace);
extern void message_keep_for_retry(MessageForm *form, TimestampTz due);
extern void message_keep_when_due(MessageForm *form, TimestampTz due);
extern void message_clear_claim(MessageForm *form);

/* In place, on a row whose page is locked */
extern void message_row_count_end(HeapTuple tuple, void *is_first);

#endif							/* QUEUE_MESSAGE_ROW_H */
