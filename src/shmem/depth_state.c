/*-------------------------------------------------------------------------
 *
 * depth_state.c
 *	  What the sessions of a database share about the depths of its queues.
 *
 * NOTES
 *	  The depths of a queue are the numbers of its messages that are ready,
 *	  claimed and delayed.  Each transaction counts what it changes (counts.c),
 *	  and adds that to the availability map after its commit.  So the depths
 *	  are those of a moment at which all messages were counted, plus what was
 *	  added since.
 *
 *	  1. A recount.  The worker counts all messages with one snapshot
 *	  (recount.c) when it starts, and when something was lost, because messages
 *	  were restored, or there was no room for the map of a queue with messages.
 *	  Each recount begins a generation.  What the maps have of earlier ones is
 *	  worthless (AvailabilityMap.depth_generation), and until the recount is
 *	  done, the depths are not known.
 *
 *	  Where only the depths of queues without a map are not known
 *	  ("incomplete"), the maps of the others tell which have no messages, so
 *	  that they can be given back (shmem_maps.c).
 *
 *	  2. To a generation belong the transactions that its snapshot does not
 *	  show.  A transaction reads the generation before it commits, and again
 *	  when it has left the array of running ones.  If the generation has
 *	  changed meanwhile, it compares its id with the snapshot, which stays
 *	  published until the next recount of any database (depth_after_commit).
 *
 *	  A prepared transaction has written its changes to a table: the snapshot
 *	  shows these rows if it shows its messages (prepared_counts.c).
 *
 *	  What is added to a generation that has ended meanwhile gets into no map
 *	  of the new one; and its snapshot was taken later, so it shows the
 *	  transaction.
 *
 *	  3.  Claims that run out.  The worker counts a claimed message as ready
 *	  when its claim has ended, and marks the row, in place (claim_ends.c).  A
 *	  transaction that changes such a row may have read it before.  It compares
 *	  the end of the claim with the latest one that was counted, and reads the
 *	  mark once more if that may have been this one.  No clock is read, so
 *	  nothing depends on its being set.
 *
 * src/shmem/depth_state.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/snapmgr.h"

#include "shmem/database_state.h"
#include "shmem/depth_state.h"
#include "shmem/shmem.h"

#define XIDS_MAX	1024

/* The snapshot of the last recount of any database */
typedef struct SharedRecount
{
	LWLock		lock;			/* protects the rest */
	Oid			database;
	uint64		generation;		/* only grows, so that maps tell those of all
								 * databases apart */
	TransactionId xmin;
	TransactionId xmax;
	uint32		n;				/* ids of transactions that were running; if
								 * above XIDS_MAX, they are not listed */
	TransactionId xids[XIDS_MAX];
} SharedRecount;

static SharedRecount *shared = NULL;

/* In the process that counts in the worker's place: the entry that it is in */
static DepthState *entered = NULL;

/* The transaction that is about to commit */
static struct
{
	TransactionId xid;
	uint64		generation;
}			commit;

static void init_recount(void *area);
static void attach_recount(void *area);
static DepthState *my_depth_state(void);
static void depth_lose(DepthState *state);

/* --- Setting up --- */

static void
init_recount(void *area)
{
	SharedRecount *new = area;

	shmem_init_lock(&new->lock, LOCK_RECOUNT);
	new->database = InvalidOid;
	new->generation = 0;
}

static void
attach_recount(void *area)
{
	shared = area;
}

/* To be called once, when the library is loaded. */
void
depth_init(void)
{
	shmem_add_area(sizeof(SharedRecount), init_recount, attach_recount);
}

/* Initialize the state when shared memory is created. */
void
depth_state_init(DepthState *state)
{
	pg_atomic_init_u64(&state->generation, 0);
	pg_atomic_init_u64(&state->base, 0);
	pg_atomic_init_u32(&state->lost, 1);
	pg_atomic_init_u32(&state->incomplete, 0);
	pg_atomic_init_u64(&state->ends_counted, (uint64) DT_NOBEGIN);
	pg_atomic_init_u32(&state->counter, 0);
}

/* The entry is given to another database. */
void
depth_state_reset(DepthState *state)
{
	depth_lose(state);
	pg_atomic_write_u32(&state->counter, 0);
	pg_atomic_write_u64(&state->ends_counted, (uint64) DT_NOBEGIN);
}

