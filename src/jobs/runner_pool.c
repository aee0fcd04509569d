/*-------------------------------------------------------------------------
 *
 * runner_pool.c
 *	  Who runs jobs: the runners of all databases, as shared memory knows them.
 *
 * NOTES
 *	  A runner (runner.c) is a background process that runs jobs of one role
 *	  in one database for as long as it lives; a session in job_run is entered
 *	  here too.  The database's worker starts and calls them: it is woken
 *	  whenever something comes free, and looks at those queues that have a
 *	  handler and may be ready (pool_dispatch).
 *
 *	  It calls one runner for each such queue that nobody works for: an idle
 *	  one of the role, or one that is started if there is room, in
 *	  queue.runners and queue.max_runners.  A runner that claimed as much as it
 *	  could says so; then one more is called, up to the handler's concurrency.
 *	  If there is no room because runners of other roles have it all, the one
 *	  that has been there longest is asked to end, after the job at work.  If
 *	  that takes long, so is the next one.
 *
 *	  A runner tells here what it has claimed and which message is at work.
 *	  From that the worker renews the claim of a handler that takes long, gives
 *	  back the rest of the claim meanwhile, sees to what a runner has left
 *	  behind that was terminated, and terminates one that goes on after its
 *	  handler was cancelled.  A crash of the server forgets it all: then the
 *	  claims run out.
 *
 *	  One lock guards the array.  Who wakes a process may find it gone, and
 *	  wakes somebody else without need.
 *
 * src/jobs/runner_pool.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "jobs/handler.h"
#include "jobs/runner_pool.h"
#include "shmem/database_state.h"
#include "storage/claim_id.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/limits.h"
#include "util/settings.h"

#include <signal.h>

#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#define RETRY_RENEWAL	USECS_PER_SEC	/* unless that is done until then */
#define RETRY_START		(10 * USECS_PER_SEC)
#define RETRY_FULL		(60 * USECS_PER_SEC)
#define TURN			USECS_PER_SEC	/* before another role's */
#define LEAVE_TIME		(2 * USECS_PER_SEC) /* most leave within that */
#define RELIEF_AFTER	2		/* seconds; see BATCH_TOO_SLOW in execute.c */

typedef struct PoolState
{
	LWLock	   *lock;
	Runner		runners[RUNNERS_MAX];
} PoolState;

/* What became of the wish for a runner */
typedef enum CallResult
{
	CALL_DONE,
	CALL_NO_ROOM,				/* in queue.runners or queue.max_runners */
	CALL_NO_PROCESS				/* in max_worker_processes */
} CallResult;

static PoolState *pool = NULL;
static Runner *mine = NULL;

/* Of the worker: queues wait for a runner that could not be had, until then. */
static int64 dispatch_at = PG_INT64_MAX;

static shmem_request_hook_type previous_request = NULL;
static shmem_startup_hook_type previous_startup = NULL;

static void request(void);
static void startup(void);
static void leave_at_exit(int code, Datum arg);
static void set_latch_of(const Runner *runner);
static bool is_of(const Runner *runner, Oid role);
static bool wants_runner(const HandlerSummary *handler);
static bool call_idle(Oid role, bool *counted);
static Runner *reserve(Oid role);
static CallResult start(Oid role, bool *counted);
static void make_way(Oid role);
static void complain(CallResult why);

static void
request(void)
{
	if (previous_request != NULL)
		previous_request();
	RequestAddinShmemSpace(sizeof(PoolState));
	RequestNamedLWLockTranche("queue runners", 1);
}

static void
startup(void)
{
	bool		found;

	if (previous_startup != NULL)
		previous_startup();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	pool = ShmemInitStruct("queue runners", sizeof(PoolState), &found);
	if (!found)
	{
		memset(pool, 0, sizeof(PoolState));
		pool->lock = &GetNamedLWLockTranche("queue runners")->lock;
	}
	LWLockRelease(AddinShmemInitLock);
}

/* To be called as the postmaster loads the library. */
void
pool_init(void)
{
	previous_request = shmem_request_hook;
	shmem_request_hook = request;
	previous_startup = shmem_startup_hook;
	shmem_startup_hook = startup;
}

bool
pool_exists(void)
{
	return pool != NULL;
}

