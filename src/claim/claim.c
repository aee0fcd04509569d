/*-------------------------------------------------------------------------
 *
 * claim.c
 *	  Handing out messages: claim and pop.
 *
 * NOTES
 *	  A claim is made in three steps.
 *
 *	  1.  Scan the queue's messages and choose those that are free, without
 *	  waiting for locks (claim_scan.c).
 *
 *	  2.  When all of them are known, and so the range of ids in which they
 *	  lie, mark them: write the claim's token, its range and its end into each
 *	  row.  The mark outlives the transaction.  A message that another
 *	  transaction has locked or changed since it was chosen is left out.
 *
 *	  3.  Remove the messages that the scan found to have expired or to be
 *	  duplicates, and move those that were claimed too often to the dead
 *	  letter queue (claim_scan.c).
 *
 *	  A pop deletes the messages instead of marking them, and so completes
 *	  their runs (dedup.c).
 *
 * src/claim/claim.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "catalog/message_table.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "claim/claim.h"
#include "claim/claim_commit.h"
#include "claim/claim_scan.h"
#include "claim/group_rate.h"
#include "claim/ready.h"
#include "map/shmem_maps.h"
#include "push/dedup.h"
#include "push/dedup_run.h"
#include "queue/group.h"
#include "queue/message_result.h"
#include "queue/registry.h"
#include "storage/claim_id.h"
#include "storage/claim_members.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/pending.h"
#include "storage/segment.h"
#include "util/limits.h"
#include "util/settings.h"

/* What becomes of the messages that are handed out */
typedef enum HandOutKind
{
	HAND_OUT_CLAIM,				/* they are claimed, by a session */
	HAND_OUT_JOBS,				/* they are claimed, for their handler */
	HAND_OUT_POP				/* they are deleted */
} HandOutKind;

/* A claim from one of several queues */
typedef struct ClaimAttempt
{
	const ClaimTerms *terms;
	MessageResult *result;
	Queue	   *queue;			/* set by the attempt that succeeds */
	bool		skip_denied;	/* pass over queues from which the role may
								 * not claim, without an error */
	MemoryContext context;		/* of an attempt; reset if it fails */
} ClaimAttempt;

static int	hand_out(const Queue *queue, HandOutKind kind,
					 const ClaimTerms *terms, MessageResult *result);
static int	mark_all(const Queue *queue, ClaimScan *scan,
					 const ClaimScanResult *found, const ClaimTerms *terms,
					 Snapshot snapshot, MessageResult *result);
static HeapTuple mark(ChosenMessage *message, const ClaimId *claim,
					  TimestampTz now, const ClaimTerms *terms,
					  Snapshot snapshot, MessageTable *active);
static int	delete_all(const Queue *queue, ClaimScan *scan,
					   const ClaimScanResult *found, Snapshot snapshot,
					   MessageResult *result, List **runs);
static bool delete_one(ChosenMessage *message);
static void attempt_begin(ClaimAttempt *attempt, const ClaimTerms *terms,
						  MessageResult *result, Queue *queue,
						  bool skip_denied);
static bool claim_by_name(ClaimAttempt *attempt, const char *name);
static bool claim_by_id(ClaimAttempt *attempt, int32 id);
static bool claim_from_flagged(ClaimAttempt *attempt);
static bool claim_from_ready(ClaimAttempt *attempt);
static const char **all_queues(int *n);

/* --- One queue --- */

/* Claim for a session. */
int
claim_from_queue(const Queue *queue, const ClaimTerms *terms,
				 MessageResult *result)
{
	bool		may_be_lost;
	int			n;

	/*
	 * A crash may not lose the claim if the queue limits the number of
	 * claims, because a claim whose message crashes the server has to be
	 * counted; nor if it limits the claims of a group, because the client of
	 * a lost claim may go on while another one claims the next message of the
	 * group.
	 */
	may_be_lost = queue->max_claim_count < 0 &&
		queue->group_concurrency < 0 && claim_commit_may_be_async();
	n = hand_out(queue, HAND_OUT_CLAIM, terms, result);
	if (may_be_lost)
		claim_commit_add();
	return n;
}

