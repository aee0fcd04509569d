/*-------------------------------------------------------------------------
 *
 * worker_recount.c
 *	  The worker's task that counts the depths of all queues anew.
 *
 * NOTES
 *	  See depth_state.c for when that is needed, and why it is exact although
 *	  transactions commit meanwhile.  A recount goes through the messages of
 *	  all queues, in the order of queues and ids, in steps of about
 *	  ENTRIES_AT_ONCE messages, each in a transaction of its own.  Between two
 *	  steps the worker does what is urgent, and what is due.
 *
 *	  A step has to know where it ends before it takes its snapshot.  So it
 *	  reads ahead in the indexes (find_step_end): a step counts either some
 *	  queues as a whole, or a part of a large queue.  Then it counts what its
 *	  snapshot shows, and adds that to the availability maps.
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
#include "access/relscan.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "bgworker/worker_internal.h"
#include "catalog/message_id.h"
#include "catalog/message_table.h"
#include "map/availability.h"
#include "shmem/depth_state.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "storage/row.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/hash.h"
#include "util/limits.h"

#define ENTRIES_AT_ONCE	1000	/* of each index and priority */
#define KEYS_MAX		4

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
static DepthCursor reached;		/* what is before was counted */
static int	nqueues;			/* with messages that it has met */

static bool begin_recount(void);
static bool count_step(void *arg);
static bool find_step_end(MessageTables *tables, DepthCursor *end);
static bool read_ahead(MessageTable *table, int priority,
					   const DepthCursor *end, DepthCursor *entry);
static bool takes_priorities(const DepthCursor *from, const DepthCursor *end,
							 int segment);
static int	make_keys(ScanKey keys, int segment, int priority,
					  const DepthCursor *from, const DepthCursor *end);
static void count_rows(MessageTable *table, Snapshot snapshot, HTAB *found,
					   ScanKey keys, int nkeys);
static void count_message(MessageTable *table, HeapTuple tuple, HTAB *found);
static void write_step(HTAB *found);

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
	reached = depth_cursor(0, PG_INT64_MIN);
	nqueues = 0;
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
	MessageTables tables = {0};
	DepthCursor end;
	Snapshot	snapshot;
	HTAB	   *found;
	bool		more;

	/*
	 * All tables are locked before the snapshot is taken.  So none is
	 * truncated that it shows messages in, and a message that the worker has
	 * moved is read exactly once.
	 */
	for (int i = 0; i < ALL_SEGMENTS; i++)
		if (!message_table_try_open(&tables.items[i], i, AccessShareLock))
			message_scan_lock_error();
	PushActiveSnapshot(GetLatestSnapshot());
	more = find_step_end(&tables, &end);
	PopActiveSnapshot();

	snapshot = depth_begin_step(&end);

	/* The launcher has given the entry away: begin anew if it comes back. */
	if (snapshot == NULL)
		message_scan_lock_error();
	found = hash_create_blobs("counted queues", sizeof(int32),
							  sizeof(CountedQueue), CurrentMemoryContext);
	for (int i = 0; i < ALL_SEGMENTS; i++)
	{
		int			n = takes_priorities(&reached, &end, i) ? QUEUE_PRIORITIES : 1;

		for (int p = 0; p < n; p++)
		{
			ScanKeyData keys[KEYS_MAX];

			count_rows(&tables.items[i], snapshot, found, keys,
					   make_keys(keys, i, p, &reached, &end));
		}
	}
	UnregisterSnapshot(snapshot);
	message_tables_close(&tables, false);
	write_step(found);
	reached = end;
	if (!more)
		ereport(DEBUG1,
				(errmsg_internal("counted the messages of %d queues",
								 nqueues)));
	return more;
}

/* --- Where a step ends --- */

/*
 * Set *end to where the step that begins at "reached" ends.  Returns whether
 * there may be more.
 */
static bool
find_step_end(MessageTables *tables, DepthCursor *end)
{
	const DepthCursor all = depth_cursor(PG_INT32_MAX, PG_INT64_MAX);
	DepthCursor entry;

	/* Some queues as a whole, if the first of them is not large */
	if (reached.id == PG_INT64_MIN)
	{
		*end = all;
		for (int i = 0; i < ALL_SEGMENTS; i++)
			if (read_ahead(&tables->items[i], 0, &all, &entry))
				*end = depth_cursor(Min(end->queue_id, entry.queue_id),
									PG_INT64_MIN);
		if (end->queue_id > reached.queue_id)
			return end->queue_id != all.queue_id;
	}

	/* A part of a large queue, or what is left of it */
	*end = depth_cursor(reached.queue_id, PG_INT64_MAX);
	for (int i = 0; i < ALL_SEGMENTS; i++)
		for (int p = 0; p < (segment_is_delayed(i) ? 1 : QUEUE_PRIORITIES); p++)
			if (read_ahead(&tables->items[i], p, end, &entry))
				end->id = entry.id;

	/* All of these entries may be of one message that was changed often. */
	if (end->id == reached.id)
		end->id++;
	if (end->id == PG_INT64_MAX)
		*end = depth_cursor(reached.queue_id + 1, PG_INT64_MIN);
	return true;
}

