/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The background worker of one database.
 *
 * NOTES
 *	  The worker does what is due, and notifies listeners.  Correctness never
 *	  depends on it: claims do the same, only later.
 *
 *	  It sleeps until the first of what the availability maps know is due (availability.c), or
 *	  until a session that made something free, or due earlier, sets its
 *	  latch (database_state.c).  Then it runs a round of tasks:
 *
 *	  1.  Jobs: it calls runners, renews the claims of those that are at work,
 *	  and gives back what they leave behind (runner_pool.c); that also when the server
 *	  is stopped, and they with it.
 *
 *	  2.  News: one NOTIFY for each queue in which something came free.
 *	  Producers only raise a flag, since transactions that NOTIFY commit one
 *	  after the other in the whole cluster.  After news the worker naps for
 *	  queue.worker_naptime, so that many pushes share a notification.
 *
 *	  3.  What is due, of each queue: claims that have run out (their messages
 *	  are given back to the availability map, or sent to the dead letter queue), delayed
 *	  messages (they are moved to where the others are, delayed.c), and messages
 *	  whose lifetime is over.
 *
 *	  4.  The ring of segments: segment_recycle.c.
 *
 *	  Queues that have no availability map, because they were created behind the back of
 *	  the functions (a restore) or there is no room for all, are unknown to
 *	  these steps.  When the worker starts, and whenever something is due in
 *	  one that has lost its availability map (database_map_evicted), it looks at all queues.
 *
 *	  A task is done in steps, each of which is a short transaction, so that
 *	  no session waits long for it.  Between any two steps of a task that may
 *	  take long, the worker does what cannot wait: jobs and news.
 *
 *	  State that stands for pending work is cleared only after the transaction
 *	  that did the work has committed.  So a step that fails, is canceled or
 *	  cannot get a lock loses nothing: its queue is left alone for a time,
 *	  which grows from failure to failure, and the others go on.  A worker
 *	  that is terminated loses nothing either.
 *
 *	  It works as the bootstrap superuser, in the project of each queue, and
 *	  runs no code of users.
 *
 *	  It leaves when the extension is gone, and when the database is to be
 *	  dropped, renamed, moved or copied (launcher.c asks it to).
 *
 * src/bgworker/worker.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "catalog/pg_extension.h"
#include "commands/async.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "bgworker/wakeup.h"
#include "catalog/relations.h"
#include "jobs/handler.h"
#include "jobs/runner_pool.h"
#include "queue/claim_message.h"
#include "queue/claim_scan.h"
#include "queue/claim_update.h"
#include "queue/counters.h"
#include "queue/expire.h"
#include "queue/ready.h"
#include "queue/registry.h"
#include "shmem/availability.h"
#include "shmem/database_state.h"
#include "shmem/segment_state.h"
#include "shmem/shmem.h"
#include "storage/delayed.h"
#include "storage/segment_recycle.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/errcodes.h"
#include "util/limits.h"
#include "util/settings.h"

#define QUEUES_AT_ONCE	1000	/* with something due */
#define NEWS_AT_ONCE	1000	/* queues of one transaction that notifies */
#define LOOKUPS_AT_ONCE	500		/* queues with handlers, whether paused */
#define COUNTS_AT_ONCE	64		/* queues whose counts are written */
#define CHANNELS_MAX	10000	/* to remember */
#define PAUSE_MIN		(USECS_PER_SEC / 10)	/* after a failure */
#define PAUSE_LOCKED	(2 * USECS_PER_SEC) /* at most, after some in a row: for
											 * a lock, or a cancel request */
#define PAUSE_ERROR		(60 * USECS_PER_SEC)	/* and for another error */
#define LAST_WAIT		USECS_PER_SEC	/* for runners that end with us */
#define LAST_NAP		10		/* ms */
#define SLEEP_MAX		5000	/* ms; then the clock is looked at again */
#define SLEEP_PREPARED	1000	/* the same where transactions are prepared */
#define RING_PAUSE		(120 * USECS_PER_SEC)	/* more than segment_recycle.c wants */
#define EXPIRY_SHARE	50		/* time between looks for expired messages,
								 * in times of what the last one took */
#define LOOK_PAUSE		USECS_PER_SEC	/* between looks at all queues */
#define LOOK_SHARE		10		/* the same, in times of what one took */

#define ALL_NEWS		0		/* is the number of no queue */
#define ALL_JOBS		(-1)	/* nor is this */

/* What is left alone for a time, because it failed */
typedef struct Postponed
{
	int32		queue_id;		/* key; or ALL_NEWS, ALL_JOBS */
	int64		pause;			/* microseconds */
	int64		until;			/* of the monotonic clock */
} Postponed;

/* What a queue's listeners are told */
typedef struct Channel
{
	int32		queue_id;		/* key */
	bool		paused;
	char		name[QUEUE_NAME_LENGTH + 1];
	char		channel[CHANNEL_LENGTH + 1];
} Channel;

typedef enum TaskKind
{
	TASK_JOBS,					/* call runners */
	TASK_RUNNER,				/* see to one that needs it */
	TASK_NEWS,					/* notify the listeners of some queues */
	TASK_DUE,					/* do what is due in one queue */
	TASK_LIST,					/* list all queues */
	TASK_LOOK,					/* find those of them that have to be seen to */
	TASK_RING,					/* turn the ring of segments */
	TASK_COUNTS					/* write counts to their table */
} TaskKind;

