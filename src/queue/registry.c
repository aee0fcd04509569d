/*-------------------------------------------------------------------------
 *
 * registry.c
 *	  Finding and opening queues.
 *
 * NOTES
 *	  Each session caches the queues that it uses, with their privileges, in a
 *	  hash table.  A transaction that changes or drops a queue sends a relcache
 *	  invalidation message for the table of queues, which empties the caches of
 *	  all sessions (catalog_generation() counts these messages).  Creating a
 *	  queue sends no message, since the cache has no negative entries.
 *
 *	  A push or claim takes a shared lock on its queue, which drop and purge
 *	  exclude (queue_lock.c).  With the lock, the caller processes pending
 *	  invalidation messages and, if there were any, looks the queue up again.
 *	  So nothing is pushed to a queue that was dropped during the wait.
 *
 *	  A queue of another server is not found, and queue_open raises an error
 *	  (shard.c).
 *
 * src/queue/registry.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "catalog/relations.h"
#include "queue/acl.h"
#include "queue/queue_lock.h"
#include "queue/queue_table.h"
#include "queue/registry.h"
#include "queue/shard.h"
#include "util/args.h"
#include "util/clock.h"
#include "util/hash.h"
#include "util/limits.h"
#include "util/settings.h"

#define CACHE_MAX			32768	/* queues, of 0.5 kB each; then the cache
									 * is emptied */
#define READ_TRIES			10	/* while queues keep changing */
#define NOTICES_MAX			1000	/* kept in mind; then all are forgotten */
#define WARN_INTERVAL		USECS_PER_MINUTE
#define KEY_LENGTH			(QUEUE_PROJECT_LENGTH + QUEUE_NAME_LENGTH + 2)

/* A queue in the session's cache */
typedef struct CachedQueue
{
	char		key[KEY_LENGTH];	/* project, newline, name */
	Queue		queue;
	QueueAcl	acl;			/* its arrays are in cache_context */
	int64		warned_at;		/* see queue_may_warn */
} CachedQueue;

/* A notice that was given; all of it is the hash key. */
typedef struct QueueNotice
{
	char		about;			/* what it says */
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
} QueueNotice;

/* The cached queue with this id */
typedef struct CachedId
{
	int32		id;
	CachedQueue *cached;
} CachedId;

static HTAB *cache = NULL;
static HTAB *cache_by_id = NULL;
static HTAB *noticed = NULL;
static MemoryContext cache_context = NULL;

/* The catalog_generation() that the cache is of; 0 if it is stale */
static uint64 cache_generation = 0;

static void reset_stale_cache(void);
static CachedQueue *search_queue_cache(const char *project, const char *name,
									   HASHACTION action);
static void add_queue_to_cache(const char *project, const Queue *queue,
							   const QueueAcl *acl);
static bool row_can_be_cached(HeapTuple tuple, uint64 generation);
static bool read_queue(const char *name, Queue *queue, QueueAcl *acl,
					   uint64 *generation);
static bool look_up_queue(const char *name, Queue *queue, QueueAcl *acl,
						  uint64 *generation);
static bool row_is_readable(Relation rel, HeapTuple tuple,
							const QueueSummary *summary, QueueAcl *acl);
static bool is_readable_here(Relation rel, HeapTuple tuple);
static bool cached_is_claimable(int32 id, const char *project,
								QueueSummary *summary, Queue *queue);
static bool is_first_notice(char about, const char *name);

/* --- Names --- */

/* Every call checks a name, and strspn() would build a table for each. */
bool
queue_is_name_character(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
		(c >= '0' && c <= '9') ||
		c == '_' || c == '-' || c == '.' || c == ':' || c == '/';
}

/* A name is 1 to 64 ASCII letters, digits and _ - . : / */
void
queue_check_name(const char *name, const char *argname)
{
	int			length = 0;

	while (queue_is_name_character(name[length]))
		length++;
	if (name[length] == '\0' && length >= 1 && length <= QUEUE_NAME_LENGTH)
		return;

	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("parameter \"%s\" is not a valid queue name: \"%s\"",
					argname, arg_clip(name, CLIP_LENGTH)),
			 errhint("A name is 1 to %d characters out of letters, digits, and the signs _ - . : / only.",
					 QUEUE_NAME_LENGTH)));
}

