/*-------------------------------------------------------------------------
 *
 * dead_letter.c
 *	  Dead letters: messages that no worker is to try again.
 *
 * NOTES
 *	  A message that was claimed as often as its queue allows, and becomes
 *	  free again, is moved to the dead letter queue (dead_letter_queue.c); and
 *	  so is one that a worker has buried (claim_message.c), or that waits for a
 *	  batch in vain (batch_end.c).  There it is a new message, whose attributes
 *	  name its origin.  One that is exhausted is moved by a release or a retry,
 *	  or else by the next claim or the background worker that finds it.  The
 *	  privileges of the queue's owner count, not those of the role that moves
 *	  it.
 *
 *	  Moving a message waits for no transaction that has used the queues; like
 *	  a push, it may wait for a command that maintains the active table.  While
 *	  the move is not possible, the message stays where it is and is not handed
 *	  out.  No message is lost.
 *
 * src/claim/dead_letter.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "claim/dead_letter.h"
#include "push/message_end.h"
#include "push/push.h"
#include "queue/options.h"
#include "queue/registry.h"
#include "storage/attributes.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "storage/row.h"
#include "util/compat.h"
#include "util/json.h"
#include "util/settings.h"

/* Attributes of a dead letter */
#define ORIGIN_QUEUE			"origin_queue"
#define ORIGIN_ID				"origin_id"
#define REASON					"reason"
#define CLAIM_COUNT				"claim_count"

/* How many dead letters are read with one snapshot */
#define REDRIVE_BATCH			1000

/* A redrive of the dead letters in a queue */
typedef struct Redrive
{
	const Queue *dead;			/* where they are */
	const Queue *target;		/* NULL: back to where they came from */
	int64		ngone;			/* how many came from a queue that is gone */
} Redrive;

static QueueResult open_dead_queue(const Queue *queue, Queue *dead);
static void report_refusal(const Queue *queue, int elevel);
static bool may_move(const Queue *queue, Queue *dead, int elevel);
static void fill_moved_message(NewMessage *message, TupleDesc desc,
							   HeapTuple tuple);
static Jsonb *form_letter_attributes(const Queue *queue, HeapTuple tuple,
									 TupleDesc desc, const char *reason,
									 int claim_count);
static bool open_origin_queue(const Queue *dead, const char *name,
							  TimestampTz died_at, Queue *origin);
static bool send_letter_back(Redrive *redrive, ScanRow *row, TimestampTz now);
static bool redrive_one(Redrive *redrive, int64 id);
static int64 redrive_all(Redrive *redrive, int limit);

/* --- Moving messages to the dead letter queue --- */

/*
 * Open the dead letter queue of a queue for its owner, without waiting.
 * Returns QUEUE_BUSY if it is locked, for example by a purge, and QUEUE_DENIED
 * if it does not accept messages of the queue.
 */
static QueueResult
open_dead_queue(const Queue *queue, Queue *dead)
{
	/*
	 * The id is compared because a queue that was created with the name of
	 * the dropped dead letter queue must not get the messages.  That comes
	 * before opening, so that no other queue is locked.
	 */
	if (queue_find_as(queue->dead_queue, queue->owner, QUEUE_PUSH,
					  dead) == QUEUE_OK &&
		dead->id == queue->dead_id)
		switch (queue_open_as(queue->dead_queue, queue->owner, QUEUE_PUSH,
							  false, dead))
		{
			case QUEUE_OK:

				/* It may have been dropped since we have looked. */
				if (dead->id == queue->dead_id)
					return QUEUE_OK;
				break;
			case QUEUE_BUSY:
				return QUEUE_BUSY;
			case QUEUE_MISSING:
			case QUEUE_DENIED:

				/* It could be opened when the metadata was written. */
				break;
		}
	return QUEUE_DENIED;
}

/* Report that the dead letter queue does not accept messages of the queue. */
static void
report_refusal(const Queue *queue, int elevel)
{
	ereport(elevel,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("messages of queue \"%s\" cannot become dead letters in queue \"%s\"",
					queue->name, queue->dead_queue),
			 elevel == WARNING ?
			 errdetail("It does not exist, or the owner of \"%s\" may not push to it. The messages stay and are not handed out.",
					   queue->name) :
			 errdetail("It does not exist, or the owner of \"%s\" may not push to it.",
					   queue->name),
			 errhint("Grant push on it to the owner, or name another dead letter queue in the metadata of \"%s\"; if it was dropped, remove its name first.",
					 queue->name)));
}

/*
 * Open the dead letter queue to move messages there.  If that is not possible,
 * it is an error, or with an elevel of WARNING, this returns false, with a
 * warning unless the queue is only locked.
 */
