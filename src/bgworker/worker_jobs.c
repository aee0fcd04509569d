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

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "bgworker/worker_internal.h"
#include "claim/claim_message.h"
#include "claim/claim_update.h"
#include "claim/ready.h"
#include "jobs/handler.h"
#include "jobs/runner_dispatch.h"
#include "jobs/runner_pool.h"
#include "jobs/runner_watch.h"
#include "map/shmem_maps.h"
#include "queue/registry.h"
#include "util/errcodes.h"
#include "util/limits.h"
#include "util/settings.h"

#define LOOKUPS_AT_ONCE	500		/* queues looked up in one step */

static MemoryContext handler_context;	/* of the array below */
static HandlerSummary *handlers = NULL; /* by queue; NULL if they have to be
										 * read */
static int	nhandlers = 0;
static HandlerVersion handlers_version;

static bool have_jobs(void);
static int	compare_handlers(const void *a, const void *b);
static int	compare_queue(const void *queue_id, const void *handler);
static HandlerSummary *handler_of(int32 queue_id);
static int	ready_handlers(HandlerSummary **ready);
static bool is_paused(HandlerSummary *handler, int *lookups);
static void dispatch(void);
static bool call_step(void *arg);
static void retry_message_of_gone(const Queue *queue, const Runner *runner);
static void report_interruption(const Runner *runner, const char *name);
static void attend(const Runner *runner);
static bool attend_step(void *arg);

/* To be called once, by the worker. */
void
jobs_init(void)
{
	handler_context = AllocSetContextCreate(TopMemoryContext, "handlers",
											ALLOCSET_DEFAULT_SIZES);
}

/* Returns whether what the worker knows of handlers is up to date. */
bool
jobs_are_current(void)
{
	return handler_is_current(&handlers_version);
}

/* Returns whether there may be something to do for runners. */
static bool
have_jobs(void)
{
	return handlers == NULL || nhandlers > 0 || !jobs_are_current() ||
		runner_watch_next_due() <= GetCurrentTimestamp();
}

static int
compare_handlers(const void *a, const void *b)
{
	return (*(HandlerSummary *const *) a)->queue_id <
		(*(HandlerSummary *const *) b)->queue_id ? -1 : 1;
}

static int
compare_queue(const void *queue_id, const void *handler)
{
	int32		key = *(const int32 *) queue_id;
	int32		other = ((const HandlerSummary *) handler)->queue_id;

	return key < other ? -1 : key > other ? 1 : 0;
}

