/*-------------------------------------------------------------------------
 *
 * claim.c
 *	  The SQL functions that hand out messages: claim and pop.
 *
 * NOTES
 *	  A claim goes in three steps.
 *
 *	  1.  Walk over the queue's messages with the latest snapshot, highest
 *	  priority and lowest id first, and lock each free one without waiting.
 *	  One that is locked is somebody else's.  A lock that we get means that
 *	  the row is still as the snapshot saw it (row.c), so it is free and stays
 *	  so.  Messages that have expired are removed on the way, those that were
 *	  claimed too often are set aside.
 *
 *	  2.  When all are known, and with them the range they lie in, mark them:
 *	  token, range, until when.  The mark outlives the transaction; the lock
 *	  only keeps others off until it is there.
 *
 *	  3.  Send what was set aside to the dead letter queue.
 *
 *	  The latest snapshot is used at every isolation level: a message that was
 *	  pushed or claimed since the transaction began is seen as it is.  At
 *	  REPEATABLE READ no serialization failure comes from that; SERIALIZABLE
 *	  watches our reads and writes as it does all others.
 *
 *	  An empty answer has to mean that there was a moment at which nothing was
 *	  free.  A row that changed between snapshot and lock may be free again;
 *	  and while we find one row after the other locked, others may be pushed
 *	  that the snapshot does not show.  So if nothing was found, but some rows
 *	  were locked or changed, we walk again, until every row that is locked
 *	  was so in the walk before: then, unless one was let go and locked again,
 *	  all of them were when the last snapshot was taken.
 *
 *	  A walk begins where the last one of this session found the first
 *	  message (cursor.c); before an empty answer it begins at the start.
 *
 *	  Messages that wait for their time are taken when they are due; they
 *	  move to the active segment as they are marked.
 *
 * src/claim.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

/* Due messages that one walk looks at, and expired ones that it removes. */
#define DUE_AT_ONCE			1000
#define EXPIRED_AT_ONCE		1000

/* Messages that one walk sends to the dead letter queue. */
#define EXHAUSTED_AT_ONCE	100

PG_FUNCTION_INFO_V1(queue_claim);
PG_FUNCTION_INFO_V1(queue_claim_any);
PG_FUNCTION_INFO_V1(claim_next);
PG_FUNCTION_INFO_V1(queue_pop);

/* A message that this transaction has locked. */
typedef struct Taken
{
	MessageTable *table;
	HeapTuple	tuple;			/* a copy */
} Taken;

/* Ids of messages that others had locked, in the order of the walk. */
typedef struct LockedList
{
	int			n;
	int			size;
	int64	   *items;
} LockedList;

typedef struct TakenList
{
	int			n;
	int			size;
	Taken	   *items;
} TakenList;

/* One walk over a queue. */
typedef struct Walk
{
	const Queue *queue;
	MessageScan *scan;
	TimestampTz now;
	TakenList	taken;
	TakenList	exhausted;
	LockedList	locked;			/* by others */
	int			expired;		/* how many were removed */
	int64		min_number;		/* of the taken ones */
	int64		max_number;
	int16		priorities;
	bool		from_cursor;	/* it did not begin at the start */
	bool		changed;		/* a row did, and may be free now */
	bool		more_due;		/* parked ones that we did not look at */
} Walk;

/* What a caller asks of a claim. */
typedef struct ClaimTerms
{
	int			ttl;
	int			grace;
	int			limit;
} ClaimTerms;

static void remember(TakenList *list, ScanRow *row);
static void remember_locked(LockedList *list, const MessageForm *form);
static bool is_subset(const LockedList *now, const LockedList *before);
static bool widens_too_far(const Walk *walk, const MessageForm *form);
static bool try_row(Walk *walk, ScanRow *row);
static void set_cursor(Walk *walk);
static void walk_queue(Walk *walk, const Queue *queue, int limit, int max_due,
					   bool use_cursor);
static void end_walk(Walk *walk, bool *may_bury);
static HeapTuple mark(Taken *taken, const ClaimId *claim, TimestampTz now,
					  const ClaimTerms *terms, MessageTable *active);
static int	take(const Queue *queue, const ClaimTerms *terms, int limit,
				 MessageResult *result);
