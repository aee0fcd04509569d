/*-------------------------------------------------------------------------
 *
 * pending.c
 *	  What this transaction did to messages, and what follows when it ends.
 *
 * NOTES
 *	  Whatever row.c does to a message is recorded here, before it is done,
 *	  and returned to the queue's availability map (availability.c) when the transaction has
 *	  left the array of those that are running, so that others see its end.
 *
 *	  At commit: messages that are free now (pushed, released), or under a
 *	  claim, which is due when that ends.  At rollback, also of a
 *	  subtransaction: those that were locked, changed or deleted, which may be
 *	  as free as they were.  What a rolled back subtransaction touched is
 *	  returned once more at the end of the whole.  When the transaction is
 *	  prepared nobody will tell of its end: all is returned as uncertain.
 *
 *	  A record is a range of numbers.  One that goes on where the last ones
 *	  ended is made part of them.  A transaction with too many records has the
 *	  availability maps of the database forget what they know instead.
 *
 *	  Until then the availability maps know nothing of it, but the transaction itself
 *	  may claim what it has pushed or released: it looks through the records.
 *
 *	  Nothing here may fail once the transaction is over; no memory is
 *	  allocated then, and no catalog read.
 *
 * src/storage/pending.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "shmem/availability.h"
#include "shmem/availability_reserve.h"
#include "shmem/availability_visit.h"
#include "shmem/message_ranges.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "storage/pending.h"
#include "storage/segment.h"
#include "util/compat.h"
#include "util/xact.h"

#define TOUCHES_MAX		100000
#define LOOK_BACK		32		/* records that may be made larger */
#define GAP				32		/* numbers that may lie between */

typedef struct Touch
{
	XactRecord	xact;
	Oid			extension;
	int32		queue_id;
	int			previous;		/* of those with the same hash; -1: none */
	bool		delayed;			/* the message is; range has only a due */
	bool		on_abort;		/* it was there before */
	bool		looked;			/* we have tried to claim it since */
	TimestampTz expires_at;		/* none of the messages does before */
	TimestampTz until;			/* it is delayed */
	MessageRange range;			/* due: when, after commit; DT_NOEND: never */
} Touch;

static int *latest = NULL;		/* of each hash of a queue, or -1; in
								 * TopTransactionContext */
static int	latest_size = 0;	/* at least touches.n, a power of two */
static bool too_many = false;
static Oid	restored = InvalidOid;	/* the extension whose tables were written
									 * by other SQL */

PG_FUNCTION_INFO_V1(sql_queue_restored);

static void begin(Touch *touch, int32 queue_id);
static void touch_any(const MessageForm *form, bool delayed, TimestampTz until,
					  TimestampTz due, bool on_abort);
static void add(const Touch *touch);
static void chain(int i);
static int *latest_of(int32 queue_id);
static int	first_of(int32 queue_id);
static void enlarge(void);
static void chain_all(void);
static bool extend(Touch *touch, const Touch *new);
static bool is_queue(const Touch *touch);
static bool has_queues(void);
static void give_back(const Touch *touch, TimestampTz now, TimestampTz due,
					  bool uncertain);
static void forget_all(void);
static void give_all_back(XactEvent event);
static void before_end(XactEvent event);
static void end_transaction(XactEvent event);
static void roll_back(int first);

static XactList touches = {
	.record_size = sizeof(Touch),
	.before_end = before_end,
	.end = end_transaction,
	.roll_back = roll_back
};

void
pending_init(void)
{
	xact_register(&touches);
}

/*
 * queue_data.restored() returns trigger
 *
 * Rows were written to tables of the extension by other SQL than its functions
 * (a restore, the initial copy of a subscription): when that commits, all
 * that sessions and the worker know of these tables is forgotten.
 *
 * Errors: 39P01 called, but not as a trigger.
 */
Datum
sql_queue_restored(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" was not called by trigger manager",
						"queue_data.restored")));
	if (shmem_exists())
	{
		Oid			relid =
			RelationGetRelid(((TriggerData *) fcinfo->context)->tg_relation);

		restored = catalog_queue_oid();
		database_record_change(CHANGE_HANDLERS);
		for (int i = 0; i < QUEUE_RELATIONS; i++)
			if (catalog_segment_oid(i) == relid)
				segment_found_rows(i);
	}
	PG_RETURN_POINTER(NULL);
}

/* Can the new record be part of this one? */
static bool
extend(Touch *touch, const Touch *new)
{
	if (touch->queue_id != new->queue_id ||
		touch->xact.nest_level != new->xact.nest_level ||
		touch->delayed != new->delayed ||
		touch->on_abort != new->on_abort ||
		touch->looked || new->looked ||
		touch->range.priority != new->range.priority ||
		touch->range.due != new->range.due ||
		touch->extension != new->extension ||
		new->range.first > touch->range.last + GAP ||
		new->range.last < touch->range.first - GAP)
		return false;
	touch->range.first = Min(touch->range.first, new->range.first);
	touch->range.last = Max(touch->range.last, new->range.last);
	touch->expires_at = Min(touch->expires_at, new->expires_at);
	touch->until = Min(touch->until, new->until);
	return true;
}