/* Returns the handler of a queue, or NULL if it has none. */
static HandlerSummary *
handler_of(int32 queue_id)
{
	return nhandlers == 0 ? NULL :
		bsearch(&queue_id, handlers, nhandlers, sizeof(HandlerSummary),
				compare_queue);
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
		int			nids;
		int32	   *ids = ready_queue_ids(&nids);

		for (int i = 0; i < nids; i++)
		{
			HandlerSummary *handler = handler_of(ids[i]);

			/* A queue may be listed twice: never exceed the array. */
			if (handler != NULL && n < nhandlers)
				ready[n++] = handler;
		}
		pfree(ids);
		if (ready_was_complete(generation))
		{
			qsort(ready, n, sizeof(HandlerSummary *), compare_handlers);
			return n;
		}

		/*
		 * A map was evicted meanwhile, so one of the queues may be missing.
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
is_paused(HandlerSummary *handler, int *lookups)
{
	if (!handler->knows_paused)
	{
		char		project[QUEUE_PROJECT_LENGTH + 1];
		char		name[QUEUE_NAME_LENGTH + 1];
		bool		paused;

		(*lookups)++;
		handler->paused = !queue_name_of(handler->queue_id, project, name,
										 &paused) || paused;
		handler->knows_paused = true;
	}
	return handler->paused;
}

/* Have runners called for the ready queues that are not paused. */
static void
dispatch(void)
{
	HandlerSummary **ready = palloc_extended(nhandlers * sizeof(HandlerSummary *),
											 MCXT_ALLOC_HUGE);
	int			n = ready_handlers(ready);
	int			kept = 0;
	int			lookups = 0;

	for (int i = 0; i < n && lookups < LOOKUPS_AT_ONCE; i++)
		if (!is_paused(ready[i], &lookups))
			ready[kept++] = ready[i];
	runner_dispatch(ready, kept, lookups == LOOKUPS_AT_ONCE);
}

/* Read the handlers again if they have changed, and call runners. */
static bool
call_step(void *arg)
{
	if (handlers == NULL || !jobs_are_current())
	{
		handlers = NULL;
		MemoryContextReset(handler_context);
		MemoryContextSwitchTo(handler_context);
		handlers = handler_summaries(&nhandlers, &handlers_version);
		MemoryContextSwitchTo(worker.context);
	}
	if (nhandlers > 0)
		dispatch();
	else
		runner_dispatch(NULL, 0, false);	/* nothing is due any more */
	return false;
}

/* Call runners for queues that have jobs. */
void
jobs_call_runners(void)
{
	if (have_jobs() && task_postponed_for(POSTPONE_JOBS, 0) == 0 &&
		!task_must_end())
		(void) task_step_or_postpone(POSTPONE_JOBS, 0, call_step, NULL);
}

/*
 * Retry the job that a runner was running when it was terminated.  The job may
 * have been done just before: then the message is not in the claim any more.
 */
static void
retry_message_of_gone(const Queue *queue, const Runner *runner)
{
	ResourceOwner owner = CurrentResourceOwner;
	TimestampTz due;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		(void) claim_retry_job(queue, runner->message_id, &runner->claim,
							   "runner was terminated", LockWaitError, &due);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		int			code = geterrcode();

		RollbackAndReleaseCurrentSubTransaction();
		CurrentResourceOwner = owner;
		if (code != ERRCODE_CLAIM_NOT_LIVE &&
			code != ERRCODE_MESSAGE_NOT_IN_CLAIM)
			PG_RE_THROW();
		FlushErrorState();
	}
	PG_END_TRY();
	CurrentResourceOwner = owner;
	MemoryContextSwitchTo(worker.context);
}

/* Log why a job has ended that no session has canceled. */
static void
report_interruption(const Runner *runner, const char *name)
{
	ereport(LOG,
			(errmsg("job %lld of queue \"%s\" was interrupted and given back",
					(long long) runner->message_id, name),
			 errdetail("Another role was waiting for a runner."),
			 errhint("Raise \"queue.runners\", \"queue.max_runners\" and \"max_worker_processes\", or have the handler take less time.")));
}

/*
 * Renew the claim of a runner that runs a job; if the runner has ended, give
 * back what it had claimed.
 */
static void
attend(const Runner *runner)
{
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		paused;
	bool		gone = runner->state == RUNNER_GONE;
	Queue		queue;

	/* The claim is gone with the queue. */
	if (!queue_name_of(runner->queue_id, project, name, &paused))
		return;
	task_lock_queue(runner->queue_id);
	settings_set_label("queue.project", project, true);
	if (!queue_open_local(name, QUEUE_CLAIM, &queue) ||
		queue.id != runner->queue_id)
		return;

	if (gone && runner->message_id != 0)
	{
		/* A job that was ended for another role is given back below. */
		if (runner->was_interrupted)
			report_interruption(runner, name);
		else
			retry_message_of_gone(&queue, runner);
	}
	claim_keep_only(&queue, &runner->claim, gone ? 0 : runner->message_id,
					runner->ttl, LockWaitError);
}

/* Attend to one runner.  Returns false if none needs it. */
static bool
attend_step(void *arg)
{
	Runner		runner;

	if (!runner_watch_take_due(&runner))
		return false;
	attend(&runner);

	/* If the commit fails, the runner is due again after a second. */
	task_next_transaction(NULL);
	if (runner.state == RUNNER_GONE)
		runner_watch_released(&runner);
	else
		runner_watch_renewed(&runner);
	return true;
}

/* Attend to one runner, in a transaction.  Returns false if none needs it. */
bool
jobs_attend_runner(void)
{
	return runner_watch_next_due() <= GetCurrentTimestamp() &&
		task_step(attend_step, NULL) == TASK_MORE;
}