typedef enum TaskResult
{
	TASK_MORE,					/* there is another step */
	TASK_DONE,
	TASK_FAILED					/* with an error, which was reported */
} TaskResult;

/* What to do in one queue, and how far that is */
typedef enum DuePhase
{
	DUE_SWEEP,					/* claims that ran out */
	DUE_DELAYED,				/* messages that were delayed */
	DUE_EXAMINE,				/* is there something to claim? */
	DUE_EXPIRED					/* messages whose lifetime is over */
} DuePhase;

typedef struct DueTask
{
	DuePhase	phase;
	AvailabilityVisit visit;
	TimestampTz began;
	bool		disturbed;		/* by claims */
	bool		exists;
	bool		paused;
	bool		examined;		/* in this step */
	bool		found;			/* something to claim */
	int64		marker;			/* of the last message looked at */
	TimestampTz next;			/* one expires */
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
} DueTask;

/* All queues, while they are looked at */
typedef struct LookTask
{
	int			n;
	int			next;			/* of these */
	int32	   *ids;
	int			ndue;
	int32		due[QUEUES_AT_ONCE];
} LookTask;

PGDLLEXPORT void queue_worker_main(Datum arg);

static DatabaseState *state;
static bool gone = false;		/* the extension is */
static volatile sig_atomic_t told_to_end = false;
static volatile sig_atomic_t in_task = false;
static Oid	extension_table = InvalidOid;
static TimestampTz ring_due;	/* next */
static int64 look_not_before = 0;	/* of the monotonic clock; at all queues */
static uint64 lookup_generation;	/* see catalog_lookup_generation() */
static MemoryContext round_context;
static MemoryContext look_context;	/* of a look at all queues */
static HTAB *postponed;
static MemoryContext handler_context;
static HandlerSummary *handlers = NULL;
static int	nhandlers = 0;
static HandlerVersion handlers_version;
static HTAB *channels = NULL;
static uint64 channels_generation = 0;

/* What the step that runs has done, to be recorded once it has committed */
static AvailabilityVisit arrivals[NEWS_AT_ONCE];
static bool arrivals_told[NEWS_AT_ONCE];
static int	nnews;
static bool was_locked;			/* it failed because a lock was not free */
static bool was_canceled;		/* or by request */
static bool extension_locked;	/* namely that of the extension */
static uint32 arrivals_from;		/* availability maps that this round has still to see */
static uint32 counts_from;
static DueTask due_task;
static LookTask look_task;

static void worker_exit(int code, Datum arg);
static bool enter(Oid database);
static void set_state(WorkerState to);
static void hold_extension(void);
static void extension_gone(void);
static void keep_error(ErrorData *error);
static void be_told_to_end(SIGNAL_ARGS);
static bool must_end(void);
static void next_transaction(const char *project);
static void lock_queue(int32 queue_id);
static bool do_step(TaskKind task);
static TaskResult run(TaskKind task);
static TaskResult run_all(TaskKind task);
static void postpone(int32 queue_id, int64 max, bool grow);
static void resume_at_once(int32 queue_id);
static int64 postponed_for(int32 queue_id);
static const Channel *channel_of(int32 queue_id);
static bool has_jobs(void);
static int	compare_handlers(const void *a, const void *b);
static int	compare_queue(const void *queue_id, const void *handler);
static HandlerSummary *handler_of(int32 queue_id);
static int	ready_handlers(HandlerSummary **ready);
static void dispatch(void);
static void call_runners(void);
static bool see_to_runner(void);
static void retry_of_gone(const Queue *queue, const Runner *runner);
static bool has_arrivals(void);
static bool notify_listeners(void);
static void end_arrivals(void);
static bool open_due(Queue *queue);
static bool do_due(void);
static void end_due(bool last);
static void list_queues(void);
static bool look_at_queues(void);
static bool turn_ring(void);
static bool write_counts(void);
static bool is_ours(const AvailabilityMap *map);
static void see_to_arrivals(void);
static void see_to_urgent(bool call);
static void see_to_queue(int32 queue_id);
static void look_at_all(void);
static void see_to_due(void);
static void see_to_ring(void);
static void see_to_counts(void);
static TimestampTz next_due(void);
static long sleep_time(TimestampTz until, TimestampTz now);
static void finish(void);
static void notice_prepared(void);
static bool sleep_until_due(void);
static void set_next_round(void);

/* The process ends, however it does. */
static void
worker_exit(int code, Datum arg)
{
	LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
	if (state->pid == MyProcPid)
	{
		pg_atomic_write_u32(&state->proc, 0);
		pg_atomic_write_u64(&state->sleeps_until, (uint64) DT_NOBEGIN);
		state->pid = 0;

		/* Whoever is asked to leave, or is terminated, comes back later. */
		if (state->state != WORKER_NONE)
		{
			state->state = WORKER_WANTED;
			state->start_at = Max(state->start_at,
								  clock_monotonic() + USECS_PER_SEC);
		}
		state->leave = false;
	}
	LWLockRelease(shmem_database_lock());
	database_wake_launcher();
}

static void
set_state(WorkerState to)
{
	LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
	state->state = to;
	if (to == WORKER_BUSY)
	{
		state->last_run = GetCurrentTimestamp();
		pg_atomic_fetch_add_u64(&state->counters[COUNT_ROUNDS], 1);
	}
	LWLockRelease(shmem_database_lock());
}

