/*-------------------------------------------------------------------------
 *
 * runner_pool.c
 *	  The processes and sessions that run jobs, in shared memory.
 *
 * NOTES
 *	  The pool is a fixed array of the runners of all databases.  A runner is
 *	  a background process (runner.c) or a session in job_run.  The worker of
 *	  a database reserves an entry for a process before it registers it, and
 *	  passes the entry and its generation as a ticket.  The process takes the
 *	  entry over, unless that was given up in the meantime.
 *
 *	  A runner publishes in its entry whether it is idle, what it has claimed
 *	  and which message it works on.  The worker reads that to call or start
 *	  runners and to look after their claims (worker_jobs.c).
 *
 *	  A runner that ends with a claim leaves its entry behind as RUNNER_GONE,
 *	  until the worker has released the claim.  A crash of the server loses the
 *	  pool; then the claims run out.
 *
 *	  event (RunnerState)						from			to
 *	  ---------------------------------------------------------------------
 *	  the worker registers a process			NONE			STARTING
 *	  it does not start in time, or cannot		STARTING		NONE
 *	  a session is in job_run					NONE			BUSY
 *	  a queue of the role is ready				STARTING, IDLE,
 *												CALLED			BUSY
 *	  no queue is ready							STARTING, BUSY,
 *												CALLED			IDLE
 *	  the worker calls it						IDLE			CALLED
 *	  the process or the call ends				any				NONE
 *	  the same, and it has a claim				BUSY			GONE
 *	  the worker has given that claim back, or	GONE			NONE
 *	  the database is to be dropped
 *
 *	  Locking: one lock protects the array.  A latch is set under it, but the
 *	  process may have ended since; then another process wakes up needlessly.
 *
 * src/jobs/runner_pool.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "libpq/pqsignal.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"

#include "jobs/runner_pool.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/settings.h"

/*
 * In a batch, seconds after which the worker gives the messages that are still
 * waiting to other runners; see BATCH_TOO_SLOW in execute.c.
 */
#define RELIEF_AFTER	2

RunnerPool *runner_pool = NULL;

/* The entry of this process, or NULL if it has none */
static Runner *my_runner = NULL;

/* The pool's count when this process last gave up a claim */
static uint32 ncancels_seen = 0;

static void init_runner_pool(void *area);
static void leave_at_exit(int code, Datum arg);

const SharedArea runner_area = {
	&runner_pool, sizeof(RunnerPool), LOCK_RUNNERS, init_runner_pool, NULL
};

/* --- Shared memory --- */

static void
init_runner_pool(void *area)
{
	pg_atomic_init_u32(&((RunnerPool *) area)->ncancels, 0);
}

/* --- Entries --- */

/*
 * Returns whether the processes in the entries before "end" are as many as the
 * settings allow.  A spare runner does not count.  "is_local": the setting for
 * one database is the one.
 */
bool
pool_is_full(const Runner *end, bool *is_local)
{
	int			all = 0;
	int			here = 0;

	Assert(LWLockHeldByMe(&runner_pool->lock));
	for (const Runner *runner = runner_pool->runners; runner < end; runner++)
		if (pool_is_process(runner) && !runner->is_spare)
		{
			all++;
			if (runner->database == MyDatabaseId)
				here++;
		}
	*is_local = here >= setting_runners;
	return *is_local || all >= setting_max_runners;
}

/* Returns how many runners a role has, but for those that are to end. */
int
pool_count_of_role(Oid database, Oid role)
{
	int			result = 0;

	Assert(LWLockHeldByMe(&runner_pool->lock));
	for (Runner *runner = runner_pool->runners; runner < POOL_END; runner++)
		result += pool_is_of_role(runner, database, role) &&
			!runner->must_leave;
	return result;
}

/* Returns whether the role of a runner has more than its share. */
bool
pool_is_beyond_share(const Runner *runner)
{
	return pool_count_of_role(runner->database, runner->role) >
		runner_pool->share;
}

