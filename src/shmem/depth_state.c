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
 *	  1. A recount.  The worker counts all messages (worker_recount.c) when it
 *	  starts, and when something was lost, because messages were restored, or
 *	  there was no room for the map of a queue with messages.  Each recount
 *	  begins a generation.  What the maps have of earlier ones is worthless
 *	  (AvailabilityMap.depth_generation), and until the recount is done, the
 *	  depths are not known.
 *
 *	  Where only the depths of queues without a map are not known
 *	  ("incomplete"), the maps of the others tell which have no messages, so
 *	  that they can be given back (shmem_maps.c).
 *
 *	  2. Steps.  A recount goes through the pages of all segments.  A step takes
 *	  a snapshot, and at the same moment moves the cursor to where it will end.
 *	  Then it counts what the snapshot shows in between.  To replace a row is to
 *	  delete one version and to insert another one, perhaps on another page.
 *	  Each of these changes is added to the depths if the cursor has passed the
 *	  page, and the snapshot of the step that did so does not show the
 *	  transaction.  Otherwise the recount has counted it, or will.
 *
 *	  3. A transaction looks at the cursor when it counts a change
 *	  (depth_counted_in).  If the page was passed by then, no snapshot of
 *	  that step can show the transaction.  If not, it looks again after its
 *	  commit, when it has left the array of running transactions
 *	  (depth_fate).  If the page was not passed then either, a later step
 *	  shows the change.  If the cursor has passed it in between, only the worker
 *	  knows, which keeps the snapshots of all steps (depth_adds_ended).  It
 *	  learns of the change by the list of what prepared transactions have
 *	  changed (prepared.c), which it adds in the same way.
 *
 *	  4. Claims that run out.  The worker's sweep that meets a message whose
 *	  claim has ended counts it as ready, and marks the row, in place
 *	  (counts_end_claim).  During a recount it does so between two steps.
 *	  A transaction that changes such a row may have read it before.  It
 *	  compares the end of the claim with the latest one that was counted, and
 *	  reads the mark once more if that may have been this one.  No clock is
 *	  read, so nothing depends on its being set.
 *
 * src/shmem/depth_state.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "shmem/database_state.h"
#include "shmem/depth_state.h"
#include "shmem/shmem.h"

/* DepthState.base while a recount is under way */
#define RECOUNT_RUNS	PG_UINT64_MAX

/* What the recounts of all databases share */
typedef struct SharedRecount
{
	LWLock		lock;			/* protects the rest; see DepthState */
	uint64		generation;		/* only grows, so that maps tell those of all
								 * databases apart */
} SharedRecount;

/* A step of the last recount, in the worker */
typedef struct RecountStep
{
	uint64		end;			/* the position where it ended */
	SnapshotData snapshot;
} RecountStep;

static SharedRecount *shared = NULL;

const SharedArea recount_area = {
	&shared, sizeof(SharedRecount), LOCK_RECOUNT, NULL, NULL
};

/* In the worker: the steps of its last recount, and their memory */
static List *steps = NIL;
static MemoryContext steps_context = NULL;

static DepthState *my_depth_state(void);

/* --- Setting up --- */

/* Initialize the state when shared memory is created. */
void
depth_state_init(DepthState *state)
{
	pg_atomic_init_u64(&state->generation, 0);
	pg_atomic_init_u64(&state->base, 0);
	pg_atomic_init_u32(&state->incomplete, 0);
	pg_atomic_init_u64(&state->cursor, 0);
	pg_atomic_init_u64(&state->ends_counted, (uint64) DT_NOBEGIN);
}

/* The entry is given to another database. */
void
depth_state_reset(DepthState *state)
{
	pg_atomic_write_u64(&state->base, 0);
	pg_atomic_write_u64(&state->ends_counted, (uint64) DT_NOBEGIN);
}

/* Returns the state of this session's database; NULL if there is none. */
static DepthState *
my_depth_state(void)
{
	DatabaseState *database = database_mine();

	return database == NULL ? NULL : &database->depths;
}