/*
 * Keep the extension from being dropped while this transaction runs: then
 * nothing that we look at can go away.  An error if it has been, or is just
 * now: its lock is released a moment after the commit that wakes us.
 */
static void
hold_extension(void)
{
	Oid			extension = get_extension_oid("queue", true);

	if (OidIsValid(extension))
	{
		LOCKTAG		tag;

		SET_LOCKTAG_OBJECT(tag, MyDatabaseId, ExtensionRelationId, extension,
						   0);
		if (LockAcquire(&tag, AccessShareLock, false, true) ==
			LOCKACQUIRE_NOT_AVAIL)
		{
			extension_locked = true;
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("extension \"queue\" is locked")));
		}
		AcceptInvalidationMessages();

		/* Or is it gone since we began to wait? */
		if (get_extension_oid("queue", true) != extension)
			extension = InvalidOid;
	}
	gone = !OidIsValid(extension);
	if (gone)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"queue\" does not exist")));
	if (extension_table != catalog_queue_oid())
	{
		extension_table = catalog_queue_oid();
		database_map_evicted(state, DT_NOBEGIN);
	}
}

/* Then there is nothing to do here, for nobody. */
static void
extension_gone(void)
{
	set_state(WORKER_NONE);
	pool_vacate(MyDatabaseId, false);
}

static void
keep_error(ErrorData *error)
{
	LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
	strlcpy(state->last_error, error->message, WORKER_ERROR_LENGTH);
	state->last_error_at = GetCurrentTimestamp();
	LWLockRelease(shmem_database_lock());
}

/* --- Transactions --- */

/*
 * End the transaction, if one is running, and begin the next one, in a
 * project: its queues, and their dead letter queues, go by its names.
 */
static void
next_transaction(const char *project)
{
	if (IsTransactionState())
		CommitTransactionCommand();
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	MemoryContextSwitchTo(round_context);
	hold_extension();
	if (project != NULL)
		settings_set_label("queue.project", project, true);
}

/*
 * Lock a queue as a claim does, without waiting: any role can lock a queue of
 * its own for as long as it likes (queue_purge).
 */
static void
lock_queue(int32 queue_id)
{
	if (!queue_try_lock(queue_id))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("queue %d is locked", queue_id)));
}

/* A task ends with an error, so that the worker can finish what must be. */
static void
be_told_to_end(SIGNAL_ARGS)
{
	int			save_errno = errno;

	told_to_end = true;
	if (in_task)
		InterruptPending = QueryCancelPending = true;
	SetLatch(MyLatch);
	errno = save_errno;
}

static bool
must_end(void)
{
	return gone || told_to_end || state->leave;
}

/* One step.  True: there is another one. */
static bool
do_step(TaskKind task)
{
	switch (task)
	{
		case TASK_JOBS:
			call_runners();
			return false;
		case TASK_RUNNER:
			return see_to_runner();
		case TASK_NEWS:
			return notify_listeners();
		case TASK_DUE:
			return do_due();
		case TASK_LIST:
			list_queues();
			return false;
		case TASK_LOOK:
			return look_at_queues();
		case TASK_RING:
			return turn_ring();
		case TASK_COUNTS:
			return write_counts();
	}
	return false;
}

/*
 * Do one step of a task, in a transaction.  An error is reported and ends no
 * more than the task; "gone" is set when the extension is.
 *
 * A cancel request ends a task too, and nothing when there is none.
 */
static TaskResult
run(TaskKind task)
{
	volatile TaskResult result = TASK_FAILED;

	gone = false;
	QueryCancelPending = told_to_end;
	in_task = true;
	RESUME_CANCEL_INTERRUPTS();
	PG_TRY();
	{
		next_transaction(NULL);
		result = do_step(task) ? TASK_MORE : TASK_DONE;
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(round_context);
		error = CopyErrorData();
		HOLD_INTERRUPTS();
		was_locked = error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE;
		was_canceled = error->sqlerrcode == ERRCODE_QUERY_CANCELED;
		if (!gone && !was_locked && !told_to_end)
		{
			EmitErrorReport();
			keep_error(error);
		}
		AbortCurrentTransaction();
		FlushErrorState();
		RESUME_INTERRUPTS();
		result = TASK_FAILED;
	}
	PG_END_TRY();
	HOLD_CANCEL_INTERRUPTS();
	in_task = false;
	if (!told_to_end)
		QueryCancelPending = false;
	MemoryContextSwitchTo(round_context);
	MemoryContextReset(round_context);
	return result;
}

/* Do all steps of a task that may take long. */
static TaskResult
run_all(TaskKind task)
{
	TaskResult	result;

	while ((result = run(task)) == TASK_MORE && !must_end())
		see_to_urgent(false);
	return result;
}

/* --- What failed, and is left alone for a time --- */

/* The pause grows with each failure that follows another one. */
static void
postpone(int32 queue_id, int64 max, bool grow)
{
	bool		found;
	Postponed  *entry = hash_search(postponed, &queue_id, HASH_ENTER, &found);

	entry->pause = found && grow ? Min(2 * entry->pause, max) : PAUSE_MIN;
	entry->until = clock_monotonic() + entry->pause;
}

static void
resume_at_once(int32 queue_id)
{
	(void) hash_search(postponed, &queue_id, HASH_REMOVE, NULL);
}

