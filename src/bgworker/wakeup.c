/*-------------------------------------------------------------------------
 *
 * wakeup.c
 *	  Waiting for something to claim, or for the end of a message.
 *
 * NOTES
 *	  A session that waits sleeps on the condition variable of the queue's
 *	  availability map.  Each message that becomes free wakes one session.  The
 *	  session prepares to sleep before it probes, so that it misses nothing
 *	  that comes in between.
 *
 *	  While it sleeps it holds no snapshot, no transaction id and no
 *	  heavyweight lock, so it holds back neither vacuum nor DDL.  For that it
 *	  must end the transaction in which it was called, which only a procedure
 *	  can do that is called outside of a transaction block.
 *
 *	  A session whose client is gone ends when it is woken, and the wake-up
 *	  goes to another one.  A wake-up is lost if the session that it woke ends
 *	  later, before it claims.  So waiting sessions also probe every few
 *	  seconds without being woken.
 *
 *	  A queue that does not exist yet, or whose map finds no room, has nothing to
 *	  sleep on: then the session probes ten times a second.
 *
 *	  A session that waits for the end of a message sleeps on a condition
 *	  variable (shmem/await_state.c) in the same way.  The transaction that
 *	  finishes the message, and writes that into the history, wakes it.  Nothing
 *	  does when a message goes that leaves no row in the history, by a purge or
 *	  in a queue without _keep_finished, nor when the queue moves to another
 *	  server, nor at COMMIT PREPARED.  So it also looks from time to time: ten
 *	  times a second in a queue without history.
 *
 * src/bgworker/wakeup.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"

#include "bgworker/wakeup.h"
#include "claim/claim_scan.h"
#include "map/availability.h"
#include "map/availability_reserve.h"
#include "map/availability_visit.h"
#include "queue/finished.h"
#include "queue/registry.h"
#include "queue/shard.h"
#include "shmem/await_state.h"
#include "storage/message.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/hash.h"
#include "util/json.h"
#include "util/limits.h"
#include "util/settings.h"

#define POLL_MS			100		/* between probes if nothing wakes us */
#define PROBE_MS		5000	/* between probes without being woken */
#define DUE_MS			50		/* for the worker to do what is due */

static bool probe_queue(const char *name, int32 *id);
static bool wait_for_arrival(const char *name, int32 id, int64 deadline);
static Jsonb *form_await_result(const Finished *row);
static Jsonb *look_for_end(const char *name, int64 id, bool *has_history);

/*
 * Form the name of the channel on which listeners of a queue are notified.
 * It has a digest of the names of project and queue, because these may be
 * longer than a channel's name.
 */
void
wakeup_channel_name(const char *project, const char *name, char *channel)
{
	char	   *key = psprintf("%s\n%s", project, name);
	pg_uuid_t	digest;

	digest_text(key, &digest);
	strcpy(channel, "queue_");
	for (int i = 0; i < UUID_LEN; i++)
		sprintf(channel + 6 + 2 * i, "%02x", digest.data[i]);
	pfree(key);
}

/*
 * Returns whether the queue has something to claim.  *id is set to the
 * queue's id, or to 0 if there is no such queue.
 */
static bool
probe_queue(const char *name, int32 *id)
{
	QueueSummary current;
	Queue		queue;

	/* Privileges or the queue may have changed during the sleep. */
	AcceptInvalidationMessages();
	*id = 0;
	if (!queue_open_or_notice(name, QUEUE_READ, &queue))
		return false;
	*id = queue.id;

	/*
	 * queue_resume() wakes sessions before its invalidation message arrives,
	 * so we look at the row before we believe that the queue is paused.
	 */
	if (queue.paused &&
		(!queue_local_summary(queue.id, &current) || current.paused))
		return false;
	if (claim_scan_probe(&queue, NULL))
		return true;

	/*
	 * A change of the map of shards wakes sessions, too, before its
	 * invalidation message arrives.  This raises an error if the queue is on
	 * another server now.
	 */
	(void) shard_check_missing(name);
	return false;
}

/*
 * Returns the milliseconds from now until then, at least 1 and at most max.
 */
static long
ms_until(int64 then, int64 now, long max)
{
	return then <= now ? 1 : (long) Min((then - now) / 1000 + 1, max);
}

/*
 * End the session if its client is gone.  The server would otherwise notice
 * that only when it sends the answer, or, where it is set, after
 * client_connection_check_interval.
 */
static void
check_client(void)
{
	if (!compat_client_is_connected())
	{
		ClientConnectionLost = true;
		InterruptPending = true;
	}
	CHECK_FOR_INTERRUPTS();
}

/*
 * End the transaction of a procedure, and begin the next one.  The project may
 * be set for the transaction only, and still is the one to wait in.
 */
