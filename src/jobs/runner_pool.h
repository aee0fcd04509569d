/*-------------------------------------------------------------------------
 *
 * runner_pool.h
 *	  Who runs jobs: the runners of all databases, as shared memory knows them.
 *
 * src/jobs/runner_pool.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_RUNNER_POOL_H
#define QUEUE_RUNNER_POOL_H

#include "datatype/timestamp.h"

#include "jobs/handler.h"
#include "storage/claim_id.h"

/* What somebody who runs jobs does. */
typedef enum RunnerState
{
	RUNNER_NONE,				/* the entry is free */
	RUNNER_STARTING,
	RUNNER_IDLE,
	RUNNER_CALLED,				/* idle, and told that there is something */
	RUNNER_BUSY,
	RUNNER_GONE					/* ended, and left a claim behind */
} RunnerState;

/*
 * Somebody who runs jobs: a background process, or a session in job_run.  The
 * lock of the array guards everything but "leave", which is only looked at.
 */
typedef struct Runner
{
	RunnerState state;
	bool		is_session;
	bool		has_more;		/* there is work for one more in its queue */
	bool		leave;			/* it shall end */
	int64		asked_at;		/* to do so, of the monotonic clock */
	uint32		generation;		/* of the entry */
	Oid			database;
	Oid			role;
	int			pid;			/* 0: not there yet */
	int			proc;			/* its number */
	int64		since;			/* it has been in this state; monotonic */
	int32		queue_id;		/* what it works for; 0: none */
	ClaimId		claim;
	int64		message_id;		/* at work; 0: none */
	int			ttl;			/* seconds; of the claim */
	TimestampTz renew_at;		/* the claim is to be renewed then */
	int64		end_at;			/* it is to be ended then; monotonic */
} Runner;

#define RENEWALS_PER_TTL	2	/* of the claims of jobs at work */

extern void pool_init(void);
extern bool pool_exists(void);
extern void pool_dispatch(HandlerSummary *const *handlers, int n, bool more);
extern TimestampTz pool_next_due(void);
extern bool pool_take_due(Runner *due);
extern bool pool_is_leaving(void);
extern void pool_renewed(const Runner *renewed);
extern void pool_took_over(const Runner *gone);
extern void pool_vacate(Oid database, bool terminate);
extern bool pool_enter(uint64 ticket, Oid *database, Oid *role);
extern bool pool_enter_session(Oid role);
extern void pool_leave(void);
extern void pool_set_state(RunnerState state);
extern bool pool_must_leave(void);
extern bool pool_is_surplus(void);
extern void pool_set_claim(int32 queue_id, const ClaimId *claim, int ttl,
						   bool several);
extern void pool_set_message(int64 id, int seconds);
extern void pool_set_more(bool has_more);
extern void pool_clear_claim(void);
extern Runner *pool_list(int *n);

#endif							/* QUEUE_RUNNER_POOL_H */
