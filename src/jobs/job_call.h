/*-------------------------------------------------------------------------
 *
 * job_call.h
 *	  Calling the functions of a handler with a message.
 *
 * src/jobs/job_call.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_JOB_CALL_H
#define QUEUE_JOB_CALL_H

#include "fmgr.h"

#include "jobs/handler.h"
#include "jobs/job_transaction.h"
#include "queue/message_result.h"

/* The functions of a handler, ready to be called */
typedef struct JobFunctions
{
	bool		is_valid;
	FmgrInfo	function;
	FmgrInfo	teardown;		/* if it has one */
} JobFunctions;

extern bool job_call_function(const JobTransaction *transaction,
							  const Handler *handler, JobFunctions *functions,
							  bool is_teardown, ResultMessage *message);
extern void job_call_discard(void);

/* The time limit of a function */
extern void job_timeout_end(void);
extern void job_timeout_reset(void);
extern bool job_timeout_has_fired(void);

#endif							/* QUEUE_JOB_CALL_H */
