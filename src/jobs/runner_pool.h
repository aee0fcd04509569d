/*-------------------------------------------------------------------------
 *
 * runner_pool.h
 *	  The processes and sessions that run jobs, in shared memory.
 *
 * src/jobs/runner_pool.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_RUNNER_POOL_H
#define QUEUE_RUNNER_POOL_H

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/lwlock.h"

#include "shmem/shmem.h"
#include "storage/claim_id.h"
#include "util/limits.h"

typedef enum RunnerState
{
	RUNNER_NONE,				/* the entry is free */
	RUNNER_STARTING,			/* the process was registered */
	RUNNER_IDLE,				/* it sleeps until it is called */
	RUNNER_CALLED,				/* it was idle, and its latch was set */
	RUNNER_BUSY,				/* it runs jobs */
	RUNNER_GONE					/* it has ended and left a claim behind */
} RunnerState;

/*
 * A runner: a background process, or a session in job_run.
 *
 * The lock of the pool protects all fields.  Without it a runner may read
 * those of its own entry that only it changes, must_leave and has_to_share.
 */
typedef struct Runner
{
	RunnerState state;
	uint32		generation;		/* of the entry: increases with each use */
	int64		since;			/* it has been in this state; monotonic */

	/* the process */
	bool		is_session;		/* it is in job_run */
	Oid			database;
	Oid			role;			/* whose handlers it runs */
	int			pid;			/* 0 if it has not started yet, or has ended */
	int			proc;			/* its number in ProcGlobal->allProcs */
	bool		is_spare;		/* it is not counted by queue.runners and
								 * queue.max_runners, see worker_jobs.c */

	/* requests to end between two jobs */
	bool		must_leave;
	bool		has_to_share;	/* ... if its role is beyond its share then */

	/* what it works on */
	int32		queue_id;		/* 0 if nothing */
	bool		has_more;		/* the queue has work for another runner */
	ClaimId		claim;
	int			ttl;			/* of the claim, in seconds */
	TimestampTz renew_at;		/* when the worker is to renew the claim or,
								 * of one that is gone, to release it */
	int64		message_id;		/* of the job that it runs; 0 if none yet */
	bool		can_cancel;		/* its handler may still run */
	bool		was_canceled;	/* the message was canceled, and a signal sent */
	TimestampTz job_since;		/* it runs since then */
	int64		done;			/* what its handler has reported last, of */
	int64		total;			/* so many; negative if it has not */
	char		note[PROGRESS_NOTE_LENGTH + 1];
	int64		end_at;			/* when the process is to be terminated, if it
								 * still runs that; monotonic */
} Runner;

typedef struct RunnerPool
{
	LWLock		lock;
	pg_atomic_uint32 ncancels;	/* messages of claims that were canceled */
	int64		waiting_at;		/* a role had no room for a runner then;
								 * monotonic */
	int			share;			/* roles that have more runners have to share */
	Runner		runners[RUNNERS_MAX];
} RunnerPool;

/* How often a worker looks whether there is room for the role that waits */
#define ROOM_INTERVAL		USECS_PER_SEC

/* How often the worker renews a claim in the time for which it was made */
#define RENEWALS_PER_TTL	2

extern RunnerPool *runner_pool;

#define POOL_END			(runner_pool->runners + RUNNERS_MAX)

extern const SharedArea runner_area;

/* Returns whether the entry is that of a background process. */
static inline bool
pool_is_process(const Runner *runner)
{
	return runner->state != RUNNER_NONE && runner->state != RUNNER_GONE &&
		!runner->is_session;
}

/* Returns whether the entry is that of a process for this role. */
static inline bool
pool_is_of_role(const Runner *runner, Oid database, Oid role)
{
	return pool_is_process(runner) && runner->database == database &&
		runner->role == role;
}

/*
 * Returns whether the entry is that of a process that was registered and has
 * not started, or that could not connect (leave_at_exit).
 */
static inline bool
pool_has_not_started(const Runner *runner)
{
	return runner->state == RUNNER_STARTING && runner->pid == 0;
}

/* any process */
extern void pool_vacate(Oid database, bool terminate);
extern void pool_cancel_message(int32 queue_id, int64 id);
extern Runner *pool_list(int *n, bool only_jobs);

/* for worker_jobs.c; the lock is held */
extern bool pool_is_full(const Runner *end, bool *is_local);
extern int	pool_count_of_role(Oid database, Oid role);
extern bool pool_is_beyond_share(const Runner *runner);
extern bool pool_has_waiting_role(void);
extern void pool_init_entry(Runner *runner, bool is_session, Oid role);
extern void pool_set_latch(const Runner *runner);
extern void pool_ask_to_leave(Runner *runner);

/* a runner's own entry; those but the first three have no effect without it */
extern bool pool_enter(uint64 ticket, Oid *database, Oid *role);
extern bool pool_enter_session(Oid role);
extern void pool_leave(void);
extern void pool_set_state(RunnerState state);
extern bool pool_must_leave(void);
extern bool pool_is_surplus(void);
extern void pool_set_claim(int32 queue_id, const ClaimId *claim, int ttl,
						   bool is_batch, bool has_more);
extern void pool_set_message(int64 id, int seconds);
extern void pool_set_progress(int64 done, int64 total, const char *note);
extern bool pool_has_canceled(void);
extern bool pool_end_cancel(void);
extern void pool_clear_claim(void);

#endif							/* QUEUE_RUNNER_POOL_H */
