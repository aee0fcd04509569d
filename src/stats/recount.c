/*-------------------------------------------------------------------------
 *
 * recount.c
 *	  Counting the depths of all queues anew.
 *
 * NOTES
 *	  See depth_state.c for when that is needed, and why it is exact although
 *	  transactions commit meanwhile.  One transaction reads all messages with
 *	  one snapshot, without stopping for anything else, and adds the numbers
 *	  that it has found to the availability maps.  It also deletes the counts
 *	  of prepared transactions that the snapshot shows, since it shows their
 *	  messages.  When it has committed, the depths are known.
 *
 *	  The numbers belong to one snapshot, and a snapshot ends with its
 *	  transaction.  So a recount cannot be cut into steps between which the
 *	  worker commits other work.  The worker itself counts as long as there is
 *	  little to read; else another process does (counter.c).  While that runs,
 *	  the worker neither counts the ends of claims, which changes rows that the
 *	  snapshot shows, nor takes the counts of prepared transactions.
 *
 *	  A recount also notes in maps that are new when the first message is due
 *	  in their queues (worker_due.c).
 *
 * src/stats/recount.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "map/availability.h"
#include "queue/queue_table.h"
#include "shmem/depth_state.h"
#include "stats/claim_ends.h"
#include "stats/recount.h"
#include "storage/counts.h"
#include "storage/message_pass.h"
#include "storage/prepared_counts.h"
#include "util/settings.h"

/* What was found in a queue */
typedef struct CountedQueue
{
	int32		queue_id;
	int64		depths[DEPTHS];
	ClaimedMessages claimed;	/* to be passed on by the map; unused if the
								 * worker counts */
	TimestampTz due;			/* the first time at which something is */
} CountedQueue;

/* A recount */
typedef struct Recount
{
	CountedQueue *list;			/* by id */
	int			size;
	CountedQueue *last;			/* the queue of the last message, or NULL */
	bool		by_worker;
	TimestampTz now;
} Recount;

static void count_message_depth(const MessageForm *form, TimestampTz due_at,
								void *arg);
static bool has_messages(const CountedQueue *queue);
static void write_recounted_depths(Recount *recount);

/* Callback of message_pass_read(): count a message by its state. */
static void
count_message_depth(const MessageForm *form, TimestampTz due_at, void *arg)
{
	Recount    *recount = arg;
	CountedQueue *queue = recount->last;
	QueueDepth	depth = counts_depth_of(form, due_at != 0);
	TimestampTz due = DT_NOEND;

	if (queue == NULL || queue->queue_id != form->queue_id)
		queue = queue_find_entry(recount->list, recount->size,
								 sizeof(CountedQueue), form->queue_id);

	/* The queue was created, or dropped, a moment ago. */
	if (queue == NULL)
		return;
	recount->last = queue;
	queue->depths[depth]++;
	if (depth == DEPTH_CLAIMED)
	{
		ClaimedMessages claimed = counts_claimed(form);

		/*
		 * The worker must learn when claims end.  Another process passes that
		 * on through the map, as a session that claims does.
		 */
		if (recount->by_worker)
			claim_ends_add(form->queue_id, &claimed, recount->now);
		else
			claimed_messages_add(&queue->claimed, &claimed);
		due = form->claimed_until;
	}
	else if (depth == DEPTH_DELAYED)
		due = due_at;
	if (due >= queue->due)
		return;
	queue->due = due;
	availability_tell_due(queue->queue_id, due);
}

static bool
has_messages(const CountedQueue *queue)
{
	return queue->depths[DEPTH_READY] + queue->depths[DEPTH_CLAIMED] +
		queue->depths[DEPTH_DELAYED] > 0;
}

/* Add to the maps what was counted. */
static void
write_recounted_depths(Recount *recount)
{
	/* A queue without messages needs no map. */
	for (int i = 0; i < recount->size; i++)
		if (has_messages(&recount->list[i]))
			counts_set_depths(recount->list[i].queue_id,
							  recount->list[i].depths,
							  &recount->list[i].claimed);
}

/* Count all messages, in a transaction of its own. */
RecountResult
recount_messages(bool may_take_long, bool by_worker)
{
	Recount		recount = {.now = GetCurrentTimestamp(),.by_worker = by_worker};
	MessagePass pass;
	Snapshot	snapshot;
	QueueEntry *queues;

	if (!message_pass_open(&pass, false))
		return RECOUNT_LOCKED;
	if (!may_take_long && message_pass_is_long(&pass))
	{
		message_pass_close(&pass);
		return RECOUNT_LONG;
	}
	snapshot = depth_begin_recount();
	if (snapshot == NULL)
	{
		message_pass_close(&pass);
		return RECOUNT_LOCKED;
	}
	queues = queue_all(NULL, NULL, NULL, &recount.size);
	recount.list = palloc_extended(Max(recount.size, 1) *
								   sizeof(CountedQueue),
								   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	for (int i = 0; i < recount.size; i++)
	{
		recount.list[i].queue_id = queues[i].id;
		recount.list[i].claimed = NO_CLAIMED_MESSAGES;
		recount.list[i].due = DT_NOEND;
	}

	/* The pass meets all messages that are claimed. */
	if (by_worker)
		claim_ends_forget();
	message_pass_read(&pass, snapshot, count_message_depth, &recount);
	prepared_counts_take(snapshot, false);
	UnregisterSnapshot(snapshot);
	message_pass_close(&pass);
	write_recounted_depths(&recount);
	ereport(DEBUG1,
			(errmsg_internal("counted the messages of %d queues",
							 recount.size)));
	return RECOUNT_DONE;
}