static void
commit_wait(void)
{
	char		project[QUEUE_PROJECT_LENGTH + 1];

	strlcpy(project, setting_project, sizeof(project));
	SPI_commit();
	(void) set_config_option("queue.project", project, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * Probe, and sleep until something may be free, something is due, or the
 * deadline by the monotonic clock.  The transaction holds nothing when this
 * begins.  Returns whether the probe found something.
 */
static bool
wait_for_arrival(const char *name, int32 id, int64 deadline)
{
	TimestampTz now = GetCurrentTimestamp();
	long		timeout = ms_until(deadline, clock_monotonic(), POLL_MS);
	AvailabilityMap *map = id != 0 ? availability_begin_wait(id) : NULL;
	TimestampTz wake_at;

	/*
	 * There is nothing to sleep on, so the caller probes ten times a second.
	 */
	if (map == NULL)
	{
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout, compat_wait_event("QueueWait"));
		ResetLatch(MyLatch);
		check_client();
		return false;
	}

	ConditionVariablePrepareToSleep(&map->arrival);
	if (probe_queue(name, &id))
	{
		availability_end_wait(false);
		return true;
	}

	/* A probe takes no transaction id, so a session that waits holds none. */
	Assert(!TransactionIdIsValid(GetTopTransactionIdIfAny()));
	Assert(availability_may_wait());
	wake_at = map_wake_at(map);
	timeout = ms_until(deadline, clock_monotonic(), PROBE_MS);

	/* If the worker is late with what is due, the caller's probe finds it. */
	if (wake_at < DT_NOEND - DUE_MS * 1000)
		timeout = Min(timeout, ms_until(Max(wake_at, now) + DUE_MS * 1000,
										now, PROBE_MS));
	ConditionVariableTimedSleep(&map->arrival, timeout,
								compat_wait_event("QueueWait"));

	/*
	 * If this raises an error, the wake-up is passed on, because the wait has
	 * not ended yet.
	 */
	check_client();
	availability_end_wait(false);
	return false;
}

/*
 * Wait until the queue has something to claim, at most so many milliseconds;
 * 0 probes once.  Returns whether there is something.
 *
 * With in_statement, the snapshot of the caller's statement is held meanwhile.
 * Else the caller must be a procedure that may end its transaction, unless
 * timeout_ms is 0.
 */
bool
wakeup_wait(const char *name, int timeout_ms, bool in_statement)
{
	int64		deadline = clock_monotonic() + (int64) timeout_ms * 1000;
	int32		id;
	bool		ready = probe_queue(name, &id);

	if (ready || timeout_ms == 0)
		return ready;
	if (!in_statement)
		(void) SPI_connect_ext(SPI_OPT_NONATOMIC);
	do
	{
		if (!in_statement)
			commit_wait();
		ready = wait_for_arrival(name, id, deadline) ||
			probe_queue(name, &id);
	} while (!ready && clock_monotonic() < deadline);
	if (!in_statement)
		SPI_finish();
	return ready;
}

/* --- The end of a message --- */

/* What queue_await returns; NULL: nothing is known of the message. */
static Jsonb *
form_await_result(const Finished *row)
{
	JsonbInState state = {0};

	compat_push_jsonb(&state, WJB_BEGIN_OBJECT, NULL);
	json_add_text(&state, "outcome",
				  row == NULL ? "unknown" : finished_outcomes[row->outcome]);
	if (row != NULL)
	{
		json_add_jsonb(&state, "result",
					   row->isnull[Anum_finished_result - 1] ? NULL :
					   DatumGetJsonbP(row->values[Anum_finished_result - 1]));
		if (row->isnull[Anum_finished_error - 1])
			json_add_jsonb(&state, "error", NULL);
		else
			json_add_text(&state, "error",
						  TextDatumGetCString(row->values[Anum_finished_error - 1]));
	}
	compat_push_jsonb(&state, WJB_END_OBJECT, NULL);
	return JsonbValueToJsonb(state.result);
}

/*
 * Returns what became of a message, or NULL while it is not finished.
 * *has_history is set to whether its end will be reported.
 */
static Jsonb *
look_for_end(const char *name, int64 id, bool *has_history)
{
	Queue		queue;
	Finished	row;
	bool		found;

	/* Privileges or the queue may have changed during the sleep. */
	AcceptInvalidationMessages();
	if (!finished_open(name, &queue))
		return form_await_result(NULL);
	*has_history = queue.keep_finished >= 0;
	found = finished_fetch(&queue, id, &row);
	if (!found && message_exists(queue.id, id))
		return NULL;

	/* It may have been finished since we looked for its row. */
	found = found || finished_fetch(&queue, id, &row);

	/* This raises an error if the queue is on another server now. */
	queue_check_left(name, found);
	return form_await_result(found ? &row : NULL);
}

/*
 * Wait until a message is finished, at most so many milliseconds; 0 looks
 * once.  Returns what became of it, or NULL.
 *
 * Unless timeout_ms is 0, the caller must be a procedure that may end its
 * transaction.
 */
Jsonb *
await_message(const char *name, int64 id, int timeout_ms)
{
	MemoryContext context = CurrentMemoryContext;
	int64		deadline = timeout_ms == AWAIT_FOREVER ? PG_INT64_MAX :
	clock_monotonic() + (int64) timeout_ms * 1000;
	ConditionVariable *condition = await_state_condition(id);
	bool		first = true;
	bool		has_history;
	Jsonb	   *result;
	int64		now;

	if (timeout_ms == 0)
		return look_for_end(name, id, &has_history);
	(void) SPI_connect_ext(SPI_OPT_NONATOMIC);

	/* An error cancels that. */
	ConditionVariablePrepareToSleep(condition);
	while ((result = look_for_end(name, id, &has_history)) == NULL &&
		   (now = clock_monotonic()) < deadline)
	{
		long		pause = ms_until(deadline, now,
									 has_history ? PROBE_MS : POLL_MS);

		if (first && !has_history)
			ereport(NOTICE,
					(errmsg("queue \"%s\" keeps no history, so outcomes remain unknown",
							name),
					 errhint("Say in its metadata for how many seconds to keep them: queue_update('%s', '{\"_keep_finished\": 86400}').",
							 name)));
		first = false;

		/* What the probe has used ends with this, above all its locks. */
		commit_wait();
		Assert(availability_may_wait());
		ConditionVariableTimedSleep(condition, pause,
									compat_wait_event("QueueAwait"));
		check_client();
	}
	ConditionVariableCancelSleep();
	MemoryContextSwitchTo(context);
	if (result != NULL)
		result = DatumGetJsonbPCopy(JsonbPGetDatum(result));
	SPI_finish();
	return result;
}
