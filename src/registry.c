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
 *	  Every push and claim takes a light lock on its queue, which drop and
 *	  purge exclude.  Having it, the caller takes in pending invalidation
 *	  messages and, if there were any, looks again: so nobody pushes to a
 *	  queue that was dropped while it waited.
 *
 *	  The lock table has room for some thousand locks only.  A transaction
 *	  that uses more than LOCKS_BY_QUEUE queues takes, for the rest, one lock
 *	  that stands for all queues; drop and purge take that one too, in a mode
 *	  that lets other drops pass.
 *
 *	  Locks are object locks on rows of the queue table: (database, table,
 *	  queue id).  The sub-id tells the few other things that are locked.
 *
 * src/registry.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#define LOCKS_BY_QUEUE		64	/* per transaction */
#define CACHE_QUEUES		4096	/* then it starts anew */
#define READ_TRIES			10	/* while queues keep changing */
#define CLIP_LENGTH			100 /* bytes of a user's text in a message */
#define KEY_LENGTH			(QUEUE_PROJECT_LENGTH + QUEUE_NAME_LENGTH + 2)

/* Sub-ids of locks on the queue table */
#define LOCK_QUEUE			0	/* one queue, or all with queue id 0 */
#define LOCK_DEAD_LETTERS	1	/* who sends dead letters to whom */
#define LOCK_SCHEDULE		2	/* a schedule, with its number as queue id */
#define LOCK_RATE			3	/* how fast a queue's jobs begin */
#define LOCK_PLACE			16	/* and above: places for those who run them */

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
} KnownQueue;

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
static void load(TupleDesc desc, HeapTuple tuple, Queue *queue,
				 Rights *rights);
static ArrayType *roles_attribute(HeapTuple tuple, int attribute,
								  TupleDesc desc);
static ArrayType *copy_roles(ArrayType *roles);
static bool is_one_of(Oid role, ArrayType *roles);
static bool has_right(Oid role, QueueUse use, const Rights *rights);
static LOCKMODE lock_mode(QueueUse use);
static bool has_roots(int32 queue_id);
static HeapTuple fetch_by_id(Relation rel, int32 id);
static bool lock_object(int32 queue_id, uint16 sub_id, LOCKMODE mode);
static bool lock_queue(int32 queue_id, QueueUse use);
static void unlock_queue(int32 queue_id, QueueUse use);
static bool open_as(const char *name, Oid role, QueueUse use, Queue *queue);

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
		queue_arg_missing(argname);
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
					argname, queue_clip(name)),
			 errhint("A name is 1 to %d characters out of letters, digits, and the signs _ - . : / only.",
					 QUEUE_NAME_LENGTH)));
}

/* So much of what a user gave as fits into a message. */
const char *
queue_clip(const char *text)
{
	int			length = strlen(text);
	int			clipped = pg_mbcliplen(text, length, CLIP_LENGTH);

	return clipped == length ? text :
		psprintf("%.*s...", clipped, text);
}

void
queue_unknown(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("queue \"%s\" does not exist", name),
			 *queue_guc_project != '\0' ?
			 errdetail("The session's project (queue.project) is \"%s\".",
					   queue_guc_project) : 0,
			 errhint("Create it with queue_create.")));
}

/* Tell all sessions, this one included, that a queue has changed. */
void
queue_changed(void)
{
	CacheInvalidateRelcacheByRelid(queue_table_oid());
	CommandCounterIncrement();
}

/* Throw the session's knowledge away if a queue may have changed. */
static void
forget_if_stale(void)
{
	HASHCTL		info;

	if (known_queues != NULL &&
		known_generation == queue_catalog_generation() &&
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
	known_generation = queue_catalog_generation();
}

/* The row of a queue in the session's project, or NULL; to be freed. */
HeapTuple
queue_fetch(Relation rel, const char *name)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], Anum_queue_project, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(queue_guc_project));
	ScanKeyInit(&keys[1], Anum_queue_name, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(name));
	return row_fetch(rel, queue_name_index_oid(), keys, 2);
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
	Relation	rel = queue_open_roots(AccessShareLock, &index);
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

