/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The background worker of one database.
 *
 * NOTES
 *	  The worker does what is due, and notifies listeners.  Correctness never
 *	  depends on it: a claim does the same for the messages that it meets, only
 *	  later.
 *
 *	  The worker sleeps until something is due according to the availability
 *	  maps, or until a session sets its latch, because messages became free or
 *	  something is due earlier (database_state.c).  Then it runs a round:
 *
 *	  1.  Urgent tasks: it notifies listeners (worker_notify.c), calls runners
 *	  for queues with jobs, renews the claims of runners, and gives back what
 *	  runners leave behind (worker_jobs.c).  After notifications the worker
 *	  naps for queue.worker_naptime, so that many pushes share one.
 *
 *	  2.  What is due in queues: claims that have run out, delayed messages,
 *	  lifetimes (worker_due.c).
 *
 *	  3.  Counters and depths (worker_counts.c).  If all messages have to be
 *	  counted, that comes before task 2, in steps.
 *
 *	  4.  The ring of segments (segment_recycle.c).
 *
 *	  5.  Rates of groups, and deduplication keys, that are not needed any more
 *	  (group_rate.c, dedup.c).
 *
 *	  6.  The tables of the history (finished_ring.c).
 *
 *	  Batches that may have finished are an urgent task, too; before task 2 the
 *	  worker repeats probes of batches (worker_batches.c).
 *
 *	  Tasks 2 to 6 may take long.  They run in steps of one short transaction
 *	  each (worker_task.c), so that no session waits long for the worker, and
 *	  urgent tasks run between any two steps.  A scan of all queues, which the
 *	  worker makes when it starts, goes on in all rounds until it is done; what
 *	  is due comes first in each.
 *
 *	  State that stands for pending work is cleared only when that work is
 *	  done, and as a rule after its commit.  So a step that fails, is canceled or
 *	  cannot get a lock loses nothing, and neither does a worker that is
 *	  terminated.
 *
 *	  The worker runs as the bootstrap superuser, in the project of the queue
 *	  at hand, and runs no code of users.
 *
 *	  It ends when the extension does not exist any more, or is of an earlier
 *	  version, and when the database is about to be dropped, renamed, moved or
 *	  copied (module.c).
 *
 * src/bgworker/worker.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/timestamp.h"

#include "bgworker/worker_internal.h"
#include "claim/group_rate.h"
#include "jobs/runner_pool.h"
#include "map/shmem_maps.h"
#include "push/dedup.h"
#include "queue/finished_ring.h"
#include "shmem/batch_state.h"
#include "shmem/segment_state.h"
#include "shmem/shmem.h"
#include "storage/prepared.h"
#include "storage/segment_recycle.h"
#include "util/background.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/session_lock.h"
#include "util/settings.h"

#define LAST_WAIT		USECS_PER_SEC	/* for runners that end with the
										 * server */
#define LAST_NAP		10		/* ms */
#define SLEEP_MAX		5000	/* ms; then the clock is read again */
#define SLEEP_SHORT		1000	/* ms, where the worker has to look for
								 * changes for which no session wakes it */
#define RING_PAUSE		(120 * USECS_PER_SEC)	/* more than segment_recycle.c
												 * ever asks for */
#define FORGET_KEYS_PAUSE (60 * USECS_PER_SEC)
#define HISTORY_RETRY	(10 * USECS_PER_SEC)	/* after a failure */
#define EXTENSION_PAUSE (USECS_PER_SEC / 10)	/* while it is locked */

Worker		worker;

static TimestampTz ring_due;	/* when segment_recycle.c has more to do */
static TimestampTz rates_due;	/* when rates of groups are removed next */
static TimestampTz keys_due;	/* and deduplication keys */
static TimestampTz history_due = DT_NOBEGIN;	/* a new worker looks at once */

PGDLLEXPORT void queue_worker_main(Datum arg);

static void worker_exit(int code, Datum arg);
static bool become_worker(Oid database);
static void publish_state(WorkerState to);
static TaskResult take_steps(TaskStep step, void *arg);
static void recycle_segments(void);
static void forget_rates(void);
static void forget_keys(void);
static void turn_history(void);
static TimestampTz next_due(void);
static bool has_to_look(void);
static void look_for_changes(void);
static bool sleep_until_due(void);
static void set_next_round(void);
static void do_tasks(void);
static void run_worker_round(bool woken);
static void end_without_extension(void);

/* --- The process --- */

