/*-------------------------------------------------------------------------
 *
 * runner_dispatch.c
 *	  Calling and starting runners for queues that have jobs.
 *
 * NOTES
 *	  The worker of a database does this.  It is woken whenever messages
 *	  become free, and passes the handlers whose queues may be ready.
 *
 *	  Each such queue that no runner works for gets one: an idle runner of the
 *	  handler's role is called, or a runner is started, if queue.runners (of
 *	  this database) and queue.max_runners (of all databases) allow that.  A
 *	  runner that has claimed as many messages as it wanted publishes that
 *	  there are more (has_more); then another one is called, up to the
 *	  handler's concurrency.
 *
 *	  If there is no room because runners of other roles take it all, the one
 *	  that has been busy longest is asked to end, after the job that it runs.
 *	  If that takes longer than LEAVE_TIME, so is the next one.
 *
 * src/jobs/runner_dispatch.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "postmaster/bgworker.h"
#include "utils/timestamp.h"

#include "jobs/runner_dispatch.h"
#include "jobs/runner_pool.h"
#include "util/clock.h"
#include "util/settings.h"

#define RETRY_START		(10 * USECS_PER_SEC)	/* when no process could be
												 * started */
#define COMPLAIN_INTERVAL	(60 * USECS_PER_SEC)
#define ROLE_TIME		USECS_PER_SEC	/* for a role before another one's
										 * runner takes its room */
#define LEAVE_TIME		(2 * USECS_PER_SEC) /* for a runner that was asked to
											 * end */

/* What came of the request for a runner, from best to worst */
typedef enum CallResult
{
	CALL_DONE,					/* called or started, or none is needed */
	CALL_NO_ROOM,				/* queue.runners, queue.max_runners */
	CALL_NO_PROCESS				/* max_worker_processes */
} CallResult;

/*
 * When to try again to get runners for queues that have none, by the monotonic
 * clock.  PG_INT64_MAX: there are no such queues.
 */
static int64 due = PG_INT64_MAX;

static bool is_of_role(const Runner *runner, Oid role);
static bool wants_runner(const HandlerSummary *handler);
static bool count_called(Oid role, bool *counted);
static bool call_idle(Oid role, bool *counted);
static Runner *reserve_entry(Oid role);
static bool register_process(const Runner *runner, const char *name);
static CallResult start(Oid role, const char *name, bool *counted);
static void make_room(Oid role);
static char *process_name(Oid role);
static CallResult call_or_start(const HandlerSummary *handler, bool *counted,
								int32 *last_started);
static void complain(void);

/* Is it a process for this role in this database? */
static bool
is_of_role(const Runner *runner, Oid role)
{
	return pool_is_process(runner) && runner->database == MyDatabaseId &&
		runner->role == role;
}

/* Does this queue, which may be ready, need another runner? */
static bool
wants_runner(const HandlerSummary *handler)
{
	int			busy = 0;
	bool		has_more = false;

	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		const Runner *runner = &runner_pool->runners[i];

		if (runner->state == RUNNER_BUSY &&
			runner->database == MyDatabaseId &&
			runner->queue_id == handler->queue_id)
		{
			busy++;
			has_more |= runner->has_more;
		}
	}
	return busy == 0 || (has_more && busy < handler->concurrency);
}

/*
 * A runner that was called or started and is not busy yet counts for one
 * queue.  Is there one that does not count yet?
 */
static bool
count_called(Oid role, bool *counted)
{
	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		const Runner *runner = &runner_pool->runners[i];

		if (is_of_role(runner, role) && !counted[i] && !runner->must_leave &&
			(runner->state == RUNNER_STARTING ||
			 runner->state == RUNNER_CALLED))
		{
			counted[i] = true;
			return true;
		}
	}
	return false;
}

/* Call an idle runner of a role, if there is one. */
static bool
call_idle(Oid role, bool *counted)
{
	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &runner_pool->runners[i];

		if (is_of_role(runner, role) && runner->state == RUNNER_IDLE &&
			!runner->must_leave)
		{
			runner->state = RUNNER_CALLED;
			counted[i] = true;
			pool_set_latch(runner);
			return true;
		}
	}
	return false;
}

/* An entry for a new runner, or NULL if the settings allow no more. */
static Runner *
reserve_entry(Oid role)
{
	int64		now = clock_monotonic();
	Runner	   *unused = NULL;
	int			all = 0;
	int			here = 0;

	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &runner_pool->runners[i];

		/* It could not start, as in a database that allows no connections. */
		if (runner->state == RUNNER_STARTING && runner->pid == 0 &&
			runner->since + RETRY_START < now)
			runner->state = RUNNER_NONE;
		if (runner->state == RUNNER_NONE)
			unused = runner;
		else if (pool_is_process(runner))
		{
			all++;
			if (runner->database == MyDatabaseId)
				here++;
		}
	}
	if (unused == NULL || here >= setting_runners ||
		all >= setting_max_runners)
		return NULL;
	pool_init_entry(unused, RUNNER_STARTING, false, role);
	return unused;
}

