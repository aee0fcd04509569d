/*-------------------------------------------------------------------------
 *
 * job_timeout.c
 *	  The time limit of a handler's function.
 *
 * NOTES
 *	  When the time is up, the running statement is canceled, as by
 *	  statement_timeout.  A function may catch that error and go on, so it is
 *	  canceled again each second.  If that does not help either, the worker
 *	  terminates the process (runner_watch.c).
 *
 *	  The limit covers the deletion of the job's message too.
 *
 * src/jobs/job_timeout.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "jobs/job_timeout.h"

#define CANCEL_INTERVAL		1000	/* ms, between two cancels */

static TimeoutId timeout_id = MAX_TIMEOUTS; /* not registered yet */
static volatile sig_atomic_t has_fired = false;

static void cancel_statement(void);

/* Called in the signal handler of the timeout. */
static void
cancel_statement(void)
{
	has_fired = true;
	InterruptPending = true;
	QueryCancelPending = true;
	SetLatch(MyLatch);
}

void
job_timeout_start(int seconds)
{
	if (timeout_id == MAX_TIMEOUTS)
		timeout_id = RegisterTimeout(USER_TIMEOUT, cancel_statement);
	has_fired = false;
	enable_timeout_every(timeout_id,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													 seconds * 1000),
						 CANCEL_INTERVAL);
}

/* Stop the timeout.  If it has fired, this raises the error. */
void
job_timeout_end(void)
{
	disable_timeout(timeout_id, false);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Stop the timeout, if it is running, after the transaction has ended.  If it
 * has fired after an error or after the last check for interrupts, it must not
 * cancel what follows.
 */
void
job_timeout_reset(void)
{
	if (timeout_id == MAX_TIMEOUTS)
		return;
	disable_timeout(timeout_id, false);
	if (has_fired)
		QueryCancelPending = false;
}

/* Returns whether the timeout has fired since it was last started. */
bool
job_timeout_has_fired(void)
{
	return has_fired;
}
