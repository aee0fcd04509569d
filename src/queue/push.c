/*-------------------------------------------------------------------------
 *
 * push.c
 *	  Writing new messages.
 *
 * NOTES
 *	  Messages get their numbers in the order of the call, in blocks from one
 *	  sequence (which the calls share where there is a availability map), so that ids
 *	  grow with time.  They are collected and written
 *	  many at once: those that are free at once into the active segment, the
 *	  delayed ones into the table of delayed messages.
 *
 *	  Deduplication keys are taken before anything is written, which may wait
 *	  for other transactions, in an order that is the same for all, so that
 *	  two sessions with the same keys do not lock each other out.  The clock is
 *	  read after that, so that no lifetime passes while we wait.
 *
 * src/queue/push.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "queue/counters.h"
#include "queue/dedup.h"
#include "queue/push.h"
#include "queue/registry.h"
#include "shmem/availability.h"
#include "storage/message_id.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/settings.h"

#define FLUSH_ROWS		1000
#define FLUSH_BYTES		65536

/* Rows on their way into one table. */
typedef struct Pending
{
	MessageTable table;
	bool		open;
	int			n;
	Size		bytes;
	HeapTuple  *tuples;
} Pending;

typedef struct Store
{
	const Queue *queue;
	TimestampTz now;
	int			priorities;		/* of all messages, a bit for each */
	int			left;			/* messages without a number */
	int64		number;			/* of the next message */
	int64		numbers_end;	/* first one that is not ours */
	Datum		client_id;		/* 0: none */
	MemoryContext context;		/* of the rows on their way */
	Pending		active;
	Pending		delayed;
} Store;

static int64 next_number(Store *store);
static HeapTuple form_message(Store *store, TupleDesc desc,
							  const NewMessage *message);
static void put(Store *store, Pending *pending, NewMessage *message);
static void flush(Pending *pending);
static void open_pending(Store *store, Pending *pending, int size);
static int	compare_keys(const void *a, const void *b);
static void take_keys(const Queue *queue, NewMessage *messages, int n);
static Pending *pending_of(Store *store, const NewMessage *message);

static int64
next_number(Store *store)
{
	if (store->number == store->numbers_end)
	{
		int			n = MESSAGE_ID_BLOCK;

		if (availability_is_shared())
			store->number = availability_take_numbers(store->queue->id,
												store->priorities,
												store->left, &n);
		else
			store->number = catalog_next_block();
		store->numbers_end = store->number + n;
	}
	store->left--;
	return store->number++;
}

static HeapTuple
form_message(Store *store, TupleDesc desc, const NewMessage *message)
{
	Datum		values[Natts_delayed];
	bool		isnull[Natts_delayed] = {
		[Anum_message_twins - 1] = true,
		[Anum_message_twins_joined - 1] = true,
		[Anum_message_covered - 1] = true
	};
	Datum		client_id = message->moved ? (Datum) 0 : store->client_id;

#define SET(attribute, value) values[Anum_message_##attribute - 1] = (value)
	SET(id, Int64GetDatum(message->id));
	SET(created_at, TimestampTzGetDatum(store->now));
	SET(expires_at,
		TimestampTzGetDatum(store->now + message->ttl * USECS_PER_SEC));
	SET(claimed_at, TimestampTzGetDatum(DT_NOBEGIN));
	SET(claimed_until, TimestampTzGetDatum(DT_NOBEGIN));
	SET(claim_token, Int64GetDatum(0));
	SET(claim_first, Int64GetDatum(0));
	SET(claim_span, Int32GetDatum(0));
	SET(queue_id, Int32GetDatum(store->queue->id));
	SET(claim_grace, Int32GetDatum(0));
	SET(claim_count, Int32GetDatum(message->claim_count));
	SET(priority, Int16GetDatum(message->priority));
	SET(claim_priorities, Int16GetDatum(0));
	SET(client_id, client_id);
	SET(dedup, UUIDPGetDatum(message->dedup));
	SET(attributes, JsonbPGetDatum(message->attributes));
	SET(body, JsonbPGetDatum(message->body));
#undef SET
	values[Anum_delayed_due_at - 1] =
		TimestampTzGetDatum(store->now + message->delay * USECS_PER_SEC);

	isnull[Anum_message_client_id - 1] = client_id == (Datum) 0;
	isnull[Anum_message_dedup - 1] = message->dedup == NULL;
	isnull[Anum_message_attributes - 1] = message->attributes == NULL;
	return heap_form_tuple(desc, values, isnull);
}

