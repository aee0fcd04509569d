/*-------------------------------------------------------------------------
 *
 * push.c
 *	  Pushing: checking new messages and writing them.
 *
 * NOTES
 *	  push_messages() writes the messages of one call in three steps:
 *
 *	  1. It assigns their ids, in the order of the call.  Numbers come in
 *		 blocks from one sequence, so ids grow with time; where the queue has
 *		 an availability map, concurrent calls share a block.
 *	  2. It takes their deduplication keys (dedup.c), which may wait for other
 *		 transactions.  The keys are taken in sorted order, so that two
 *		 sessions that push the same keys do not deadlock.
 *	  3. It forms the rows and inserts many at once: the ones that are due at
 *		 once into the active segment, the delayed ones into the active segment
 *		 of delayed messages.  The clock is read before this step, not before
 *		 step 2, so that waiting does not use up the messages' lifetime.
 *
 *	  A table is opened before the first id of a message in it is assigned,
 *	  because the id names the segment.
 *
 *	  All queues have their messages in the same segments.  So the copies
 *	  of a message that is published are inserted at once, too.
 *
 *	  Publishing pushes a message to each queue that is bound to its topic.  A
 *	  publisher reaches a queue by its binding, whatever its own privilege on
 *	  the queue, and learns nothing of the queues but how many it has reached.
 *	  Nor may the owner of one keep it from reaching the others: a queue that
 *	  cannot take its copy now, because of its own metadata or because a
 *	  transaction purges or drops it, is left out.  The server's log says so,
 *	  once in a minute for each session and queue, with the number of copies.
 *	  What is published while a queue is purged or dropped is gone, as if it
 *	  had been there before; even if that transaction is rolled back.
 *
 * src/push/push.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "catalog/message_id.h"
#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "map/availability.h"
#include "push/dedup.h"
#include "push/push.h"
#include "push/push_batch.h"
#include "queue/acl.h"
#include "queue/group.h"
#include "queue/options.h"
#include "queue/registry.h"
#include "queue/topic.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/compat.h"
#include "util/settings.h"

/* Rows are inserted when so many, or so many bytes of them, were collected. */
#define FLUSH_ROWS		1000
#define FLUSH_BYTES		65536

/* What so many bytes of rows take, with their slots */
#define ROWS_MEMORY		(4 * FLUSH_BYTES)

/* Rows that are to be inserted into one table */
typedef struct RowBuffer
{
	MessageTable table;
	int			n;
	Size		bytes;
	HeapTuple  *tuples;			/* NULL if the table is not open */
} RowBuffer;

/* One call of push_messages */
typedef struct Push
{
	const Queue *queues;
	int			nqueues;		/* 1, or n: one for each message */
	NewMessage *messages;
	int			n;
	Datum		client_id;		/* 0 if there is none */
	TimestampTz now;

	/* Assigning ids */
	int			priorities;		/* of all messages, a bit for each */
	int			left;			/* messages that have no number yet */
	int64		number;			/* the next one */
	int64		numbers_end;	/* the first one that is not ours */

	/* Writing */
	RowBuffer	buffers[2];		/* the second one for delayed messages */
} Push;

/* Kept from one call to the next; NULL before the first */
static MemoryContext rows_memory = NULL;

static bool is_delayed(const NewMessage *message);
static TimestampTz due_time(const NewMessage *message, TimestampTz now);
static const Queue *queue_of(const Push *push, const NewMessage *message);
static int64 next_message_number(Push *push, const Queue *queue);
static bool assign_ids(Push *push);
static int	compare_dedup_keys(const void *a, const void *b);
static void replace_message(Push *push, const NewMessage *message, int64 id);
static bool take_dedup_key(Push *push, NewMessage *message,
						   NewMessage **first);
static void take_dedup_keys(Push *push);
static HeapTuple form_message_row(Push *push, TupleDesc desc,
								  const NewMessage *message);
static MemoryContext get_rows_memory(void);
static void flush_buffers(Push *push);
static void write_messages(Push *push);
static void push_to_queues(const Queue *queues, int nqueues,
						   NewMessage *messages, int n);
static void leave_out(TopicBinding *binding, const char *topic,
					  const char *reason);

/* --- Checks and defaults --- */

/* The size of a message: that of its body and headers */
int64
push_size(const NewMessage *message)
{
	return VARSIZE(message->body) +
		(message->headers == NULL ? 0 : VARSIZE(message->headers));
}

