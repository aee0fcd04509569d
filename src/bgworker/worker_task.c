/*-------------------------------------------------------------------------
 *
 * worker_task.c
 *	  How the worker runs a step of a task: in a transaction of its own.
 *
 * NOTES
 *	  A task is done in steps, each of which is a short transaction.  An error
 *	  ends the step and the task, is logged unless it is to be expected, and
 *	  leaves the worker running.
 *
 *	  A task that failed is postponed, for a time that doubles with each
 *	  failure that follows another one.
 *
 *	  Each step holds a lock on the extension, so that nothing that the step
 *	  uses can be dropped meanwhile.
 *
 * src/bgworker/worker_task.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "storage/latch.h"

#include "bgworker/worker_internal.h"
#include "catalog/relations.h"
#include "map/shmem_maps.h"
#include "queue/registry.h"
#include "shmem/batch_state.h"
#include "shmem/shmem.h"
#include "util/clock.h"
#include "util/hash.h"

#define PAUSE_LOCKED	(2 * USECS_PER_SEC) /* the longest, if a lock was not
											 * free or the step was canceled */
#define PAUSE_ERROR		(60 * USECS_PER_SEC)	/* after any other error */

/* A task that has failed */
typedef struct PostponedKey
{
	PostponedTask task;
	int32		queue_id;		/* or 0 for a task of all queues */
} PostponedKey;

typedef struct Postponed
{
	PostponedKey key;
	int64		pause;			/* microseconds */
	int64		until;			/* by the monotonic clock */
} Postponed;

static HTAB *postponed;
static volatile sig_atomic_t in_step = false;

/* Whether the last failure was a lock that was not free, or a cancel */
static bool was_locked_or_canceled;

static void lock_extension(void);
static char *report_step_error(void);

/* To be called once, by the worker. */
void
task_init(void)
{
	postponed = hash_create_blobs("postponed tasks", sizeof(PostponedKey),
								  sizeof(Postponed), TopMemoryContext);
	worker.context = AllocSetContextCreate(TopMemoryContext, "queue worker",
										   ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(worker.context);
}

/*
 * Handler of SIGTERM.  The step that runs is canceled rather than the process
 * terminated, so that the worker can finish what must not be lost.
 */
void
task_shutdown_handler(SIGNAL_ARGS)
{
	int			save_errno = errno;

	worker.shutdown_requested = true;
	if (in_step)
		InterruptPending = QueryCancelPending = true;
	SetLatch(MyLatch);
	errno = save_errno;
}

/* Returns whether the worker is to end. */
bool
task_must_end(void)
{
	return worker.extension_gone || worker.shutdown_requested ||
		worker.state->leave;
}

/*
 * Lock the extension until the transaction ends, so that it is not dropped.
 * Raises an error if it was, or is just now: DROP EXTENSION releases its lock
 * a moment after the commit that wakes the worker.
 */
static void
lock_extension(void)
{
	ExtensionHold hold;

	worker.creations = pg_atomic_read_u32(&worker.state->creations);
	pg_read_barrier();
	hold = catalog_hold_extension();
	if (hold == EXTENSION_LOCKED)
	{
		worker.extension_locked = true;
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("extension \"queue\" is locked")));
	}

	/* The worker ends, and ALTER EXTENSION UPDATE has one started. */
	if (hold == EXTENSION_OUTDATED)
		ereport(LOG,
				(errmsg("the background worker of database \"%s\" does not run before the extension \"queue\" is updated",
						get_database_name(MyDatabaseId)),
				 errhint("Run ALTER EXTENSION queue UPDATE in that database.")));
	worker.extension_gone = hold == EXTENSION_MISSING ||
		hold == EXTENSION_OUTDATED;
	if (worker.extension_gone)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"queue\" does not exist")));

	/*
	 * What is known belongs to other tables: this is the first step, or the
	 * extension was dropped and created again.
	 */
	if (worker.extension != catalog_queue_oid())
	{
		worker.extension = catalog_queue_oid();
		depth_lose();
		shmem_clear_maps(MyDatabaseId, worker.extension);
		batch_state_clear(MyDatabaseId);
		batch_state_probe_all();
		database_map_missing(worker.state, DT_NOBEGIN);
	}
}

/* Commit the transaction, if one is running, and begin the next one. */
void
task_next_transaction(void)
{
	if (IsTransactionState())
		CommitTransactionCommand();
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	MemoryContextSwitchTo(worker.context);
	lock_extension();
}

