/*-------------------------------------------------------------------------
 *
 * queue_cmds.h
 *	  Commands on queues: create, change, purge and drop.
 *
 * src/commands/queue_cmds.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_QUEUE_CMDS_H
#define QUEUE_QUEUE_CMDS_H

#include "utils/jsonb.h"

#include "queue/acl.h"
#include "queue/queue_table.h"

/* Existence and contents */
extern bool queue_create(const char *name, Jsonb *metadata);
extern int64 queue_purge(const char *name);
extern bool queue_drop(const char *name);

/* Properties */
extern void queue_set_metadata(const char *name, Jsonb *metadata);
extern Jsonb *queue_update_metadata(const char *name, Jsonb *patch);
extern void queue_require_dead_letters(const Queue *queue);
extern bool queue_try_require_dead_letters(Queue *queue);
extern bool queue_set_paused(const char *name, bool paused);

/* Privileges and owner */
extern void queue_grant(const char *name, Oid role, QueuePrivilege privilege);
extern void queue_revoke(const char *name, Oid role, QueuePrivilege privilege);
extern void queue_set_owner(const char *name, Oid role);

#endif							/* QUEUE_QUEUE_CMDS_H */
