/*-------------------------------------------------------------------------
 *
 * message_result.c
 *	  Messages as the functions return them: rows of type queue_message.
 *
 * src/queue/message_result.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "catalog/tables.h"
#include "queue/message_result.h"
#include "queue/registry.h"
#include "storage/claim_id.h"
#include "storage/message.h"

static void keep(MessageResult *result, const Datum *values,
				 const bool *isnull);

/* Get ready to return messages. */
void
result_begin(MessageResult *result, FunctionCallInfo fcinfo)
{
	InitMaterializedSRF(fcinfo, 0);
	memset(result, 0, sizeof(MessageResult));
	result->rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
}

/* Whole seconds from one time to another; a clock that stepped back: 0. */
int
result_seconds(TimestampTz from, TimestampTz to)
{
	TimestampTz seconds = (to - from) / USECS_PER_SEC;

	return (int) Max(0, Min(seconds, INT_MAX));
}

/* The body of a message, whole and in memory of our own. */
Jsonb *
result_body(TupleDesc desc, HeapTuple tuple)
{
	bool		isnull;

	return DatumGetJsonbPCopy(heap_getattr(tuple, Anum_message_body, desc,
										   &isnull));
}

/*
 * Keep a message for a caller inside, who has made room.  What its row points
 * to is copied into his memory context.
 */
static void
keep(MessageResult *result, const Datum *values, const bool *isnull)
{
	MemoryContext old = MemoryContextSwitchTo(result->context);
	KeptMessage *kept = &result->kept[result->nkept++];

	memcpy(kept->values, values, sizeof(kept->values));
	memcpy(kept->isnull, isnull, sizeof(kept->isnull));
	kept->id = DatumGetInt64(values[0]);
	kept->claim_count = DatumGetInt32(values[6]);
	kept->values[1] = PointerGetDatum(PG_DETOAST_DATUM_COPY(values[1]));
	kept->values[2] = PointerGetDatum(PG_DETOAST_DATUM_COPY(values[2]));
	if (!isnull[5])
		kept->values[5] = PointerGetDatum(PG_DETOAST_DATUM_COPY(values[5]));
	MemoryContextSwitchTo(old);
}

/* Return one message; desc is that of the table it was read from. */
void
result_put(MessageResult *result, const Queue *queue, TupleDesc desc,
		   HeapTuple tuple, TimestampTz now)
{
	MessageForm *form = MESSAGE_FORM(tuple);
	Datum		values[Natts_queue_message];
	bool		isnull[Natts_queue_message] = {false};
	Datum		body;
	Datum		whole;

	if (result->queue != queue)
	{
		result->queue = queue;
		result->name = CStringGetTextDatum(queue->name);
	}
	if (message_is_claimed(form, now) &&
		form->claim_token != result->claim.token)
	{
		result->claim.token = form->claim_token;
		result->claim.first = form->claim_first;
		result->claim.span = form->claim_span;
		result->claim.priorities = form->claim_priorities;
		claim_id_print(form->queue_id, &result->claim, result->claim_text);
	}

	body = heap_getattr(tuple, Anum_message_body, desc, &isnull[2]);

	/* A large body may be gone from beside the table when the caller looks. */
	whole = PointerGetDatum(PG_DETOAST_DATUM_PACKED(body));

	values[0] = Int64GetDatum(form->id);
	values[1] = result->name;
	values[2] = whole;
	values[3] = Int32GetDatum(result_seconds(form->created_at,
											 form->expires_at));
	values[4] = Int32GetDatum(result_seconds(form->created_at, now));
	if (message_is_claimed(form, now))
		values[5] = CStringGetTextDatum(result->claim_text);
	else
		isnull[5] = true;
	values[6] = Int32GetDatum(form->claim_count);
	values[7] = Int32GetDatum(form->priority);
	values[8] = TimestampTzGetDatum(form->created_at);
	if (result->rsinfo == NULL)
		keep(result, values, isnull);
	else
		tuplestore_putvalues(result->rsinfo->setResult,
							 result->rsinfo->setDesc, values, isnull);

	if (!isnull[5])
		pfree(DatumGetPointer(values[5]));
	if (whole != body)
		pfree(DatumGetPointer(whole));
}
