/*-------------------------------------------------------------------------
 *
 * dead_letter.c
 *	  Dead letters: messages that were claimed too often.
 *
 * NOTES
 *	  A message that was claimed as often as its queue allows and comes free
 *	  again is moved to the dead letter queue, as a new message there; its note
 *	  says where it came from.  A release or a retry moves it, or the next
 *	  claim or the background worker that finds it.  The privileges that count
 *	  are those of the queue's owner, not those of the session that moves it.
 *
 *	  The dead letter queue exists from the moment the metadata requires it:
 *	  otherwise another role could create a queue of that name and read what
 *	  arrives there.  dead_letter_require_queue() creates it, whatever changes the
 *	  metadata.  It waits for a transaction that has created a
 *	  queue of that name and not ended; moving a message waits for nothing.
 *	  The row has the id of the dead letter queue, and a message only moves to
 *	  the queue with this id, never to a later one with the same name.
 *
 *	  While the queue's owner may not push to the dead letter queue (that was
 *	  checked when the metadata was written, but privileges change), or the
 *	  latter is gone, the message stays where it is and is not handed out, and
 *	  a warning says so.  The same, without a warning, while the dead letter
 *	  queue is locked, for example by a purge.  Nothing is dropped.
 *
 *	  Dead letters must not come back to their queue.  To check that, where
 *	  the queue's dead letters go is locked exclusively, and where those of the
 *	  queues after it go is locked shared, until the transaction ends.  The
 *	  locks are taken in the order of the ids, so that two sessions that put
 *	  one half of a circle each wait for each other without a deadlock.
 *
 * src/queue/dead_letter.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "queue/counters.h"
#include "queue/dead_letter.h"
#include "queue/dedup.h"
#include "queue/message_result.h"
#include "queue/options.h"
#include "queue/push.h"
#include "queue/registry.h"
#include "storage/attributes.h"
#include "storage/message.h"
#include "storage/message_scan.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/json.h"

#define REASON_CLAIM_COUNT		"max_claim_count"
#define Natts_dead_letter		8

/* How many dead letters queue_redrive sends with one snapshot. */
#define REDRIVE_BATCH			1000

/* Dead letter queues that may follow one another */
#define CHAIN_MAX				100

PG_FUNCTION_INFO_V1(sql_queue_dead_letters);
PG_FUNCTION_INFO_V1(sql_queue_redrive);

pg_noreturn static void comes_back(const Queue *queue, const char *dead);
static void check_target(const Queue *queue, const Queue *wanted,
						 const Queue *dead, bool owner_may);
static List *chain_of(const Queue *queue, const Queue *dead);
static bool open_dead(const Queue *queue, Queue *dead);
static void check_chain(const Queue *queue, const Queue *dead);
static Jsonb *form_attributes(const Queue *queue, MessageForm *form, Jsonb *attributes);
static void open_origin(const Queue *queue, const char *name,
						TimestampTz died_at, Queue *origin);
static int	redrive_batch(const Queue *queue, const char *target, int limit,
						  int64 *marker);
static bool put_dead_letter(ReturnSetInfo *rsinfo, ScanRow *row);
static void redrive_one(const Queue *from, ScanRow *row, const char *target);
static bool redrive_row(const Queue *from, ScanRow *row, const char *target,
						TimestampTz now);

/* --- What metadata requires --- */

static void
comes_back(const Queue *queue, const char *dead)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("dead letters of queue \"%s\" would come back to it",
					queue->name),
			 errdetail("\"_dead_letter_queue\" is \"%s\".", dead),
			 errhint("Name a queue whose own dead letters go elsewhere.")));
}

/*
 * May a queue that exists, and was not created for the purpose, take the dead
 * letters?  owner_may: the queue's owner may push to it.
 */
