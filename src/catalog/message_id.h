/*-------------------------------------------------------------------------
 *
 * message_id.h
 *	  Message ids.
 *
 * NOTES
 *	  A message id has these parts, from its high bits to its low ones:
 *
 *	  number	 grows with time; taken from a sequence in blocks, so that the
 *				 ids of a queue are close together
 *	  priority	 4 bits
 *	  segment	 5 bits: the table that the message was pushed to
 *
 *	  So a message is found with one index scan of one table.  The segment is
 *	  only where to look first: the message may have been moved.
 *
 * src/catalog/message_id.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MESSAGE_ID_H
#define QUEUE_MESSAGE_ID_H

#define MESSAGE_ID_SEGMENT_BITS		5
#define MESSAGE_ID_PRIORITY_BITS	4
#define MESSAGE_ID_LOW_BITS			(MESSAGE_ID_SEGMENT_BITS + MESSAGE_ID_PRIORITY_BITS)

/* A block of numbers */
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

/*
 * Compare ids for sorting in the order in which messages are handed out: the
 * highest priority first, then the lowest number.
 */
static inline int
message_id_compare(int64 x, int64 y)
{
	if (message_id_priority(x) != message_id_priority(y))
		return message_id_priority(x) > message_id_priority(y) ? -1 : 1;
	return x < y ? -1 : (x > y);
}

#endif							/* QUEUE_MESSAGE_ID_H */
