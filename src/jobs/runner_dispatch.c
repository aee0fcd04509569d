/*-------------------------------------------------------------------------
 *
 * runner_dispatch.c
 *	  Calling and starting runners for queues that have jobs, and looking after
 *	  them.
 *
 * NOTES
 *	  The worker of a database does this.  It is woken whenever messages
 *	  become free, and passes the handlers whose queues may be ready.
 *
 *	  A queue that needs a runner gets an idle one of its handler's role.  If
 *	  there is none, the role wants a new one.  A pass starts one at most: for
 *	  the role that has the fewest, and roles that have as many take turns.
 *
 *	  The settings bound the runners of this database (queue.runners) and of
 *	  all databases (queue.max_runners).  A role that wants a new runner and
 *	  finds no room waits.  Then an idle runner of another role ends; and roles
 *	  that have at least two runners more than the one that waits are beyond
 *	  their share.  Their runners end between two jobs (pool_must_leave()), until
 *	  no role has two more than another one that wants more.
 *
 *	  A job may take an hour, and there may be more roles than runners.  So
 *	  each database may have a spare runner, beyond the settings, for a role
 *	  that has none.  It ends after a job if another such role waits.  When
 *	  there is room again, it takes that, and is an ordinary one.
 *
 *	  No job is interrupted for others; its time limit bounds it.
 *
 *	  A handler that cannot run (handler_check.c) gets no runner.  It is checked
 *	  when it would get one, and again after a second, as long as its queue is
 *	  ready.  The reason is logged once.
 *
 *	  The worker also finds here which runner needs it:
 *	  - The claim of a message whose job takes long is renewed, and what is
 *		left of its batch is given back, so that others can run it.
 *	  - The claim that a runner has left behind, which was terminated or has
 *		failed, is released.
 *	  - A process that still runs a job some seconds after its statement was
 *		canceled is terminated.
 *
 *	  A runner is taken with runner_watch_take_due(), which makes it due again
 *	  after RETRY_AFTER.  Only when the worker's transaction has committed,
 *	  runner_watch_done() records that it is done.
 *
 * src/jobs/runner_dispatch.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "jobs/handler_check.h"
#include "jobs/runner_dispatch.h"
#include "jobs/runner_pool.h"
#include "shmem/shmem.h"
#include "util/background.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/hash.h"
#include "util/settings.h"

#define COMPLAIN_INTERVAL	(60 * USECS_PER_SEC)
#define CHECK_INTERVAL	USECS_PER_SEC	/* between checks of a handler, and as
										 * much more for each one that was */
#define CHECK_SHARE		100		/* checked, in usec */
#define CHECKS_AT_ONCE	500		/* in one pass */
#define FORGET_CHECK	(60 * USECS_PER_SEC)	/* after the last one */
#define RETRY_AFTER			USECS_PER_SEC	/* see runner_watch_take_due() */
#define TERMINATE_AGAIN		(10 * USECS_PER_SEC)

/* A handler that was checked */
typedef struct CheckedHandler
{
	int32		queue_id;		/* hash key */
	uint32		problem;		/* hash of why it cannot run; 0 if it can */
	int64		until;			/* check again then; monotonic */
	TimestampTz loaded_by;		/* the load of this row has ended */
} CheckedHandler;

/*
 * When to try again to get runners for queues that have none, by the
 * monotonic clock; PG_INT64_MAX if there are no such queues
 */
static int64 dispatch_due = PG_INT64_MAX;

static HTAB *checked = NULL;	/* of CheckedHandler */
static Oid	last_role = InvalidOid; /* for which a runner was started */

/* A pass: a call of runner_dispatch() */
static bool counted[RUNNERS_MAX];	/* the entry counts for some queue */
static int	nchecks;			/* of handlers */
static bool no_process;			/* none could be started, for lack of
								 * max_worker_processes */
static int64 recheck_due;		/* when to check one again that cannot run;
								 * monotonic */