static void
check_target(const Queue *queue, const Queue *wanted, const Queue *dead,
			 bool owner_may)
{
	Queue		again;
	bool		may;

	if (!wanted->dead_named && dead->owner != queue->owner)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("queue \"%s\" belongs to another role", dead->name),
				 errdetail("By its name it would be the dead letter queue of \"%s\".",
						   queue->name),
				 errhint("Name another dead letter queue in the metadata: \"_dead_letter_queue\".")));
	if (!owner_may)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for queue \"%s\"", dead->name),
				 errdetail("The owner of queue \"%s\" may not push to it.",
						   queue->name),
				 errhint("Grant push on it to the owner, or name another dead letter queue.")));

	/* Or a role with admin on this queue could push where it may not. */
	if (queue_peek(dead->name, GetUserId(), QUEUE_PUSH, &again, &may) && !may)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for queue \"%s\"", dead->name),
				 errdetail("Dead letters of queue \"%s\" would be pushed to it.",
						   queue->name),
				 errhint("Be granted push on it, or name another dead letter queue.")));

	if (queue_peek(queue->name, dead->owner, QUEUE_CLAIM, &again, &may) &&
		!may)
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("dead letters of queue \"%s\" go to queue \"%s\" of role \"%s\", which may not claim from \"%s\"",
						queue->name, dead->name,
						GetUserNameFromId(dead->owner, true), queue->name),
				 errhint("If that role is not meant to read them, name another dead letter queue, or none.")));
}

/* The ids of the queue and of those that its dead letters would go through. */
static List *
chain_of(const Queue *queue, const Queue *dead)
{
	List	   *ids = list_make1_int(queue->id);
	Queue		next = *dead;

	for (;;)
	{
		if (next.id == queue->id)
			comes_back(queue, dead->name);
		if (list_length(ids) > CHAIN_MAX)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("dead letters of queue \"%s\" would go through more than %d queues",
							queue->name, CHAIN_MAX),
					 errhint("Name a queue that has no dead letter queue.")));
		ids = lappend_int(ids, next.id);
		if (next.dead_id == 0 || !queue_by_id(next.dead_id, &next))
			break;
	}
	list_sort(ids, list_int_cmp);
	return ids;
}

/* Refuse a circle, and prevent one until the transaction ends. */
static void
check_chain(const Queue *queue, const Queue *dead)
{
	List	   *ids = chain_of(queue, dead);
	List	   *before;
	Queue		now;

	do
	{
		ListCell   *cell;

		before = ids;
		foreach(cell, ids)
			queue_lock_dead_letters(lfirst_int(cell),
									lfirst_int(cell) == queue->id);
		if (!queue_by_id(dead->id, &now))
			queue_unknown(dead->name);
		ids = chain_of(queue, &now);
	} while (!equal(ids, before));
}

/*
 * Have the dead letter queue that the metadata requires of a queue whose row
 * the caller has locked; returns its id, or 0 when none is required.
 *
 * If it is required already, nothing is checked again.  In particular, where
 * the dead letter queue was dropped, a later one of the same name does not
 * take its place: that takes a change of the metadata that names it anew.
 */
int32
dead_letter_require_queue(const Queue *queue, Jsonb *metadata)
{
	Queue		wanted = *queue;
	Queue		dead;
	bool		created = false;
	bool		may;
	int32		id;

	options_parse(metadata, &wanted, false);
	if (wanted.dead_queue[0] == '\0')
		return 0;
	if (strcmp(wanted.dead_queue, queue->name) == 0)
		comes_back(queue, wanted.dead_queue);
	if (queue->dead_id != 0 &&
		strcmp(wanted.dead_queue, queue->dead_queue) == 0)
		return queue->dead_id;

	do
	{
		/* Created by another session meanwhile, it is checked as any. */
		while (!queue_peek(wanted.dead_queue, queue->owner, QUEUE_PUSH, &dead,
						   &may))
			created = queue_insert(wanted.dead_queue, NULL, queue->owner,
								   queue->id);
		if (dead.source_id != queue->id)
			check_target(queue, &wanted, &dead, may);
		id = dead.id;
	} while (queue_open_as(wanted.dead_queue, queue->owner, QUEUE_PUSH, true,
						   &dead) != QUEUE_OPENED || dead.id != id);
	if (!created)
		check_chain(queue, &dead);
	return id;
}

/*
 * Refuse to drop a queue that others send dead letters to, unless it does not
 * accept them any more.
 */
