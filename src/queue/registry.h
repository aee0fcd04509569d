/*-------------------------------------------------------------------------
 *
 * registry.h
 *	  Queues: finding them by name, locking them, who may do what with them.
 *
 * src/queue/registry.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_REGISTRY_H
#define QUEUE_REGISTRY_H

#include "datatype/timestamp.h"
#include "fmgr.h"
#include "nodes/pg_list.h"
#include "utils/jsonb.h"
#include "utils/rel.h"

#include "util/compat.h"
#include "util/limits.h"

/* A queue as a call uses it: a copy, good until the call ends. */
typedef struct Queue
{
	int32		id;
	Oid			owner;
	bool		paused;
	int			default_ttl;	/* seconds; -1: the setting */
	int			default_delay;	/* seconds */
	int			max_post_size;	/* bytes; -1: none */
	int			max_claim_count;	/* -1: none */
	int			dead_ttl;		/* seconds; -1: as any push there */
	int			retry_delay;	/* seconds */
	double		retry_backoff;	/* the delay grows by this factor */
	bool		has_roots;		/* root jobs were registered */
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		dead_named;		/* dead_queue is not the default one */
	char		dead_queue[QUEUE_NAME_LENGTH + 1];	/* "": none is required */
	int32		dead_id;		/* the queue that this was; 0: none */
	int32		source_id;		/* created for that one's dead letters, or 0 */
} Queue;

/* One of a list of queues */
typedef struct QueueEntry
{
	int32		id;
	char	   *name;
} QueueEntry;

/* What a caller wants of a queue; each needs a right and takes a lock. */
typedef enum QueueUse
{
	QUEUE_LOOK,					/* describe it: no right, no lock */
	QUEUE_READ,					/* list, get: the right to claim, no lock */
	QUEUE_PUSH,					/* add messages */
	QUEUE_CLAIM,				/* claim and delete messages */
	QUEUE_ALTER,				/* change what it is */
	QUEUE_PURGE,				/* with nobody pushing or claiming */
	QUEUE_DROP					/* likewise, and gone then */
} QueueUse;

/* What became of opening a queue */
typedef enum QueueOpened
{
	QUEUE_OPENED,
	QUEUE_MISSING,				/* it does not exist */
	QUEUE_DENIED,				/* the role has no right to that use */
	QUEUE_BUSY					/* not without waiting for a lock */
} QueueOpened;

extern const char *queue_name_arg(FunctionCallInfo fcinfo, int arg,
								  const char *argname);
extern const char *queue_name_text(text *value, const char *argname);
extern void queue_check_name(const char *name, const char *argname);
extern void queue_prevent(const char *function);
extern bool queue_open(const char *name, QueueUse use, Queue *queue);
extern void queue_open_known(const char *name, QueueUse use, Queue *queue);
extern void queue_open_for_push(const char *name, Queue *queue);
extern bool queue_name_of(int32 id, char *project, char *name,
						  bool *paused);
extern bool queue_try_lock(int32 id);
extern bool queue_created_at(int32 id, TimestampTz *created_at);
extern QueueEntry *queue_all(const char *project, int *n);
extern bool queue_peek(const char *name, Oid role, QueueUse use,
					   Queue *queue, bool *may);
extern QueueOpened queue_open_as(const char *name, Oid role, QueueUse use,
								 bool wait, Queue *queue);
extern void queue_check_may_create(void);
extern bool queue_insert(const char *name, Jsonb *metadata, Oid owner,
						 int32 source_id);
extern bool queue_by_id(int32 id, Queue *queue);
extern List *queue_referring(int attribute, int32 id);
extern bool queue_should_warn(const char *name);
extern void queue_changed(void);
extern void queue_lock_dead_letters(int32 queue_id, bool change);
extern bool queue_lock_role(Oid role, bool remove);
extern void queue_lock_schedule(int32 id);
extern void queue_lock_rate(int32 queue_id);
extern int	queue_lock_take_slot(int32 queue_id, int slots);
extern void queue_lock_give_slot(Oid extension, int32 queue_id, int slot);
extern HeapTuple queue_fetch(Relation rel, const char *name);
pg_noreturn extern void queue_unknown(const char *name);

#endif							/* QUEUE_REGISTRY_H */
