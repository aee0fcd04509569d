/*-------------------------------------------------------------------------
 *
 * dedup.c
 *	  Deduplication keys: dropping pushes of messages that already wait.
 *
 * NOTES
 *	  A message may be pushed with a deduplication key.  Messages of one queue
 *	  with the same key are called twins in the source.
 *
 *	  When is a push a duplicate?
 *
 *	  A push is dropped as a duplicate if a message with its key waits: one
 *	  that exists, is not under a live claim, has not expired, and will be
 *	  handed out some time.  Its run will do what the dropped message was to
 *	  have done.  While a message is claimed, its key is free, because its run
 *	  may have begun too early to see what the pushing transaction has changed.
 *	  So the push creates a twin.  If the claim then ends without the message
 *	  being deleted, both wait, and the next push is a duplicate of either.
 *
 *	  The table
 *
 *	  queue_data.dedup_key has one row for each key, with the ids of the
 *	  messages that were pushed with it and may still exist, the latest first.
 *	  The row only says where to look.  Whether a message waits is decided by
 *	  the message's own row, and by the clock where a claim runs out.  This is
 *	  why claims, renewals and releases need not touch the table.  A push that
 *	  is not a duplicate puts its id into the row, and takes out those of
 *	  messages that are gone.  A delete takes the message's id out, unless
 *	  another transaction has locked the row: an id of a message that does not
 *	  exist does no harm.
 *
 *	  A key may be used again and again while an old snapshot keeps all former
 *	  rows and their index entries.  So each version of a row has a number,
 *	  which counts up and is the last column of the index.  Readers begin at
 *	  the end, and the newest version says whether the key has a row.
 *
 *	  A duplicate locks the message
 *
 *	  A push that is a duplicate locks the message that waits, FOR SHARE, until
 *	  its transaction ends.  Claims skip locked messages, so the message is
 *	  handed out only after the changes of the pushing transaction are visible.
 *	  To get that lock the push waits for a transaction that is claiming or
 *	  deleting the message, and then looks again: the key may be free now.
 *
 *	  A run covers its twins (dedup_run.c)
 *
 *	  When the run of a message is completed, twins that were pushed before it
 *	  began need not run any more: it has seen what their pushers had changed.
 *	  The run covers them.  Which ones it covers is decided by visibility, not
 *	  by timestamps: those in the key's row as the snapshot of the claiming
 *	  statement shows it.  The claim writes their ids into the message's column
 *	  "twins".  When the message is deleted under that claim, a twin is
 *
 *	  - deleted, if it is not claimed;
 *	  - marked in its column "covered", if it is under a live claim.  It is not
 *		handed out again should that claim end without its being deleted;
 *	  - left alone, and will run, if another transaction has locked it;
 *	  - left alone if it is claimed and the message was popped.
 *
 *	  Pushes that joined a waiting message
 *
 *	  A push that was dropped relies on a run that begins after it has
 *	  committed.  So a run that began before must not cover the message that
 *	  this push found waiting.  If the row has other ids, one of those
 *	  messages may be running.  Then the push adds 1 to the row's column
 *	  "joined".  A claim copies that number to the message's column
 *	  "twins_joined", and a run covers nothing once the two differ.  There is
 *	  no race, because the push has locked the message that waits, and
 *	  covering it requires a lock on it as well.
 *
 *	  Nor may there be a run that the row does not mention (add_id_to_key).
 *
 *	  What a push asks for (DedupTerms)
 *
 *	  The push that arrives decides what makes it a duplicate; how the messages
 *	  of its key were pushed does not count.  With DEDUP_UNFINISHED, a message
 *	  under a live claim does, too, unless it was canceled.  A transaction that
 *	  deletes it is waited for, but it is not locked, or its worker would wait
 *	  for the pusher.  With DEDUP_REPLACE, a message that waits is locked
 *	  exclusively, and the push puts what it brings into that message (push.c).
 *	  No run that has begun before may cover it then, as if a push had joined.
 *
 *	  With a period, an earlier push with a period makes this one a duplicate,
 *	  whatever became of its message.  The key's row says when that was, and
 *	  stays for the period of that push, and an hour at least: so long a later
 *	  push with a longer period finds it.  Then the worker deletes it.
 *
 *	  Locks
 *
 *	  A push locks the message that waits, then the key's row, and waits for
 *	  both.  It takes several keys in sorted order (push.c).  A delete locks
 *	  its message first.  It does not wait for the key's row, nor for the
 *	  twins.
 *
 * src/push/dedup.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/transam.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/message_table.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "push/dedup.h"
#include "push/dedup_table.h"
#include "push/root_job.h"
#include "queue/options.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/row.h"

/* The row of a push with a period stays for at least so long. */
#define KEPT_AT_LEAST		USECS_PER_HOUR