/* --- The session's cache --- */

/* Empty the cache if a queue may have changed, or when it is full. */
static void
reset_stale_cache(void)
{
	HASHCTL		info;

	if (cache != NULL &&
		cache_generation == catalog_generation() &&
		hash_get_num_entries(cache) < CACHE_MAX)
		return;

	if (cache_context == NULL)
		cache_context = AllocSetContextCreate(CacheMemoryContext,
											  "queue cache",
											  ALLOCSET_DEFAULT_SIZES);
	cache = NULL;
	MemoryContextReset(cache_context);
	info.keysize = KEY_LENGTH;
	info.entrysize = sizeof(CachedQueue);
	info.hcxt = cache_context;
	cache = hash_create("queue cache", 64, &info,
						HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	cache_by_id = hash_create_blobs("queue cache by id", sizeof(int32),
									sizeof(CachedId), cache_context);
	cache_generation = catalog_generation();
}

/* Find a queue in the cache, or enter it. */
static CachedQueue *
search_queue_cache(const char *project, const char *name, HASHACTION action)
{
	char		key[KEY_LENGTH];
	Size		length = strlen(project);

	Assert(length + strlen(name) + 2 <= KEY_LENGTH);
	memcpy(key, project, length);
	key[length] = '\n';
	strlcpy(key + length + 1, name, KEY_LENGTH - length - 1);
	reset_stale_cache();
	return hash_search(cache, key, action, NULL);
}

static void
add_queue_to_cache(const char *project, const Queue *queue,
				   const QueueAcl *acl)
{
	MemoryContext old;
	QueueAcl	copy;
	CachedQueue *cached;
	CachedId   *entry;

	/* If search_queue_cache() did this, it would free the copy. */
	reset_stale_cache();
	old = MemoryContextSwitchTo(cache_context);
	acl_copy(acl, &copy);
	cached = search_queue_cache(project, queue->name, HASH_ENTER);
	cached->queue = *queue;
	cached->acl = copy;
	cached->warned_at = 0;
	entry = hash_search(cache_by_id, &queue->id, HASH_ENTER, NULL);
	entry->cached = cached;
	MemoryContextSwitchTo(old);
}

/*
 * Returns whether what was read of a queue may go into the cache: no message
 * has arrived since that generation, before it was read.
 */
static bool
row_can_be_cached(HeapTuple tuple, uint64 generation)
{
	/*
	 * A row that this transaction wrote is gone if it rolls back, and the
	 * creation of a queue sends no message.
	 */
	return generation == catalog_generation() &&
		!TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
}

/*
 * Read a queue from the table into the cache.  Reading processes invalidation
 * messages after the snapshot was taken.  So what was read is only known to be
 * current if there were none, and we read again if there were.  Returns false
 * if there is no such queue here.
 */
static bool
read_queue(const char *name, Queue *queue, QueueAcl *acl, uint64 *generation)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	HeapTuple	tuple = NULL;

	for (int tries = 0; tries < READ_TRIES; tries++)
	{
		*generation = catalog_generation();
		tuple = queue_table_fetch(rel, name);
		if (HeapTupleIsValid(tuple))
		{
			queue_table_load(rel, tuple, queue);
			acl_load(rel, tuple, false, acl);
		}
		if (*generation == catalog_generation())
			break;
	}
	table_close(rel, AccessShareLock);
	if (!HeapTupleIsValid(tuple) || !shard_is_local(setting_project, name))
		return false;
	if (row_can_be_cached(tuple, *generation))
		add_queue_to_cache(setting_project, queue, acl);
	return true;
}

/*
 * Find a queue of the session's project.  Returns false if it does not exist
 * here.  The answer holds as long as *generation is the current one.
 */