void
dead_letter_check_drop(const Queue *queue)
{
	ListCell   *cell;

	foreach(cell, queue_referring(Anum_queue_dead_queue_id, queue->id))
	{
		Queue		source;
		Queue		dead;
		bool		may;

		if (queue_by_id(lfirst_int(cell), &source) &&
			queue_peek(queue->name, source.owner, QUEUE_PUSH, &dead, &may) &&
			may)
			ereport(ERROR,
					(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
					 errmsg("cannot drop queue \"%s\": it is the dead letter queue of \"%s\"",
							queue->name, source.name),
					 errhint("Have the metadata of \"%s\" name another one, or no \"_max_claim_count\" and no \"_dead_letter_queue\". If it is not yours, narrow push on \"%s\" first.",
							 source.name, queue->name)));
	}
}

/* --- Moving messages --- */

/* What the dead letter will say of the message it was. */
static Jsonb *
form_attributes(const Queue *queue, MessageForm *form, Jsonb *attributes)
{
	JsonbParseState *state = NULL;
	char	   *last_error = attributes_text(attributes, "last_error");

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	json_add_text(&state, "origin_queue", queue->name);
	json_add_integer(&state, "origin_id", form->id);
	json_add_text(&state, "reason", REASON_CLAIM_COUNT);
	json_add_integer(&state, "claim_count", form->claim_count);
	if (last_error != NULL)
		json_add_text(&state, "last_error", last_error);
	return JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
}

/*
 * Open the dead letter queue of a queue for its owner, without waiting.
 * False: it is locked, or does not take the queue's messages, which is warned
 * of.
 */
static bool
open_dead(const Queue *queue, Queue *dead)
{
	bool		may = false;

	if (queue_peek(queue->dead_queue, queue->owner, QUEUE_PUSH, dead, &may) &&
		dead->id == queue->dead_id && may)
		switch (queue_open_as(queue->dead_queue, queue->owner, QUEUE_PUSH,
							  false, dead))
		{
			case QUEUE_OPENED:
				if (dead->id == queue->dead_id)
					return true;
				break;
			case QUEUE_BUSY:
				return false;
			case QUEUE_MISSING:
			case QUEUE_DENIED:
				break;
		}
	if (queue_should_warn(queue->name))
		ereport(WARNING,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("messages of queue \"%s\" cannot become dead letters in queue \"%s\"",
						queue->name, queue->dead_queue),
				 errdetail("It does not exist, or the owner of \"%s\" may not push to it. The messages stay and are not handed out.",
						   queue->name),
				 errhint("Grant push on it to the owner, or name another dead letter queue in the metadata of \"%s\"; if it was dropped, remove its name first.",
						 queue->name)));
	return false;
}

/* Could messages be moved now? */
bool
dead_letter_can_move(const Queue *queue)
{
	Queue		dead;

	return open_dead(queue, &dead);
}

/*
 * Move a message that this transaction has locked to the dead letter queue.
 * False: that is not possible now, and the message stays.
 */
bool
dead_letter_move(const Queue *queue, MessageTable *table, HeapTuple tuple)
{
	TupleDesc	desc = RelationGetDescr(table->heap);
	MessageForm *form = MESSAGE_FORM(tuple);
	Queue		dead;
	NewMessage	letter = {0};

	if (!open_dead(queue, &dead))
		return false;

	letter.body = result_body(desc, tuple);
	letter.ttl = queue->dead_ttl >= 0 ? queue->dead_ttl :
		options_default_ttl(&dead);
	letter.priority = form->priority;
	letter.claim_count = form->claim_count;
	letter.is_moved = true;
	letter.attributes = form_attributes(queue, form, attributes_of(desc, tuple));
	push_messages(&dead, &letter, 1);

	message_delete_locked(table, tuple);
	dedup_drop_key(table, tuple);
	counters_add(queue->id, JOB_ABANDONED, 1);
	CommandCounterIncrement();
	return true;
}

