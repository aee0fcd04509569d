/*-------------------------------------------------------------------------
 *
 * claim.c
 *	  The SQL functions that hand out messages: claim and pop.
 *
 * NOTES
 *	  A claim goes in three steps.
 *
 *	  1.  Walk over the queue's messages and lock those that are free, without
 *	  waiting (claim_scan.c).
 *
 *	  2.  When all are known, and with them the range they lie in, mark them:
 *	  token, range, until when.  The mark outlives the transaction; the lock
 *	  only keeps others off until it is there.
 *
 *	  3.  What was found to have expired is removed, and what was claimed too
 *	  often sent to the dead letter queue.
 *
 *	  Messages that wait for their time are taken when they are due; they
 *	  move to the active segment as they are marked.
 *
 * src/queue/claim.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "bgworker/wakeup.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "queue/claim.h"
#include "queue/claim_scan.h"
#include "queue/counters.h"
#include "queue/dedup.h"
#include "queue/lease.h"
#include "queue/message_result.h"
#include "queue/registry.h"
#include "shmem/availability.h"
#include "shmem/shmem.h"
#include "storage/claim_id.h"
#include "storage/pending.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/args.h"
#include "util/limits.h"
#include "util/settings.h"

PG_FUNCTION_INFO_V1(sql_queue_claim);
PG_FUNCTION_INFO_V1(sql_queue_claim_any);
PG_FUNCTION_INFO_V1(sql_claim_next);
PG_FUNCTION_INFO_V1(sql_queue_pop);

/* What a caller asks of a claim. */
typedef struct ClaimTerms
{
	int			ttl;
	int			grace;
	int			limit;
	bool		for_jobs;		/* what was tried before goes by itself */
} ClaimTerms;

static HeapTuple mark(LockedMessage *taken, const ClaimId *claim, TimestampTz now,
					  const ClaimTerms *terms, Snapshot snapshot,
					  MessageTable *active);
static int	take(const Queue *queue, const ClaimTerms *terms, int limit,
				 MessageResult *result);
static void mark_all(ClaimScan *walk, const ClaimTerms *terms, Snapshot snapshot,
					 MessageResult *result);
static void delete_all(ClaimScan *walk, Snapshot snapshot, MessageResult *result);
static void get_terms(FunctionCallInfo fcinfo, int first, ClaimTerms *terms);
static const char **all_queues(int *n);
static bool take_any(const char *name, bool named, const ClaimTerms *terms,
					 MessageResult *result, Queue *queue);
static bool take_numbered(int32 id, const ClaimTerms *terms,
						  MessageResult *result, Queue *queue);
static bool take_ready(const ClaimTerms *terms, MessageResult *result,
					   Queue *queue);

/*
 * Step 2 for one message; the result is its row as it is now.  A message that
 * was delayed moves to the active segment.
 */
static HeapTuple
mark(LockedMessage *taken, const ClaimId *claim, TimestampTz now,
	 const ClaimTerms *terms, Snapshot snapshot, MessageTable *active)
{
	HeapTuple	tuple = taken->tuple;
	ItemPointerData tid = tuple->t_self;
	bool		delayed = segment_is_delayed(taken->table->segment);
	MessageForm *form;

	if (delayed)
	{
		if (active->heap == NULL)
			segment_open_active(active);
		tuple = message_copy_to(taken->table, active, tuple, 0);
	}

	form = MESSAGE_FORM(tuple);
	message_set_claim(form, now, terms->ttl, terms->grace);
	form->claim_token = claim->token;
	form->claim_first = claim->first;
	form->claim_span = claim->span;
	form->claim_priorities = claim->priorities;
	form->claim_count++;
	tuple = dedup_begin_run(RelationGetDescr(delayed ? active->heap :
									   taken->table->heap), tuple, snapshot);

	if (delayed)
	{
		message_insert(active, tuple);
		message_delete_locked(taken->table, taken->tuple);
	}
	else
		message_update_locked(taken->table, &tid, tuple);
	return tuple;
}

static void
mark_all(ClaimScan *walk, const ClaimTerms *terms, Snapshot snapshot,
		 MessageResult *result)
{
	MessageTable active = {0};
	ClaimId		claim;

	claim.token = claim_id_new_token();
	claim.first = walk->min_number;
	claim.span = (int32) (walk->max_number - walk->min_number);
	claim.priorities = walk->priorities;

	for (int i = 0; i < walk->taken.n; i++)
	{
		LockedMessage	   *taken = &walk->taken.items[i];
		HeapTuple	tuple = mark(taken, &claim, walk->now, terms, snapshot,
								 &active);

		result_put(result, walk->queue, RelationGetDescr(taken->table->heap),
				   tuple, walk->now);
	}
	if (active.heap != NULL)
		message_table_close(&active, true);
}

