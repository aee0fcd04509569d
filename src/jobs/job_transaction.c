/*-------------------------------------------------------------------------
 *
 * job_transaction.c
 *	  Transactions in which jobs run, as the role of their handler.
 *
 * NOTES
 *	  A runner's transactions are like those of the server's main loop.  A
 *	  session in job_run is inside a CALL: it commits through SPI, and the
 *	  work is done in a subtransaction, because an error must unwind what a
 *	  function has put on SPI's stack.
 *
 *	  The work is done as the role that bound the handler, with
 *	  SECURITY_LOCAL_USERID_CHANGE, in which the server refuses SET ROLE and
 *	  SET SESSION AUTHORIZATION.  A runner keeps that state until its
 *	  transaction has ended.  Settings that were changed are restored.
 *
 *	  A runner serves a single role for its whole life, and its session
 *	  belongs to that role.  So whatever a function leaves in the memory of
 *	  the process never meets another role.
 *
 *	  A session in job_run belongs to the role that logged in, also during SET
 *	  ROLE and SET SESSION AUTHORIZATION: it will return to that role, and
 *	  would then run what a function had left behind.  So a function of
 *	  another role runs with SECURITY_RESTRICTED_OPERATION, in which the
 *	  server refuses most of what could be left behind, and job_call.c refuses
 *	  the use of the session's temporary schema.  Advisory locks are not
 *	  refused: the session may hold none, and those of the function are
 *	  released after the attempt, and the seed of random() is set anew.
 *
 * src/jobs/job_transaction.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "jobs/job_call.h"
#include "jobs/job_transaction.h"
#include "util/session_lock.h"
#include "util/settings.h"

static void check_session(const JobTransaction *transaction,
						  const Handler *handler);
static void act_as_handler(JobTransaction *transaction,
						   const Handler *handler);
static ErrorData *save_error(const JobTransaction *transaction);
static ErrorData *run_in_runner(JobTransaction *transaction,
								const Handler *handler,
								JobAction action, Batch *batch);
static ErrorData *run_in_session(JobTransaction *transaction,
								 const Handler *handler,
								 JobAction action, Batch *batch);

/* Get ready.  The memory contexts are children of the current one. */
void
job_transaction_init(JobTransaction *transaction, bool is_session)
{
	memset(transaction, 0, sizeof(JobTransaction));
	transaction->is_session = is_session;
	transaction->user = GetUserId();

	/* A cancel ends what a transaction does, never the process of a runner. */
	if (!is_session)
		HOLD_CANCEL_INTERRUPTS();
	transaction->error_context =
		AllocSetContextCreate(CurrentMemoryContext, "jobs",
							  ALLOCSET_DEFAULT_SIZES);

	/* Not a child of the other, which is reset less often. */
	transaction->job_context =
		AllocSetContextCreate(CurrentMemoryContext, "job",
							  ALLOCSET_DEFAULT_SIZES);
}

/*
 * Check that a session that belongs to another role than the handler has
 * nothing that the handler must not reach.
 */
static void
check_session(const JobTransaction *transaction, const Handler *handler)
{
	/* A cursor may have privileges that the handler's role lacks. */
	if (!ThereAreNoReadyPortals())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot run jobs of queue \"%s\" while the session has open cursors",
						handler->name),
				 errdetail("The handler belongs to another role, which could read them."),
				 errhint("Close them with CLOSE ALL, or log in as the handler's role.")));

	/*
	 * Advisory locks belong to the session, so the handler could release
	 * those that it finds, and would be granted them once more.  What it
	 * takes itself is released after each attempt, which is safe because the
	 * session held none before.  To check that once is enough, until a
	 * handler of the session's own role has run, which may keep its locks.
	 */
	if (!transaction->is_clean && session_lock_has_user_locks())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot run jobs of queue \"%s\" while the session holds advisory locks",
						handler->name),
				 errdetail("The handler belongs to another role, which could release them."),
				 errhint("Release them with pg_advisory_unlock_all(), or log in as the handler's role.")));
}

/*
 * Undo what handlers of other roles have left in this session: their advisory
 * locks, and the seed of random().
 */
void
job_transaction_clean_session(const JobTransaction *transaction)
{
	if (!transaction->is_clean)
		return;
	session_lock_release_user_locks();
	job_transaction_reset_seed();
}