/* For how many microseconds from now on */
static int64
postponed_for(int32 queue_id)
{
	Postponed  *entry = hash_search(postponed, &queue_id, HASH_FIND, NULL);

	return entry == NULL ? 0 :
		Max(entry->until - clock_monotonic(), 0);
}

/* --- Steps --- */

static bool
is_ours(const AvailabilityMap *map)
{
	return map_database(map) == MyDatabaseId &&
		map_extension(map) == extension_table;
}

/* Are there any that need not be left alone? */
static bool
has_arrivals(void)
{
	uint32		from = 0;
	AvailabilityMap	   *map;

	if (postponed_for(ALL_NEWS) > 0)
		return false;
	while ((map = shmem_next_flagged(MAP_ARRIVALS, &from)) != NULL)
		if (is_ours(map))
			return true;
	return false;
}

/* What to send for this queue, from memory if nothing has changed. */
static const Channel *
channel_of(int32 queue_id)
{
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		paused;
	bool		found;
	Channel    *channel;

	if (channels == NULL || channels_generation != catalog_generation() ||
		hash_get_num_entries(channels) >= CHANNELS_MAX)
	{
		HASHCTL		info;

		if (channels != NULL)
			hash_destroy(channels);
		info.keysize = sizeof(int32);
		info.entrysize = sizeof(Channel);
		info.hcxt = TopMemoryContext;
		channels = hash_create("channels of queues", 64, &info,
							   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		channels_generation = catalog_generation();
	}

	/* Of a queue that is resumed we are told before its row is invalid. */
	channel = hash_search(channels, &queue_id, HASH_FIND, NULL);
	if (channel != NULL && !channel->paused)
		return channel;
	if (!queue_name_of(queue_id, project, name, &paused))
		return NULL;
	channel = hash_search(channels, &queue_id, HASH_ENTER, &found);
	channel->paused = paused;
	strlcpy(channel->name, name, sizeof(channel->name));
	wakeup_channel_name(project, name, channel->channel);
	return channel;
}

/* A runner was terminated while this message was at work, or just after. */
static void
retry_of_gone(const Queue *queue, const Runner *runner)
{
	ResourceOwner owner = CurrentResourceOwner;
	TimestampTz due;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		(void) claim_retry_job(queue, runner->message_id, &runner->claim,
							   "runner was terminated", LockWaitError, &due);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		int			code = geterrcode();

		RollbackAndReleaseCurrentSubTransaction();
		CurrentResourceOwner = owner;
		if (code != ERRCODE_CLAIM_NOT_LIVE &&
			code != ERRCODE_MESSAGE_NOT_IN_CLAIM)
			PG_RE_THROW();
		FlushErrorState();
	}
	PG_END_TRY();
	CurrentResourceOwner = owner;
	MemoryContextSwitchTo(round_context);
}

/*
 * Renew the claim of a runner, or see to what one has left behind.  False:
 * there was none.
 */
static bool
see_to_runner(void)
{
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		paused;
	bool		gone;
	Runner		runner;
	Queue		queue;

	if (!pool_take_due(&runner))
		return false;
	gone = runner.state == RUNNER_GONE;
	if (queue_name_of(runner.queue_id, project, name, &paused))
	{
		lock_queue(runner.queue_id);
		settings_set_label("queue.project", project, true);
		if (queue_open(name, QUEUE_CLAIM, &queue) &&
			queue.id == runner.queue_id)
		{
			if (gone && runner.message_id != 0)
				retry_of_gone(&queue, &runner);
			claim_keep_only(&queue, &runner.claim, gone ? 0 : runner.message_id,
					  runner.ttl, LockWaitError);
		}
	}

	/* Should that fail, it is done again soon. */
	next_transaction(NULL);
	if (gone)
		pool_took_over(&runner);
	else
		pool_renewed(&runner);
	return true;
}

/* Is there a reason to look? */
static bool
has_jobs(void)
{
	return handlers == NULL || nhandlers > 0 ||
		!handler_is_current(&handlers_version) ||
		pool_next_due() <= GetCurrentTimestamp();
}

static int
compare_handlers(const void *a, const void *b)
{
	return (*(HandlerSummary *const *) a)->queue_id <
		(*(HandlerSummary *const *) b)->queue_id ? -1 : 1;
}

static int
compare_queue(const void *queue_id, const void *handler)
{
	int32		key = *(const int32 *) queue_id;
	int32		other = ((const HandlerSummary *) handler)->queue_id;

	return key < other ? -1 : key > other ? 1 : 0;
}

/* The handler of a queue, or NULL */
static HandlerSummary *
handler_of(int32 queue_id)
{
	return nhandlers == 0 ? NULL :
		bsearch(&queue_id, handlers, nhandlers, sizeof(HandlerSummary),
				compare_queue);
}

/*
 * The handlers whose queues may be ready, in their order.  The ready queues
 * are looked at, not all handlers, unless it is not known which are ready.
 */
static int
ready_handlers(HandlerSummary **ready)
{
	uint64		generation;
	int			n = 0;

	if (ready_is_complete(&generation))
	{
		int			nids;
		int32	   *ids = ready_queue_ids(&nids);

		for (int i = 0; i < nids; i++)
		{
			HandlerSummary *handler = handler_of(ids[i]);

			/* A queue may be found twice. */
			if (handler != NULL && n < nhandlers)
				ready[n++] = handler;
		}
		pfree(ids);
		if (ready_was_complete(generation))
		{
			qsort(ready, n, sizeof(HandlerSummary *), compare_handlers);
			return n;
		}
		n = 0;
	}
	for (int i = 0; i < nhandlers; i++)
		if (shmem_is_flagged(extension_table, handlers[i].queue_id,
							 MAP_READY))
			ready[n++] = &handlers[i];
	return n;
}

