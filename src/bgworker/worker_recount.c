/*-------------------------------------------------------------------------
 *
 * worker_recount.c
 *	  The worker's task that counts the depths of all queues anew.
 *
 * NOTES
 *	  See depth_state.c for when that is needed, and why it is exact although
 *	  transactions commit meanwhile.  A recount reads the pages of all segments,
 *	  in steps of DEPTH_STEP_PAGES pages, each in a transaction of its own.
 *	  Between two steps the worker does what is urgent, and what is due.  A step
 *	  counts what its snapshot shows, and adds that to the availability maps.
 *
 *	  A recount also notes in maps that are new when the first message is due
 *	  in their queues (worker_due.c).
 *
 * src/bgworker/worker_recount.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "bgworker/worker_internal.h"
#include "catalog/message_table.h"
#include "map/availability.h"
#include "shmem/depth_state.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "util/clock.h"
#include "util/hash.h"

#define RECOUNT_SHARE	20		/* least pause between recounts, in times of
								 * what the last one took, */
#define RECOUNT_PAUSE	(10 * USECS_PER_SEC)	/* and this at least */
#define RECOUNT_SLICE	(USECS_PER_SEC / 50)	/* then other tasks have their
												 * turn */

/* What was found in a queue */
typedef struct CountedQueue
{
	int32		queue_id;		/* key */
	int64		depths[DEPTHS];
	TimestampTz due;			/* the first time at which something is */
} CountedQueue;

static int64 next_recount = 0;	/* by the monotonic clock */

/* The recount that is under way */
static int64 began;				/* by the monotonic clock */
static int	segment;			/* which it reads */
static BlockNumber page;		/* the next one */
static Oid	relfilenode;		/* of that segment, when it read the first one */
static int64 nmessages;			/* that it has met */

static bool begin_recount(void);
static bool count_step(void *arg);
static void count_rows(MessageTable *table, BlockNumber n, Snapshot snapshot,
					   HTAB *found);
static void count_message(MessageTable *table, HeapTuple tuple, HTAB *found);

/* --- Rounds --- */

/*
 * Begin to count all messages, if that is needed, and not too soon after the
 * last time.
 */
static bool
begin_recount(void)
{
	if (!depth_is_lost() || clock_monotonic() < next_recount ||
		task_postponed_for(POSTPONE_RECOUNT, 0) > 0)
		return false;

	/*
	 * The first call of a worker may lose the depths.  After the recount has
	 * begun that would make another one necessary.
	 */
	counts_take_prepared();
	segment = 0;
	page = 0;
	nmessages = 0;
	began = clock_monotonic();
	return depth_begin_recount();
}

/* Count some messages, if all have to be counted. */
void
recount_round(void)
{
	int64		until = clock_monotonic() + RECOUNT_SLICE;
	TaskResult	result = TASK_MORE;

	worker.is_counting = worker.is_counting || begin_recount();
	while (worker.is_counting && result == TASK_MORE &&
		   clock_monotonic() < until && !task_must_end())
	{
		result = task_step_or_postpone(POSTPONE_RECOUNT, 0, count_step, NULL);
		worker_do_urgent(false);
	}
	if (result == TASK_MORE)
		return;

	/*
	 * The depths are known only when the last step has committed.  After an
	 * error another recount has to begin.
	 */
	if (result == TASK_DONE)
	{
		depth_end_recount();
		next_recount = clock_monotonic();
		next_recount += Max(RECOUNT_PAUSE,
							RECOUNT_SHARE * (next_recount - began));
	}
	worker.is_counting = false;
}

/* Have the worker wake up for the next recount, if there is to be one. */
void
recount_wake(void)
{
	if (depth_is_lost())
		database_wake(GetCurrentTimestamp() +
					  Max(next_recount - clock_monotonic(),
						  task_postponed_for(POSTPONE_RECOUNT, 0)), false);
}

/* Count some messages.  Returns whether there are more. */
static bool
count_step(void *arg)
{
	MessageTable table;
	BlockNumber to;
	bool		is_last;
	Snapshot	snapshot;
	HTAB	   *found;
	HASH_SEQ_STATUS seq;
	CountedQueue *queue;

	/*
	 * The table is locked before the snapshot is taken.  So it is not
	 * truncated if that shows messages in it.
	 */
	if (!message_table_try_open(&table, segment, AccessShareLock))
		message_scan_lock_error();
	if (page == 0)
		relfilenode = table.heap->rd_rel->relfilenode;

	/* After CLUSTER, say, the rows are on other pages: begin anew. */
	if (relfilenode != table.heap->rd_rel->relfilenode)
		message_scan_lock_error();
	is_last = RelationGetNumberOfBlocks(table.heap) <= page + DEPTH_STEP_PAGES;
	snapshot = depth_begin_step(is_last ? depth_position(segment + 1, 0) :
								depth_position(segment,
											   page + DEPTH_STEP_PAGES));

	/* The launcher has given the entry away: begin anew if it comes back. */
	if (snapshot == NULL)
		message_scan_lock_error();
	found = hash_create_blobs("counted queues", sizeof(int32),
							  sizeof(CountedQueue), CurrentMemoryContext);

	/* Transactions that the snapshot shows may have added pages. */
	to = is_last ? RelationGetNumberOfBlocks(table.heap) :
		page + DEPTH_STEP_PAGES;
	if (to > page)
		count_rows(&table, to - page, snapshot, found);
	UnregisterSnapshot(snapshot);
	message_table_close(&table, false);

	/* Add to the maps what the step has counted. */
	hash_seq_init(&seq, found);
	while ((queue = hash_seq_search(&seq)) != NULL)
	{
		counts_set_depths(queue->queue_id, queue->depths);
		if (queue->due != DT_NOEND)
			availability_tell_due(queue->queue_id, queue->due);
	}
	page += DEPTH_STEP_PAGES;
	if (is_last)
	{
		segment++;
		page = 0;
	}
	if (segment < ALL_SEGMENTS)
		return true;
	ereport(DEBUG1,
			(errmsg_internal("counted the messages of all queues: %lld",
							 (long long) nmessages)));
	return false;
}

/* --- Counting --- */

/* Count the rows of n pages that the snapshot shows. */
static void
count_rows(MessageTable *table, BlockNumber n, Snapshot snapshot, HTAB *found)
{
	SysScanDesc scan = systable_beginscan(table->heap, InvalidOid, false,
										  snapshot, 0, NULL);
	HeapTuple	tuple;

	heap_setscanlimits(scan->scan, page, n);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		CHECK_FOR_INTERRUPTS();

		/* A malformed row must not keep others from being counted. */
		if (message_row_check(WARNING, table->heap, tuple))
			count_message(table, tuple, found);
	}
	systable_endscan(scan);
}

static void
count_message(MessageTable *table, HeapTuple tuple, HTAB *found)
{
	int32		queue_id = message_row_queue(tuple);
	TimestampTz due = DT_NOEND;
	QueueDepth	depth = message_depth(table, tuple, &due);
	CountedQueue *queue;
	bool		exists;

	queue = hash_search(found, &queue_id, HASH_ENTER, &exists);
	if (!exists)
	{
		memset(queue->depths, 0, sizeof(queue->depths));
		queue->due = DT_NOEND;
	}
	queue->depths[depth]++;
	nmessages++;
	if (depth == DEPTH_DELAYED)
		due = message_due_at(table, tuple);
	if (depth != DEPTH_READY)
		queue->due = Min(queue->due, due);
}