/* --- Whether the depths are known --- */

/*
 * Returns the generation of the depths in the maps if these are right, else 0.
 * A caller that reads several asks once more afterwards.
 */
uint64
depth_known(void)
{
	DepthState *state;

	if (RecoveryInProgress())
		return 0;
	database_join();
	state = my_depth_state();
	pg_memory_barrier();

	/* Without a worker, the ends of claims are not counted. */
	if (state == NULL || !database_has_worker() ||
		depth_state_is_incomplete(state))
		return 0;
	return depth_state_counted(state);
}

/*
 * Returns the generation of the depths of a database if its last recount is
 * done, and nothing was lost since, else 0.  They may be incomplete.
 */
uint64
depth_state_counted(DepthState *state)
{
	uint64		generation;

	/* A recount that has reset what the caller has read has a new "base". */
	pg_read_barrier();
	generation = pg_atomic_read_u64(&state->base);
	return generation == pg_atomic_read_u64(&state->generation) ?
		generation : 0;
}

/* Returns whether a queue that may have messages has, or had, no map. */
bool
depth_state_is_incomplete(DepthState *state)
{
	return pg_atomic_read_u32(&state->incomplete) != 0;
}

/* Returns the generation to which changes of depths are added now. */
uint64
depth_generation(void)
{
	DepthState *state = my_depth_state();

	return state == NULL ? 0 : pg_atomic_read_u64(&state->generation);
}

/*
 * Changes of depths were lost in this session's database: they are not known
 * until the next recount.  One that is under way is of no use
 * (depth_end_recount).
 */
