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
 *	  1. A recount.  The worker counts all messages (recount.c) when it
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
 *	  2. Steps.  A recount goes through the messages in the order of queues
 *	  and ids.  A step takes a snapshot, and at the same moment moves the
 *	  cursor to where it will end.  Then it counts what the snapshot shows in
 *	  between.  So a change that a transaction makes to a message is added to
 *	  the depths if the cursor has passed the message, and the snapshot of the
 *	  step that did so does not show the transaction.  Otherwise the recount
 *	  has counted it, or will.
 *
 *	  3. A transaction looks at the cursor when it counts a change
 *	  (depth_has_counted).  If the message was passed by then, no snapshot of
 *	  that step can show the transaction.  If not, it looks again after its
 *	  commit, when it has left the array of running transactions
 *	  (depth_adds_change).  If the cursor has passed the message meanwhile, the
 *	  snapshot of the last step decides, which stays published until the next
 *	  step in any database.  A snapshot that does not show the transaction was
 *	  taken before it ended, and so were those of all earlier steps.  Where
 *	  that does not decide, the recount is of no use, and another one follows.
 *
 *	  What a prepared transaction has changed is added by the worker, some time
 *	  after its end (prepared.c).  That makes no difference: all steps since
 *	  its end show it.  So if the last step does not show it, none does, and
 *	  the change is added; if the last step shows it and has read the messages,
 *	  or a later one will read them, it is not.  Only if there were two steps
 *	  since its end, it is not known whether the one that has read the messages
 *	  shows it.  So the worker adds such changes just before each step, too.
 *
 *	  4. Claims that run out.  A claim or a sweep that meets a message whose
 *	  claim has ended counts it as ready, and marks the row, in place
 *	  (claim_ends.c).  Sessions do not while there is a recount, which could
 *	  meet the row with the mark or without; the worker does, between two steps.
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