static void
delete_all(ClaimScan *walk, Snapshot snapshot, MessageResult *result)
{
	List	   *runs = NIL;
	ListCell   *cell;

	for (int i = 0; i < walk->taken.n; i++)
	{
		LockedMessage	   *taken = &walk->taken.items[i];
		TupleDesc	desc = RelationGetDescr(taken->table->heap);
		HeapTuple	begun = dedup_begin_run(desc, taken->tuple, snapshot);
		DedupRun	   *run = dedup_run_of(desc, begun);

		if (run != NULL)
			runs = lappend(runs, run);
		result_put(result, walk->queue, desc, taken->tuple, walk->now);
		message_delete_locked(taken->table, taken->tuple);
		dedup_drop_key(taken->table, taken->tuple);
	}
	CommandCounterIncrement();
	foreach(cell, runs)
		dedup_finish_run(walk->queue, (DedupRun *) lfirst(cell), true);
	counters_add(walk->queue->id, JOB_COMPLETED, walk->taken.n);
}

/*
 * Hand out up to limit messages: claimed on these terms, or deleted where
 * there are none.  Returns their number.
 */
static int
take(const Queue *queue, const ClaimTerms *terms, int limit,
	 MessageResult *result)
{
	/* What the run of a message sees, at least */
	Snapshot	snapshot = GetActiveSnapshot();
	ClaimScan		walk;
	int			n = 0;

	if (queue->paused)
		return 0;
	claim_scan_init(&walk, queue, limit);
	walk.pops = terms == NULL;
	walk.alone = terms != NULL && terms->for_jobs;
	do
	{
		claim_scan_run(&walk);
		n = walk.taken.n;

		/* The walk may have waited for others. */
		walk.now = GetCurrentTimestamp();
		if (n > 0 && terms != NULL)
			mark_all(&walk, terms, snapshot, result);
		else if (n > 0)
			delete_all(&walk, snapshot, result);
		claim_scan_end(&walk);
	} while (n == 0 && claim_scan_again(&walk));
	counters_add(queue->id, JOB_CLAIMED, n);
	return n;
}

/*
 * Claim jobs for whoever runs them inside the server, in an opened queue.  All
 * count as tried once they are claimed.  So one that was tried before, or may
 * not be tried again, is claimed alone: those that were claimed together with
 * one that brings the server down shall not end as it does.
 */
int
claim_for_handler(const Queue *queue, int ttl, int grace, int limit,
		   MessageResult *result)
{
	ClaimTerms	terms;

	terms.ttl = ttl;
	terms.grace = grace;
	terms.limit = queue->max_claim_count == 1 ? 1 : limit;
	terms.for_jobs = true;
	return take(queue, &terms, terms.limit, result);
}

/* ttl, grace and limit, from argument number first on */
static void
get_terms(FunctionCallInfo fcinfo, int first, ClaimTerms *terms)
{
	if (PG_ARGISNULL(first))
		arg_missing("ttl");
	if (PG_ARGISNULL(first + 1))
		arg_missing("grace");
	terms->ttl = arg_check_claim_ttl(PG_GETARG_INT32(first));
	terms->grace = arg_check_grace(PG_GETARG_INT32(first + 1));
	terms->for_jobs = false;
	terms->limit = PG_ARGISNULL(first + 2) ?
		Min(setting_default_claim_limit, setting_max_claim_limit) :
		arg_check_claim_limit(PG_GETARG_INT32(first + 2));
}

/*
 * queue_claim(q text, ttl int = 300, grace int = 60, "limit" int = NULL)
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
sql_queue_claim(PG_FUNCTION_ARGS)
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
 * claim_next(q text, claim_id text, ttl int = 300, grace int = 60,
 *			  "limit" int = NULL)
 * returns setof queue_message
 *
 * Deletes what is left of the claim (NULL: there is none yet) and claims the
 * next messages as queue_claim does, in one call.
 *
 * Errors: QU001 the claim is not live; as queue_claim.
 * Source: claim_complete and queue_claim.
 */
Datum
sql_claim_next(PG_FUNCTION_ARGS)
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
			claim_not_live();
		return (Datum) 0;
	}
	if (!PG_ARGISNULL(1))
		claim_complete(&queue, text_to_cstring(PG_GETARG_TEXT_PP(1)));
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
sql_queue_pop(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	MessageResult result;
	Queue		queue;
	int			limit;

	queue_prevent("queue_pop()");
	if (PG_ARGISNULL(1))
		arg_missing("limit");
	limit = arg_check_claim_limit(PG_GETARG_INT32(1));
	result_begin(&result, fcinfo);
	if (queue_open(name, QUEUE_CLAIM, &queue))
		take(&queue, NULL, limit, &result);
	return (Datum) 0;
}

