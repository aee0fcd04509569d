/*-------------------------------------------------------------------------
 *
 * acl.c
 *	  Privileges on queues.
 *
 * NOTES
 *	  Three roles that the extension creates give the privileges on all queues:
 *	  queue_producer may push, queue_consumer may claim, and queue_admin may do
 *	  all.  On a single queue, a privilege can be granted to roles by name:
 *
 *	  push, claim	 A grant narrows the privilege.  A role then has it if it
 *					 is a member of queue_producer or queue_consumer and of
 *					 one of the named roles.
 *	  admin			 A grant adds to the owner, the members of queue_admin and
 *					 superusers.
 *
 *	  The owner of a queue, queue_admin and a role with admin on it have push
 *	  and claim on it as well.
 *
 *	  A queue that was created as the dead letter queue of another one has the
 *	  id of that queue in source_id.  Until claim or admin is granted on the
 *	  dead letter queue by name, it has the grants of its source queue.  These
 *	  are read when the queue is loaded into the cache (registry.c); a change
 *	  of the source queue invalidates the cache like any change of a queue.
 *
 *	  Grants are kept as arrays of roles in queue_data.queue, NULL where a
 *	  privilege was granted to no role by name.
 *
 * src/queue/acl.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "catalog/tables.h"
#include "queue/acl.h"
#include "queue/queue_table.h"
#include "util/settings.h"

/* How many dead letter queues of dead letter queues are followed */
#define SOURCES_MAX			1000

const PrivilegeInfo queue_privileges[QUEUE_PRIVILEGES] = {
	[QUEUE_PRIVILEGE_PUSH] = {"push", Anum_queue_push_roles, CATALOG_PRODUCER},
	[QUEUE_PRIVILEGE_CLAIM] = {"claim", Anum_queue_claim_roles,
	CATALOG_CONSUMER},
	[QUEUE_PRIVILEGE_ADMIN] = {"admin", Anum_queue_admin_roles,
	CATALOG_ADMIN}
};

static ArrayType *load_roles(Relation rel, HeapTuple tuple,
							 QueuePrivilege privilege);
static bool is_member_of(Oid role, CatalogRole of);
static QueuePrivilege required_privilege(QueueAccess access);

/* --- Reading the table --- */

static ArrayType *
load_roles(Relation rel, HeapTuple tuple, QueuePrivilege privilege)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, queue_privileges[privilege].column,
									 RelationGetDescr(rel), &isnull);

	return isnull ? NULL : DatumGetArrayTypePCopy(value);
}

/*
 * Read the ACL of the queue with this row.  What is not granted by name on a
 * dead letter queue is that of its source queue.
 *
 * With skip_malformed, which is for lists of queues, a malformed row is no
 * error.  Then only the owner and admins may use a queue whose source is
 * malformed.
 */
void
acl_load(Relation rel, HeapTuple tuple, bool skip_malformed, QueueAcl *acl)
{
	ArrayType **claim = &acl->roles[QUEUE_PRIVILEGE_CLAIM];
	ArrayType **admin = &acl->roles[QUEUE_PRIVILEGE_ADMIN];
	int32		source_id = queue_table_id(rel, tuple, Anum_queue_source_id);
	int			nsources = 0;

	acl->owner = DatumGetObjectId(row_getattr(rel, tuple, Anum_queue_owner));
	for (int i = 0; i < QUEUE_PRIVILEGES; i++)
	{
		acl->roles[i] = load_roles(rel, tuple, i);
		acl->roles_of[i] = 0;
	}

	while (source_id != 0 && (*claim == NULL || *admin == NULL))
	{
		HeapTuple	source = NULL;

		/* SQL may have made a queue its own source. */
		if (++nsources <= SOURCES_MAX)
			source = queue_table_fetch_by_id(rel, source_id, skip_malformed);
		else
			row_report_malformed(skip_malformed ? WARNING : ERROR, rel, tuple,
								 "The queues that it names as sources form a circle.");
		if (!HeapTupleIsValid(source))
		{
			/*
			 * The source queue was dropped, or is malformed.  NULL would let
			 * all members of queue_consumer claim; now only the owner and
			 * admins may.
			 */
			if (*claim == NULL)
				*claim = construct_empty_array(REGROLEOID);
			return;
		}
		for (int i = QUEUE_PRIVILEGE_CLAIM; i <= QUEUE_PRIVILEGE_ADMIN; i++)
			if (acl->roles[i] == NULL)
			{
				acl->roles[i] = load_roles(rel, source, i);
				acl->roles_of[i] = queue_table_id(rel, source, Anum_queue_id);
			}
		source_id = queue_table_id(rel, source, Anum_queue_source_id);
		heap_freetuple(source);
	}
}

/* Copy an ACL into the current memory context. */
void
acl_copy(const QueueAcl *acl, QueueAcl *copy)
{
	*copy = *acl;
	for (int i = 0; i < QUEUE_PRIVILEGES; i++)
		copy->roles[i] = acl->roles[i] == NULL ? NULL :
			DatumGetArrayTypePCopy(PointerGetDatum(acl->roles[i]));
}

/* --- Checking --- */

/*
 * Returns whether the role has the privileges of this role of the extension,
 * which may have been dropped.
 */
static bool
is_member_of(Oid role, CatalogRole of)
{
	Oid			oid = catalog_role_oid(of);

	return OidIsValid(oid) && has_privs_of_role(role, oid);
}

/*
 * Returns whether the role has the privileges of one in the array, which may
 * be NULL.
 */
