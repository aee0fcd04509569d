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
#include "catalog/relations.h"
#include "map/availability_visit.h"
#include "map/shmem_maps.h"
#include "util/hash.h"
#include "util/limits.h"

#define NOTIFY_AT_ONCE	1000	/* queues of one transaction */
#define CHANNELS_MAX	10000	/* entries in the cache of channels */

/* A queue's channel, and its name, which is the payload */
typedef struct Channel
{
	int32		queue_id;		/* key */
	bool		paused;
	char		name[QUEUE_NAME_LENGTH + 1];
	char		channel[CHANNEL_LENGTH + 1];
} Channel;

/* A queue that was dealt with in the step that runs */
typedef struct Arrival
{
	AvailabilityVisit visit;
	bool		notified;		/* not of a paused queue */
} Arrival;

static HTAB *channels = NULL;
static uint64 channels_generation = 0;	/* catalog_generation() of them */

/* To be recorded in shared memory once the step has committed */
static Arrival arrivals[NOTIFY_AT_ONCE];
static int	narrivals;

static const Channel *find_channel(int32 queue_id);
static bool notify_step(void *arg);

/* Returns whether a flag is up, and notifying is not postponed. */
bool
notify_is_needed(void)
{
	uint32		from = 0;
	AvailabilityMap *map;

	if (task_postponed_for(POSTPONE_NOTIFY, 0) > 0)
		return false;
	while ((map = shmem_next_flagged(MAP_ARRIVALS, &from)) != NULL)
		if (worker_owns_map(map))
			return true;
	return false;
}

/*
 * Returns the channel of a queue, or NULL if the queue is gone.  An entry of
 * a paused queue is read again: when queue_resume() commits, its flag is
 * raised before the invalidation message for the row arrives.
 */
static const Channel *
find_channel(int32 queue_id)
{
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		paused;
	bool		found;
	Channel    *channel;

	if (channels == NULL || channels_generation != catalog_generation() ||
		hash_get_num_entries(channels) >= CHANNELS_MAX)
	{
		if (channels != NULL)
			hash_destroy(channels);
		channels = hash_create_blobs("channels of queues", sizeof(int32),
									 sizeof(Channel), TopMemoryContext);
		channels_generation = catalog_generation();
	}
	channel = hash_search(channels, &queue_id, HASH_FIND, NULL);
	if (channel != NULL && !channel->paused)
		return channel;

	/*
	 * Listeners of a queue whose shard has just left are notified: they
	 * claim, and learn where it is.
	 */
	if (!queue_any_name_of(queue_id, project, name, &paused))
		return NULL;
	channel = hash_search(channels, &queue_id, HASH_ENTER, &found);
	channel->paused = paused;
	strlcpy(channel->name, name, sizeof(channel->name));
	wakeup_channel_name(project, name, channel->channel);
	return channel;
}

/*
 * Notify the listeners of some queues, once each; *arg says where the next
 * step begins.
 */
static bool
notify_step(void *arg)
{
	uint32	   *from = arg;
	int			notified = 0;

	for (narrivals = 0; narrivals < NOTIFY_AT_ONCE; narrivals++)
	{
		Arrival    *arrival = &arrivals[narrivals];
		const Channel *channel;

		if (!availability_next_arrivals(worker.extension, from,
										&arrival->visit))
			break;
		channel = find_channel(arrival->visit.queue_id);

		/* A paused queue is visited when it is resumed. */
		arrival->notified = channel == NULL || !channel->paused;
		if (channel != NULL && !channel->paused)
		{
			Async_Notify(channel->channel, channel->name);
			notified++;
		}
	}
	database_count(COUNT_NOTIFICATIONS, notified);
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
				availability_notified(&arrivals[i].visit,
									  arrivals[i].notified);
	}
}
