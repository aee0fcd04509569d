/*-------------------------------------------------------------------------
 *
 * worker_internal.h
 *	  What the files of a database's worker share.
 *
 * src/bgworker/worker_internal.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_WORKER_INTERNAL_H
#define QUEUE_WORKER_INTERNAL_H

#include <signal.h>

#include "miscadmin.h"

#include "map/availability.h"
#include "queue/queue_table.h"
#include "shmem/database_state.h"

/* The worker process; no other process uses it. */
typedef struct Worker
{
	DatabaseState *state;		/* the entry of its database */
	Oid			extension;		/* OID of the table queue_data.queue */
	uint32		creations;		/* of the database, before the last step
								 * looked for the extension */
	bool		extension_gone; /* the extension does not exist any more, or
								 * is of an earlier version */
	bool		extension_locked;	/* the lock on it was not free */
	volatile sig_atomic_t shutdown_requested;	/* SIGTERM arrived */
	MemoryContext context;		/* for one step; reset after each */
	bool		is_scanning;	/* worker_due.c: all queues are visited */
	bool		is_counting;	/* worker_recount.c: all messages are counted */
} Worker;

extern Worker worker;

/* Returns whether the map belongs to the worker's database and extension. */
static inline bool
worker_owns_map(const AvailabilityMap *map)
{
	return map_database(map) == MyDatabaseId &&
		map_extension(map) == worker.extension;
}

/* What became of a step of a task */
typedef enum TaskResult
{
	TASK_MORE,					/* it is done, and there is another step */
	TASK_DONE,					/* it is done, and was the last one */
	TASK_FAILED					/* it was rolled back, and the error reported */
} TaskResult;

/* A step of a task; returns whether there is another one. */
typedef bool (*TaskStep) (void *arg);

/* How long a task is postponed after the first failure */
#define TASK_PAUSE_MIN	(USECS_PER_SEC / 10)

/* A task that is postponed after a failure */
typedef enum PostponedTask
{
	/* of one queue */
	POSTPONE_VISIT,
	/* of all queues: these are tried again soon, whatever the error was, */
	POSTPONE_NOTIFY,
	POSTPONE_JOBS,
	/* and these are not */
	POSTPONE_SCAN,
	POSTPONE_PREPARED,
	POSTPONE_RECOUNT,
	POSTPONE_BATCHES,
	POSTPONE_COUNTERS
} PostponedTask;

/* worker_task.c: steps, one transaction each, and what follows a failure */
extern void task_init(void);
extern void task_shutdown_handler(SIGNAL_ARGS);
extern bool task_must_end(void);
extern TaskResult task_step(TaskStep step, void *arg);
extern TaskResult task_step_or_postpone(PostponedTask task, int32 queue_id,
										TaskStep step, void *arg);
extern void task_next_transaction(void);
extern bool task_open_queue(int32 queue_id, bool *paused, Queue *queue);
extern void task_postpone(PostponedTask task, int32 queue_id, int64 max);
extern int64 task_postponed_for(PostponedTask task, int32 queue_id);

/* worker_notify.c: notifying listeners */
extern bool notify_is_needed(void);
extern void notify_listeners(void);

/* worker_jobs.c: runners of jobs */
extern void jobs_call_runners(void);
extern bool jobs_are_current(void);
extern TimestampTz jobs_next_due(void);
extern bool jobs_attend_runner(void);
extern bool jobs_have_gone_runners(void);

/* worker_expiry.c: messages whose lifetime is over */
typedef struct ExpiryParts ExpiryParts;

typedef struct ExpiryPass
{
	ExpiryParts *parts;			/* of the queue */
	bool		full;			/* it reads all of the queue */
	int64		began;			/* by the monotonic clock */
	TimestampTz now;			/* when it began */
	int			current;		/* index of the part that is read */
	int64		marker;			/* id of the last message that was read */
	TimestampTz next;			/* when the next one of that part expires */
} ExpiryPass;

extern void expiry_begin(ExpiryPass *pass, int32 queue_id,
						 uint64 incarnation);
extern bool expiry_step(const Queue *queue, ExpiryPass *pass);
extern TimestampTz expiry_end(ExpiryPass *pass);
extern void expiry_forget(int32 queue_id);

/* worker_due.c: what is due in queues */
extern void due_queues(void);

/* worker_recount.c: counting the depths of all queues anew */
extern void recount_round(void);
extern void recount_wake(void);

/* worker_counts.c: what transactions have counted */
extern void counts_take_prepared(void);
extern void counts_round(void);
extern void counts_finish(void);

/* worker_batches.c: batches that may have finished */
extern bool batches_are_pending(void);
extern void batches_do_urgent(void);
extern void batches_round(void);
extern TimestampTz batches_next_due(void);

/* worker.c */
extern void worker_do_urgent(bool call_runners);

#endif							/* QUEUE_WORKER_INTERNAL_H */
