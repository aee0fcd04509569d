/*-------------------------------------------------------------------------
 *
 * job_log.c
 *	  Logging failures of jobs, a bounded number in each interval.
 *
 * NOTES
 *	  A runner writes failures to the server's log; a session in job_run sends
 *	  them to its client as warnings.  A handler that always fails must not
 *	  fill the disk, so only LOG_MAX failures are logged in each LOG_INTERVAL,
 *	  and each part of a handler's error is clipped to LOG_LENGTH.
 *
 * src/jobs/job_log.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "datatype/timestamp.h"
#include "mb/pg_wchar.h"

#include "jobs/job_log.h"
#include "util/clock.h"

#define LOG_LENGTH			500 /* bytes */
#define LOG_MAX				20
#define LOG_INTERVAL		(10 * USECS_PER_SEC)

static const char *clip_text(const char *text);
static int	event_message(JobLogEvent event, const char *queue_name,
						  int64 message_id, const char *text);

void
job_log_init(JobLog *log, int elevel)
{
	log->elevel = elevel;
	log->interval_began = clock_monotonic();
	log->logged = 0;
	log->suppressed = 0;
}

static const char *
clip_text(const char *text)
{
	int			length = strlen(text);
	int			clipped = pg_mbcliplen(text, length, LOG_LENGTH);

	return clipped == length ? text : psprintf("%.*s...", clipped, text);
}

/* Used within ereport(), like errmsg() */
static int
event_message(JobLogEvent event, const char *queue_name, int64 message_id,
			  const char *text)
{
	long long	id = message_id;

	switch (event)
	{
		case JOB_LOG_ATTEMPT:
			return errmsg("job %lld of queue \"%s\" failed: %s",
						  id, queue_name, text);
		case JOB_LOG_COMPLETION:
			return errmsg("completion of job %lld of queue \"%s\" failed: %s",
						  id, queue_name, text);
		case JOB_LOG_RETRY:
			return errmsg("could not give back job %lld of queue \"%s\": %s",
						  id, queue_name, text);
		case JOB_LOG_BURY:
			return errmsg("job %lld of queue \"%s\" could not become a dead letter, and will be retried: %s",
						  id, queue_name, text);
		case JOB_LOG_TEARDOWN:
			return errmsg("teardown of job %lld of queue \"%s\" failed: %s",
						  id, queue_name, text);
		case JOB_LOG_CLAIM:
			return errmsg("could not claim jobs of queue \"%s\": %s",
						  queue_name, text);
		case JOB_LOG_RELEASE:
			return errmsg("could not release a claim of queue \"%s\": %s",
						  queue_name, text);
	}
	return 0;
}

/* Log a failure.  message_id is only used by events that concern one job. */
void
job_log(JobLog *log, JobLogEvent event, const char *queue_name,
		int64 message_id, const ErrorData *error)
{
	if (clock_monotonic() >= log->interval_began + LOG_INTERVAL)
		job_log_end_interval(log);
	if (log->logged >= LOG_MAX)
	{
		log->suppressed++;
		return;
	}
	log->logged++;

	/* errcontext() is two expressions, so it cannot stand behind the colon. */
	ereport(log->elevel,
			(errcode(error->sqlerrcode),
			 event_message(event, queue_name, message_id,
						   clip_text(error->message)),
			 error->detail ?
			 errdetail_internal("%s", clip_text(error->detail)) : 0,
			 error->hint ? errhint("%s", clip_text(error->hint)) : 0,
			 error->context ?
			 errcontext("%s", clip_text(error->context)) : 0));
}

/* Begin a new interval; report how many failures were not logged. */
void
job_log_end_interval(JobLog *log)
{
	if (log->suppressed > 0)
		ereport(log->elevel,
				(errmsg("%lld more failures of jobs were not logged",
						(long long) log->suppressed),
				 errdetail("At most %d are logged in %d seconds.", LOG_MAX,
						   (int) (LOG_INTERVAL / USECS_PER_SEC)),
				 errhint("job_stats shows the last error of a queue, and queue_dead_letters that of each dead letter.")));
	job_log_init(log, log->elevel);
}