/* Return one dead letter; false when the message is none. */
static bool
put_dead_letter(ReturnSetInfo *rsinfo, ScanRow *row)
{
	TupleDesc	desc = RelationGetDescr(row->table->heap);
	Jsonb	   *attributes = attributes_of(desc, row->tuple);
	static const char *const texts[] = {"origin_queue", NULL, "reason",
	"last_error"};
	Datum		values[Natts_dead_letter];
	bool		isnull[Natts_dead_letter] = {false};
	int64		integer = 0;

	if (attributes_text(attributes, "origin_queue") == NULL)
		return false;
	values[0] = Int64GetDatum(row->form->id);
	values[1] = JsonbPGetDatum(result_body(desc, row->tuple));
	for (int i = 0; i < (int) lengthof(texts); i++)
	{
		char	   *text = texts[i] == NULL ? NULL : attributes_text(attributes, texts[i]);

		isnull[i + 2] = text == NULL;
		values[i + 2] = text == NULL ? (Datum) 0 : CStringGetTextDatum(text);
	}
	isnull[3] = !attributes_integer(attributes, "origin_id", &integer);
	values[3] = Int64GetDatum(integer);
	values[6] = Int32GetDatum(row->form->claim_count);
	values[7] = TimestampTzGetDatum(row->form->created_at);
	if (attributes_integer(attributes, "claim_count", &integer))
		values[6] = Int32GetDatum((int32) integer);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	return true;
}

/*
 * queue_dead_letters(q text, "limit" int = 10)
 * returns table (id bigint, body jsonb, origin_queue text, origin_id bigint,
 *				  reason text, last_error text, claim_count int,
 *				  died_at timestamptz)
 *
 * The dead letters in queue q, oldest first, at most limit (1 to 10000):
 * where each came from, why, what its last failure was (NULL: none was
 * told), how often it had been claimed there, and when it died.
 *
 * Errors: 22004 and 22023 arguments, 42501 no right to claim.
 * Source: Zaqar, dead letter queue.
 */
Datum
sql_queue_dead_letters(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Queue		queue;
	MemoryContext context;
	MessageScan *scan;
	ScanRow		row;
	TimestampTz now;
	int			limit;

	if (PG_ARGISNULL(1))
		arg_missing("limit");
	limit = arg_check_list_limit(PG_GETARG_INT32(1));
	InitMaterializedSRF(fcinfo, 0);
	if (!queue_open(name, QUEUE_READ, &queue))
		return (Datum) 0;

	now = GetCurrentTimestamp();
	context = AllocSetContextCreate(CurrentMemoryContext,
									"queue_dead_letters",
									ALLOCSET_DEFAULT_SIZES);
	segment_push_snapshot();
	scan = message_scan_begin_list(queue.id, PG_INT64_MIN, AccessShareLock, true);
	while (limit > 0 && message_scan_next(scan, &row))
	{
		MemoryContext old = MemoryContextSwitchTo(context);

		if (!message_is_expired(row.form, now) &&
			put_dead_letter(rsinfo, &row))
			limit--;
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	message_scan_end(scan);
	PopActiveSnapshot();
	MemoryContextDelete(context);
	return (Datum) 0;
}

/*
 * Open the queue that a dead letter came from; where there is none, it is
 * created as by any push.  Another role may have created it since: then it is
 * not for the letter, unless that role could read it anyway.
 */
static void
open_origin(const Queue *queue, const char *name, TimestampTz died_at,
			Queue *origin)
{
	Queue		again;
	TimestampTz created_at;
	bool		may;

	queue_open_for_push(name, origin);
	if ((queue_created_at(origin->id, &created_at) && created_at <= died_at) ||
		(queue_peek(queue->name, origin->owner, QUEUE_CLAIM, &again, &may) &&
		 may))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("queue \"%s\" is not the one that dead letters in queue \"%s\" came from",
					origin->name, queue->name),
			 errdetail("That one was dropped. The owner of the new one may not claim from \"%s\".",
					   queue->name),
			 errhint("Name it as the target to send them there all the same.")));
}

