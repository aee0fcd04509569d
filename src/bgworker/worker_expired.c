/*-------------------------------------------------------------------------
 *
 * worker_expired.c
 *	  The worker's task of logging which queues lose messages.
 *
 * NOTES
 *	  A message that expires before it was completed is lost, and no session
 *	  notices.  So the worker logs how many each queue has lost, whether the
 *	  worker has removed them or a claim that met them: it adds up the counts
 *	  that it moves to the table of counters.
 *
 *	  The first loss is logged at once.  Then the worker collects for
 *	  REPORT_INTERVAL before it logs again, with a line for each of at most
 *	  QUEUES_MAX queues and one for all others.
 *
 * src/bgworker/worker_expired.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "bgworker/worker_internal.h"
#include "catalog/tables.h"
#include "queue/queue_table.h"
#include "shmem/database_state.h"
#include "util/clock.h"

#define REPORT_INTERVAL	(60 * USECS_PER_SEC)
#define QUEUES_MAX		20		/* that one report names */

/* What a queue has lost since the last report */
typedef struct ExpiredCount
{
	int32		queue_id;		/* key */
	int64		n;
} ExpiredCount;

static HTAB *counts = NULL;		/* NULL: nothing was lost */
static Oid	counts_extension;	/* that they are of */
static int64 next_report = 0;	/* by the monotonic clock */

static void forget(void);
static void log_queue(const ExpiredCount *count);
static void log_others(int nqueues, int64 n);
static bool report_step(void *arg);

/* Callback of counters_flush(). */
void
expired_count(int32 queue_id, const int64 *n)
{
	ExpiredCount *count;
	bool		found;

	if (n[JOB_EXPIRED] == 0)
		return;
	if (counts != NULL && counts_extension != worker.extension)
		forget();
	if (counts == NULL)
	{
		HASHCTL		info;

		info.keysize = sizeof(int32);
		info.entrysize = sizeof(ExpiredCount);
		info.hcxt = TopMemoryContext;
		counts = hash_create("expired messages", 64, &info,
							 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		counts_extension = worker.extension;
	}
	count = hash_search(counts, &queue_id, HASH_ENTER, &found);
	count->n = (found ? count->n : 0) + n[JOB_EXPIRED];
}

static void
forget(void)
{
	hash_destroy(counts);
	counts = NULL;
}

static void
log_queue(const ExpiredCount *count)
{
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		paused;

	if (!queue_name_of(count->queue_id, project, name, &paused))
		return;
	ereport(LOG,
			(errmsg_plural("%lld message of queue \"%s\" expired unclaimed",
						   "%lld messages of queue \"%s\" expired unclaimed",
						   (unsigned long) count->n,
						   (long long) count->n, name),
			 *project != '\0' ?
			 errdetail("The queue's project is \"%s\".", project) : 0,
			 errhint("Have more workers claim from it, or give its messages a longer ttl. job_stats counts what it loses.")));
}

static void
log_others(int nqueues, int64 n)
{
	if (nqueues > 0)
		ereport(LOG,
				(errmsg("%lld messages of %d more queues expired unclaimed",
						(long long) n, nqueues),
				 errhint("See \"expired\" in queue_data.queue_status.")));
}

static bool
report_step(void *arg)
{
	HASH_SEQ_STATUS scan;
	ExpiredCount *count;
	int			named = 0;
	int			others = 0;
	int64		n = 0;

	hash_seq_init(&scan, counts);
	while ((count = hash_seq_search(&scan)) != NULL)
		if (named++ < QUEUES_MAX)
			log_queue(count);
		else
		{
			others++;
			n += count->n;
		}
	log_others(others, n);
	return false;
}

/* Log what was lost, if it is time. */
void
expired_report(void)
{
	int64		now = clock_monotonic();

	if (counts == NULL)
		return;
	if (now < next_report)
	{
		database_wake(GetCurrentTimestamp() + (next_report - now), false);
		return;
	}
	if (task_step(report_step, NULL) != TASK_FAILED)
		forget();
	next_report = now + REPORT_INTERVAL;
}
