/*-------------------------------------------------------------------------
 *
 * database_state.h
 *	  The databases that have a worker, in shared memory.
 *
 * src/shmem/database_state.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DATABASE_STATE_H
#define QUEUE_DATABASE_STATE_H

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/lwlock.h"

#include "shmem/depth_state.h"
#include "shmem/segment_state.h"
#include "shmem/shmem.h"
#include "util/xact.h"

#define DATABASES_MAX			256
#define WORKER_ERROR_LENGTH		256
#define HISTORY_PAUSE			(2 * USECS_PER_SEC) /* from a row of the
													 * history to the worker's
													 * look */

/* What the worker of a database does */
typedef enum WorkerState
{
	WORKER_NONE,				/* the database does not have the extension */
	WORKER_WANTED,				/* the launcher has to start one */
	WORKER_STARTING,			/* the launcher has asked the postmaster */
	WORKER_IDLE,				/* it sleeps until something is due */
	WORKER_BUSY					/* it is at work */
} WorkerState;

/* What is counted of the worker's work; see queue_workers() */
typedef enum WorkerCounter
{
	COUNT_ROUNDS,				/* times that it looked for work */
	COUNT_EXPIRED_CLAIMS,		/* claims of messages that ran out */
	COUNT_DEAD_LETTERS,			/* messages moved to a dead letter queue */
	COUNT_REMOVED,				/* messages removed as expired */
	COUNT_NOTIFICATIONS,		/* notifications sent */
	COUNT_SWITCHES,				/* switches to the next segment */
	COUNT_TRUNCATED,			/* segments truncated */
	COUNT_MOVED,				/* messages moved to another segment */
	WORKER_COUNTERS				/* number of counters */
} WorkerCounter;

/* What a transaction has done, with consequences when it commits */
typedef enum DatabaseChange
{
	CHANGE_EXTENSION_CREATED = 1 << 0,	/* this database needs a worker */
	CHANGE_EXTENSION_DROPPED = 1 << 1,	/* its worker may have to exit */
	CHANGE_DATABASE_CREATED = 1 << 2,	/* the launcher looks at all databases */
	CHANGE_HANDLERS = 1 << 3	/* handlers, or which queues are paused */
} DatabaseChange;

/* What has happened since the worker has looked for it */
typedef enum DatabaseFlag
{
	DATABASE_NO_ROOM = 1 << 0,	/* a queue or a group has found no room */
	DATABASE_PREPARED = 1 << 1, /* a transaction was prepared, and its changes
								 * are not in the list of these (prepared.c) */
	DATABASE_HISTORY = 1 << 2	/* a row of the history was written */
} DatabaseFlag;

/*
 * A database in which the extension is, or was, in use.  The lock of the
 * array protects what is not atomic; "database" may also be read without it.
 */
typedef struct DatabaseState
{
	Oid			database;		/* InvalidOid: the entry is free */
	WorkerState state;
	int			pid;			/* of the worker, or 0 */
	int64		start_at;		/* start no worker before, in microseconds of
								 * the monotonic clock */
	pg_atomic_uint32 creations; /* how often the extension was created;
								 * changed under the lock */
	TimestampTz last_run;
	TimestampTz last_error_at;
	char		last_error[WORKER_ERROR_LENGTH];
	bool		leave;			/* the worker has to exit */
	pg_atomic_uint32 handler_changes;	/* how often handlers were changed,
										 * see HandlerVersion */
	pg_atomic_uint32 proc;		/* the worker's number in allProcs, plus 1, or
								 * 0 if there is none */
	pg_atomic_uint64 sleeps_until;	/* DT_NOBEGIN: the worker is awake, or has
									 * been woken */
	pg_atomic_uint64 next_due;	/* the first wake_at of all availability maps,
								 * or earlier */
	pg_atomic_uint64 maps_missing;	/* how often a queue that may have
									 * messages was found to have no map */
	pg_atomic_uint64 maps_restored; /* maps_missing when the worker last began
									 * to give each such queue a map */
	pg_atomic_uint64 full_visit_at; /* when the worker has to visit all
									 * queues, for those without a map */
	int			batches;		/* the first and the last slot in the list of */
	int			last_batch;		/* batches to be probed; protected by the lock
								 * of batch_state.c */
	pg_atomic_uint32 flags;		/* a bit for each DatabaseFlag */
	pg_atomic_uint64 batches_lost;	/* how often all batches had to be probed */
	pg_atomic_uint64 counters[WORKER_COUNTERS];
	DepthState	depths;			/* see there */
	RingState	ring;			/* see there */
} DatabaseState;

/* What is shared, for all databases */
typedef struct SharedDatabases
{
	LWLock		lock;			/* see DatabaseState */
	pg_atomic_uint32 launcher;	/* its number in allProcs, plus 1, or 0 */
	pg_atomic_uint32 are_new;	/* the launcher has to look for new ones */
	pg_atomic_uint64 launcher_asked_at; /* when one was registered last, by
										 * the monotonic clock, or 0 */
	DatabaseState states[DATABASES_MAX];
} SharedDatabases;

extern SharedDatabases *databases;

/* Set-up */
extern const SharedArea database_area;
extern XactList database_callbacks;

/* Entries of the array */
extern DatabaseState *database_of(Oid database);
extern DatabaseState *database_find(Oid database, bool make);
extern DatabaseState *database_mine(void);
extern DatabaseState *database_list(int *n);
extern void database_announce(void);
extern void database_join(void);
extern bool database_has_worker(void);

/* Waking the worker and the launcher */
extern void database_wake(TimestampTz due, bool arrivals);
extern void database_wake_worker(void);
extern void database_wake_launcher(void);
extern void database_start_launcher_by(void (*function) (void));
extern void database_set_flag(DatabaseState *state, DatabaseFlag flag);
extern bool database_take_flag(DatabaseFlag flag);
extern void database_history_written(void);
extern void database_set_latch(pg_atomic_uint32 *proc);
extern void database_map_missing(DatabaseState *state, TimestampTz due);
extern void database_vacate(Oid database);

/* What a transaction has done, effective when it commits */
extern void database_record_change(DatabaseChange change);
extern void database_count(WorkerCounter counter, uint64 n);
extern uint32 database_handler_changes(void);

#endif							/* QUEUE_DATABASE_STATE_H */
