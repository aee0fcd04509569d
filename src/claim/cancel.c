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

#include "utils/guc.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "claim/cancel.h"
#include "claim/claim_message.h"
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
static void mark_canceled(const Queue *queue, FoundMessage *message,
						  const char *reason);
static bool cancel_found(const Queue *queue, FoundMessage *message,
						 MessageChange *change);
static CancelList list_create(void);
static void list_add(CancelList *list, int32 queue_id, int64 id);
static int	compare_queues(const void *a, const void *b);
static int64 cancel_listed(CancelList *list, const char *reason);
static bool add_match(const ScanRow *row, TimestampTz now, void *arg);
static bool add_member(MessageTable *table, TupleTableSlot *slot, void *arg);

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

/* --- Messages by their ids --- */

/* Mark a message of a live claim, which this transaction has locked. */
static void
mark_canceled(const Queue *queue, FoundMessage *message, const char *reason)
{
	TupleDesc	desc = RelationGetDescr(message->table.heap);
	MessageForm form = message->form;
	HeapTuple	new = message->tuple;
	CancelRecord *record;

	/* It lives as long as its claim. */
	form.is_canceled = true;
	form.expires_at = form.claimed_until;
	if (reason != NULL)
		new = attributes_set_last_error(desc, new, reason);
	new = message_row_change(desc, new, &form);
	message_update_locked(&message->table, message->tuple, new);
	record = xact_add(&cancel_records);
	record->queue_id = queue->id;
	record->id = form.id;
}

/* Callback of claim_change_messages() */
static bool
cancel_found(const Queue *queue, FoundMessage *message, MessageChange *change)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		is_claimed = message_is_claimed(&message->form, now);

	change->is_done = !message_is_expired(&message->form, now);
	change->is_pending = message->form.is_canceled && is_claimed;
	if (!change->is_done || change->is_pending)
		return true;
	if (!message_lock_found(message, is_claimed ? LockTupleNoKeyExclusive :
							LockTupleExclusive, LockWaitBlock))
		return false;

	/* Its claim may have ended while we waited. */
	change->is_pending = message_is_claimed(&message->form,
											GetCurrentTimestamp());
	if (change->is_pending)
		mark_canceled(queue, message, change->error);
	else
	{
		EndTerms	terms = {.error = change->error,.entry = &change->entry};

		(void) message_end(queue, &message->table, message->tuple,
						   END_CANCELED, &terms);
	}
	return true;
}

/*
 * Cancel messages.  The reason, if that is not NULL, is stored with each of
 * them as its last error.  Returns how many there were; a repeated id counts
 * once.  *is_pending, if not NULL, says whether the last one only goes when
 * its claim ends.
 */
int64
cancel_messages(const Queue *queue, Datum *ids, int n, const char *reason,
				bool *is_pending)
{
	MessageChange change = {.action = cancel_found,.error = reason};
	int64		canceled = claim_change_messages(queue, ids, n, &change);

	claim_drop_entries(change.entries);
	if (is_pending != NULL)
		*is_pending = change.is_pending;
	return canceled;
}

/* --- Messages of a list --- */

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

static int
compare_queues(const void *a, const void *b)
{
	int32		left = ((const CancelKey *) a)->queue_id;
	int32		right = ((const CancelKey *) b)->queue_id;

	return left < right ? -1 : (left > right);
}

/*
 * Cancel the messages of a list, with a reason as for cancel_messages().
 * Returns how many there were.  Their queues are opened whatever the
 * privileges of the role.
 */
static int64
cancel_listed(CancelList *list, const char *reason)
{
	MessageChange change = {.action = cancel_found,.error = reason};
	Datum	   *ids = palloc_extended(list->n * sizeof(Datum),
									  MCXT_ALLOC_HUGE);
	Queue		queue;
	int64		canceled = 0;
	int64		next;
	int			nest_level = NewGUCNestLevel();

	qsort(list->keys, list->n, sizeof(CancelKey), compare_queues);

	/*
	 * Queues are locked before messages, or others would wait for these as
	 * long as we wait for a queue.
	 */
	for (int64 i = 0; i < list->n; i++)
		if (i == 0 || list->keys[i].queue_id != list->keys[i - 1].queue_id)
			(void) queue_open_by_id(list->keys[i].queue_id, &queue);
	for (int64 i = 0; i < list->n; i = next)
	{
		for (next = i; next < list->n &&
			 list->keys[next].queue_id == list->keys[i].queue_id; next++)
			ids[next] = Int64GetDatum(list->keys[next].id);
		if (queue_open_by_id(list->keys[i].queue_id, &queue))
			canceled += claim_change_messages(&queue, &ids[i], next - i,
											  &change);
	}
	claim_drop_entries(change.entries);

	/* The project of the session is again what it was. */
	AtEOXact_GUC(false, nest_level);
	return canceled;
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
	return cancel_listed(&list, reason);
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

/*
 * Cancel the members of a batch that are unfinished now.  Returns how many
 * there were.  The caller has checked that the role may do that.
 */
int64
cancel_batch(int64 batch)
{
	CancelList	list = list_create();

	while (!batches_scan(segment_push_snapshot(), batch, BATCH_MEMBERS,
						 PG_INT64_MAX, AccessShareLock, true, add_member,
						 &list))
	{
		list.n = 0;
		PopActiveSnapshot();
	}
	PopActiveSnapshot();
	return cancel_listed(&list, NULL);
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