/*
 * Claim jobs for a handler inside the server.  A claim counts as an attempt
 * to run each of its messages.  So a message that was attempted before is
 * claimed alone: if it crashes the server, no other message has lost an
 * attempt with it.
 */
int
claim_for_handler(const Queue *queue, const ClaimTerms *terms,
				  MessageResult *result)
{
	ClaimTerms	job_terms = *terms;

	/* If there is only one attempt, none may be lost with another message. */
	if (queue->max_claim_count == 1)
		job_terms.limit = 1;
	return hand_out(queue, HAND_OUT_JOBS, &job_terms, result);
}

/* Hand out messages and delete them. */
int
claim_pop(const Queue *queue, int limit, MessageResult *result)
{
	ClaimTerms	terms = {.limit = limit};

	return hand_out(queue, HAND_OUT_POP, &terms, result);
}

static int
hand_out(const Queue *queue, HandOutKind kind, const ClaimTerms *terms,
		 MessageResult *result)
{
	/* A run of a message sees at least what this snapshot sees (dedup.c). */
	Snapshot	snapshot = GetActiveSnapshot();
	ClaimScanRequest request = {0};
	ClaimScan  *scan;
	List	   *runs = NIL;
	ListCell   *cell;
	int			n;

	if (queue->paused)
		return 0;
	request.queue = queue;
	request.mode = CLAIM_SCAN_CLAIM;
	request.limit = terms->limit;
	request.deletes = kind == HAND_OUT_POP;
	request.isolates = kind == HAND_OUT_JOBS;
	scan = claim_scan_begin(&request);
	do
	{
		const ClaimScanResult *found = claim_scan_pass(scan);

		if (found->chosen.n == 0)
			n = 0;
		else if (kind == HAND_OUT_POP)
			n = delete_all(queue, scan, found, snapshot, result, &runs);
		else
			n = mark_all(queue, scan, found, terms, snapshot, result);
		claim_scan_end_pass(scan);
	} while (n == 0 && claim_scan_needs_pass(scan));
	claim_scan_end(scan);

	/*
	 * This comes after the pass has removed what was set aside, because some
	 * of that may be twins that these runs cover, and would be deleted twice.
	 */
	foreach(cell, runs)
		dedup_finish_run(queue, (DedupRun *) lfirst(cell), RUN_POPPED);
	counts_add(queue->id, JOB_CLAIMED, n);
	return n;
}

/*
 * Mark the messages that were chosen as claimed, and return them.  Another
 * transaction may have been the first to lock or change some: these are left
 * out.
 */
static int
mark_all(const Queue *queue, ClaimScan *scan, const ClaimScanResult *found,
		 const ClaimTerms *terms, Snapshot snapshot, MessageResult *result)
{
	MessageTable active = {0};
	ClaimId		claim;
	Datum	   *ids = palloc(found->chosen.n * sizeof(Datum));
	int			n = 0;

	/* The range goes into each mark, with what will be left out. */
	claim.token = claim_id_new_token();
	claim.first = found->min_number;
	claim.span = (int32) (found->max_number - found->min_number);
	claim.priorities = found->priorities;

	for (int i = 0; i < found->chosen.n; i++)
	{
		ChosenMessage *message = &found->chosen.items[i];
		HeapTuple	tuple = mark(message, &claim, found->now, terms, snapshot,
								 &active);

		if (tuple == NULL)
		{
			claim_scan_lost(scan, message);
			continue;
		}
		message_result_add(result, queue,
						   RelationGetDescr(message->table->heap), tuple,
						   found->now);
		heap_freetuple(tuple);
		group_rate_record(queue, message->table, message->tuple);
		ids[n++] = Int64GetDatum(message->form.id);
	}
	if (active.heap != NULL)
		message_table_close(&active, true);
	claim_members_keep(&claim, ids, n);
	pfree(ids);
	return n;
}

/*
 * Mark one message; returns its row as it is now, or NULL if another
 * transaction has locked or changed it.  A delayed message moves to the
 * active segment, which is opened for the first of them.
 */