static void mark_all(Walk *walk, const ClaimTerms *terms,
					 MessageResult *result);
static void delete_all(Walk *walk, MessageResult *result);
static void get_terms(FunctionCallInfo fcinfo, int first, ClaimTerms *terms);
static const char **queues_to_try(ArrayType *array, int *n);
static const char **all_queues(int *n);

static void
remember(TakenList *list, ScanRow *row)
{
	if (list->n == list->size)
	{
		list->size = list->size == 0 ? 16 : list->size * 2;
		list->items = list->items == NULL ?
			palloc(list->size * sizeof(Taken)) :
			repalloc(list->items, list->size * sizeof(Taken));
	}
	list->items[list->n].table = row->table;
	list->items[list->n].tuple = heap_copytuple(row->tuple);
	list->n++;
}

static void
remember_locked(LockedList *list, const MessageForm *form)
{
	if (list->n == list->size)
	{
		list->size = list->size == 0 ? 16 : list->size * 2;
		list->items = list->items == NULL ?
			palloc(list->size * sizeof(int64)) :
			repalloc(list->items, list->size * sizeof(int64));
	}
	list->items[list->n++] = form->id;
}

/* Is everything that is locked now in the other list too? */
static bool
is_subset(const LockedList *now, const LockedList *before)
{
	int			j = 0;

	for (int i = 0; i < now->n; i++, j++)
	{
		while (j < before->n && before->items[j] != now->items[i])
			j++;
		if (j == before->n)
			return false;
	}
	return true;
}

/* Would the range of the claim not fit into claim_span with this one? */
static bool
widens_too_far(const Walk *walk, const MessageForm *form)
{
	int64		number = id_number(form->id);

	return walk->taken.n > 0 &&
		Max(walk->max_number, number) - Min(walk->min_number, number) >
		PG_INT32_MAX;
}

/* Take the row that the scan stands on, if it is to be had. */
static bool
try_row(Walk *walk, ScanRow *row)
{
	bool		expired = row_is_expired(row->form, walk->now);
	int64		number;

	if (row_is_claimed(row->form, walk->now) ||
		(expired && walk->expired == EXPIRED_AT_ONCE))
		return false;

	if (walk->exhausted.n == EXHAUSTED_AT_ONCE &&
		meta_is_exhausted(walk->queue, row->table, row->tuple))
		return false;			/* the next walk's */

	switch (row_lock(row->table, row->slot, LockTupleNoKeyExclusive,
					 LockWaitSkip))
	{
		case TM_Ok:
			break;
		case TM_WouldBlock:
			remember_locked(&walk->locked, row->form);
			return false;
		case TM_Updated:
		case TM_Deleted:
			walk->changed = true;
			return false;
		case TM_Invisible:
		case TM_SelfModified:
		case TM_BeingModified:
		default:
			elog(ERROR, "unexpected result of locking a message");
	}
	row->tuple = row_tuple(row->slot);
	row->form = MESSAGE_FORM(row->tuple);

	if (expired)
	{
		row_delete_locked(row->table, &row->tuple->t_self);
		key_drop(row->table, row->tuple);
		walk->expired++;
		return false;
	}
	if (meta_is_exhausted(walk->queue, row->table, row->tuple))
	{
		remember(&walk->exhausted, row);
		return false;
	}

	number = id_number(row->form->id);
	walk->min_number = walk->taken.n == 0 ? number :
		Min(walk->min_number, number);
	walk->max_number = walk->taken.n == 0 ? number :
		Max(walk->max_number, number);
	walk->priorities |= 1 << row->form->priority;
	remember(&walk->taken, row);
	return true;
}

/* The next walk may begin at the first message of this one. */
static void
set_cursor(Walk *walk)
{
	CursorPlace place;

	if (!scan_first(walk->scan, &place) || place.segment != ring_only_segment())
		return;
	if (walk->from_cursor)
		cursor_move(walk->queue->id, &place);
	else
		cursor_set(walk->queue->id, &place, walk->now);
}

/*
 * Step 1: lock up to limit free messages.  Begins where the cursor says, if
 * it may; but then finding nothing means nothing.
 */
