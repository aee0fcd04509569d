/*-------------------------------------------------------------------------
 *
 * batch_state.c
 *	  Which batches may have finished, in shared memory.
 *
 * NOTES
 *	  A batch has finished when none of its members is left.  The worker finds
 *	  that out by a probe: it looks for a member in the indexes.  It must not
 *	  make one probe for each member that is finished, so it remembers the
 *	  last member that a probe has found, the witness of the batch.  While
 *	  that is unfinished, so is the batch, and no other member matters.
 *
 *	  The witness is the member with the highest id, because members are mostly
 *	  finished in the order of their ids.  So a batch costs a few probes,
 *	  whatever its size.  The next probe begins at the last witness: while
 *	  other transactions hold back vacuum, the members above it, which were
 *	  finished, still have index entries.
 *
 *	  Each batch of which something is known has a slot.  Its state:
 *
 *	  BATCH_WITNESS		its witness was unfinished when it was looked for
 *	  BATCH_MAY_END		the worker has to probe; the slot is in the list of
 *						its database
 *	  BATCH_PROBED		the worker probes
 *	  BATCH_RETRY		the worker could not find out: another transaction was
 *						in the way; it probes again after a pause
 *
 *	  event										from			to
 *	  ---------------------------------------------------------------------
 *	  the witness was finished					BATCH_WITNESS	BATCH_MAY_END
 *	  any member was finished					none,
 *												BATCH_PROBED,
 *												BATCH_RETRY		BATCH_MAY_END
 *	  a transaction that has kept the batch		BATCH_PROBED,
 *	  from finishing has ended					BATCH_RETRY		BATCH_MAY_END
 *	  the pause is over							BATCH_RETRY		BATCH_MAY_END
 *	  the worker takes the batch from the list	BATCH_MAY_END	BATCH_PROBED
 *	  the probe has found a member				BATCH_PROBED	BATCH_WITNESS
 *	  the probe could not find out				BATCH_PROBED	BATCH_RETRY
 *	  there is more to be freed					BATCH_PROBED	BATCH_MAY_END
 *	  the batch has finished, or does not exist BATCH_PROBED	none
 *	  another batch needs the slot				BATCH_WITNESS	none
 *
 *	  The order makes this safe.  A transaction reports when it has left the
 *	  proc array; the worker takes the batch before it takes the snapshot of
 *	  its probe.  So if the probe sees as unfinished what another transaction
 *	  finishes, that transaction reports after the batch was taken, and finds
 *	  it in BATCH_PROBED, or with a witness that it has finished.
 *
 *	  If there is no room for a slot, the worker goes over all batches
 *	  (batch_state_probe_all), as it does when it starts.
 *
 *	  test/model/batches.pml models this.
 *
 * src/shmem/batch_state.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"

#include "shmem/batch_state.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "util/hash.h"

#define SLOTS			8192
#define SLOTS_TRIED		8		/* where the slot of a batch may be */

typedef struct BatchSlot
{
	Oid			database;
	BatchState	state;			/* BATCH_NONE: the slot is free */
	int64		batch;
	int64		witness;		/* the member that was found last, or
								 * BATCH_NOT_PROBED: none was, or the batch
								 * cannot finish before it is closed */
	int			next;			/* in the list of the database, plus 1, or 0 */
} BatchSlot;

typedef struct SharedBatches
{
	LWLock		lock;			/* protects all slots, and the lists */
	BatchSlot	slots[SLOTS];
} SharedBatches;

static SharedBatches *shared = NULL;

static void init_batches(void *area);
static void attach_batches(void *area);
static DatabaseState *my_database(void);
static int	first_slot(int64 batch);
static BatchSlot *find_slot(int64 batch);
static BatchSlot *find_or_make_slot(int64 batch);
static int	slot_number(const BatchSlot *slot);
static bool list_batch(DatabaseState *state, BatchSlot *slot, int64 batch);

/* --- Setting up --- */

static void
init_batches(void *area)
{
	SharedBatches *new = area;

	shmem_init_lock(&new->lock, LOCK_BATCHES);
}

static void
attach_batches(void *area)
{
	shared = area;
}

