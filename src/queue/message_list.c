/*-------------------------------------------------------------------------
 *
 * message_list.c
 *	  Reading the messages of a queue without claiming them.
 *
 * NOTES
 *	  These functions read with the latest snapshot at every isolation level,
 *	  like all functions of the extension, because a segment may have been
 *	  truncated since an older one.  They take no lock on the queue and work on
 *	  a standby.  An expired message is left out, whether or not its row was
 *	  removed already.
 *
 * src/queue/message_list.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "queue/message_list.h"
#include "queue/message_result.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "storage/row.h"
#include "util/settings.h"

/* A list that goes to a result */
typedef struct ResultList
{
	const Queue *queue;
	MessageResult *result;
} ResultList;

static bool row_is_own(const ScanRow *row);
static MessageState row_state(const ScanRow *row, TimestampTz now);
static bool body_contains(const ScanRow *row, Jsonb *part);
static bool add_to_result(const ScanRow *row, TimestampTz now, void *arg);
static bool count_message(const ScanRow *row, TimestampTz now, void *arg);

/*
 * Returns whether the message was pushed under the client id of this session.
 */
static bool
row_is_own(const ScanRow *row)
{
	bool		isnull;
	Datum		client_id;

	if (*setting_client_id == '\0')
		return false;
	client_id = heap_getattr(row->tuple, Anum_message_client_id,
							 RelationGetDescr(row->table->heap), &isnull);
	return !isnull &&
		strcmp(TextDatumGetCString(client_id), setting_client_id) == 0;
}

static MessageState
row_state(const ScanRow *row, TimestampTz now)
{
	return message_state(RelationGetDescr(row->table->heap), row->tuple,
						 &row->form, now);
}

/* Returns whether the body of a message contains this. */
static bool
body_contains(const ScanRow *row, Jsonb *part)
{
	bool		isnull;
	Datum		body = heap_getattr(row->tuple, Anum_message_body,
									RelationGetDescr(row->table->heap),
									&isnull);

	return DatumGetBool(DirectFunctionCall2(jsonb_contains, body,
											JsonbPGetDatum(part)));
}

/*
 * Call the callback for the messages that pass the filter, ordered by id, up
 * to the limit of those for which it returns true.  Returns the id of the last
 * message that was read, if there are others after so many; otherwise 0.
 */
int64
message_list_each(const Queue *queue, const MessageFilter *filter,
				  MessageCallback callback, void *arg)
{
	/* What is allocated for a message is freed before the next one. */
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "a message of a list",
												  ALLOCSET_DEFAULT_SIZES);
	TimestampTz now = GetCurrentTimestamp();
	int64		left = filter->limit;
	int64		nread = 0;
	int64		last = 0;
	bool		cut = false;
	MessageScan *scan;
	ScanRow		row;

	scan = message_scan_begin_list(queue->id, filter->first_id,
								   AccessShareLock);
	while (left > 0 && message_scan_next(scan, &row))
	{
		MemoryContext old;

		CHECK_FOR_INTERRUPTS();
		cut = nread++ == filter->read_max;
		if (cut)
			break;
		last = row.form.id;
		if (message_is_expired(&row.form, now))
			continue;
		old = MemoryContextSwitchTo(context);
		if ((filter->states & row_state(&row, now)) != 0 &&
			(filter->own || !row_is_own(&row)) &&
			(filter->body == NULL || body_contains(&row, filter->body)) &&
			callback(&row, now, arg))
			left--;
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	message_scan_end(scan);
	MemoryContextDelete(context);
	return cut ? last : 0;
}

/* Callback of message_list(): add a message to the result. */
static bool
add_to_result(const ScanRow *row, TimestampTz now, void *arg)
{
	const ResultList *list = arg;

	message_result_add(list->result, list->queue,
					   RelationGetDescr(row->table->heap), row->tuple, now);
	return true;
}

/* Add the messages that pass the filter to the result, in a tuplestore. */
int64
message_list(const Queue *queue, const MessageFilter *filter,
			 MessageResult *result)
{
	ResultList	list = {.queue = queue,.result = result};

	return message_list_each(queue, filter, add_to_result, &list);
}

/* Add a message that was found to the result, and close it. */
void
message_list_found(const Queue *queue, FoundMessage *found,
				   MessageResult *result)
{
	TimestampTz now = GetCurrentTimestamp();

	if (!message_is_expired(&found->form, now))
		message_result_add(result, queue, RelationGetDescr(found->table.heap),
						   found->tuple, now);
	message_close_found(found);
}

/* Add the message with this id to the result, if it exists. */
void
message_list_one(const Queue *queue, int64 id, MessageResult *result)
{
	FoundMessage found;

	if (message_find(queue->id, id, AccessShareLock, &found))
		message_list_found(queue, &found, result);
}

/* Count a message, which has not expired, by its state. */
void
message_list_add(StateCounts *counts, const ScanRow *row, TimestampTz now)
{
	switch (row_state(row, now))
	{
		case STATE_FREE:
			counts->free++;
			break;
		case STATE_CLAIMED:
		case STATE_CANCELED:
			counts->claimed++;
			break;
		case STATE_DELAYED:
		case STATE_WAITING:
			counts->delayed++;
			break;
	}
}

/* Callback of message_list_count() */
static bool
count_message(const ScanRow *row, TimestampTz now, void *arg)
{
	MessageCounts *counts = arg;

	message_list_add(&counts->states, row, now);
	if (counts->total++ == 0)
		counts->oldest = row->form;
	counts->newest = row->form;
	return true;
}

/* Count the messages of a queue; reads all of them. */
void
message_list_count(const Queue *queue, MessageCounts *counts)
{
	MessageFilter filter = ALL_MESSAGES;

	memset(counts, 0, sizeof(MessageCounts));
	counts->now = GetCurrentTimestamp();
	(void) message_list_each(queue, &filter, count_message, counts);
}