/* Have runners called, and leave out queues that are paused. */
static void
dispatch(void)
{
	HandlerSummary **ready = palloc_extended(nhandlers * sizeof(HandlerSummary *),
										   MCXT_ALLOC_HUGE);
	int			n = ready_handlers(ready);
	int			kept = 0;
	int			lookups = 0;

	for (int i = 0; i < n && lookups < LOOKUPS_AT_ONCE; i++)
	{
		char		project[QUEUE_PROJECT_LENGTH + 1];
		char		name[QUEUE_NAME_LENGTH + 1];
		bool		paused;

		if (!ready[i]->knows_paused)
		{
			lookups++;
			ready[i]->paused = !queue_name_of(ready[i]->queue_id, project,
											  name, &paused) || paused;
			ready[i]->knows_paused = true;
		}
		if (!ready[i]->paused)
			ready[kept++] = ready[i];
	}
	pool_dispatch(ready, kept, lookups == LOOKUPS_AT_ONCE);
}

/* Call runners for queues that have jobs. */
static void
call_runners(void)
{
	if (handlers == NULL || !handler_is_current(&handlers_version))
	{
		handlers = NULL;
		MemoryContextReset(handler_context);
		MemoryContextSwitchTo(handler_context);
		handlers = handler_summaries(&nhandlers, &handlers_version);
		MemoryContextSwitchTo(round_context);
	}
	if (nhandlers > 0)
		dispatch();
}

/* One NOTIFY for each of some queues that have news. */
static bool
notify_listeners(void)
{
	int			notified = 0;

	nnews = 0;
	while (nnews < NEWS_AT_ONCE &&
		   availability_next_arrivals(extension_table, &arrivals_from, &arrivals[nnews]))
	{
		const Channel *channel = channel_of(arrivals[nnews].queue_id);

		/* When it is resumed, the worker looks whether there is something. */
		arrivals_told[nnews] = channel == NULL || !channel->paused;
		if (channel != NULL && !channel->paused)
		{
			Async_Notify(channel->channel, channel->name);
			notified++;
		}
		nnews++;
	}
	database_count(COUNT_NOTIFICATIONS, notified);
	return nnews == NEWS_AT_ONCE;
}

/* They have been sent. */
static void
end_arrivals(void)
{
	for (int i = 0; i < nnews; i++)
		availability_notified(&arrivals[i], arrivals_told[i]);
}

/* Open the queue of a task, as its project.  False: it is gone. */
static bool
open_due(Queue *queue)
{
	DueTask    *task = &due_task;

	task->exists = queue_name_of(task->visit.queue_id, task->project,
								 task->name, &task->paused);
	if (!task->exists)
		return false;
	lock_queue(task->visit.queue_id);
	settings_set_label("queue.project", task->project, true);
	task->exists = queue_open(task->name, QUEUE_CLAIM, queue) &&
		queue->id == task->visit.queue_id;
	return task->exists;
}

/* Do some of what is due in one queue. */
static bool
do_due(void)
{
	DueTask    *task = &due_task;
	Queue		queue;
	bool		more = false;
	bool		disturbed = false;

	if (task->phase == DUE_SWEEP)
		(void) availability_begin_visit(task->visit.queue_id, &task->visit);
	if (!open_due(&queue))
		return false;
	switch (task->phase)
	{
		case DUE_SWEEP:
			if (claim_scan_sweep(&queue, &disturbed))
				return true;
			task->disturbed |= disturbed;
			task->phase = DUE_DELAYED;
			/* FALLTHROUGH */
		case DUE_DELAYED:
			if (delayed_move_due(queue.id, &more))
			{
				task->phase = more ? DUE_DELAYED : DUE_EXAMINE;
				return true;
			}
			task->phase = DUE_EXAMINE;
			/* FALLTHROUGH */
		case DUE_EXAMINE:
			if (!task->visit.examined && !task->paused)
			{
				task->found = claim_scan_probe(&queue, true);
				task->examined = true;
			}
			if (task->visit.expires_at > task->began)
				return false;
			task->phase = DUE_EXPIRED;
			task->marker = -1;
			task->next = DT_NOEND;

			/* That was enough for one transaction, if there is more to do. */
			return true;
		case DUE_EXPIRED:
			return !expire_messages(queue.id, &task->marker, &task->next);
	}
	return false;
}

/* That has been done, in a step that has committed; is it the last one? */
static void
end_due(bool last)
{
	DueTask    *task = &due_task;
	int64		took = GetCurrentTimestamp() - task->began;

	if (!task->exists)
	{
		availability_set_quiet(&task->visit, false);
		return;
	}
	if (task->examined)
		availability_end_visit(&task->visit, task->found);
	task->examined = false;
	if (!last)
		return;
	if (!task->visit.examined && task->paused)
		availability_set_quiet(&task->visit, true);

	/* In a large queue, a small part of the time goes to this. */
	if (task->phase == DUE_EXPIRED)
		availability_end_expiry(&task->visit,
						  Max(task->next, GetCurrentTimestamp() +
							  EXPIRY_SHARE * Max(took, 0)));
}

