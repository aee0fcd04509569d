/*-------------------------------------------------------------------------
 *
 * claim_ends.c
 *	  Counting messages as ready whose claims have ended; for the worker.
 *
 * NOTES
 *	  A claim ends by the clock, and nothing writes its messages then.  But the
 *	  depths of a queue are counted where rows are written (counts.c).  So the
 *	  worker reads claimed messages when their claims have ended, marks them,
 *	  and counts them as ready instead of claimed.
 *
 *	  1. Where they are.  Each transaction that claims messages, or renews
 *	  their claims, adds their range, with the first end of these claims, to
 *	  the availability map of the queue when it has committed.  The worker
 *	  collects these ranges, and adds those of all claimed messages that a
 *	  recount meets.  They are not the ranges of the map in which something may
 *	  be free: claims take these out, and what is free at once stays there
 *	  although a claim in it ends later.  A range is kept until the worker has
 *	  read all of it and found no claimed message that is not marked.  One that
 *	  another transaction has locked is read again later.
 *
 *	  2. The mark is a bit in the row, which is set in place, under the lock of
 *	  the page: no new version, no row lock, nothing that a claim would meet.
 *	  It takes effect at once, and so does the count.  It is set only if no
 *	  other transaction has locked the row or is changing it; one that changes
 *	  it later finds the mark (message.c).
 *
 *	  The ranges are in the memory of the worker, which counts all messages
 *	  when it starts.
 *
 * src/stats/claim_ends.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/relations.h"
#include "map/availability.h"
#include "map/message_ranges.h"
#include "map/shmem_maps.h"
#include "shmem/depth_state.h"
#include "stats/claim_ends.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/clock.h"
#include "util/hash.h"

#define ROWS_AT_ONCE	1000
#define WIDTH			4096	/* numbers that a step reads, */
#define WIDTH_FACTOR	8		/* and so many times more after a short one */
#define WIDTH_MAX		(PG_INT64_MAX / 16)
#define SHORT_STEP		(5 * USECS_PER_SEC / 1000)

/* The claimed messages of a queue */
typedef struct QueueEnds
{
	int32		queue_id;		/* key */
	int64		width;			/* that the next step reads */
	MessageRanges ranges;		/* due when the first claim in it ends */
} QueueEnds;

static HTAB *ends = NULL;
static TimestampTz next_end = DT_NOEND; /* the first due time, or earlier */

static int	first_due_range(const QueueEnds *queue, TimestampTz now);
static void read_part_of_range(QueueEnds *queue, int i, TimestampTz now);
static MessageScan *begin_range_scan(int32 queue_id,
									 const MessageRange *range);
static int64 read_claimed_messages(QueueEnds *queue,
								   const MessageRange *range,
								   TimestampTz now, MessageRanges *left);
static TimestampTz count_claim_end(ScanRow *row, TimestampTz now);
static void mark_end_counted(HeapTuple tuple, void *arg);

/* --- The ranges --- */

/* Forget all ranges: a recount begins. */
void
claim_ends_forget(void)
{
	if (ends != NULL)
		hash_destroy(ends);
	ends = NULL;
	next_end = DT_NOEND;
}

/* Messages of a queue are claimed. */
void
claim_ends_add(int32 queue_id, const ClaimedMessages *claimed,
			   TimestampTz now)
{
	MessageRange range = {0};
	QueueEnds  *queue;
	bool		found;

	if (ends == NULL)
		ends = hash_create_blobs("ends of claims", sizeof(int32),
								 sizeof(QueueEnds), TopMemoryContext);
	queue = hash_search(ends, &queue_id, HASH_ENTER, &found);
	if (!found)
	{
		queue->width = WIDTH;
		queue->ranges.n = 0;
	}
	range.first = claimed->first;
	range.last = claimed->last;
	range.due = claimed->end;
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (claimed->priorities & (1 << p))
		{
			range.priority = p;
			message_ranges_add(&queue->ranges, &range, now);
		}
	next_end = Min(next_end, claimed->end);
}