static void
set_latch_of(const Runner *runner)
{
	if (runner->pid != 0)
		SetLatch(&ProcGlobal->allProcs[runner->proc].procLatch);
}

/* --- For the worker --- */

/* A process of this database and role; the lock is held. */
static bool
is_of(const Runner *runner, Oid role)
{
	return runner->state != RUNNER_NONE && runner->state != RUNNER_GONE &&
		!runner->is_session && runner->database == MyDatabaseId &&
		runner->role == role;
}

/* Shall somebody be called for this queue, which is ready? */
static bool
wants_runner(const HandlerSummary *handler)
{
	int			active = 0;
	bool		has_more = false;

	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		const Runner *runner = &pool->runners[i];

		if (runner->state == RUNNER_BUSY &&
			runner->database == MyDatabaseId &&
			runner->queue_id == handler->queue_id)
		{
			active++;
			has_more |= runner->has_more;
		}
	}
	return active == 0 || (has_more && active < handler->concurrency);
}

/*
 * Those that were called or started and have not begun yet count for one
 * queue each.  Is there such a one?  Else call one.
 */
static bool
call_idle(Oid role, bool *counted)
{
	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &pool->runners[i];

		if (is_of(runner, role) && !counted[i] && !runner->leave &&
			(runner->state == RUNNER_STARTING ||
			 runner->state == RUNNER_CALLED))
		{
			counted[i] = true;
			return true;
		}
	}
	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &pool->runners[i];

		if (is_of(runner, role) && runner->state == RUNNER_IDLE &&
			!runner->leave)
		{
			runner->state = RUNNER_CALLED;
			counted[i] = true;
			set_latch_of(runner);
			return true;
		}
	}
	return false;
}

/* An entry for one more, or NULL when there is no room. */
static Runner *
reserve(Oid role)
{
	int64		now = clock_monotonic();
	Runner	   *unused = NULL;
	int			all = 0;
	int			here = 0;

	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &pool->runners[i];

		/* It never came: its database may be closed to it. */
		if (runner->state == RUNNER_STARTING && runner->pid == 0 &&
			runner->since + RETRY_START < now)
			runner->state = RUNNER_NONE;
		if (runner->state == RUNNER_NONE)
			unused = runner;
		else if (!runner->is_session && runner->state != RUNNER_GONE)
		{
			all++;
			if (runner->database == MyDatabaseId)
				here++;
		}
	}
	if (unused == NULL || here >= setting_runners ||
		all >= setting_max_runners)
		return NULL;

	unused->state = RUNNER_STARTING;
	unused->is_session = unused->has_more = unused->leave = false;
	unused->generation++;
	unused->database = MyDatabaseId;
	unused->role = role;
	unused->pid = 0;
	unused->queue_id = 0;
	unused->message_id = 0;
	unused->since = now;
	return unused;
}

static CallResult
start(Oid role, bool *counted)
{
	BackgroundWorker worker = {0};
	Runner	   *runner = reserve(role);
	int			i;

	if (runner == NULL)
		return CALL_NO_ROOM;
	i = (int) (runner - pool->runners);
	snprintf(worker.bgw_name, BGW_MAXLEN,
			 "queue runner for database %u, role %u", MyDatabaseId, role);
	strcpy(worker.bgw_type, "queue runner");
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strcpy(worker.bgw_library_name, "queue");
	strcpy(worker.bgw_function_name, "queue_runner_main");
	worker.bgw_main_arg =
		UInt64GetDatum((uint64) runner->generation * RUNNERS_MAX + i);
	if (!RegisterDynamicBackgroundWorker(&worker, NULL))
	{
		runner->state = RUNNER_NONE;
		return CALL_NO_PROCESS;
	}
	counted[i] = true;
	return CALL_DONE;
}

