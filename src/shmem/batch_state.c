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
 *	  BATCH_UNKNOWN		the worker probes, or could not find out or free all
 *						that waits because another transaction was in the
 *						way; then it probes again after a pause, which
 *						depends on how long the batch has been in this state
 *
 *	  event										from			to
 *	  ---------------------------------------------------------------------
 *	  the witness was finished					BATCH_WITNESS	BATCH_MAY_END
 *	  any member was finished					none,
 *												BATCH_UNKNOWN	BATCH_MAY_END
 *	  a transaction that has kept the batch		BATCH_UNKNOWN	BATCH_MAY_END
 *	  from finishing has ended
 *	  the worker takes the batch from the list	BATCH_MAY_END	BATCH_UNKNOWN
 *	  the probe has found a member				BATCH_UNKNOWN	BATCH_WITNESS
 *	  there is more to be freed					BATCH_UNKNOWN	BATCH_MAY_END
 *	  the batch has finished, or does not exist BATCH_UNKNOWN	none
 *	  another batch needs the slot				BATCH_WITNESS,
 *												BATCH_UNKNOWN	none
 *
 *	  The order makes this safe.  A transaction reports when it has left the
 *	  proc array; the worker takes the batch before it takes the snapshot of
 *	  its probe.  So if the probe sees as unfinished what another transaction
 *	  finishes, that transaction reports after the batch was taken, and finds
 *	  it in BATCH_UNKNOWN, or with a witness that it has finished.
 *
 *	  If there is no room for a slot, the worker goes over all batches
 *	  (batch_state_probe_all), as it does when it starts.  So it does if a batch
 *	  in BATCH_UNKNOWN has lost its slot: what was in the way may report nothing.
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
#include "util/clock.h"
#include "util/hash.h"

#define SLOTS			8192
#define SLOTS_TRIED		8		/* where the slot of a batch may be */

/*
 * The pause before a batch in BATCH_UNKNOWN is probed again: this part of the
 * time for which it has been in that state
 */
#define RETRY_SHARE		8
#define RETRY_MIN		USECS_PER_SEC
#define RETRY_MAX		USECS_PER_MINUTE

typedef struct BatchSlot
{
	Oid			database;
	BatchState	state;			/* BATCH_NONE: the slot is free */
	int64		batch;
	BatchProgress progress;
	int64		unknown_since;	/* by the monotonic clock; 0: it was not in
								 * BATCH_UNKNOWN after the last probe */
	int64		retry_at;		/* in BATCH_UNKNOWN, by the same clock */
	int			next;			/* in the list of the database, plus 1, or 0 */
} BatchSlot;

typedef struct SharedBatches
{
	LWLock		lock;			/* protects all slots, and the lists */
	BatchSlot	slots[SLOTS];
} SharedBatches;

static SharedBatches *shared = NULL;

const SharedArea batch_area = {
	&shared, sizeof(SharedBatches), LOCK_BATCHES, NULL, NULL
};

static bool is_displaced_before(const BatchSlot *slot, const BatchSlot *other);
static BatchSlot *find_slot(int64 batch, bool make);
static bool list_batch(DatabaseState *state, BatchSlot *slot);
static bool needs_probe(int64 batch, int64 first, int64 last);

/* --- Setting up --- */