/* Returns whether a role of any database had no room for a runner just now. */
bool
pool_has_waiting_role(void)
{
	Assert(LWLockHeldByMe(&runner_pool->lock));
	return runner_pool->waiting_at != 0 &&
		clock_monotonic() < runner_pool->waiting_at + 2 * ROOM_INTERVAL;
}

/*
 * Begin to use a free entry, for this database: of a session that runs jobs,
 * or of a process that is to be started.
 */
void
pool_init_entry(Runner *runner, bool is_session, Oid role)
{
	uint32		generation = runner->generation + 1;

	Assert(LWLockHeldByMeInMode(&runner_pool->lock, LW_EXCLUSIVE));
	memset(runner, 0, sizeof(Runner));
	runner->state = is_session ? RUNNER_BUSY : RUNNER_STARTING;
	runner->generation = generation;
	runner->since = clock_monotonic();
	runner->is_session = is_session;
	runner->database = MyDatabaseId;
	runner->role = role;
}

/* Wake up a runner. */
void
pool_set_latch(const Runner *runner)
{
	Assert(LWLockHeldByMe(&runner_pool->lock));
	if (runner->pid != 0)
		SetLatch(&ProcGlobal->allProcs[runner->proc].procLatch);
}

/* Ask a runner to end between two jobs. */
void
pool_ask_to_leave(Runner *runner)
{
	Assert(LWLockHeldByMeInMode(&runner_pool->lock, LW_EXCLUSIVE));
	runner->must_leave = true;
	pool_set_latch(runner);
}

/*
 * Ask the runners of a database to end, or terminate them at once.  The
 * database is to be dropped, or must not be in use.
 */
void
pool_vacate(Oid database, bool terminate)
{
	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
	for (Runner *runner = runner_pool->runners; runner < POOL_END; runner++)
	{
		if (runner->database != database)
			continue;

		/*
		 * The worker leaves, too: so the claim runs out, or goes with the
		 * database.
		 */
		if (runner->state == RUNNER_GONE)
			runner->state = RUNNER_NONE;

		/*
		 * A session in job_run does not end because others want the database.
		 */
		else if (pool_is_process(runner))
		{
			pool_ask_to_leave(runner);
			if (terminate && runner->pid != 0)
				kill(runner->pid, SIGTERM);
		}
	}
	LWLockRelease(&runner_pool->lock);
}

/*
 * Returns a copy of all entries in use, of any database; or only of those of
 * runners that run a job here.
 */
Runner *
pool_list(int *n, bool only_jobs)
{
	Runner	   *runners = palloc(RUNNERS_MAX * sizeof(Runner));

	*n = 0;
	shmem_lock(&runner_pool->lock, LW_SHARED);
	for (Runner *runner = runner_pool->runners; runner < POOL_END; runner++)
		if (only_jobs ? runner->database == MyDatabaseId &&
			runner->state == RUNNER_BUSY && runner->message_id != 0 :
			runner->state != RUNNER_NONE)
			runners[(*n)++] = *runner;
	LWLockRelease(&runner_pool->lock);
	return runners;
}

/* --- A runner's own entry --- */

static void
leave_at_exit(int code, Datum arg)
{
	bool		has_failed = false;

	/*
	 * If the process could not connect, as to a database that allows no
	 * connections, it leaves its entry as that of a process that has not
	 * started.  Otherwise the worker would start the next one at once.
	 */
	if (my_runner != NULL)
	{
		shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
		has_failed = code != 0 && my_runner->state == RUNNER_STARTING &&
			!my_runner->must_leave;
		if (has_failed)
		{
			my_runner->pid = 0;
			my_runner->since = clock_monotonic();
		}
		LWLockRelease(&runner_pool->lock);
	}
	if (!has_failed)
		pool_leave();
}

/*
 * Take over the entry that was reserved for this process.  Returns false if it
 * was given up.
 */