static void
list_queues(void)
{
	LookTask   *task = &look_task;
	QueueEntry *queues;
	int			first;

	MemoryContextReset(look_context);
	task->n = task->next = 0;
	queues = queue_all(NULL, &task->n);
	task->ids = MemoryContextAllocHuge(look_context,
									   Max(task->n, 1) * sizeof(int32));

	/* Should this be cut short again and again, it is not for the same ones. */
	first = task->n == 0 ? 0 : (int) (clock_monotonic() % task->n);
	for (int i = 0; i < task->n; i++)
		task->ids[i] = queues[(first + i) % task->n].id;
}

/*
 * Give each of some queues a availability map, and collect those that the worker has to
 * see to.  Where there is no room for all of them, one at a time, which is
 * seen to before others take its place.
 */
static bool
look_at_queues(void)
{
	LookTask   *task = &look_task;
	TimestampTz now = GetCurrentTimestamp();
	int			max = task->n > setting_max_availability_maps ? 1 : QUEUES_AT_ONCE;

	task->ndue = 0;
	while (task->next < task->n && task->ndue < max)
	{
		int32		queue_id = task->ids[task->next++];

		CHECK_FOR_INTERRUPTS();
		if (availability_is_due(queue_id, now))
			task->due[task->ndue++] = queue_id;
	}
	return task->next < task->n;
}

/* Do what there is to do for the ring, and learn when there will be more. */
static bool
turn_ring(void)
{
	return segment_recycle_step(&ring_due);
}

/* Write the counts of some queues to their table. */
static bool
write_counts(void)
{
	return !counters_flush(&counts_from, COUNTS_AT_ONCE);
}

/* --- Rounds --- */

/* Notify listeners. */
static void
see_to_arrivals(void)
{
	TaskResult	result = TASK_MORE;

	arrivals_from = 0;
	while (result == TASK_MORE && !must_end() && has_arrivals())
	{
		result = run(TASK_NEWS);
		if (result == TASK_FAILED)
			postpone(ALL_NEWS, PAUSE_LOCKED, true);
		else
		{
			resume_at_once(ALL_NEWS);
			end_arrivals();
		}
	}
}

/*
 * What must not wait for what takes long: notify listeners, call runners for
 * what came free, renew claims.
 */
static void
see_to_urgent(bool call)
{
	if (has_arrivals())
	{
		call = true;
		see_to_arrivals();
	}
	if (call && has_jobs() && postponed_for(ALL_JOBS) == 0 && !must_end())
	{
		if (run(TASK_JOBS) == TASK_FAILED)
			postpone(ALL_JOBS, PAUSE_LOCKED, true);
		else
			resume_at_once(ALL_JOBS);
	}
	while (!must_end() && pool_next_due() <= GetCurrentTimestamp() &&
		   run(TASK_RUNNER) == TASK_MORE)
		;
}

/* Do all that is due in one queue. */
static void
see_to_queue(int32 queue_id)
{
	TaskResult	result;

	if (postponed_for(queue_id) > 0)
		return;
	memset(&due_task, 0, sizeof(DueTask));
	due_task.visit.queue_id = queue_id;
	due_task.began = GetCurrentTimestamp();
	while ((result = run(TASK_DUE)) != TASK_FAILED)
	{
		end_due(result == TASK_DONE);
		if (result == TASK_DONE || must_end())
			break;
		see_to_urgent(false);
	}
	if (result == TASK_FAILED)
		postpone(queue_id, was_locked || was_canceled ? PAUSE_LOCKED :
				 PAUSE_ERROR, true);
	else if (due_task.disturbed)
		postpone(queue_id, PAUSE_MIN, false);
	else
		resume_at_once(queue_id);
}

/* Look at all queues, for those that have no availability map. */
static void
look_at_all(void)
{
	int64		began = clock_monotonic();
	uint64		generation = pg_atomic_read_u64(&state->maps_evicted);
	bool		more;

	/* What is lost from here on lowers it again. */
	pg_atomic_write_u64(&state->full_visit_at, (uint64) DT_NOEND);
	pg_memory_barrier();
	more = run(TASK_LIST) != TASK_FAILED;
	look_task.next = more ? 0 : -1;
	while (more && !must_end())
	{
		TaskResult	result = run(TASK_LOOK);

		if (result == TASK_FAILED)
			look_task.next = -1;
		for (int i = 0; i < look_task.ndue && result != TASK_FAILED; i++)
		{
			if (must_end())
				break;
			see_to_urgent(false);
			see_to_queue(look_task.due[i]);
		}
		more = result == TASK_MORE;
	}
	MemoryContextReset(look_context);
	look_not_before = clock_monotonic();
	look_not_before += Max(LOOK_PAUSE,
						   LOOK_SHARE * (look_not_before - began));
	if (look_task.next == look_task.n && !must_end())
		pg_atomic_write_u64(&state->maps_restored, generation);
	else
		database_map_evicted(state, DT_NOBEGIN);	/* it was not done */
}

