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
 *	  There is one entry for a queue.  If there is no room for another one, the
 *	  oldest is lost: so many queues have had an error within a second.
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

#define ERRORS_MAX		256

typedef struct SharedErrors
{
	LWLock		lock;			/* protects the entries */
	QueueError	errors[ERRORS_MAX];
} SharedErrors;

static SharedErrors *shared = NULL;

static void init_errors(void *area);
static void attach_errors(void *area);
static QueueError *find_error(Oid extension, int32 queue_id);

static void
init_errors(void *area)
{
	shmem_init_lock(&((SharedErrors *) area)->lock, LOCK_ERRORS);
}

static void
attach_errors(void *area)
{
	shared = area;
}

/* To be called once, when the library is loaded. */
void
error_state_init(void)
{
	shmem_add_area(sizeof(SharedErrors), init_errors, attach_errors);
}

/* Returns the entry of a queue of this database; NULL if there is none. */
static QueueError *
find_error(Oid extension, int32 queue_id)
{
	Assert(LWLockHeldByMe(&shared->lock));
	for (int i = 0; i < ERRORS_MAX; i++)
	{
		QueueError *error = &shared->errors[i];

		if (error->queue_id == queue_id && error->extension == extension &&
			error->database == MyDatabaseId)
			return error;
	}
	return NULL;
}

/* Set the last error of a queue.  To be called after the commit. */
void
error_state_set(Oid extension, int32 queue_id, const char *text,
				TimestampTz error_at)
{
	QueueError *error;

	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	error = find_error(extension, queue_id);
	if (error == NULL)
	{
		/* A free entry, or the oldest one */
		error = &shared->errors[0];
		for (int i = 1; i < ERRORS_MAX && OidIsValid(error->database); i++)
			if (!OidIsValid(shared->errors[i].database) ||
				shared->errors[i].error_at < error->error_at)
				error = &shared->errors[i];
	}

	/* Another transaction may have set a later one, and committed before. */
	else if (error->error_at > error_at)
	{
		LWLockRelease(&shared->lock);
		return;
	}
	error->database = MyDatabaseId;
	error->extension = extension;
	error->queue_id = queue_id;
	error->error_at = error_at;
	strlcpy(error->message, text, sizeof(error->message));
	LWLockRelease(&shared->lock);
}

/* Get the error of a queue.  Returns false if there is none. */
bool
error_state_get(Oid extension, int32 queue_id, QueueError *error)
{
	QueueError *found;

	shmem_lock(&shared->lock, LW_SHARED);
	found = find_error(extension, queue_id);
	if (found != NULL)
		*error = *found;
	LWLockRelease(&shared->lock);
	return found != NULL;
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
	QueueError *found;

	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	found = find_error(error->extension, error->queue_id);
	if (found != NULL && found->error_at == error->error_at)
		found->database = InvalidOid;
	LWLockRelease(&shared->lock);
}
