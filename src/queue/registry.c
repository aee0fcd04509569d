/*-------------------------------------------------------------------------
 *
 * registry.c
 *	  Queues: finding them by name, locking them, who may do what with them.
 *
 * NOTES
 *	  A session keeps what it knows of queues in a hash table.  Whoever
 *	  changes or drops a queue sends an invalidation message for the queue
 *	  table, upon which everything is forgotten; a new queue needs no message,
 *	  since that a queue is unknown is not remembered.
 *
 *	  A push or claim takes a light lock on its queue, which drop and purge
 *	  exclude.  With the lock, the caller processes pending invalidation
 *	  messages and, if there were any, looks the queue up again: so nothing is
 *	  pushed to a queue that was dropped while the caller waited.
 *
 *	  The lock table has room for some thousand locks only.  A transaction
 *	  that uses more than LOCKS_BY_QUEUE queues locks the rows of the others
 *	  instead (FOR KEY SHARE).  Drop and purge take both locks, the one on the
 *	  row FOR UPDATE.  No lock stands for more than one queue, so a session
 *	  never waits because of a queue that it does not use.
 *
 *	  A queue that was created to take the dead letters of another one has
 *	  that one's id in source_id.  Until claim or admin is granted on it by
 *	  name, that privilege is its source queue's.  It is looked up when the
 *	  queue is loaded; a change of the source makes that invalid like any
 *	  other change of a queue.  When the source is gone, only the owner and
 *	  the admins have the privilege.
 *
 *	  Locks are object locks on rows of the queue table: (database, table,
 *	  queue id).  The sub-id tells the few other things that are locked.
 *
 * src/queue/registry.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "queue/options.h"
#include "queue/registry.h"
#include "queue/role.h"
#include "shmem/availability.h"
#include "storage/row.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/limits.h"
#include "util/settings.h"

#define LOCKS_BY_QUEUE		64	/* per transaction */
#define CACHE_QUEUES		4096	/* then it starts anew */
#define READ_TRIES			10	/* while queues keep changing */
#define WARN_PAUSE			60000	/* milliseconds */
#define KEY_LENGTH			(QUEUE_PROJECT_LENGTH + QUEUE_NAME_LENGTH + 2)

/* Sub-ids of locks on the queue table */
#define LOCK_QUEUE			0	/* using a queue, or changing what it is */
#define LOCK_DEAD_LETTERS	1	/* where its dead letters go */
#define LOCK_SCHEDULE		2	/* a schedule, with its number as queue id */
#define LOCK_RATE			3	/* how fast a queue's jobs begin */
#define LOCK_ROLE			4	/* the id is a role's: recording that it is named */
#define LOCK_SLOT			16	/* and above: places for those who run them */

/* Rights on one queue, as its row has them; NULL: not narrowed. */
typedef struct Rights
{
	Oid			owner;
	ArrayType  *push_roles;
	ArrayType  *claim_roles;
	ArrayType  *admin_roles;
} Rights;

/* What the session knows of a queue. */
typedef struct KnownQueue
{
	char		key[KEY_LENGTH];	/* project, newline, name */
	Queue		queue;
	Rights		rights;
	TimestampTz warned_at;		/* of dead letters that cannot be moved */
} KnownQueue;

/* What became of locking a queue */
typedef enum LockResult
{
	LOCK_TAKEN,					/* a lock that is to be released if the queue
								 * is not used after all */
	LOCK_KEPT,					/* one that was held before, or a row's */
	LOCK_BUSY,					/* not without waiting */
	LOCK_GONE					/* the queue does not exist any more */
} LockResult;

static HTAB *known_queues = NULL;
static MemoryContext known_context = NULL;
static uint64 known_generation = 0;

/* Queue locks taken by this transaction. */
static LocalTransactionId locks_of = InvalidLocalTransactionId;
static int	locks_taken;

static void forget_if_stale(void);
static void make_key(char *key, const char *name);
static bool look_up(const char *name, Queue *queue, Rights *rights,
					uint64 *generation);