/* Other roles have all the room: the longest of them shall end. */
static void
make_way(Oid role)
{
	int64		now = clock_monotonic();
	Runner	   *longest = NULL;

	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &pool->runners[i];

		if (runner->state == RUNNER_NONE || runner->state == RUNNER_GONE ||
			runner->is_session)
			continue;

		/* The role has its share. */
		if (runner->role == role && runner->database == MyDatabaseId)
			return;

		/*
		 * There will be room at once, unless the one that was asked to leave
		 * is in a handler that takes long.
		 */
		if (runner->leave && now < runner->asked_at + LEAVE_TIME)
			return;
		if (runner->leave)
			continue;

		/* Each has a turn before it goes, unless it has nothing to do. */
		if (runner->state == RUNNER_CALLED ||
			(runner->state != RUNNER_IDLE && runner->since + TURN > now))
			continue;
		if (longest == NULL || runner->since < longest->since)
			longest = runner;
	}
	if (longest != NULL)
	{
		longest->leave = true;
		longest->asked_at = now;
		set_latch_of(longest);
	}
}

/* Say once in a while that jobs wait for no good reason. */
static void
complain(CallResult why)
{
	static TimestampTz last = 0;
	TimestampTz now = GetCurrentTimestamp();

	if (why != CALL_NO_PROCESS || last + RETRY_FULL > now)
		return;
	last = now;
	ereport(LOG,
			(errmsg("no background worker can be started to run jobs"),
			 errdetail("They wait until one can be, or somebody calls job_run."),
			 errhint("Raise \"max_worker_processes\".")));
}

/*
 * Call a runner for each of these handlers, whose queues may be ready; they are
 * in the order of their queues.  Those after the one that the last runner was
 * started for come first, so that all have their turn where there is not enough
 * room.  A role for which there is no room is not tried again.  (more: there
 * are others, to be looked at at once.)
 */
void
pool_dispatch(HandlerSummary *const *handlers, int n, bool more)
{
	static int32 last_started = 0;
	bool		counted[RUNNERS_MAX] = {false};
	CallResult	result = CALL_DONE;
	List	   *crowded = NIL;	/* roles */
	int			first = 0;

	while (first < n && handlers[first]->queue_id <= last_started)
		first++;
	for (int i = 0; i < n; i++)
	{
		const HandlerSummary *handler = handlers[(first + i) % n];

		if (list_member_oid(crowded, handler->role))
			continue;
		LWLockAcquire(pool->lock, LW_EXCLUSIVE);
		if (wants_runner(handler) &&
			!call_idle(handler->role, counted))
		{
			CallResult	this = start(handler->role, counted);

			if (this == CALL_DONE)
				last_started = handler->queue_id;
			else
				crowded = lappend_oid(crowded, handler->role);
			if (this == CALL_NO_ROOM)
				make_way(handler->role);
			result = Max(result, this);
		}
		LWLockRelease(pool->lock);
	}
	list_free(crowded);
	complain(result);
	dispatch_at = more ? 0 : result == CALL_DONE ? PG_INT64_MAX :
		clock_monotonic() +
		(result == CALL_NO_ROOM ? TURN : RETRY_START);
}

/* When is something to be done for a runner of this database? */
TimestampTz
pool_next_due(void)
{
	TimestampTz due = DT_NOEND;
	int64		due_monotonic = dispatch_at;

	LWLockAcquire(pool->lock, LW_SHARED);
	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		const Runner *runner = &pool->runners[i];

		if (runner->database != MyDatabaseId)
			continue;
		if (runner->state == RUNNER_GONE)
			due = Min(due, runner->renew_at);
		if (runner->state == RUNNER_BUSY && runner->message_id != 0)
		{
			due = Min(due, runner->renew_at);
			due_monotonic = Min(due_monotonic, runner->end_at);
		}
	}
	LWLockRelease(pool->lock);
	if (due_monotonic != PG_INT64_MAX)
		due = Min(due, GetCurrentTimestamp() +
				  Max(due_monotonic - clock_monotonic(), 0));
	return due;
}

/*
 * One whose claim is to be renewed, or that has left one behind; false when
 * there is none.  Ends those that do not end by themselves.
 */