/*
 * Set *entry to what the index of a table has ENTRIES_AT_ONCE behind
 * "reached", of this priority where that matters.  Returns false if there is
 * no such entry before *end.
 */
static bool
read_ahead(MessageTable *table, int priority, const DepthCursor *end,
		   DepthCursor *entry)
{
	bool		is_delayed = segment_is_delayed(table->segment);
	ScanKeyData keys[KEYS_MAX];
	int			nkeys = make_keys(keys, table->segment, priority, &reached, end);
	IndexScanDesc scan;
	int			n = 0;

	if (RelationGetNumberOfBlocks(table->heap) == 0)
		return false;
	scan = compat_index_beginscan(table->heap, table->index,
								  GetActiveSnapshot(), nkeys);

	/* Of the entries, dead ones too, and not of the rows */
	scan->xs_want_itup = true;
	index_rescan(scan, keys, nkeys, NULL, 0);
	while (n < ENTRIES_AT_ONCE &&
		   index_getnext_tid(scan, ForwardScanDirection) != NULL)
		n++;
	if (n == ENTRIES_AT_ONCE)
	{
		TupleDesc	desc = RelationGetDescr(table->index);
		bool		isnull;

		entry->queue_id =
			DatumGetInt32(index_getattr(scan->xs_itup,
										Anum_message_idx_queue_id, desc,
										&isnull));
		entry->id =
			DatumGetInt64(index_getattr(scan->xs_itup, is_delayed ?
										Anum_delayed_id_idx_id :
										Anum_message_idx_id, desc, &isnull));
	}
	index_endscan(scan);
	return n == ENTRIES_AT_ONCE;
}

/* --- Index scans --- */

/*
 * Returns whether messages of a segment are read priority by priority: a part
 * of a queue, where its index has the priority before the id.
 */
static bool
takes_priorities(const DepthCursor *from, const DepthCursor *end, int segment)
{
	return !segment_is_delayed(segment) &&
		(from->id != PG_INT64_MIN || end->queue_id == from->queue_id);
}

/*
 * Make the keys for what is between two cursors in a segment, of a priority if
 * takes_priorities().  Returns how many there are.
 */
static int
make_keys(ScanKey keys, int segment, int priority, const DepthCursor *from,
		  const DepthCursor *end)
{
	AttrNumber	queue_column = segment_is_delayed(segment) ?
	Anum_delayed_id_idx_queue_id : Anum_message_idx_queue_id;
	AttrNumber	id_column = segment_is_delayed(segment) ?
	Anum_delayed_id_idx_id : Anum_message_idx_id;
	int			n = 0;

	/* Some queues as a whole */
	if (from->id == PG_INT64_MIN && end->queue_id != from->queue_id)
	{
		ScanKeyInit(&keys[n++], queue_column, BTGreaterEqualStrategyNumber,
					F_INT4GE, Int32GetDatum(from->queue_id));
		ScanKeyInit(&keys[n++], queue_column, BTLessStrategyNumber, F_INT4LT,
					Int32GetDatum(end->queue_id));
		return n;
	}

	/* A part of one, up to its end if that is where the next one begins */
	ScanKeyInit(&keys[n++], queue_column, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(from->queue_id));
	if (takes_priorities(from, end, segment))
		ScanKeyInit(&keys[n++], Anum_message_idx_priority,
					BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(priority));
	ScanKeyInit(&keys[n++], id_column, BTGreaterEqualStrategyNumber,
				F_INT8GE, Int64GetDatum(from->id));
	ScanKeyInit(&keys[n++], id_column, BTLessStrategyNumber, F_INT8LT,
				Int64GetDatum(end->queue_id == from->queue_id ? end->id :
							  PG_INT64_MAX));
	return n;
}

/* --- Counting --- */

/* Count the rows of a table that the snapshot shows. */
static void
count_rows(MessageTable *table, Snapshot snapshot, HTAB *found, ScanKey keys,
		   int nkeys)
{
	IndexScanDesc scan;
	TupleTableSlot *slot;

	if (RelationGetNumberOfBlocks(table->heap) == 0)
		return;
	slot = table_slot_create(table->heap, NULL);
	scan = compat_index_beginscan(table->heap, table->index, snapshot, nkeys);
	index_rescan(scan, keys, nkeys, NULL, 0);
	while (index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();

		/* A malformed row must not keep others from being counted. */
		if (message_row_is_valid(table->heap, row_tuple(slot)))
			count_message(table, row_tuple(slot), found);
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
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
	if (depth == DEPTH_DELAYED)
		due = message_due_at(table, tuple);
	if (depth != DEPTH_READY)
		queue->due = Min(queue->due, due);
}

/* Add to the maps what a step has counted. */
static void
write_step(HTAB *found)
{
	HASH_SEQ_STATUS seq;
	CountedQueue *queue;

	hash_seq_init(&seq, found);
	while ((queue = hash_seq_search(&seq)) != NULL)
	{
		/* Earlier steps may have counted a part of the first queue. */
		if (queue->queue_id != reached.queue_id || reached.id == PG_INT64_MIN)
			nqueues++;
		counts_set_depths(queue->queue_id, queue->depths);
		if (queue->due != DT_NOEND)
			availability_tell_due(queue->queue_id, queue->due);
	}
}