/* The worker reads so many rows in one step. */
#define FORGET_AT_ONCE		500

/* A message in the row of a key, as a push sees it */
typedef enum TwinState
{
	TWIN_GONE,					/* does not exist, or will not be handed out */
	TWIN_CLAIMED,				/* is under a live claim */
	TWIN_WAITS,					/* waits, and is locked now */
	TWIN_CHANGED				/* was changed before it could be locked:
								 * check it again */
} TwinState;

static TwinState lock_waiting_message(FoundMessage *message,
									  const DedupTake *take);
static TwinState check_claimed(const FoundMessage *message);
static TwinState check_twin(const DedupTake *take, int64 id);
static TwinState check_twins(const DedupTake *take, DedupKey *key,
							 int64 *waiting);
static void start_period(const DedupTake *take, DedupKey *key);
static TakeResult join_waiting(const DedupTake *take, Relation rel,
							   HeapTuple tuple, DedupKey *key);
static TakeResult add_id_to_key(const DedupTake *take, Relation rel,
								HeapTuple tuple, DedupKey *key, int nremoved);
static TakeResult try_take_key(const DedupTake *take, Relation rel,
							   Relation index, DedupKey *key, int64 *waiting);
static void remove_id_from_key(Relation rel, HeapTuple tuple, DedupKey *key,
							   int64 id);
static bool try_drop_entry(Relation rel, Relation index,
						   const DedupEntry *entry);

/* --- Pushes --- */

/* Lock a message that was found waiting, unless it changes meanwhile. */
static TwinState
lock_waiting_message(FoundMessage *message, const DedupTake *take)
{
	/* In the mode that moving it needs, if it is to be replaced. */
	if (!message_lock_found(message, take->terms.mode == DEDUP_REPLACE ?
							LockTupleExclusive : LockTupleShare, take->wait))
		return TWIN_CHANGED;

	/* It is unchanged, but time has passed. */
	if (message_is_expired(&message->form, GetCurrentTimestamp()))
		return TWIN_GONE;

	/* Claim scans skip it until the lock is released. */
	message_return_at_commit(&message->table, message->tuple);
	return TWIN_WAITS;
}

/*
 * Returns TWIN_CLAIMED for a claimed message of a push that is a duplicate of
 * it; TWIN_CHANGED if another transaction has finished the message or given it
 * back, after waiting for that transaction.
 */
static TwinState
check_claimed(const FoundMessage *message)
{
	HeapTupleHeader header = message->tuple->t_data;
	ItemPointerData tid = message->tuple->t_self;
	TransactionId xid;

	if ((header->t_infomask & HEAP_XMAX_INVALID) ||
		HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask))
		return TWIN_CLAIMED;
	xid = HeapTupleHeaderGetUpdateXid(header);
	if (!TransactionIdIsInProgress(xid))
		return TransactionIdDidCommit(xid) ? TWIN_CHANGED : TWIN_CLAIMED;
	XactLockTableWait(xid, message->table.heap, &tid, XLTW_FetchUpdated);
	return TWIN_CHANGED;
}

/*
 * Returns the state of a message in the row of a key; one that waits is
 * locked.
 */