bool
pool_take_due(Runner *due)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		found = false;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	for (int i = 0; i < RUNNERS_MAX && !found; i++)
	{
		Runner	   *runner = &pool->runners[i];

		if (runner->database != MyDatabaseId)
			continue;
		if (runner->state == RUNNER_GONE && runner->renew_at <= now)
		{
			runner->renew_at = now + RETRY_RENEWAL;
			found = true;
		}
		else if (runner->state == RUNNER_BUSY && runner->message_id != 0)
		{
			if (!runner->is_session &&
				runner->end_at <= clock_monotonic())
			{
				kill(runner->pid, SIGTERM);
				runner->end_at = clock_monotonic() + RETRY_START;
			}
			if (runner->renew_at <= now)
			{
				runner->renew_at = now + RETRY_RENEWAL;

				/* What is given back is for somebody else. */
				runner->has_more = true;
				found = true;
			}
		}
		if (found)
			*due = *runner;
	}
	LWLockRelease(pool->lock);
	return found;
}

/* Has anybody here left a claim behind, or is at work and may do so? */
bool
pool_is_leaving(void)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		result = false;

	LWLockAcquire(pool->lock, LW_SHARED);
	for (int i = 0; i < RUNNERS_MAX && !result; i++)
	{
		const Runner *runner = &pool->runners[i];

		result = runner->database == MyDatabaseId &&
			(runner->state == RUNNER_BUSY ||
			 (runner->state == RUNNER_GONE && runner->renew_at <= now));
	}
	LWLockRelease(pool->lock);
	return result;
}

/* The claim of this one was renewed. */
void
pool_renewed(const Runner *renewed)
{
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &pool->runners[i];

		if (runner->state == RUNNER_BUSY &&
			runner->database == renewed->database &&
			runner->generation == renewed->generation &&
			runner->claim.token == renewed->claim.token &&
			runner->message_id == renewed->message_id)
			runner->renew_at = renewed->renew_at - RETRY_RENEWAL +
				runner->ttl * USECS_PER_SEC / RENEWALS_PER_TTL;
	}
	LWLockRelease(pool->lock);
}

/* What this one left behind was seen to. */
void
pool_took_over(const Runner *gone)
{
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	for (int i = 0; i < RUNNERS_MAX; i++)
		if (pool->runners[i].state == RUNNER_GONE &&
			pool->runners[i].database == gone->database &&
			pool->runners[i].generation == gone->generation &&
			pool->runners[i].claim.token == gone->claim.token)
			pool->runners[i].state = RUNNER_NONE;
	LWLockRelease(pool->lock);
}

/* A database is to be dropped, or needed by somebody alone. */
void
pool_vacate(Oid database, bool terminate)
{
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &pool->runners[i];

		if (runner->state == RUNNER_NONE || runner->database != database)
			continue;
		if (runner->state == RUNNER_GONE)
			runner->state = RUNNER_NONE;
		else if (!runner->is_session)
		{
			runner->leave = true;
			runner->asked_at = clock_monotonic();
			set_latch_of(runner);
			if (terminate && runner->pid != 0)
				kill(runner->pid, SIGTERM);
		}
	}
	LWLockRelease(pool->lock);
}

/* --- For runners --- */

static void
leave_at_exit(int code, Datum arg)
{
	pool_leave();
}

/* Take the entry that was reserved for this process.  False: it is not there. */
bool
pool_enter(uint64 ticket, Oid *database, Oid *role)
{
	Runner	   *runner = &pool->runners[ticket % RUNNERS_MAX];

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (runner->state == RUNNER_STARTING && runner->pid == 0 &&
		runner->generation == ticket / RUNNERS_MAX)
	{
		runner->pid = MyProcPid;
		runner->proc = my_proc_number();
		*database = runner->database;
		*role = runner->role;
		mine = runner;
	}
	LWLockRelease(pool->lock);
	if (mine != NULL)
		before_shmem_exit(leave_at_exit, (Datum) 0);
	return mine != NULL;
}

/* Enter this session.  False: there is no room, or it is in here. */
bool
pool_enter_session(Oid role)
{
	static bool registered = false;

	if (mine != NULL)
		return false;
	if (!registered)
	{
		before_shmem_exit(leave_at_exit, (Datum) 0);
		registered = true;
	}
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	for (int i = 0; i < RUNNERS_MAX && mine == NULL; i++)
		if (pool->runners[i].state == RUNNER_NONE)
			mine = &pool->runners[i];
	if (mine != NULL)
	{
		mine->state = RUNNER_BUSY;
		mine->is_session = true;
		mine->has_more = mine->leave = false;
		mine->generation++;
		mine->database = MyDatabaseId;
		mine->role = role;
		mine->pid = MyProcPid;
		mine->proc = my_proc_number();
		mine->since = clock_monotonic();
		mine->queue_id = 0;
		mine->message_id = 0;
	}
	LWLockRelease(pool->lock);
	return mine != NULL;
}