/*
 * Open a queue, see queue_try_open().  Returns false if it is gone; if it is
 * locked, the step fails.
 */
bool
task_open_queue(int32 queue_id, bool *paused, Queue *queue)
{
	bool		locked;

	if (queue_try_open(queue_id, queue, paused, &locked))
		return true;
	if (locked)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("queue %d is locked", queue_id)));
	return false;
}

/*
 * Log the error that has ended a step, unless it is to be expected.  Returns
 * its message, or NULL if it was not logged.
 */
static char *
report_step_error(void)
{
	ErrorData  *error;
	bool		was_locked;

	MemoryContextSwitchTo(worker.context);
	error = CopyErrorData();
	was_locked = error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE;
	was_locked_or_canceled = was_locked ||
		error->sqlerrcode == ERRCODE_QUERY_CANCELED;

	/*
	 * The worker waits for no lock that a user can hold, so it often finds
	 * one that is not free.  Errors while it is shutting down are of no
	 * interest.
	 */
	if (worker.extension_gone || was_locked || worker.shutdown_requested)
		return NULL;
	EmitErrorReport();
	return error->message;
}

/*
 * Run one step of a task in a transaction; NULL for a step that does nothing
 * but check that the extension exists.  An error ends no more than the task.
 * A cancel request ends the step too; between steps it has no effect.
 */
TaskResult
task_step(TaskStep step, void *arg)
{
	/* The error may be that of the commit. */
	volatile TaskResult result;

	worker.extension_gone = false;
	QueryCancelPending = false;
	in_step = true;

	/*
	 * From here on the signal handler cancels the step; it may have run
	 * before.
	 */
	if (worker.shutdown_requested)
		InterruptPending = QueryCancelPending = true;
	RESUME_CANCEL_INTERRUPTS();
	PG_TRY();
	{
		task_next_transaction();
		result = step != NULL && step(arg) ? TASK_MORE : TASK_DONE;
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		char	   *message;

		/* Prevent interrupts while cleaning up. */
		HOLD_INTERRUPTS();
		message = report_step_error();
		AbortCurrentTransaction();	/* releases LWLocks */

		/* Have queue_data.queue_workers show the error. */
		if (message != NULL)
		{
			shmem_lock(&databases->lock, LW_EXCLUSIVE);
			strlcpy(worker.state->last_error, message, WORKER_ERROR_LENGTH);
			worker.state->last_error_at = GetCurrentTimestamp();
			LWLockRelease(&databases->lock);
		}
		FlushErrorState();
		RESUME_INTERRUPTS();
		result = TASK_FAILED;
	}
	PG_END_TRY();
	HOLD_CANCEL_INTERRUPTS();
	in_step = false;
	if (!worker.shutdown_requested)
		QueryCancelPending = false;
	MemoryContextSwitchTo(worker.context);
	MemoryContextReset(worker.context);
	return result;
}

/*
 * Run one step of a task, as task_step() does, and postpone the task if that
 * fails.  The next failure counts as the first one again only after the last
 * step of the task was done.
 */
TaskResult
task_step_or_postpone(PostponedTask task, int32 queue_id, TaskStep step,
					  void *arg)
{
	PostponedKey key = {task, queue_id};
	TaskResult	result = task_step(step, arg);

	if (result == TASK_FAILED)
		task_postpone(task, queue_id, was_locked_or_canceled ||
					  task == POSTPONE_NOTIFY || task == POSTPONE_JOBS ?
					  PAUSE_LOCKED : PAUSE_ERROR);
	else if (result == TASK_DONE)
		(void) hash_search(postponed, &key, HASH_REMOVE, NULL);
	return result;
}

/*
 * Postpone a task that has failed, or another one for a moment.  The pause
 * doubles with each failure that follows another one, up to max.
 */
void
task_postpone(PostponedTask task, int32 queue_id, int64 max)
{
	PostponedKey key = {task, queue_id};
	bool		found;
	Postponed  *entry = hash_search(postponed, &key, HASH_ENTER, &found);

	entry->pause = found ? Min(2 * entry->pause, max) : TASK_PAUSE_MIN;
	entry->until = clock_monotonic() + entry->pause;
}

/*
 * Returns for how many microseconds a task is postponed, or 0 if it is not.
 */
int64
task_postponed_for(PostponedTask task, int32 queue_id)
{
	PostponedKey key = {task, queue_id};
	Postponed  *entry = hash_search(postponed, &key, HASH_FIND, NULL);

	return entry == NULL ? 0 : Max(entry->until - clock_monotonic(), 0);
}
