/*-------------------------------------------------------------------------
 *
 * cancel.c
 *	  Canceling messages.
 *
 * NOTES
 *	  A message that no claim holds is removed.  One that a claim holds gets a
 *	  mark in its row.  Each call that would complete it, or give it back,
 *	  locks or deletes that row, so it meets the mark or comes first: then the
 *	  cancel finds no message, or one that no claim holds.  The one of the two
 *	  that comes second waits for the other's transaction.
 *
 *	  Until its claim ends the message counts as claimed.  From then on it is
 *	  expired (message_row.c), so it is removed by what removes expired
 *	  messages (expire.c).  Where a claim is released, or a job fails, it is
 *	  removed at once (claim_update.c, claim_message.c).
 *
 *	  When the transaction that has set the mark has committed, the job that
 *	  works on the message is interrupted.  That is a callback, as runners are
 *	  above this layer.  When it was prepared, nothing is called: the job finds
 *	  the mark at its end.
 *
 * src/claim/cancel.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "claim/cancel.h"
#include "push/dedup.h"
#include "push/message_end.h"
#include "queue/message_list.h"
#include "storage/attributes.h"
#include "storage/batches.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/xact.h"

/* cancel_where() reads so many messages with one snapshot. */
#define SCAN_AT_ONCE	10000

/* A message that this transaction has marked */
typedef struct CancelRecord
{
	XactRecord	xact;
	int32		queue_id;
	int64		id;
} CancelRecord;

/* Messages to be canceled */
typedef struct CancelKey
{
	int32		queue_id;
	int64		id;
} CancelKey;

typedef struct CancelList
{
	int64		n;
	int64		size;
	CancelKey  *keys;
} CancelList;

static void interrupt_jobs(XactEvent event);
static void mark_canceled(const Queue *queue, MessageTable *table,
						  HeapTuple tuple, const char *reason);
static bool try_cancel(const Queue *queue, int64 id, const char *reason,
					   CancelResult *result, DedupEntry **entry);
static CancelResult cancel_one(const Queue *queue, int64 id,
							   const char *reason, DedupEntry **entry);
static CancelList list_create(void);
static void list_add(CancelList *list, int32 queue_id, int64 id);
static int	compare_keys(const void *a, const void *b);
static int64 cancel_listed(const Queue *queue, CancelList *list,
						   const char *reason);
static bool add_match(const ScanRow *row, TimestampTz now, void *arg);
static bool add_member(MessageTable *table, TupleTableSlot *slot, void *arg);
static void find_members(int64 batch, CancelList *list);

XactList	cancel_records = {
	.record_size = sizeof(CancelRecord),
	.end = interrupt_jobs
};

static CancelCallback interrupt_job;

void
cancel_init(CancelCallback interrupt)
{
	interrupt_job = interrupt;
}

/* Callback of the list of records */
static void
interrupt_jobs(XactEvent event)
{
	if (event != XACT_EVENT_COMMIT)
		return;
	for (int i = 0; i < cancel_records.n; i++)
	{
		const CancelRecord *record = xact_record(&cancel_records, i);

		interrupt_job(record->queue_id, record->id);
	}
}

/* --- One message --- */

/* Mark a message of a live claim, which this transaction has locked. */
static void
mark_canceled(const Queue *queue, MessageTable *table, HeapTuple tuple,
			  const char *reason)
{
	TupleDesc	desc = RelationGetDescr(table->heap);
	MessageForm form = message_read(tuple);
	HeapTuple	new = tuple;
	CancelRecord *record;

	/* It lives as long as its claim. */
	form.is_canceled = true;
	form.expires_at = form.claimed_until;
	if (reason != NULL)
		new = attributes_set_last_error(desc, tuple, reason);
	new = message_row_change(desc, new, &form);
	message_update_locked(table, tuple, new);
	record = xact_add(&cancel_records);
	record->queue_id = queue->id;
	record->id = form.id;
}

/*
 * Find one message and cancel it.  *entry is set to the entry of its
 * deduplication key if that has to be dropped.  Returns false if another
 * transaction has changed it meanwhile.
 */