static bool wants_runner(const HandlerSummary *handler);
static void check_handler(CheckedHandler *entry);
static bool can_run(int32 queue_id);
static void forget_checked(void);
static bool find_or_call_runner(Oid role);
static bool wants_new_runner(const HandlerSummary *handler, int *nrunners);
static void free_unstarted(void);
static bool make_room(Oid role, int share, bool is_local);
static bool start_runner(Oid role, bool is_spare, const char *name);
static bool start_or_make_room(Oid role, const char *name);
static bool serve_role(Oid role);
static bool is_working(const Runner *runner);

/* Returns whether this queue, which may be ready, needs another runner. */
static bool
wants_runner(const HandlerSummary *handler)
{
	int			busy = 0;
	bool		has_more = false;

	for (Runner *runner = runner_pool->runners; runner < POOL_END; runner++)
		if (runner->state == RUNNER_BUSY &&
			runner->database == MyDatabaseId &&
			runner->queue_id == handler->queue_id)
		{
			busy++;
			has_more |= runner->has_more;
		}

	/*
	 * A runner that has claimed as many messages as it wanted publishes that
	 * there may be more (has_more).  Otherwise those that the queue has will
	 * do.
	 */
	return busy == 0 || (has_more && busy < handler->concurrency);
}

/* Check a handler, and log why it cannot run, unless that was logged. */
static void
check_handler(CheckedHandler *entry)
{
	const char *problem = NULL;
	uint32		hash = 0;
	Handler		handler;

	nchecks++;
	if (handler_read(entry->queue_id, &handler))
	{
		handler.load_has_ended = entry->loaded_by == handler.row.loaded_by;
		problem = handler_check(&handler);
		if (handler.load_has_ended)
			entry->loaded_by = handler.row.loaded_by;
	}
	if (problem != NULL)
		hash = hash_bytes((const unsigned char *) problem, strlen(problem)) | 1;
	if (hash != 0 && hash != entry->problem)
		handler_report_stopped(&handler, LOG, problem);
	entry->problem = hash;

	/* So the checks take a small part of the time, however many there are. */
	entry->until = clock_monotonic() + CHECK_INTERVAL +
		hash_get_num_entries(checked) * CHECK_SHARE;
}

/* Returns whether a handler can run. */
static bool
can_run(int32 queue_id)
{
	CheckedHandler *entry;
	bool		found;

	if (checked == NULL)
		checked = hash_create_blobs("checked handlers", sizeof(int32),
									sizeof(CheckedHandler), TopMemoryContext);
	entry = hash_search(checked, &queue_id, HASH_ENTER, &found);
	if (!found)
		memset(&entry->problem, 0, sizeof(CheckedHandler) -
			   offsetof(CheckedHandler, problem));
	if (entry->until <= clock_monotonic())
		check_handler(entry);
	if (entry->problem != 0)
		recheck_due = Min(recheck_due, entry->until);
	return entry->problem == 0;
}

/* Forget the handlers that were not checked for long. */
static void
forget_checked(void)
{
	int64		now = clock_monotonic();
	HASH_SEQ_STATUS status;
	CheckedHandler *entry;

	if (checked == NULL)
		return;
	hash_seq_init(&status, checked);
	while ((entry = hash_seq_search(&status)) != NULL)
		if (entry->until + FORGET_CHECK < now)
			(void) hash_search(checked, &entry->queue_id, HASH_REMOVE, NULL);
}

/*
 * Find a runner of the role for a queue that needs one.  It is one that was
 * called or started, is not busy yet, and does not count for another queue in
 * this pass: it counts for this one, because it looks at all queues of the
 * role.  Otherwise call an idle one.  Returns false if there is none.
 */
