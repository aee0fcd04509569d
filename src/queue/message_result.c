/*-------------------------------------------------------------------------
 *
 * message_result.c
 *	  Messages that a function returns: rows of type queue_message.
 *
 * NOTES
 *	  Claims and lists add messages to a MessageResult in the same way, whether
 *	  it has a tuplestore or an array.  Rows that go to a tuplestore may be
 *	  others, for the functions of visibility_api.c.
 *
 * src/queue/message_result.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/tables.h"
#include "queue/message_result.h"
#include "storage/attributes.h"
#include "storage/claim_id.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "util/clock.h"
#include "util/json.h"

static Datum fetch_message_column(HeapTuple tuple, int column, TupleDesc desc,
								  bool *isnull, struct varlena **allocated);
static void put_hidden_message(MessageResult *result, int64 base,
							   TupleDesc desc, HeapTuple tuple,
							   const MessageForm *form);
static void add_message_to_array(MessageResult *result, const Datum *values,
								 const bool *isnull);

static void
add_message_to_array(MessageResult *result, const Datum *values,
					 const bool *isnull)
{
	static const int by_reference[] = {
		Anum_queue_message_queue,
		Anum_queue_message_body,
		Anum_queue_message_claim_id,
		Anum_queue_message_group_key,
		Anum_queue_message_headers
	};
	MemoryContext old = MemoryContextSwitchTo(result->context);
	ResultMessage *message = &result->messages[result->n++];

	memcpy(message->values, values, sizeof(message->values));
	memcpy(message->isnull, isnull, sizeof(message->isnull));
	message->id = DatumGetInt64(values[Anum_queue_message_id - 1]);
	message->claim_count =
		DatumGetInt32(values[Anum_queue_message_claim_count - 1]);
	for (Size i = 0; i < lengthof(by_reference); i++)
	{
		int			n = by_reference[i] - 1;

		if (!isnull[n])
			message->values[n] =
				PointerGetDatum(PG_DETOAST_DATUM_COPY(values[n]));
	}
	MemoryContextSwitchTo(old);
}

/*
 * Get a column that may be in the TOAST table.  It is fetched from there now,
 * because the message may be deleted before the result is read.  *allocated
 * is set to what the caller frees, or to NULL.
 */
static Datum
fetch_message_column(HeapTuple tuple, int column, TupleDesc desc, bool *isnull,
					 struct varlena **allocated)
{
	Datum		stored = heap_getattr(tuple, column, desc, isnull);
	struct varlena *fetched;

	*allocated = NULL;
	if (*isnull)
		return (Datum) 0;
	fetched = PG_DETOAST_DATUM_PACKED(stored);
	if (fetched != (struct varlena *) DatumGetPointer(stored))
		*allocated = fetched;
	return PointerGetDatum(fetched);
}

/*
 * Add a row that shows until when the message is hidden, or was.  A body is
 * never NULL, but to pgmq it may be: the body null is shown as NULL.
 */
