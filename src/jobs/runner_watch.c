/*-------------------------------------------------------------------------
 *
 * runner_watch.c
 *	  What the worker does for runners while they work, and after them.
 *
 * NOTES
 *	  The worker of a database finds here which runner needs it:
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
 * src/jobs/runner_watch.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "jobs/runner_dispatch.h"
#include "jobs/runner_watch.h"
#include "shmem/shmem.h"
#include "util/clock.h"

#define RETRY_AFTER			USECS_PER_SEC
#define TERMINATE_AGAIN		(10 * USECS_PER_SEC)

static bool is_working(const Runner *runner);

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
	int64		due_monotonic = runner_dispatch_due();

	shmem_lock(&runner_pool->lock, LW_SHARED);
	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		const Runner *runner = &runner_pool->runners[i];

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
	for (int i = 0; i < RUNNERS_MAX && !found; i++)
	{
		Runner	   *runner = &runner_pool->runners[i];

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
	for (int i = 0; i < RUNNERS_MAX; i++)
	{
		Runner	   *runner = &runner_pool->runners[i];

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
	for (int i = 0; i < RUNNERS_MAX && !result; i++)
	{
		const Runner *runner = &runner_pool->runners[i];

		result = runner->database == MyDatabaseId &&
			(runner->state == RUNNER_BUSY ||
			 (runner->state == RUNNER_GONE && runner->renew_at <= now));
	}
	LWLockRelease(&runner_pool->lock);
	return result;
}
