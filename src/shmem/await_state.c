/*-------------------------------------------------------------------------
 *
 * await_state.c
 *	  Sessions that wait until a message is finished, in shared memory.
 *
 * NOTES
 *	  A session that waits takes a slot first, and looks for the message
 *	  afterwards.  A transaction that finishes a message looks for a slot when
 *	  it has left the proc array.  So if the session does not see that the
 *	  message is finished, the transaction finds its slot.
 *
 *	  The session's latch may be reset by whatever else it waits for, such as a
 *	  lock, so the slot says too that it was woken.
 *
 * src/shmem/await_state.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"

#include "shmem/await_state.h"
#include "shmem/shmem.h"
#include "util/compat.h"

#define SLOTS			2048	/* further sessions look from time to time */

typedef struct AwaitSlot
{
	Oid			database;		/* InvalidOid: the slot is free */
	int			proc;			/* the session's number in allProcs */
	int64		message;
	bool		woken;
} AwaitSlot;

typedef struct SharedAwaits
{
	LWLock		lock;			/* protects what follows, but for nwaiters */
	pg_atomic_uint32 nwaiters;	/* slots that are taken; changed under the
								 * lock */
	int			nused;			/* no slot from this one on is taken */
	AwaitSlot	slots[SLOTS];
} SharedAwaits;

static SharedAwaits *shared = NULL;

static void init_awaits(void *area);
static void attach_awaits(void *area);

static void
init_awaits(void *area)
{
	SharedAwaits *new = area;

	shmem_init_lock(&new->lock, LOCK_AWAITS);
	pg_atomic_init_u32(&new->nwaiters, 0);
}

static void
attach_awaits(void *area)
{
	shared = area;
}

/* To be called once, when the library is loaded. */
void
await_state_init(void)
{
	shmem_add_area(sizeof(SharedAwaits), 0, init_awaits, attach_awaits);
}

/*
 * This session is about to wait for a message.  Returns its slot, or
 * AWAIT_NO_SLOT if nothing will wake it.
 */
int
await_state_begin(int64 message)
{
	int			slot = 0;

	if (!shmem_exists())
		return AWAIT_NO_SLOT;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	while (slot < shared->nused && OidIsValid(shared->slots[slot].database))
		slot++;
	if (slot < SLOTS)
	{
		shared->slots[slot] = (AwaitSlot)
		{
			MyDatabaseId, my_proc_number(), message, false
		};
		shared->nused = Max(shared->nused, slot + 1);
		pg_atomic_fetch_add_u32(&shared->nwaiters, 1);
	}
	LWLockRelease(&shared->lock);
	return slot < SLOTS ? slot : AWAIT_NO_SLOT;
}

/* Returns whether this session was woken since the last call. */
bool
await_state_take_wakeup(int slot)
{
	bool		woken;

	if (slot == AWAIT_NO_SLOT)
		return false;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	woken = shared->slots[slot].woken;
	shared->slots[slot].woken = false;
	LWLockRelease(&shared->lock);
	return woken;
}

/* This session does not wait any more. */
void
await_state_end(int slot)
{
	if (slot == AWAIT_NO_SLOT)
		return;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	shared->slots[slot].database = InvalidOid;
	while (shared->nused > 0 &&
		   !OidIsValid(shared->slots[shared->nused - 1].database))
		shared->nused--;
	pg_atomic_fetch_sub_u32(&shared->nwaiters, 1);
	LWLockRelease(&shared->lock);
}

/* Returns whether any session waits. */
bool
await_state_has_waiters(void)
{
	/* Pairs with the lock in await_state_begin(). */
	pg_memory_barrier();
	return shmem_exists() && pg_atomic_read_u32(&shared->nwaiters) > 0;
}

/* Wake the sessions that wait for this message, or for any (AWAIT_ALL). */
void
await_state_finished(int64 message)
{
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < shared->nused; i++)
	{
		AwaitSlot  *slot = &shared->slots[i];

		if (slot->database == MyDatabaseId &&
			(slot->message == message || message == AWAIT_ALL))
		{
			slot->woken = true;
			SetLatch(&ProcGlobal->allProcs[slot->proc].procLatch);
		}
	}
	LWLockRelease(&shared->lock);
}