/* Check the size of a message against the limit for all queues. */
void
push_check_size(const NewMessage *message)
{
	int64		size = push_size(message);

	if (size > setting_max_message_size)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("message of %lld bytes is too large", (long long) size),
				 errdetail("The setting \"queue.max_message_size\" is %d bytes.",
						   setting_max_message_size),
				 errhint("Send less, store the large part elsewhere and refer to it, or have \"queue.max_message_size\" raised.")));
}

/* Replace PUSH_DEFAULT by what the queue's metadata or the settings say. */
void
push_set_defaults(const Queue *queue, NewMessage *message)
{
	if (message->ttl == PUSH_DEFAULT)
		message->ttl = options_default_ttl(queue);
	if (message->delay == PUSH_DEFAULT)
		message->delay = queue->default_delay;
}

/*
 * Check a message against the limits and set its defaults.  *total is the
 * number of bytes of the bodies and headers of this call so far.
 */
void
push_prepare(const Queue *queue, NewMessage *message, int64 *total)
{
	push_check_size(message);
	*total += push_size(message);
	if (queue->max_post_size >= 0 && *total > queue->max_post_size)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("messages of %lld bytes are too large for one push to queue \"%s\"",
						(long long) *total, queue->name),
				 errdetail("\"_max_messages_post_size\" in its metadata is %d bytes.",
						   queue->max_post_size),
				 errhint("Push fewer messages at once, or raise \"_max_messages_post_size\" with queue_update.")));
	push_set_defaults(queue, message);
}

/* --- Ids --- */

/* Returns whether the message goes into a table of delayed messages. */
static bool
is_delayed(const NewMessage *message)
{
	return message->delay > 0 || message->at != 0 ||
		message->after != NO_BATCH;
}

/* Returns when the message is due that is pushed now. */
static TimestampTz
due_time(const NewMessage *message, TimestampTz now)
{
	return message->at != 0 ? message->at :
		now + message->delay * USECS_PER_SEC;
}

/* Returns the queue of one of the messages. */
static const Queue *
queue_of(const Push *push, const NewMessage *message)
{
	return &push->queues[push->nqueues == 1 ? 0 : message - push->messages];
}

static int64
next_message_number(Push *push, const Queue *queue)
{
	if (push->number == push->numbers_end)
	{
		int			n = MESSAGE_ID_BLOCK;

		push->number = availability_take_numbers(queue->id, push->priorities,
												 push->nqueues == 1 ?
												 push->left : 1, &n);
		push->numbers_end = push->number + n;
	}
	push->left--;
	return push->number++;
}

/* Give each message an id.  Returns whether one has a deduplication key. */
static bool
assign_ids(Push *push)
{
	const Queue *registered = NULL;
	bool		has_keys = false;

	for (int i = 0; i < push->n; i++)
	{
		NewMessage *message = &push->messages[i];
		const Queue *queue = queue_of(push, message);
		RowBuffer  *buffer = &push->buffers[is_delayed(message)];

		if (buffer->tuples == NULL)
		{
			segment_open_active(&buffer->table, is_delayed(message) ?
								RING_DELAYED : RING_MESSAGES, true);
			buffer->tuples = palloc(Min(push->n - i, FLUSH_ROWS) *
									sizeof(HeapTuple));
		}
		message->id = message_id_make(next_message_number(push, queue),
									  message->priority,
									  buffer->table.segment);
		has_keys |= message->dedup_key != NULL;

		/* Claims have to know that the queue has groups from now on. */
		if (message->group_key != NULL && !queue->has_groups &&
			queue != registered)
		{
			group_register(queue->id);
			registered = queue;
		}
	}
	return has_keys;
}

/* --- Deduplication keys --- */

/* Order by key, then by position in the call. */
static int
compare_dedup_keys(const void *a, const void *b)
{
	const NewMessage *x = *(NewMessage *const *) a;
	const NewMessage *y = *(NewMessage *const *) b;
	int			order = memcmp(x->dedup_key, y->dedup_key, sizeof(pg_uuid_t));

	return order != 0 ? order : x < y ? -1 : 1;
}

/*
 * Put the body, the headers and the due time of a new message into one that
 * waits, which this transaction has locked.
 */
