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
 * src/stats/status.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "queue/queue_table.h"
#include "shmem/depth_state.h"
#include "stats/counters.h"
#include "stats/oldest_message.h"
#include "stats/status.h"
#include "storage/counts.h"

static bool read_known_depths(QueueStatus *list, int n);
static void find_oldest_messages(QueueStatus *list, int n);

/*
 * Read the depths that were counted where messages change.  Returns false if
 * they are not known.
 */
static bool
read_known_depths(QueueStatus *list, int n)
{
	uint64		generation;

	if (!depth_is_known(&generation))
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
	return depth_has_base(generation);
}

/* Find the oldest free message of each queue. */
static void
find_oldest_messages(QueueStatus *list, int n)
{
	OldestScan *scan = oldest_begin();

	for (int i = 0; i < n; i++)
		if (list[i].depths[DEPTH_READY] > 0)
		{
			int64		total = 0;

			for (int j = 0; j < DEPTHS; j++)
				total += list[i].depths[j];
			list[i].oldest_free = oldest_find(scan, list[i].queue_id, total);
		}
	oldest_end(scan);
}

/*
 * Returns the state of all queues, by id.  The depths and the oldest message
 * are not known if *known is set to false.
 */
QueueStatus *
status_read(int *n, bool *known)
{
	QueueEntry *queues = queue_all(NULL, NULL, NULL, n);
	QueueStatus *list = palloc_extended(Max(*n, 1) * sizeof(QueueStatus),
										MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);

	for (int i = 0; i < *n; i++)
	{
		CounterRow	counters;

		list[i].queue_id = queues[i].id;
		list[i].oldest_free = DT_NOEND;
		counters_read(list[i].queue_id, &counters);
		memcpy(list[i].n, counters.n, sizeof(counters.n));
	}
	*known = read_known_depths(list, *n);
	if (*known)
		find_oldest_messages(list, *n);
	return list;
}

/*
 * Returns what is counted of these queues, and after them, of their dead
 * letter queues: the depths and the oldest message, unless *known is set to
 * false.  For those without a dead letter queue it returns zeros.
 */
QueueStatus *
status_of_queues(const QueueEntry *queues, int n, bool *known)
{
	QueueStatus *list = palloc_extended(Max(2 * n, 1) * sizeof(QueueStatus),
										MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);

	for (int i = 0; i < n; i++)
	{
		list[i].queue_id = queues[i].id;
		list[i].oldest_free = DT_NOEND;
		list[n + i].queue_id = queues[i].dead_id;
	}
	*known = read_known_depths(list, 2 * n);
	if (*known)
		find_oldest_messages(list, n);
	return list;
}