static void
put_hidden_message(MessageResult *result, int64 base, TupleDesc desc,
				   HeapTuple tuple, const MessageForm *form)
{
	Datum		values[Natts_hidden_message];
	bool		isnull[Natts_hidden_message] = {false};
	struct varlena *allocated[2];
	bool		was_claimed = form->claim_token != 0;
	TimestampTz visible_at = was_claimed ? form->claimed_until :
	form->created_at;

	if (!message_row_is_null(tuple, Anum_message_due_at))
	{
		bool		due_is_null;
		Datum		due_at = heap_getattr(tuple, Anum_message_due_at, desc,
										  &due_is_null);

		visible_at = Max(visible_at, DatumGetTimestampTz(due_at));
	}

#define SET(attribute, value) \
	values[Anum_hidden_message_##attribute - 1] = (value)
	SET(id, Int64GetDatum(message_id_for_pgmq(form->id, base)));
	SET(claim_count, Int32GetDatum(form->claim_count));
	SET(created_at, TimestampTzGetDatum(form->created_at));

	/* Of a claim whose end has changed it is right to about a second. */
	SET(claimed_at, TimestampTzGetDatum(Max(form->claimed_at,
											form->created_at)));
	isnull[Anum_hidden_message_claimed_at - 1] = !was_claimed;
	SET(visible_at, TimestampTzGetDatum(visible_at));
	SET(headers, fetch_message_column(tuple, Anum_message_headers, desc,
									  &isnull[Anum_hidden_message_headers - 1],
									  &allocated[0]));
	if (result->no_bodies)
	{
		allocated[1] = NULL;
		isnull[Anum_hidden_message_body - 1] = true;
	}
	else
	{
		bool	   *body_is_null = &isnull[Anum_hidden_message_body - 1];
		Datum		body = fetch_message_column(tuple, Anum_message_body, desc,
												body_is_null, &allocated[1]);

		SET(body, body);
		*body_is_null = json_is_null(DatumGetJsonbP(body));
	}
#undef SET
	tuplestore_putvalues(result->store, result->store_desc, values, isnull);
	for (Size i = 0; i < lengthof(allocated); i++)
		if (allocated[i] != NULL)
			pfree(allocated[i]);
}

/* Add a message; desc is that of the table that the tuple was read from. */
void
message_result_add(MessageResult *result, const Queue *queue, TupleDesc desc,
				   HeapTuple tuple, TimestampTz now)
{
	MessageForm form = message_read(tuple);
	bool		is_claimed = message_is_claimed(&form, now);
	Datum		values[Natts_queue_message];
	bool		isnull[Natts_queue_message] = {false};
	struct varlena *allocated[2];
	char		name[VARHDRSZ_SHORT + QUEUE_NAME_LENGTH];
	Size		length = strlen(queue->name);

	if (result->store != NULL &&
		result->store_desc->natts == Natts_hidden_message)
	{
		put_hidden_message(result, queue->pgmq_base, desc, tuple, &form);
		return;
	}
	SET_VARSIZE_SHORT(name, VARHDRSZ_SHORT + length);
	memcpy(VARDATA_SHORT(name), queue->name, length);
	if (is_claimed && result->claim.token != form.claim_token)
	{
		result->claim.token = form.claim_token;
		result->claim.first = form.claim_first;
		result->claim.span = form.claim_span;
		result->claim.priorities = form.claim_priorities;
		claim_id_print(form.queue_id, &result->claim, result->claim_id);
	}

#define SET(attribute, value) \
	values[Anum_queue_message_##attribute - 1] = (value)
	SET(id, Int64GetDatum(form.id));
	SET(queue, PointerGetDatum(name));
	SET(body, fetch_message_column(tuple, Anum_message_body, desc,
								   &isnull[Anum_queue_message_body - 1],
								   &allocated[0]));
	SET(ttl, Int32GetDatum(clock_seconds(form.created_at,
										 form.expires_at)));
	SET(age, Int32GetDatum(clock_seconds(form.created_at, now)));
	SET(claim_id, is_claimed ? CStringGetTextDatum(result->claim_id) :
		(Datum) 0);
	isnull[Anum_queue_message_claim_id - 1] = !is_claimed;
	SET(claim_count, Int32GetDatum(attributes_claim_count(desc, tuple)));
	SET(priority, Int32GetDatum(form.priority));
	SET(created_at, TimestampTzGetDatum(form.created_at));
	SET(group_key, heap_getattr(tuple, Anum_message_group_key, desc,
								&isnull[Anum_queue_message_group_key - 1]));
	SET(headers, fetch_message_column(tuple, Anum_message_headers, desc,
									  &isnull[Anum_queue_message_headers - 1],
									  &allocated[1]));
#undef SET
	if (result->store != NULL)
		tuplestore_putvalues(result->store, result->store_desc, values,
							 isnull);
	else
		add_message_to_array(result, values, isnull);

	if (is_claimed)
		pfree(DatumGetPointer(values[Anum_queue_message_claim_id - 1]));
	for (Size i = 0; i < lengthof(allocated); i++)
		if (allocated[i] != NULL)
			pfree(allocated[i]);
}
