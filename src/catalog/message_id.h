/*-------------------------------------------------------------------------
 *
 * message_id.h
 *	  Message ids.
 *
 * src/catalog/message_id.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MESSAGE_ID_H
#define QUEUE_MESSAGE_ID_H

/* claim_id.c: message ids and claim ids */
#define MESSAGE_ID_SEGMENT_BITS		5
#define MESSAGE_ID_PRIORITY_BITS	4
#define MESSAGE_ID_LOW_BITS			(MESSAGE_ID_SEGMENT_BITS + MESSAGE_ID_PRIORITY_BITS)
#define MESSAGE_ID_BLOCK_BITS		5
#define MESSAGE_ID_BLOCK			(1 << MESSAGE_ID_BLOCK_BITS)

static inline int64
message_id_make(int64 number, int priority, int segment)
{
	return (number << MESSAGE_ID_LOW_BITS) |
		((int64) priority << MESSAGE_ID_SEGMENT_BITS) | segment;
}

static inline int64
message_id_number(int64 id)
{
	return id >> MESSAGE_ID_LOW_BITS;
}

static inline int
message_id_priority(int64 id)
{
	return (int) (id >> MESSAGE_ID_SEGMENT_BITS) & ((1 << MESSAGE_ID_PRIORITY_BITS) - 1);
}

static inline int
message_id_segment(int64 id)
{
	return (int) id & ((1 << MESSAGE_ID_SEGMENT_BITS) - 1);
}

#endif							/* QUEUE_MESSAGE_ID_H */