static bool
try_cancel(const Queue *queue, int64 id, const char *reason,
		   CancelResult *result, DedupEntry **entry)
{
	TimestampTz now = GetCurrentTimestamp();
	FoundMessage found;
	bool		done = true;

	*result = CANCEL_NONE;
	if (!message_find(queue->id, id, RowExclusiveLock, &found))
		return true;
	if (found.form.is_canceled && message_is_claimed(&found.form, now))
		*result = CANCEL_PENDING;
	else if (!message_is_expired(&found.form, now))
	{
		done = message_lock_found(&found, message_is_claimed(&found.form, now) ?
								  LockTupleNoKeyExclusive :
								  LockTupleExclusive, LockWaitBlock);

		/* Its claim may have ended while we waited. */
		if (done && message_is_claimed(&found.form, GetCurrentTimestamp()))
		{
			mark_canceled(queue, &found.table, found.tuple, reason);
			*result = CANCEL_PENDING;
		}
		else if (done)
		{
			EndTerms	terms = {.error = reason,.entry = entry};

			(void) message_end(queue, &found.table, found.tuple, END_CANCELED,
							   &terms);
			*result = CANCEL_REMOVED;
		}
	}
	message_close_found(&found);
	return done;
}

/* Cancel one message; *entry is as for try_cancel(), or NULL. */
static CancelResult
cancel_one(const Queue *queue, int64 id, const char *reason,
		   DedupEntry **entry)
{
	CancelResult result;
	bool		done;

	*entry = NULL;
	do
	{
		CHECK_FOR_INTERRUPTS();
		done = try_cancel(queue, id, reason, &result, entry);
	} while (!done);
	CommandCounterIncrement();
	return result;
}

/*
 * Cancel a message.  The reason, if that is not NULL, is stored with it as its
 * last error.
 */
CancelResult
cancel_message(const Queue *queue, int64 id, const char *reason)
{
	DedupEntry *entry;
	CancelResult result;

	if (reason != NULL)
		reason = attributes_clip_error(reason);
	result = cancel_one(queue, id, reason, &entry);
	if (entry != NULL)
		dedup_drop_entry(entry);
	CommandCounterIncrement();
	return result;
}

/* --- Many messages --- */

static CancelList
list_create(void)
{
	CancelList	list = {.size = 64};

	list.keys = palloc(list.size * sizeof(CancelKey));
	return list;
}

static void
list_add(CancelList *list, int32 queue_id, int64 id)
{
	if (list->n == list->size)
	{
		list->size *= 2;
		list->keys = repalloc_huge(list->keys,
								   list->size * sizeof(CancelKey));
	}
	list->keys[list->n].queue_id = queue_id;
	list->keys[list->n++].id = id;
}

/*
 * By queue, since members of a batch may be in several, and in the order in
 * which all functions lock messages
 */
static int
compare_keys(const void *a, const void *b)
{
	const CancelKey *left = a;
	const CancelKey *right = b;

	if (left->queue_id != right->queue_id)
		return left->queue_id < right->queue_id ? -1 : 1;
	return message_id_compare(left->id, right->id);
}

/*
 * Cancel messages, of this queue, or if that is NULL, of any, with a reason as
 * for cancel_message().  Returns how many there were; a repeated one counts
 * once.
 */