static void
replace_message(Push *push, const NewMessage *message, int64 id)
{
	int			columns[] = {Anum_message_body, Anum_message_headers,
	Anum_message_due_at};
	Datum		values[lengthof(columns)];
	bool		isnull[lengthof(columns)] = {false, message->headers == NULL};
	TimestampTz due = due_time(message, GetCurrentTimestamp());
	MessageTable *target = &push->buffers[is_delayed(message)].table;
	FoundMessage found;
	MessageForm form;
	TupleDesc	desc;
	HeapTuple	old;
	HeapTuple	new;

	if (!message_find(queue_of(push, message)->id, id, RowExclusiveLock,
					  &found))
		elog(ERROR, "a locked message is gone");
	desc = RelationGetDescr(found.table.heap);
	old = heap_copytuple(found.tuple);
	form = found.form;

	/* Its claim, if it has one, has run out. */
	if (form.claim_token != 0)
		message_clear_claim(&form);
	values[0] = JsonbPGetDatum(message->body);
	values[1] = JsonbPGetDatum(message->headers);
	values[2] = TimestampTzGetDatum(due);
	new = heap_modify_tuple_by_cols(message_row_change(desc, old, &form), desc,
									form.is_delayed ? 3 : 2, columns, values,
									isnull);
	if (form.is_delayed == is_delayed(message))
		message_update_locked(&found.table, old, new);
	else
	{
		message_insert(target, message_copy_to(&found.table, target, new, due));
		message_delete_locked(&found.table, old);

		/* Others of its group may be claimed before it now. */
		if (!form.is_delayed)
			group_make_room(queue_of(push, message), &found.table, old, false);
	}
	message_close_found(&found);
	CommandCounterIncrement();
}

/*
 * Take the key of one message.  *first is the one of this call that has taken
 * the same key, or NULL.  Returns false if the message is a duplicate.
 */
static bool
take_dedup_key(Push *push, NewMessage *message, NewMessage **first)
{
	DedupTake	take = {.queue = queue_of(push, message),
		.digest = message->dedup_key,.id = message->id,
		.terms = message->dedup,
	.wait = push->nqueues == 1 ? LockWaitBlock : LockWaitSkip};
	int64		waiting;

	if (*first == NULL)
	{
		switch (dedup_take_key(&take, &waiting))
		{
			case KEY_TAKEN:
				*first = message;
				return true;
			case KEY_BUSY:

				/*
				 * A transaction of one queue must not keep a copy from the
				 * others: that copy gets no key, so that there may be one
				 * message more.
				 */
				message->dedup_key = NULL;
				return true;
			case KEY_DUPLICATE:
				break;
		}
		if (message->dedup.mode != DEDUP_REPLACE || waiting == 0)
			return false;
		replace_message(push, message, waiting);
	}
	else
	{
		if (message->dedup.mode != DEDUP_REPLACE)
			return false;

		/* That one is not written yet. */
		(*first)->body = message->body;
		(*first)->headers = message->headers;
		(*first)->delay = message->delay;
		(*first)->at = message->at;
		waiting = (*first)->id;
	}
	message->id = waiting;
	message->is_replacement = true;
	counts_add(take.queue->id, JOB_DUPLICATES, 1);
	return true;
}

/* Take the deduplication keys; the id of a duplicate becomes 0. */
static void
take_dedup_keys(Push *push)
{
	NewMessage **keyed = palloc(push->n * sizeof(NewMessage *));
	NewMessage *first = NULL;
	int			nkeyed = 0;
	bool		replaces = false;
	Queue		queue;

	/* What waits for a batch takes its key when that has finished. */
	for (int i = 0; i < push->n; i++)
	{
		replaces |= push->messages[i].dedup.mode == DEDUP_REPLACE;
		if (push->messages[i].dedup_key != NULL &&
			push->messages[i].after == NO_BATCH)
			keyed[nkeyed++] = &push->messages[i];
	}
	qsort(keyed, nkeyed, sizeof(NewMessage *), compare_dedup_keys);

	/* A role that cannot claim must not change what others push. */
	if (replaces)
		(void) queue_open(push->queues->name, QUEUE_CLAIM, &queue);
	for (int i = 0; i < nkeyed; i++)
	{
		/* Of several with one key in a queue, the first is no duplicate. */
		if (push->nqueues > 1 ||
			(i > 0 && memcmp(keyed[i]->dedup_key, keyed[i - 1]->dedup_key,
							 sizeof(pg_uuid_t)) != 0))
			first = NULL;
		if (!take_dedup_key(push, keyed[i], &first))
		{
			keyed[i]->id = 0;
			counts_add(queue_of(push, keyed[i])->id, JOB_DUPLICATES, 1);
		}
	}
	pfree(keyed);
}

