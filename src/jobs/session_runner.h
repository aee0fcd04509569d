/*-------------------------------------------------------------------------
 *
 * session_runner.h
 *	  A session that runs jobs: CALL job_run().
 *
 * src/jobs/session_runner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SESSION_RUNNER_H
#define QUEUE_SESSION_RUNNER_H

#include "jobs/run.h"

/* Why session_runner_run() has ended */
typedef enum RunEnd
{
	RUN_NONE_READY,				/* no job is ready */
	RUN_JOB_LIMIT,				/* max_jobs were run */
	RUN_TIME_LIMIT				/* the time is over */
} RunEnd;

extern RunEnd session_runner_run(const char **names, int nnames,
								 const RunLimits *limits, RunCounts *counts);

#endif							/* QUEUE_SESSION_RUNNER_H */