/* No more; without harm where it was not. */
void
pool_leave(void)
{
	if (mine == NULL)
		return;
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	mine->state = mine->queue_id != 0 ? RUNNER_GONE : RUNNER_NONE;
	mine->pid = 0;
	mine->renew_at = DT_NOBEGIN;
	LWLockRelease(pool->lock);
	mine = NULL;

	/* There is room for somebody else, or something to be seen to. */
	database_wake_worker();
}

void
pool_set_state(RunnerState state)
{
	if (mine == NULL || mine->is_session)
		return;
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (mine->state != state)
	{
		/* The time at work counts through short rests. */
		if (state == RUNNER_IDLE || mine->state == RUNNER_STARTING)
			mine->since = clock_monotonic();
		mine->state = state;
	}
	LWLockRelease(pool->lock);
}

/* Shall this process end?  Another role waits, or its database is wanted. */
bool
pool_must_leave(void)
{
	return mine != NULL && mine->leave;
}

/*
 * Are there more runners than there may be, by now, and is this one too many?
 * Those that have a place before it stay.
 */
bool
pool_is_surplus(void)
{
	int			all = 0;
	int			here = 0;

	LWLockAcquire(pool->lock, LW_SHARED);
	for (const Runner *runner = pool->runners; runner < mine; runner++)
		if (runner->state != RUNNER_NONE && runner->state != RUNNER_GONE &&
			!runner->is_session)
		{
			all++;
			if (runner->database == MyDatabaseId)
				here++;
		}
	LWLockRelease(pool->lock);
	return here >= setting_runners || all >= setting_max_runners;
}

/*
 * What was claimed just now.  If it is not one message alone and takes too
 * long, the worker gives the rest to others.
 */
void
pool_set_claim(int32 queue_id, const ClaimId *claim, int ttl, bool several)
{
	TimestampTz renew_at = GetCurrentTimestamp() + USECS_PER_SEC *
		(several ? RELIEF_AFTER : ttl / RENEWALS_PER_TTL);

	if (mine == NULL)
		return;
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	mine->queue_id = queue_id;
	mine->claim = *claim;
	mine->ttl = ttl;
	mine->renew_at = renew_at;
	LWLockRelease(pool->lock);
	database_wake(renew_at, false);
}

/* Its message that is at work now, which has to end within so many seconds */
void
pool_set_message(int64 id, int seconds)
{
	if (mine == NULL)
		return;
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	mine->message_id = id;
	mine->end_at = clock_monotonic() + seconds * USECS_PER_SEC;
	LWLockRelease(pool->lock);

	/* The worker may have looked when none was at work, and forgotten us. */
	if (id != 0)
		database_wake(Min(mine->renew_at, GetCurrentTimestamp() +
						  seconds * USECS_PER_SEC), false);
}

/* There is, or is not, work for one more in the queue. */
void
pool_set_more(bool has_more)
{
	bool		tell;

	if (mine == NULL)
		return;
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	tell = has_more && !mine->has_more;
	mine->has_more = has_more;
	LWLockRelease(pool->lock);
	if (tell)
		database_wake_worker();
}

/* Nothing is claimed any more. */
void
pool_clear_claim(void)
{
	if (mine == NULL)
		return;
	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	mine->queue_id = 0;
	mine->message_id = 0;
	LWLockRelease(pool->lock);
}

/* --- For the view queue_runners --- */

/* A copy of all entries in use, of any database */
Runner *
pool_list(int *n)
{
	Runner	   *runners = palloc(RUNNERS_MAX * sizeof(Runner));

	*n = 0;
	if (pool == NULL)
		return runners;
	LWLockAcquire(pool->lock, LW_SHARED);
	for (int i = 0; i < RUNNERS_MAX; i++)
		if (pool->runners[i].state != RUNNER_NONE)
			runners[(*n)++] = pool->runners[i];
	LWLockRelease(pool->lock);
	return runners;
}