static void
open_pending(Store *store, Pending *pending, int size)
{
	if (pending == &store->delayed)
		segment_open_delayed(&pending->table);
	else
		segment_open_active(&pending->table);
	pending->tuples = palloc(size * sizeof(HeapTuple));
	pending->open = true;
}

static void
flush(Pending *pending)
{
	if (pending->n == 0)
		return;
	message_multi_insert(&pending->table, pending->tuples, pending->n);
	pending->n = 0;
	pending->bytes = 0;
}

static void
put(Store *store, Pending *pending, NewMessage *message)
{
	HeapTuple	tuple;

	tuple = form_message(store, RelationGetDescr(pending->table.heap),
						 message);
	pending->tuples[pending->n++] = tuple;
	pending->bytes += tuple->t_len;
}

/* By key, then by place in the call */
static int
compare_keys(const void *a, const void *b)
{
	const NewMessage *x = *(NewMessage *const *) a;
	const NewMessage *y = *(NewMessage *const *) b;
	int			order = memcmp(x->dedup->data, y->dedup->data, UUID_LEN);

	return order != 0 ? order : x < y ? -1 : 1;
}

/* Take the keys; messages that turn out to be duplicates lose their ids. */
static void
take_keys(const Queue *queue, NewMessage *messages, int n)
{
	NewMessage **keyed = palloc(n * sizeof(NewMessage *));
	int			nkeyed = 0;

	for (int i = 0; i < n; i++)
		if (messages[i].dedup != NULL)
			keyed[nkeyed++] = &messages[i];
	qsort(keyed, nkeyed, sizeof(NewMessage *), compare_keys);
	for (int i = 0; i < nkeyed; i++)
	{
		/* The first of several in one call stands for the others. */
		if ((i > 0 && memcmp(keyed[i]->dedup->data, keyed[i - 1]->dedup->data,
							 UUID_LEN) == 0) ||
			!dedup_take_key(queue, keyed[i]->dedup, keyed[i]->id))
		{
			keyed[i]->id = 0;
			counters_add(queue->id, JOB_DUPLICATES, 1);
		}
	}
	pfree(keyed);
}

/* Where a message is to go. */
static Pending *
pending_of(Store *store, const NewMessage *message)
{
	return message->delay > 0 ? &store->delayed : &store->active;
}

/*
 * Write n messages, and set their ids in order; 0 for a duplicate.  All
 * values are in bounds.  Afterwards this transaction sees them.
 */
void
push_messages(const Queue *queue, NewMessage *messages, int n)
{
	Store	   *store = palloc0(sizeof(Store));
	bool		keyed = false;
	MemoryContext old;

	store->queue = queue;
	if (*setting_client_id != '\0')
	{
		/* A setting that came with the connection was verified by nobody. */
		pg_verifymbstr(setting_client_id, strlen(setting_client_id),
					   false);
		store->client_id = CStringGetTextDatum(setting_client_id);
	}
	store->left = n;
	for (int i = 0; i < n; i++)
		store->priorities |= 1 << messages[i].priority;
	for (int i = 0; i < n; i++)
	{
		Pending    *pending = pending_of(store, &messages[i]);

		if (!pending->open)
			open_pending(store, pending, Min(n - i, FLUSH_ROWS));
		messages[i].id = message_id_make(next_number(store), messages[i].priority,
								 pending->table.segment);
		keyed |= messages[i].dedup != NULL;
	}
	if (keyed)
		take_keys(queue, messages, n);

	store->now = GetCurrentTimestamp();
	store->context = AllocSetContextCreate(CurrentMemoryContext,
										   "messages on their way",
										   ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(store->context);
	for (int i = 0; i < n; i++)
	{
		Pending    *pending = pending_of(store, &messages[i]);

		CHECK_FOR_INTERRUPTS();
		if (messages[i].id == 0)
			continue;
		put(store, pending, &messages[i]);
		if (pending->n == FLUSH_ROWS ||
			store->active.bytes + store->delayed.bytes >= FLUSH_BYTES)
		{
			flush(&store->active);
			flush(&store->delayed);
			MemoryContextReset(store->context);
		}
	}
	flush(&store->active);
	flush(&store->delayed);

	MemoryContextSwitchTo(old);
	MemoryContextDelete(store->context);
	if (store->active.open)
		message_table_close(&store->active.table, true);
	if (store->delayed.open)
		message_table_close(&store->delayed.table, true);
	pfree(store);
	CommandCounterIncrement();
}