static void keep(const char *key, const Queue *queue, const Rights *rights);
static void load(Relation rel, HeapTuple tuple, Queue *queue);
static void load_rights(Relation rel, HeapTuple tuple, Rights *rights);
static int32 id_attribute(HeapTuple tuple, int attribute, TupleDesc desc);
static ArrayType *roles_attribute(HeapTuple tuple, int attribute,
								  TupleDesc desc);
static ArrayType *copy_roles(ArrayType *roles);
static bool is_one_of(Oid role, ArrayType *roles);
static bool has_right(Oid role, QueueUse use, const Rights *rights);
static LOCKMODE lock_mode(QueueUse use);
pg_noreturn static void denied(const char *name, QueueUse use);
static bool has_roots(int32 queue_id);
static HeapTuple fetch_by_id(Relation rel, int32 id);
static LockAcquireResult lock_object(int32 queue_id, uint16 sub_id,
									 LOCKMODE mode, bool wait);
static LockResult lock_row(int32 queue_id, LockTupleMode mode, bool wait);
static LockResult lock_queue(int32 queue_id, QueueUse use, bool wait);
static void unlock_queue(int32 queue_id, QueueUse use);

/*
 * Refuse what writes where nothing can be written, and parallel workers,
 * which cannot have the latest snapshot.
 */
void
queue_prevent(const char *function)
{
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
	PreventCommandDuringRecovery(function);
}

/* A queue name that was passed as an argument. */
const char *
queue_name_arg(FunctionCallInfo fcinfo, int arg, const char *argname)
{
	if (PG_ARGISNULL(arg))
		arg_missing(argname);
	return queue_name_text(PG_GETARG_TEXT_PP(arg), argname);
}

const char *
queue_name_text(text *value, const char *argname)
{
	const char *name = text_to_cstring(value);

	queue_check_name(name, argname);
	return name;
}

/* 1 to 64 ASCII letters, digits and _ - . : / */
void
queue_check_name(const char *name, const char *argname)
{
	size_t		length = strlen(name);

	if (length >= 1 && length <= QUEUE_NAME_LENGTH &&
		strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
			   "0123456789_-.:/") == length)
		return;

	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("parameter \"%s\" is not a valid queue name: \"%s\"",
					argname, arg_clip(name)),
			 errhint("A name is 1 to %d characters out of letters, digits, and the signs _ - . : / only.",
					 QUEUE_NAME_LENGTH)));
}

void
queue_unknown(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("queue \"%s\" does not exist", name),
			 *setting_project != '\0' ?
			 errdetail("The session's project (queue.project) is \"%s\".",
					   setting_project) : 0,
			 errhint("Create it with queue_create.")));
}

/* Tell all sessions, this one included, that a queue has changed. */
void
queue_changed(void)
{
	CacheInvalidateRelcacheByRelid(catalog_queue_oid());
	CommandCounterIncrement();
}

/* Throw the session's knowledge away if a queue may have changed. */
static void
forget_if_stale(void)
{
	HASHCTL		info;

	if (known_queues != NULL &&
		known_generation == catalog_generation() &&
		hash_get_num_entries(known_queues) < CACHE_QUEUES)
		return;

	if (known_context == NULL)
		known_context = AllocSetContextCreate(CacheMemoryContext,
											  "queues known to the session",
											  ALLOCSET_DEFAULT_SIZES);
	known_queues = NULL;
	MemoryContextReset(known_context);
	info.keysize = KEY_LENGTH;
	info.entrysize = sizeof(KnownQueue);
	info.hcxt = known_context;
	known_queues = hash_create("queues known to the session", 64, &info,
							   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	known_generation = catalog_generation();
}

/* The row of a queue in the session's project, or NULL; to be freed. */
HeapTuple
queue_fetch(Relation rel, const char *name)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], Anum_queue_project, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(setting_project));
	ScanKeyInit(&keys[1], Anum_queue_name, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(name));
	return row_fetch(rel, catalog_queue_name_index_oid(), keys, 2);
}

static ArrayType *
roles_attribute(HeapTuple tuple, int attribute, TupleDesc desc)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, attribute, desc, &isnull);

	return isnull ? NULL : DatumGetArrayTypePCopy(value);
}

/*
 * Was a root job ever registered in the queue?  The first one sends an
 * invalidation message for the table of queues.
 */