static bool
find_or_call_runner(Oid role)
{
	Runner	   *idle = NULL;

	for (Runner *runner = runner_pool->runners; runner < POOL_END; runner++)
	{
		/* A runner that was asked to end may do so before it runs a job. */
		if (!pool_is_of_role(runner, MyDatabaseId, role) || runner->must_leave)
			continue;
		if (runner->state == RUNNER_IDLE && idle == NULL)
			idle = runner;
		else if ((runner->state == RUNNER_STARTING ||
				  runner->state == RUNNER_CALLED) &&
				 !counted[runner - runner_pool->runners])
		{
			counted[runner - runner_pool->runners] = true;
			return true;
		}
	}
	if (idle == NULL)
		return false;
	idle->state = RUNNER_CALLED;
	counted[idle - runner_pool->runners] = true;
	pool_set_latch(idle);
	return true;
}

/*
 * Returns whether the queue needs another runner, its handler can run, and
 * the role has none that is free: then *nrunners is how many it has.
 */
static bool
wants_new_runner(const HandlerSummary *handler, int *nrunners)
{
	bool		result;

	/* We must not read the catalog while we hold the lock. */
	shmem_lock(&runner_pool->lock, LW_SHARED);
	result = wants_runner(handler);
	LWLockRelease(&runner_pool->lock);
	if (!result || !can_run(handler->queue_id))
		return false;

	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
	result = wants_runner(handler) && !find_or_call_runner(handler->role);
	*nrunners = pool_count_of_role(MyDatabaseId, handler->role);
	LWLockRelease(&runner_pool->lock);
	return result;
}

/* --- Processes --- */

/*
 * Free the entries of processes that have not started.  The worker of their
 * database would do so, but that database may have none any more.
 */
static void
free_unstarted(void)
{
	int64		now = clock_monotonic();

	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
	for (Runner *runner = runner_pool->runners; runner < POOL_END; runner++)
		if (pool_has_not_started(runner) && runner->since + START_TIME <= now)
			runner->state = RUNNER_NONE;
	LWLockRelease(&runner_pool->lock);
}

/*
 * There is no room for a new runner of a role.  Have an idle one of another
 * role end, or those beyond this share; of this database, if only that has no
 * room.  Returns whether there will be room at once.
 */
static bool
make_room(Oid role, int share, bool is_local)
{
	runner_pool->share = share;
	runner_pool->waiting_at = clock_monotonic();
	for (Runner *runner = runner_pool->runners; runner < POOL_END; runner++)
	{
		if (!pool_is_process(runner) ||
			pool_is_of_role(runner, MyDatabaseId, role) ||
			(is_local && runner->database != MyDatabaseId))
			continue;
		if (runner->state == RUNNER_IDLE)
		{
			pool_ask_to_leave(runner);
			return true;
		}

		/* One that is starting, or was called, runs a job first. */
		if (runner->state == RUNNER_BUSY && pool_is_beyond_share(runner))
			runner->has_to_share = true;
	}
	return false;
}

/* Start a runner for a role.  Returns false if there is no process for it. */
static bool
start_runner(Oid role, bool is_spare, const char *name)
{
	Runner	   *runner = runner_pool->runners;
	BackgroundWorker worker;

	/* Find an entry that is not in use. */
	while (runner < POOL_END && runner->state != RUNNER_NONE)
		runner++;
	if (runner == POOL_END)
		return false;
	pool_init_entry(runner, false, role);
	runner->is_spare = is_spare;
	background_describe(&worker, "queue runner", "queue_runner_main");
	strlcpy(worker.bgw_name, name, BGW_MAXLEN);
	worker.bgw_main_arg =
		UInt64GetDatum((uint64) runner->generation * RUNNERS_MAX +
					   (runner - runner_pool->runners));
	if (RegisterDynamicBackgroundWorker(&worker, NULL))
		return true;
	runner->state = RUNNER_NONE;
	no_process = true;

	/*
	 * There is no spare runner either, so all others end, each after a job,
	 * and the roles take turns in the processes that there are.
	 */
	if (pool_count_of_role(MyDatabaseId, role) == 0)
		(void) make_room(role, 0, false);
	return false;
}

/*
 * Start a runner for a role that wants one, or see to it that there will be
 * room for it.  Returns whether one was started.
 */
