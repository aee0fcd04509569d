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
 *	  this database) and queue.max_runners (of all databases) allow that.
 *
 *	  A handler that cannot run (handler_check.c) gets no runner.  It is checked
 *	  when it would get one, and again after a second, as long as its queue is
 *	  ready.  The reason is logged once.
 *
 *	  A role waits if it has something to run, and no runner.  If there is no
 *	  room for one, because runners of other roles take it all, the one that
 *	  has been busy longest is asked to end, after the job that it runs.  If
 *	  that takes longer than LEAVE_TIME, so is the next one.  Room that has
 *	  come free goes to the role that has waited longest.  So roles take turns
 *	  as long as handlers return.
 *
 *	  A handler may not return for an hour.  If no runner could be started for
 *	  SPARE_AFTER, the role that has waited longest gets a spare runner, which
 *	  does not count: each database may have one, beyond the settings.  Roles
 *	  take turns in it too, but there a job does not keep others waiting: a
 *	  spare runner that does not end when it is asked to is terminated, its
 *	  job given back, and its role gets no spare runner for SPARE_PAUSE.  So a
 *	  job may take as long as it likes in one of the queue.runners only; and
 *	  roles whose jobs are short pass those whose jobs are not.  When there is
 *	  room again, the spare runner takes it, and is an ordinary one.
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
#include "util/background.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/hash.h"
#include "util/settings.h"

#define COMPLAIN_INTERVAL	(60 * USECS_PER_SEC)
#define ROLE_TIME		USECS_PER_SEC	/* for a role before another one's
										 * runner takes its room */
#define LEAVE_TIME		(2 * USECS_PER_SEC) /* for a runner that was asked to
											 * end */
#define SPARE_AFTER		(3 * USECS_PER_SEC)
#define SPARE_PAUSE		(60 * USECS_PER_SEC)
#define CHECK_INTERVAL	USECS_PER_SEC	/* between checks of a handler, and as
										 * much more for each one that was */
#define CHECK_SHARE		100		/* checked, in usec */
#define CHECKS_AT_ONCE	500		/* in one pass */
#define FORGET_CHECK	(60 * USECS_PER_SEC)	/* after the last one */

/* A handler that was checked */
typedef struct CheckedHandler
{
	int32		queue_id;		/* hash key */
	uint32		problem;		/* hash of why it cannot run; 0 if it can */
	int64		until;			/* check again then; monotonic */
	TimestampTz loaded_by;		/* the load of this row has ended */
} CheckedHandler;

/* A role for which there was no room */
typedef struct CrowdedRole
{
	Oid			role;			/* hash key */
	uint64		pass;			/* the last runner_dispatch() that found so */
	int64		since;			/* when it began to wait; PG_INT64_MAX if it
								 * has a runner, and wants more */
	int64		not_before;		/* it gets no spare runner until then */
} CrowdedRole;

/*
 * When to try again to get runners for queues that have none, by the
 * monotonic clock; PG_INT64_MAX if there are no such queues
 */
static int64 dispatch_due = PG_INT64_MAX;

static HTAB *checked = NULL;	/* of CheckedHandler */
static HTAB *crowded = NULL;	/* of CrowdedRole */
static int64 last_start = 0;	/* when a runner was last started; monotonic */
static int32 last_started = 0;	/* and the last queue for which one was */

/* A pass: a call of runner_dispatch() */
static uint64 pass = 0;
static bool no_process;			/* none could be started, for lack of
								 * max_worker_processes */
static bool counted[RUNNERS_MAX];	/* the entry counts for some queue */
static int	nchecks;			/* of handlers */
static int64 recheck_due;		/* when to check one again that cannot run;
								 * monotonic */

static bool is_of_role(const Runner *runner, Oid role);
static bool wants_runner(const HandlerSummary *handler);
static void check_handler(CheckedHandler *entry);
static bool can_run(int32 queue_id);
static void forget_checked(void);
static bool find_or_call_runner(Oid role);
static bool has_runner(Oid role);
static Runner *reserve_entry(Oid role, bool is_spare);
static bool register_process(const Runner *runner, const char *name);
static bool start_runner(Oid role, const char *name, bool is_spare);
static bool is_better_to_end(const Runner *runner, const Runner *other);
static void make_room(void);
static char *process_name(Oid role);
static bool call_or_start_runner(const HandlerSummary *handler);
static CrowdedRole *crowded_role(Oid role, bool make);
static void forget_uncrowded(void);
static int	first_to_serve(HandlerSummary *const *handlers, int n);
static CrowdedRole *longest_waiting(void);
static Runner *find_spare(void);
static Runner *find_stuck(void);
static bool interrupt_runner(Runner *runner);
static void serve_longest_waiting(void);
static void complain_of_no_process(void);

