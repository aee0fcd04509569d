/*-------------------------------------------------------------------------
 *
 * job_timeout.h
 *	  The time limit of a handler's function.
 *
 * src/jobs/job_timeout.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_JOB_TIMEOUT_H
#define QUEUE_JOB_TIMEOUT_H

extern void job_timeout_start(int seconds);
extern void job_timeout_end(void);
extern void job_timeout_reset(void);
extern bool job_timeout_has_fired(void);

#endif							/* QUEUE_JOB_TIMEOUT_H */
