/*-------------------------------------------------------------------------
 *
 * database_state.h
 *	  The databases that have a worker, as shared memory knows them.
 *
 * src/shmem/database_state.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DATABASE_STATE_H
#define QUEUE_DATABASE_STATE_H

#include "datatype/timestamp.h"
#include "port/atomics.h"

#include "shmem/segment_state.h"

/* What a database's worker does. */
typedef enum WorkerState
{
	WORKER_NONE,				/* there is no extension in the database */
	WORKER_WANTED,				/* the launcher shall start one */
	WORKER_STARTING,
	WORKER_IDLE,				/* it sleeps until something is due */
	WORKER_BUSY
} WorkerState;

typedef enum WorkerCounter
{
	COUNT_ROUNDS,
	COUNT_EXPIRED_CLAIMS,
	COUNT_DEAD_LETTERS,
	COUNT_REMOVED,
	COUNT_NOTIFICATIONS,
	COUNT_SWITCHES,
	COUNT_TRUNCATED,
	COUNT_MOVED,
	WORKER_COUNTERS
} WorkerCounter;

#define WORKER_ERROR_LENGTH		256

/*
 * A database in which the extension is, or was, in use.  The lock of the
 * array guards what is not atomic.
 */
typedef struct DatabaseState
{
	Oid			database;		/* InvalidOid: free */
	WorkerState state;
	int			pid;			/* of the worker; 0: none */
	int64		start_at;		/* no worker before then, by the monotonic
								 * clock */
	TimestampTz last_run;
	TimestampTz last_error_at;
	char		last_error[WORKER_ERROR_LENGTH];
	bool		leave;			/* the worker shall end */
	pg_atomic_uint32 handler_changes;	/* see HandlerVersion */
	pg_atomic_uint32 proc;		/* of the worker, plus 1; 0: none */
	pg_atomic_uint64 sleeps_until;	/* who has something earlier wakes it */
	pg_atomic_uint64 next_due;	/* the first wake_at of all availability maps, or
								 * earlier */
	pg_atomic_uint64 lost;		/* how often a availability map was lost that a queue
								 * had, or a queue came that has none */
	pg_atomic_uint64 known;		/* "lost", when the worker last began to give
								 * each queue a availability map */
	pg_atomic_uint64 look_at;	/* when the worker has to look at all queues,
								 * for those that have no availability map */
	pg_atomic_uint64 counters[WORKER_COUNTERS];
	RingState	ring;
} DatabaseState;

#define DATABASES_MAX	256

extern void database_announce(void);
extern void database_wake(TimestampTz due, bool arrivals);
extern void database_join(void);
extern DatabaseState *database_mine(void);
extern void database_wake_launcher(void);
extern void database_map_evicted(DatabaseState *state, TimestampTz due);
extern void database_wake_worker(void);
extern void database_handlers_changed(void);
extern uint32 database_handler_changes(void);
extern void database_vacate(Oid database);
extern void database_set_latch(DatabaseState *state);
extern DatabaseState *database_find(Oid database, bool make);
extern void database_count(WorkerCounter counter, uint64 n);
extern void database_end(bool commit);

#endif							/* QUEUE_DATABASE_STATE_H */