static void
load(TupleDesc desc, HeapTuple tuple, Queue *queue, Rights *rights)
{
	bool		isnull;

#define GET(attribute) heap_getattr(tuple, Anum_queue_##attribute, desc, &isnull)
	memset(queue, 0, sizeof(Queue));
	queue->id = DatumGetInt32(GET(id));
	queue->owner = DatumGetObjectId(GET(owner));
	queue->paused = DatumGetBool(GET(paused));
	strlcpy(queue->name, TextDatumGetCString(GET(name)), sizeof(queue->name));
	meta_parse(DatumGetJsonbP(GET(metadata)), queue, false);
	queue->has_roots = has_roots(queue->id);
#undef GET

	rights->owner = queue->owner;
	rights->push_roles = roles_attribute(tuple, Anum_queue_push_roles, desc);
	rights->claim_roles = roles_attribute(tuple, Anum_queue_claim_roles, desc);
	rights->admin_roles = roles_attribute(tuple, Anum_queue_admin_roles, desc);
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
	Size		length = strlen(queue_guc_project);

	Assert(length + strlen(name) + 2 <= KEY_LENGTH);
	memcpy(key, queue_guc_project, length);
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
	rel = queue_open_queues(AccessShareLock);
	for (int tries = 0; tries < READ_TRIES; tries++)
	{
		*generation = queue_catalog_generation();
		tuple = queue_fetch(rel, name);
		if (HeapTupleIsValid(tuple))
			load(RelationGetDescr(rel), tuple, queue, rights);
		if (*generation == queue_catalog_generation())
			break;
	}
	table_close(rel, AccessShareLock);

	/*
	 * A row that this transaction wrote is gone if it rolls back, and for a
	 * new row no message would tell.
	 */
	if (HeapTupleIsValid(tuple) &&
		*generation == queue_catalog_generation() &&
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
		(OidIsValid(queue_admin_role()) &&
		 has_privs_of_role(role, queue_admin_role())) ||
		is_one_of(role, rights->admin_roles))
		return true;

	switch (use)
	{
		case QUEUE_PUSH:
			return OidIsValid(queue_producer_role()) &&
				has_privs_of_role(role, queue_producer_role()) &&
				(rights->push_roles == NULL ||
				 is_one_of(role, rights->push_roles));
		case QUEUE_READ:
		case QUEUE_CLAIM:
			return OidIsValid(queue_consumer_role()) &&
				has_privs_of_role(role, queue_consumer_role()) &&
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

/* True: the lock is newly ours. */
static bool
lock_object(int32 queue_id, uint16 sub_id, LOCKMODE mode)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, queue_table_oid(),
					   (uint32) queue_id, sub_id);
	return LockAcquire(&tag, mode, false, false) != LOCKACQUIRE_ALREADY_HELD;
}

/* True: a lock on this very queue is newly ours. */
static bool
lock_queue(int32 queue_id, QueueUse use)
{
	LOCKMODE	mode = lock_mode(use);
	bool		taken;

	if (locks_of != my_local_xid())
	{
		locks_of = my_local_xid();
		locks_taken = 0;
	}

	if (mode == RowExclusiveLock && locks_taken >= LOCKS_BY_QUEUE)
	{
		lock_object(0, LOCK_QUEUE, mode);
		taken = false;
	}
	else
	{
		taken = lock_object(queue_id, LOCK_QUEUE, mode);
		if (taken)
			locks_taken++;
		if (mode >= ExclusiveLock)
			lock_object(0, LOCK_QUEUE, ShareLock);
	}
	AcceptInvalidationMessages();
	return taken;
}

static void
unlock_queue(int32 queue_id, QueueUse use)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, queue_table_oid(),
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

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, queue_table_oid(), (uint32) id,
					   LOCK_QUEUE);
	return LockAcquire(&tag, RowExclusiveLock, false, true) !=
		LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Held while a queue's dead letter queue is set, so that two sessions cannot
 * close a circle between them.
 */
