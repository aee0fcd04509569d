/*-------------------------------------------------------------------------
 *
 * status.c
 *	  The state of each queue, for monitoring.
 *
 * NOTES
 *	  The depths of queues are counted where messages change (counts.c), if
 *	  the worker has found out with how many to begin (depth_state.c).
 *	  Otherwise they are not known.
 *
 *	  The availability map of a queue says in which ranges of numbers something
 *	  may be free.  Numbers grow with time, so the oldest free message is the
 *	  first one in one of these ranges; most often the first that is looked at.
 *
 *	  An index has entries of messages that are claimed or gone, too.  Only so
 *	  many are read in each queue, and in all queues together; then the answer
 *	  may be a later message than the oldest one, or none.
 *
 *	  Tables are opened once, for all queues.  If the worker empties a segment
 *	  meanwhile, messages that it has moved may be missed.
 *
 * src/stats/status.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/tableam.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/message_table.h"
#include "map/availability.h"
#include "map/availability_view.h"
#include "queue/queue_table.h"
#include "shmem/depth_state.h"
#include "stats/status.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/compat.h"
#include "util/limits.h"

#define ENTRIES_MAX		1000	/* that are read in a queue, */
#define ENTRIES_FEW		32		/* and after so many that were not free: */
#define ENTRIES_TOTAL	20000

#define MESSAGES_FEW	64		/* read all of a queue with so many */

#define ALL_PRIORITIES	(-1)	/* of a range: as its numbers, all */

/* A search for the oldest free messages of many queues */
typedef struct OldestScan
{
	TimestampTz now;
	MessageTables tables;
	int			total;			/* entries that were read and not free */
	int			left;			/* that may be read yet in the queue */
	int64		first;			/* the lowest number found, or NUMBERS_END */
	TimestampTz created_at;		/* of that message, or DT_NOEND if there is
								 * none */
} OldestScan;

static bool read_known_depths(QueueStatus *list, int n);
static TimestampTz oldest_find(OldestScan *scan, int32 queue_id, int64 total);
static void search_range(OldestScan *scan, int32 queue_id,
						 const MessageRange *range);
static void search_index(OldestScan *scan, MessageTable *table,
						 ScanKey keys, int nkeys);

/*
 * Read the depths that were counted where messages change.  Returns false if
 * they are not known.
 */
static bool
read_known_depths(QueueStatus *list, int n)
{
	uint64		generation = depth_known();

	if (generation == 0)
		return false;

	/*
	 * If the clock was set back, claims may be live whose ends were counted:
	 * until that time has come again, only the rows tell.
	 */
	if (depth_end_may_be_counted(GetCurrentTimestamp()))
		return false;
	for (int i = 0; i < n; i++)
		counts_read_depths(list[i].queue_id, list[i].depths);

	/* A recount may have begun, or changes may have been lost, meanwhile. */
	return depth_known() == generation;
}

/*
 * Returns the depths and the oldest message of these queues, unless *known is
 * set to false; with "dead" also the depths of their dead letter queues, after
 * them all, which are zeros for those without one.
 */