bool
acl_is_member_of_any(Oid role, ArrayType *array)
{
	Datum	   *roles;
	int			n = acl_roles(array, &roles);

	for (int i = 0; i < n; i++)
		if (has_privs_of_role(role, DatumGetObjectId(roles[i])))
			return true;
	return false;
}

static QueuePrivilege
required_privilege(QueueAccess access)
{
	switch (access)
	{
		case QUEUE_PUSH:
			return QUEUE_PRIVILEGE_PUSH;
		case QUEUE_READ:
		case QUEUE_CLAIM:
			return QUEUE_PRIVILEGE_CLAIM;
		case QUEUE_DESCRIBE:
		case QUEUE_INSPECT:
		case QUEUE_ALTER:
		case QUEUE_PURGE:
		case QUEUE_DROP:
			break;
	}
	return QUEUE_PRIVILEGE_ADMIN;
}

/* Returns whether the role has the privilege that the access requires. */
bool
acl_allows(const QueueAcl *acl, Oid role, QueueAccess access)
{
	QueuePrivilege privilege = required_privilege(access);
	ArrayType  *granted = acl->roles[privilege];

	if (access == QUEUE_DESCRIBE)
		return true;

	/* These have all privileges. */
	if (superuser_arg(role) ||
		has_privs_of_role(role, acl->owner) ||
		is_member_of(role, CATALOG_ADMIN) ||
		acl_is_member_of_any(role, acl->roles[QUEUE_PRIVILEGE_ADMIN]))
		return true;

	/* A grant narrows push and claim to the roles that it names. */
	return privilege != QUEUE_PRIVILEGE_ADMIN &&
		is_member_of(role, queue_privileges[privilege].role) &&
		(granted == NULL || acl_is_member_of_any(role, granted));
}

/* --- Hints --- */

/* Returns the name of a role as it is written in SQL. */
const char *
acl_role_identifier(Oid role)
{
	const char *name = GetUserNameFromId(role, true);

	return name == NULL ? psprintf("%u", role) : quote_identifier(name);
}

/*
 * Returns sentences for a hint: what to run so that the role gets the
 * privilege that the access requires.
 */
const char *
acl_grant_hint(const char *name, const QueueAcl *acl, Oid role,
			   QueueAccess access)
{
	QueuePrivilege privilege = required_privilege(access);
	ArrayType  *granted = acl->roles[privilege];
	bool		is_member = privilege == QUEUE_PRIVILEGE_ADMIN ||
	is_member_of(role, queue_privileges[privilege].role);
	StringInfoData hint;
	Queue		source;

	initStringInfo(&hint);
	if (!is_member)
		appendStringInfo(&hint, "A superuser can run: GRANT %s TO %s;",
						 privilege == QUEUE_PRIVILEGE_PUSH ?
						 "queue_producer" : "queue_consumer",
						 acl_role_identifier(role));
	if (is_member || (granted != NULL && !acl_is_member_of_any(role, granted)))
	{
		/*
		 * A dead letter queue has these roles from its source queue.  To
		 * grant the privilege on itself would take it away from them.
		 */
		if (granted != NULL && acl->roles_of[privilege] != 0 &&
			queue_by_id(acl->roles_of[privilege], &source))
			name = source.name;
		appendStringInfo(&hint,
						 "%sThe queue's owner or a member of queue_admin can run: ",
						 hint.len > 0 ? " " : "");
		if (*setting_project != '\0')
			appendStringInfo(&hint, "SET queue.project = %s; ",
							 quote_literal_cstr(setting_project));
		appendStringInfo(&hint, "SELECT queue_grant(%s, %s, '%s');",
						 quote_literal_cstr(name),
						 quote_literal_cstr(acl_role_identifier(role)),
						 queue_privileges[privilege].name);
	}
	return hint.data;
}

/*
 * Check that the current user is a member of this role of the extension, or of
 * queue_admin, which this takes.
 */
void
acl_check_member(CatalogRole of, const char *what)
{
	Oid			role = GetUserId();

	if (!superuser_arg(role) && !is_member_of(role, of) &&
		!is_member_of(role, CATALOG_ADMIN))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to %s", what),
				 errhint("A superuser can run: GRANT %s TO %s;",
						 of == CATALOG_ADMIN ? "queue_admin" : "queue_producer",
						 acl_role_identifier(role))));
}

/* --- Grants --- */

/* Get the roles in an array, which may be NULL.  Returns their number. */
int
acl_roles(ArrayType *array, Datum **roles)
{
	int			n = 0;

	if (array != NULL)
		deconstruct_array(array, REGROLEOID, sizeof(Oid), true, TYPALIGN_INT,
						  roles, NULL, &n);
	return n;
}

/*
 * Returns a copy of the array, which may be NULL, with the role at its end if
 * it is granted, else without the role.  Then the copy can be empty, but not
 * NULL.
 */
ArrayType *
acl_change_roles(ArrayType *array, Oid role, bool is_granted)
{
	Datum	   *roles;
	int			n = acl_roles(array, &roles);
	Datum	   *changed = palloc((n + 1) * sizeof(Datum));
	int			nchanged = 0;

	for (int i = 0; i < n; i++)
		if (DatumGetObjectId(roles[i]) != role)
			changed[nchanged++] = roles[i];
	if (is_granted)
		changed[nchanged++] = ObjectIdGetDatum(role);
	return construct_array(changed, nchanged, REGROLEOID, sizeof(Oid), true,
						   TYPALIGN_INT);
}
