/*-------------------------------------------------------------------------
 *
 * worker_history.c
 *	  The worker's part in the history: switching and truncating its tables.
 *
 * NOTES
 *	  A session that writes a row says so (database_history_written()), and the
 *	  worker looks a little later.  From then on finished_ring_step() says when
 *	  there is something to do: nothing, once all tables are empty.
 *
 * src/bgworker/worker_history.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "bgworker/worker_internal.h"
#include "queue/finished_ring.h"

static TimestampTz look_at = DT_NOBEGIN;	/* a new worker looks at once */
static TimestampTz step_again;	/* set by a step: when to look again */

static bool history_step(void *arg);

static bool
history_step(void *arg)
{
	return finished_ring_step(&step_again);
}

/* Returns when there is something to do again. */
TimestampTz
history_next_due(void)
{
	int64		postponed = task_postponed_for(POSTPONE_HISTORY, 0);

	return postponed > 0 ? GetCurrentTimestamp() + postponed : look_at;
}

/* Switch and truncate, if it is time. */
void
history_round(void)
{
	TimestampTz now = GetCurrentTimestamp();
	TaskResult	result = TASK_MORE;

	if (database_take_history_written())
		look_at = Min(look_at, now + HISTORY_PAUSE);
	if (now < look_at || task_postponed_for(POSTPONE_HISTORY, 0) > 0)
		return;
	while (result == TASK_MORE && !task_must_end())
	{
		result = task_step_or_postpone(POSTPONE_HISTORY, 0, history_step,
									   NULL);
		worker_do_urgent(false);

		/* What is due in queues comes first; the next round goes on. */
		if ((TimestampTz) pg_atomic_read_u64(&worker.state->next_due) <=
			GetCurrentTimestamp())
			break;
	}
	if (result == TASK_DONE)
		look_at = step_again;
}