/* Forget all batches of a database. */
void
batch_state_clear(Oid database)
{
	DatabaseState *state;

	shmem_lock(&shared->lock, LW_EXCLUSIVE);
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
 * Returns whether a batch loses its slot to a new one rather than the other
 * one does: best one of which a member that is finished is probed once more
 * anyway, else one that is to be probed again after a pause.  "other" is NULL
 * if there is none.
 */
static bool
is_displaced_before(const BatchSlot *slot, const BatchSlot *other)
{
	switch (slot->state)
	{
		case BATCH_NONE:
			return true;
		case BATCH_WITNESS:
			return other == NULL || other->state == BATCH_UNKNOWN;
		case BATCH_UNKNOWN:

			/* We wake no worker of another database. */
			return other == NULL && slot->database == MyDatabaseId;
		case BATCH_MAY_END:
			break;
	}
	return false;
}

/*
 * Returns the slot of a batch, or NULL.  If "make" is set, it may be a new
 * one, which has the state BATCH_NONE; then NULL says that there is no room.
 */
static BatchSlot *
find_slot(int64 batch, bool make)
{
	uint32		first = hash_in_database(batch);
	BatchSlot  *new = NULL;

	for (int i = 0; i < SLOTS_TRIED; i++)
	{
		BatchSlot  *slot = &shared->slots[(first + i) % SLOTS];

		if (slot->state != BATCH_NONE && slot->batch == batch &&
			slot->database == MyDatabaseId)
			return slot;
		if (is_displaced_before(slot, new))
			new = slot;
	}
	if (!make || new == NULL)
		return NULL;
	if (new->state == BATCH_UNKNOWN)
		batch_state_probe_all();
	memset(new, 0, sizeof(BatchSlot));
	new->database = MyDatabaseId;
	new->batch = batch;
	new->progress.witness = BATCH_NOT_PROBED;
	return new;
}

/* Have the worker probe a batch, after those that are listed already. */
static bool
list_batch(DatabaseState *state, BatchSlot *slot)
{
	int			number;

	if (slot == NULL)
		return false;
	if (slot->state == BATCH_MAY_END)
		return true;
	number = (int) (slot - shared->slots) + 1;
	slot->state = BATCH_MAY_END;
	slot->next = 0;
	if (state->batches == 0)
		state->batches = number;
	else
		shared->slots[state->last_batch - 1].next = number;
	state->last_batch = number;
	return true;
}

/* --- For sessions --- */

/*
 * Returns whether a report makes a probe necessary; see batch_state_report().
 */
static bool
needs_probe(int64 batch, int64 first, int64 last)
{
	BatchSlot  *slot = find_slot(batch, false);

	/* A probe may have met our lock, and the slot was lost since. */
	if (slot == NULL)
		return true;
	return slot->state == BATCH_UNKNOWN ||
		(slot->state == BATCH_WITNESS &&
		 first <= slot->progress.witness && slot->progress.witness <= last);
}

/*
 * A transaction has finished members of a batch with ids from first to last;
 * or it has created or closed the batch (BATCH_NOT_PROBED); or it had only
 * locked it (0), as one that adds members does: if a probe has met the lock,
 * it is repeated.
 */
void
batch_state_report(int64 batch, int64 first, int64 last)
{
	DatabaseState *state = database_mine();
	bool		probe;
	bool		listed = true;

	if (state == NULL)
		return;

	/* For most members we need no more than to look. */
	shmem_lock(&shared->lock, LW_SHARED);
	probe = needs_probe(batch, first, last);
	LWLockRelease(&shared->lock);
	if (!probe)
		return;

	/* The worker may have found another witness since. */
	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	if (needs_probe(batch, first, last))
		listed = list_batch(state, find_slot(batch, true));
	LWLockRelease(&shared->lock);
	if (listed)
		database_wake(DT_NOEND, true);
	else
		batch_state_probe_all();
}

/* Have the worker probe all batches that have not finished. */
void
batch_state_probe_all(void)
{
	DatabaseState *state = database_mine();

	if (state == NULL)
		return;
	pg_atomic_fetch_add_u64(&state->batches_lost, 1);
	database_wake(DT_NOEND, true);
}

/* --- For the worker --- */

/* Take a batch that is to be probed.  Returns 0 if there is none. */
int64
batch_state_take(BatchProgress *progress)
{
	DatabaseState *state = database_mine();
	int64		batch = 0;

	if (state == NULL || state->batches == 0)
		return 0;
	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	if (state->batches != 0)
	{
		BatchSlot  *slot = &shared->slots[state->batches - 1];

		state->batches = slot->next;
		slot->state = BATCH_UNKNOWN;
		*progress = slot->progress;
		batch = slot->batch;
	}
	LWLockRelease(&shared->lock);
	return batch;
}

/*
 * Take a batch that is to be probed again after a pause, if it is time for
 * one.  Returns 0 if there is none.  *next is set to when there is another one.
 */
int64
batch_state_take_overdue(int64 now, BatchProgress *progress, int64 *next)
{
	int64		batch = 0;

	*next = PG_INT64_MAX;
	shmem_lock(&shared->lock, LW_SHARED);
	for (int i = 0; i < SLOTS; i++)
	{
		BatchSlot  *slot = &shared->slots[i];

		if (slot->state != BATCH_UNKNOWN || slot->database != MyDatabaseId)
			continue;
		if (slot->retry_at > now || batch != 0)
			*next = Min(*next, slot->retry_at);
		else
		{
			batch = slot->batch;
			*progress = slot->progress;
		}
	}
	LWLockRelease(&shared->lock);
	return batch;
}

/* The worker is about to probe a batch that it has not taken. */
void
batch_state_add(int64 batch, BatchProgress *progress)
{
	BatchSlot  *slot;

	memset(progress, 0, sizeof(BatchProgress));
	progress->witness = BATCH_NOT_PROBED;
	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	slot = find_slot(batch, true);
	if (slot != NULL)
	{
		*progress = slot->progress;
		if (slot->state != BATCH_MAY_END)
			slot->state = BATCH_UNKNOWN;
	}
	LWLockRelease(&shared->lock);
}

/*
 * The worker has probed a batch, which gets this state.  In BATCH_UNKNOWN it
 * is to be probed again after a pause, or, if the probe is to go on, when
 * there is time.  Returns when that is, else PG_INT64_MAX.
 */
int64
batch_state_set(int64 batch, BatchState state, bool goes_on,
				const BatchProgress *progress)
{
	BatchSlot  *slot;
	int64		retry_at = PG_INT64_MAX;
	int64		now = clock_monotonic();

	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	slot = find_slot(batch, false);

	/* If a member was finished meanwhile, that may have been this one. */
	if (slot != NULL && slot->state == BATCH_UNKNOWN)
	{
		slot->progress = *progress;
		if (state != BATCH_UNKNOWN)
			slot->unknown_since = 0;
		else if (slot->unknown_since == 0)
			slot->unknown_since = now;
		slot->retry_at = now;
		if (!goes_on)
			slot->retry_at += Min(Max((now - slot->unknown_since) / RETRY_SHARE,
									  RETRY_MIN), RETRY_MAX);
		if (state == BATCH_UNKNOWN)
			retry_at = slot->retry_at;
		if (state == BATCH_MAY_END)
			(void) list_batch(database_mine(), slot);
		else
			slot->state = state;
	}
	LWLockRelease(&shared->lock);
	if (retry_at != PG_INT64_MAX)
		ereport(DEBUG2,
				(errmsg_internal("batch %lld is probed again after %lld ms",
								 (long long) batch,
								 (long long) (retry_at - now) / 1000)));

	/* There was no room for it. */
	if (slot == NULL && (state == BATCH_MAY_END || state == BATCH_UNKNOWN))
		batch_state_probe_all();
	return retry_at;
}
