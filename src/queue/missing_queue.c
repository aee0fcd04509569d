/*-------------------------------------------------------------------------
 *
 * missing_queue.c
 *	  Notices about queues, each once in a session.
 *
 * NOTES
 *	  A push creates a queue, and what reads from one that does not exist
 *	  finds nothing, since it may be created a moment later.  So a misspelled
 *	  name would never be noticed.  A session says so once for each queue: a
 *	  worker that polls must not fill the log.  So it is with a queue that is
 *	  paused, with results that a queue does not keep, and with dead letters
 *	  that are in another queue.
 *
 * src/queue/missing_queue.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"

#include "queue/missing_queue.h"
#include "util/hash.h"
#include "util/limits.h"
#include "util/settings.h"

/* So many names are kept in mind; then all are forgotten. */
#define NAMES_MAX		1000

/* All of it is the hash key. */
typedef struct MissingQueue
{
	char		about;			/* what the notice says */
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
} MissingQueue;

static HTAB *noticed = NULL;

static bool is_first_notice(char about, const char *name);

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

/* Returns whether this is the first notice about that, and the queue. */
static bool
is_first_notice(char about, const char *name)
{
	MissingQueue key = {.about = about};
	bool		found;

	/* The leader of a parallel query opens the queue, too. */
	if (IsParallelWorker())
		return false;
	if (noticed != NULL && hash_get_num_entries(noticed) >= NAMES_MAX)
	{
		hash_destroy(noticed);
		noticed = NULL;
	}
	if (noticed == NULL)
		noticed = hash_create_blobs("missing queues", sizeof(MissingQueue),
									sizeof(MissingQueue), TopMemoryContext);
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