/*
 * Returns whether the entry is that of a process for this role in this
 * database.
 */
static bool
is_of_role(const Runner *runner, Oid role)
{
	return pool_is_process(runner) && runner->database == MyDatabaseId &&
		runner->role == role;
}

/* Returns whether this queue, which may be ready, needs another runner. */
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

	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &runner_pool->runners[i];

		/* A runner that was asked to end may do so before it runs a job. */
		if (!is_of_role(runner, role) || runner->must_leave)
			continue;
		if (runner->state == RUNNER_IDLE && idle == NULL)
			idle = runner;
		else if (!counted[i] && (runner->state == RUNNER_STARTING ||
								 runner->state == RUNNER_CALLED))
		{
			counted[i] = true;
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

/* Returns whether there is a runner for this role. */
static bool
has_runner(Oid role)
{
	for (int i = 0; i < RUNNERS_MAX; i++)
		if (is_of_role(&runner_pool->runners[i], role))
			return true;
	return false;
}

/*
 * Returns an entry for a new runner, or NULL if the settings allow no more.
 */
static Runner *
reserve_entry(Oid role, bool is_spare)
{
	const Runner *end = runner_pool->runners + RUNNERS_MAX;
	int64		now = clock_monotonic();
	Runner	   *spare;
	Runner	   *unused = NULL;

	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &runner_pool->runners[i];

		/*
		 * Free the entry of a process that has not started.  Its database's
		 * worker would do so, but that database may have none any more.
		 */
		if (pool_has_not_started(runner) && runner->since + START_TIME < now)
			runner->state = RUNNER_NONE;
		if (runner->state == RUNNER_NONE)
			unused = runner;
	}

	/*
	 * The spare runner takes the room that has come free, so that there are
	 * not more processes than the settings allow for longer than necessary.
	 */
	spare = find_spare();
	if (spare != NULL && !pool_is_full(end))
		spare->is_spare = false;
	if (unused == NULL || (!is_spare && pool_is_full(end)))
		return NULL;
	pool_init_entry(unused, false, role);
	unused->is_spare = is_spare;
	return unused;
}

static bool
register_process(const Runner *runner, const char *name)
{
	BackgroundWorker worker;

	background_describe(&worker, "queue runner", "queue_runner_main");
	strlcpy(worker.bgw_name, name, BGW_MAXLEN);
	worker.bgw_main_arg =
		UInt64GetDatum((uint64) runner->generation * RUNNERS_MAX +
					   (runner - runner_pool->runners));
	return RegisterDynamicBackgroundWorker(&worker, NULL);
}

/*
 * Start a runner for a role.  Returns false if there is no room for one, or no
 * process.
 */
static bool
start_runner(Oid role, const char *name, bool is_spare)
{
	Runner	   *runner = reserve_entry(role, is_spare);

	if (runner == NULL)
		return false;

	/*
	 * If the server has no process left for one role, it has none for the
	 * others either.
	 */
	if (no_process || !register_process(runner, name))
	{
		no_process = true;
		runner->state = RUNNER_NONE;
		return false;
	}
	counted[runner - runner_pool->runners] = true;
	last_start = clock_monotonic();
	return true;
}

/*
 * Returns whether the first of two runners is the better one to ask to end.
 * An idle one ends at once; otherwise it is the turn of the one that has been
 * busy longer.
 */
static bool
is_better_to_end(const Runner *runner, const Runner *other)
{
	bool		is_idle = runner->state == RUNNER_IDLE;

	if (is_idle != (other->state == RUNNER_IDLE))
		return is_idle;
	return runner->since < other->since;
}

/*
 * There is no room for a runner of a role that has none at all.  Ask one of
 * another role to end: an idle one, or the one that has been busy longest.
 */
static void
make_room(void)
{
	int64		now = clock_monotonic();
	Runner	   *longest = NULL;

	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &runner_pool->runners[i];

		/* The end of a spare runner makes no room. */
		if (!pool_is_process(runner) || runner->is_spare)
			continue;

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
		if (longest == NULL || is_better_to_end(runner, longest))
			longest = runner;
	}
	if (longest != NULL)
		pool_ask_to_leave(longest);
}

/*
 * Returns the name of the process that is to run a role's jobs.  This reads
 * the catalog, so it must be called before the lock is taken.
 */