/* To be called once, when the library is loaded. */
void
batch_state_init(void)
{
	shmem_add_area(sizeof(SharedBatches), 0, init_batches, attach_batches);
}

/* Forget all batches of a database. */
void
batch_state_clear(Oid database)
{
	DatabaseState *state;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < SLOTS; i++)
		if (shared->slots[i].database == database)
			memset(&shared->slots[i], 0, sizeof(BatchSlot));
	state = database_of(database);
	if (state != NULL)
		state->batches = 0;
	LWLockRelease(&shared->lock);
}

/* --- Slots --- */

/*
 * Returns the entry of this session's database; NULL if it has none, and so no
 * worker that could probe.
 */
static DatabaseState *
my_database(void)
{
	DatabaseState *state = shmem_exists() ? database_mine() : NULL;

	return state != NULL && state->database == MyDatabaseId ? state : NULL;
}

/* Returns the number of the first slot that is tried for a batch. */
static int
first_slot(int64 batch)
{
	return hash_in_database(batch) % SLOTS;
}

/* Returns the slot of a batch, or NULL. */
static BatchSlot *
find_slot(int64 batch)
{
	int			first = first_slot(batch);

	for (int i = 0; i < SLOTS_TRIED; i++)
	{
		BatchSlot  *slot = &shared->slots[(first + i) % SLOTS];

		if (slot->state != BATCH_NONE && slot->batch == batch &&
			slot->database == MyDatabaseId)
			return slot;
	}
	return NULL;
}

/*
 * Returns the slot of a batch, which has the state BATCH_NONE if it is new;
 * NULL if there is no room.
 */
static BatchSlot *
find_or_make_slot(int64 batch)
{
	int			first = first_slot(batch);
	BatchSlot  *found = find_slot(batch);

	for (int i = 0; i < SLOTS_TRIED && found == NULL; i++)
		if (shared->slots[(first + i) % SLOTS].state == BATCH_NONE)
			found = &shared->slots[(first + i) % SLOTS];

	/*
	 * Take the place of a batch that need not be probed now.  When a member
	 * of that is finished, it is probed once more.
	 */
	for (int i = 0; i < SLOTS_TRIED && found == NULL; i++)
		if (shared->slots[(first + i) % SLOTS].state == BATCH_WITNESS)
		{
			found = &shared->slots[(first + i) % SLOTS];
			found->state = BATCH_NONE;
		}
	if (found != NULL && found->state == BATCH_NONE)
		found->witness = BATCH_NOT_PROBED;
	return found;
}

/* Returns the number of a slot in a list. */
static int
slot_number(const BatchSlot *slot)
{
	return (int) (slot - shared->slots) + 1;
}

/* Have the worker probe a batch, after those that are listed already. */
static bool
list_batch(DatabaseState *state, BatchSlot *slot, int64 batch)
{
	if (slot == NULL)
		return false;
	if (slot->state == BATCH_MAY_END)
		return true;
	slot->database = MyDatabaseId;
	slot->batch = batch;
	slot->state = BATCH_MAY_END;
	slot->next = 0;
	if (state->batches == 0)
		state->batches = slot_number(slot);
	else
		shared->slots[state->last_batch - 1].next = slot_number(slot);
	state->last_batch = slot_number(slot);
	return true;
}

/* --- For sessions --- */

/*
 * A transaction has finished members of a batch with ids from first to last;
 * or it has created or closed the batch (BATCH_NOT_PROBED).
 */
void
batch_state_members_finished(int64 batch, int64 first, int64 last)
{
	DatabaseState *state = my_database();
	BatchSlot  *slot;
	bool		waits;
	bool		listed = true;

#define IS_WITNESS() (first <= slot->witness && slot->witness <= last)

	if (state == NULL)
		return;

	/* For most members we need no more than to look. */
	LWLockAcquire(&shared->lock, LW_SHARED);
	slot = find_slot(batch);
	waits = slot != NULL && (slot->state == BATCH_MAY_END ||
							 (slot->state == BATCH_WITNESS && !IS_WITNESS()));
	LWLockRelease(&shared->lock);
	if (waits)
		return;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	slot = find_or_make_slot(batch);

	/* The worker may have found another witness since. */
	if (slot == NULL || slot->state != BATCH_WITNESS || IS_WITNESS())
		listed = list_batch(state, slot, batch);
	LWLockRelease(&shared->lock);
	if (listed)
		database_wake(DT_NOEND, true);
	else
		batch_state_probe_all();
#undef IS_WITNESS
}