void
queue_lock_dead_letters(void)
{
	lock_object(0, LOCK_DEAD_LETTERS, ExclusiveLock);
	AcceptInvalidationMessages();
}

/* Held by the role that made a schedule while it is used or changed. */
void
queue_lock_schedule(int32 id)
{
	lock_object(id, LOCK_SCHEDULE, ExclusiveLock);
	AcceptInvalidationMessages();
}

/* Held while some of a queue's jobs are let begin. */
void
queue_lock_rate(int32 queue_id)
{
	lock_object(queue_id, LOCK_RATE, ExclusiveLock);
}

/*
 * Take one of the places for those who run a queue's jobs, without waiting.
 * It is held until it is given back, or the process ends.  Returns its number,
 * or -1 when all are taken.
 */
int
queue_take_place(int32 queue_id, int places)
{
	LOCKTAG		tag;

	for (int i = 0; i < places; i++)
	{
		SET_LOCKTAG_OBJECT(tag, MyDatabaseId, queue_table_oid(),
						   (uint32) queue_id, LOCK_PLACE + i);
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
queue_give_place(Oid extension, int32 queue_id, int place)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, extension, (uint32) queue_id,
					   LOCK_PLACE + place);
	LockRelease(&tag, ExclusiveLock, true);
}

/*
 * Find a queue of the session's project for a use, check the role's right to
 * it and lock it to the end of the transaction.  False: it does not exist.
 */
static bool
open_as(const char *name, Oid role, QueueUse use, Queue *queue)
{
	Rights		rights;
	uint64		generation;

	PreventCommandIfParallelMode("functions of the extension \"queue\"");
	while (look_up(name, queue, &rights, &generation))
	{
		int32		id = queue->id;
		bool		taken;

		if (!has_right(role, use, &rights))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for queue \"%s\"", name),
					 use == QUEUE_PUSH ?
					 errhint("To push, be a member of queue_producer and, where push is granted to named roles, of one of these.") :
					 use == QUEUE_READ || use == QUEUE_CLAIM ?
					 errhint("To list, claim and delete, be a member of queue_consumer and, where claim is granted to named roles, of one of these.") :
					 errhint("This needs the queue's owner, a role with the privilege admin on it, or a member of queue_admin.")));

		if (lock_mode(use) == NoLock)
			return true;
		taken = lock_queue(id, use);
		if (generation == queue_catalog_generation())
			return true;

		/* Something changed while we waited: is it still this queue? */
		if (look_up(name, queue, &rights, &generation) && queue->id == id &&
			has_right(role, use, &rights))
			return true;
		if (taken)
			unlock_queue(id, use);
	}
	return false;
}

/* The same for the current user. */
bool
queue_open(const char *name, QueueUse use, Queue *queue)
{
	return open_as(name, GetUserId(), use, queue);
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
		(OidIsValid(queue_producer_role()) &&
		 has_privs_of_role(role, queue_producer_role())) ||
		(OidIsValid(queue_admin_role()) &&
		 has_privs_of_role(role, queue_admin_role())))
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
	if (!queue_guc_auto_create)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("queue \"%s\" does not exist", name),
				 errhint("Create it with queue_create, or have \"queue.auto_create\" switched on.")));
	queue_check_may_create();
	while (!queue_open(name, QUEUE_PUSH, queue))
		queue_insert(name, NULL, GetUserId(), NULL);
}

/*
 * Open the dead letter queue of a queue for its owner, who is not the current
 * user; where it is missing, make it.  One that nobody named may have been
 * made by anybody: then it counts only if its owner could have the messages
 * anyway.  False: the owner may not send anything there.
 */
bool
queue_open_dead(const Queue *queue, Queue *dead)
{
	const char *name = queue->dead_queue;
	Queue		source;
	Rights		rights;
	uint64		generation;
	bool		may;

	if (queue_peek(name, queue->owner, QUEUE_PUSH, dead, &may) &&
		(!may ||
		 (!queue->dead_named && dead->owner != queue->owner &&
		  look_up(queue->name, &source, &rights, &generation) &&
		  !has_right(dead->owner, QUEUE_CLAIM, &rights))))
		return false;
	while (!open_as(name, queue->owner, QUEUE_PUSH, dead))
		queue_insert(name, NULL, queue->owner, queue);
	return true;
}

