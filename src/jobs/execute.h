/*-------------------------------------------------------------------------
 *
 * execute.h
 *	  Running jobs: calling handlers with the messages of their queues.
 *
 * src/jobs/execute.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_EXECUTE_H
#define QUEUE_EXECUTE_H

#include "jobs/handler.h"
#include "jobs/run.h"

/* Why execute_in_session() has ended */
typedef enum RunEnd
{
	RUN_NONE_READY,				/* no job is ready */
	RUN_JOB_LIMIT,				/* max_jobs were run */
	RUN_TIME_LIMIT				/* the time is over */
} RunEnd;

extern bool execute_queue(Run *run, Handler *handler);
extern RunEnd execute_in_session(const char **names, int nnames,
								 const RunLimits *limits, RunCounts *counts);

#endif							/* QUEUE_EXECUTE_H */