static bool
start_or_make_room(Oid role, const char *name)
{
	int			nrunners = pool_count_of_role(MyDatabaseId, role);
	Runner	   *spare = NULL;
	bool		is_local;

	for (Runner *runner = runner_pool->runners; runner < POOL_END; runner++)
		if (pool_is_process(runner) && runner->is_spare &&
			runner->database == MyDatabaseId)
			spare = runner;

	/*
	 * The spare runner takes the room that has come free, so that there are
	 * not more processes than the settings allow for longer than necessary.
	 */
	if (spare != NULL && !pool_is_full(POOL_END, &is_local))
	{
		spare->is_spare = false;
		spare = NULL;
	}
	if (!pool_is_full(POOL_END, &is_local))
	{
		/* Leave the room to a role that waits, perhaps in another database. */
		if (nrunners > 0 && pool_has_waiting_role() &&
			nrunners >= runner_pool->share)
			return false;
		return start_runner(role, false, name);
	}
	if (make_room(role, nrunners + 1, is_local) || nrunners > 0)
		return false;

	/* The spare runner is for roles that have none. */
	if (spare == NULL)
		return start_runner(role, true, name);
	if (spare->state == RUNNER_BUSY)
		pool_ask_to_leave(spare);
	return false;
}

/* Serve a role that wants a new runner.  Returns whether one was started. */
static bool
serve_role(Oid role)
{
	static int64 complained_at = 0;
	char	   *role_name;
	char	   *name;
	bool		result;

	/* With a setting of 0, no background process is to run jobs. */
	if (setting_runners == 0 || setting_max_runners == 0)
		return false;

	/* We must not read the catalog while we hold the lock. */
	role_name = GetUserNameFromId(role, true);
	name = psprintf("queue runner for database %s, role %s",
					get_database_name(MyDatabaseId),
					role_name == NULL ? "?" : role_name);
	no_process = false;
	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
	result = start_or_make_room(role, name);
	LWLockRelease(&runner_pool->lock);
	pfree(name);
	if (result)
		last_role = role;
	else if (no_process && clock_has_passed(&complained_at, COMPLAIN_INTERVAL))
		ereport(LOG,
				(errmsg("no background worker can be started to run jobs"),
				 errdetail("They wait until one can be started, or until job_run is called."),
				 errhint("Raise \"max_worker_processes\".")));
	return result;
}

/*
 * Call or start runners for these handlers, whose queues may be ready.  With
 * "has_more" there are others, to be passed at once.
 */
void
runner_dispatch(HandlerSummary *const *handlers, int n, bool has_more)
{
	Oid			next = InvalidOid;	/* role to get a new runner */
	int			fewest = 0;		/* runners that it has */
	bool		was_started = false;

	free_unstarted();
	nchecks = 0;
	recheck_due = PG_INT64_MAX;
	memset(counted, false, sizeof(counted));
	for (int i = 0; i < n; i++)
	{
		Oid			role = handlers[i]->role;
		int			nrunners;

		/* Urgent work comes before the others. */
		if (nchecks == CHECKS_AT_ONCE)
		{
			has_more = true;
			break;
		}

		/* A runner serves all queues of its role. */
		if (role == next || !wants_new_runner(handlers[i], &nrunners))
			continue;

		/* Of roles that have as many, it is the turn of that after the last. */
		if (!OidIsValid(next) || nrunners < fewest ||
			(nrunners == fewest &&
			 role - last_role - 1 < next - last_role - 1))
		{
			next = role;
			fewest = nrunners;
		}
	}
	if (OidIsValid(next))
		was_started = serve_role(next);

	/* Before the last handlers were passed, some may not have been checked. */
	if (!has_more)
		forget_checked();
	if (has_more || was_started)
		dispatch_due = 0;
	else
		dispatch_due = Min(recheck_due, OidIsValid(next) ?
						   clock_monotonic() + ROOM_INTERVAL : PG_INT64_MAX);
}

/* --- What the worker does for runners while they work, and after them --- */

/* Returns whether the runner works on a message. */
static bool
is_working(const Runner *runner)
{
	return runner->state == RUNNER_BUSY && runner->message_id != 0;
}

