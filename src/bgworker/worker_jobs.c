/*-------------------------------------------------------------------------
 *
 * worker_jobs.c
 *	  The worker's tasks for runners: the processes and sessions that run jobs.
 *
 * NOTES
 *	  1. Calling and starting runners.  Whenever messages become free, the
 *	  worker looks for queues that have a handler and may be ready.
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
 *	  2. Attending to runners.
 *	  - The claim of a message whose job takes long is renewed, and what is
 *		left of its batch is given back, so that others can run it.
 *	  - The claim that a runner has left behind, which was terminated or has
 *		failed, is released; the job that it was running counts as a failed
 *		attempt.
 *	  - A process that still runs a job some seconds after its statement was
 *		canceled is terminated.
 *
 *	  A runner is taken with take_due_runner(), which makes it due again after
 *	  RETRY_AFTER.  Only when the transaction has committed, end_due_runner()
 *	  records that it is done.
 *
 * src/bgworker/worker_jobs.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "bgworker/worker_internal.h"
#include "claim/claim_message.h"
#include "claim/claim_update.h"
#include "claim/ready.h"
#include "jobs/handler.h"
#include "jobs/handler_check.h"
#include "jobs/runner_pool.h"
#include "map/shmem_maps.h"
#include "queue/queue_table.h"
#include "shmem/shmem.h"
#include "util/background.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/errcodes.h"
#include "util/hash.h"
#include "util/settings.h"
#include "util/xact.h"

#define COMPLAIN_INTERVAL	(60 * USECS_PER_SEC)
#define START_TIME		(10 * USECS_PER_SEC)	/* in which a process that was
												 * registered has to start */
#define CHECK_INTERVAL	USECS_PER_SEC	/* between checks of a handler, and as
										 * much more for each one that wants a */
#define CHECK_SHARE		100		/* runner, in usec */
#define CHECKS_AT_ONCE	500		/* in one pass */
#define RETRY_AFTER			USECS_PER_SEC	/* see take_due_runner() */
#define TERMINATE_AGAIN		(10 * USECS_PER_SEC)

/* A runner that was terminated, and the queue of its job */
typedef struct GoneRunner
{
	const Runner *runner;
	const Queue *queue;
} GoneRunner;

static HandlerSummary *handlers = NULL; /* by queue */
static int	nhandlers = 0;
static HandlerVersion handlers_version;

/*
 * When to try again to get runners for queues that have none, by the
 * monotonic clock; PG_INT64_MAX if there are no such queues
 */
static int64 dispatch_due = PG_INT64_MAX;

static Oid	last_role = InvalidOid; /* for which a runner was started */

/* A pass: a call of call_runners_step() */
static bool counted[RUNNERS_MAX];	/* the entry counts for some queue */
static int	nwanted;			/* handlers that wanted a runner, so far */
static int	nchecks;			/* and those that were checked */
static bool no_process;			/* none could be started, for lack of
								 * max_worker_processes */
static int64 recheck_due;		/* when to check one again that cannot run;
								 * monotonic */

static void read_handlers(void);
static int	ready_handlers(HandlerSummary **ready);
static bool wants_runner(const HandlerSummary *handler);
static void check_handler(HandlerSummary *summary);
static bool find_or_call_runner(Oid role);
static bool wants_new_runner(HandlerSummary *handler, int *nrunners);
static bool make_room(Oid role, int share, bool is_local);
static bool start_runner(Oid role, bool is_spare, const char *name);
static bool start_or_make_room(Oid role, const char *name);
static bool serve_role(Oid role);
static bool call_runners_step(void *arg);
static bool is_working(const Runner *runner);
static Runner *take_due_runner(Runner *due);
static void end_due_runner(Runner *runner, const Runner *due);
static void retry_message_of_gone(void *arg);
static void attend_runner(const Runner *runner);
static bool attend_runner_step(void *arg);

/* --- Handlers --- */

/* Returns whether what the worker knows of handlers is up to date. */
bool
jobs_are_current(void)
{
	return handler_is_current(&handlers_version);
}

static void
read_handlers(void)
{
	HandlerVersion version;
	int			n;
	HandlerSummary *new = handler_summaries(&n, &version);
	HandlerSummary *kept =
	MemoryContextAllocHuge(TopMemoryContext,
						   Max(n, 1) * sizeof(HandlerSummary));

	/* What was logged of a handler is not logged again. */
	for (int i = 0; i < n && handlers != NULL; i++)
	{
		const HandlerSummary *old = queue_find_entry(handlers, nhandlers,
													 sizeof(HandlerSummary),
													 new[i].queue_id);

		if (old != NULL)
		{
			new[i].problem = old->problem;
			new[i].loaded_by = old->loaded_by;
		}
	}
	memcpy(kept, new, n * sizeof(HandlerSummary));
	if (handlers != NULL)
		pfree(handlers);
	handlers = kept;
	nhandlers = n;
	handlers_version = version;
}