static bool
may_move(const Queue *queue, Queue *dead, int elevel)
{
	QueueResult result = open_dead_queue(queue, dead);

	if (result == QUEUE_BUSY && elevel == ERROR)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("dead letter queue \"%s\" of queue \"%s\" is locked",
						queue->dead_queue, queue->name),
				 errhint("Another session purges or drops it: try again.")));

	/* That it is locked ends soon, and is no reason to warn. */
	if (result == QUEUE_DENIED &&
		(elevel == ERROR || queue_may_warn(queue->name)))
		report_refusal(queue, elevel);
	return result == QUEUE_OK;
}

/* Returns whether a message of the queue could be moved now. */
bool
dead_letter_can_move(const Queue *queue)
{
	Queue		dead;

	return may_move(queue, &dead, WARNING);
}

/* Set what a message keeps when it moves to another queue. */
static void
fill_moved_message(NewMessage *message, TupleDesc desc, HeapTuple tuple)
{
	message->body = row_copy_column(desc, tuple, Anum_message_body);
	message->group_key = row_copy_column(desc, tuple, Anum_message_group_key);
	message->headers = row_copy_column(desc, tuple, Anum_message_headers);
	message->priority = message_read(tuple).priority;
	message->is_moved = true;
}

/* The attributes that the dead letter of a message has. */
static Jsonb *
form_letter_attributes(const Queue *queue, HeapTuple tuple, TupleDesc desc,
					   const char *reason, int claim_count)
{
	char	   *last_error = attributes_last_error(desc, tuple);
	JsonbInState state = {0};

	compat_push_jsonb(&state, WJB_BEGIN_OBJECT, NULL);
	json_add_text(&state, ORIGIN_QUEUE, queue->name);
	json_add_integer(&state, ORIGIN_ID, message_row_id(tuple));
	json_add_text(&state, REASON, reason);
	json_add_integer(&state, CLAIM_COUNT, claim_count);
	if (last_error != NULL)
		json_add_text(&state, LAST_ERROR, last_error);
	compat_push_jsonb(&state, WJB_END_OBJECT, NULL);
	return JsonbValueToJsonb(state.result);
}

/*
 * Move a message that this transaction has locked to the dead letter queue.
 * If that is not possible now, it is an error, or with an elevel of WARNING,
 * this returns false, and the message stays.  "entry": as in EndTerms.
 */
bool
dead_letter_move(const Queue *queue, MessageTable *table, HeapTuple tuple,
				 const char *reason, int elevel, DedupEntry **entry)
{
	EndTerms	terms = {.entry = entry};
	TupleDesc	desc = RelationGetDescr(table->heap);
	Queue		dead;
	NewMessage	letter = {0};

	if (!may_move(queue, &dead, elevel))
		return false;

	fill_moved_message(&letter, desc, tuple);
	letter.ttl = queue->dead_ttl >= 0 ? queue->dead_ttl :
		options_default_ttl(&dead);
	letter.claim_count = attributes_claim_count(desc, tuple);
	letter.attributes = form_letter_attributes(queue, tuple, desc, reason,
											   letter.claim_count);
	push_messages(&dead, &letter, 1);

	(void) message_end(queue, table, tuple, END_DEAD, &terms);
	CommandCounterIncrement();
	return true;
}

/* --- Reading dead letters --- */

/* Read a dead letter.  Returns false if the message is none. */
bool
dead_letter_get(const ScanRow *row, DeadLetter *letter)
{
	TupleDesc	desc = RelationGetDescr(row->table->heap);
	Jsonb	   *attributes = attributes_of(desc, row->tuple);
	int64		claim_count;

	letter->origin_queue = attributes_text(attributes, ORIGIN_QUEUE);
	if (letter->origin_queue == NULL)
		return false;
	letter->id = row->form.id;
	letter->body = row_copy_column(desc, row->tuple, Anum_message_body);
	letter->has_origin_id = attributes_integer(attributes, ORIGIN_ID,
											   &letter->origin_id);
	letter->reason = attributes_text(attributes, REASON);
	letter->last_error = attributes_text(attributes, LAST_ERROR);
	letter->claim_count = row->form.claim_count;

	/* The column also counts claims since it has become a dead letter. */
	if (attributes_integer(attributes, CLAIM_COUNT, &claim_count))
		letter->claim_count = (int) claim_count;
	letter->died_at = row->form.created_at;
	return true;
}

/* --- Sending dead letters back --- */

/*
 * Open the queue that a dead letter came from.  If it does not exist, it is
 * created as by any push.  Returns false if it is gone.
 */