static bool
has_roots(int32 queue_id)
{
	Relation	index;
	Relation	rel = catalog_open_root_jobs(AccessShareLock, &index);
	bool		found = false;

	if (RelationGetNumberOfBlocks(rel) > 0)
	{
		ScanKeyData key;

		ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT4EQ,
					Int32GetDatum(queue_id));
		found = HeapTupleIsValid(row_fetch(rel, RelationGetRelid(index),
										   &key, 1));
	}
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return found;
}

/* A column that has the id of another queue; 0 for NULL. */
static int32
id_attribute(HeapTuple tuple, int attribute, TupleDesc desc)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, attribute, desc, &isnull);

	return isnull ? 0 : DatumGetInt32(value);
}

static void
load(Relation rel, HeapTuple tuple, Queue *queue)
{
	TupleDesc	desc = RelationGetDescr(rel);
	bool		isnull;

#define GET(attribute) heap_getattr(tuple, Anum_queue_##attribute, desc, &isnull)
	memset(queue, 0, sizeof(Queue));
	queue->id = DatumGetInt32(GET(id));
	queue->owner = DatumGetObjectId(GET(owner));
	queue->paused = DatumGetBool(GET(paused));
	strlcpy(queue->name, TextDatumGetCString(GET(name)), sizeof(queue->name));
	queue->dead_id = id_attribute(tuple, Anum_queue_dead_queue_id, desc);
	queue->source_id = id_attribute(tuple, Anum_queue_source_id, desc);
	options_parse(DatumGetJsonbP(GET(metadata)), queue, false);
	queue->has_roots = has_roots(queue->id);
#undef GET
}

/*
 * The rights on a queue.  If claim or admin was not granted on it by name, and
 * it was created for another queue, that is looked up there.
 */
static void
load_rights(Relation rel, HeapTuple tuple, Rights *rights)
{
	TupleDesc	desc = RelationGetDescr(rel);
	int32		source = id_attribute(tuple, Anum_queue_source_id, desc);
	bool		isnull;

	rights->owner = DatumGetObjectId(heap_getattr(tuple, Anum_queue_owner,
												  desc, &isnull));
	rights->push_roles = roles_attribute(tuple, Anum_queue_push_roles, desc);
	rights->claim_roles = roles_attribute(tuple, Anum_queue_claim_roles, desc);
	rights->admin_roles = roles_attribute(tuple, Anum_queue_admin_roles, desc);

	while (source != 0 &&
		   (rights->claim_roles == NULL || rights->admin_roles == NULL))
	{
		HeapTuple	of = fetch_by_id(rel, source);

		if (!HeapTupleIsValid(of))
		{
			if (rights->claim_roles == NULL)
				rights->claim_roles = construct_empty_array(REGROLEOID);
			return;
		}
		if (rights->claim_roles == NULL)
			rights->claim_roles = roles_attribute(of, Anum_queue_claim_roles,
												  desc);
		if (rights->admin_roles == NULL)
			rights->admin_roles = roles_attribute(of, Anum_queue_admin_roles,
												  desc);
		source = id_attribute(of, Anum_queue_source_id, desc);
		heap_freetuple(of);
	}
}

static ArrayType *
copy_roles(ArrayType *roles)
{
	return roles == NULL ? NULL :
		DatumGetArrayTypePCopy(PointerGetDatum(roles));
}

/* The key of a queue of the session's project in known_queues. */
static void
make_key(char *key, const char *name)
{
	Size		length = strlen(setting_project);

	Assert(length + strlen(name) + 2 <= KEY_LENGTH);
	memcpy(key, setting_project, length);
	key[length] = '\n';
	strlcpy(key + length + 1, name, KEY_LENGTH - length - 1);
}

/*
 * What is this queue now?  False: it is unknown.  *generation is the one that
 * the answer is of: while it is the current one, the answer holds.
 */
