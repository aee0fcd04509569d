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
 *	  Where several servers share the queues, the server's number is in the
 *	  number of each block, so that messages keep their ids when they move to
 *	  another server.  It is not in the lowest bits: a server takes a run of
 *	  blocks that follow one another, then leaves out the runs of the other
 *	  servers.  So the ids of a queue are close together there, too.
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

/* Blocks of all servers; the maximum of the sequence is below this. */
#define MESSAGE_ID_BLOCKS		(INT64CONST(1) << (63 - MESSAGE_ID_LOW_BITS - MESSAGE_ID_BLOCK_BITS))

/* A run of blocks */
#define MESSAGE_ID_RUN_BITS		10
#define MESSAGE_ID_RUN			(1 << MESSAGE_ID_RUN_BITS)

/* Servers that have numbers of their own */
#define SERVERS_MAX				256

/*
 * A block of one of several servers, from the number that its sequence gives
 */
static inline int64
message_id_block_of_server(int64 block, int server)
{
	int64		run = block / MESSAGE_ID_RUN * SERVERS_MAX + server;

	return run * MESSAGE_ID_RUN + block % MESSAGE_ID_RUN;
}

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

/* For qsort() and bsearch(): compare values that begin with an id. */
static inline int
message_id_cmp(const void *a, const void *b)
{
	return message_id_compare(*(const int64 *) a, *(const int64 *) b);
}

/*
 * The id that pgmq shows of a message (visibility.c): its number minus that of
 * the last one before the queue became one of pgmq, so that ids count from 1
 * in each queue.  The priority is in the bits above; pgmq itself has none.
 */
#define PGMQ_ID_NUMBER_BITS		58

static inline int64
message_id_for_pgmq(int64 id, int64 base)
{
	return (message_id_number(id) - base) |
		((int64) message_id_priority(id) << PGMQ_ID_NUMBER_BITS);
}

static inline int64
message_id_of_pgmq_number(int64 pgmq_id, int64 base)
{
	return (pgmq_id & ((INT64CONST(1) << PGMQ_ID_NUMBER_BITS) - 1)) + base;
}

static inline int
message_id_of_pgmq_priority(int64 pgmq_id)
{
	return (int) (pgmq_id >> PGMQ_ID_NUMBER_BITS);
}

#endif							/* QUEUE_MESSAGE_ID_H */
