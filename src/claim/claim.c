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
#include "catalog/tables.h"
#include "claim/claim.h"
#include "claim/claim_commit.h"
#include "claim/claim_scan.h"
#include "claim/group_rate.h"
#include "claim/ready.h"
#include "map/shmem_maps.h"
#include "push/dedup_run.h"
#include "push/message_end.h"
#include "queue/group.h"
#include "queue/message_result.h"
#include "queue/registry.h"
#include "shmem/database_state.h"
#include "storage/claim_id.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/pending.h"
#include "util/limits.h"

#define LIST_INTERVAL		64	/* calls of which one visits all queues, while
								 * some have no map */

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

static int	hand_out_messages(const ClaimScanRequest *request,
							  const ClaimTerms *terms, MessageResult *result);
static int	mark_chosen(const Queue *queue, ClaimScan *scan,
						const ClaimScanResult *found, const ClaimTerms *terms,
						Snapshot snapshot, MessageResult *result);
static int	delete_chosen(const Queue *queue, ClaimScan *scan,
						  const ClaimScanResult *found, Snapshot snapshot,
						  MessageResult *result, List **runs);
static bool claim_by_name(ClaimAttempt *attempt, const char *name);
static bool claim_from_ready(ClaimAttempt *attempt);

/* --- One queue --- */

/* Claim for a session. */
int
claim_from_queue(const Queue *queue, const ClaimTerms *terms,
				 MessageResult *result)
{
	/*
	 * A crash may not lose the claim if the queue limits the number of
	 * claims, because a claim whose message crashes the server has to be
	 * counted; nor if it limits the claims of a group, because the client of
	 * a lost claim may go on while another one claims the next message of the
	 * group.
	 */
	bool		may_be_lost = (queue->max_claim_count < 0 &&
							   queue->group_concurrency < 0 &&
							   claim_commit_may_be_async());
	ClaimScanRequest request = {.queue = queue,.limit = terms->limit};
	int			n = hand_out_messages(&request, terms, result);

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
	ClaimScanRequest request = {.queue = queue,.limit = terms->limit,
	.isolates = true};

	/* If there is only one attempt, none may be lost with another message. */
	if (queue->max_claim_count == 1)
		request.limit = 1;
	return hand_out_messages(&request, terms, result);
}

/* Hand out messages and delete them. */
void
claim_pop(const Queue *queue, int limit, MessageResult *result)
{
	ClaimScanRequest request = {.queue = queue,.limit = limit,
	.deletes = true};

	(void) hand_out_messages(&request, NULL, result);
}