/* A record of something in this queue, by the current subtransaction. */
static void
begin(Touch *touch, int32 queue_id)
{
	database_join();
	memset(touch, 0, sizeof(Touch));
	touch->extension = catalog_queue_oid();
	touch->queue_id = queue_id;
	touch->xact.nest_level = GetCurrentTransactionNestLevel();
}

/*
 * Something is about to happen to a message: after commit it may be claimed
 * when it is due (DT_NOEND: not because of this), and after a rollback too if
 * on_abort is set.
 */
void
pending_record_message(const MessageForm *form, TimestampTz due,
					   PendingKind kind)
{
	touch_any(form, false, DT_NOBEGIN, due, kind == PENDING_CHANGE);
}

/* The same for a delayed one, with the time until which it is. */
void
pending_record_delayed(const MessageForm *form, TimestampTz until,
					   TimestampTz due, PendingKind kind)
{
	touch_any(form, true, until, due, kind == PENDING_CHANGE);
}

static void
touch_any(const MessageForm *form, bool delayed, TimestampTz until,
		  TimestampTz due, bool on_abort)
{
	Touch		touch;

	if (!shmem_exists())
		return;
	begin(&touch, form->queue_id);
	touch.delayed = delayed;
	touch.until = until;
	touch.on_abort = on_abort;
	touch.range.priority = form->priority;
	touch.range.first = touch.range.last = message_id_number(form->id);
	touch.range.due = due;
	touch.expires_at = form->expires_at;
	add(&touch);
}

/* What is claimable of this queue may change for all who wait. */
void
pending_record_queue(int32 queue_id)
{
	Touch		touch;

	if (!shmem_exists())
		return;
	begin(&touch, queue_id);
	touch.delayed = true;
	touch.until = DT_NOEND;
	touch.looked = true;
	touch.range.due = DT_NOBEGIN;
	touch.expires_at = DT_NOEND;
	add(&touch);
}

static void
add(const Touch *touch)
{
	Touch	   *added;

	for (int i = touches.n - 1; i >= 0 && i >= touches.n - LOOK_BACK; i--)
		if (extend(xact_record(&touches, i), touch))
			return;

	if (touches.n == TOUCHES_MAX)
	{
		too_many = true;
		return;
	}
	if (touches.n == latest_size)
		enlarge();
	added = xact_add(&touches);
	*added = *touch;
	chain(touches.n - 1);
}

/* The latest record of a queue, or of one with the same hash. */
static int *
latest_of(int32 queue_id)
{
	return &latest[murmurhash32((uint32) queue_id) &
				   (uint32) (latest_size - 1)];
}

static int
first_of(int32 queue_id)
{
	return touches.n == 0 ? -1 : *latest_of(queue_id);
}

static void
chain(int i)
{
	Touch	   *touch = xact_record(&touches, i);

	touch->previous = *latest_of(touch->queue_id);
	*latest_of(touch->queue_id) = i;
}

static void
enlarge(void)
{
	int			size = latest_size == 0 ? 16 : latest_size * 2;

	latest = latest == NULL ?
		MemoryContextAlloc(TopTransactionContext, size * sizeof(int)) :
		repalloc(latest, size * sizeof(int));
	latest_size = size;
	chain_all();
}

/* The number of records, or the places of some, have changed. */
static void
chain_all(void)
{
	for (int i = 0; i < latest_size; i++)
		latest[i] = -1;
	for (int i = 0; i < touches.n; i++)
		chain(i);
}

/*
 * A message, or range of them, that this transaction has made free itself
 * and not tried to claim since.  Each is returned once.
 */
bool
pending_next_own(int32 queue_id, TimestampTz now, MessageRange *range)
{
	Touch	   *touch;

	for (int i = first_of(queue_id); i >= 0; i = touch->previous)
	{
		touch = xact_record(&touches, i);
		if (touch->queue_id == queue_id && touch->range.due <= now &&
			!touch->looked && !touch->delayed)
		{
			touch->looked = true;
			*range = touch->range;
			return true;
		}
	}
	return false;
}

/* They were not all looked at: return them once more. */
void
pending_rescan_own(int32 queue_id)
{
	Touch	   *touch;

	for (int i = first_of(queue_id); i >= 0; i = touch->previous)
	{
		touch = xact_record(&touches, i);
		if (touch->queue_id == queue_id)
			touch->looked = false;
	}
}

