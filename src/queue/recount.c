/*-------------------------------------------------------------------------
 *
 * recount.c
 *	  Counting the depths of all queues anew; for the worker.
 *
 * NOTES
 *	  See depth_state.c for when that is needed, and why it is exact although
 *	  transactions commit meanwhile.  One transaction reads all messages with
 *	  one snapshot, without stopping for anything else, and adds the numbers that
 *	  it has found to the availability maps.  It also deletes the counts of
 *	  prepared transactions that the snapshot shows, since it shows their
 *	  messages.  When it has committed, the depths are known.
 *
 *	  Each queue with messages needs a map for that.  If there are more such
 *	  queues than maps, their depths remain unknown; evicting maps would be of no
 *	  use.
 *
 * src/queue/recount.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "queue/claim_ends.h"
#include "queue/recount.h"
#include "queue/status.h"
#include "shmem/depth_state.h"
#include "storage/counts.h"
#include "storage/message_pass.h"
#include "storage/message_scan.h"
#include "storage/prepared_counts.h"
#include "util/clock.h"
#include "util/settings.h"

#define READ_SHARE		20		/* least pause between recounts, in times of
								 * what the last one took, */
#define PAUSE_MIN		(10 * USECS_PER_SEC)	/* and this at least */

/* A recount */
typedef struct Recount
{
	QueueStatus *list;
	int			size;
	QueueStatus *last;			/* the queue of the last message, or NULL */
	TimestampTz now;
} Recount;

/* When the next one may begin, by the monotonic clock */
static int64 next_recount = 0;

static void count_message(const MessageForm *form, TimestampTz due_at,
						  void *arg);
static void write_depths(const Recount *recount);

/* Microseconds until a recount that is needed may begin */
int64
recount_pause(void)
{
	return Max(next_recount - clock_monotonic(), 0);
}

/* Callback of message_pass_read */
static void
count_message(const MessageForm *form, TimestampTz due_at, void *arg)
{
	Recount    *recount = arg;
	QueueStatus *queue = recount->last;
	QueueDepth	depth = counts_depth_of(form, due_at != 0);

	if (queue == NULL || queue->queue_id != form->queue_id)
		queue = status_find(recount->list, recount->size, form->queue_id);

	/* The queue was dropped since the snapshot was taken. */
	if (queue == NULL)
		return;
	recount->last = queue;
	queue->depths[depth]++;
	if (depth == DEPTH_CLAIMED)
	{
		ClaimedMessages claimed = counts_claimed(form);

		claim_ends_add(form->queue_id, &claimed, recount->now);
	}
}

/* Add to the maps what was counted. */
static void
write_depths(const Recount *recount)
{
	int			n = 0;

	for (int i = 0; i < recount->size; i++)
		if (recount->list[i].depths[DEPTH_READY] > 0 ||
			recount->list[i].depths[DEPTH_CLAIMED] > 0 ||
			recount->list[i].depths[DEPTH_DELAYED] > 0)
			n++;
	if (n > setting_max_availability_maps)
	{
		depth_lose_mine();
		return;
	}
	for (int i = 0; i < recount->size; i++)
		counts_set_depths(recount->list[i].queue_id, recount->list[i].depths,
						  &NO_CLAIMED_MESSAGES);
}

/* Count all messages, in a transaction of its own. */
void
recount_messages(void)
{
	Recount		recount = {.now = GetCurrentTimestamp()};
	int64		began = clock_monotonic();
	MessagePass pass;
	Snapshot	snapshot;

	if (!message_pass_open(&pass, false))
		message_scan_lock_error();
	snapshot = depth_begin_recount();
	recount.list = status_list(&recount.size);
	claim_ends_forget();
	message_pass_read(&pass, snapshot, count_message, &recount);
	prepared_counts_take(snapshot, false);
	UnregisterSnapshot(snapshot);
	message_pass_close(&pass);
	write_depths(&recount);
	next_recount = clock_monotonic() +
		Max(PAUSE_MIN, READ_SHARE * (clock_monotonic() - began));
	ereport(DEBUG1,
			(errmsg_internal("counted the messages of %d queues",
							 recount.size)));
}