/* Called however the process ends. */
static void
worker_exit(int code, Datum arg)
{
	DatabaseState *state = worker.state;

	/* The next worker does not know of these whether they have ended. */
	if (prepared_is_unknown())
		database_set_flag(state, DATABASE_PREPARED);
	shmem_lock(&databases->lock, LW_EXCLUSIVE);

	/*
	 * The launcher may have given the entry away, if the database accepts no
	 * connections any more.
	 */
	if (state->pid == MyProcPid)
	{
		pg_atomic_write_u32(&state->proc, 0);
		pg_atomic_write_u64(&state->sleeps_until, (uint64) DT_NOBEGIN);
		state->pid = 0;

		/* If the worker was asked to leave or terminated, start it later. */
		if (state->state != WORKER_NONE)
		{
			state->state = WORKER_WANTED;
			state->start_at = Max(state->start_at,
								  clock_monotonic() + USECS_PER_SEC);
		}
		state->leave = false;
	}
	LWLockRelease(&databases->lock);
	database_wake_launcher();
}

/*
 * Become the worker of the database, and one of its sessions.  Returns false
 * if the database has a worker, or is to have none.
 */
static bool
become_worker(Oid database)
{
	DatabaseState *state;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	shmem_lock(&databases->lock, LW_EXCLUSIVE);
	state = database_find(database, false);
	if (state == NULL || state->pid != 0 || state->leave)
	{
		LWLockRelease(&databases->lock);
		return false;
	}
	state->start_at = 0;
	state->pid = MyProcPid;
	pg_atomic_write_u32(&state->proc, (uint32) my_proc_number() + 1);
	LWLockRelease(&databases->lock);
	worker.state = state;
	before_shmem_exit(worker_exit, (Datum) 0);

	background_connect(database, "queue worker");
	pqsignal(SIGTERM, task_shutdown_handler);
	task_init();
	database_announce();		/* finds the entry of this process */

	/*
	 * We do not know what has happened before, so we visit all queues, and
	 * the ring.
	 */
	database_map_missing(state, DT_NOBEGIN);
	depth_lose();
	pg_atomic_write_u64(&state->ring.due, 0);
	return true;
}

/* Publish what the worker does. */
static void
publish_state(WorkerState to)
{
	shmem_lock(&databases->lock, LW_EXCLUSIVE);
	worker.state->state = to;
	if (to == WORKER_BUSY)
	{
		worker.state->last_run = GetCurrentTimestamp();
		pg_atomic_fetch_add_u64(&worker.state->counters[COUNT_ROUNDS], 1);
	}
	LWLockRelease(&databases->lock);
}

/* The database needs no worker and no runners any more. */
static void
end_without_extension(void)
{
	bool		is_back;

	shmem_lock(&databases->lock, LW_EXCLUSIVE);
	is_back = pg_atomic_read_u32(&worker.state->creations) != worker.creations;
	if (!is_back)
		worker.state->state = WORKER_NONE;
	LWLockRelease(&databases->lock);

	/*
	 * If it was created since we looked, worker_exit() has a worker started.
	 */
	if (!is_back)
	{
		pool_vacate(MyDatabaseId, false);
		shmem_clear_maps(MyDatabaseId, InvalidOid);
		batch_state_clear(MyDatabaseId);
	}
}

/* --- Tasks --- */

/* Do what must not wait for a task that takes long. */
void
worker_do_urgent(bool call_runners)
{
	batches_do_urgent();
	if (notify_is_needed())
	{
		/* What listeners can claim, runners can run. */
		call_runners = true;
		notify_listeners();
	}
	if (call_runners)
		jobs_call_runners();
	while (!task_must_end() && jobs_attend_runner())
		;
}

/*
 * Take steps of a task that is not urgent.  If something is due in a queue,
 * that comes first: then this returns TASK_MORE, and the next round goes on.
 */
static TaskResult
take_steps(TaskStep step, void *arg)
{
	TaskResult	result;

	do
	{
		result = task_step(step, arg);
		worker_do_urgent(false);
	} while (result == TASK_MORE && !task_must_end() &&
			 (TimestampTz) pg_atomic_read_u64(&worker.state->next_due) >
			 GetCurrentTimestamp());
	return result;
}

/* Switch and recycle segments, if a session has asked for it or it is time. */
static void
recycle_segments(void)
{
	TimestampTz now = GetCurrentTimestamp();
	RingState  *ring = &worker.state->ring;
	uint64		nothing = (uint64) DT_NOEND;
	TimestampTz due = (TimestampTz) pg_atomic_read_u64(&ring->due);
	TaskResult	result;

	/* A time that is too far away was set before the clock was set back. */
	if (due == DT_NOEND || (due > now && due < now + RING_PAUSE))
		return;

	/* If a session asks for it from here on, it is done in the next round. */
	pg_atomic_write_u64(&ring->due, (uint64) DT_NOEND);
	pg_memory_barrier();
	result = take_steps(segment_recycle_step, &ring_due);

	/* Go on in the next round, or, after a failure, in a second. */
	if (result != TASK_DONE)
		ring_due = result == TASK_MORE ? DT_NOBEGIN : now + USECS_PER_SEC;
	(void) pg_atomic_compare_exchange_u64(&ring->due, &nothing,
										  (uint64) ring_due);
}

