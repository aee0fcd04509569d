/*-------------------------------------------------------------------------
 *
 * prepared.c
 *	  What prepared transactions have changed.
 *
 * NOTES
 *	  No callback runs at COMMIT PREPARED or ROLLBACK PREPARED.  So a
 *	  transaction that is prepared adds to a list in shared memory, with its
 *	  transaction id, the records of its changes (pending.c), how it changes
 *	  the depths of queues (counts.c), and what it has done with batches
 *	  (batches.c).  The worker of the database looks twice a second which of
 *	  these transactions have ended, and does what the callbacks of a commit or
 *	  a rollback do.  Changes of depths also come here of transactions that have
 *	  committed while the worker counted all messages (depth_state.c).
 *
 *	  The list has no room for very many records, and a restart loses it.
 *	  Then the worker notes which transactions are prepared of which it does
 *	  not know what they have changed.  When one of them has ended, all maps of
 *	  the database forget what they know, all messages are counted anew, and
 *	  all batches probed.
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

#include "catalog/relations.h"
#include "shmem/batch_state.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
#include "storage/batches.h"
#include "storage/counts.h"
#include "storage/pending.h"
#include "storage/prepared.h"

#define PREPARED_MAX	4096	/* items */

/* What an item is about */
typedef enum PreparedKind
{
	PREPARED_DEPTHS,			/* the depths of a queue */
	PREPARED_CHANGE,			/* messages, or a queue */
	PREPARED_BATCH				/* a batch */
} PreparedKind;

/* What a transaction that is, or was, prepared has changed */
typedef struct PreparedItem
{
	Oid			database;
	TransactionId xid;
	PreparedKind kind;
	bool		is_copied;		/* by the worker, which returns it */
	union
	{
		CountRecord counts;
		PendingChange change;
		BatchRecord batch;
	}			record;
} PreparedItem;

typedef struct SharedPrepared
{
	LWLock		lock;
	int			n;
	PreparedItem items[PREPARED_MAX];
} SharedPrepared;

static SharedPrepared *shared = NULL;

const SharedArea prepared_area = {
	&shared, sizeof(SharedPrepared), LOCK_PREPARED, NULL, NULL
};

/*
 * In the worker: prepared transactions of the database whose items are not in
 * the list
 */
static int	nunknown = 0;
static TransactionId *unknown = NULL;

/* In the worker: prepared_return() runs, or has failed */
static bool is_returning = false;

static void make_room(void);
static PreparedItem *add_item(PreparedKind kind);
static int	copy_ended(PreparedItem *items);
static void remove_copied(void);
static void return_item(const PreparedItem *item);
static void return_ended(bool drop);
static bool is_listed(TransactionId xid);
static void find_unknown(void);
static bool forget_ended(void);

/*
 * Drop the items of transactions that have ended, in whatever database: where
 * no worker runs, they would stay for ever.  One that begins to run there has
 * all maps forget.
 */
static void
make_room(void)
{
	int			kept = 0;

	for (int i = 0; i < shared->n; i++)
	{
		const PreparedItem *item = &shared->items[i];

		if (TransactionIdIsInProgress(item->xid))
			shared->items[kept++] = *item;
		else
			database_set_flag(database_of(item->database),
							  DATABASE_PREPARED);
	}
	shared->n = kept;
}

/* Add an item of the transaction that ends to the list, which has room. */
static PreparedItem *
add_item(PreparedKind kind)
{
	PreparedItem *item = &shared->items[shared->n++];

	item->database = MyDatabaseId;
	item->xid = GetTopTransactionIdIfAny();
	item->kind = kind;
	item->is_copied = false;
	return item;
}

/*
 * The open transaction is prepared, and is not this session's any more, but no
 * other one can end it yet: add what it has changed to the list, all of it or
 * nothing.  With "all", the pending changes are all that it has made.
 */
void
prepared_add(bool all)
{
	int			n = count_records.n + pending_changes.n + batch_records.n;

	if (all && n == 0)
		return;
	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	if (n > PREPARED_MAX - shared->n)
		make_room();
	if (!all || n > PREPARED_MAX - shared->n)
	{
		LWLockRelease(&shared->lock);
		database_set_flag(database_mine(), DATABASE_PREPARED);
		return;
	}

	/*
	 * Messages are counted before they are reported, as by the callbacks of a
	 * commit (module.c): then the queue has a map.
	 */
	for (int i = 0; i < count_records.n; i++)
	{
		const CountRecord *count = xact_record(&count_records, i);

		if (count->depths.is_used)
			add_item(PREPARED_DEPTHS)->record.counts = *count;
	}
	for (int i = 0; i < pending_changes.n; i++)
		add_item(PREPARED_CHANGE)->record.change =
			*(PendingChange *) xact_record(&pending_changes, i);
	for (int i = 0; i < batch_records.n; i++)
		add_item(PREPARED_BATCH)->record.batch =
			*(BatchRecord *) xact_record(&batch_records, i);
	LWLockRelease(&shared->lock);
}