static TwinState
check_twin(const DedupTake *take, int64 id)
{
	FoundMessage twin;
	TimestampTz now;
	TwinState	state = TWIN_GONE;

	if (!message_find(take->queue->id, id, RowShareLock, &twin))
		return TWIN_GONE;
	now = GetCurrentTimestamp();

	/* Its run goes on, even if it will not be handed out again. */
	if (take->terms.mode == DEDUP_UNFINISHED &&
		message_is_claimed(&twin.form, now))
		state = twin.form.is_canceled ? TWIN_GONE : check_claimed(&twin);

	/*
	 * A message that is not going to be handed out makes no push a duplicate.
	 */
	else if (dedup_is_duplicate(take->queue, &twin.table, twin.tuple))
		state = TWIN_GONE;
	else if (message_is_claimed(&twin.form, now))
		state = TWIN_CLAIMED;
	else if (!message_is_expired(&twin.form, now) &&
			 !options_is_exhausted(take->queue, &twin.table, twin.tuple))
		state = lock_waiting_message(&twin, take);
	message_close_found(&twin);
	return state;
}

/*
 * Returns TWIN_WAITS if one of the messages in the row of a key waits, which
 * is locked then, and *waiting; TWIN_GONE if none does, and then key->ids has
 * only the ones that are claimed; TWIN_CHANGED if that is unknown.
 */
static TwinState
check_twins(const DedupTake *take, DedupKey *key, int64 *waiting)
{
	int64	   *claimed = palloc(key->n * sizeof(int64));
	int			nclaimed = 0;

	for (int i = 0; i < key->n; i++)
	{
		TwinState	state = check_twin(take, key->ids[i]);

		*waiting = key->ids[i];
		if (state == TWIN_WAITS || state == TWIN_CHANGED)
			return state;
		if (state == TWIN_CLAIMED)
			claimed[nclaimed++] = key->ids[i];
	}
	*waiting = 0;
	key->ids = claimed;
	key->n = nclaimed;
	return TWIN_GONE;
}

/* The period of this push begins, if it has one. */
static void
start_period(const DedupTake *take, DedupKey *key)
{
	if (take->terms.period == 0)
		return;
	key->pushed_at = GetCurrentTimestamp();
	key->kept_until = key->pushed_at +
		Max(take->terms.period * USECS_PER_SEC, KEPT_AT_LEAST);
}

/*
 * A message of the key waits, so keep runs that have begun from covering it.
 */
static TakeResult
join_waiting(const DedupTake *take, Relation rel, HeapTuple tuple,
			 DedupKey *key)
{
	bool		starts = take->terms.mode == DEDUP_REPLACE &&
	take->terms.period > 0;
	bool		done;

	/*
	 * If that message is the only one in the row, no run could cover it so
	 * far.  A twin can be put into the row only after this transaction has
	 * ended, so the claim of that twin sees the changes of this push.  Other
	 * duplicates can lock the row at the same time.
	 */
	if (key->n == 1 && !starts)
		done = row_lock(rel, &tuple->t_self, LockTupleShare, LockWaitBlock);
	else
	{
		key->joined++;
		if (starts)
			start_period(take, key);
		done = dedup_table_update(rel, tuple, key);
	}
	return done ? KEY_DUPLICATE : KEY_BUSY;
}

/*
 * Put this message into the row of a key, in front of those in key->ids.
 * nremoved is the number of ids that the row has besides these.
 */
static TakeResult
add_id_to_key(const DedupTake *take, Relation rel, HeapTuple tuple,
			  DedupKey *key, int nremoved)
{
	int64	   *ids = palloc((key->n + 1) * sizeof(int64));

	ids[0] = take->id;
	memcpy(ids + 1, key->ids, key->n * sizeof(int64));
	key->ids = ids;
	key->n++;
	start_period(take, key);

	/*
	 * A message whose id we take out may be running.  It must cover nothing,
	 * because pushes that join from now on may not be counted (join_waiting).
	 */
	if (nremoved > 0)
		key->joined++;
	return dedup_table_update(rel, tuple, key) ? KEY_TAKEN : KEY_BUSY;
}