/* Returns the state of this session's database; NULL if there is none. */
static DepthState *
my_depth_state(void)
{
	DatabaseState *database = database_mine();

	return database == NULL || database->database != MyDatabaseId ? NULL :
		&database->depths;
}

/* --- Whether the depths are known --- */

/*
 * Returns whether the depths in the maps are right, and sets *generation, for
 * depth_has_base() when the caller has read them.
 */
bool
depth_is_known(uint64 *generation)
{
	DepthState *state;

	if (RecoveryInProgress())
		return false;
	database_join();
	state = my_depth_state();

	/* Without a worker, the ends of claims are not counted. */
	if (state == NULL || database_mine()->pid == 0)
		return false;
	*generation = pg_atomic_read_u64(&state->generation);
	return depth_has_base(*generation);
}

/*
 * Returns whether the recount of this generation is the last one, and done,
 * and nothing was lost since.
 */
bool
depth_has_base(uint64 generation)
{
	DepthState *state = my_depth_state();

	pg_memory_barrier();
	return state != NULL &&
		pg_atomic_read_u64(&state->generation) == generation &&
		depth_state_is_known(state);
}

/*
 * Returns whether the last recount of a database is done, and nothing was
 * lost since.
 */
bool
depth_state_is_known(DepthState *state)
{
	uint64		generation;

	return pg_atomic_read_u32(&state->incomplete) == 0 &&
		depth_state_is_counted(state, &generation);
}

/*
 * The same, if those of queues without a map do not matter.  Sets *generation
 * to that of the recount.
 */
bool
depth_state_is_counted(DepthState *state, uint64 *generation)
{
	if (pg_atomic_read_u32(&state->lost) != 0)
		return false;

	/* If a recount has begun and so reset that, we find no base. */
	pg_read_barrier();
	*generation = pg_atomic_read_u64(&state->base);
	return *generation != 0 &&
		*generation == pg_atomic_read_u64(&state->generation);
}

/* Returns the generation to which changes of depths are added now. */
uint64
depth_generation(void)
{
	DepthState *state = my_depth_state();

	return state == NULL ? 0 : pg_atomic_read_u64(&state->generation);
}

/* Changes of depths were lost: they are not known until the next recount. */
static void
depth_lose(DepthState *state)
{
	if (state != NULL)
		pg_atomic_write_u32(&state->lost, 1);
}

/*
 * A queue that may have messages has no map, so its depths are not known, until
 * the next recount finds room for all.
 */
void
depth_set_incomplete(void)
{
	DepthState *state = my_depth_state();

	if (state != NULL)
		pg_atomic_write_u32(&state->incomplete, 1);
}

/*
 * Changes of depths were lost in this session's database: they are not known
 * until the next recount.
 */
void
depth_lose_mine(void)
{
	depth_lose(my_depth_state());
}

/* --- A transaction that has changed depths --- */

/* The transaction is about to commit. */
void
depth_before_commit(void)
{
	database_join();
	commit.xid = GetTopTransactionIdIfAny();
	commit.generation = depth_generation();
}

/*
 * The transaction has committed, and left the array of running ones.  Sets
 * *generation to the one to which its changes are to be added.  Returns false
 * if the recount of this generation has counted what the transaction has
 * changed, so that nothing is to be added.
 */
bool
depth_after_commit(uint64 *generation)
{
	bool		shown;

	/* A barrier, so that no later snapshot is taken for an earlier one */
	pg_memory_barrier();
	*generation = depth_generation();

	/* Its snapshot was taken before we committed, so it does not show us. */
	if (*generation == commit.generation && *generation % 2 == 0)
		return true;

	/* If it is odd, this waits until its snapshot is published. */
	LWLockAcquire(&shared->lock, LW_SHARED);
	*generation = depth_generation();
	if (shared->database == MyDatabaseId &&
		shared->generation == *generation && shared->n <= XIDS_MAX)
	{
		SnapshotData snapshot = {
			.snapshot_type = SNAPSHOT_MVCC,
			.xmin = shared->xmin,
			.xmax = shared->xmax,
			.xip = shared->xids,
			.xcnt = shared->n
		};

		shown = TransactionIdIsValid(commit.xid) &&
			!XidInMVCCSnapshot(commit.xid, &snapshot);
	}

	/*
	 * Another database has published a snapshot since, or ours has more
	 * transactions than there is room for: we cannot tell.
	 */
	else
	{
		depth_lose_mine();
		shown = false;
	}
	LWLockRelease(&shared->lock);
	return !shown;
}

