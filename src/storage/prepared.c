/*-------------------------------------------------------------------------
 *
 * prepared.c
 *	  What prepared transactions have changed.
 *
 * NOTES
 *	  No callback runs at COMMIT PREPARED or ROLLBACK PREPARED.  So a
 *	  transaction that is prepared adds the records of its changes (pending.c)
 *	  to a list in shared memory, with its transaction id.  The worker of the
 *	  database looks twice a second which of these transactions have ended, and
 *	  returns their records to the availability maps, as the callback of a
 *	  commit or a rollback does.
 *
 *	  The list has no room for very many changes, and a restart loses it.
 *	  Then the worker notes which transactions are prepared whose changes it
 *	  does not know, and when one of them has ended, all maps of the database
 *	  forget what they know.
 *
 * src/storage/prepared.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/memutils.h"

#include "map/availability.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "storage/pending_internal.h"
#include "storage/prepared.h"

#define PREPARED_MAX	2048	/* changes */

/* A change of a transaction that is, or was, prepared */
typedef struct PreparedChange
{
	Oid			database;
	TransactionId xid;
	PendingChange change;
} PreparedChange;

typedef struct SharedPrepared
{
	LWLock		lock;
	int			n;
	PreparedChange items[PREPARED_MAX];
} SharedPrepared;

static SharedPrepared *shared = NULL;

/*
 * In the worker: prepared transactions of the database whose changes are not
 * in the list, or not all of them
 */
static int	nunknown = 0;
static TransactionId *unknown = NULL;

static void init_prepared(void *area);
static void attach_prepared(void *area);
static void make_room(void);
static bool is_listed(TransactionId xid);
static void find_unknown(void);
static bool forget_ended(void);
static int	return_ended(void);

static void
init_prepared(void *area)
{
	SharedPrepared *new = area;

	shmem_init_lock(&new->lock, LOCK_PREPARED);
	new->n = 0;
}

static void
attach_prepared(void *area)
{
	shared = area;
}

/* To be called once, when the library is loaded. */
void
prepared_init(void)
{
	shmem_add_area(sizeof(SharedPrepared), init_prepared, attach_prepared);
}

/*
 * Drop the changes of transactions that have ended, in whatever database: where
 * no worker runs, they would stay for ever.  One that begins to run there has
 * all maps forget.
 */
static void
make_room(void)
{
	int			kept = 0;

	for (int i = 0; i < shared->n; i++)
	{
		const PreparedChange *item = &shared->items[i];

		if (TransactionIdIsInProgress(item->xid))
			shared->items[kept++] = *item;
		else
			database_record_prepared(database_of(item->database));
	}
	shared->n = kept;
}

/*
 * The open transaction is prepared, and is not this session's any more: add
 * its changes to the list, all of them or none; with "all", these are all that
 * it has made.
 */
void
prepared_add_changes(bool all)
{
	int			n = pending_list.n;

	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	if (n > PREPARED_MAX - shared->n)
		make_room();
	if (!all || n > PREPARED_MAX - shared->n)
	{
		LWLockRelease(&shared->lock);
		database_record_prepared(database_mine());
		return;
	}
	for (int i = 0; i < n; i++)
	{
		PreparedChange *new = &shared->items[shared->n++];

		new->database = MyDatabaseId;
		new->xid = GetTopTransactionId();
		new->change = *pending_list_at(i);
	}
	LWLockRelease(&shared->lock);
}

/* --- For the worker --- */

/*
 * Return the changes of transactions that have ended.  Returns how many there
 * were.
 */
static int
return_ended(void)
{
	int			kept = 0;
	int			returned = 0;
	TransactionId last = InvalidTransactionId;
	bool		has_ended = false;
	bool		commit = false;

	/*
	 * Under the lock: if it were only copied, an error would lose what is not
	 * returned yet.
	 */
	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < shared->n; i++)
	{
		PreparedChange *item = &shared->items[i];

		/* The changes of a transaction follow each other. */
		if (item->database == MyDatabaseId && item->xid != last)
		{
			last = item->xid;
			has_ended = !TransactionIdIsInProgress(last);
			commit = has_ended && TransactionIdDidCommit(last);
		}
		if (item->database == MyDatabaseId && has_ended)
		{
			pending_return_prepared(&item->change, commit);
			returned++;
		}
		else
			shared->items[kept++] = *item;
	}
	shared->n = kept;
	LWLockRelease(&shared->lock);
	return returned;
}

static bool
is_listed(TransactionId xid)
{
	bool		found = false;

	shmem_lock(&shared->lock, LW_SHARED);
	for (int i = 0; i < shared->n && !found; i++)
		found = shared->items[i].database == MyDatabaseId &&
			shared->items[i].xid == xid;
	LWLockRelease(&shared->lock);
	return found;
}

/* Note which prepared transactions of the database are not in the list. */
static void
find_unknown(void)
{
	if (unknown == NULL)
		unknown = MemoryContextAlloc(TopMemoryContext, max_prepared_xacts *
									 sizeof(TransactionId));
	nunknown = 0;
	LWLockAcquire(ProcArrayLock, LW_SHARED);
	for (int i = 0; i < max_prepared_xacts; i++)
	{
		const		PGPROC *proc = &PreparedXactProcs[i];

		if (proc->databaseId == MyDatabaseId && TransactionIdIsValid(proc->xid))
			unknown[nunknown++] = proc->xid;
	}
	LWLockRelease(ProcArrayLock);
	for (int i = nunknown - 1; i >= 0; i--)
		if (is_listed(unknown[i]))
			unknown[i] = unknown[--nunknown];
}

/* Returns whether one of the transactions that are unknown has ended. */
static bool
forget_ended(void)
{
	bool		result = false;

	for (int i = nunknown - 1; i >= 0; i--)
		if (!TransactionIdIsInProgress(unknown[i]))
		{
			unknown[i] = unknown[--nunknown];
			result = true;
		}
	return result;
}

/* Return what prepared transactions have changed that have ended. */
void
prepared_return(Oid extension)
{
	static bool has_looked = false;
	bool		forget;

	if (return_ended() > 0)
		ereport(DEBUG2,
				(errmsg_internal("returned the changes of prepared transactions")));

	/*
	 * The worker has just started; or there was no room for the changes of
	 * one that was prepared since, which may have ended already.
	 */
	forget = database_take_prepared();
	if (forget || !has_looked)
		find_unknown();
	has_looked = true;
	if (forget_ended() || forget)
		pending_forget_all(extension);
}

/*
 * Returns whether a prepared transaction may have claimed messages of which
 * the maps know nothing.
 */
bool
prepared_is_unknown(void)
{
	return nunknown > 0;
}
