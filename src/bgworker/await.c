/*-------------------------------------------------------------------------
 *
 * await.c
 *	  Waiting until a message is finished.
 *
 * NOTES
 *	  A session that waits for a message sleeps on a condition variable
 *	  (shmem/await_state.c).  The transaction that finishes the message, and
 *	  writes that into the history, wakes it.  Meanwhile the session holds
 *	  nothing, as in queue_wait (wakeup.c).
 *
 *	  Nothing wakes it when a message goes that leaves no row in the history,
 *	  by a purge or in a queue without _keep_finished, nor when the queue moves
 *	  to another server, nor at COMMIT PREPARED.  So it also looks from time to
 *	  time: ten times a second in a queue without history.
 *
 * src/bgworker/await.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/inval.h"

#include "bgworker/await.h"
#include "bgworker/wakeup.h"
#include "map/availability_reserve.h"
#include "queue/finished.h"
#include "queue/registry.h"
#include "shmem/await_state.h"
#include "storage/message.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/json.h"

#define POLL_MS			100		/* between looks if nothing wakes us */
#define LOOK_MS			5000	/* between looks without being woken */

static Jsonb *form_await_result(const Finished *row);
static Jsonb *look_for_end(const char *name, int64 id, bool *has_history);
static Jsonb *wait_for_end(const char *name, int64 id, int64 deadline,
						   MemoryContext context);

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
 * Look, and sleep, until the message is finished or the deadline by the
 * monotonic clock.  Returns what became of it, in this memory context, or
 * NULL.
 */
static Jsonb *
wait_for_end(const char *name, int64 id, int64 deadline, MemoryContext context)
{
	ConditionVariable *condition = await_state_condition(id);

	/* An error cancels that. */
	ConditionVariablePrepareToSleep(condition);
	for (bool first = true;; first = false)
	{
		bool		has_history = false;
		Jsonb	   *result = look_for_end(name, id, &has_history);
		int64		now = clock_monotonic();
		long		pause;

		if (result != NULL || now >= deadline)
		{
			MemoryContext old = MemoryContextSwitchTo(context);

			ConditionVariableCancelSleep();
			if (result != NULL)
				result = DatumGetJsonbPCopy(JsonbPGetDatum(result));
			MemoryContextSwitchTo(old);
			return result;
		}
		if (first && !has_history)
			ereport(NOTICE,
					(errmsg("queue \"%s\" keeps no history, so outcomes remain unknown",
							name),
					 errhint("Say in its metadata for how many seconds to keep them: queue_update('%s', '{\"_keep_finished\": 86400}').",
							 name)));
		pause = wakeup_ms_until(deadline, now,
								has_history ? LOOK_MS : POLL_MS);

		/* What the look has used ends with this, above all its locks. */
		wakeup_commit();
		Assert(availability_may_wait());
		ConditionVariableTimedSleep(condition, pause,
									compat_wait_event("QueueAwait"));
		wakeup_check_client();
	}
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
	bool		has_history;
	Jsonb	   *result;

	if (timeout_ms == 0)
		return look_for_end(name, id, &has_history);
	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect_ext failed");
	result = wait_for_end(name, id, timeout_ms == AWAIT_FOREVER ?
						  PG_INT64_MAX : clock_monotonic() +
						  (int64) timeout_ms * 1000, context);
	SPI_finish();
	return result;
}