/*
 * The queues that this transaction has something to do with, in the order of
 * their numbers: the next one after *queue_id.
 */
bool
pending_next_queue(int32 *queue_id)
{
	int32		next = PG_INT32_MAX;

	for (int i = 0; i < touches.n; i++)
	{
		const Touch *touch = xact_record(&touches, i);

		if (touch->queue_id > *queue_id)
			next = Min(next, touch->queue_id);
	}
	*queue_id = next;
	return next != PG_INT32_MAX;
}

/*
 * Has this transaction delayed a message that is due now?  *from: none of them
 * until earlier.
 */
bool
pending_has_own_delayed(int32 queue_id, TimestampTz now, TimestampTz *from)
{
	bool		found = false;
	Touch	   *touch;

	for (int i = first_of(queue_id); i >= 0; i = touch->previous)
	{
		touch = xact_record(&touches, i);
		if (touch->queue_id == queue_id && touch->delayed &&
			touch->range.due <= now)
		{
			*from = found ? Min(*from, touch->until) : touch->until;
			found = true;
		}
	}
	return found;
}

/* Does this concern a queue as a whole? */
static bool
is_queue(const Touch *touch)
{
	return touch->until == DT_NOEND;
}

static bool
has_queues(void)
{
	for (int i = 0; i < touches.n; i++)
		if (is_queue(xact_record(&touches, i)))
			return true;
	return false;
}

static void
give_back(const Touch *touch, TimestampTz now, TimestampTz due, bool uncertain)
{
	if (is_queue(touch))
	{
		if (!uncertain)
			availability_request_visit(touch->extension, touch->queue_id);
	}
	else if (touch->delayed)
		availability_return_delayed(touch->extension, touch->queue_id, touch->until,
							 due, uncertain);
	else
	{
		MessageRange range = touch->range;

		range.due = due;
		range.uncertain = uncertain;
		range.scanned_at = DT_NOBEGIN;
		availability_return(touch->extension, touch->queue_id, &range,
					  touch->expires_at, now);
	}
}

/* There was too much to record. */
static void
forget_all(void)
{
	if (touches.n > 0)
		shmem_for_each_map(((Touch *) touches.records)->extension,
							  availability_clear);
}

/* The transaction is over: return what its records say. */
static void
give_all_back(XactEvent event)
{
	TimestampTz now = GetCurrentTimestamp();

	if (too_many)
		forget_all();
	for (int i = 0; i < touches.n; i++)
	{
		const Touch *touch = xact_record(&touches, i);

		if (event == XACT_EVENT_PREPARE)
			give_back(touch, now, availability_recheck_at(now), true);
		else if (event == XACT_EVENT_COMMIT && touch->range.due != DT_NOEND)
			give_back(touch, now, touch->range.due, false);
		else if (event == XACT_EVENT_ABORT && touch->on_abort)
			give_back(touch, now, DT_NOBEGIN, false);
	}
}

static void
before_end(XactEvent event)
{
	if (event == XACT_EVENT_PRE_PREPARE && has_queues())
		catalog_lookup_changed();
}

static void
end_transaction(XactEvent event)
{
	availability_close_all();
	availability_end_wait(event == XACT_EVENT_ABORT);
	segment_end_transaction(event == XACT_EVENT_COMMIT);
	if (OidIsValid(restored) && event == XACT_EVENT_COMMIT)
	{
		shmem_for_each_map(restored, availability_reset);
		database_map_evicted(shmem_database(MyDatabaseId), DT_NOBEGIN);
	}
	restored = InvalidOid;
	availability_publish_sweep(event == XACT_EVENT_COMMIT);
	if (touches.n > 0)
		give_all_back(event);
	availability_close_deferred();
	latest = NULL;
	latest_size = 0;
	too_many = false;
	segment_end_move();
}

/* A subtransaction is rolled back; its records are those from first on. */
static void
roll_back(int first)
{
	TimestampTz now;
	int			kept = first;

	availability_close_all();
	availability_end_wait(true);
	segment_forget_published();
	if (touches.n == 0)
		return;

	now = GetCurrentTimestamp();
	if (too_many)
		forget_all();

	/* What it claimed of earlier records is free again. */
	for (int i = 0; i < first; i++)
		((Touch *) xact_record(&touches, i))->looked = false;
	for (int i = first; i < touches.n; i++)
	{
		Touch	   *touch = xact_record(&touches, i);

		/* What it inserted never existed. */
		if (!touch->on_abort)
			continue;
		give_back(touch, now, DT_NOBEGIN, false);
		touch->range.due = DT_NOBEGIN;
		touch->looked = true;	/* the availability map knows */
		*(Touch *) xact_record(&touches, kept++) = *touch;
	}

	if (kept < touches.n)
	{
		touches.n = kept;
		chain_all();
	}
}