/*
 * The transaction has committed.  Only the worker knows whether to add what it
 * has changed to the depths.
 */
void
prepared_add_depths(const CountRecord *record)
{
	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	if (shared->n == PREPARED_MAX)
		make_room();
	if (shared->n < PREPARED_MAX)
		add_item(PREPARED_DEPTHS)->record.counts = *record;
	else
		depth_lose();
	LWLockRelease(&shared->lock);
}

/* --- For the worker --- */

/*
 * Returns whether prepared_return() has nothing to do: no transaction can be
 * prepared, and none has left anything.  What is missed is found the next time.
 */
bool
prepared_is_idle(void)
{
	return max_prepared_xacts == 0 && shared->n == 0;
}

/*
 * Copy the items of transactions of this database that have ended.  Returns how
 * many there are.
 */
static int
copy_ended(PreparedItem *items)
{
	int			n = 0;
	TransactionId last = InvalidTransactionId;
	bool		has_ended = false;

	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < shared->n; i++)
	{
		PreparedItem *item = &shared->items[i];

		if (item->database != MyDatabaseId)
			continue;

		/* The items of a transaction follow each other. */
		if (item->xid != last)
		{
			last = item->xid;
			has_ended = !TransactionIdIsInProgress(last);
		}
		item->is_copied = has_ended;
		if (has_ended)
			items[n++] = *item;
	}
	LWLockRelease(&shared->lock);
	return n;
}

/* Remove the items that were copied. */
static void
remove_copied(void)
{
	int			kept = 0;

	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < shared->n; i++)
	{
		const PreparedItem *item = &shared->items[i];

		if (item->database != MyDatabaseId || !item->is_copied)
			shared->items[kept++] = *item;
	}
	shared->n = kept;
	LWLockRelease(&shared->lock);
}

static void
return_item(const PreparedItem *item)
{
	bool		commit = TransactionIdDidCommit(item->xid);

	switch (item->kind)
	{
		case PREPARED_DEPTHS:
			if (commit)
				counts_add_ended(&item->record.counts, item->xid);
			break;
		case PREPARED_CHANGE:
			pending_return(&item->record.change, commit);
			break;
		case PREPARED_BATCH:
			batches_report(&item->record.batch, commit);
			break;
	}
}

/*
 * Return the items of transactions that have ended; or only drop them, as
 * everything is forgotten.
 */
static void
return_ended(bool drop)
{
	PreparedItem *items;
	int			n;

	/* Without the lock: what is missed is found the next time. */
	if (shared->n == 0)
		return;
	items = palloc(PREPARED_MAX * sizeof(PreparedItem));

	/*
	 * Not under the lock of the list, since a map may have to be made, for
	 * which the table of queues is read.  They stay in the list until then,
	 * for claims of their groups (prepared_frees).
	 */
	n = copy_ended(items);
	for (int i = 0; i < n && !drop; i++)
		return_item(&items[i]);
	if (n > 0)
	{
		remove_copied();
		ereport(DEBUG2,
				(errmsg_internal("returned the changes of prepared transactions")));
	}
	pfree(items);
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

/*
 * A step of the worker: return what prepared transactions have changed that
 * have ended.
 */
bool
prepared_return(void *arg)
{
	static bool has_looked = false;
	bool		forget = is_returning;	/* the last call has failed */

	is_returning = true;
	return_ended(forget);

	/*
	 * The worker has just started; or there was no room for the items of a
	 * transaction that was prepared since, which may have ended already.
	 */
	if (database_take_flag(DATABASE_PREPARED))
		forget = true;
	if (forget || !has_looked)
		find_unknown();
	has_looked = true;
	if (forget_ended() || forget)
	{
		pending_forget_all(catalog_queue_oid());
		batch_state_probe_all();
	}
	is_returning = false;
	return false;
}

/*
 * Returns whether a prepared transaction may have claimed messages of which
 * the maps know nothing.
 */
bool
prepared_is_unknown(void)
{
	return nunknown > 0 || is_returning;
}

/* --- For claims --- */

/*
 * Returns whether a prepared transaction has ended that leaves something of a
 * lane free, which the worker has not given to the lane yet.
 */
bool
prepared_frees(int32 queue_id, LaneId lane)
{
	bool		result = false;

	/* No lock is needed to see that there are none, as a rule. */
	if (shared->n == 0)
		return false;
	shmem_lock(&shared->lock, LW_SHARED);
	for (int i = 0; i < shared->n && !result; i++)
	{
		const PreparedItem *item = &shared->items[i];
		const PendingChange *change = &item->record.change;

		result = item->database == MyDatabaseId &&
			item->kind == PREPARED_CHANGE &&
			change->target == TARGET_MESSAGES &&
			change->queue_id == queue_id && lane_equals(change->lane, lane) &&
			!TransactionIdIsInProgress(item->xid) &&
			(TransactionIdDidCommit(item->xid) ? change->range.due :
			 change->due_before) == DT_NOBEGIN;
	}
	LWLockRelease(&shared->lock);
	return result;
}