static char *
process_name(Oid role)
{
	char	   *role_name = GetUserNameFromId(role, true);

	return psprintf("queue runner for database %s, role %s",
					get_database_name(MyDatabaseId),
					role_name == NULL ? "?" : role_name);
}

/*
 * Call or start a runner for a queue that may be ready, if it needs one and
 * its handler can run.  If that is impossible, see to it that there will be
 * room for a runner, record that the role is crowded in this pass, and return
 * false.
 */
static bool
call_or_start_runner(const HandlerSummary *handler)
{
	char	   *name;
	bool		result;
	bool		has_any = false;
	CrowdedRole *entry;

	/* We must not read the catalog while we hold the lock. */
	LWLockAcquire(&runner_pool->lock, LW_SHARED);
	result = !wants_runner(handler);
	LWLockRelease(&runner_pool->lock);
	if (result || !can_run(handler->queue_id))
		return true;

	name = process_name(handler->role);
	result = true;
	LWLockAcquire(&runner_pool->lock, LW_EXCLUSIVE);
	if (wants_runner(handler) && !find_or_call_runner(handler->role))
	{
		result = start_runner(handler->role, name, false);
		if (result)
			last_started = handler->queue_id;
		else
		{
			has_any = has_runner(handler->role);
			if (!has_any)
				make_room();
		}
	}
	LWLockRelease(&runner_pool->lock);
	pfree(name);
	if (result)
		return true;
	entry = crowded_role(handler->role, true);
	entry->pass = pass;

	/* A role that has a runner does not wait, though it would like more. */
	if (has_any)
		entry->since = PG_INT64_MAX;
	else if (entry->since == PG_INT64_MAX)
		entry->since = clock_monotonic();
	return false;
}

/* --- Roles that wait --- */

/*
 * Returns what is known of a role for which there was no room, or NULL if
 * nothing is and "make" is not set.
 */
static CrowdedRole *
crowded_role(Oid role, bool make)
{
	bool		found;
	CrowdedRole *entry;

	if (crowded == NULL)
	{
		crowded = hash_create_blobs("roles without a runner", sizeof(Oid),
									sizeof(CrowdedRole), TopMemoryContext);
	}
	entry = hash_search(crowded, &role, make ? HASH_ENTER : HASH_FIND, &found);
	if (make && !found)
	{
		entry->pass = 0;
		entry->since = PG_INT64_MAX;
		entry->not_before = 0;
	}
	return entry;
}

/* Forget the roles that had what they wanted in this pass. */
static void
forget_uncrowded(void)
{
	int64		now = clock_monotonic();
	HASH_SEQ_STATUS status;
	CrowdedRole *entry;

	if (crowded == NULL)
		return;
	hash_seq_init(&status, crowded);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (entry->pass == pass)
			continue;
		entry->since = PG_INT64_MAX;

		/* Until then we must remember that it gets no spare runner. */
		if (entry->not_before <= now)
			(void) hash_search(crowded, &entry->role, HASH_REMOVE, NULL);
	}
}

/*
 * Returns the index of the handler to begin with: one of the role that has
 * waited longest.  Otherwise a role with many queues would get room for each
 * of them before a role with one.
 */
static int
first_to_serve(HandlerSummary *const *handlers, int n)
{
	int64		since = PG_INT64_MAX;
	int			first = 0;
	int			result;

	while (first < n && handlers[first]->queue_id <= last_started)
		first++;
	result = first;
	for (int i = 0; i < n; i++)
	{
		int			index = (first + i) % n;
		const CrowdedRole *entry =
		crowded_role(handlers[index]->role, false);

		if (entry != NULL && entry->since < since)
		{
			since = entry->since;
			result = index;
		}
	}
	return result;
}

/* Returns the role that is to get a spare runner now, or NULL if none is. */
static CrowdedRole *
longest_waiting(void)
{
	int64		now = clock_monotonic();
	CrowdedRole *result = NULL;
	HASH_SEQ_STATUS status;
	CrowdedRole *entry;

	/*
	 * As long as runners are started now and then, roles take turns in these.
	 */
	if (crowded == NULL || last_start > now - SPARE_AFTER)
		return NULL;
	hash_seq_init(&status, crowded);

	/*
	 * A role whose job was interrupted waits only from the time on at which
	 * it may have a spare runner again.
	 */
	while ((entry = hash_seq_search(&status)) != NULL)
		if (entry->pass == pass && entry->since <= now - SPARE_AFTER &&
			entry->not_before <= now &&
			(result == NULL || Max(entry->since, entry->not_before) <
			 Max(result->since, result->not_before)))
			result = entry;
	return result;
}