static bool
look_up_queue(const char *name, Queue *queue, QueueAcl *acl,
			  uint64 *generation)
{
	CachedQueue *cached = search_queue_cache(setting_project, name,
											 HASH_FIND);

	if (cached == NULL)
		return read_queue(name, queue, acl, generation);
	*queue = cached->queue;
	*acl = cached->acl;
	*generation = cache_generation;
	return true;
}

/*
 * The caller has changed a queue: empty the caches of all sessions, including
 * this one.
 */
void
queue_invalidate(void)
{
	catalog_invalidate();
	CommandCounterIncrement();
}

/*
 * Returns whether a warning about this queue may be given: at most one per
 * minute, as long as the session has the queue in its cache.
 */
bool
queue_may_warn(const char *name)
{
	CachedQueue *cached = search_queue_cache(setting_project, name,
											 HASH_FIND);

	return cached == NULL || clock_has_passed(&cached->warned_at, WARN_INTERVAL);
}

/* --- Finding and opening --- */

/*
 * Find a queue of the session's project, without a lock.  *queue is set for
 * QUEUE_DENIED as well.
 */
QueueResult
queue_find_as(const char *name, Oid role, QueueAccess access, Queue *queue)
{
	QueueAcl	acl;
	uint64		generation;

	if (!look_up_queue(name, queue, &acl, &generation))
		return QUEUE_MISSING;
	return acl_allows(&acl, role, access) ? QUEUE_OK : QUEUE_DENIED;
}

/*
 * Returns whether the current role may claim from the queue with this row, and
 * it is here.  Sets the ACL.  We do not read the metadata, because it may be
 * long, and reading that of queues that the role may not use would slow it
 * down.
 */
static bool
row_is_readable(Relation rel, HeapTuple tuple, const QueueSummary *summary,
				QueueAcl *acl)
{
	acl_load(rel, tuple, true, acl);
	return acl_allows(acl, GetUserId(), QUEUE_READ) &&
		shard_is_local(summary->project, summary->name);
}

/*
 * Returns whether the cache has the queue with this id, and the current role
 * may claim from it.  Sets what queue_check_claimable() sets.
 */
static bool
cached_is_claimable(int32 id, const char *project, QueueSummary *summary,
					Queue *queue)
{
	CachedId   *entry;
	CachedQueue *cached;
	Size		length;

	reset_stale_cache();
	entry = hash_search(cache_by_id, &id, HASH_FIND, NULL);
	if (entry == NULL)
		return false;

	/*
	 * Another queue may have got the name, and so the place, of one that was
	 * dropped, before the message of the drop has arrived.
	 */
	cached = entry->cached;
	if (cached->queue.id != id || cached->queue.paused ||
		!acl_allows(&cached->acl, GetUserId(), QUEUE_CLAIM))
		return false;

	/* The key is the project, a newline and the name. */
	length = strrchr(cached->key, '\n') - cached->key;
	memcpy(summary->project, cached->key, length);
	summary->project[length] = '\0';
	if (project != NULL && strcmp(summary->project, project) != 0)
		return false;
	strlcpy(summary->name, cached->queue.name, sizeof(summary->name));
	if (queue != NULL)
		*queue = cached->queue;
	return true;
}

/*
 * Find a queue by its id.  Returns QUEUE_OK if the current role may claim from
 * it, it is of this project, or of any if that is NULL, here, and not paused;
 * then sets the names in the summary, and *queue unless that is NULL.
 *
 * QUEUE_DENIED holds until there is an invalidation message
 * (catalog_generation); QUEUE_MISSING does not, as the transaction that
 * creates the queue sends none.
 */
