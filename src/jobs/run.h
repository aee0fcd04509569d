/*-------------------------------------------------------------------------
 *
 * run.h
 *	  A run of jobs: the life of a runner, or a call of job_run.
 *
 * src/jobs/run.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_RUN_H
#define QUEUE_RUN_H

#include "nodes/pg_list.h"

#include "jobs/handler.h"
#include "jobs/job_log.h"
#include "jobs/job_transaction.h"

/* When no more jobs are to begin */
typedef struct RunLimits
{
	int64		max_jobs;		/* attempts */
	int64		until;			/* monotonic clock */
} RunLimits;

/* Attempts to run jobs, so far */
typedef struct RunCounts
{
	int64		ok;
	int64		failed;
} RunCounts;

/* One of the slots of a queue, by which its concurrency is limited */
typedef struct RunSlot
{
	int32		queue_id;
	int			number;			/* -1 if none is held */
} RunSlot;

/* A runner's life, or a call of job_run */
typedef struct Run
{
	Oid			extension;		/* the OID of its table queue */
	bool		is_orphan;		/* the extension was found to be dropped */
	bool		is_renewed;		/* the worker renews the run's claims */
	int64		began_at;		/* monotonic clock */
	RunLimits	limits;
	RunCounts	counts;
	HandlerList handlers;
	List	   *stopped;		/* queues whose handler was reported to be
								 * unable to run; in the next field */
	MemoryContext context;
	RunSlot		slot;
	JobTransaction transaction;
	JobLog		log;
} Run;

extern void run_init(Run *run, bool is_session);
extern bool run_is_over(const Run *run);
extern bool run_find_orphan(Run *run);
extern bool run_acquire_slot(Run *run, const Handler *handler);
extern void run_release_slot(Run *run);

#endif							/* QUEUE_RUN_H */