/* Messages that are not deleted are claimed on these terms. */
static int
hand_out_messages(const ClaimScanRequest *request, const ClaimTerms *terms,
				  MessageResult *result)
{
	const Queue *queue = request->queue;

	/* A run of a message sees at least what this snapshot sees (dedup.c). */
	Snapshot	snapshot = GetActiveSnapshot();
	ClaimScan  *scan;
	List	   *runs = NIL;
	ListCell   *cell;
	int			n = 0;

	if (queue->paused)
		return 0;
	scan = claim_scan_begin(request);
	do
	{
		const ClaimScanResult *found = claim_scan_pass(scan);

		if (found->chosen.n > 0)
			n = request->deletes ?
				delete_chosen(queue, scan, found, snapshot, result, &runs) :
				mark_chosen(queue, scan, found, terms, snapshot, result);
		claim_scan_end_pass(scan);
	} while (n == 0 && claim_scan_needs_pass(scan));

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
mark_chosen(const Queue *queue, ClaimScan *scan, const ClaimScanResult *found,
			const ClaimTerms *terms, Snapshot snapshot, MessageResult *result)
{
	Datum	   *ids = palloc(found->chosen.n * sizeof(Datum));
	int			n = 0;

	/* The range goes into each mark, with what will be left out. */
	ClaimId		claim = {
		.token = claim_id_new_token(),
		.first = found->min_number,
		.span = (int32) (found->max_number - found->min_number),
		.priorities = found->priorities
	};

	for (int i = 0; i < found->chosen.n; i++)
	{
		ChosenMessage *message = &found->chosen.items[i];
		HeapTuple	tuple = claim_mark_message(message, &claim, found->now,
											   terms, snapshot);

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
	claim_id_keep_members(&claim, ids, n);
	pfree(ids);
	return n;
}

/*
 * Mark one message; returns its row as it is now, or NULL if another
 * transaction has locked or changed it.
 */
HeapTuple
claim_mark_message(ChosenMessage *message, const ClaimId *claim,
				   TimestampTz now, const ClaimTerms *terms,
				   Snapshot snapshot)
{
	MessageTable *table = message->table;
	HeapTuple	tuple;
	TupleDesc	desc = RelationGetDescr(table->heap);
	MessageForm form = message->form;

	if (terms->until == 0)
		message_set_claim(&form, now, terms->ttl, terms->grace);
	else
		message_hide(&form, now, Max(now, terms->until), terms->grace);
	form.claim_token = claim->token;
	form.claim_first = claim->first;
	form.claim_span = claim->span;
	form.claim_priorities = claim->priorities;
	form.claim_count++;
	tuple = message_row_change(desc, message->tuple, &form);
	tuple = dedup_begin_run(desc, tuple, snapshot);

	if (message->locked)
		message_update_locked(table, message->tuple, tuple);

	/* It was only chosen: it must still be as it was then. */
	else if (!message_update_as_seen(table, message->tuple, tuple))
		return NULL;
	return tuple;
}

/*
 * Delete the messages that were chosen, and return them.  Their runs are
 * added to *runs; the caller finishes them.
 */
static int
delete_chosen(const Queue *queue, ClaimScan *scan,
			  const ClaimScanResult *found, Snapshot snapshot,
			  MessageResult *result, List **runs)
{
	int			n = 0;

	for (int i = 0; i < found->chosen.n; i++)
	{
		ChosenMessage *message = &found->chosen.items[i];
		TupleDesc	desc = RelationGetDescr(message->table->heap);
		HeapTuple	begun = dedup_begin_run(desc, message->tuple, snapshot);
		DedupRun   *run = dedup_run_of(desc, begun);

		if (message->locked)
			message_delete_locked(message->table, message->tuple);

		/* Leave out one that another transaction has locked or changed. */
		else if (!message_delete_as_seen(message->table, message->tuple,
										 false))
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
		(void) message_end(queue, message->table, message->tuple, END_POPPED,
						   NULL);
	}
	CommandCounterIncrement();
	return n;
}

/* --- One of several queues --- */

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
		queue_open_or_notice(name, QUEUE_CLAIM, attempt->queue) &&
		claim_from_queue(attempt->queue, attempt->terms, attempt->result) > 0;
	MemoryContextSwitchTo(old);
	if (!claimed)
		MemoryContextReset(attempt->context);
	return claimed;
}

/*
 * Claim from the next queue that is ready.  Returns false if there was
 * nothing to claim.
 */
static bool
claim_from_ready(ClaimAttempt *attempt)
{
	static uint32 slot = 0;
	QueueSummary queue;
	uint32		first;
	int32		id = 0;

	/* Sessions that start at the same time begin with different queues. */
	if (slot == 0)
		slot = (uint32) MyProcPid * 64;

	/*
	 * Queues whose maps have the flag, after the one with which the session's
	 * last call ended, and then those before it.  Maps have the numbers from
	 * 1 on.
	 */
	slot %= shmem_count_maps() + 1;
	first = slot;
	ready_begin();
	for (int round = 0; round < 2; round++)
	{
		while (ready_next_claimable(&slot, &queue, NULL) &&
			   (round == 0 || slot <= first))
			if (claim_by_name(attempt, queue.name))
				return true;
		slot = 0;
	}
	slot = first;

	/* What this transaction itself has made free raises no flag yet. */
	while (pending_next_queue(&id))
	{
		MemoryContext old = MemoryContextSwitchTo(attempt->context);
		QueueResult result = queue_check_claimable(id, setting_project,
												   &queue, NULL);

		MemoryContextSwitchTo(old);
		MemoryContextReset(attempt->context);
		if (result == QUEUE_OK && claim_by_name(attempt, queue.name))
			return true;
	}
	return false;
}

/*
 * Claim from a queue whose map has the flag.  Returns false if all queues have
 * to be visited, because one without a flag may be ready.
 */
static bool
claim_by_flags(ClaimAttempt *attempt)
{
	static uint32 calls = 0;
	uint64		generation;

	/*
	 * If none has anything, a queue may have been found to have no map, and
	 * so no flag.
	 */
	if (ready_is_complete(&generation))
		return claim_from_ready(attempt) || ready_was_complete(generation);

	/*
	 * Sessions that make a few calls only visit all queues now and then, too.
	 */
	if (calls == 0)
		calls = (uint32) MyProcPid;

	/*
	 * A list of all queues takes the longer the more there are, so those with
	 * the flag come first; but not in every call, so that the others have
	 * their turn.
	 */
	return claim_scan_uses_map() && ++calls % LIST_INTERVAL != 0 &&
		claim_from_ready(attempt);
}

/*
 * Claim from the first of these queues that has something free; or, if names
 * is NULL, of all queues of the session's project.  Each call of a session
 * that visits them in turn starts one queue further on.
 */
void
claim_from_queues(const char **names, int n, const ClaimTerms *terms,
				  MessageResult *result, Queue *queue)
{
	static uint32 start = 0;
	ClaimAttempt attempt = {
		.terms = terms,
		.result = result,
		.queue = queue,
		.skip_denied = names == NULL,
		.context = AllocSetContextCreate(CurrentMemoryContext,
										 "a claim from one of many queues",
										 ALLOCSET_DEFAULT_SIZES)
	};

	if (names == NULL)
	{
		QueueEntry *queues;
		int			nqueues;

		if (claim_by_flags(&attempt))
			return;
		queues = queue_list_readable(&nqueues);
		names = palloc_extended(Max(nqueues, 1) * sizeof(char *),
								MCXT_ALLOC_HUGE);
		n = 0;
		for (int i = 0; i < nqueues; i++)
			if (!queues[i].paused)
				names[n++] = queues[i].name;
	}

	/* Sessions that start at the same time begin with different queues. */
	if (start == 0)
		start = (uint32) MyProcPid;
	start++;
	for (int i = 0; i < n; i++)
		if (claim_by_name(&attempt, names[(start + (uint32) i) % (uint32) n]))
			break;
}