QueueResult
queue_check_claimable(int32 id, const char *project, QueueSummary *summary,
					  Queue *queue)
{
	QueueResult result = QUEUE_MISSING;
	Relation	rel;
	uint64		generation;
	HeapTuple	tuple;
	QueueAcl	acl;

	/*
	 * A queue that was resumed or granted wakes sessions before its
	 * invalidation message arrives, so we look at the row before we believe
	 * that the role may not claim.
	 */
	if (cached_is_claimable(id, project, summary, queue))
		return QUEUE_OK;

	rel = catalog_open_queues(AccessShareLock);
	generation = catalog_generation();
	tuple = queue_table_fetch_by_id(rel, id, true);
	if (HeapTupleIsValid(tuple))
	{
		queue_table_summarize(rel, tuple, summary);
		result = !summary->paused &&
			(project == NULL || strcmp(summary->project, project) == 0) &&
			row_is_readable(rel, tuple, summary, &acl) ?
			QUEUE_OK : QUEUE_DENIED;
	}
	if (result == QUEUE_OK && queue != NULL)
	{
		queue_table_load(rel, tuple, queue);

		/*
		 * The ACL of a dead letter queue is without what a malformed source
		 * queue grants, which is an error elsewhere.  Nor may a list of many
		 * queues fill the cache, which would be emptied again and again.
		 */
		if (queue->source_id == 0 && row_can_be_cached(tuple, generation) &&
			hash_get_num_entries(cache) < CACHE_MAX - 1)
			add_queue_to_cache(summary->project, queue, &acl);
	}
	table_close(rel, AccessShareLock);
	return result;
}

/* Filter of queue_all(), for the session's project */
static bool
is_readable_here(Relation rel, HeapTuple tuple)
{
	QueueSummary summary;
	QueueAcl	acl;

	queue_table_summarize(rel, tuple, &summary);
	return row_is_readable(rel, tuple, &summary, &acl);
}

/*
 * List the queues of the session's project that the current role may claim
 * from, and those that are paused, too.  Reads each row of the project, but no
 * metadata.
 */
QueueEntry *
queue_list_readable(int *n)
{
	return queue_all(setting_project, is_readable_here, n);
}

/*
 * Returns whether a role may see what runs in a queue.  Like
 * row_is_readable(), this does not read the metadata.
 */
bool
queue_may_inspect(int32 id, Oid role)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	HeapTuple	tuple = queue_table_fetch_by_id(rel, id, true);
	QueueAcl	acl;

	if (HeapTupleIsValid(tuple))
		acl_load(rel, tuple, true, &acl);
	table_close(rel, AccessShareLock);
	return HeapTupleIsValid(tuple) && acl_allows(&acl, role, QUEUE_INSPECT);
}

/* Raise an error if a queue of the session's project is on another server. */
void
queue_check_local(const char *name)
{
	/* A queue that is in the cache is here. */
	if (shard_map_exists() && search_queue_cache(setting_project, name,
												 HASH_FIND) == NULL)
		shard_check(name);
}

/*
 * The caller has read from a queue of the session's project without a lock.
 * Raise an error if it is on another server by now, of which a session may
 * not have learned in a transaction.
 */
void
queue_check_left(const char *name, bool found)
{
	/* A parallel query cannot read the map. */
	if (!shard_map_exists() || IsInParallelMode())
		return;
	AcceptInvalidationMessages();

	/*
	 * If nothing was found, the messages may have left a moment ago, so the
	 * map is read again.
	 */
	if (found)
		queue_check_local(name);
	else
		(void) shard_check_missing(name);
}

/*
 * Open a queue of the session's project: check the privilege of the role, and
 * lock the queue to the end of the transaction.  Unless "wait" is set,
 * returns QUEUE_BUSY rather than wait for the lock.
 */
