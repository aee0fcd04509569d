/*-------------------------------------------------------------------------
 *
 * status.c
 *	  The state of each queue, for monitoring.
 *
 * NOTES
 *	  The depths of queues are counted where messages change (counts.c), if
 *	  the worker has found out with how many to begin (depth_state.c).
 *	  Otherwise they are counted by one pass over all messages, with the
 *	  latest snapshot at every isolation level, like all functions that look
 *	  at messages.
 *
 * src/stats/status.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "queue/queue_table.h"
#include "shmem/depth_state.h"
#include "stats/counters.h"
#include "stats/oldest_message.h"
#include "stats/status.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_pass.h"

/* A pass that counts messages */
typedef struct StatusPass
{
	QueueStatus *list;
	int			n;
	QueueStatus *last;			/* the queue of the last message, or NULL */
	TimestampTz now;
} StatusPass;

static void count_message_by_state(const MessageForm *form,
								   TimestampTz due_at, void *arg);
static void count_all_messages(QueueStatus *list, int n);
static bool read_known_depths(QueueStatus *list, int n);
static void find_oldest_messages(QueueStatus *list, int n);

/* Callback of message_pass_read(): count a message by its state. */
static void
count_message_by_state(const MessageForm *form, TimestampTz due_at, void *arg)
{
	StatusPass *pass = arg;
	QueueStatus *status = pass->last;

	if (status == NULL || status->queue_id != form->queue_id)
		status = queue_find_entry(pass->list, pass->n, sizeof(QueueStatus),
								  form->queue_id);
	if (status == NULL || message_is_expired(form, pass->now))
		return;
	pass->last = status;
	if (message_is_claimed(form, pass->now))
		status->depths[DEPTH_CLAIMED]++;
	else if (due_at > pass->now)
		status->depths[DEPTH_DELAYED]++;
	else
	{
		status->depths[DEPTH_READY]++;
		status->oldest_free = Min(status->oldest_free, form->created_at);
	}
}

/* Count all messages. */
static void
count_all_messages(QueueStatus *list, int n)
{
	StatusPass	arg = {.list = list,.n = n};
	MessagePass pass;
	Snapshot	snapshot;

	for (int i = 0; i < n; i++)
		memset(list[i].depths, 0, sizeof(list[i].depths));
	(void) message_pass_open(&pass, true);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	arg.now = GetCurrentTimestamp();
	message_pass_read(&pass, snapshot, count_message_by_state, &arg);
	UnregisterSnapshot(snapshot);
	message_pass_close(&pass);
}

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

/* Returns the state of all queues, by id. */
QueueStatus *
status_read(int *n)
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
	if (read_known_depths(list, *n))
		find_oldest_messages(list, *n);
	else
		count_all_messages(list, *n);
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