/* Collect the ranges that the maps of this database have. */
void
claim_ends_collect(void)
{
	Oid			extension = catalog_queue_oid();
	uint64		generation = depth_generation();
	TimestampTz now = GetCurrentTimestamp();
	uint32		from = 0;
	AvailabilityMap *map;

	while ((map = shmem_next_flagged(MAP_CLAIMED, &from)) != NULL)
	{
		ClaimedMessages claimed;
		int32		queue_id;
		bool		counted;

		if (map_database(map) != MyDatabaseId ||
			map_extension(map) != extension)
			continue;
		LWLockAcquire(&map->lock, LW_SHARED);
		claimed = map->claimed;
		queue_id = map_queue_id(map);
		counted = map->depth_generation == generation;
		LWLockRelease(&map->lock);

		/* What is of an earlier generation is dropped. */
		if (counted && claimed.end != DT_NOEND)
			claim_ends_add(queue_id, &claimed, now);

		/* The map need not have it any more, unless more was added. */
		LWLockAcquire(&map->lock, LW_EXCLUSIVE);
		if (map_queue_id(map) == queue_id &&
			map->claimed.end == claimed.end &&
			map->claimed.first == claimed.first &&
			map->claimed.last == claimed.last &&
			map->claimed.priorities == claimed.priorities)
		{
			map->claimed = NO_CLAIMED_MESSAGES;
			shmem_clear_flag(map, MAP_CLAIMED);
		}
		LWLockRelease(&map->lock);
	}
}

/*
 * Returns when the next claim ends, or an earlier time; DT_NOEND if there is
 * none.
 */
TimestampTz
claim_ends_next(void)
{
	return next_end;
}

/*
 * Returns the index of a range that is due, of the highest priority that has
 * one, or -1 if none is.  If there is no other way to make room for what is
 * left of it, a range that is due is united with one that was read, and read
 * again: but one of the lowest priority (message_ranges.c), and so never the
 * one that is being read.
 */
static int
first_due_range(const QueueEnds *queue, TimestampTz now)
{
	const MessageRange *items = queue->ranges.items;
	int			first = -1;

	for (int i = 0; i < queue->ranges.n; i++)
		if (items[i].due <= now &&
			(first < 0 || items[i].priority > items[first].priority))
			first = i;
	return first;
}

/*
 * Returns the queues in which a claim has ended.  The caller frees the list,
 * which must outlive the transactions in which their messages are read.
 */
int32 *
claim_ends_due(TimestampTz now, int *n)
{
	int			size = ends == NULL ? 0 : (int) hash_get_num_entries(ends);
	int32	   *list = MemoryContextAlloc(TopMemoryContext,
										  Max(size, 1) * sizeof(int32));
	HASH_SEQ_STATUS seq;
	QueueEnds  *queue;

	*n = 0;
	if (ends == NULL)
		return list;
	hash_seq_init(&seq, ends);
	while ((queue = hash_seq_search(&seq)) != NULL)
		if (first_due_range(queue, now) >= 0)
			list[(*n)++] = queue->queue_id;
	return list;
}

/* All that was due was read, so find the next end. */
void
claim_ends_find_next(void)
{
	HASH_SEQ_STATUS seq;
	QueueEnds  *queue;

	next_end = DT_NOEND;
	if (ends == NULL)
		return;
	hash_seq_init(&seq, ends);
	while ((queue = hash_seq_search(&seq)) != NULL)
		for (int i = 0; i < queue->ranges.n; i++)
			next_end = Min(next_end, queue->ranges.items[i].due);
}

/* --- Reading messages --- */

/*
 * Read some of the claimed messages of a queue, in a transaction of its own.
 * Returns whether there is more to do.
 */
bool
claim_ends_step(int32 queue_id)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		began = clock_monotonic();
	QueueEnds  *queue = ends == NULL ? NULL :
	hash_search(ends, &queue_id, HASH_FIND, NULL);
	int			i;

	if (queue == NULL)
		return false;
	while ((i = first_due_range(queue, now)) >= 0)
	{
		if (clock_monotonic() - began >= SHORT_STEP)
			return true;
		read_part_of_range(queue, i, now);
	}
	if (queue->ranges.n == 0)
		(void) hash_search(ends, &queue_id, HASH_REMOVE, NULL);
	return false;
}