/*
 * A transaction has ended that had locked a batch, as one that adds members
 * does: if a probe has met the lock, it is repeated.
 */
void
batch_state_unlocked(int64 batch)
{
	DatabaseState *state = my_database();
	BatchSlot  *slot;
	bool		listed = false;

	if (state == NULL)
		return;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	slot = find_slot(batch);
	if (slot != NULL && (slot->state == BATCH_PROBED ||
						 slot->state == BATCH_RETRY))
		listed = list_batch(state, slot, batch);
	LWLockRelease(&shared->lock);
	if (listed)
		database_wake(DT_NOEND, true);
}

/* Have the worker probe all batches that have not finished. */
void
batch_state_probe_all(void)
{
	DatabaseState *state = my_database();

	if (state == NULL)
		return;
	pg_atomic_fetch_add_u64(&state->batches_lost, 1);
	database_wake(DT_NOEND, true);
}

/* --- For the worker --- */

/* Returns whether a batch is to be probed. */
bool
batch_state_is_pending(void)
{
	DatabaseState *state = my_database();

	/* Without the lock: a caller looks again before it sleeps. */
	return state != NULL && state->batches != 0;
}

/* Returns a number that changes with batch_state_probe_all(). */
uint64
batch_state_generation(void)
{
	DatabaseState *state = my_database();

	return state == NULL ? 0 : pg_atomic_read_u64(&state->batches_lost);
}

/*
 * Take a batch that is to be probed, and its last witness.  Returns 0 if there
 * is none.
 */
int64
batch_state_take(int64 *witness)
{
	DatabaseState *state = my_database();
	int64		batch = 0;

	if (state == NULL || state->batches == 0)
		return 0;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	if (state->batches != 0)
	{
		BatchSlot  *slot = &shared->slots[state->batches - 1];

		state->batches = slot->next;
		slot->state = BATCH_PROBED;
		*witness = slot->witness;
		batch = slot->batch;
	}
	LWLockRelease(&shared->lock);
	return batch;
}

/*
 * The worker is about to probe a batch that it has not taken from the list.
 * Returns the last witness.
 */
int64
batch_state_add(int64 batch)
{
	BatchSlot  *slot;
	int64		witness = BATCH_NOT_PROBED;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	slot = find_or_make_slot(batch);

	if (slot != NULL)
		witness = slot->witness;
	if (slot != NULL && slot->state != BATCH_MAY_END)
	{
		slot->database = MyDatabaseId;
		slot->batch = batch;
		slot->state = BATCH_PROBED;
	}
	LWLockRelease(&shared->lock);
	return witness;
}

/*
 * The worker has probed a batch, which gets this state; witness: the member
 * that was found last.
 */
void
batch_state_set(int64 batch, BatchState state, int64 witness)
{
	BatchSlot  *slot;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	slot = find_slot(batch);

	/* If a member was finished meanwhile, that may have been this one. */
	if (slot != NULL && slot->state == BATCH_PROBED)
	{
		slot->witness = witness;
		if (state == BATCH_MAY_END)
			(void) list_batch(my_database(), slot, batch);
		else
			slot->state = state;
	}
	LWLockRelease(&shared->lock);

	/* There was no room for it. */
	if (slot == NULL && (state == BATCH_MAY_END || state == BATCH_RETRY))
		batch_state_probe_all();
}

/* Have all batches probed again of which a probe could not find out. */
void
batch_state_retry(void)
{
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < SLOTS; i++)
	{
		BatchSlot  *slot = &shared->slots[i];

		if (slot->state == BATCH_RETRY && slot->database == MyDatabaseId)
			(void) list_batch(my_database(), slot, slot->batch);
	}
	LWLockRelease(&shared->lock);
}