/*
 * List the handlers whose queues may be ready, in any order.  Goes over the ready
 * queues rather than over all handlers, unless shared memory does not know
 * all ready queues.
 */
static int
ready_handlers(HandlerSummary **ready)
{
	uint64		generation;
	int			n = 0;

	if (ready_is_complete(&generation))
	{
		List	   *ids = ready_queue_ids();
		ListCell   *cell;

		foreach(cell, ids)
		{
			HandlerSummary *handler = queue_find_entry(handlers, nhandlers,
													   sizeof(HandlerSummary),
													   lfirst_int(cell));

			/* A queue may be listed twice: never exceed the array. */
			if (handler != NULL && n < nhandlers)
				ready[n++] = handler;
		}
		list_free(ids);
		if (ready_was_complete(generation))
			return n;

		/*
		 * A map was missing meanwhile, so one of the queues may be.
		 */
		n = 0;
	}
	for (int i = 0; i < nhandlers; i++)
		if (shmem_is_flagged(worker.extension, handlers[i].queue_id,
							 MAP_READY))
			ready[n++] = &handlers[i];
	return n;
}

/* --- Calling and starting runners --- */

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

/*
 * Check a handler, and log why it cannot run, unless that was logged.  Of a
 * queue that is paused, or gone, nothing changes before the handlers are read
 * again.
 */
static void
check_handler(HandlerSummary *summary)
{
	const char *problem;
	uint32		hash = 0;
	Handler		handler;

	nchecks++;
	summary->paused = !handler_read(summary->queue_id, &handler) ||
		handler.queue.paused;
	if (summary->paused)
	{
		summary->check_at = PG_INT64_MAX;
		return;
	}
	handler.load_has_ended = summary->loaded_by == handler.row.loaded_by;
	problem = handler_check(&handler);
	if (handler.load_has_ended)
		summary->loaded_by = handler.row.loaded_by;
	if (problem != NULL)
		hash = hash_bytes((const unsigned char *) problem, strlen(problem)) | 1;
	if (hash != 0 && hash != summary->problem)
		handler_report_stopped(&handler, LOG, problem);
	summary->problem = hash;

	/* So the checks take a small part of the time, however many there are. */
	summary->check_at = clock_monotonic() + CHECK_INTERVAL +
		nwanted * CHECK_SHARE;
}

/*
 * Find a runner of the role for a queue that needs one.  It is one that was
 * called or started, or is between two claims, and does not count for another
 * queue in this pass: it counts for this one, because it looks at all queues
 * of the role before it sleeps.  Otherwise call an idle one.  Returns false if
 * there is none.
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
				  runner->state == RUNNER_CALLED ||
				  (runner->state == RUNNER_BUSY && runner->queue_id == 0)) &&
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
wants_new_runner(HandlerSummary *handler, int *nrunners)
{
	bool		result;

	/* We must not read the catalog while we hold the lock. */
	shmem_lock(&runner_pool->lock, LW_SHARED);
	result = wants_runner(handler);
	LWLockRelease(&runner_pool->lock);
	if (!result)
		return false;
	nwanted++;
	if (handler->check_at <= clock_monotonic())
		check_handler(handler);
	if (handler->problem != 0)
		recheck_due = Min(recheck_due, handler->check_at);
	if (handler->paused || handler->problem != 0)
		return false;

	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);

	/* Meanwhile a runner may have begun to work on the queue. */
	result = wants_runner(handler) && !find_or_call_runner(handler->role);
	*nrunners = pool_count_of_role(MyDatabaseId, handler->role);
	LWLockRelease(&runner_pool->lock);
	return result;
}

/* --- Processes --- */

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
 * Read the handlers again if they have changed, and call or start runners for
 * the queues that may be ready.
 */