/* Read the beginning of a range of a queue. */
static void
read_part_of_range(QueueEnds *queue, int i, TimestampTz now)
{
	MessageRange range = queue->ranges.items[i];
	MessageRanges left;
	int64		read_to;

	range.last = Min(range.last, range.first + queue->width - 1);
	left.n = 0;
	read_to = read_claimed_messages(queue, &range, now, &left);

	/*
	 * We remove what was read only now, so that it is read again after an
	 * error.
	 */
	if (read_to >= queue->ranges.items[i].last)
		message_ranges_remove(&queue->ranges, i);
	else
		queue->ranges.items[i].first = read_to + 1;
	for (i = 0; i < left.n; i++)
	{
		message_ranges_add(&queue->ranges, &left.items[i], now);
		next_end = Min(next_end, left.items[i].due);
	}
}

static MessageScan *
begin_range_scan(int32 queue_id, const MessageRange *range)
{
	MessageScan *scan = message_scan_begin(queue_id, RowExclusiveLock);

	message_scan_no_wait(scan);
	segment_push_snapshot();
	message_scan_add_range(scan, range);

	/*
	 * If a segment was emptied meanwhile, the snapshot may not show where its
	 * last messages have gone.
	 */
	while (!message_scan_is_blocked(scan) && segment_snapshot_is_stale())
	{
		message_scan_end_parts(scan);
		segment_renew_snapshot();
		message_scan_add_range(scan, range);
	}

	/* The worker does not wait for a lock that a user may hold. */
	if (message_scan_is_blocked(scan))
		message_scan_lock_error();
	return scan;
}

/*
 * Read the messages in a range.  Those that have to be read again are added to
 * *left.  Returns the last number that was read.
 */
static int64
read_claimed_messages(QueueEnds *queue, const MessageRange *range,
					  TimestampTz now, MessageRanges *left)
{
	int64		began = clock_monotonic();
	MessageScan *scan = begin_range_scan(queue->queue_id, range);
	int64		read_to = range->last;
	int			n = 0;
	ScanRow		row;

	while (message_scan_next(scan, &row))
	{
		MessageRange message = *range;

		message.first = message.last = message_id_number(row.form.id);
		message.due = count_claim_end(&row, now);
		if (message.due != DT_NOEND)
			message_ranges_add(left, &message, now);
		if (++n == ROWS_AT_ONCE)
		{
			read_to = message.last;
			break;
		}
	}
	message_scan_end(scan);
	PopActiveSnapshot();

	/* Many messages that are gone take long, and few numbers have one. */
	queue->width = clock_monotonic() - began < SHORT_STEP ?
		Min(queue->width * WIDTH_FACTOR, WIDTH_MAX) : WIDTH;
	return read_to;
}

/*
 * Count the end of the message's claim, if it has ended.  Returns when it has
 * to be read again, or DT_NOEND.
 */
static TimestampTz
count_claim_end(ScanRow *row, TimestampTz now)
{
	MessageForm *form = &row->form;

	/* It is not claimed any more, or was counted already. */
	if (form->claim_token == 0 || form->end_counted)
		return DT_NOEND;

	/*
	 * The claim was renewed, or made later than the first one of the range.
	 */
	if (form->claimed_until > now)
		return form->claimed_until;

	/*
	 * We must publish this before we set the mark, so that a transaction that
	 * changes the row looks for the mark (depth_state.c).
	 */
	depth_count_end(form->claimed_until);
	if (!row_change_in_place(row->table->heap, &row->tuple->t_self,
							 mark_end_counted, NULL))
		return availability_recheck_at(now);
	counts_end_claim(form->queue_id);
	return DT_NOEND;
}

/* Callback of row_change_in_place */
static void
mark_end_counted(HeapTuple tuple, void *arg)
{
	message_row_count_end(tuple);
}
