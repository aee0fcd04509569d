/*-------------------------------------------------------------------------
 *
 * execute.h
 *	  Running jobs: handlers called with the messages of their queues.
 *
 * src/jobs/execute.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_EXECUTE_H
#define QUEUE_EXECUTE_H

#include "jobs/handler.h"

/* execute.c: running them */
typedef struct Run
{
	bool		is_session;		/* in job_run; else in a runner */
	bool		is_restricted;	/* the handler is not the session's own */
	bool		is_renewed;		/* its claims are, by the worker */
	Oid			extension;		/* its catalog_queue_oid() */
	Oid			user;			/* outside of handlers */
	int			nest_level;		/* of settings */
	HandlerVersion version;		/* of the handlers that were read */
	int			slot;			/* among those who work for a queue, or -1 */
	int32		slot_of;		/* the queue */
	int64		ok;
	int64		failed;
	int64		max_jobs;
	int64		began;			/* of the monotonic clock, as those below */
	int64		until;			/* no job begins then */
	int64		log_began;		/* the interval in which failures are counted */
	int			logged;			/* in that */
	int64		unlogged;		/* failures that were not, so far */
	MemoryContext handler_context;
	MemoryContext context;		/* for what was claimed at once */
	MemoryContext job_context;	/* for one job */
} Run;

extern void run_init(Run *run, bool is_session);
extern bool run_queue(Run *run, Handler *handler);
extern bool run_is_over(const Run *run);
extern void run_give_slot(Run *run);
extern void run_end_log(Run *run);

#endif							/* QUEUE_EXECUTE_H */