QueueResult
queue_open_as(const char *name, Oid role, QueueAccess access, bool wait,
			  Queue *queue)
{
	QueueAcl	acl;
	uint64		generation;

	PreventCommandIfParallelMode("functions of the extension \"queue\"");
	while (look_up_queue(name, queue, &acl, &generation))
	{
		int32		id = queue->id;
		QueueLockResult lock;

		if (!acl_allows(&acl, role, access))
			return QUEUE_DENIED;

		/* These take no lock. */
		if (access == QUEUE_DESCRIBE || access == QUEUE_READ ||
			access == QUEUE_INSPECT)
			return QUEUE_OK;
		lock = queue_lock(id, access, wait);
		if (lock == QUEUE_LOCK_BUSY)
			return QUEUE_BUSY;

		/* The invalidation message of the drop may not have arrived yet. */
		if (lock == QUEUE_LOCK_GONE)
			cache_generation = 0;
		else if (generation == catalog_generation())
			return QUEUE_OK;

		/*
		 * Something has changed during the wait, but not which queue this is,
		 * nor that the role has the privilege.
		 */
		else if (look_up_queue(name, queue, &acl, &generation) &&
				 queue->id == id && acl_allows(&acl, role, access))
			return QUEUE_OK;

		/*
		 * Begin again, and without this lock: it is that of another queue
		 * now, or of one that the role may not use.
		 */
		if (lock == QUEUE_LOCK_TAKEN)
			queue_unlock(id, access);
	}
	return QUEUE_MISSING;
}

/*
 * Open a queue as the current user.  Returns false if it does not exist here.
 * It is an error if the user does not have the privilege.
 */
bool
queue_open_local(const char *name, QueueAccess access, Queue *queue)
{
	QueueResult result = queue_open_as(name, GetUserId(), access, true, queue);

	if (result == QUEUE_DENIED)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for queue \"%s\"", name),
				 errhint("%s", queue_grant_hint(name, GetUserId(), access))));
	return result == QUEUE_OK;
}

/*
 * Lock a queue and open it as its project would; names of queues are those of
 * that project until the transaction ends.  *paused is what the row says,
 * which the session's cache may not know yet.  Returns false if the queue is
 * gone, or if it is locked, which *locked says.
 *
 * The lock is that of a claim, but we do not wait for it: a role can keep a
 * queue of its own locked for as long as it likes, for example by
 * queue_purge().
 */
bool
queue_try_open(int32 queue_id, Queue *queue, bool *paused, bool *locked)
{
	QueueSummary summary;

	*locked = false;
	if (!queue_local_summary(queue_id, &summary))
		return false;
	*paused = summary.paused;
	*locked = !queue_lock_try(queue_id);
	if (*locked)
		return false;
	settings_set("queue.project", summary.project, true);
	return queue_open_local(summary.name, QUEUE_CLAIM, queue) &&
		queue->id == queue_id;
}

/*
 * Open a queue to claim from it, whatever the privileges of the current role;
 * names of queues are those of its project from then on.  Returns false if it
 * is gone.
 */
bool
queue_open_by_id(int32 queue_id, Queue *queue)
{
	QueueSummary summary;

	if (!queue_local_summary(queue_id, &summary))
		return false;
	settings_set("queue.project", summary.project, false);
	return queue_open_as(summary.name, BOOTSTRAP_SUPERUSERID, QUEUE_CLAIM,
						 true, queue) == QUEUE_OK &&
		queue->id == queue_id;
}

/*
 * Open a queue as the current user.  Returns false if it does not exist.  It
 * is an error if the queue is on another server, or if the user does not have
 * the privilege.
 */
bool
queue_open(const char *name, QueueAccess access, Queue *queue)
{
	if (queue_open_local(name, access, queue))
		return true;
	if (!shard_check_missing(name))
		return false;

	/* Its shard may have come, or gone, between the last two steps. */
	if (queue_open_local(name, access, queue))
		return true;
	(void) shard_check_missing(name);
	return false;
}

/*
 * Returns sentences for a hint: what gives the role the privilege on a queue
 * of the session's project.
 */
const char *
queue_grant_hint(const char *name, Oid role, QueueAccess access)
{
	Queue		queue;
	QueueAcl	acl = {0};
	uint64		generation;

	(void) look_up_queue(name, &queue, &acl, &generation);
	return acl_grant_hint(name, &acl, role, access);
}

/*
 * Open a queue as queue_open() does.  It is an error if the queue does not
 * exist.
 */
void
queue_open_existing(const char *name, QueueAccess access, Queue *queue)
{
	if (!queue_open(name, access, queue))
		queue_missing_error(name);
}

/*
 * Open a queue as queue_open() does, and create it, with a notice, if it does
 * not exist and the settings allow that.
 */