static int64
cancel_listed(const Queue *queue, CancelList *list, const char *reason)
{
	/* A cancel leaves copies of its message behind. */
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "cancel",
												  ALLOCSET_DEFAULT_SIZES);
	const Queue *of_key = queue;
	Queue		opened;
	List	   *entries = NIL;
	ListCell   *cell;
	int64		canceled = 0;

	if (reason != NULL)
		reason = attributes_clip_error(reason);
	qsort(list->keys, list->n, sizeof(CancelKey), compare_keys);

	/*
	 * Queues are locked before messages, or others would wait for these as
	 * long as we wait for a queue.
	 */
	for (int64 i = 0; i < list->n && queue == NULL; i++)
		if (i == 0 || list->keys[i].queue_id != list->keys[i - 1].queue_id)
			(void) queue_open_by_id(list->keys[i].queue_id, &opened);
	for (int64 i = 0; i < list->n; i++)
	{
		const CancelKey *key = &list->keys[i];
		bool		is_first = i == 0 || key->queue_id != key[-1].queue_id;
		MemoryContext old;
		DedupEntry *entry;

		if (!is_first && key->id == key[-1].id)
			continue;
		if (queue == NULL && is_first)
			of_key = queue_open_by_id(key->queue_id, &opened) ? &opened : NULL;
		if (of_key == NULL)
			continue;
		old = MemoryContextSwitchTo(context);
		if (cancel_one(of_key, key->id, reason, &entry) != CANCEL_NONE)
			canceled++;
		MemoryContextSwitchTo(old);
		if (entry != NULL)
		{
			DedupEntry *copy = palloc(sizeof(DedupEntry));

			*copy = *entry;
			entries = lappend(entries, copy);
		}
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);

	/*
	 * When all messages are locked, because a push with such a key locks its
	 * message first and then the key.
	 */
	foreach(cell, entries)
		dedup_drop_entry((DedupEntry *) lfirst(cell));
	CommandCounterIncrement();
	return canceled;
}

/* Cancel messages.  Returns how many of them there were. */
int64
cancel_messages(const Queue *queue, Datum *ids, int n, const char *reason)
{
	CancelList	list = list_create();

	for (int i = 0; i < n; i++)
		list_add(&list, queue->id, DatumGetInt64(ids[i]));
	return cancel_listed(queue, &list, reason);
}

/* Callback of message_list_each() */
static bool
add_match(const ScanRow *row, TimestampTz now, void *arg)
{
	list_add(arg, row->form.queue_id, row->form.id);
	return true;
}

/*
 * Cancel the messages whose bodies contain this.  Returns how many there were.
 * None is locked while the queue is read.
 */
int64
cancel_where(const Queue *queue, Jsonb *part, const char *reason)
{
	CancelList	list = list_create();
	MessageFilter filter = ALL_MESSAGES;
	int64		last;

	filter.body = part;
	filter.read_max = SCAN_AT_ONCE;
	while ((last = message_list_each(queue, &filter, add_match, &list)) != 0)
		filter.first_id = last + 1;
	return cancel_listed(queue, &list, reason);
}

/* --- Batches --- */

/* Callback of batches_scan */
static bool
add_member(MessageTable *table, TupleTableSlot *slot, void *arg)
{
	HeapTuple	tuple = row_tuple(slot);

	list_add(arg, message_row_queue(tuple), message_row_id(tuple));
	return true;
}

static void
find_members(int64 batch, CancelList *list)
{
	while (!batches_scan(segment_push_snapshot(), batch, BATCH_MEMBERS,
						 PG_INT64_MAX, AccessShareLock, true, add_member,
						 list))
	{
		list->n = 0;
		PopActiveSnapshot();
	}
	PopActiveSnapshot();
}

/*
 * Cancel the members of a batch that are unfinished now.  Returns how many
 * there were.  The caller has checked that the role may do that: their queues
 * are opened whatever its privileges on them.
 */
int64
cancel_batch(int64 batch)
{
	CancelList	list = list_create();
	int64		canceled;
	int			nest_level = NewGUCNestLevel();

	find_members(batch, &list);
	canceled = cancel_listed(NULL, &list, NULL);

	/* The project of the session is again what it was. */
	AtEOXact_GUC(false, nest_level);
	return canceled;
}

/* --- Jobs --- */

/* Returns whether this transaction has canceled a message of a claim. */
bool
cancel_is_own(int32 queue_id, int64 id)
{
	for (int i = 0; i < cancel_records.n; i++)
	{
		const CancelRecord *record = xact_record(&cancel_records, i);

		if (record->queue_id == queue_id && record->id == id)
			return true;
	}
	return false;
}

/*
 * Returns whether a message was canceled while a claim held it, as the latest
 * snapshot shows it.
 */
bool
cancel_is_pending(int32 queue_id, int64 id)
{
	FoundMessage found;

	if (!message_find(queue_id, id, AccessShareLock, &found))
		return false;
	message_close_found(&found);
	return found.form.is_canceled;
}