static TakeResult
try_take_key(const DedupTake *take, Relation rel, Relation index,
			 DedupKey *key, int64 *waiting)
{
	HeapTuple	tuple;
	int			n;
	TwinState	state;
	bool		locked = false;

	*waiting = 0;
	root_job_forget();
	tuple = dedup_table_find(rel, index, key,
							 take->wait == LockWaitSkip ? &locked : NULL);
	if (locked)
		return KEY_BUSY;
	if (!HeapTupleIsValid(tuple))
	{
		DedupKey	new = {.queue_id = key->queue_id,.digest = key->digest,
		.n = 1,.pushed_at = DT_NOBEGIN,.version = key->version};
		int64		id = take->id;

		new.ids = &id;
		start_period(take, &new);
		return dedup_table_insert(rel, index, &new,
								  take->wait != LockWaitSkip) ?
			KEY_TAKEN : KEY_BUSY;
	}

	/* What locks messages or the row next must not wait either. */
	if (take->wait == LockWaitSkip &&
		!row_lock(rel, &tuple->t_self, LockTupleNoKeyExclusive, LockWaitSkip))
		return KEY_BUSY;
	n = key->n;
	state = check_twins(take, key, waiting);
	if (state == TWIN_WAITS)
		return join_waiting(take, rel, tuple, key);
	if (state == TWIN_CHANGED)
		return KEY_BUSY;
	Assert(state == TWIN_GONE);
	if ((take->terms.mode == DEDUP_UNFINISHED && key->n > 0) ||
		(take->terms.period > 0 &&
		 GetCurrentTimestamp() - take->terms.period * USECS_PER_SEC <
		 key->pushed_at))
		return KEY_DUPLICATE;
	return add_id_to_key(take, rel, tuple, key, n - key->n);
}

/*
 * Take a key for the message with this id, which the caller inserts next.
 * Returns KEY_DUPLICATE if the message is a duplicate.  Then *waiting is the
 * message that waits, or 0 if none does; with DEDUP_REPLACE it is locked, and
 * the caller replaces it.
 */
TakeResult
dedup_take_key(const DedupTake *take, int64 *waiting)
{
	Relation	index;
	Relation	rel = catalog_open_with_index(CATALOG_DEDUP_KEY,
											  RowExclusiveLock, &index);
	DedupKey	key = {.queue_id = take->queue->id,.digest = *take->digest};
	TakeResult	result;

	do
	{
		CHECK_FOR_INTERRUPTS();
		result = try_take_key(take, rel, index, &key, waiting);
	} while (result == KEY_BUSY && take->wait != LockWaitSkip);
	CommandCounterIncrement();
	index_close(index, NoLock);
	table_close(rel, NoLock);
	return result;
}

/* --- Deletes --- */

/*
 * Take a message out of the row of its key, which this transaction has locked,
 * and those that do not exist and that other deletes could not take out.
 */
static void
remove_id_from_key(Relation rel, HeapTuple tuple, DedupKey *key, int64 id)
{
	int			n = 0;

	for (int i = 0; i < key->n; i++)
		if (key->ids[i] != id && message_exists(key->queue_id, key->ids[i]))
			key->ids[n++] = key->ids[i];
	if (n == key->n)
		return;
	key->n = n;
	if (n == 0 && key->kept_until <= GetCurrentTimestamp())
		simple_heap_delete(rel, &tuple->t_self);
	else if (!dedup_table_update(rel, tuple, key))
		elog(ERROR, "could not update a locked deduplication key");
}

/* Returns the entry of a message, or NULL if it has no key. */
DedupEntry *
dedup_entry_of(TupleDesc desc, HeapTuple tuple)
{
	bool		isnull;
	Datum		digest = heap_getattr(tuple, Anum_message_dedup, desc, &isnull);
	DedupEntry *entry;

	if (isnull)
		return NULL;
	entry = palloc(sizeof(DedupEntry));
	entry->queue_id = message_row_queue(tuple);
	entry->digest = *DatumGetUUIDP(digest);
	entry->id = message_row_id(tuple);
	return entry;
}