/* Returns the spare runner of this database, or NULL if there is none. */
static Runner *
find_spare(void)
{
	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &runner_pool->runners[i];

		if (pool_is_process(runner) && runner->is_spare &&
			runner->database == MyDatabaseId)
			return runner;
	}
	return NULL;
}

/*
 * Returns a runner of any database that was asked to end and does not, or
 * NULL if there is none: the one that has been busy for the shortest time, as
 * the least work is lost.
 */
static Runner *
find_stuck(void)
{
	int64		now = clock_monotonic();
	Runner	   *result = NULL;

	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &runner_pool->runners[i];

		if (pool_is_process(runner) && runner->must_leave &&
			runner->asked_at + LEAVE_TIME <= now &&
			!runner->was_interrupted &&
			(result == NULL || runner->since > result->since))
			result = runner;
	}
	return result;
}

/*
 * Have a runner end, in whatever job it is: ask it first.  Returns true if it
 * had to be terminated.  From then on it is not the spare runner any more, so
 * that there can be another one even if it does not end.
 */
static bool
interrupt_runner(Runner *runner)
{
	if (!runner->must_leave)
		pool_ask_to_leave(runner);
	if (runner->pid == 0 ||
		clock_monotonic() < runner->asked_at + LEAVE_TIME)
		return false;
	runner->is_spare = false;
	runner->was_interrupted = true;
	kill(runner->pid, SIGTERM);
	return true;
}

/*
 * If handlers of other roles keep all runners, see to it that the role that
 * has waited longest has a turn nevertheless.
 */
static void
serve_longest_waiting(void)
{
	const CrowdedRole *next = longest_waiting();
	Oid			interrupted = InvalidOid;
	Runner	   *other;
	char	   *name;

	/* With a setting of 0, no background process is to run jobs. */
	if (next == NULL || setting_runners == 0 || setting_max_runners == 0)
		return;
	name = process_name(next->role);
	LWLockAcquire(&runner_pool->lock, LW_EXCLUSIVE);
	other = find_spare();

	/*
	 * If the server has no process left for a spare runner, a runner that was
	 * asked to end and does not is terminated in its place.
	 */
	if (other == NULL && !start_runner(next->role, name, true))
		other = find_stuck();
	if (other != NULL && interrupt_runner(other))
		interrupted = other->role;
	LWLockRelease(&runner_pool->lock);
	pfree(name);
	if (OidIsValid(interrupted))
		crowded_role(interrupted, true)->not_before =
			clock_monotonic() + SPARE_PAUSE;
}

/* Log now and then that no process can be started. */
static void
complain_of_no_process(void)
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
 * ready.  They are in the order of their queues; first come those of the role
 * that has waited longest, or those after the one that the last runner was
 * started for, so that each gets a runner in turn if there is not enough
 * room.  With "has_more" there are others, to be passed at once.
 */
void
runner_dispatch(HandlerSummary *const *handlers, int n, bool has_more)
{
	int			first = first_to_serve(handlers, n);
	bool		all_served = true;

	pass++;
	no_process = false;
	nchecks = 0;
	recheck_due = PG_INT64_MAX;
	memset(counted, false, sizeof(counted));
	for (int i = 0; i < n; i++)
	{
		const HandlerSummary *handler = handlers[(first + i) % n];
		const CrowdedRole *entry = crowded_role(handler->role, false);

		/* Urgent work comes before the others. */
		if (nchecks == CHECKS_AT_ONCE)
		{
			has_more = true;
			break;
		}

		/*
		 * If there was no room for another queue of the role, there is none
		 * for this one.
		 */
		if ((entry == NULL || entry->pass != pass) &&
			!call_or_start_runner(handler))
			all_served = false;
	}
	if (no_process)
		complain_of_no_process();

	/*
	 * Before the last handlers were passed, we do not know which roles have
	 * what they want.
	 */
	if (!has_more)
	{
		forget_uncrowded();
		forget_checked();
	}
	serve_longest_waiting();
	dispatch_due = has_more ? 0 :
		Min(recheck_due,
			all_served ? PG_INT64_MAX : clock_monotonic() + ROLE_TIME);
}

/*
 * There is room for a runner, so have runner_dispatch() called in the next
 * round.
 */
void
runner_dispatch_again(void)
{
	dispatch_due = clock_monotonic();
}

/*
 * Returns when runner_dispatch() is to be called again, by the monotonic
 * clock, or PG_INT64_MAX.
 */
int64
runner_dispatch_due(void)
{
	return dispatch_due;
}