void
depth_lose(void)
{
	DepthState *state = my_depth_state();

	if (state != NULL)
		pg_atomic_write_u64(&state->base, 0);
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

/* --- A transaction that changes depths --- */

/*
 * Returns the generation, if its recount has passed a page, or all of them, so
 * that a change there has to be added.  Otherwise returns 0.
 */
uint64
depth_counted_in(uint64 position)
{
	DepthState *state = my_depth_state();
	uint64		generation;

	if (state == NULL)
		return 0;
	generation = pg_atomic_read_u64(&state->generation);

	/* So that we read no "base" of a recount before that generation */
	pg_read_barrier();

	/* No recount runs, as a rule, and this is called for each change. */
	if (pg_atomic_read_u64(&state->base) != RECOUNT_RUNS)
		return generation;
	shmem_lock(&shared->lock, LW_SHARED);
	generation = position < pg_atomic_read_u64(&state->cursor) ?
		pg_atomic_read_u64(&state->generation) : 0;
	LWLockRelease(&shared->lock);
	return generation;
}

/*
 * The transaction has committed, and left the array of running ones.  Returns
 * what becomes of its change.
 */
DepthFate
depth_fate(const DepthChange *change)
{
	DepthState *state = my_depth_state();
	bool		passed;

	/* A barrier, so that no later snapshot is taken for an earlier one */
	pg_memory_barrier();
	if (state == NULL)
		return DEPTH_SHOWN;
	if (change->counted_in == pg_atomic_read_u64(&state->generation))
		return DEPTH_ADD;
	shmem_lock(&shared->lock, LW_SHARED);
	passed = change->position < pg_atomic_read_u64(&state->cursor);
	LWLockRelease(&shared->lock);
	return passed ? DEPTH_ASK_WORKER : DEPTH_SHOWN;
}

/*
 * For the worker: returns whether a change has to be added to the depths,
 * which a transaction has made that has committed.
 */
bool
depth_adds_ended(const DepthChange *change, TransactionId xid)
{
	DepthFate	fate = depth_fate(change);
	ListCell   *cell;

	if (fate != DEPTH_ASK_WORKER)
		return fate == DEPTH_ADD;
	foreach(cell, steps)
	{
		RecountStep *step = lfirst(cell);

		if (change->position < step->end)
			return XidInMVCCSnapshot(xid, &step->snapshot);
	}

	/* Another worker has begun that recount, and this one begins the next. */
	return false;
}

/* --- A recount --- */

/* Returns whether a recount is needed. */
bool
depth_is_lost(void)
{
	DepthState *state = my_depth_state();

	return state != NULL &&
		(depth_state_is_incomplete(state) || depth_state_counted(state) == 0);
}

/*
 * Begin a generation, of which nothing is counted.  Returns false if this
 * database has no entry any more: the launcher may have given it away, as
 * connections are refused.
 */
bool
depth_begin_recount(void)
{
	DepthState *state = my_depth_state();

	if (state == NULL)
		return false;
	if (steps_context == NULL)
		steps_context = AllocSetContextCreate(TopMemoryContext,
											  "steps of a recount",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(steps_context);
	steps = NIL;
	shmem_lock(&shared->lock, LW_EXCLUSIVE);

	/* What is lost from here on needs another recount. */
	pg_atomic_write_u64(&state->base, RECOUNT_RUNS);
	pg_write_barrier();
	pg_atomic_write_u32(&state->incomplete, 0);
	shared->generation++;
	pg_atomic_write_u64(&state->generation, shared->generation);
	pg_atomic_write_u64(&state->cursor, 0);
	LWLockRelease(&shared->lock);
	return true;
}

/*
 * Begin a step of a recount: move the cursor there.  Returns the snapshot of
 * the step, registered; NULL if this database has no entry any more.
 */
Snapshot
depth_begin_step(uint64 to)
{
	DepthState *state = my_depth_state();
	MemoryContext old;
	RecountStep *step;
	Snapshot	snapshot;

	if (state == NULL)
		return NULL;

	/* With the lock, a transaction sees both or neither. */
	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	pg_atomic_write_u64(&state->cursor, to);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	LWLockRelease(&shared->lock);

	/* Keep of it what depth_adds_ended() needs. */
	old = MemoryContextSwitchTo(steps_context);
	step = palloc0(sizeof(RecountStep));
	step->end = to;
	step->snapshot.snapshot_type = SNAPSHOT_MVCC;
	step->snapshot.xmin = snapshot->xmin;
	step->snapshot.xmax = snapshot->xmax;
	step->snapshot.xcnt = snapshot->xcnt;
	step->snapshot.xip = palloc(snapshot->xcnt * sizeof(TransactionId));
	if (snapshot->xcnt > 0)
		memcpy(step->snapshot.xip, snapshot->xip,
			   snapshot->xcnt * sizeof(TransactionId));
	steps = lappend(steps, step);
	MemoryContextSwitchTo(old);
	return snapshot;
}

/*
 * The last step has ended, and all that was counted is in the maps.  The
 * depths are known now, unless something was lost meanwhile.
 */
void
depth_end_recount(void)
{
	DepthState *state = my_depth_state();
	uint64		expected = RECOUNT_RUNS;

	if (state != NULL)
		(void) pg_atomic_compare_exchange_u64(&state->base, &expected,
											  depth_generation());
}

/* --- Claims that run out --- */

/*
 * Publish that the end of a claim is about to be counted which ended then.  That
 * is left to the worker, since a recount might meet the row with the mark or
 * without: returns false in other processes.
 */
bool
depth_publish_end_of_claim(TimestampTz end)
{
	DepthState *state = my_depth_state();

	if (state == NULL || database_mine()->pid != MyProcPid)
		return false;

	/*
	 * We must publish this before we set the mark, so that a transaction that
	 * changes the row looks for the mark.
	 */
	if (!depth_end_may_be_counted(end))
		pg_atomic_write_u64(&state->ends_counted, (uint64) end);
	pg_memory_barrier();
	return true;
}

/* Returns whether the end of a claim at that time may have been counted. */
bool
depth_end_may_be_counted(TimestampTz end)
{
	DepthState *state = my_depth_state();

	return state != NULL &&
		end <= (TimestampTz) pg_atomic_read_u64(&state->ends_counted);
}