static HeapTuple
mark(ChosenMessage *message, const ClaimId *claim, TimestampTz now,
	 const ClaimTerms *terms, Snapshot snapshot, MessageTable *active)
{
	MessageTable *table = message->table;
	HeapTuple	old = message->tuple;
	HeapTuple	tuple;
	bool		delayed = segment_is_delayed(table->segment);
	TupleDesc	desc = RelationGetDescr(table->heap);
	MessageForm form = message->form;

	if (delayed)
	{
		if (active->heap == NULL)
			segment_open_active(active);
		old = message_copy_to(table, active, old, 0);
		desc = RelationGetDescr(active->heap);
	}

	message_set_claim(&form, now, terms->ttl, terms->grace);
	form.claim_token = claim->token;
	form.claim_first = claim->first;
	form.claim_span = claim->span;
	form.claim_priorities = claim->priorities;
	form.claim_count++;
	tuple = message_row_change(desc, old, &form);
	tuple = dedup_begin_run(desc, tuple, snapshot);

	if (delayed)
	{
		message_insert(active, tuple);
		message_delete_locked(table, message->tuple);
		heap_freetuple(old);
	}
	else if (message->locked)
		message_update_locked(table, old, tuple);

	/* It was only chosen: it must still be as it was then. */
	else if (!message_update_as_seen(table, old, tuple))
		return NULL;
	return tuple;
}

/*
 * Delete the messages that were chosen, and return them.  Their runs are
 * added to *runs; the caller finishes them.
 */
static int
delete_all(const Queue *queue, ClaimScan *scan, const ClaimScanResult *found,
		   Snapshot snapshot, MessageResult *result, List **runs)
{
	int			n = 0;

	for (int i = 0; i < found->chosen.n; i++)
	{
		ChosenMessage *message = &found->chosen.items[i];
		TupleDesc	desc = RelationGetDescr(message->table->heap);
		HeapTuple	begun = dedup_begin_run(desc, message->tuple, snapshot);
		DedupRun   *run = dedup_run_of(desc, begun);

		if (!delete_one(message))
		{
			claim_scan_lost(scan, message);
			continue;
		}
		if (run != NULL)
			*runs = lappend(*runs, run);
		message_result_add(result, queue, desc, message->tuple, found->now);
		n++;
		group_record_pop(queue, message->table, message->tuple);
		group_rate_record(queue, message->table, message->tuple);
		group_make_room(queue, message->table, message->tuple, true);
		dedup_drop_message(message->table, message->tuple);
	}
	CommandCounterIncrement();
	counts_add(queue->id, JOB_COMPLETED, n);
	return n;
}

/*
 * Delete one message.  Returns false if another transaction has locked or
 * changed it.
 */
static bool
delete_one(ChosenMessage *message)
{
	if (!message->locked)
		return message_delete_as_seen(message->table, message->tuple);
	message_delete_locked(message->table, message->tuple);
	return true;
}

/* --- One of several queues --- */

static void
attempt_begin(ClaimAttempt *attempt, const ClaimTerms *terms,
			  MessageResult *result, Queue *queue, bool skip_denied)
{
	attempt->terms = terms;
	attempt->result = result;
	attempt->queue = queue;
	attempt->skip_denied = skip_denied;
	attempt->context = AllocSetContextCreate(CurrentMemoryContext,
											 "a claim from one of many queues",
											 ALLOCSET_DEFAULT_SIZES);
}

/*
 * Claim from a queue.  Returns false if there was nothing to claim; then all
 * memory is free again, as there may be very many queues.
 */
static bool
claim_by_name(ClaimAttempt *attempt, const char *name)
{
	MemoryContext old = MemoryContextSwitchTo(attempt->context);
	bool		claimed;

	CHECK_FOR_INTERRUPTS();

	/* Opening a queue without the privilege is an error: ask before. */
	claimed = (!attempt->skip_denied ||
			   queue_find_as(name, GetUserId(), QUEUE_CLAIM,
							 attempt->queue) == QUEUE_OK) &&
		queue_open(name, QUEUE_CLAIM, attempt->queue) &&
		claim_from_queue(attempt->queue, attempt->terms, attempt->result) > 0;
	MemoryContextSwitchTo(old);
	if (!claimed)
		MemoryContextReset(attempt->context);
	return claimed;
}