/* The names in an array, each checked. */
const char **
arg_queue_names(ArrayType *array, int *n)
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

/* The names of all queues of the session's project. */
static const char **
all_queues(int *n)
{
	QueueEntry *queues = queue_all(setting_project, n);
	const char **names = palloc(Max(*n, 1) * sizeof(char *));

	for (int i = 0; i < *n; i++)
		names[i] = queues[i].name;
	return names;
}

/* Claim from this queue if that may be.  False: there was nothing to claim. */
static bool
take_any(const char *name, bool named, const ClaimTerms *terms,
		 MessageResult *result, Queue *queue)
{
	bool		may;

	CHECK_FOR_INTERRUPTS();
	if (!named &&
		!(queue_peek(name, GetUserId(), QUEUE_CLAIM, queue, &may) && may))
		return false;
	return queue_open(name, QUEUE_CLAIM, queue) &&
		take(queue, terms, terms->limit, result) > 0;
}

/* The same for a queue of the session's project that is known by its number */
static bool
take_numbered(int32 id, const ClaimTerms *terms, MessageResult *result,
			  Queue *queue)
{
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		paused;

	return queue_name_of(id, project, name, &paused) && !paused &&
		strcmp(project, setting_project) == 0 &&
		take_any(name, false, terms, result, queue);
}

/*
 * Claim from the next of those queues that shared memory knows to be ready,
 * after the one that the session's last call ended with; the rest only then.
 * What this transaction has made free is known to itself alone.  False: there
 * was nothing to claim.
 */
static bool
take_ready(const ClaimTerms *terms, MessageResult *result, Queue *queue)
{
	static uint32 slot = 0;
	static bool begun = false;
	Oid			extension = catalog_queue_oid();
	uint32		first;
	AvailabilityMap	   *map;
	int32		id = 0;

	/* Sessions that begin at the same time shall not go in step. */
	if (!begun)
		slot = (uint32) MyProcPid * 64;
	begun = true;
	first = slot = shmem_wrap(slot);
	for (bool wrapped = false;;)
	{
		map = shmem_next_flagged(MAP_READY, &slot);
		if (map == NULL && !wrapped)
		{
			wrapped = true;
			slot = 0;
			continue;
		}
		if (map == NULL || (wrapped && slot > first))
			break;
		if (map_database(map) == MyDatabaseId &&
			map_extension(map) == extension &&
			take_numbered(map_queue_id(map), terms, result, queue))
			return true;
	}
	slot = first;
	while (pending_next_queue(&id))
		if (take_numbered(id, terms, result, queue))
			return true;
	return false;
}

/*
 * queue_claim_any(queues text[] = NULL, ttl int = 300, grace int = 60,
 *				   "limit" int = NULL)
 * returns setof queue_message
 *
 * Claims from the first of these queues (NULL: all of the session's project
 * that it may claim from) that has something free.  Each call of a session
 * begins with the queue after the one that the last call began with, or, where
 * shared memory knows which ones are ready, after the one it ended with: so
 * none is served before the others every time.
 *
 * Result and errors: as queue_claim.
 * Source: MediaWiki, JobQueueGroup::pop.
 */
Datum
sql_queue_claim_any(PG_FUNCTION_ARGS)
{
	static uint32 turn = 0;
	ClaimTerms	terms;
	MessageResult result;
	const char **names;
	bool		named = !PG_ARGISNULL(0);
	uint64		generation;
	int			n;
	Queue		queue;			/* for the result, until the call ends */

	queue_prevent("queue_claim_any()");
	get_terms(fcinfo, 1, &terms);
	result_begin(&result, fcinfo);
	if (!named && ready_are_known(&generation) &&
		(take_ready(&terms, &result, &queue) || ready_were_known(generation)))
		return (Datum) 0;
	names = named ? arg_queue_names(PG_GETARG_ARRAYTYPE_P(0), &n) :
		all_queues(&n);

	/* Sessions that begin at the same time shall not go in step. */
	if (turn == 0)
		turn = (uint32) MyProcPid;
	turn++;
	for (int i = 0; i < n; i++)
		if (take_any(names[(turn + (uint32) i) % (uint32) n], named, &terms,
					 &result, &queue))
			break;
	return (Datum) 0;
}