/* See to all queues in which something is due. */
static void
see_to_due(void)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next = DT_NOEND;
	TimestampTz look_at;
	uint32		n;
	int32	   *due;
	int			ndue = 0;

	if ((TimestampTz) pg_atomic_read_u64(&state->next_due) > now)
		return;

	/* What becomes due from here on lowers it again. */
	pg_atomic_write_u64(&state->next_due, (uint64) DT_NOEND);
	pg_memory_barrier();
	look_at = (TimestampTz) pg_atomic_read_u64(&state->full_visit_at);
	if (look_at <= now && clock_monotonic() >= look_not_before)
		look_at_all();
	now = GetCurrentTimestamp();
	due = MemoryContextAlloc(TopMemoryContext,
							 QUEUES_AT_ONCE * sizeof(int32));
	n = shmem_count_maps();
	for (uint32 i = 0; i < n; i++)
	{
		const AvailabilityMap *map = shmem_map_in_use(i);
		TimestampTz at = map_wake_at(map);

		if (!is_ours(map))
			continue;
		if (at <= now)
			at = Max(at, now + postponed_for(map_queue_id(map)));
		if (at <= now && ndue < QUEUES_AT_ONCE)
			due[ndue++] = map_queue_id(map);
		else
			next = Min(next, at);
	}
	for (int i = 0; i < ndue && !must_end(); i++)
	{
		see_to_queue(due[i]);
		see_to_urgent(false);

		/* The visit has set the queue's next time, unless it failed. */
		if (postponed_for(due[i]) > 0)
			next = Min(next, GetCurrentTimestamp() + postponed_for(due[i]));
	}
	pfree(due);

	/* The clock has stepped back: what was due then is not yet. */
	if (GetCurrentTimestamp() < now)
		next = DT_NOBEGIN;
	look_at = (TimestampTz) pg_atomic_read_u64(&state->full_visit_at);
	if (look_at != DT_NOEND)
		next = Min(next, Max(look_at, GetCurrentTimestamp() +
							 look_not_before - clock_monotonic()));
	database_wake(next, false);
}

/* Write the counts of queues, if it is time. */
static void
see_to_counts(void)
{
	if (counters_flush_is_due())
	{
		int64		began = clock_monotonic();

		counts_from = 0;
		(void) run_all(TASK_COUNTS);
		counters_flushed(began);
	}
	counters_flush_again();
}

/* Turn the ring, if a session says so or it is time. */
static void
see_to_ring(void)
{
	TimestampTz now = GetCurrentTimestamp();
	RingState  *ring = &state->ring;
	uint64		nothing = (uint64) DT_NOEND;
	TimestampTz due = (TimestampTz) pg_atomic_read_u64(&ring->due);
	TaskResult	result;

	/* Not later than that, unless the clock has stepped back. */
	if (due == DT_NOEND || (due > now && due < now + RING_PAUSE))
		return;

	/* A session that says so from here on is heard the next time. */
	pg_atomic_write_u64(&ring->due, (uint64) DT_NOEND);
	pg_memory_barrier();
	while ((result = run(TASK_RING)) == TASK_MORE && !must_end())
	{
		see_to_urgent(false);

		/* What is due in queues comes first. */
		if ((TimestampTz) pg_atomic_read_u64(&state->next_due) <=
			GetCurrentTimestamp())
			break;
	}
	if (result != TASK_DONE)
		ring_due = result == TASK_MORE ? DT_NOBEGIN : now + USECS_PER_SEC;
	(void) pg_atomic_compare_exchange_u64(&ring->due, &nothing,
										  (uint64) ring_due);
}

/* When is something due, in a queue or for the ring? */
static TimestampTz
next_due(void)
{
	return Min((TimestampTz) pg_atomic_read_u64(&state->next_due),
			   (TimestampTz) pg_atomic_read_u64(&state->ring.due));
}

/*
 * Before the worker ends: what it has not written is lost with the memory.  If
 * the server is being stopped, so are the runners, and nobody else would give
 * back what they have claimed.
 */
static void
finish(void)
{
	int64		until = clock_monotonic() + LAST_WAIT;
	bool		wait_for_runners = told_to_end;

	if (state->state == WORKER_NONE)
		return;

	/* These tasks do not end. */
	told_to_end = false;
	pqsignal(SIGTERM, SIG_IGN);
	while (wait_for_runners && pool_is_leaving() &&
		   clock_monotonic() < until)
	{
		(void) WaitLatch(NULL, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, LAST_NAP,
						 compat_wait_event("QueueWorkerNap"));
		while (run(TASK_RUNNER) == TASK_MORE)
			;
	}

	/* The first time writes rows for queues that had none. */
	for (int i = 0; i < 2; i++)
	{
		counts_from = 0;
		while (run(TASK_COUNTS) == TASK_MORE)
			;
	}
}

/*
 * A transaction that was prepared may have been committed: no callback tells
 * of that, but its invalidation messages do.
 */
static void
notice_prepared(void)
{
	StartTransactionCommand();
	CommitTransactionCommand();
	if (lookup_generation == catalog_lookup_generation())
		return;
	lookup_generation = catalog_lookup_generation();
	database_map_evicted(state, DT_NOBEGIN);
}

/* Milliseconds to sleep, at most, if nothing happens; -1: for ever */
static long
sleep_time(TimestampTz until, TimestampTz now)
{
	long		most = max_prepared_xacts > 0 ? SLEEP_PREPARED : SLEEP_MAX;

	if (until == DT_NOEND)
		return max_prepared_xacts > 0 ? most : -1;
	return (long) Min((until - now) / 1000 + 1, most);
}

/*
 * Sleep until something is due, or a session wakes us, which is true.  Sleeps
 * are short where something is due later, since the clock may be set, or the
 * machine suspended, meanwhile.
 */
