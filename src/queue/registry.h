/*-------------------------------------------------------------------------
 *
 * registry.h
 *	  Finding and opening queues.
 *
 * src/queue/registry.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_REGISTRY_H
#define QUEUE_REGISTRY_H

#include "queue/acl.h"
#include "queue/queue_table.h"
#include "util/compat.h"

/* What became of finding or opening a queue */
typedef enum QueueResult
{
	QUEUE_OK,
	QUEUE_MISSING,				/* it does not exist */
	QUEUE_DENIED,				/* the role does not have the privilege */
	QUEUE_BUSY					/* not without waiting for a lock */
} QueueResult;

/* Names */
extern bool queue_is_name_character(char c);
extern void queue_check_name(const char *name, const char *argname);

/* Finding a queue, without a lock */
extern QueueResult queue_find_as(const char *name, Oid role,
								 QueueAccess access, Queue *queue);

/* What the current role may claim from */
extern QueueResult queue_check_claimable(int32 id, const char *project,
										 QueueSummary *summary, Queue *queue);
extern QueueEntry *queue_list_readable(int *n);
extern bool queue_may_inspect(int32 id, Oid role);

/* Whether a queue is in this database */
extern void queue_check_local(const char *name);
extern void queue_check_left(const char *name, bool found);

/* Opening a queue: with the privilege, and the lock, that the access needs */
extern QueueResult queue_open_as(const char *name, Oid role,
								 QueueAccess access, bool wait, Queue *queue);
extern bool queue_try_open(int32 queue_id, Queue *queue, bool *paused,
						   bool *locked);
extern bool queue_open_by_id(int32 queue_id, Queue *queue);
extern bool queue_open_local(const char *name, QueueAccess access,
							 Queue *queue);
extern bool queue_open(const char *name, QueueAccess access, Queue *queue);
extern void queue_open_existing(const char *name, QueueAccess access,
								Queue *queue);
extern void queue_open_or_create(const char *name, QueueAccess access,
								 Queue *queue);
pg_noreturn extern void queue_missing_error(const char *name);
extern const char *queue_grant_hint(const char *name, Oid role,
									QueueAccess access);

/* Notices, each once in a session */
extern bool queue_open_or_notice(const char *name, QueueAccess access,
								 Queue *queue);
extern void queue_notice_missing(const char *name);
extern void queue_notice_result(const char *name);
extern void queue_notice_dead_letters(const Queue *queue);

/* The session's cache */
extern void queue_invalidate(void);
extern bool queue_may_warn(const char *name);

#endif							/* QUEUE_REGISTRY_H */
