/*-------------------------------------------------------------------------
 *
 * queue_table.h
 *	  The table of queues: its rows, and a queue as other modules use it.
 *
 * src/queue/queue_table.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_QUEUE_TABLE_H
#define QUEUE_QUEUE_TABLE_H

#include "access/htup.h"
#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "utils/jsonb.h"
#include "utils/rel.h"

#include "util/limits.h"

/*
 * The bound of groups that have a rate only: claims count and lock these as
 * those with a bound, but never find one full.
 */
#define GROUP_CONCURRENCY_NO_LIMIT	(INT_MAX / 2)

#define NOT_OF_PGMQ		PG_INT64_MIN

/* A dead letter queue has the name of its queue with this by default. */
#define DEAD_SUFFIX			".dead"

/* A queue as a call uses it: a copy, valid until the call ends */
typedef struct Queue
{
	int32		id;
	Oid			owner;
	bool		paused;

	/* The reserved keys of its metadata (options.c) */
	int			default_ttl;	/* seconds; -1 for that of the setting */
	int			default_delay;	/* seconds */
	int			max_post_size;	/* bytes; -1 for no limit */
	int			max_claim_count;	/* -1 for no limit */
	int			dead_ttl;		/* seconds; -1 for that of a push to that
								 * queue */
	int			retry_delay;	/* seconds; -1 if not set */
	double		retry_backoff;	/* the delay grows by this factor; -1 if not
								 * set */

	int			group_concurrency;	/* -1 for no limit; with a rate, there
									 * always is one */
	double		group_rate;		/* messages per second; 0 for no limit */
	int			keep_finished;	/* seconds in the history; -1 for none */
	bool		keep_body;		/* with the bodies */
	bool		results_for_producers;	/* push suffices to read it */
	int64		pgmq_base;		/* see message_id.h; NOT_OF_PGMQ if it is no
								 * queue of pgmq */
	bool		pgmq_notifies;	/* something is in pgmq.notify_throttle */
	bool		has_roots;		/* a root job was registered */
	bool		has_groups;		/* a message with a group key was pushed */
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		dead_named;		/* the metadata names dead_queue */
	char		dead_queue[QUEUE_NAME_LENGTH + 1];	/* "" if none is required */
	int32		dead_id;		/* the id of dead_queue when it became
								 * required; 0 if none is */
	int32		source_id;		/* the queue for whose dead letters this one
								 * was created, or 0 */
} Queue;

/* What is read of a queue without its metadata, which may be long */
typedef struct QueueSummary
{
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
	Oid			owner;
	bool		paused;
	TimestampTz created_at;
} QueueSummary;

/* One of a list of queues */
typedef struct QueueEntry
{
	int32		id;
	char	   *name;
	bool		paused;
	int32		dead_id;		/* its dead letter queue, or 0 */
} QueueEntry;

/* Returns whether this row of the table is to be in a list. */
typedef bool (*QueueFilter) (Relation rel, HeapTuple tuple);

typedef void (*QueueListCallback) (const QueueSummary *queue, Jsonb *metadata,
								   void *arg);

/* Rows of the table, which the caller has opened */
extern HeapTuple queue_table_fetch(Relation rel, const char *name);
extern HeapTuple queue_table_fetch_by_id(Relation rel, int32 id,
										 bool skip_malformed);
extern int32 queue_table_id(Relation rel, HeapTuple tuple, int attribute);
extern void queue_table_summarize(Relation rel, HeapTuple tuple,
								  QueueSummary *queue);
extern void queue_table_load(Relation rel, HeapTuple tuple, Queue *queue);

/* Queues by id, of any project */
extern bool queue_by_id(int32 id, Queue *queue);
extern bool queue_summary(int32 id, QueueSummary *queue);
extern bool queue_local_summary(int32 id, QueueSummary *queue);
extern Oid	queue_owner(int32 id);

/* Lists of queues */
extern List *queue_referring(int attribute, int32 id);
extern QueueEntry *queue_all(const char *project, QueueFilter filter,
							 int *n);
extern void *queue_find_entry(void *array, int n, Size size, int32 id);
extern bool queue_describe(const char *name, QueueSummary *queue,
						   Jsonb **metadata);
extern void queue_list(text *marker, int limit, text *pattern,
					   QueueListCallback callback, void *arg);

/* Writing */
extern bool queue_insert(const char *name, Jsonb *metadata, Oid owner,
						 int32 source_id);

#endif							/* QUEUE_QUEUE_TABLE_H */