/* The snapshot of the last step of a recount of any database */
typedef struct SharedRecount
{
	LWLock		lock;			/* protects the rest, and all cursors */
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

static DepthState *my_depth_state(void);
static void depth_lose(DepthState *state);
static bool is_shown_by_last_step(TransactionId xid, bool *known);

/* --- Setting up --- */

/* To be called once, when the library is loaded. */
void
depth_init(void)
{
	shmem_add_area(&shared, sizeof(SharedRecount), LOCK_RECOUNT, NULL, NULL);
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
}

/* The entry is given to another database. */
void
depth_state_reset(DepthState *state)
{
	depth_lose(state);
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
	if (state == NULL || !database_has_worker())
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

/* --- A transaction that changes depths --- */

/*
 * Returns whether a recount has passed a message, or all of them, so that a
 * change of it has to be added, and sets *generation to its number.
 */
bool
depth_has_counted(int32 queue_id, int64 id, uint64 *generation)
{
	DepthState *state = my_depth_state();
	bool		result;

	*generation = 0;
	if (state == NULL)
		return false;
	*generation = pg_atomic_read_u64(&state->generation);

	/* No recount runs, as a rule, and this is called for each change. */
	if (pg_atomic_read_u64(&state->base) == *generation)
		return true;
	shmem_lock(&shared->lock, LW_SHARED);
	*generation = pg_atomic_read_u64(&state->generation);
	result = depth_cursor_is_behind(&state->cursor, queue_id, id);
	LWLockRelease(&shared->lock);
	return result;
}

/*
 * Returns whether the snapshot of the last step shows a transaction that has
 * committed.  *known is set to false if that is not known.  The caller has
 * locked it.
 */
static bool
is_shown_by_last_step(TransactionId xid, bool *known)
{
	SnapshotData snapshot = {
		.snapshot_type = SNAPSHOT_MVCC,
		.xmin = shared->xmin,
		.xmax = shared->xmax,
		.xip = shared->xids,
		.xcnt = shared->n
	};

	/*
	 * Another database has published a snapshot since, or ours has more
	 * transactions than there is room for.
	 */
	*known = shared->database == MyDatabaseId && shared->n <= XIDS_MAX;
	return *known && TransactionIdIsValid(xid) &&
		!XidInMVCCSnapshot(xid, &snapshot);
}

/*
 * The transaction has committed, and left the array of running ones.  Returns
 * whether its change has to be added to the depths.  depth_has_counted() has
 * returned "counted" for each of the messages, in that generation.  Sets
 * *generation to the one to which it is added.
 */
bool
depth_adds_change(int32 queue_id, const DepthChange *change,
				  TransactionId xid, uint64 *generation)
{
	DepthState *state = my_depth_state();
	bool		result;

	/* A barrier, so that no later snapshot is taken for an earlier one */
	pg_memory_barrier();
	if (state == NULL)
		return false;
	*generation = pg_atomic_read_u64(&state->generation);
	if (change->counted && change->generation == *generation)
		return true;

	shmem_lock(&shared->lock, LW_SHARED);
	*generation = pg_atomic_read_u64(&state->generation);

	/* A later step shows us. */
	if (!depth_cursor_is_behind(&state->cursor, queue_id, change->first))
		result = false;
	else
	{
		bool		known;
		bool		shown = is_shown_by_last_step(xid, &known);

		/* Another transaction is needed to know only part of the change. */
		if (!depth_cursor_is_behind(&state->cursor, queue_id, change->last))
			known = false;

		/*
		 * The last step shows us, but has not read the messages, and we
		 * cannot tell what the step that did has seen.
		 */
		else if (shown && depth_cursor_is_behind(&state->step, queue_id,
												 change->first))
			known = false;
		if (!known)
			depth_lose(state);
		result = known && !shown;
	}
	LWLockRelease(&shared->lock);
	return result;
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
	shmem_lock(&shared->lock, LW_EXCLUSIVE);

	/*
	 * What is lost from here on needs another recount.  But the last one is
	 * worthless from now on (depth_state_is_known).
	 */
	pg_atomic_write_u64(&state->base, 0);
	pg_write_barrier();
	pg_atomic_write_u32(&state->lost, 0);
	pg_atomic_write_u32(&state->incomplete, 0);
	shared->generation++;
	pg_atomic_write_u64(&state->generation, shared->generation);
	state->cursor = state->step = depth_cursor(0, PG_INT64_MIN);
	LWLockRelease(&shared->lock);
	return true;
}

/*
 * Begin a step of a recount: move the cursor there.  Returns the snapshot of
 * the step, registered; NULL if this database has no entry any more.
 */
Snapshot
depth_begin_step(const DepthCursor *to)
{
	DepthState *state = my_depth_state();
	Snapshot	snapshot;

	if (state == NULL)
		return NULL;

	/* With the lock, a transaction sees both or neither. */
	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	state->step = state->cursor;
	state->cursor = *to;
	snapshot = RegisterSnapshot(GetLatestSnapshot());

	/* Publish it for depth_adds_change(). */
	shared->database = MyDatabaseId;
	shared->xmin = snapshot->xmin;
	shared->xmax = snapshot->xmax;
	shared->n = snapshot->xcnt;

	/* Without transactions it has no array. */
	if (snapshot->xcnt > 0)
		memcpy(shared->xids, snapshot->xip,
			   Min(snapshot->xcnt, XIDS_MAX) * sizeof(TransactionId));
	LWLockRelease(&shared->lock);
	return snapshot;
}

/* The last step has ended, and all that was counted is in the maps. */
void
depth_end_recount(void)
{
	DepthState *state = my_depth_state();

	if (state != NULL)
		pg_atomic_write_u64(&state->base,
							pg_atomic_read_u64(&state->generation));
}

/* --- Claims that run out --- */

/*
 * The caller is about to count the end of a claim that ended then.  Returns
 * false if it must not, as a recount may be reading the message.  Otherwise
 * it calls depth_finish_end_of_claim() in a moment.
 */
bool
depth_begin_end_of_claim(TimestampTz end)
{
	DatabaseState *database = database_mine();
	DepthState *state;

	if (database == NULL)
		return false;
	state = &database->depths;

	/* No recount begins, and no step of one, until we have finished. */
	shmem_lock(&shared->lock, LW_SHARED);
	if (pg_atomic_read_u64(&state->base) !=
		pg_atomic_read_u64(&state->generation) &&
		database->pid != MyProcPid)
	{
		LWLockRelease(&shared->lock);
		return false;
	}

	/*
	 * We must publish this before we set the mark, so that a transaction that
	 * changes the row looks for the mark.
	 */
	for (;;)
	{
		uint64		counted = pg_atomic_read_u64(&state->ends_counted);

		if (end <= (TimestampTz) counted ||
			pg_atomic_compare_exchange_u64(&state->ends_counted, &counted,
										   (uint64) end))
			break;
	}
	pg_memory_barrier();
	return true;
}

/*
 * The message is marked.  Returns whether that has to be added to the depths
 * of the generation: if not, the recount will meet the mark, or the launcher
 * has given the database's entry away meanwhile.
 */
bool
depth_finish_end_of_claim(int32 queue_id, int64 id, uint64 *generation)
{
	DepthState *state = my_depth_state();
	bool		result = false;

	Assert(LWLockHeldByMeInMode(&shared->lock, LW_SHARED));
	if (state != NULL)
	{
		*generation = pg_atomic_read_u64(&state->generation);
		result = pg_atomic_read_u64(&state->base) == *generation ||
			depth_cursor_is_behind(&state->cursor, queue_id, id);
	}
	LWLockRelease(&shared->lock);
	return result;
}

/* Returns whether the end of a claim at that time may have been counted. */
bool
depth_end_may_be_counted(TimestampTz end)
{
	DepthState *state = my_depth_state();

	return state != NULL &&
		end <= (TimestampTz) pg_atomic_read_u64(&state->ends_counted);
}