/*
 * Take a message out of the row of its key.  Returns false if the row is
 * locked by another transaction or has changed.
 */
static bool
try_drop_entry(Relation rel, Relation index, const DedupEntry *entry)
{
	DedupKey	key = {.queue_id = entry->queue_id,.digest = entry->digest};
	HeapTuple	tuple = dedup_table_fetch(rel, index, &key, NULL);

	if (!HeapTupleIsValid(tuple))
		return true;
	if (!row_lock(rel, &tuple->t_self, LockTupleNoKeyExclusive, LockWaitSkip))
		return false;
	remove_id_from_key(rel, tuple, &key, entry->id);
	return true;
}

/* Take a message that was deleted out of the row of its key. */
void
dedup_drop_entry(const DedupEntry *entry)
{
	Relation	index;
	Relation	rel = catalog_open_with_index(CATALOG_DEDUP_KEY,
											  RowExclusiveLock, &index);

	PushActiveSnapshot(GetLatestSnapshot());
	if (!try_drop_entry(rel, index, entry))
	{
		/*
		 * If this command has deleted a twin as well, it has changed the row
		 * already, and does not see that yet.  If another transaction has
		 * locked the row, we leave the id there, which does no harm.
		 */
		CommandCounterIncrement();
		(void) try_drop_entry(rel, index, entry);
	}
	PopActiveSnapshot();
	index_close(index, NoLock);
	table_close(rel, NoLock);
}

/* --- Claims --- */

/*
 * Returns whether the message will never be handed out, because other runs
 * replace its own: it is covered, or the leaf job of a root job that was
 * superseded.
 */
bool
dedup_is_duplicate(const Queue *queue, MessageTable *table, HeapTuple tuple)
{
	return !message_row_is_null(tuple, Anum_message_covered) ||
		(queue->has_roots &&
		 root_job_is_superseded(queue, RelationGetDescr(table->heap), tuple));
}

/* --- Rows that are not needed any more --- */

/*
 * A step of the worker: delete some rows that no push and no message keeps any
 * more, unless they are locked.  Returns false if these were the last ones.
 *
 * What was deleted stays in the index as long as an old snapshot may see it.
 * So the scan begins at the time *arg, where the last one has ended, and sets
 * that.
 */
bool
dedup_forget_step(void *arg)
{
	TimestampTz *from = arg;
	TimestampTz now = GetCurrentTimestamp();
	Relation	rel;
	ScanKeyData keys[2];
	RowScan		scan;
	HeapTuple	tuple;
	DedupKey	key;
	int			n = 0;

	/* The clock may have been set back. */
	if (*from > now)
		*from = DT_NOBEGIN;
	rel = catalog_open(CATALOG_DEDUP_KEY, RowExclusiveLock, NULL);
	ScanKeyInit(&keys[0], Anum_dedup_key_kept_until,
				BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(*from));
	ScanKeyInit(&keys[1], Anum_dedup_key_kept_until, BTLessStrategyNumber,
				F_TIMESTAMPTZ_LT, TimestampTzGetDatum(now));
	row_scan_begin(&scan, rel, catalog_oid(CATALOG_DEDUP_KEY_TIME_INDEX),
				   keys, lengthof(keys));
	while (n < FORGET_AT_ONCE &&
		   HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		dedup_table_get(rel, tuple, &key);
		*from = key.kept_until;
		n++;

		/* The delete of its last message removes a row that has ids. */
		if (key.n == 0 &&
			row_lock(rel, &tuple->t_self, LockTupleExclusive, LockWaitSkip))
			simple_heap_delete(rel, &tuple->t_self);
	}
	row_scan_end(&scan);
	table_close(rel, RowExclusiveLock);
	return n == FORGET_AT_ONCE;
}
