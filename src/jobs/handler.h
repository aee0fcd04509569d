/*-------------------------------------------------------------------------
 *
 * handler.h
 *	  Handlers: which function runs the jobs of a queue, and how.
 *
 * src/jobs/handler.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_HANDLER_H
#define QUEUE_HANDLER_H

#include "datatype/timestamp.h"

#include "queue/queue_table.h"

/*
 * A function by name.  An OID would not outlive a dump or pg_upgrade, and
 * might then be that of another function.
 */
typedef struct FunctionName
{
	char	   *schema;
	char	   *name;			/* NULL if there is none */
	bool		takes_jsonb;	/* its argument; otherwise a queue_message */
} FunctionName;

/* The function that was last found for a name */
typedef struct FoundFunction
{
	Oid			oid;
	Oid			argument_type;
} FoundFunction;

/* How jobs of a queue are run */
typedef struct HandlerOptions
{
	int			concurrency;	/* jobs at the same time */
	int			timeout;		/* seconds; 0 if there is only
								 * queue.max_handler_time */
	float4		rate;			/* jobs per second; 0 if unlimited */
} HandlerOptions;

/* A row of queue_data.handler */
typedef struct HandlerRow
{
	int32		queue_id;
	Oid			role;			/* bound the handler, and runs the jobs */
	HandlerOptions options;
	TimestampTz next_at;		/* when the next job may begin, by the rate */
	bool		logs_in;		/* the role could log in when it bound it */
	char	   *search_path;	/* of the session then */
	FunctionName function;
	FunctionName teardown;
	TimestampTz loaded_by;		/* when the session began that has written the
								 * row with SQL; 0 if job_handler() has */
} HandlerRow;

/*
 * A handler as a process that runs its jobs remembers it.  What is not read
 * from tables begins anew whenever handlers are read again.
 */
typedef struct Handler
{
	HandlerRow	row;
	QueueSummary queue;			/* that it is of */
	FoundFunction function;		/* these are valid after handler_check() */
	FoundFunction teardown;
	uint64		functions_generation;	/* of handler_check.c then */
	bool		load_has_ended; /* of the row, by a restore; or it had none */
	bool		is_stopped;		/* it could not run when that was last tried */
	int			batch_size;		/* jobs to claim at once; 0 if not known yet */
	int64		not_before;		/* do not claim until then; monotonic */
} Handler;

/* What the worker has to know of a handler */
typedef struct HandlerSummary
{
	int32		queue_id;
	Oid			role;
	int			concurrency;

	/* for worker_jobs.c; all zero when the handlers were read */
	bool		paused;			/* the queue was paused, or did not exist */
	uint32		problem;		/* hash of why it cannot run; 0 if it can */
	int64		check_at;		/* check both again then; monotonic */
	TimestampTz loaded_by;		/* the load of this row has ended */
} HandlerSummary;

/* When handlers were read: both counters increase with each change. */
typedef struct HandlerVersion
{
	uint64		generation;		/* of the catalog: invalidation messages */
	uint32		changes;		/* of the database's handlers, in shared
								 * memory */
} HandlerVersion;

/* The handlers that a process runs */
typedef struct HandlerList
{
	Handler    *items;			/* in the order of their queues */
	int			n;
	HandlerVersion version;		/* zeros if they have not been read yet */
	MemoryContext context;		/* they are in */
} HandlerList;

static inline bool
handler_has_teardown(const Handler *handler)
{
	return handler->row.teardown.name != NULL;
}

/* reading */
extern void handler_list_read(HandlerList *list, Oid role);
extern bool handler_read(int32 queue_id, Handler *handler);
extern HandlerSummary *handler_summaries(int *n, HandlerVersion *version);
extern bool handler_is_current(const HandlerVersion *version);

extern int	handler_time_limit(const Handler *handler);

/* changing */
extern void handler_bind(const char *queue_name, Oid function, Oid teardown,
						 const HandlerOptions *options);
extern void handler_unbind(const char *queue_name);

/* the rate of jobs */
extern int	handler_allowance(Handler *handler, TimestampTz now);
extern void handler_spend(Handler *handler, int n);

#endif							/* QUEUE_HANDLER_H */