static void
walk_queue(Walk *walk, const Queue *queue, int limit, int max_due,
		   bool use_cursor)
{
	CursorPlace place;
	int			only = ring_only_segment();
	int			below = 0;		/* priorities still to be looked at */
	ScanRow		row;

	memset(walk, 0, sizeof(Walk));
	walk->queue = queue;
	walk->now = GetCurrentTimestamp();
	walk->from_cursor = use_cursor && only >= 0 &&
		cursor_get(queue->id, walk->now, &place) && place.segment == only;

	PushActiveSnapshot(GetLatestSnapshot());
	walk->scan = scan_begin(queue->id, true, RowExclusiveLock);
	scan_watch(walk->scan, walk->from_cursor);
	if (walk->from_cursor)
	{
		if (place.priority < QUEUE_PRIORITIES - 1)
			scan_add_segments(walk->scan, place.priority + 1,
							  QUEUE_PRIORITIES - 1, PG_INT64_MIN,
							  PG_INT64_MAX);
		scan_add_segments(walk->scan, place.priority, place.priority,
						  place.id, PG_INT64_MAX);
		below = place.priority;
	}
	else
		scan_add_segments(walk->scan, 0, QUEUE_PRIORITIES - 1, PG_INT64_MIN,
						  PG_INT64_MAX);

	/* Due messages have all priorities; they must not overtake others. */
	if (scan_add_due(walk->scan, walk->now, max_due, &walk->more_due) > 0 &&
		below > 0)
	{
		scan_add_segments(walk->scan, 0, below - 1, PG_INT64_MIN,
						  PG_INT64_MAX);
		below = 0;
	}

	/* Each part has found its first row by now. */
	set_cursor(walk);
	while (walk->taken.n < limit)
	{
		if (scan_next(walk->scan, &row))
		{
			if (widens_too_far(walk, row.form))
				break;
			try_row(walk, &row);
		}
		else if (below > 0)
		{
			scan_add_segments(walk->scan, 0, below - 1, PG_INT64_MIN,
							  PG_INT64_MAX);
			below = 0;
		}
		else
			break;
	}
}

/* Step 3, unless it failed before, and let go of the tables. */
static void
end_walk(Walk *walk, bool *may_bury)
{
	CommandCounterIncrement();
	for (int i = 0; i < walk->exhausted.n && *may_bury; i++)
		*may_bury = dead_bury(walk->queue, walk->exhausted.items[i].table,
							  walk->exhausted.items[i].tuple);
	scan_end(walk->scan);
	PopActiveSnapshot();
}

/*
 * Step 2 for one message; the result is its row as it is now.  A message that
 * was parked moves to the active segment.
 */
static HeapTuple
mark(Taken *taken, const ClaimId *claim, TimestampTz now,
	 const ClaimTerms *terms, MessageTable *active)
{
	HeapTuple	tuple = taken->tuple;
	ItemPointerData tid = tuple->t_self;
	bool		parked = taken->table->segment == QUEUE_PARKED;
	MessageForm *form;

	if (parked)
	{
		if (active->heap == NULL)
			ring_open_active(active);
		tuple = row_copy_to(taken->table, active, tuple, 0);
	}

	form = MESSAGE_FORM(tuple);
	row_hold(form, now, terms->ttl, terms->grace);
	form->claim_token = claim->token;
	form->claim_first = claim->first;
	form->claim_span = claim->span;
	form->claim_priorities = claim->priorities;
	form->claim_count++;

	if (parked)
	{
		row_insert(active, tuple);
		row_delete_locked(taken->table, &tid);
	}
	else
		row_update_locked(taken->table, &tid, tuple);
	return tuple;
}

static void
mark_all(Walk *walk, const ClaimTerms *terms, MessageResult *result)
{
	MessageTable active = {0};
	ClaimId		claim;

	claim.token = claim_token_new();
	claim.first = walk->min_number;
	claim.span = (int32) (walk->max_number - walk->min_number);
	claim.priorities = walk->priorities;

	for (int i = 0; i < walk->taken.n; i++)
	{
		Taken	   *taken = &walk->taken.items[i];
		HeapTuple	tuple = mark(taken, &claim, walk->now, terms, &active);

		result_put(result, walk->queue, RelationGetDescr(taken->table->heap),
				   tuple, walk->now);
	}
	if (active.heap != NULL)
		queue_close_table(&active, true);
}