/*
 * Make a queue; who may claim from it and alter it is as for like, if there
 * is one.  False: somebody else has made it.
 */
bool
queue_insert(const char *name, Jsonb *metadata, Oid owner, const Queue *like)
{
	Relation	rel = queue_open_queues(RowExclusiveLock);
	Relation	name_index = index_open(queue_name_index_oid(),
										RowExclusiveLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	Datum		values[Natts_queue] = {0};
	bool		isnull[Natts_queue] = {false};
	ScanKeyData keys[2];
	Queue		source;
	Rights		rights = {0};
	uint64		generation;
	bool		made = false;

	values[Anum_queue_owner - 1] = ObjectIdGetDatum(owner);
	values[Anum_queue_paused - 1] = BoolGetDatum(false);
	values[Anum_queue_created_at - 1] =
		TimestampTzGetDatum(GetCurrentTimestamp());
	/* A setting that came with the connection was verified by nobody. */
	pg_verifymbstr(queue_guc_project, strlen(queue_guc_project), false);
	values[Anum_queue_project - 1] = CStringGetTextDatum(queue_guc_project);
	values[Anum_queue_name - 1] = CStringGetTextDatum(name);
	values[Anum_queue_metadata - 1] = metadata != NULL ?
		JsonbPGetDatum(metadata) :
		DirectFunctionCall1(jsonb_in, CStringGetDatum("{}"));
	if (like != NULL)
		look_up(like->name, &source, &rights, &generation);
	isnull[Anum_queue_push_roles - 1] = true;
	isnull[Anum_queue_claim_roles - 1] = rights.claim_roles == NULL;
	values[Anum_queue_claim_roles - 1] = PointerGetDatum(rights.claim_roles);
	isnull[Anum_queue_admin_roles - 1] = rights.admin_roles == NULL;
	values[Anum_queue_admin_roles - 1] = PointerGetDatum(rights.admin_roles);

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				values[Anum_queue_project - 1]);
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_TEXTEQ,
				values[Anum_queue_name - 1]);
	while (!made && !row_find_unique(rel, name_index, keys, 2, slot))
	{
		HeapTuple	tuple;

		values[Anum_queue_id - 1] = Int32GetDatum(queue_next_queue_id());
		tuple = heap_form_tuple(RelationGetDescr(rel), values, isnull);
		made = row_insert_unique(rel, name_index, tuple);
	}

	ExecDropSingleTupleTableSlot(slot);
	index_close(name_index, NoLock);
	table_close(rel, NoLock);
	CommandCounterIncrement();
	if (made)
		cursor_begin_queue(DatumGetInt32(values[Anum_queue_id - 1]));
	return made;
}

/* The row of the queue with this id, or NULL; to be freed. */
static HeapTuple
fetch_by_id(Relation rel, int32 id)
{
	ScanKeyData key;

	ScanKeyInit(&key, Anum_queue_id, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(id));
	return row_fetch(rel, queue_id_index_oid(), &key, 1);
}

/*
 * Whose id is this?  False: there is no such queue.  The buffers have room
 * for names of any length that is allowed.
 */
bool
queue_name_of(int32 id, char *project, char *name, bool *paused)
{
	Relation	rel = queue_open_queues(AccessShareLock);
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
	Relation	rel = queue_open_queues(AccessShareLock);
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
	Relation	rel = queue_open_queues(AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	int			size = 64;
	QueueEntry *queues = palloc(size * sizeof(QueueEntry));

	*n = 0;
	if (project != NULL)
		ScanKeyInit(&key, Anum_queue_project, BTEqualStrategyNumber,
					F_TEXTEQ, CStringGetTextDatum(project));
	scan = systable_beginscan(rel, queue_name_index_oid(), true, snapshot,
							  project == NULL ? 0 : 1, &key);
	while ((tuple = systable_getnext(scan)) != NULL)
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
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return queues;
}