static bool
look_up(const char *name, Queue *queue, Rights *rights, uint64 *generation)
{
	char		key[KEY_LENGTH];
	KnownQueue *known;
	Relation	rel;
	HeapTuple	tuple = NULL;

	make_key(key, name);
	forget_if_stale();
	known = hash_search(known_queues, key, HASH_FIND, NULL);
	if (known != NULL)
	{
		*queue = known->queue;
		*rights = known->rights;
		*generation = known_generation;
		return true;
	}

	/*
	 * Reading takes in invalidation messages, after the snapshot was taken:
	 * what was read is only known to be true if there were none.
	 */
	rel = catalog_open_queues(AccessShareLock);
	for (int tries = 0; tries < READ_TRIES; tries++)
	{
		*generation = catalog_generation();
		tuple = queue_fetch(rel, name);
		if (HeapTupleIsValid(tuple))
		{
			load(rel, tuple, queue);
			load_rights(rel, tuple, rights);
		}
		if (*generation == catalog_generation())
			break;
	}
	table_close(rel, AccessShareLock);

	/*
	 * A row that this transaction wrote is gone if it rolls back, and for a
	 * new row no message would tell.
	 */
	if (HeapTupleIsValid(tuple) &&
		*generation == catalog_generation() &&
		!TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data)))
		keep(key, queue, rights);
	return HeapTupleIsValid(tuple);
}

/* Remember a queue. */
static void
keep(const char *key, const Queue *queue, const Rights *rights)
{
	MemoryContext old;
	Rights		kept = *rights;
	KnownQueue *known;

	forget_if_stale();
	old = MemoryContextSwitchTo(known_context);
	kept.push_roles = copy_roles(rights->push_roles);
	kept.claim_roles = copy_roles(rights->claim_roles);
	kept.admin_roles = copy_roles(rights->admin_roles);
	known = hash_search(known_queues, key, HASH_ENTER, NULL);
	known->queue = *queue;
	known->rights = kept;
	known->warned_at = 0;
	MemoryContextSwitchTo(old);
}

/* Is the role a member of one of these? */
static bool
is_one_of(Oid role, ArrayType *roles)
{
	Datum	   *members;
	int			n;

	if (roles == NULL)
		return false;
	deconstruct_array(roles, REGROLEOID, sizeof(Oid), true, TYPALIGN_INT,
					  &members, NULL, &n);
	for (int i = 0; i < n; i++)
		if (has_privs_of_role(role, DatumGetObjectId(members[i])))
			return true;
	return false;
}

/* May the role use a queue with these rights so? */
static bool
has_right(Oid role, QueueUse use, const Rights *rights)
{
	if (use == QUEUE_LOOK ||
		superuser_arg(role) ||
		has_privs_of_role(role, rights->owner) ||
		(OidIsValid(catalog_admin_role()) &&
		 has_privs_of_role(role, catalog_admin_role())) ||
		is_one_of(role, rights->admin_roles))
		return true;

	switch (use)
	{
		case QUEUE_PUSH:
			return OidIsValid(catalog_producer_role()) &&
				has_privs_of_role(role, catalog_producer_role()) &&
				(rights->push_roles == NULL ||
				 is_one_of(role, rights->push_roles));
		case QUEUE_READ:
		case QUEUE_CLAIM:
			return OidIsValid(catalog_consumer_role()) &&
				has_privs_of_role(role, catalog_consumer_role()) &&
				(rights->claim_roles == NULL ||
				 is_one_of(role, rights->claim_roles));
		default:
			return false;
	}
}

/*
 * What is this queue, and may the role use it so?  Takes no lock.  False: it
 * does not exist.
 */
bool
queue_peek(const char *name, Oid role, QueueUse use, Queue *queue, bool *may)
{
	Rights		rights;
	uint64		generation;

	if (!look_up(name, queue, &rights, &generation))
		return false;
	*may = has_right(role, use, &rights);
	return true;
}

static LOCKMODE
lock_mode(QueueUse use)
{
	switch (use)
	{
		case QUEUE_LOOK:
		case QUEUE_READ:
			return NoLock;
		case QUEUE_PUSH:
		case QUEUE_CLAIM:
			return RowExclusiveLock;
		case QUEUE_ALTER:
			return ShareUpdateExclusiveLock;	/* excludes only its like */
		case QUEUE_PURGE:
			return ExclusiveLock;
		case QUEUE_DROP:
			return AccessExclusiveLock;
	}
	elog(ERROR, "unrecognized use of a queue: %d", (int) use);
}