static bool
register_process(const Runner *runner, const char *name)
{
	BackgroundWorker worker = {0};

	strlcpy(worker.bgw_name, name, BGW_MAXLEN);
	strcpy(worker.bgw_type, "queue runner");
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strcpy(worker.bgw_library_name, "queue");
	strcpy(worker.bgw_function_name, "queue_runner_main");
	worker.bgw_main_arg =
		UInt64GetDatum((uint64) runner->generation * RUNNERS_MAX +
					   (runner - runner_pool->runners));
	return RegisterDynamicBackgroundWorker(&worker, NULL);
}

static CallResult
start(Oid role, const char *name, bool *counted)
{
	Runner	   *runner = reserve_entry(role);

	if (runner == NULL)
		return CALL_NO_ROOM;
	if (!register_process(runner, name))
	{
		runner->state = RUNNER_NONE;
		return CALL_NO_PROCESS;
	}
	counted[runner - runner_pool->runners] = true;
	return CALL_DONE;
}

/*
 * There is no room for a runner of this role.  If it has none at all, ask the
 * runner that has been busy longest to end.
 */
static void
make_room(Oid role)
{
	int64		now = clock_monotonic();
	Runner	   *longest = NULL;

	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &runner_pool->runners[i];

		if (!pool_is_process(runner))
			continue;
		if (is_of_role(runner, role))
			return;

		/*
		 * There will be room soon, unless the runner that was asked to end is
		 * in a job that takes long.
		 */
		if (runner->must_leave && now < runner->asked_at + LEAVE_TIME)
			return;
		if (runner->must_leave)
			continue;

		/* Each role has some time before its runner has to end. */
		if (runner->state == RUNNER_CALLED ||
			(runner->state != RUNNER_IDLE && runner->since + ROLE_TIME > now))
			continue;
		if (longest == NULL || runner->since < longest->since)
			longest = runner;
	}
	if (longest != NULL)
		pool_ask_to_leave(longest);
}

/*
 * The name of the process that is to run a role's jobs.  Looked up before the
 * lock is taken, as this reads the catalog.
 */
static char *
process_name(Oid role)
{
	char	   *role_name = GetUserNameFromId(role, true);

	return psprintf("queue runner for database %s, role %s",
					get_database_name(MyDatabaseId),
					role_name == NULL ? "?" : role_name);
}

static CallResult
call_or_start(const HandlerSummary *handler, bool *counted,
			  int32 *last_started)
{
	CallResult	result = CALL_DONE;
	char	   *name = process_name(handler->role);

	LWLockAcquire(&runner_pool->lock, LW_EXCLUSIVE);
	if (wants_runner(handler) && !count_called(handler->role, counted) &&
		!call_idle(handler->role, counted))
	{
		result = start(handler->role, name, counted);
		if (result == CALL_DONE)
			*last_started = handler->queue_id;
		else if (result == CALL_NO_ROOM)
			make_room(handler->role);
	}
	LWLockRelease(&runner_pool->lock);
	pfree(name);
	return result;
}

/* Log now and then that no process can be started. */
static void
complain(void)
{
	static TimestampTz last = 0;
	TimestampTz now = GetCurrentTimestamp();

	if (last + COMPLAIN_INTERVAL > now)
		return;
	last = now;
	ereport(LOG,
			(errmsg("no background worker can be started to run jobs"),
			 errdetail("They wait until one can be started, or until job_run is called."),
			 errhint("Raise \"max_worker_processes\".")));
}

/*
 * Call or start a runner for each of these handlers, whose queues may be
 * ready.  They are in the order of their queues, and those after the one that
 * the last runner was started for come first, so that each gets a runner in
 * turn if there is not enough room.  A role for which there is no room is
 * skipped from then on.  "has_more": there are others, to be passed at once.
 */
void
runner_dispatch(HandlerSummary *const *handlers, int n, bool has_more)
{
	static int32 last_started = 0;
	bool		counted[RUNNERS_MAX] = {false};
	CallResult	worst = CALL_DONE;
	List	   *crowded = NIL;	/* roles for which there is no room */
	int			first = 0;

	while (first < n && handlers[first]->queue_id <= last_started)
		first++;
	for (int i = 0; i < n; i++)
	{
		const HandlerSummary *handler = handlers[(first + i) % n];
		CallResult	result;

		if (list_member_oid(crowded, handler->role))
			continue;
		result = call_or_start(handler, counted, &last_started);
		if (result != CALL_DONE)
			crowded = lappend_oid(crowded, handler->role);
		worst = Max(worst, result);
	}
	list_free(crowded);
	if (worst == CALL_NO_PROCESS)
		complain();

	if (has_more)
		due = 0;
	else if (worst == CALL_DONE)
		due = PG_INT64_MAX;
	else
		due = clock_monotonic() +
			(worst == CALL_NO_ROOM ? ROLE_TIME : RETRY_START);
}

/* When it is to be called again, by the monotonic clock, or PG_INT64_MAX. */
int64
runner_dispatch_due(void)
{
	return due;
}