/* Remove rates of groups, if that was not done a moment ago. */
static void
forget_rates(void)
{
	static RateSweep sweep = {0};
	TimestampTz now = GetCurrentTimestamp();
	TaskResult	result;

	/* A time that is too far away was set before the clock was set back. */
	if (now < rates_due && rates_due <= now + GROUP_RATE_PAUSE)
		return;
	result = take_steps(group_rate_forget, &sweep);
	rates_due = result == TASK_MORE ? DT_NOBEGIN : now + GROUP_RATE_PAUSE;
	if (result != TASK_DONE || sweep.left)
		database_wake(rates_due, false);
	if (result != TASK_MORE)
		memset(&sweep, 0, sizeof(sweep));
}

/*
 * Remove deduplication keys whose time is over, if that was not done a moment
 * ago.
 */
static void
forget_keys(void)
{
	static TimestampTz from = DT_NOBEGIN;
	TimestampTz now = GetCurrentTimestamp();
	TaskResult	result;

	/* A time that is too far away was set before the clock was set back. */
	if (now < keys_due && keys_due <= now + FORGET_KEYS_PAUSE)
		return;
	result = take_steps(dedup_forget_step, &from);
	keys_due = result == TASK_MORE ? DT_NOBEGIN : now + FORGET_KEYS_PAUSE;
	if (result == TASK_MORE)
		database_wake(DT_NOBEGIN, false);

	/* The step that failed may have passed keys that are still there. */
	if (result == TASK_FAILED)
		from = DT_NOBEGIN;
}

/*
 * Switch and truncate the tables of the history, if it is time.  A session that
 * writes a row says so (database_history_written()), and the worker looks a
 * little later.  From then on finished_ring_step() says when there is something
 * to do: nothing, once all tables are empty.
 */
static void
turn_history(void)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz again;
	TaskResult	result;

	if (database_take_flag(DATABASE_HISTORY))
		history_due = Min(history_due, now + HISTORY_PAUSE);
	if (now < history_due)
		return;
	result = take_steps(finished_ring_step, &again);
	if (result == TASK_DONE)
		history_due = again;
	else if (result == TASK_FAILED)
		history_due = now + HISTORY_RETRY;
}

/* --- Sleeping --- */

/* Returns when something is due, in a queue or for the ring. */
static TimestampTz
next_due(void)
{
	return Min((TimestampTz) pg_atomic_read_u64(&worker.state->next_due),
			   (TimestampTz) pg_atomic_read_u64(&worker.state->ring.due));
}

/* Returns whether some changes have no session that wakes the worker. */
static bool
has_to_look(void)
{
	return max_prepared_xacts > 0 || !shmem_is_preloaded();
}

/* Look for changes for which no session wakes the worker. */
static void
look_for_changes(void)
{
	LOCKTAG		tag;

	counts_take_prepared();

	/*
	 * Without preloading, a session may have no hook that asks the worker to
	 * end (module.c).  So we find out ourselves whether a command waits until
	 * the database is not in use.
	 */
	if (!shmem_is_preloaded())
	{
		SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, MyDatabaseId,
						   0);
		if (session_lock_try(&tag, RowExclusiveLock) != LOCKACQUIRE_NOT_AVAIL)
			LockRelease(&tag, RowExclusiveLock, true);
		else
		{
			database_vacate(MyDatabaseId);
			pool_vacate(MyDatabaseId, true);
		}
	}

	/* A transaction processes invalidation messages. */
	StartTransactionCommand();
	CommitTransactionCommand();
}

/*
 * Sleep until something is due or a session sets the latch; returns whether
 * the latch was set.  The sleep is cut into short ones, because the clock may
 * be set, or the machine suspended, meanwhile.
 */