static LockAcquireResult
lock_object(int32 queue_id, uint16 sub_id, LOCKMODE mode, bool wait)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, catalog_queue_oid(),
					   (uint32) queue_id, sub_id);
	return LockAcquire(&tag, mode, false, !wait);
}

/*
 * Lock the row of a queue to the end of the transaction.  The lock on the
 * table is kept as well, or VACUUM FULL would forget the lock on the row.
 */
static LockResult
lock_row(int32 queue_id, LockTupleMode mode, bool wait)
{
	Relation	rel = catalog_open_queues(RowShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	HeapTuple	tuple = fetch_by_id(rel, queue_id);
	LockResult	result = LOCK_KEPT;
	TM_FailureData failure;

	if (!HeapTupleIsValid(tuple))
		result = LOCK_GONE;
	else
	{
		PushActiveSnapshot(GetLatestSnapshot());
		switch (table_tuple_lock(rel, &tuple->t_self, GetActiveSnapshot(),
								 slot, GetCurrentCommandId(true), mode,
								 wait ? LockWaitBlock : LockWaitSkip,
								 TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS |
								 TUPLE_LOCK_FLAG_FIND_LAST_VERSION,
								 &failure))
		{
			case TM_Ok:
				break;
			case TM_WouldBlock:
				result = LOCK_BUSY;
				break;
			case TM_Deleted:
				result = LOCK_GONE;
				break;
			case TM_Updated:
			case TM_Invisible:
			case TM_SelfModified:
			case TM_BeingModified:
			default:
				elog(ERROR, "unexpected result of locking a queue");
		}
		PopActiveSnapshot();
	}
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, NoLock);
	return result;
}

/*
 * Lock a queue for a use, to the end of the transaction.  Only a push or claim
 * can be refused (LOCK_BUSY) instead of waiting.
 */
static LockResult
lock_queue(int32 queue_id, QueueUse use, bool wait)
{
	LOCKMODE	mode = lock_mode(use);
	LockResult	result = LOCK_KEPT;

	Assert(wait || mode == RowExclusiveLock);
	if (locks_of != my_local_xid())
	{
		locks_of = my_local_xid();
		locks_taken = 0;
	}

	if (mode == RowExclusiveLock && locks_taken >= LOCKS_BY_QUEUE)
	{
		/*
		 * Locking a row waits for a lock on its next version even if it is not
		 * to wait.  A session that has such a lock has the queue's too.
		 */
		if (!wait &&
			lock_object(queue_id, LOCK_QUEUE, mode, false) == LOCKACQUIRE_NOT_AVAIL)
			return LOCK_BUSY;
		result = lock_row(queue_id, LockTupleKeyShare, wait);
		if (!wait)
			unlock_queue(queue_id, use);
	}
	else
	{
		switch (lock_object(queue_id, LOCK_QUEUE, mode, wait))
		{
			case LOCKACQUIRE_NOT_AVAIL:
				return LOCK_BUSY;
			case LOCKACQUIRE_OK:
				locks_taken++;
				result = LOCK_TAKEN;
				break;
			default:
				break;
		}
		if (mode >= ExclusiveLock &&
			lock_row(queue_id, LockTupleExclusive, wait) == LOCK_GONE)
		{
			if (result == LOCK_TAKEN)
				unlock_queue(queue_id, use);
			result = LOCK_GONE;
		}
	}
	AcceptInvalidationMessages();
	return result;
}

static void
unlock_queue(int32 queue_id, QueueUse use)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, catalog_queue_oid(),
					   (uint32) queue_id, LOCK_QUEUE);
	LockRelease(&tag, lock_mode(use), false);
}

/*
 * Use a queue like a push or claim does, unless one would have to wait.  It
 * may be gone.
 */
bool
queue_try_lock(int32 id)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, catalog_queue_oid(), (uint32) id,
					   LOCK_QUEUE);
	return LockAcquire(&tag, RowExclusiveLock, false, true) !=
		LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Lock where a queue's dead letters go, to the end of the transaction: shared
 * against a change, or exclusively to change it.
 */
void
queue_lock_dead_letters(int32 queue_id, bool change)
{
	(void) lock_object(queue_id, LOCK_DEAD_LETTERS,
					   change ? ExclusiveLock : ShareLock, true);
	AcceptInvalidationMessages();
}

