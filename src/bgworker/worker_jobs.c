/*-------------------------------------------------------------------------
 *
 * worker_jobs.c
 *	  The worker's tasks for runners: the processes and sessions that run jobs.
 *
 * NOTES
 *	  The worker starts or wakes runners for the queues that have a handler and
 *	  something to claim (runner_dispatch.c).  It renews the claim of a runner
 *	  whose handler takes long, and gives back what a runner that was
 *	  terminated had claimed; the job that it was running counts as a failed
 *	  attempt.
 *
 * src/bgworker/worker_jobs.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "bgworker/worker_internal.h"
#include "claim/claim_message.h"
#include "claim/claim_update.h"
#include "claim/ready.h"
#include "jobs/handler.h"
#include "jobs/runner_dispatch.h"
#include "jobs/runner_pool.h"
#include "map/shmem_maps.h"
#include "queue/queue_table.h"
#include "util/errcodes.h"
#include "util/limits.h"
#include "util/xact.h"

#define LOOKUPS_AT_ONCE	500		/* queues looked up in one step */

/* A runner that was terminated, and the queue of its job */
typedef struct GoneRunner
{
	const Runner *runner;
	const Queue *queue;
} GoneRunner;

static MemoryContext handler_context = NULL;	/* of the array below */
static HandlerSummary *handlers = NULL; /* by queue; NULL if they have to be
										 * read */
static int	nhandlers = 0;
static HandlerVersion handlers_version;

static int	compare_handlers(const void *a, const void *b);
static int	ready_handlers(HandlerSummary **ready);
static bool handler_is_paused(HandlerSummary *handler, int *lookups);
static bool call_runners_step(void *arg);
static void retry_message_of_gone(void *arg);
static void attend_runner(const Runner *runner);
static bool attend_runner_step(void *arg);

/* Returns whether what the worker knows of handlers is up to date. */
bool
jobs_are_current(void)
{
	return handler_is_current(&handlers_version);
}

static int
compare_handlers(const void *a, const void *b)
{
	return (*(HandlerSummary *const *) a)->queue_id <
		(*(HandlerSummary *const *) b)->queue_id ? -1 : 1;
}

/*
 * List the handlers whose queues may be ready, by queue.  Goes over the ready
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
		{
			qsort(ready, n, sizeof(HandlerSummary *), compare_handlers);
			return n;
		}

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

/*
 * Returns whether the queue is paused, or gone.  That is looked up once for
 * each version of the handlers.
 */
static bool
handler_is_paused(HandlerSummary *handler, int *lookups)
{
	if (!handler->knows_paused)
	{
		QueueSummary queue;

		(*lookups)++;
		handler->paused = !queue_local_summary(handler->queue_id, &queue) ||
			queue.paused;
		handler->knows_paused = true;
	}
	return handler->paused;
}

/*
 * Read the handlers again if they have changed, and have runners called for
 * the ready queues that are not paused.
 */
static bool
call_runners_step(void *arg)
{
	HandlerSummary **ready;
	int			n;
	int			kept = 0;
	int			lookups = 0;

	if (handlers == NULL || !jobs_are_current())
	{
		handlers = NULL;
		if (handler_context == NULL)
			handler_context = AllocSetContextCreate(TopMemoryContext,
													"handlers",
													ALLOCSET_DEFAULT_SIZES);
		MemoryContextReset(handler_context);
		MemoryContextSwitchTo(handler_context);
		handlers = handler_summaries(&nhandlers, &handlers_version);
		MemoryContextSwitchTo(worker.context);
	}
	ready = palloc_extended(nhandlers * sizeof(HandlerSummary *),
							MCXT_ALLOC_HUGE);
	n = nhandlers == 0 ? 0 : ready_handlers(ready);
	for (int i = 0; i < n && lookups < LOOKUPS_AT_ONCE; i++)
		if (!handler_is_paused(ready[i], &lookups))
			ready[kept++] = ready[i];

	/* Without handlers, nothing is due any more. */
	runner_dispatch(ready, kept, lookups == LOOKUPS_AT_ONCE);
	return false;
}

/* Call runners for queues that have jobs, if there may be any. */
void
jobs_call_runners(void)
{
	if ((handlers == NULL || nhandlers > 0 || !jobs_are_current() ||
		 runner_watch_next_due() <= GetCurrentTimestamp()) &&
		task_postponed_for(POSTPONE_JOBS, 0) == 0 && !task_must_end())
		(void) task_step_or_postpone(POSTPONE_JOBS, 0, call_runners_step,
									 NULL);
}

/* Called in a subtransaction: retry the job that a runner was running. */
static void
retry_message_of_gone(void *arg)
{
	const GoneRunner *gone = arg;

	claim_retry_job(gone->queue, gone->runner->message_id,
					&gone->runner->claim, "runner was terminated",
					LockWaitError);
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
	Runner		runner;

	if (!runner_watch_take_due(&runner))
		return false;
	attend_runner(&runner);

	/* If the commit fails, the runner is due again after a second. */
	task_next_transaction();
	runner_watch_done(&runner);
	return true;
}

/* Attend to one runner, in a transaction.  Returns false if none needs it. */
bool
jobs_attend_runner(void)
{
	return runner_watch_next_due() <= GetCurrentTimestamp() &&
		task_step(attend_runner_step, NULL) == TASK_MORE;
}