bool
pool_enter(uint64 ticket, Oid *database, Oid *role)
{
	Runner	   *runner = &runner_pool->runners[ticket % RUNNERS_MAX];

	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
	if (pool_has_not_started(runner) &&
		runner->generation == ticket / RUNNERS_MAX)
	{
		runner->pid = MyProcPid;
		runner->proc = my_proc_number();
		*database = runner->database;
		*role = runner->role;
		my_runner = runner;
	}
	LWLockRelease(&runner_pool->lock);
	if (my_runner == NULL)
		return false;
	before_shmem_exit(leave_at_exit, (Datum) 0);
	return true;
}

/*
 * Enter this session.  Returns false if there is no free entry, or if the
 * session is in the pool already, as a handler may call job_run.
 */
bool
pool_enter_session(Oid role)
{
	static bool registered = false;

	if (my_runner != NULL)
		return false;
	if (!registered)
	{
		before_shmem_exit(leave_at_exit, (Datum) 0);
		registered = true;
	}
	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);

	/*
	 * Sessions may use half of the entries: they must not keep processes from
	 * starting.
	 */
	for (int i = RUNNERS_MAX / 2; i < RUNNERS_MAX && my_runner == NULL; i++)
		if (runner_pool->runners[i].state == RUNNER_NONE)
			my_runner = &runner_pool->runners[i];
	if (my_runner != NULL)
	{
		pool_init_entry(my_runner, true, role);
		my_runner->pid = MyProcPid;
		my_runner->proc = my_proc_number();
	}
	LWLockRelease(&runner_pool->lock);
	return my_runner != NULL;
}

/* Leave the pool, if this process is in it. */
void
pool_leave(void)
{
	if (my_runner == NULL)
		return;
	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);

	/* The worker releases a claim that we leave behind, at once. */
	my_runner->state = my_runner->queue_id != 0 ? RUNNER_GONE : RUNNER_NONE;
	my_runner->pid = 0;
	my_runner->renew_at = DT_NOBEGIN;
	LWLockRelease(&runner_pool->lock);
	my_runner = NULL;

	/* Another runner may be started, or a claim is to be released. */
	database_wake_worker();
}

/* Publish the state of a process; a session in job_run is always busy. */
void
pool_set_state(RunnerState state)
{
	if (my_runner == NULL || my_runner->is_session)
		return;
	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
	if (my_runner->state != state)
	{
		/* Short pauses do not end the time that it has been busy. */
		if (state == RUNNER_IDLE || my_runner->state == RUNNER_STARTING)
			my_runner->since = clock_monotonic();
		my_runner->state = state;
	}
	LWLockRelease(&runner_pool->lock);
}

/*
 * Returns whether this runner has to end: it was asked to, or its role has
 * more runners than its share, and another one waits.
 */
bool
pool_must_leave(void)
{
	if (my_runner == NULL)
		return false;
	if (my_runner->has_to_share)
	{
		shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
		my_runner->has_to_share = false;
		if (pool_has_waiting_role() && pool_is_beyond_share(my_runner))
			my_runner->must_leave = true;
		LWLockRelease(&runner_pool->lock);
	}
	return my_runner->must_leave;
}

/*
 * Returns whether there are more runners than are allowed now, and this is
 * one of those that are too many.  Those with an entry before it stay.
 */
bool
pool_is_surplus(void)
{
	bool		result;
	bool		is_local;

	shmem_lock(&runner_pool->lock, LW_SHARED);

	/* A spare runner does not count, so it ends only if a setting is 0. */
	result = pool_is_full(my_runner->is_spare ? runner_pool->runners :
						  my_runner, &is_local);
	LWLockRelease(&runner_pool->lock);
	return result;
}

/*
 * Publish a claim.  "is_batch" says whether it has several messages, of which
 * the worker is to give back those that wait for long, and "has_more" whether
 * the queue has work for another runner.
 */