/* Held by the role that made a schedule while it is used or changed. */
void
queue_lock_schedule(int32 id)
{
	(void) lock_object(id, LOCK_SCHEDULE, ExclusiveLock, true);
	AcceptInvalidationMessages();
}

/*
 * Lock what is recorded of a role (role.c), unless that would have to wait;
 * shared while a queue that names it is written, exclusively to remove it.
 */
bool
queue_lock_role(Oid role, bool remove)
{
	return lock_object((int32) role, LOCK_ROLE,
					   remove ? ExclusiveLock : ShareLock, false) !=
		LOCKACQUIRE_NOT_AVAIL;
}

/* Held while some of a queue's jobs are let begin. */
void
queue_lock_rate(int32 queue_id)
{
	(void) lock_object(queue_id, LOCK_RATE, ExclusiveLock, true);
}

/*
 * Take one of the places for those who run a queue's jobs, without waiting.
 * It is held until it is given back, or the process ends.  Returns its number,
 * or -1 when all are taken.
 */
int
queue_lock_take_slot(int32 queue_id, int slots)
{
	LOCKTAG		tag;

	for (int i = 0; i < slots; i++)
	{
		SET_LOCKTAG_OBJECT(tag, MyDatabaseId, catalog_queue_oid(),
						   (uint32) queue_id, LOCK_SLOT + i);
		switch (LockAcquire(&tag, ExclusiveLock, true, true))
		{
			case LOCKACQUIRE_OK:
				return i;
			case LOCKACQUIRE_NOT_AVAIL:
				break;
			default:			/* ours: a handler that runs handlers */
				LockRelease(&tag, ExclusiveLock, true);
		}
	}
	return -1;
}

/* The table, whose OID cannot be looked up outside of a transaction */
void
queue_lock_give_slot(Oid extension, int32 queue_id, int slot)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, extension, (uint32) queue_id,
					   LOCK_SLOT + slot);
	LockRelease(&tag, ExclusiveLock, true);
}

/*
 * Find a queue of the session's project for a use, check the role's right to
 * it, and lock it to the end of the transaction.
 */
QueueOpened
queue_open_as(const char *name, Oid role, QueueUse use, bool wait,
			  Queue *queue)
{
	Rights		rights;
	uint64		generation;

	PreventCommandIfParallelMode("functions of the extension \"queue\"");
	while (look_up(name, queue, &rights, &generation))
	{
		int32		id = queue->id;
		LockResult	lock;

		if (!has_right(role, use, &rights))
			return QUEUE_DENIED;
		if (lock_mode(use) == NoLock)
			return QUEUE_OPENED;
		lock = lock_queue(id, use, wait);
		if (lock == LOCK_BUSY)
			return QUEUE_BUSY;

		/* The message that tells of the drop may still be under way. */
		if (lock == LOCK_GONE)
			known_generation = 0;
		else if (generation == catalog_generation())
			return QUEUE_OPENED;

		/* Something changed while we waited: is it still this queue? */
		else if (look_up(name, queue, &rights, &generation) &&
				 queue->id == id && has_right(role, use, &rights))
			return QUEUE_OPENED;
		if (lock == LOCK_TAKEN)
			unlock_queue(id, use);
	}
	return QUEUE_MISSING;
}

/* The same for the current user.  False: the queue does not exist. */
bool
queue_open(const char *name, QueueUse use, Queue *queue)
{
	QueueOpened opened = queue_open_as(name, GetUserId(), use, true, queue);

	if (opened == QUEUE_DENIED)
		denied(name, use);
	return opened == QUEUE_OPENED;
}

static void
denied(const char *name, QueueUse use)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for queue \"%s\"", name),
			 use == QUEUE_PUSH ?
			 errhint("To push, be a member of queue_producer and, where push is granted to named roles, of one of these.") :
			 use == QUEUE_READ || use == QUEUE_CLAIM ?
			 errhint("To list, claim and delete, be a member of queue_consumer and, where claim is granted to named roles, of one of these.") :
			 errhint("This needs the queue's owner, a role with the privilege admin on it, or a member of queue_admin.")));
}

