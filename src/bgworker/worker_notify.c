/*-------------------------------------------------------------------------
 *
 * worker_notify.c
 *	  The worker's task of notifying listeners.
 *
 * NOTES
 *	  A session that makes messages free only raises a flag in shared memory
 *	  (availability.c), because transactions that NOTIFY commit one after the
 *	  other in the whole cluster.  The worker sends one notification for each
 *	  queue whose flag is up, for many queues in one transaction, and lowers
 *	  the flags after the commit.  A flag that was raised again meanwhile stays
 *	  up.
 *
 * src/bgworker/worker_notify.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/async.h"

#include "bgworker/wakeup.h"
#include "bgworker/worker_internal.h"
#include "map/availability_visit.h"
#include "map/shmem_maps.h"

#define NOTIFY_AT_ONCE	1000	/* queues of one transaction */

/*
 * Queues that were dealt with in the step that runs, to be recorded in shared
 * memory once it has committed
 */
static AvailabilityVisit arrivals[NOTIFY_AT_ONCE];
static int	narrivals;

static bool notify_step(void *arg);

/* Returns whether a flag is up, and notifying is not postponed. */
bool
notify_is_needed(void)
{
	uint32		from = 0;
	AvailabilityMap *map;

	if (task_postponed_for(POSTPONE_NOTIFY, 0) > 0)
		return false;
	while ((map = shmem_next_flagged(MAP_ARRIVALS, NULL, &from)) != NULL)
		if (worker_owns_map(map))
			return true;
	return false;
}

/*
 * Notify the listeners of some queues, once each; *arg says where the next
 * step begins.
 */
static bool
notify_step(void *arg)
{
	uint32	   *from = arg;
	char		channel[CHANNEL_LENGTH + 1];
	QueueSummary queue;

	for (narrivals = 0; narrivals < NOTIFY_AT_ONCE; narrivals++)
	{
		if (!availability_next_arrivals(worker.extension, from,
										&arrivals[narrivals]))
			break;

		/*
		 * A queue that is paused is visited when it is resumed.  One whose
		 * shard has just left still has its row.  Its listeners claim, and
		 * learn where it is.
		 */
		if (!queue_summary(arrivals[narrivals].queue_id, &queue) ||
			queue.paused)
			continue;
		wakeup_channel_name(queue.project, queue.name, channel);
		Async_Notify(channel, queue.name);
		database_count(COUNT_NOTIFICATIONS, 1);
	}
	return narrivals == NOTIFY_AT_ONCE;
}

/* Run steps until all listeners are notified. */
void
notify_listeners(void)
{
	TaskResult	result = TASK_MORE;
	uint32		from = 0;

	while (result == TASK_MORE && !task_must_end() && notify_is_needed())
	{
		result = task_step_or_postpone(POSTPONE_NOTIFY, 0, notify_step, &from);
		if (result != TASK_FAILED)
			for (int i = 0; i < narrivals; i++)
				availability_notified(&arrivals[i]);
	}
}