/* --- Rows --- */

static HeapTuple
form_message_row(Push *push, TupleDesc desc, const NewMessage *message)
{
	TimestampTz created_at = message->after == NO_BATCH ? push->now :
	push->now + setting_max_message_delay * USECS_PER_SEC;
	MessageForm form = {
		.id = message->id,
		.created_at = created_at,
		.expires_at = created_at + message->ttl * USECS_PER_SEC,
		.queue_id = queue_of(push, message)->id,
		.priority = message->priority,
		.claim_count = message->claim_count
	};
	Datum		values[Natts_message];
	bool		isnull[Natts_message];

	/*
	 * What the message does not have is a NULL pointer, and null in the row.
	 */
	memset(isnull, true, sizeof(isnull));
#define SET(attribute, value) \
	values[(attribute) - 1] = (value), \
	isnull[(attribute) - 1] = values[(attribute) - 1] == (Datum) 0
	SET(Anum_message_body, JsonbPGetDatum(message->body));
	SET(Anum_message_client_id, message->is_moved ? 0 : push->client_id);
	SET(Anum_message_dedup, UUIDPGetDatum(message->dedup_key));
	SET(Anum_message_attributes, JsonbPGetDatum(message->attributes));
	SET(Anum_message_group_key, PointerGetDatum(message->group_key));
	SET(Anum_message_headers, JsonbPGetDatum(message->headers));
	SET(Anum_message_batch, Int64GetDatum(message->batch));
	SET(Anum_message_after_batch, Int64GetDatum(message->after));
	if (message->after != NO_BATCH)
	{
		SET(Anum_message_due_at, TimestampTzGetDatum(DT_NOEND));
		SET(Anum_message_after_success, BoolGetDatum(message->after_success));

		/* Below 0: a time, as seconds before created_at (batch_end.c) */
		SET(Anum_message_after_delay,
			Int32GetDatum(message->at == 0 ? message->delay : -1 -
						  (int32) (Max(created_at - message->at, 0) /
								   USECS_PER_SEC)));
		isnull[Anum_message_after_success - 1] = false;
		isnull[Anum_message_after_delay - 1] = false;
	}
	else if (is_delayed(message))
		SET(Anum_message_due_at,
			TimestampTzGetDatum(due_time(message, push->now)));
#undef SET
	return message_row_form(desc, &form, values, isnull);
}

/*
 * Returns the memory for rows.  A batch needs more than malloc() keeps when it
 * is freed, so each call would get it anew from the operating system, page by
 * page.  So the session keeps it.
 */
static MemoryContext
get_rows_memory(void)
{
	if (rows_memory == NULL)
		rows_memory = AllocSetContextCreate(TopMemoryContext,
											"rows of new messages",
											0, ROWS_MEMORY,
											ALLOCSET_DEFAULT_MAXSIZE);

	/* An error may have ended the last call. */
	MemoryContextReset(rows_memory);
	return rows_memory;
}

/* Insert the rows in both buffers. */
static void
flush_buffers(Push *push)
{
	for (Size i = 0; i < lengthof(push->buffers); i++)
	{
		RowBuffer  *buffer = &push->buffers[i];

		if (buffer->n > 0)
			message_multi_insert(&buffer->table, buffer->tuples, buffer->n);
		buffer->n = 0;
		buffer->bytes = 0;
	}
}

/* Insert and count the messages that have an id. */
static void
write_messages(Push *push)
{
	MemoryContext old = MemoryContextSwitchTo(get_rows_memory());
	int			n = 0;

	for (int i = 0; i < push->n; i++)
	{
		NewMessage *message = &push->messages[i];
		RowBuffer  *buffer = &push->buffers[is_delayed(message)];
		HeapTuple	tuple;

		CHECK_FOR_INTERRUPTS();
		if (message->id == 0 || message->is_replacement)
			continue;
		tuple = form_message_row(push, RelationGetDescr(buffer->table.heap),
								 message);
		n++;
		if (push->nqueues > 1)
			counts_add(queue_of(push, message)->id, JOB_PUSHED, 1);
		if (message->batch != NO_BATCH)
			batches_record_added(message->batch, 1);
		buffer->tuples[buffer->n++] = tuple;
		buffer->bytes += tuple->t_len;
		if (buffer->n == FLUSH_ROWS ||
			push->buffers[0].bytes + push->buffers[1].bytes >= FLUSH_BYTES)
		{
			flush_buffers(push);
			MemoryContextReset(rows_memory);
		}
	}
	flush_buffers(push);
	MemoryContextSwitchTo(old);
	MemoryContextReset(rows_memory);
	if (push->nqueues == 1)
		counts_add(push->queues->id, JOB_PUSHED, n);
}

