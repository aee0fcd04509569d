/*-------------------------------------------------------------------------
 *
 * acl.h
 *	  Privileges on queues.
 *
 * src/queue/acl.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_ACL_H
#define QUEUE_ACL_H

#include "access/htup.h"
#include "utils/array.h"
#include "utils/rel.h"

#include "catalog/relations.h"
#include "util/compat.h"

/* What queue_grant grants */
typedef enum QueuePrivilege
{
	QUEUE_PRIVILEGE_PUSH,		/* add messages */
	QUEUE_PRIVILEGE_CLAIM,		/* list, claim and delete messages */
	QUEUE_PRIVILEGE_ADMIN		/* all that the owner can do */
} QueuePrivilege;

#define QUEUE_PRIVILEGES	3

typedef struct PrivilegeInfo
{
	const char *name;
	int			column;			/* of queue_data.queue: the roles that have it */
	CatalogRole role;			/* its members have it on all queues */
} PrivilegeInfo;

extern const PrivilegeInfo queue_privileges[QUEUE_PRIVILEGES];

/*
 * What a caller is going to do with a queue.  It decides which privilege is
 * required and which lock is taken (queue_lock.c).
 */
typedef enum QueueAccess
{
	QUEUE_DESCRIBE,				/* what any role may know; no lock */
	QUEUE_READ,					/* list messages: claim; no lock */
	QUEUE_INSPECT,				/* see what runs there: admin; no lock */
	QUEUE_PUSH,					/* add messages: push; shared lock */
	QUEUE_CLAIM,				/* claim, delete: claim; shared lock */
	QUEUE_ALTER,				/* change its row: admin; excludes changes */
	QUEUE_PURGE,				/* empty it: admin; excludes push and claim */
	QUEUE_DROP					/* remove it: admin; excludes all others */
} QueueAccess;

/* Owner and grants of one queue */
typedef struct QueueAcl
{
	Oid			owner;
	ArrayType  *roles[QUEUE_PRIVILEGES];	/* NULL if granted to no role by
											 * name */
	int32		roles_of[QUEUE_PRIVILEGES]; /* the source queue that these
											 * roles are those of, or 0 */
} QueueAcl;

/* Checking */
extern void acl_load(Relation rel, HeapTuple tuple, bool skip_malformed,
					 QueueAcl *acl);
extern void acl_copy(const QueueAcl *acl, QueueAcl *copy);
extern bool acl_is_member_of_any(Oid role, ArrayType *array);
extern bool acl_allows(const QueueAcl *acl, Oid role, QueueAccess access);
extern void acl_check_member(CatalogRole of, const char *what);

/* Hints */
extern const char *acl_role_identifier(Oid role);
extern const char *acl_grant_hint(const char *name, const QueueAcl *acl,
								  Oid role, QueueAccess access);

/* Grants */
extern int	acl_roles(ArrayType *array, Datum **roles);
extern ArrayType *acl_change_roles(ArrayType *array, Oid role,
								   bool is_granted);

#endif							/* QUEUE_ACL_H */
