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

#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "jobs/runner_dispatch.h"
#include "jobs/runner_pool.h"
#include "util/background.h"
#include "util/clock.h"
#include "util/settings.h"

#define COMPLAIN_INTERVAL	(60 * USECS_PER_SEC)
#define ROLE_TIME		USECS_PER_SEC	/* for a role before another one's
										 * runner takes its room */
#define LEAVE_TIME		(2 * USECS_PER_SEC) /* for a runner that was asked to
											 * end */
#define SPARE_AFTER		(3 * USECS_PER_SEC)
#define SPARE_PAUSE		(60 * USECS_PER_SEC)

/* What came of the request for a runner, from best to worst */
typedef enum CallResult
{
	CALL_DONE,					/* called or started, or none is needed */
	CALL_NO_ROOM,				/* queue.runners, queue.max_runners */
	CALL_NO_PROCESS				/* max_worker_processes */
} CallResult;

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
static int64 due = PG_INT64_MAX;

static HTAB *crowded = NULL;	/* of CrowdedRole */
static uint64 pass = 0;			/* calls of runner_dispatch() */
static bool no_process;			/* none could be started in this pass */
static int64 last_start = 0;	/* when a runner was last started; monotonic */

static bool is_of_role(const Runner *runner, Oid role);
static bool wants_runner(const HandlerSummary *handler);
static bool count_called(Oid role, bool *counted);
static bool call_idle(Oid role, bool *counted);
static bool has_runner(Oid role);
static Runner *reserve_entry(Oid role, bool is_spare);
static bool register_process(const Runner *runner, const char *name);
static CallResult start(Oid role, const char *name, bool is_spare,
						bool *counted);
static bool is_better_to_end(const Runner *runner, const Runner *other);
static void make_room(Oid role);
static char *process_name(Oid role);
static CallResult call_or_start(const HandlerSummary *handler, bool *counted,
								int32 *last_started);
static CrowdedRole *crowded_role(Oid role, bool make);
static void note_crowded(Oid role, bool has_any);
static void forget_uncrowded(void);
static int	first_to_serve(HandlerSummary *const *handlers, int n,
						   int32 last_started);
static CrowdedRole *longest_waiting(void);
static Runner *find_spare(void);
static Runner *find_stuck(void);
static bool interrupt_runner(Runner *runner);
static void serve_longest_waiting(bool *counted);
static void complain(void);

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

/*
 * Returns whether a runner of the role that was called or started, and is not
 * busy yet, does not count for another queue in this pass.  Then it counts
 * for this one, because it looks at all queues of the role.
 */
static bool
count_called(Oid role, bool *counted)
{
	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		const Runner *runner = &runner_pool->runners[i];

		/* A runner that was asked to end may do so before it runs a job. */
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

/* Call an idle runner of a role.  Returns false if there is none. */
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
	int64		now = clock_monotonic();
	Runner	   *spare;
	Runner	   *unused = NULL;
	int			all = 0;
	int			here = 0;

	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &runner_pool->runners[i];

		/*
		 * Free the entry of a process that has not started.  Its database's
		 * worker would do so, but that database may have none any more.
		 */
		if (runner->state == RUNNER_STARTING && runner->pid == 0 &&
			runner->since + START_TIME < now)
			runner->state = RUNNER_NONE;
		if (runner->state == RUNNER_NONE)
			unused = runner;
		else if (pool_is_process(runner) && !runner->is_spare)
		{
			all++;
			if (runner->database == MyDatabaseId)
				here++;
		}
	}

	/*
	 * The spare runner takes the room that has come free, so that there are
	 * not more processes than the settings allow for longer than necessary.
	 */
	spare = find_spare();
	if (spare != NULL && here < setting_runners && all < setting_max_runners)
	{
		spare->is_spare = false;
		all++;
		here++;
	}
	if (unused == NULL ||
		(!is_spare && (here >= setting_runners || all >= setting_max_runners)))
		return NULL;
	pool_init_entry(unused, RUNNER_STARTING, false, role);
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