static bool
sleep_until_due(void)
{
	bool		woken = false;
	TimestampTz until;

	publish_state(WORKER_IDLE);

	/*
	 * Publish until when the worker sleeps, then check once more.  A session
	 * changes something first and reads this afterwards: so either it sets
	 * the latch, or its change is seen here.
	 */
	until = next_due();
	pg_atomic_write_u64(&worker.state->sleeps_until, (uint64) until);
	pg_memory_barrier();
	until = Min(until, next_due());
	while (!woken && !notify_is_needed() && !batches_are_pending() &&
		   !ConfigReloadPending && !task_must_end())
	{
		TimestampTz now = GetCurrentTimestamp();
		long		timeout;

		if (until <= now)
			break;
		timeout = has_to_look() ? SLEEP_SHORT : SLEEP_MAX;
		if (until != DT_NOEND)
			timeout = Min((until - now) / 1000 + 1, timeout);
		else if (!has_to_look())
			timeout = -1;
		woken = (WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH |
						   (timeout < 0 ? 0 : WL_TIMEOUT), timeout,
						   compat_wait_event("QueueWorker")) &
				 WL_LATCH_SET) != 0;
		ResetLatch(MyLatch);

		/*
		 * The latch may have been set just after the sleep has timed out.  If
		 * a session has done that, it has also said that we are awake, so
		 * that others would not wake us any more.
		 */
		woken |= (TimestampTz) pg_atomic_read_u64(&worker.state->sleeps_until) ==
			DT_NOBEGIN;

		/*
		 * It may also have been set for an interrupt.  We must handle it now,
		 * because we may sleep on, and DROP DATABASE waits until each process
		 * has taken notice.
		 */
		CHECK_FOR_INTERRUPTS();
		if (has_to_look())
		{
			look_for_changes();
			until = Min(until, next_due());

			/*
			 * Handlers may have changed, say by COMMIT PREPARED, or the
			 * extension may have been dropped: the next round finds out.
			 */
			if (!jobs_are_current())
				break;
		}
	}
	pg_atomic_write_u64(&worker.state->sleeps_until, (uint64) DT_NOBEGIN);
	return woken;
}

/* Lower the time of the next round for what no availability map knows. */
static void
set_next_round(void)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		jobs = task_postponed_for(POSTPONE_JOBS, 0);
	int64		notify = task_postponed_for(POSTPONE_NOTIFY, 0);

	/* While calling runners is postponed, so is attending to them. */
	database_wake(jobs > 0 ? now + jobs : jobs_next_due(), false);
	if (notify > 0)
		database_wake(now + notify, false);
	database_wake(batches_next_due(), false);
	database_wake(history_due, false);

	/* Nothing was done, and nothing wakes us when the lock is released. */
	if (worker.extension_locked)
		database_wake(now + EXTENSION_PAUSE, false);
}

/* --- Rounds --- */

/* Do some of each task, and all that is urgent. */
static void
do_tasks(void)
{
	static void (*const tasks[]) (void) = {
		recount_round, batches_round, due_queues, counts_round,
		recycle_segments, forget_rates, forget_keys, turn_history
	};

	worker_do_urgent(true);
	for (int i = 0; i < (int) lengthof(tasks) && !task_must_end(); i++)
		(*tasks[i]) ();
}

static void
run_worker_round(bool woken)
{
	bool		notifies = notify_is_needed();

	publish_state(WORKER_BUSY);

	/*
	 * If the latch was set for no known reason, the extension may have been
	 * dropped: the latch is set at commit, before the invalidation messages
	 * arrive.
	 */
	if (worker.extension_locked ||
		(woken && !notifies && !batches_are_pending() &&
		 next_due() > GetCurrentTimestamp()))
	{
		worker.extension_locked = false;
		(void) task_step(NULL, NULL);
	}
	do_tasks();

	/*
	 * The worker does not sleep before it has counted all messages and
	 * visited all queues.
	 */
	while (!task_must_end() && (worker.is_scanning || worker.is_counting))
	{
		CHECK_FOR_INTERRUPTS();
		if (has_to_look())
			look_for_changes();
		(void) background_reload();
		do_tasks();
	}

	/* Notifications that follow soon become one. */
	if (!task_must_end() && notifies && setting_worker_naptime > 0)
		(void) WaitLatch(NULL, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 setting_worker_naptime,
						 compat_wait_event("QueueWorkerNap"));
}

void
queue_worker_main(Datum arg)
{
	bool		woken = false;
	bool		wait_for_runners;
	int64		until;

	if (!become_worker(DatumGetObjectId(arg)))
		proc_exit(0);

	/* A cancel request ends a step (task_step), never the process. */
	HOLD_CANCEL_INTERRUPTS();
	while (!task_must_end())
	{
		CHECK_FOR_INTERRUPTS();
		(void) background_reload();
		run_worker_round(woken);
		if (task_must_end())
			break;
		set_next_round();
		woken = sleep_until_due();
		pgstat_report_stat(false);
	}
	if (worker.extension_gone)
	{
		end_without_extension();
		proc_exit(0);
	}

	/* What follows is not to be canceled, though SIGTERM may come again. */
	wait_for_runners = worker.shutdown_requested;
	worker.shutdown_requested = false;
	pqsignal(SIGTERM, PG_SIG_IGN);

	/*
	 * If the server stops, its runners end too: give back what they have
	 * claimed.
	 */
	until = clock_monotonic() + LAST_WAIT;
	while (wait_for_runners && jobs_have_gone_runners() &&
		   clock_monotonic() < until)
	{
		(void) WaitLatch(NULL, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, LAST_NAP,
						 compat_wait_event("QueueWorkerNap"));
		while (jobs_attend_runner())
			;
	}
	counts_finish();
	proc_exit(0);
}