static void
delete_all(Walk *walk, MessageResult *result)
{
	for (int i = 0; i < walk->taken.n; i++)
	{
		Taken	   *taken = &walk->taken.items[i];

		result_put(result, walk->queue, RelationGetDescr(taken->table->heap),
				   taken->tuple, walk->now);
		row_delete_locked(taken->table, &taken->tuple->t_self);
		key_drop(taken->table, taken->tuple);
	}
}

/*
 * Hand out up to limit messages: claimed on these terms, or deleted where
 * there are none.  Returns their number.
 */
static int
take(const Queue *queue, const ClaimTerms *terms, int limit,
	 MessageResult *result)
{
	int			max_due = Max(DUE_AT_ONCE, limit);
	LockedList	before = {0};
	bool		use_cursor = true;
	bool		may_bury = true;

	while (!queue->paused)
	{
		Walk		walk;

		walk_queue(&walk, queue, limit, max_due, use_cursor);
		if (walk.taken.n > 0)
		{
			if (terms != NULL)
				mark_all(&walk, terms, result);
			else
				delete_all(&walk, result);
		}
		end_walk(&walk, &may_bury);

		if (walk.taken.n > 0)
			return walk.taken.n;
		if (!walk.changed && !walk.more_due && !walk.from_cursor &&
			is_subset(&walk.locked, &before) && !ring_refresh())
			break;
		if (walk.more_due)
			max_due = max_due < INT_MAX / 10 ? max_due * 10 : INT_MAX;
		if (before.items != NULL)
			pfree(before.items);
		before = walk.locked;
		use_cursor = false;
	}
	return 0;
}

/* ttl, grace and limit, from argument number first on */
static void
get_terms(FunctionCallInfo fcinfo, int first, ClaimTerms *terms)
{
	if (PG_ARGISNULL(first))
		queue_arg_missing("ttl");
	if (PG_ARGISNULL(first + 1))
		queue_arg_missing("grace");
	terms->ttl = queue_check_claim_ttl(PG_GETARG_INT32(first));
	terms->grace = queue_check_grace(PG_GETARG_INT32(first + 1));
	terms->limit = PG_ARGISNULL(first + 2) ?
		Min(queue_guc_default_claim_limit, queue_guc_max_claim_limit) :
		queue_check_claim_limit(PG_GETARG_INT32(first + 2));
}

/*
 * queue_claim(q text, ttl int, grace int, "limit" int = NULL)
 * returns setof queue_message
 *
 * Claims up to limit (NULL: queue.default_claim_limit) free messages, highest
 * priority first, oldest first, for ttl seconds; nobody else gets them until
 * then.  Makes their lifetime reach at least grace seconds beyond.
 *
 * Result: the messages, all with one claim_id.  No row: nothing is free, or
 * the queue is unknown or paused.
 * Errors: 22004 and 22023 arguments, 42501 no right to claim.
 * Source: Zaqar and Cloud Queues, claim messages.
 */
Datum
queue_claim(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	ClaimTerms	terms;
	MessageResult result;
	Queue		queue;

	queue_prevent("queue_claim()");
	get_terms(fcinfo, 1, &terms);
	result_begin(&result, fcinfo);
	if (queue_open(name, QUEUE_CLAIM, &queue))
		take(&queue, &terms, terms.limit, &result);
	return (Datum) 0;
}

/*
 * claim_next(q text, claim_id text, ttl int, grace int, "limit" int = NULL)
 * returns setof queue_message
 *
 * Deletes what is left of the claim (NULL: there is none yet) and claims the
 * next messages as queue_claim does, in one call.
 *
 * Errors: QU001 the claim is not live; as queue_claim.
 * Source: claim_complete and queue_claim.
 */