/*
 * Returns when a runner of this database needs the worker, or
 * runner_dispatch() is to be called again.
 */
TimestampTz
runner_watch_next_due(void)
{
	TimestampTz due = DT_NOEND;
	int64		due_monotonic = dispatch_due;

	shmem_lock(&runner_pool->lock, LW_SHARED);
	for (Runner *runner = runner_pool->runners; runner < POOL_END; runner++)
	{
		if (runner->database != MyDatabaseId)
			continue;
		if (runner->state == RUNNER_GONE || is_working(runner))
			due = Min(due, runner->renew_at);

		/* A session is not terminated, see runner_watch_take_due(). */
		if (is_working(runner) && !runner->is_session)
			due_monotonic = Min(due_monotonic, runner->end_at);
		if (pool_has_not_started(runner))
			due_monotonic = Min(due_monotonic, runner->since + START_TIME);

		/* One that is connecting may fail, and cannot wake us then. */
		else if (runner->state == RUNNER_STARTING)
			due_monotonic = Min(due_monotonic,
								clock_monotonic() + RETRY_AFTER);
	}
	LWLockRelease(&runner_pool->lock);
	if (due_monotonic != PG_INT64_MAX)
		due = Min(due, GetCurrentTimestamp() +
				  Max(due_monotonic - clock_monotonic(), 0));
	return due;
}

/*
 * Copy the entry of a runner whose claim is to be renewed or released.
 * Returns false if there is none.  Also terminates processes that are
 * overdue.
 */
bool
runner_watch_take_due(Runner *due)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		found = false;

	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
	for (Runner *runner = runner_pool->runners;
		 runner < POOL_END && !found; runner++)
	{
		if (runner->database != MyDatabaseId)
			continue;
		if (!(runner->state == RUNNER_GONE || is_working(runner)))
			continue;

		/* A session belongs to a user, so only its statement is canceled. */
		if (is_working(runner) && !runner->is_session &&
			runner->end_at <= clock_monotonic())
		{
			kill(runner->pid, SIGTERM);

			/* The process may not check for interrupts for a while. */
			runner->end_at = clock_monotonic() + TERMINATE_AGAIN;
		}
		if (runner->renew_at > now)
			continue;
		runner->renew_at = now + RETRY_AFTER;

		/* What is given back is work for another runner. */
		if (is_working(runner))
			runner->has_more = true;
		*due = *runner;
		found = true;
	}
	LWLockRelease(&runner_pool->lock);
	return found;
}

/*
 * The claim of a runner that is gone was released, or that of another one was
 * renewed from the time on when runner_watch_take_due() has found it.
 */
void
runner_watch_done(const Runner *done)
{
	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
	for (Runner *runner = runner_pool->runners; runner < POOL_END; runner++)
	{
		/* Skip all but the entry that was found, with the same claim. */
		if (runner->state != done->state ||
			runner->database != done->database ||
			runner->generation != done->generation ||
			runner->claim.token != done->claim.token)
			continue;
		if (runner->state == RUNNER_GONE)
			runner->state = RUNNER_NONE;

		/*
		 * If the runner works on another message by now, that was not
		 * renewed, and stays due after RETRY_AFTER.
		 */
		else if (runner->message_id == done->message_id)
			runner->renew_at = done->renew_at - RETRY_AFTER +
				runner->ttl * USECS_PER_SEC / RENEWALS_PER_TTL;
	}
	LWLockRelease(&runner_pool->lock);
}

/*
 * Returns whether a runner of this database has left a claim behind that can
 * be released now, or may do so.
 */
bool
runner_watch_is_pending(void)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		result = false;

	shmem_lock(&runner_pool->lock, LW_SHARED);
	for (Runner *runner = runner_pool->runners; runner < POOL_END; runner++)
		result |= runner->database == MyDatabaseId &&
			(runner->state == RUNNER_BUSY ||
			 (runner->state == RUNNER_GONE && runner->renew_at <= now));
	LWLockRelease(&runner_pool->lock);
	return result;
}