/* The same where the queue has to exist. */
void
queue_open_known(const char *name, QueueUse use, Queue *queue)
{
	if (!queue_open(name, use, queue))
		queue_unknown(name);
}

/* Queues are made by producers and admins. */
void
queue_check_may_create(void)
{
	Oid			role = GetUserId();

	if (superuser_arg(role) ||
		(OidIsValid(catalog_producer_role()) &&
		 has_privs_of_role(role, catalog_producer_role())) ||
		(OidIsValid(catalog_admin_role()) &&
		 has_privs_of_role(role, catalog_admin_role())))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied to create a queue"),
			 errhint("This needs a member of queue_producer or queue_admin.")));
}

/* Open a queue for the current user's push; where it may be, create it. */
void
queue_open_for_push(const char *name, Queue *queue)
{
	if (queue_open(name, QUEUE_PUSH, queue))
		return;
	if (!setting_auto_create)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("queue \"%s\" does not exist", name),
				 errhint("Create it with queue_create, or have \"queue.auto_create\" switched on.")));
	queue_check_may_create();
	while (!queue_open(name, QUEUE_PUSH, queue))
		queue_insert(name, NULL, GetUserId(), 0);
}

/*
 * Should a warning of this queue be given?  At most one a minute is, as long
 * as the session remembers the queue.
 */
bool
queue_should_warn(const char *name)
{
	char		key[KEY_LENGTH];
	KnownQueue *known;
	TimestampTz now = GetCurrentTimestamp();

	make_key(key, name);
	forget_if_stale();
	known = hash_search(known_queues, key, HASH_FIND, NULL);
	if (known == NULL)
		return true;
	if (known->warned_at <= now &&
		!TimestampDifferenceExceeds(known->warned_at, now, WARN_PAUSE))
		return false;
	known->warned_at = now;
	return true;
}

/*
 * Create a queue; source_id: the one whose dead letters it is to take, or 0.
 * Waits for a transaction that has created one of this name and not ended.
 * False: another session has created it.
 */
bool
queue_insert(const char *name, Jsonb *metadata, Oid owner, int32 source_id)
{
	Relation	rel = catalog_open_queues(RowExclusiveLock);
	Relation	name_index = index_open(catalog_queue_name_index_oid(),
										RowExclusiveLock);
	Datum		values[Natts_queue] = {0};
	bool		isnull[Natts_queue] = {false};
	ScanKeyData keys[2];
	bool		made = false;

	values[Anum_queue_owner - 1] = ObjectIdGetDatum(owner);
	values[Anum_queue_paused - 1] = BoolGetDatum(false);
	values[Anum_queue_created_at - 1] =
		TimestampTzGetDatum(GetCurrentTimestamp());
	/* One from postgresql.conf was set before the encoding was known. */
	pg_verifymbstr(setting_project, strlen(setting_project), false);
	values[Anum_queue_project - 1] = CStringGetTextDatum(setting_project);
	values[Anum_queue_name - 1] = CStringGetTextDatum(name);
	values[Anum_queue_metadata - 1] = metadata != NULL ?
		JsonbPGetDatum(metadata) :
		DirectFunctionCall1(jsonb_in, CStringGetDatum("{}"));

	/* Messages come to it from its source, or by an explicit grant. */
	isnull[Anum_queue_push_roles - 1] = source_id == 0;
	if (source_id != 0)
		values[Anum_queue_push_roles - 1] =
			PointerGetDatum(construct_empty_array(REGROLEOID));
	isnull[Anum_queue_claim_roles - 1] = true;
	isnull[Anum_queue_admin_roles - 1] = true;
	isnull[Anum_queue_dead_queue_id - 1] = true;
	isnull[Anum_queue_source_id - 1] = source_id == 0;
	values[Anum_queue_source_id - 1] = Int32GetDatum(source_id);

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				values[Anum_queue_project - 1]);
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_TEXTEQ,
				values[Anum_queue_name - 1]);
	while (!made &&
		   !HeapTupleIsValid(row_find_unique(rel, name_index, keys, 2)))
	{
		HeapTuple	tuple;

		values[Anum_queue_id - 1] = Int32GetDatum(catalog_next_queue_id());
		tuple = heap_form_tuple(RelationGetDescr(rel), values, isnull);
		made = row_insert_unique(rel, name_index, tuple);
	}

	index_close(name_index, NoLock);
	table_close(rel, NoLock);
	CommandCounterIncrement();
	if (made)
	{
		role_record(owner);
		availability_begin_queue(DatumGetInt32(values[Anum_queue_id - 1]));
	}
	return made;
}

