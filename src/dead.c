/*-------------------------------------------------------------------------
 *
 * dead.c
 *	  Dead letters: messages that were claimed too often.
 *
 * NOTES
 *	  A message that was claimed as often as its queue allows and comes free
 *	  again is moved to the dead letter queue, as a new message there; its note
 *	  says where it came from.  Whoever meets such a message does it: a release,
 *	  or the next claim.  The right that counts is that of the queue's owner,
 *	  not of who happens to meet it.
 *
 *	  If the owner may not push there (it was checked when the metadata was
 *	  written, but rights change), the message stays where it is and is not
 *	  handed out, and a warning says so.  Nothing is dropped.
 *
 * src/dead.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "access/xact.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#define REASON_CLAIM_COUNT		"max_claim_count"
#define Natts_dead_letter		8

/* How many dead letters queue_redrive sends with one snapshot. */
#define REDRIVE_BATCH			1000

PG_FUNCTION_INFO_V1(queue_dead_letters);
PG_FUNCTION_INFO_V1(queue_redrive);

static Jsonb *form_note(const Queue *queue, MessageForm *form, Jsonb *note);
static int	redrive_batch(const Queue *queue, const char *target, int limit,
						  int64 *marker);
static bool put_dead_letter(ReturnSetInfo *rsinfo, ScanRow *row);
static void redrive_one(ScanRow *row, const char *target);
static bool redrive_row(ScanRow *row, const char *target, TimestampTz now);

/* What the dead letter will say of the message it was. */
static Jsonb *
form_note(const Queue *queue, MessageForm *form, Jsonb *note)
{
	JsonbParseState *state = NULL;
	char	   *last_error = note_text(note, "last_error");

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
 * Move a message that this transaction has locked to the dead letter queue.
 * False: its owner may not push there, and the message stays.
 */
bool
dead_bury(const Queue *queue, MessageTable *table, HeapTuple tuple)
{
	TupleDesc	desc = RelationGetDescr(table->heap);
	MessageForm *form = MESSAGE_FORM(tuple);
	Queue		dead;
	NewMessage	letter = {0};

	if (!queue_open_dead(queue, &dead))
	{
		ereport(WARNING,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("message of queue \"%s\" cannot become a dead letter in queue \"%s\"",
						queue->name, queue->dead_queue),
				 queue->dead_named ?
				 errdetail("The owner of the first queue may not push to the second one.  The message stays and is not handed out.") :
				 errdetail("The second queue belongs to somebody who may not claim from the first one.  The message stays and is not handed out."),
				 errhint("Name another \"_dead_letter_queue\" in the metadata of \"%s\".",
						 queue->name)));
		return false;
	}

	letter.body = result_body(desc, tuple);
	letter.ttl = queue->dead_ttl >= 0 ? queue->dead_ttl :
		meta_default_ttl(&dead);
	letter.priority = form->priority;
	letter.claim_count = form->claim_count;
	letter.moved = true;
	letter.note = form_note(queue, form, note_of(desc, tuple));
	store_messages(&dead, &letter, 1);

	row_delete_locked(table, tuple);
	key_drop(table, tuple);
	job_count(queue->id, JOB_ABANDONED, 1);
	CommandCounterIncrement();
	return true;
}

/* Return one dead letter; false when the message is none. */
static bool
put_dead_letter(ReturnSetInfo *rsinfo, ScanRow *row)
{
	TupleDesc	desc = RelationGetDescr(row->table->heap);
	Jsonb	   *note = note_of(desc, row->tuple);
	static const char *const texts[] = {"origin_queue", NULL, "reason",
	"last_error"};
	Datum		values[Natts_dead_letter];
	bool		isnull[Natts_dead_letter] = {false};
	int64		integer = 0;

	if (note_text(note, "origin_queue") == NULL)
		return false;
	values[0] = Int64GetDatum(row->form->id);
	values[1] = JsonbPGetDatum(result_body(desc, row->tuple));
	for (int i = 0; i < (int) lengthof(texts); i++)
	{
		char	   *text = texts[i] == NULL ? NULL : note_text(note, texts[i]);

		isnull[i + 2] = text == NULL;
		values[i + 2] = text == NULL ? (Datum) 0 : CStringGetTextDatum(text);
	}
	isnull[3] = !note_integer(note, "origin_id", &integer);
	values[3] = Int64GetDatum(integer);
	values[6] = Int32GetDatum(row->form->claim_count);
	values[7] = TimestampTzGetDatum(row->form->created_at);
	if (note_integer(note, "claim_count", &integer))
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
queue_dead_letters(PG_FUNCTION_ARGS)
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
		queue_arg_missing("limit");
	limit = queue_check_list_limit(PG_GETARG_INT32(1));
	InitMaterializedSRF(fcinfo, 0);
	if (!queue_open(name, QUEUE_READ, &queue))
		return (Datum) 0;

	now = GetCurrentTimestamp();
	context = AllocSetContextCreate(CurrentMemoryContext,
									"queue_dead_letters",
									ALLOCSET_DEFAULT_SIZES);
	ring_push_snapshot();
	scan = scan_begin_list(queue.id, PG_INT64_MIN, AccessShareLock, true);
	while (limit > 0 && scan_next(scan, &row))
	{
		MemoryContext old = MemoryContextSwitchTo(context);

		if (!row_is_expired(row.form, now) &&
			put_dead_letter(rsinfo, &row))
			limit--;
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	scan_end(scan);
	PopActiveSnapshot();
	MemoryContextDelete(context);
	return (Datum) 0;
}

/* Send one dead letter, which is locked, to its origin or to target. */
static void
redrive_one(ScanRow *row, const char *target)
{
	TupleDesc	desc = RelationGetDescr(row->table->heap);
	const char *name = target;
	Queue		queue;
	NewMessage	message = {0};

	if (name == NULL)
		name = note_text(note_of(desc, row->tuple), "origin_queue");
	queue_open_for_push(name, &queue);

	message.body = result_body(desc, row->tuple);
	message.ttl = meta_default_ttl(&queue);
	message.priority = MESSAGE_FORM(row->tuple)->priority;
	message.moved = true;
	store_messages(&queue, &message, 1);
	row_delete_locked(row->table, row->tuple);
}

/* The same if it is a dead letter, and to be had. */
static bool
redrive_row(ScanRow *row, const char *target, TimestampTz now)
{
	Jsonb	   *note = note_of(RelationGetDescr(row->table->heap),
								row->tuple);

	if (row_is_claimed(row->form, now) || row_is_expired(row->form, now) ||
		note_text(note, "origin_queue") == NULL)
		return false;

	/* If not, it is somebody else's just now. */
	if (!row_lock_as_seen(row->table, row->slot, LockTupleExclusive,
						  LockWaitSkip))
		return false;
	row->tuple = row_tuple(row->slot);
	redrive_one(row, target);
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

	ring_push_snapshot();
	scan = scan_begin_list(queue->id, *marker + 1, RowExclusiveLock, true);
	while (n < limit && scan_next(scan, &row))
	{
		MemoryContext old;

		MemoryContextReset(context);
		*marker = row.form->id;
		old = MemoryContextSwitchTo(context);
		if (redrive_row(&row, target, now))
			n++;
		MemoryContextSwitchTo(old);
	}
	scan_end(scan);
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
 * to push to the target.
 * Source: Amazon SQS, dead letter queue redrive.
 */
Datum
queue_redrive(PG_FUNCTION_ARGS)
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
		limit = queue_check_bounds("limit", PG_GETARG_INT32(2), 1, NULL,
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