/* --- A call --- */

/*
 * Write n messages to one queue, or each to its own: then they are in no batch,
 * and this waits for no transaction with the same deduplication key in one of
 * the queues.
 */
static void
push_to_queues(const Queue *queues, int nqueues, NewMessage *messages, int n)
{
	Push		push = {.queues = queues,.nqueues = nqueues,
	.messages = messages,.n = n,.left = n};

	for (int i = 0; i < n; i++)
		push.priorities |= 1 << messages[i].priority;
	if (*setting_client_id != '\0')
	{
		/* The server does not verify a setting that came with a connection. */
		pg_verifymbstr(setting_client_id, strlen(setting_client_id), false);
		push.client_id = CStringGetTextDatum(setting_client_id);
	}
	push_use_batches(queues, messages, n);
	if (assign_ids(&push))
		take_dedup_keys(&push);
	push.now = GetCurrentTimestamp();
	write_messages(&push);
	for (Size i = 0; i < lengthof(push.buffers); i++)
		if (push.buffers[i].tuples != NULL)
			message_table_close(&push.buffers[i].table, true);
	CommandCounterIncrement();
}

/*
 * Write n messages that were checked and have their defaults, and set their
 * ids in the order of the array, to 0 for a duplicate.  The transaction sees
 * them afterwards.
 */
void
push_messages(const Queue *queue, NewMessage *messages, int n)
{
	push_to_queues(queue, 1, messages, n);
}

/* --- Publishing --- */

/* Count and log a copy that a queue does not take.  No client may see it. */
static void
leave_out(TopicBinding *binding, const char *topic, const char *reason)
{
	binding->left_out++;
	if (!queue_may_warn(binding->queue_name))
		return;
	ereport(LOG_SERVER_ONLY,
			(errmsg_plural("%lld published message was left out of queue \"%s\" in project \"%s\"",
						   "%lld published messages were left out of queue \"%s\" in project \"%s\"",
						   binding->left_out, (long long) binding->left_out,
						   binding->queue_name, setting_project),
			 errdetail_internal("Topic \"%s\": %s", topic, reason)));
	binding->left_out = 0;
}

/*
 * Push a message, which has no batch, to each queue that is bound to the
 * topic.  Returns the number of queues that have it now; one that has a
 * duplicate of it counts.
 */
int
push_to_topic(const char *topic, const NewMessage *message)
{
	List	   *bindings;
	ListCell   *cell;
	Queue	   *queues;
	NewMessage *copies;
	int32		last_id = 0;
	int			n = 0;

	acl_check_member(CATALOG_PRODUCER, "publish");
	push_check_size(message);
	bindings = topic_match(topic, message->headers);
	queues = palloc(list_length(bindings) * sizeof(Queue));
	copies = palloc(list_length(bindings) * sizeof(NewMessage));
	foreach(cell, bindings)
	{
		TopicBinding *binding = lfirst(cell);
		Queue	   *queue = &queues[n];
		QueueResult result;

		CHECK_FOR_INTERRUPTS();

		/* Another binding of the queue matches, too. */
		if (binding->queue_id == last_id)
			continue;
		last_id = binding->queue_id;
		result = queue_open_as(binding->queue_name, BOOTSTRAP_SUPERUSERID,
							   QUEUE_PUSH, false, queue);
		if (result == QUEUE_BUSY)
			leave_out(binding, topic,
					  "A transaction purges or drops the queue.");

		/* It was dropped, and another one may have its name. */
		if (result != QUEUE_OK || queue->id != binding->queue_id)
			continue;
		if (queue->max_post_size >= 0 &&
			push_size(message) > queue->max_post_size)
		{
			leave_out(binding, topic,
					  "The message is larger than \"_max_messages_post_size\" in the metadata of the queue.");
			continue;
		}
		copies[n] = *message;
		push_set_defaults(queue, &copies[n++]);
	}
	if (n > 0)
		push_to_queues(queues, n, copies, n);
	return n;
}
