/*-------------------------------------------------------------------------
 *
 * message_result.h
 *	  Messages as the functions return them: rows of type queue_message.
 *
 * src/queue/message_result.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MESSAGE_RESULT_H
#define QUEUE_MESSAGE_RESULT_H

#include "fmgr.h"
#include "nodes/execnodes.h"
#include "utils/jsonb.h"

#include "queue/registry.h"
#include "storage/claim_id.h"

/* message_result.c: messages as the functions return them */
#define Natts_queue_message		9

/* One that is kept for a caller inside */
typedef struct KeptMessage
{
	int64		id;
	int			claim_count;
	Datum		values[Natts_queue_message];
	bool		isnull[Natts_queue_message];
} KeptMessage;

typedef struct MessageResult
{
	ReturnSetInfo *rsinfo;		/* NULL: they are kept */
	MemoryContext context;		/* for those that are */
	KeptMessage *kept;
	int			nkept;
	const Queue *queue;
	Datum		name;			/* of the queue */
	ClaimId		claim;			/* what claim_text says */
	char		claim_text[CLAIM_ID_LENGTH + 1];
} MessageResult;

extern void result_begin(MessageResult *result, FunctionCallInfo fcinfo);
extern void result_put(MessageResult *result, const Queue *queue,
					   TupleDesc desc, HeapTuple tuple, TimestampTz now);
extern int	result_seconds(TimestampTz from, TimestampTz to);
extern Jsonb *result_body(TupleDesc desc, HeapTuple tuple);

#endif							/* QUEUE_MESSAGE_RESULT_H */