static bool
open_origin_queue(const Queue *dead, const char *name, TimestampTz died_at,
				  Queue *origin)
{
	Queue		again;
	QueueSummary summary;

	/* Other SQL may have written the attributes. */
	queue_check_name(name, ORIGIN_QUEUE);
	if (!queue_open(name, QUEUE_PUSH, origin))
	{
		if (!setting_auto_create)
			return false;
		queue_open_or_create(name, QUEUE_PUSH, origin);
	}

	/*
	 * If it was dropped, and another role has created a queue of the same
	 * name since, that one gets the letter only if its owner could read it
	 * anyway.
	 */
	return (queue_summary(origin->id, &summary) &&
			summary.created_at <= died_at) ||
		queue_find_as(dead->name, origin->owner, QUEUE_CLAIM,
					  &again) == QUEUE_OK;
}

/*
 * Send a dead letter to the target, or if that is NULL, back to where it came
 * from.  Returns false if the message is no dead letter, or was left alone
 * because it is claimed or locked, or its origin is gone.
 */
static bool
send_letter_back(Redrive *redrive, ScanRow *row, TimestampTz now)
{
	const Queue *dead = redrive->dead;
	TupleDesc	desc = RelationGetDescr(row->table->heap);
	char	   *origin = attributes_text(attributes_of(desc, row->tuple),
										 ORIGIN_QUEUE);
	Queue		queue;
	NewMessage	message = {0};

	if (message_is_claimed(&row->form, now) ||
		message_is_expired(&row->form, now) || origin == NULL)
		return false;
	if (redrive->target != NULL)
		queue = *redrive->target;
	else if (!open_origin_queue(dead, origin, row->form.created_at, &queue))
	{
		redrive->ngone++;
		return false;
	}
	if (!message_lock_as_seen(row->table, row->slot, LockTupleExclusive,
							  LockWaitSkip))
		return false;
	row->tuple = row_tuple(row->slot);

	fill_moved_message(&message, desc, row->tuple);
	message.ttl = options_default_ttl(&queue);
	push_messages(&queue, &message, 1);
	return message_end(dead, row->table, row->tuple, END_REDRIVEN, NULL);
}

/* Send the dead letter with this id back.  Returns false if it stays. */
static bool
redrive_one(Redrive *redrive, int64 id)
{
	FoundMessage letter;
	ScanRow		row = {.table = &letter.table};
	bool		sent;

	if (!message_find(redrive->dead->id, id, RowExclusiveLock, &letter))
		return false;
	row.slot = letter.slot;
	row.tuple = letter.tuple;
	row.form = letter.form;
	sent = send_letter_back(redrive, &row, GetCurrentTimestamp());
	message_close_found(&letter);
	CommandCounterIncrement();
	return sent;
}

/* Send up to limit dead letters back, oldest first.  Returns their number. */
static int64
redrive_all(Redrive *redrive, int limit)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "dead letter",
												  ALLOCSET_DEFAULT_SIZES);
	int64		next = 0;
	int64		total = 0;
	int			nread;

	/* The target is another queue: the scan does not find what it sends. */
	do
	{
		TimestampTz now = GetCurrentTimestamp();
		MessageScan *scan;
		ScanRow		row;

		scan = message_scan_begin_list(redrive->dead->id, next,
									   RowExclusiveLock);
		for (nread = 0; nread < REDRIVE_BATCH && total < limit &&
			 message_scan_next(scan, &row); nread++)
		{
			MemoryContext old = MemoryContextSwitchTo(context);

			next = row.form.id + 1;
			if (send_letter_back(redrive, &row, now))
				total++;
			MemoryContextSwitchTo(old);
			MemoryContextReset(context);
		}
		message_scan_end(scan);
		CommandCounterIncrement();
	} while (nread == REDRIVE_BATCH && total < limit);
	MemoryContextDelete(context);
	return total;
}

/*
 * Send up to limit dead letters of a queue, these in their order, or if ids is
 * NULL, any, oldest first, to the target, or if that is NULL, back to where
 * each came from.  Returns their number.
 */
int64
dead_letter_redrive(const Queue *queue, const Queue *target, int limit,
					const Datum *ids, int n)
{
	Redrive		redrive = {
		.dead = queue,
		.target = target
	};
	int64		total = 0;

	if (ids == NULL)
		total = redrive_all(&redrive, limit);
	for (int i = 0; i < n && total < limit; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (redrive_one(&redrive, DatumGetInt64(ids[i])))
			total++;
	}
	if (redrive.ngone > 0)
		ereport(NOTICE,
				(errmsg_plural("%lld dead letter in queue \"%s\" was passed over",
							   "%lld dead letters in queue \"%s\" were passed over",
							   (unsigned long) redrive.ngone,
							   (long long) redrive.ngone, queue->name),
				 errdetail("The queue that a letter came from does not exist, or another role has created one of that name, and may not claim from \"%s\".",
						   queue->name),
				 errhint("Name a target to send them there.")));
	return total;
}
