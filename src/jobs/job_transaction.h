/*-------------------------------------------------------------------------
 *
 * job_transaction.h
 *	  Transactions in which jobs run, as the role of their handler.
 *
 * src/jobs/job_transaction.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_JOB_TRANSACTION_H
#define QUEUE_JOB_TRANSACTION_H

#include "fmgr.h"

#include "jobs/handler.h"
#include "queue/message_result.h"

typedef struct JobTransaction
{
	/* the process; never changed */
	bool		is_session;		/* in CALL job_run(); otherwise a runner */
	Oid			user;			/* the current role outside of transactions
								 * that job_transaction_run() executes */
	MemoryContext error_context;	/* for the errors that are returned */
	MemoryContext job_context;	/* the current one, in these transactions and
								 * after them */

	/* a session */
	bool		is_clean;		/* it holds no advisory locks but those that
								 * restricted transactions have taken */

	/* the transaction that is open, or was last */
	bool		is_restricted;	/* the session belongs to another role than
								 * the handler */
	int			nest_level;		/* of its settings */
	bool		lost_locks;		/* it was rolled back, which has released
								 * session-level locks too */
} JobTransaction;

typedef struct Batch Batch;

/* What a transaction does for a batch */
typedef void (*JobAction) (Batch *batch);

extern void job_transaction_init(JobTransaction *transaction,
								 bool is_session);
extern ErrorData *job_transaction_run(JobTransaction *transaction,
									  const Handler *handler,
									  JobAction action, Batch *batch);
extern void job_transaction_clean_session(const JobTransaction *transaction);

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
extern bool job_timeout_has_fired(void);

#endif							/* QUEUE_JOB_TRANSACTION_H */
