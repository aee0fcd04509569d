/*-------------------------------------------------------------------------
 *
 * handler.h
 *	  Handlers: which function runs the jobs of a queue, as whom, and whether
 *	  it still may.
 *
 * src/jobs/handler.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_HANDLER_H
#define QUEUE_HANDLER_H

#include "access/transam.h"
#include "datatype/timestamp.h"
#include "storage/itemptr.h"
#include "utils/uuid.h"

#include "util/limits.h"

/* A function that is called with messages */
typedef struct HandlerFunction
{
	char	   *schema;
	char	   *name;			/* NULL: there is none */
	bool		takes_jsonb;	/* or a queue_message */
	Oid			oid;			/* once it was found */
	Oid			argument;		/* its type */
	TransactionId xmin;			/* of its row, when it was checked */
	ItemPointerData tid;
} HandlerFunction;

/* When were handlers read?  Either counter tells of what changed since. */
typedef struct HandlerVersion
{
	uint64		generation;		/* of the catalog: invalidation messages */
	uint32		changes;		/* of the database, in shared memory */
} HandlerVersion;

/* What runs the jobs of a queue */
typedef struct Handler
{
	int32		queue_id;
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		paused;			/* the queue is */
	Oid			role;			/* as whom they run */
	HandlerFunction run;
	HandlerFunction teardown;
	int			concurrency;
	int			timeout;		/* seconds; 0: none */
	float4		rate;			/* jobs per second; 0: any */
	TimestampTz next_at;		/* of the rate */
	pg_uuid_t	digest;			/* of both functions, when they were bound */
	bool		logs_in;		/* the role could, when it bound them */
	char	   *search_path;

	/* for whoever runs them */
	bool		is_as_bound;	/* so were both, when they were checked */
	int			batch;			/* jobs to claim at once; 0: not known yet */
	int64		not_before;		/* leave it alone until then; monotonic */
} Handler;

/* What the worker has to know of a handler */
typedef struct HandlerSummary
{
	int32		queue_id;
	Oid			role;
	int			concurrency;
	bool		knows_paused;	/* this is good: */
	bool		paused;			/* the queue is, or is gone */
} HandlerSummary;

extern void handler_init(void);
extern Handler *handler_all(Oid role, int *n, HandlerVersion *version);
extern HandlerSummary *handler_summaries(int *n, HandlerVersion *version);
extern bool handler_is_current(const HandlerVersion *version);
extern char *handler_function_name(const HandlerFunction *function);
extern bool handler_is_same(const HandlerFunction *function);
extern const char *handler_check(Handler *handler);
extern void handler_stop(const Handler *handler, const char *reason);
extern int	handler_allowance(Handler *handler, TimestampTz now);
extern void handler_spend(Handler *handler, int n);

#endif							/* QUEUE_HANDLER_H */