/* Send one dead letter, which is locked, to its origin or to target. */
static void
redrive_one(const Queue *from, ScanRow *row, const char *target)
{
	TupleDesc	desc = RelationGetDescr(row->table->heap);
	Queue		queue;
	NewMessage	message = {0};

	if (target != NULL)
		queue_open_for_push(target, &queue);
	else
		open_origin(from, attributes_text(attributes_of(desc, row->tuple), "origin_queue"),
					MESSAGE_FORM(row->tuple)->created_at, &queue);

	message.body = result_body(desc, row->tuple);
	message.ttl = options_default_ttl(&queue);
	message.priority = MESSAGE_FORM(row->tuple)->priority;
	message.is_moved = true;
	push_messages(&queue, &message, 1);
	message_delete_locked(row->table, row->tuple);
}

/* The same if it is a dead letter, and neither claimed nor locked. */
static bool
redrive_row(const Queue *from, ScanRow *row, const char *target,
			TimestampTz now)
{
	Jsonb	   *attributes = attributes_of(RelationGetDescr(row->table->heap),
								row->tuple);

	if (message_is_claimed(row->form, now) || message_is_expired(row->form, now) ||
		attributes_text(attributes, "origin_queue") == NULL)
		return false;

	if (!message_lock_as_seen(row->table, row->slot, LockTupleExclusive,
						  LockWaitSkip))
		return false;
	row->tuple = row_tuple(row->slot);
	redrive_one(from, row, target);
	return true;
}

/* Send up to limit dead letters after the marker, which moves on. */
static int
redrive_batch(const Queue *queue, const char *target, int limit,
			  int64 *marker)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "queue_redrive",
												  ALLOCSET_DEFAULT_SIZES);
	MessageScan *scan;
	ScanRow		row;
	TimestampTz now = GetCurrentTimestamp();
	int			n = 0;

	segment_push_snapshot();
	scan = message_scan_begin_list(queue->id, *marker + 1, RowExclusiveLock, true);
	while (n < limit && message_scan_next(scan, &row))
	{
		MemoryContext old;

		MemoryContextReset(context);
		*marker = row.form->id;
		old = MemoryContextSwitchTo(context);
		if (redrive_row(queue, &row, target, now))
			n++;
		MemoryContextSwitchTo(old);
	}
	message_scan_end(scan);
	PopActiveSnapshot();
	MemoryContextDelete(context);
	return n;
}

/*
 * queue_redrive(q text, target text = NULL, "limit" int = NULL)
 * returns bigint
 *
 * Sends up to limit (NULL: all) dead letters of queue q, oldest first, back
 * to the queues they came from, or to target: as new messages, with their
 * count reset and the lifetime of any push there.  Those under a live claim
 * stay.
 *
 * Result: the number sent.
 * Errors: 22004 and 22023 arguments, 42704 a queue to send to is unknown
 * while queue.auto_create is off, 42501 needs the right to claim from q and
 * to push to the target; without a target also when the queue that they came
 * from was dropped, and another role has created one of that name.
 * Source: Amazon SQS, dead letter queue redrive.
 */
Datum
sql_queue_redrive(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	const char *target = NULL;
	Queue		queue;
	int			limit = INT_MAX;
	int64		marker = 0;
	int64		total = 0;
	int			batch;
	int			n;

	queue_prevent("queue_redrive()");
	if (!PG_ARGISNULL(1))
		target = queue_name_arg(fcinfo, 1, "target");
	if (!PG_ARGISNULL(2))
		limit = arg_check_bounds("limit", PG_GETARG_INT32(2), 1, NULL,
								   INT_MAX, NULL, "");
	if (target != NULL && strcmp(target, name) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be another queue than \"%s\"",
						"target", name),
				 errhint("Without a target, dead letters go back to where they came from.")));
	if (!queue_open(name, QUEUE_CLAIM, &queue))
		PG_RETURN_INT64(0);

	/* Ids of what we send are above the marker only in other queues. */
	do
	{
		int64		before = marker;

		batch = (int) Min(limit - total, REDRIVE_BATCH);
		n = redrive_batch(&queue, target, batch, &marker);
		total += n;
		CommandCounterIncrement();
		if (marker == before)
			break;
	} while (total < limit);
	PG_RETURN_INT64(total);
}
