/*-------------------------------------------------------------------------
 *
 * error_state.c
 *	  The last errors of queues that are not in the table yet.
 *
 * NOTES
 *	  A transaction that has set the last error of a queue leaves it here when
 *	  it has committed.  The worker of the database writes it to the table of
 *	  counters, and then removes it.
 *
 *	  There is one entry for a queue.  If there is no room for another one, an
 *	  old one is lost: very many queues have had an error within a second.
 *
 * src/shmem/error_state.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"

#include "shmem/error_state.h"
#include "shmem/shmem.h"
#include "util/hash.h"

#define ERRORS_MAX		256
#define ERRORS_TRIED	16		/* where the entry of a queue may be */

typedef struct SharedErrors
{
	LWLock		lock;			/* protects the entries */
	QueueError	errors[ERRORS_MAX];
} SharedErrors;

static SharedErrors *shared = NULL;

const SharedArea error_area = {
	&shared, sizeof(SharedErrors), LOCK_ERRORS, NULL, NULL
};

static QueueError *find_error(Oid extension, int32 queue_id, bool *found);

/*
 * Returns the entry of a queue of this database, or if it has none, the oldest
 * one in its place, or a free one.
 */
static QueueError *
find_error(Oid extension, int32 queue_id, bool *found)
{
	uint32		first = hash_in_database(queue_id);
	QueueError *oldest = NULL;

	Assert(LWLockHeldByMe(&shared->lock));
	for (int i = 0; i < ERRORS_TRIED; i++)
	{
		QueueError *error = &shared->errors[(first + i) % ERRORS_MAX];

		*found = error->queue_id == queue_id &&
			error->extension == extension && error->database == MyDatabaseId;
		if (*found)
			return error;
		if (oldest == NULL || error->error_at < oldest->error_at)
			oldest = error;
	}
	return oldest;
}

/* Set the last error of a queue.  To be called after the commit. */
void
error_state_set(Oid extension, int32 queue_id, const char *text,
				TimestampTz error_at)
{
	QueueError *error;
	bool		found;

	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	error = find_error(extension, queue_id, &found);

	/* Another transaction may have set a later one, and committed before. */
	if (error->error_at <= error_at)
	{
		error->database = MyDatabaseId;
		error->extension = extension;
		error->queue_id = queue_id;
		error->error_at = error_at;
		strlcpy(error->message, text, sizeof(error->message));
	}
	LWLockRelease(&shared->lock);
}

/* Get the error of a queue.  Returns false if there is none. */
bool
error_state_get(Oid extension, int32 queue_id, QueueError *error)
{
	bool		found;

	shmem_lock(&shared->lock, LW_SHARED);
	*error = *find_error(extension, queue_id, &found);
	LWLockRelease(&shared->lock);
	return found;
}

/*
 * Get an error of this database, in an entry whose number is not below *from,
 * which is advanced.  Returns false if there is none.
 */
bool
error_state_next(int *from, QueueError *error)
{
	bool		found = false;

	shmem_lock(&shared->lock, LW_SHARED);
	for (; *from < ERRORS_MAX && !found; (*from)++)
	{
		found = shared->errors[*from].database == MyDatabaseId;
		if (found)
			*error = shared->errors[*from];
	}
	LWLockRelease(&shared->lock);
	return found;
}

/* Remove an error, unless the queue has had a later one. */
void
error_state_remove(const QueueError *error)
{
	QueueError *entry;
	bool		found;

	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	entry = find_error(error->extension, error->queue_id, &found);
	if (found && entry->error_at == error->error_at)
		memset(entry, 0, sizeof(QueueError));
	LWLockRelease(&shared->lock);
}