void
queue_open_or_create(const char *name, QueueAccess access, Queue *queue)
{
	if (queue_open(name, access, queue))
		return;
	if (!setting_auto_create)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("queue \"%s\" does not exist", name),
				 errhint("Create it with queue_create, or have \"queue.auto_create\" switched on.")));
	acl_check_member(CATALOG_PRODUCER, "create a queue");

	/* Another session may create the queue first, or drop it at once. */
	while (!queue_open(name, access, queue))
		if (queue_insert(name, NULL, GetUserId(), 0))
			ereport(NOTICE,
					(errmsg("queue \"%s\" did not exist and was created", name),
					 *setting_project != '\0' ?
					 errdetail("The session's project (queue.project) is \"%s\".",
							   setting_project) : 0,
					 errhint("If the name is wrong, remove the queue with queue_drop.")));
}

void
queue_missing_error(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("queue \"%s\" does not exist", name),
			 *setting_project != '\0' ?
			 errdetail("The session's project (queue.project) is \"%s\".",
					   setting_project) : 0,
			 errhint("Create it with queue_create.")));
}

/*
 * --- Notices, each once in a session ---
 *
 * A push creates a queue, and what reads from one that does not exist finds
 * nothing, since it may be created a moment later.  So a misspelled name would
 * never be noticed.  A session says so once for each queue: a worker that
 * polls must not fill the log.  So it is with a queue that is paused, with
 * results that a queue does not keep, and with dead letters that are in
 * another queue.
 */

/* Returns whether this is the first notice about that, and the queue. */
static bool
is_first_notice(char about, const char *name)
{
	QueueNotice key = {.about = about};
	bool		found;

	/* The leader of a parallel query opens the queue, too. */
	if (IsParallelWorker())
		return false;
	if (noticed != NULL && hash_get_num_entries(noticed) >= NOTICES_MAX)
	{
		hash_destroy(noticed);
		noticed = NULL;
	}
	if (noticed == NULL)
		noticed = hash_create_blobs("notices about queues", sizeof(QueueNotice),
									sizeof(QueueNotice), TopMemoryContext);
	strlcpy(key.project, setting_project, sizeof(key.project));
	strlcpy(key.name, name, sizeof(key.name));
	(void) hash_search(noticed, &key, HASH_ENTER, &found);
	return !found;
}

/* Say that a queue of the session's project does not exist. */
void
queue_notice_missing(const char *name)
{
	if (is_first_notice('q', name))
		ereport(NOTICE,
				(errmsg("queue \"%s\" does not exist", name),
				 setting_project[0] == '\0' ?
				 errhint("If the name is right, the first push creates it.") :
				 errhint("If the name, and the project \"%s\", are right, the first push creates it.",
						 setting_project)));
}

/* Say that the result of a message was not stored. */
void
queue_notice_result(const char *name)
{
	if (is_first_notice('r', name))
		ereport(NOTICE,
				(errmsg("queue \"%s\" keeps no results", name),
				 errhint("Results are kept for as long as \"_keep_finished\" in the metadata of the queue says.")));
}

/* No dead letters were found in this queue: say which one has its own. */
void
queue_notice_dead_letters(const Queue *queue)
{
	if (queue->dead_queue[0] != '\0' && is_first_notice('d', queue->name))
		ereport(NOTICE,
				(errmsg("queue \"%s\" has no dead letters", queue->name),
				 errhint("Those of its own messages are in queue \"%s\".",
						 queue->dead_queue)));
}

/*
 * As queue_open(), with a notice if it returns false, or if the queue is
 * paused and so seems to be empty.
 */
bool
queue_open_or_notice(const char *name, QueueAccess access, Queue *queue)
{
	if (!queue_open(name, access, queue))
	{
		queue_notice_missing(name);
		return false;
	}
	if (queue->paused && is_first_notice('p', name))
		ereport(NOTICE,
				(errmsg("queue \"%s\" is paused", name),
				 errhint("Nothing is claimed from it until queue_resume.")));
	return true;
}