/*
 * Claim from the queue with this id.  Returns false if there was nothing to
 * claim, or the role may not claim from it.
 */
static bool
claim_by_id(ClaimAttempt *attempt, int32 id)
{
	char		name[QUEUE_NAME_LENGTH + 1];
	MemoryContext old = MemoryContextSwitchTo(attempt->context);
	QueueResult result = queue_check_claimable(id, name);

	MemoryContextSwitchTo(old);
	MemoryContextReset(attempt->context);
	return result == QUEUE_OK && claim_by_name(attempt, name);
}

/*
 * Claim from the first of these queues that has something free; or, if names
 * is NULL, of all queues of the session's project.  Each call of a session
 * starts one queue further on.  Returns false if there was nothing to claim.
 */
bool
claim_from_queues(const char **names, int n, const ClaimTerms *terms,
				  MessageResult *result, Queue *queue)
{
	static uint32 start = 0;
	ClaimAttempt attempt;

	attempt_begin(&attempt, terms, result, queue, names == NULL);
	if (names == NULL)
		names = all_queues(&n);

	/* Sessions that start at the same time begin with different queues. */
	if (start == 0)
		start = (uint32) MyProcPid;
	start++;
	for (int i = 0; i < n; i++)
		if (claim_by_name(&attempt, names[(start + (uint32) i) % (uint32) n]))
			return true;
	return false;
}

/*
 * Claim from one of the queues of the session's project.  Returns false if
 * there was nothing to claim.
 */
bool
claim_from_any(const ClaimTerms *terms, MessageResult *result, Queue *queue)
{
	uint64		generation;

	/* If all queues that are ready have their flags, look only at these. */
	if (ready_is_complete(&generation))
	{
		ClaimAttempt attempt;

		attempt_begin(&attempt, terms, result, queue, true);
		if (claim_from_ready(&attempt))
			return true;

		/* If not, a map may have been evicted before we came to its flag. */
		if (ready_was_complete(generation))
			return false;
	}
	return claim_from_queues(NULL, 0, terms, result, queue);
}

/*
 * Claim from the next of the queues whose maps have the flag, after the one
 * with which the session's last call ended.  Returns false if there was
 * nothing to claim.
 */
static bool
claim_from_flagged(ClaimAttempt *attempt)
{
	static uint32 slot = 0;
	static bool begun = false;
	char		name[QUEUE_NAME_LENGTH + 1];
	QueueEntry	queue = {.name = name};
	uint32		first;
	bool		wrapped = false;

	/* Sessions that start at the same time begin with different queues. */
	if (!begun)
		slot = (uint32) MyProcPid * 64;
	begun = true;
	first = slot = shmem_first_map(slot);
	ready_begin();
	for (;;)
	{
		bool		found = ready_next_claimable(&slot, &queue);

		/* After the last map come those before the one we have begun with. */
		if (!found && !wrapped)
		{
			wrapped = true;
			slot = 0;
			continue;
		}
		if (!found || (wrapped && slot > first))
			break;
		if (claim_by_name(attempt, name))
			return true;
	}
	slot = first;
	return false;
}

/*
 * Claim from the next queue that is ready.  Returns false if there was
 * nothing to claim.
 */
static bool
claim_from_ready(ClaimAttempt *attempt)
{
	int32		id = 0;

	if (claim_from_flagged(attempt))
		return true;

	/* What this transaction itself has made free raises no flag yet. */
	while (pending_next_queue(&id))
		if (claim_by_id(attempt, id))
			return true;
	return false;
}

/*
 * The names of all queues of the session's project from which the role may
 * claim
 */
static const char **
all_queues(int *n)
{
	QueueEntry *queues = queue_list_claimable(n);
	const char **names = palloc_extended(Max(*n, 1) * sizeof(char *),
										 MCXT_ALLOC_HUGE);

	for (int i = 0; i < *n; i++)
		names[i] = queues[i].name;
	return names;
}