QueueStatus *
status_read(const QueueEntry *queues, int n, bool dead, bool *known)
{
	int			nlist = dead ? 2 * n : n;
	QueueStatus *list = palloc_extended(Max(nlist, 1) * sizeof(QueueStatus),
										MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	OldestScan	scan = {.now = GetCurrentTimestamp()};

	for (int i = 0; i < n; i++)
	{
		list[i].queue_id = queues[i].id;
		list[i].oldest_free = DT_NOEND;
		if (dead)
			list[n + i].queue_id = queues[i].dead_id;
	}
	*known = read_known_depths(list, nlist);
	if (!*known)
		return list;
	segment_push_snapshot();
	for (int i = 0; i < n; i++)
		if (list[i].depths[DEPTH_READY] > 0)
		{
			int64		total = 0;

			for (int j = 0; j < DEPTHS; j++)
				total += list[i].depths[j];
			list[i].oldest_free = oldest_find(&scan, list[i].queue_id, total);
		}
	message_tables_close(&scan.tables, false);
	PopActiveSnapshot();
	return list;
}

/* --- The oldest free message of each queue --- */

/*
 * Returns when the oldest free message of a queue was pushed, or DT_NOEND if
 * none is found.  total is the number of its messages, free or not.
 */
static TimestampTz
oldest_find(OldestScan *scan, int32 queue_id, int64 total)
{
	MessageRange all = {.priority = ALL_PRIORITIES,.last = NUMBERS_END - 1};
	AvailabilityView view;
	bool		complete;

	scan->left = scan->total < ENTRIES_TOTAL ? ENTRIES_MAX : ENTRIES_FEW;
	scan->first = NUMBERS_END;
	scan->created_at = DT_NOEND;
	view.n = 0;
	complete = availability_peek(queue_id, scan->now, &view) &&
		!view.incomplete;

	/*
	 * Where the map knows little, as after a restart, it has a range for each
	 * priority.  A queue with few messages is read as a whole instead, with
	 * one scan.
	 */
	if (total <= MESSAGES_FEW && (!complete || view.n >= QUEUE_PRIORITIES))
		search_range(scan, queue_id, &all);
	if (scan->first != NUMBERS_END)
		return scan->created_at;
	for (int i = 0; i < view.n; i++)
		if (view.ranges[i].first < scan->first)
			search_range(scan, queue_id, &view.ranges[i]);

	/*
	 * There is no map; or it has lanes, and lists only the ranges of those
	 * whose turns come next; or an open transaction has taken the ranges.  So
	 * read the index of the queue from its beginning.
	 */
	if (!complete || scan->first == NUMBERS_END)
		for (all.priority = 0; all.priority < QUEUE_PRIORITIES; all.priority++)
			search_range(scan, queue_id, &all);
	return scan->created_at;
}

/* Search a range in all segments that may have something of it. */
static void
search_range(OldestScan *scan, int32 queue_id, const MessageRange *range)
{
	int64		end = Min(range->last + 1, scan->first);
	bool		all = range->priority == ALL_PRIORITIES;
	ScanKeyData keys[MESSAGE_KEYS_MAX];
	int64		low = all ? PG_INT64_MIN : message_id_make(range->first, 0, 0);
	int64		high = all ? PG_INT64_MAX : message_id_make(end, 0, 0) - 1;
	int			nkeys = message_scan_keys(keys, false, queue_id,
										  range->priority, low, high);

	for (int i = 0; i < MESSAGE_SEGMENTS && scan->left > 0; i++)
		if (segment_may_hold(i, range->first, end - 1))
		{
			MessageTable *table = &scan->tables.items[i];

			if (table->heap == NULL)
				message_table_open(table, i, AccessShareLock);
			search_index(scan, table, keys, nkeys);
		}
}

/*
 * Search what an index has with these keys for a message with a lower number
 * than the one found: up to the first free one, as numbers ascend, or all of it,
 * if it is of all priorities.
 */
static void
search_index(OldestScan *scan, MessageTable *table, ScanKey keys, int nkeys)
{
	TupleTableSlot *slot = table_slot_create(table->heap, NULL);
	IndexScanDesc index = compat_index_beginscan(table->heap, table->index,
												 GetActiveSnapshot(), keys,
												 nkeys);

	while (scan->left > 0 &&
		   index_getnext_tid(index, ForwardScanDirection) != NULL)
	{
		MessageForm form;

		scan->left--;
		scan->total++;
		if (!index_fetch_heap(index, slot) ||
			!message_row_check(WARNING, table->heap, row_tuple(slot)))
			continue;
		form = message_read(row_tuple(slot));
		if (message_is_claimed(&form, scan->now) ||
			message_is_expired(&form, scan->now))
			continue;
		scan->total--;
		if (message_id_number(form.id) < scan->first)
		{
			scan->first = message_id_number(form.id);
			scan->created_at = form.created_at;
		}
		if (nkeys > 1)
			break;
	}
	index_endscan(index);
	ExecDropSingleTupleTableSlot(slot);
}
