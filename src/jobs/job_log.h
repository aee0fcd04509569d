/*-------------------------------------------------------------------------
 *
 * job_log.h
 *	  Logging failures of jobs, a bounded number in each interval.
 *
 * src/jobs/job_log.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_JOB_LOG_H
#define QUEUE_JOB_LOG_H

/* What has failed */
typedef enum JobLogEvent
{
	JOB_LOG_ATTEMPT,			/* the handler's function */
	JOB_LOG_COMPLETION,			/* the function returned true, but its message
								 * could not be deleted */
	JOB_LOG_RETRY,				/* giving a message back after a failure */
	JOB_LOG_BURY,				/* making it a dead letter; it is retried */
	JOB_LOG_TEARDOWN,			/* the teardown function */
	JOB_LOG_CLAIM,				/* claiming jobs */
	JOB_LOG_RELEASE				/* giving back jobs that were not run */
} JobLogEvent;

/* What a process has logged */
typedef struct JobLog
{
	int			elevel;			/* LOG, or WARNING for the session's client */
	int64		interval_began; /* monotonic clock */
	int			logged;			/* failures in this interval */
	int64		suppressed;		/* more of them, which were not logged */
} JobLog;

extern void job_log_init(JobLog *log, int elevel);
extern void job_log(JobLog *log, JobLogEvent event, const char *queue_name,
					int64 message_id, const ErrorData *error);
extern void job_log_end_interval(JobLog *log);

#endif							/* QUEUE_JOB_LOG_H */