static bool
sleep_until_due(void)
{
	bool		woken = false;
	TimestampTz until;

	set_state(WORKER_IDLE);

	/*
	 * A session that changes something reads this afterwards: so either it
	 * wakes us, or we see it.
	 */
	until = next_due();
	pg_atomic_write_u64(&state->sleeps_until, (uint64) until);
	pg_memory_barrier();
	until = Min(until, next_due());
	while (!woken && !has_arrivals() && !must_end())
	{
		TimestampTz now = GetCurrentTimestamp();
		long		timeout;

		if (until <= now)
			break;
		timeout = sleep_time(until, now);
		woken = (WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH |
						   (timeout < 0 ? 0 : WL_TIMEOUT), timeout,
						   compat_wait_event("QueueWorker")) &
				 WL_LATCH_SET) != 0;
		ResetLatch(MyLatch);
		if (max_prepared_xacts > 0)
		{
			notice_prepared();
			until = Min(until, next_due());
			if (!handler_is_current(&handlers_version))
				break;
		}
	}
	pg_atomic_write_u64(&state->sleeps_until, (uint64) DT_NOBEGIN);
	return woken;
}

/* When the next round has to begin, for what no availability map tells */
static void
set_next_round(void)
{
	TimestampTz now = GetCurrentTimestamp();

	/* Runners that are due are left alone too while calling them fails. */
	database_wake(postponed_for(ALL_JOBS) > 0 ?
				  now + postponed_for(ALL_JOBS) : pool_next_due(), false);
	if (postponed_for(ALL_NEWS) > 0)
		database_wake(now + postponed_for(ALL_NEWS), false);
	if (extension_locked)
		database_wake(now + PAUSE_MIN, false);
}

/*
 * Become the worker of the database, and one of its sessions; false: it has
 * one, or shall have none.
 */
static bool
enter(Oid database)
{
	HASHCTL		info;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
	state = database_find(database, false);
	if (state == NULL || state->pid != 0 || state->leave)
	{
		LWLockRelease(shmem_database_lock());
		return false;
	}
	state->start_at = 0;
	state->pid = MyProcPid;
	pg_atomic_write_u32(&state->proc, (uint32) my_proc_number() + 1);
	LWLockRelease(shmem_database_lock());
	before_shmem_exit(worker_exit, (Datum) 0);

	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
	pqsignal(SIGTERM, be_told_to_end);
	SetConfigOption("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION);

	/* Locks that users can hold are tried; this is for those of moments. */
	SetConfigOption("lock_timeout", "100ms", PGC_USERSET, PGC_S_SESSION);
	SetConfigOption("statement_timeout", "0", PGC_USERSET, PGC_S_SESSION);
	SetConfigOption("idle_in_transaction_session_timeout", "0", PGC_USERSET,
					PGC_S_SESSION);
	SetConfigOption("default_transaction_read_only", "off", PGC_USERSET,
					PGC_S_SESSION);
	SetConfigOption("default_transaction_isolation", "read committed",
					PGC_USERSET, PGC_S_SESSION);
	SetConfigOption("search_path", "pg_catalog, pg_temp", PGC_USERSET,
					PGC_S_SESSION);
	round_context = AllocSetContextCreate(TopMemoryContext, "queue worker",
										  ALLOCSET_DEFAULT_SIZES);
	look_context = AllocSetContextCreate(TopMemoryContext, "queues",
										 ALLOCSET_DEFAULT_SIZES);
	handler_context = AllocSetContextCreate(TopMemoryContext, "handlers",
											ALLOCSET_DEFAULT_SIZES);
	info.keysize = sizeof(int32);
	info.entrysize = sizeof(Postponed);
	info.hcxt = TopMemoryContext;
	postponed = hash_create("queues left alone", 64, &info,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	MemoryContextSwitchTo(round_context);
	database_announce();		/* finds our own entry */
	database_map_evicted(state, DT_NOBEGIN);	/* what others did before is unknown */
	pg_atomic_write_u64(&state->ring.due, 0);
	return true;
}

void
queue_worker_main(Datum arg)
{
	bool		woken = false;

	if (!enter(DatumGetObjectId(arg)))
		proc_exit(0);
	HOLD_CANCEL_INTERRUPTS();
	for (;;)
	{
		bool		arrivals;

		/* Not by an error: it is nothing to be said in the log. */
		if (must_end())
			break;
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		set_state(WORKER_BUSY);

		/*
		 * Woken for no reason that we know: the extension may have been
		 * dropped.  That is said at commit, but before the message that
		 * invalidates what we know.
		 */
		arrivals = has_arrivals();
		if (extension_locked ||
			(woken && !arrivals && next_due() > GetCurrentTimestamp()))
		{
			extension_locked = false;
			(void) run(TASK_NEWS);
		}
		see_to_urgent(true);
		if (!must_end())
			see_to_due();
		if (!must_end())
			see_to_counts();
		if (!must_end())
			see_to_ring();
		if (gone)
			extension_gone();
		if (must_end())
			break;

		/* Notifications that follow soon become one. */
		if (arrivals && setting_worker_naptime > 0)
			(void) WaitLatch(NULL, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 setting_worker_naptime,
							 compat_wait_event("QueueWorkerNap"));
		set_next_round();
		woken = sleep_until_due();
		pgstat_report_stat(false);
	}
	finish();
	proc_exit(0);
}