Datum
claim_next(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	ClaimTerms	terms;
	MessageResult result;
	Queue		queue;

	queue_prevent("claim_next()");
	get_terms(fcinfo, 2, &terms);
	result_begin(&result, fcinfo);
	if (!queue_open(name, QUEUE_CLAIM, &queue))
	{
		if (!PG_ARGISNULL(1))
			lease_not_live();
		return (Datum) 0;
	}
	if (!PG_ARGISNULL(1))
		lease_complete(&queue, text_to_cstring(PG_GETARG_TEXT_PP(1)));
	take(&queue, &terms, terms.limit, &result);
	return (Datum) 0;
}

/*
 * queue_pop(q text, "limit" int = 1) returns setof queue_message
 *
 * The oldest free messages, highest priority first, deleted as they are
 * returned: at most once, for who can bear to lose a message when his
 * transaction commits and he then fails.
 *
 * Errors: 22004 and 22023 arguments, 42501 no right to claim.
 * Source: Zaqar, pop messages.
 */
Datum
queue_pop(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	MessageResult result;
	Queue		queue;
	int			limit;

	queue_prevent("queue_pop()");
	if (PG_ARGISNULL(1))
		queue_arg_missing("limit");
	limit = queue_check_claim_limit(PG_GETARG_INT32(1));
	result_begin(&result, fcinfo);
	if (queue_open(name, QUEUE_CLAIM, &queue))
		take(&queue, NULL, limit, &result);
	return (Datum) 0;
}

/* The names in an array, each checked. */
static const char **
queues_to_try(ArrayType *array, int *n)
{
	Datum	   *elements;
	bool	   *nulls;
	const char **names;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elements,
					  &nulls, n);
	names = palloc(Max(*n, 1) * sizeof(char *));
	for (int i = 0; i < *n; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("element %d of parameter \"%s\" must not be null",
							i + 1, "queues"),
					 errhint("Leave it out.")));
		names[i] = queue_name_text(DatumGetTextPP(elements[i]), "queues");
	}
	return names;
}

/* The names of the session's queues that it may claim from. */
static const char **
all_queues(int *n)
{
	Relation	rel = queue_open_queues(AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	int			size = 64;
	const char **names = palloc(size * sizeof(char *));

	*n = 0;
	ScanKeyInit(&key, Anum_queue_project, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(queue_guc_project));
	scan = systable_beginscan(rel, queue_name_index_oid(), true, snapshot,
							  1, &key);
	while ((tuple = systable_getnext(scan)) != NULL)
	{
		bool		isnull;

		if (*n == size)
		{
			size *= 2;
			names = repalloc(names, size * sizeof(char *));
		}
		names[(*n)++] =
			TextDatumGetCString(heap_getattr(tuple, Anum_queue_name,
											 RelationGetDescr(rel), &isnull));
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return names;
}

/*
 * queue_claim_any(queues text[], ttl int, grace int, "limit" int = NULL)
 * returns setof queue_message
 *
 * Claims from the first of these queues (NULL: all of the session's project
 * that it may claim from) that has something free.  Each call of a session
 * begins with the queue after the one that the last call began with, so that
 * none is served before the others every time.
 *
 * Result and errors: as queue_claim.
 * Source: MediaWiki, JobQueueGroup::pop.
 */
Datum
queue_claim_any(PG_FUNCTION_ARGS)
{
	static uint32 turn = 0;
	ClaimTerms	terms;
	MessageResult result;
	const char **names;
	bool		named = !PG_ARGISNULL(0);
	int			n;
	Queue		queue;

	queue_prevent("queue_claim_any()");
	get_terms(fcinfo, 1, &terms);
	result_begin(&result, fcinfo);
	names = named ? queues_to_try(PG_GETARG_ARRAYTYPE_P(0), &n) :
		all_queues(&n);

	/* Sessions that begin at the same time shall not go in step. */
	if (turn == 0)
		turn = (uint32) MyProcPid;
	turn++;
	for (int i = 0; i < n; i++)
	{
		const char *name = names[(turn + (uint32) i) % (uint32) n];
		bool		may;

		CHECK_FOR_INTERRUPTS();
		if (!named &&
			!(queue_peek(name, GetUserId(), QUEUE_CLAIM, &queue, &may) && may))
			continue;
		if (queue_open(name, QUEUE_CLAIM, &queue) &&
			take(&queue, &terms, terms.limit, &result) > 0)
			break;
	}
	return (Datum) 0;
}