/* Start a runner for a role, if there is room for one. */
static CallResult
start(Oid role, const char *name, bool is_spare, bool *counted)
{
	Runner	   *runner = reserve_entry(role, is_spare);

	if (runner == NULL)
		return CALL_NO_ROOM;

	/*
	 * If the server has no process left for one role, it has none for the
	 * others either.
	 */
	if (no_process || !register_process(runner, name))
	{
		no_process = true;
		runner->state = RUNNER_NONE;
		return CALL_NO_PROCESS;
	}
	counted[runner - runner_pool->runners] = true;
	last_start = clock_monotonic();
	return CALL_DONE;
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
 * There is no room for a runner of this role.  If it has none at all, ask one
 * of another role to end: an idle one, or the one that has been busy longest.
 */
static void
make_room(Oid role)
{
	int64		now = clock_monotonic();
	Runner	   *longest = NULL;

	if (has_runner(role))
		return;
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
 * Call or start a runner for a queue that may be ready, if it needs one.  If
 * there is no room for a runner, see to it that there will be.
 */
static CallResult
call_or_start(const HandlerSummary *handler, bool *counted,
			  int32 *last_started)
{
	CallResult	result = CALL_DONE;
	char	   *name = process_name(handler->role);
	bool		has_any = false;

	LWLockAcquire(&runner_pool->lock, LW_EXCLUSIVE);
	if (wants_runner(handler) && !count_called(handler->role, counted) &&
		!call_idle(handler->role, counted))
	{
		result = start(handler->role, name, false, counted);
		if (result == CALL_DONE)
			*last_started = handler->queue_id;
		else
		{
			make_room(handler->role);
			has_any = has_runner(handler->role);
		}
	}
	LWLockRelease(&runner_pool->lock);
	if (result != CALL_DONE)
		note_crowded(handler->role, has_any);
	pfree(name);
	return result;
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
		HASHCTL		info = {0};

		info.keysize = sizeof(Oid);
		info.entrysize = sizeof(CrowdedRole);
		info.hcxt = TopMemoryContext;
		crowded = hash_create("roles without a runner", 64, &info,
							  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
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

/* Record that there was no room for the role in this pass. */
static void
note_crowded(Oid role, bool has_any)
{
	CrowdedRole *entry = crowded_role(role, true);

	entry->pass = pass;

	/* A role that has a runner does not wait, though it would like more. */
	if (has_any)
		entry->since = PG_INT64_MAX;
	else if (entry->since == PG_INT64_MAX)
		entry->since = clock_monotonic();
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
first_to_serve(HandlerSummary *const *handlers, int n, int32 last_started)
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
serve_longest_waiting(bool *counted)
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
	if (other == NULL && start(next->role, name, true, counted) != CALL_DONE)
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
 * ready.  They are in the order of their queues; first come those of the role
 * that has waited longest, or those after the one that the last runner was
 * started for, so that each gets a runner in turn if there is not enough
 * room.  With "has_more" there are others, to be passed at once.
 */
void
runner_dispatch(HandlerSummary *const *handlers, int n, bool has_more)
{
	static int32 last_started = 0;
	bool		counted[RUNNERS_MAX] = {false};
	CallResult	worst = CALL_DONE;
	int			first = first_to_serve(handlers, n, last_started);

	pass++;
	no_process = false;
	for (int i = 0; i < n; i++)
	{
		const HandlerSummary *handler = handlers[(first + i) % n];
		const CrowdedRole *entry = crowded_role(handler->role, false);
		CallResult	result;

		/*
		 * There was no room for another queue of the role, so there is none
		 * for this one.
		 */
		if (entry != NULL && entry->pass == pass)
			continue;
		result = call_or_start(handler, counted, &last_started);
		worst = Max(worst, result);
	}

	/*
	 * Before the last handlers were passed, we do not know which roles have
	 * what they want.
	 */
	if (!has_more)
		forget_uncrowded();
	serve_longest_waiting(counted);
	if (worst == CALL_NO_PROCESS)
		complain();

	if (has_more)
		due = 0;
	else if (worst == CALL_DONE)
		due = PG_INT64_MAX;
	else
		due = clock_monotonic() + ROLE_TIME;
}

/*
 * There is room for a runner, so have runner_dispatch() called in the next
 * round.
 */
void
runner_dispatch_again(void)
{
	due = clock_monotonic();
}

/*
 * Returns when runner_dispatch() is to be called again, by the monotonic
 * clock, or PG_INT64_MAX.
 */
int64
runner_dispatch_due(void)
{
	return due;
}
