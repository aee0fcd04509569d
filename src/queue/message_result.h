/*-------------------------------------------------------------------------
 *
 * message_result.h
 *	  Messages that a function returns: rows of type queue_message.
 *
 * src/queue/message_result.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MESSAGE_RESULT_H
#define QUEUE_MESSAGE_RESULT_H

#include "access/htup.h"
#include "access/tupdesc.h"
#include "utils/tuplestore.h"

#include "queue/registry.h"
#include "storage/claim_id.h"

/* Attributes of type queue_message */
#define Anum_queue_message_id			1
#define Anum_queue_message_queue		2
#define Anum_queue_message_body			3
#define Anum_queue_message_ttl			4
#define Anum_queue_message_age			5
#define Anum_queue_message_claim_id		6
#define Anum_queue_message_claim_count	7
#define Anum_queue_message_priority		8
#define Anum_queue_message_created_at	9
#define Anum_queue_message_group_key	10
#define Anum_queue_message_headers		11
#define Natts_queue_message				11

/*
 * A row of this many columns instead shows how a message is hidden (see
 * visibility_api.c).
 */
#define Anum_hidden_message_id			1
#define Anum_hidden_message_claim_count	2
#define Anum_hidden_message_created_at	3
#define Anum_hidden_message_claimed_at	4	/* by the last claim */
#define Anum_hidden_message_visible_at	5
#define Anum_hidden_message_body		6
#define Anum_hidden_message_headers		7
#define Natts_hidden_message			7

/* A message in an array: the attributes, and two of them once more */
typedef struct ResultMessage
{
	int64		id;
	int			claim_count;
	Datum		values[Natts_queue_message];
	bool		isnull[Natts_queue_message];
} ResultMessage;

/*
 * Collects messages in a tuplestore, for a function that returns a set, or in
 * an array, for C code.
 */
typedef struct MessageResult
{
	Tuplestorestate *store;		/* NULL to collect in the array */
	TupleDesc	store_desc;
	bool		no_bodies;		/* these are NULL, where rows show how
								 * messages are hidden */
	ResultMessage *messages;	/* the array, large enough; with copies */
	int			n;				/* messages in it */
	MemoryContext context;		/* of the array and of what it points to */

	/* Of the last message that is claimed: the next one often has the same */
	ClaimId		claim;
	char		claim_id[CLAIM_ID_LENGTH + 1];	/* as text */
} MessageResult;

extern void message_result_add(MessageResult *result, const Queue *queue,
							   TupleDesc desc, HeapTuple tuple,
							   TimestampTz now);

#endif							/* QUEUE_MESSAGE_RESULT_H */