/* Whatever setseed() was called with, nobody knows what random() returns. */
void
job_transaction_reset_seed(void)
{
	uint32		seed;

	if (pg_strong_random(&seed, sizeof(seed)))
		(void) DirectFunctionCall1(setseed,
								   Float8GetDatum((double) seed / PG_UINT32_MAX));
}

/* Begin to act as a handler's role, in its queue's project. */
static void
act_as_handler(JobTransaction *transaction, const Handler *handler)
{
	Oid			role = handler->row.role;
	int			context = SECURITY_LOCAL_USERID_CHANGE;

	/*
	 * What a function leaves behind does no harm only if its role is both the
	 * current role and the one that logged in, to which the session returns.
	 */
	transaction->is_restricted = transaction->is_session &&
		(role != transaction->user || role != GetAuthenticatedUserId());
	if (transaction->is_restricted)
	{
		context |= SECURITY_RESTRICTED_OPERATION;
		check_session(transaction, handler);
	}
	transaction->is_clean = transaction->is_restricted;
	transaction->nest_level = NewGUCNestLevel();
	if (strcmp(setting_project, handler->project) != 0)
		settings_set("queue.project", handler->project, false);
	SetUserIdAndSecContext(role, context);
	MemoryContextSwitchTo(transaction->job_context);
}

/* In PG_CATCH: a copy of the error */
static ErrorData *
save_error(const JobTransaction *transaction)
{
	ErrorData  *error;

	MemoryContextSwitchTo(transaction->error_context);
	error = CopyErrorData();
	FlushErrorState();
	return error;
}

static ErrorData *
run_in_runner(JobTransaction *transaction, const Handler *handler,
			  JobAction action, Batch *batch)
{
	ErrorData  *volatile error = NULL;

	/* A cancel that came between two transactions was not for this one. */
	QueryCancelPending = false;
	RESUME_CANCEL_INTERRUPTS();
	PG_TRY();
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		act_as_handler(transaction, handler);
		PushActiveSnapshot(GetTransactionSnapshot());
		action(batch);
		PopActiveSnapshot();
		AtEOXact_GUC(false, transaction->nest_level);

		/* Whatever runs at the commit runs as the handler's role. */
		CommitTransactionCommand();
		SetUserIdAndSecContext(transaction->user, 0);
	}
	PG_CATCH();
	{
		error = save_error(transaction);
		AbortCurrentTransaction();
		transaction->lost_locks = true;
		Assert(GetUserId() == transaction->user);
	}
	PG_END_TRY();

	/* An error has set the counter to 0, as RESUME_CANCEL_INTERRUPTS did. */
	HOLD_CANCEL_INTERRUPTS();
	job_timeout_reset();
	return error;
}

static ErrorData *
run_in_session(JobTransaction *transaction, const Handler *handler,
			   JobAction action, Batch *batch)
{
	ErrorData  *volatile error = NULL;
	ResourceOwner owner;

	act_as_handler(transaction, handler);
	owner = CurrentResourceOwner;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(transaction->job_context);
	PG_TRY();
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		action(batch);
		PopActiveSnapshot();
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		error = save_error(transaction);
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	job_timeout_reset();
	CurrentResourceOwner = owner;

	/* The commit may fail too; then SPI has begun the next transaction. */
	PG_TRY();
	{
		AtEOXact_GUC(false, transaction->nest_level);

		/* SPI begins the next transaction at once, as the session's user. */
		SetUserIdAndSecContext(transaction->user, 0);
		SPI_commit();
	}
	PG_CATCH();
	{
		ErrorData  *commit_error = save_error(transaction);

		if (error == NULL)
			error = commit_error;
		transaction->lost_locks = true;
	}
	PG_END_TRY();
	return error;
}

/*
 * Execute an action in a transaction of its own, as the handler's role.
 * Returns NULL if that was committed; otherwise it was rolled back, and the
 * error is returned.
 */
ErrorData *
job_transaction_run(JobTransaction *transaction, const Handler *handler,
					JobAction action, Batch *batch)
{
	ErrorData  *error;

	transaction->lost_locks = false;
	error = transaction->is_session ?
		run_in_session(transaction, handler, action, batch) :
		run_in_runner(transaction, handler, action, batch);
	MemoryContextSwitchTo(transaction->job_context);
	return error;
}