void
pool_set_claim(int32 queue_id, const ClaimId *claim, int ttl, bool is_batch,
			   bool has_more)
{
	TimestampTz renew_at = GetCurrentTimestamp() + USECS_PER_SEC *
	(is_batch ? RELIEF_AFTER : ttl / RENEWALS_PER_TTL);
	bool		had_more;

	if (my_runner == NULL)
		return;
	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
	my_runner->queue_id = queue_id;
	my_runner->claim = *claim;
	my_runner->ttl = ttl;
	my_runner->renew_at = renew_at;
	had_more = my_runner->has_more;
	my_runner->has_more = has_more;
	LWLockRelease(&runner_pool->lock);
	database_wake(renew_at, false);

	/* The worker calls or starts another runner for the queue. */
	if (has_more && !had_more)
		database_wake_worker();
}

/*
 * Publish which message of the claim is worked on now, and for how many
 * seconds at most.
 */
void
pool_set_message(int64 id, int seconds)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz due;

	Assert(id != 0);
	if (my_runner == NULL)
		return;
	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);

	/* The teardown belongs to the job that has just ended. */
	if (my_runner->message_id != id)
	{
		my_runner->message_id = id;
		my_runner->can_cancel = true;
		my_runner->was_canceled = false;
		my_runner->job_since = now;
		my_runner->done = my_runner->total = -1;
		my_runner->note[0] = '\0';
	}
	my_runner->end_at = clock_monotonic() + seconds * USECS_PER_SEC;
	due = my_runner->renew_at;
	LWLockRelease(&runner_pool->lock);

	/* The worker skips runners that work on no message. */
	database_wake(Min(due, now + seconds * USECS_PER_SEC), false);
}

/*
 * Publish what the handler reports of its job: how much is done, the total or
 * -1 if that is unknown, and a note.
 */
void
pool_set_progress(int64 done, int64 total, const char *note)
{
	Size		length;

	if (my_runner == NULL)
		return;

	/* A note may be very long, so we measure it before we take the lock. */
	length = pg_mbcliplen(note, strlen(note), PROGRESS_NOTE_LENGTH);
	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
	my_runner->done = done;
	my_runner->total = total;
	memcpy(my_runner->note, note, length);
	my_runner->note[length] = '\0';
	LWLockRelease(&runner_pool->lock);
}

/*
 * A message was canceled.  Interrupts the runner whose job it is, if its
 * handler runs.  Called after a commit, so it cannot fail.
 */
void
pool_cancel_message(int32 queue_id, int64 id)
{
	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
	pg_atomic_fetch_add_u32(&runner_pool->ncancels, 1);
	for (Runner *runner = runner_pool->runners; runner < POOL_END; runner++)
	{
		if (runner->state != RUNNER_BUSY || runner->pid == 0 ||
			runner->database != MyDatabaseId ||
			runner->queue_id != queue_id || runner->message_id != id ||
			!runner->can_cancel)
			continue;
		runner->was_canceled = true;
		kill(runner->pid, SIGINT);
	}
	LWLockRelease(&runner_pool->lock);
}

/*
 * Returns whether any message was canceled, perhaps one of the claim, since
 * the claim before was given up.
 */
bool
pool_has_canceled(void)
{
	return my_runner != NULL &&
		pg_atomic_read_u32(&runner_pool->ncancels) != ncancels_seen;
}

/*
 * The handler does not run any more: its message must not interrupt what
 * follows.  Returns whether it has interrupted the handler.
 */
bool
pool_end_cancel(void)
{
	bool		was_canceled;

	if (my_runner == NULL)
		return false;
	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
	my_runner->can_cancel = false;
	was_canceled = my_runner->was_canceled;
	LWLockRelease(&runner_pool->lock);
	if (was_canceled)
	{
		/*
		 * The signal was sent under the lock.  If it has not arrived, it does
		 * so in this system call at the latest.
		 */
		(void) sigprocmask(SIG_SETMASK, &UnBlockSig, NULL);
		QueryCancelPending = false;
	}
	return was_canceled;
}

/* Publish that nothing is claimed any more. */
void
pool_clear_claim(void)
{
	if (my_runner == NULL)
		return;
	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
	my_runner->queue_id = 0;
	my_runner->message_id = 0;
	ncancels_seen = pg_atomic_read_u32(&runner_pool->ncancels);
	LWLockRelease(&runner_pool->lock);
}
