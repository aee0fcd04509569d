/*-------------------------------------------------------------------------
 *
 * role.h
 *	  Roles that own queues or have privileges on them by name.
 *
 * src/queue/role.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_ROLE_H
#define QUEUE_ROLE_H

#include "nodes/parsenodes.h"
#include "utils/rel.h"

#include "util/xact.h"

extern XactList unchecked_roles;

/* Recording the roles that queues refer to */
extern void role_check(Oid role);
extern void role_record(Oid role);
extern void role_forget(Oid role);
extern void role_record_all(void);
extern List *role_all_of(Relation rel, HeapTuple tuple);

/* Dumps and DROP ROLE */
extern void role_check_exists(const char *queue, Oid role);
extern char *role_drop_hint(DropRoleStmt *statement);

#endif							/* QUEUE_ROLE_H */
