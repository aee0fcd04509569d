/*-------------------------------------------------------------------------
 *
 * job_attempt.h
 *	  An attempt to run one job.
 *
 * src/jobs/job_attempt.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_JOB_ATTEMPT_H
#define QUEUE_JOB_ATTEMPT_H

#include "jobs/run.h"

/*
 * What became of an attempt; the numbers are those of the steps in execute.c.
 */
typedef enum JobOutcome
{
	JOB_NOT_RUN,				/* 2: no slot is free, or the handler cannot
								 * run */
	JOB_DONE,					/* 3 */
	JOB_FAILED,					/* 4 */
	JOB_CANCELED,				/* 4: the session was canceled */
	JOB_CLAIM_LOST				/* 4: the message is not under the claim */
} JobOutcome;

extern JobOutcome job_attempt(Batch *batch);
extern bool job_attempt_set_result(const Jsonb *result);

#endif							/* QUEUE_JOB_ATTEMPT_H */