static bool
call_runners_step(void *arg)
{
	HandlerSummary **ready;
	int			n;
	Oid			next = InvalidOid;	/* role to get a new runner */
	int			fewest = 0;		/* runners that it has */
	bool		again = false;	/* at once */

	if (!jobs_are_current())
		read_handlers();
	ready = palloc_extended(nhandlers * sizeof(HandlerSummary *),
							MCXT_ALLOC_HUGE);

	/* Without handlers, nothing is due any more. */
	n = nhandlers == 0 ? 0 : ready_handlers(ready);

	/*
	 * Free the entries of processes that have not started.  The worker of
	 * their database would do so, but that database may have none any more.
	 */
	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
	for (Runner *runner = runner_pool->runners; runner < POOL_END; runner++)
		if (pool_has_not_started(runner) &&
			runner->since + START_TIME <= clock_monotonic())
			runner->state = RUNNER_NONE;
	LWLockRelease(&runner_pool->lock);
	nwanted = nchecks = 0;
	recheck_due = PG_INT64_MAX;
	memset(counted, false, sizeof(counted));
	for (int i = 0; i < n; i++)
	{
		Oid			role = ready[i]->role;
		int			nrunners;

		/* Urgent work comes before the others. */
		if (nchecks == CHECKS_AT_ONCE)
		{
			again = true;
			break;
		}

		/* A runner serves all queues of its role. */
		if (role == next || !wants_new_runner(ready[i], &nrunners))
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
		again |= serve_role(next);
	dispatch_due = again ? 0 :
		Min(recheck_due, OidIsValid(next) ?
			clock_monotonic() + ROOM_INTERVAL : PG_INT64_MAX);
	return false;
}

/* Call runners for queues that have jobs, if there may be any. */
void
jobs_call_runners(void)
{
	if ((nhandlers > 0 || !jobs_are_current() ||
		 jobs_next_due() <= GetCurrentTimestamp()) &&
		task_postponed_for(POSTPONE_JOBS, 0) == 0 && !task_must_end())
		(void) task_step_or_postpone(POSTPONE_JOBS, 0, call_runners_step,
									 NULL);
}

/* --- Runners that need the worker --- */

/* Returns whether the runner works on a message. */
static bool
is_working(const Runner *runner)
{
	return runner->state == RUNNER_BUSY && runner->message_id != 0;
}

/*
 * Returns when a runner of this database needs the worker, or a queue may get
 * one.
 */
TimestampTz
jobs_next_due(void)
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

		/* A session is not terminated, see take_due_runner(). */
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
 * Find a runner whose claim is to be renewed or released, and copy its entry.
 * Returns NULL if there is none.  Also terminates processes that are overdue.
 */
static Runner *
take_due_runner(Runner *due)
{
	TimestampTz now = GetCurrentTimestamp();
	Runner	   *found = NULL;

	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);
	for (Runner *runner = runner_pool->runners;
		 runner < POOL_END && found == NULL; runner++)
	{
		if (runner->database != MyDatabaseId ||
			!(runner->state == RUNNER_GONE || is_working(runner)))
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
		found = runner;
	}
	LWLockRelease(&runner_pool->lock);
	return found;
}

/*
 * The claim of a runner that is gone was released, or that of another one was
 * renewed from the time on when take_due_runner() has found it.
 */
static void
end_due_runner(Runner *runner, const Runner *due)
{
	shmem_lock(&runner_pool->lock, LW_EXCLUSIVE);

	/* The entry may be another runner's by now, or have another claim. */
	if (runner->state == due->state &&
		runner->generation == due->generation &&
		runner->claim.token == due->claim.token)
	{
		if (runner->state == RUNNER_GONE)
			runner->state = RUNNER_NONE;

		/*
		 * If the runner works on another message by now, that was not
		 * renewed, and stays due after RETRY_AFTER.
		 */
		else if (runner->message_id == due->message_id)
			runner->renew_at = due->renew_at - RETRY_AFTER +
				runner->ttl * USECS_PER_SEC / RENEWALS_PER_TTL;
	}
	LWLockRelease(&runner_pool->lock);
}

/* Called in a subtransaction: retry the job that a runner was running. */
static void
retry_message_of_gone(void *arg)
{
	const GoneRunner *gone = arg;
	RetryTerms	terms = {.error = "runner was terminated",.delay = -1,
	.for_job = true,.wait = LockWaitError};

	(void) claim_retry_message(gone->queue, gone->runner->message_id,
							   &gone->runner->claim, &terms);
}

/*
 * Renew the claim of a runner that runs a job; if the runner has ended, give
 * back what it had claimed.
 */
static void
attend_runner(const Runner *runner)
{
	bool		paused;
	bool		is_gone = runner->state == RUNNER_GONE;
	Queue		queue;

	/* The claim is gone with the queue. */
	if (!task_open_queue(runner->queue_id, &paused, &queue))
		return;
	if (is_gone && runner->message_id != 0)
	{
		GoneRunner	gone = {runner, &queue};
		ErrorData  *error = xact_try(retry_message_of_gone, &gone);

		/*
		 * The job may have been done just before it was terminated: then the
		 * message is not in the claim any more.
		 */
		if (error != NULL && error->sqlerrcode != ERRCODE_CLAIM_NOT_LIVE &&
			error->sqlerrcode != ERRCODE_MESSAGE_NOT_IN_CLAIM)
			ReThrowError(error);
	}
	claim_keep_only(&queue, &runner->claim, is_gone ? 0 : runner->message_id,
					runner->ttl);
}

/* Attend to one runner.  Returns false if none needs it. */
static bool
attend_runner_step(void *arg)
{
	Runner		due;
	Runner	   *runner = take_due_runner(&due);

	if (runner == NULL)
		return false;
	attend_runner(&due);

	/* If the commit fails, the runner is due again after a second. */
	task_next_transaction();
	end_due_runner(runner, &due);
	return true;
}

/* Attend to one runner, in a transaction.  Returns false if none needs it. */
bool
jobs_attend_runner(void)
{
	return jobs_next_due() <= GetCurrentTimestamp() &&
		task_step(attend_runner_step, NULL) == TASK_MORE;
}

/*
 * Returns whether a runner of this database has left a claim behind that can
 * be released now, or may do so.
 */
bool
jobs_have_gone_runners(void)
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