/* --- A recount --- */

/* Returns whether a recount is needed. */
bool
depth_is_lost(void)
{
	DepthState *state = my_depth_state();

	return state != NULL &&
		!depth_has_base(pg_atomic_read_u64(&state->generation));
}

/*
 * Begin a generation.  Returns its snapshot, registered; or NULL if this
 * database has no entry any more.
 */
Snapshot
depth_begin_recount(void)
{
	DepthState *state = my_depth_state();
	Snapshot	snapshot;
	uint64		generation;

	/*
	 * The launcher may have given the entry away, as connections are refused.
	 */
	if (state == NULL)
		return NULL;

	/*
	 * First, because what is lost from here on needs another recount.  But
	 * the last one is worthless from now on (depth_state_is_known).
	 */
	pg_atomic_write_u64(&state->base, 0);
	pg_write_barrier();
	pg_atomic_write_u32(&state->lost, 0);
	pg_atomic_write_u32(&state->incomplete, 0);
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	generation = shared->generation + 2;

	/*
	 * An odd generation makes transactions that commit now wait for the lock,
	 * as the snapshot may show them or not.
	 */
	pg_atomic_write_u64(&state->generation, generation - 1);
	pg_memory_barrier();
	snapshot = RegisterSnapshot(GetLatestSnapshot());

	/* Publish it for depth_after_commit(). */
	shared->database = MyDatabaseId;
	shared->generation = generation;
	shared->xmin = snapshot->xmin;
	shared->xmax = snapshot->xmax;
	shared->n = snapshot->xcnt;

	/* Without transactions it has no array. */
	if (snapshot->xcnt > 0)
		memcpy(shared->xids, snapshot->xip,
			   Min(snapshot->xcnt, XIDS_MAX) * sizeof(TransactionId));
	pg_write_barrier();
	pg_atomic_write_u64(&state->generation, generation);
	LWLockRelease(&shared->lock);
	return snapshot;
}

/* All that the recount has counted is in the maps. */
void
depth_end_recount(void)
{
	DepthState *state = my_depth_state();

	/*
	 * The launcher may have given the entry away, as connections are refused.
	 */
	if (state != NULL)
		pg_atomic_write_u64(&state->base,
							pg_atomic_read_u64(&state->generation));
}

/* --- The process that counts in the worker's place --- */

/*
 * Become the process that counts in the place of the worker with this pid.
 * Returns false if another worker runs by now, which may count already.
 */
bool
depth_enter_counter(int worker_pid)
{
	DatabaseState *database;

	database_join();
	database = database_mine();
	if (database == NULL)
		return false;
	LWLockAcquire(database_lock(), LW_EXCLUSIVE);
	if (database->database == MyDatabaseId && database->pid == worker_pid &&
		!depth_has_counter())
	{
		entered = &database->depths;
		pg_atomic_write_u32(&entered->counter, (uint32) MyProcPid);
	}
	LWLockRelease(database_lock());
	return entered != NULL;
}

/* The process that counts in the worker's place ends. */
void
depth_leave_counter(void)
{
	uint32		pid = (uint32) MyProcPid;

	/* By now the entry may be another database's, with such a process. */
	(void) pg_atomic_compare_exchange_u32(&entered->counter, &pid, 0);
}

/* Returns whether a process counts in the worker's place. */
bool
depth_has_counter(void)
{
	DepthState *state = my_depth_state();

	return state != NULL && pg_atomic_read_u32(&state->counter) != 0;
}

/* --- Claims that run out --- */

/* The worker is about to count the end of a claim that ended then. */
void
depth_count_end(TimestampTz end)
{
	DepthState *state = my_depth_state();

	if (state == NULL)
		return;
	if (end > (TimestampTz) pg_atomic_read_u64(&state->ends_counted))
		pg_atomic_write_u64(&state->ends_counted, (uint64) end);
	pg_memory_barrier();
}

/* Returns whether the end of a claim at that time may have been counted. */
bool
depth_end_may_be_counted(TimestampTz end)
{
	DepthState *state = my_depth_state();

	return state != NULL &&
		end <= (TimestampTz) pg_atomic_read_u64(&state->ends_counted);
}