/* The row of the queue with this id, or NULL; to be freed. */
static HeapTuple
fetch_by_id(Relation rel, int32 id)
{
	ScanKeyData key;

	ScanKeyInit(&key, Anum_queue_id, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(id));
	return row_fetch(rel, catalog_queue_id_index_oid(), &key, 1);
}

/* The queue with this id, whatever its project. */
bool
queue_by_id(int32 id, Queue *queue)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	HeapTuple	tuple = fetch_by_id(rel, id);

	if (HeapTupleIsValid(tuple))
		load(rel, tuple, queue);
	table_close(rel, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

/*
 * The ids of the queues that were created for this one (Anum_queue_source_id)
 * or send their dead letters to it (Anum_queue_dead_queue_id).
 */
List *
queue_referring(int attribute, int32 id)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	ScanKeyData key;
	RowScan		scan;
	HeapTuple	tuple;
	List	   *ids = NIL;

	ScanKeyInit(&key, attribute, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(id));
	row_scan_begin(&scan, rel, attribute == Anum_queue_source_id ?
				   catalog_queue_source_index_oid() :
				   catalog_queue_dead_queue_index_oid(), &key, 1);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
		ids = lappend_int(ids, id_attribute(tuple, Anum_queue_id,
											RelationGetDescr(rel)));
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
	return ids;
}

/*
 * Whose id is this?  False: there is no such queue.  The buffers have room
 * for names of any length that is allowed.
 */
bool
queue_name_of(int32 id, char *project, char *name, bool *paused)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	HeapTuple	tuple = fetch_by_id(rel, id);

	if (HeapTupleIsValid(tuple))
	{
		TupleDesc	desc = RelationGetDescr(rel);
		bool		isnull;

		strlcpy(project,
				TextDatumGetCString(heap_getattr(tuple, Anum_queue_project,
												 desc, &isnull)),
				QUEUE_PROJECT_LENGTH + 1);
		strlcpy(name,
				TextDatumGetCString(heap_getattr(tuple, Anum_queue_name, desc,
												 &isnull)),
				QUEUE_NAME_LENGTH + 1);
		*paused = DatumGetBool(heap_getattr(tuple, Anum_queue_paused, desc,
											&isnull));
	}
	table_close(rel, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

/* When was this queue made?  False: there is no such queue. */
bool
queue_created_at(int32 id, TimestampTz *created_at)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	HeapTuple	tuple = fetch_by_id(rel, id);
	bool		isnull;

	if (HeapTupleIsValid(tuple))
		*created_at =
			DatumGetTimestampTz(heap_getattr(tuple, Anum_queue_created_at,
											 RelationGetDescr(rel), &isnull));
	table_close(rel, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

/* All queues of a project, or of all (NULL). */
QueueEntry *
queue_all(const char *project, int *n)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	ScanKeyData key;
	RowScan		scan;
	HeapTuple	tuple;
	int			size = 64;
	QueueEntry *queues = palloc(size * sizeof(QueueEntry));

	*n = 0;
	if (project != NULL)
		ScanKeyInit(&key, Anum_queue_project, BTEqualStrategyNumber,
					F_TEXTEQ, CStringGetTextDatum(project));
	row_scan_begin(&scan, rel, catalog_queue_name_index_oid(), &key,
				   project == NULL ? 0 : 1);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		TupleDesc	desc = RelationGetDescr(rel);
		bool		isnull;

		if (*n == size)
		{
			size *= 2;
			queues = repalloc(queues, size * sizeof(QueueEntry));
		}
		queues[*n].id = DatumGetInt32(heap_getattr(tuple, Anum_queue_id, desc,
												   &isnull));
		queues[*n].name =
			TextDatumGetCString(heap_getattr(tuple, Anum_queue_name, desc,
											 &isnull));
		(*n)++;
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
	return queues;
}
