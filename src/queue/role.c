/*-------------------------------------------------------------------------
 *
 * role.c
 *	  Roles that own queues or have privileges on them by name.
 *
 * NOTES
 *	  A queue refers to roles by OID.  If such a role were dropped, a dump
 *	  could only write the OID, which may be that of another role in the
 *	  cluster where the dump is restored.  So DROP ROLE has to be refused, as
 *	  it is for the owner of a table.
 *
 *	  For that, each role is recorded in pg_shdepend as if it had a privilege
 *	  on the column "role" of the view queue_data.queue_roles: the detail of
 *	  DROP ROLE's error then names the view that lists the role's queues.  The
 *	  entry does not come from a real privilege, so DROP OWNED and REASSIGN
 *	  OWNED leave it alone.  There is one entry per role, however many queues
 *	  refer to the role.  When a reference is removed, because a queue is
 *	  dropped, gets another owner or loses a grant, the entry is removed if no
 *	  other queue refers to the role.  The publishers that a binding of the
 *	  queue names (topic.c) are references of the queue, too.
 *
 *	  A transaction that writes a reference holds the lock on the role's entry
 *	  (LOCK_ROLE) in shared mode until it ends; a transaction that
 *	  removes the entry needs the lock exclusively.  Neither waits for the
 *	  other.  If the lock is not available, a writer adds a second entry,
 *	  which is harmless, and a remover leaves the entry.
 *
 *	  Finding out that no queue refers to a role takes a scan of all queues, or
 *	  at least of those that this transaction has dropped.  A transaction that
 *	  removes many references does this at commit, once for each role.
 *
 *	  Entries are not dumped.  A trigger adds them when rows are written to the
 *	  table with SQL, as a restore does.
 *
 * src/queue/role.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_shdepend.h"
#include "commands/extension.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/syscache.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "catalog/tables.h"
#include "queue/acl.h"
#include "queue/queue_lock.h"
#include "queue/queue_table.h"
#include "queue/role.h"
#include "storage/row.h"
#include "util/hash.h"
#include "util/limits.h"
#include "util/xact.h"

#define ROLE_COLUMN			1	/* of the view */
#define MAX_LISTED			20	/* queues in a hint */

/*
 * After so many removed references, a transaction leaves the further ones for
 * its commit.
 */
#define MAX_CHECKED_AT_ONCE	100

/* A reference of a queue to a role */
typedef struct RoleReference
{
	int32		queue_id;
	Oid			role;
	const char *privilege;		/* "owner" for the owner, "publish" for a
								 * publisher of a binding */
} RoleReference;

/* Called with references; returns false to end the scan. */
typedef bool (*RoleCallback) (const RoleReference *reference, void *arg);

/* A role that is to be checked at commit */
typedef struct UncheckedRole
{
	XactRecord	record;
	Oid			role;
} UncheckedRole;

/* A search for the queues that refer to a role */
typedef struct RoleSearch
{
	Oid			role;
	int			found;
	StringInfoData list;		/* of the first MAX_LISTED */
} RoleSearch;

static bool can_be_dropped(Oid role);
static void change_role_entry(Oid role, bool add);
static List *recorded_roles(void);
static bool scan_array(RoleReference *reference, Relation rel,
					   HeapTuple tuple, int column, RoleCallback callback,
					   void *arg);
static bool scan_row_roles(Relation rel, HeapTuple tuple,
						   RoleCallback callback, void *arg);
static void scan_publishers(RoleCallback callback, void *arg);
static void scan_queue_roles(RoleCallback callback, void *arg);
static bool owns_queue(Oid role);
static bool is_other_role(const RoleReference *reference, void *arg);
static bool append_role(const RoleReference *reference, void *arg);
static bool append_reference(const RoleReference *reference, void *arg);
static bool add_used_role(const RoleReference *reference, void *arg);
static void remove_entry_if_unused(Oid role);
static void check_roles_before_end(XactEvent event);
static void reset_nremoved_at_end(XactEvent event);

XactList	unchecked_roles = {
	.record_size = sizeof(UncheckedRole),
	.before_end = check_roles_before_end,
	.end = reset_nremoved_at_end
};

/* References that this transaction has removed */
static int	nremoved = 0;

/* The first superuser cannot be dropped, and needs no entry. */
static bool
can_be_dropped(Oid role)
{
	return !IsPinnedObject(AuthIdRelationId, role) &&
		SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role));
}

/* --- Entries in pg_shdepend --- */

/* Add the entry of a role, or remove it. */
static void
change_role_entry(Oid role, bool add)
{
	/* updateAclDependencies frees the array that it gets. */
	Oid		   *roles = palloc(sizeof(Oid));

	*roles = role;
	updateAclDependencies(RelationRelationId, catalog_oid(CATALOG_QUEUE_ROLES),
						  ROLE_COLUMN, InvalidOid,
						  add ? 0 : 1, add ? NULL : roles,
						  add ? 1 : 0, add ? roles : NULL);
	CommandCounterIncrement();
}

static List *
recorded_roles(void)
{
	Relation	rel = table_open(SharedDependRelationId, AccessShareLock);
	ScanKeyData keys[4];
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *roles = NIL;

	ScanKeyInit(&keys[0], Anum_pg_shdepend_dbid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(MyDatabaseId));
	ScanKeyInit(&keys[1], Anum_pg_shdepend_classid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(RelationRelationId));
	ScanKeyInit(&keys[2], Anum_pg_shdepend_objid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(catalog_oid(CATALOG_QUEUE_ROLES)));
	ScanKeyInit(&keys[3], Anum_pg_shdepend_objsubid, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(ROLE_COLUMN));
	scan = systable_beginscan(rel, SharedDependDependerIndexId, true, NULL, 4,
							  keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		roles = lappend_oid(roles,
							((Form_pg_shdepend) GETSTRUCT(tuple))->refobjid);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return roles;
}

/* --- References --- */

/* Scan the roles in an array, which may be null, as scan_row_roles() does. */
static bool
scan_array(RoleReference *reference, Relation rel, HeapTuple tuple, int column,
		   RoleCallback callback, void *arg)
{
	Datum	   *roles;
	bool		isnull;
	Datum		value = heap_getattr(tuple, column, RelationGetDescr(rel),
									 &isnull);
	int			n = acl_roles(isnull ? NULL : DatumGetArrayTypeP(value),
							  &roles);

	for (int i = 0; i < n; i++)
	{
		reference->role = DatumGetObjectId(roles[i]);
		if (!callback(reference, arg))
			return false;
	}
	return true;
}

/*
 * Scan the references in the row of a queue.  Returns false if the callback
 * has ended the scan.
 */
static bool
scan_row_roles(Relation rel, HeapTuple tuple, RoleCallback callback,
			   void *arg)
{
	RoleReference reference = {0};

	reference.queue_id = queue_table_id(rel, tuple, Anum_queue_id);
	reference.role = DatumGetObjectId(row_getattr(rel, tuple,
												  Anum_queue_owner));
	reference.privilege = "owner";
	if (!callback(&reference, arg))
		return false;
	for (int i = 0; i < QUEUE_PRIVILEGES; i++)
	{
		reference.privilege = queue_privileges[i].name;
		if (!scan_array(&reference, rel, tuple, queue_privileges[i].column,
						callback, arg))
			return false;
	}
	return true;
}

/* Scan the publishers of all bindings. */
static void
scan_publishers(RoleCallback callback, void *arg)
{
	RoleReference reference = {.privilege = "publish"};
	Relation	rel = catalog_open(CATALOG_TOPIC, AccessShareLock, NULL);
	RowScan		scan;
	HeapTuple	tuple;

	row_scan_begin(&scan, rel, InvalidOid, NULL, 0);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		CHECK_FOR_INTERRUPTS();
		reference.queue_id = queue_table_id(rel, tuple, Anum_topic_queue_id);
		if (!scan_array(&reference, rel, tuple, Anum_topic_publishers,
						callback, arg))
			break;
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
}

/* Scan the references of all queues. */
static void
scan_queue_roles(RoleCallback callback, void *arg)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	RowScan		scan;
	HeapTuple	tuple;

	row_scan_begin(&scan, rel, catalog_oid(CATALOG_QUEUE_NAME_INDEX), NULL, 0);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		CHECK_FOR_INTERRUPTS();
		if (!scan_row_roles(rel, tuple, callback, arg))
			break;
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
	if (!HeapTupleIsValid(tuple))
		scan_publishers(callback, arg);
}

/*
 * Returns whether the role owns a queue.  Most roles that matter do, and an
 * index finds them.
 */
static bool
owns_queue(Oid role)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	ScanKeyData key;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_queue_owner, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(role));
	tuple = row_fetch(rel, catalog_oid(CATALOG_QUEUE_OWNER_INDEX), &key, 1);
	table_close(rel, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

static bool
is_other_role(const RoleReference *reference, void *arg)
{
	RoleSearch *search = arg;

	if (reference->role != search->role)
		return true;
	search->found++;
	return false;
}

static bool
append_role(const RoleReference *reference, void *arg)
{
	List	  **roles = arg;

	*roles = list_append_unique_oid(*roles, reference->role);
	return true;
}

/* List the roles that the row of a queue refers to. */
List *
role_all_of(Relation rel, HeapTuple tuple)
{
	List	   *roles = NIL;

	(void) scan_row_roles(rel, tuple, append_role, &roles);
	return roles;
}

/* --- Recording --- */

/*
 * The caller has written a row that refers to the role.  Adding an entry locks
 * the role against DROP ROLE, and is an error if it was dropped meanwhile.
 */
void
role_record(Oid role)
{
	List	   *recorded;

	if (IsPinnedObject(AuthIdRelationId, role))
		return;
	if (!queue_lock_part((int32) role, LOCK_ROLE, ShareLock, false))
	{
		/* The entry may be about to be removed. */
		change_role_entry(role, true);
		return;
	}
	recorded = recorded_roles();
	if (recorded == NIL)
	{
		/* pg_upgrade does not bring entries along. */
		role_record_all();
		recorded = recorded_roles();
	}
	if (!list_member_oid(recorded, role))
		change_role_entry(role, true);
	list_free(recorded);
}

static void
remove_entry_if_unused(Oid role)
{
	RoleSearch	search = {.role = role};

	if (!can_be_dropped(role) || owns_queue(role) ||
		!queue_lock_part((int32) role, LOCK_ROLE, ExclusiveLock, false))
		return;

	/* Under the lock no transaction adds a reference meanwhile. */
	scan_queue_roles(is_other_role, &search);
	if (search.found == 0)
		change_role_entry(role, false);
}

/* The caller has removed a reference to the role, perhaps the last one. */
void
role_forget(Oid role)
{
	UncheckedRole *unchecked;

	if (++nremoved <= MAX_CHECKED_AT_ONCE)
	{
		remove_entry_if_unused(role);
		return;
	}
	for (int i = 0; i < unchecked_roles.n; i++)
	{
		unchecked = xact_record(&unchecked_roles, i);
		if (unchecked->role == role)
			return;
	}
	unchecked = xact_add(&unchecked_roles);
	unchecked->role = role;
}

/* Callback before commit or prepare. */
static void
check_roles_before_end(XactEvent event)
{
	/* When the extension was dropped, the view's entries went with it. */
	if (unchecked_roles.n == 0 ||
		!OidIsValid(get_extension_oid("queue", true)))
		return;
	for (int i = 0; i < unchecked_roles.n; i++)
	{
		UncheckedRole *unchecked = xact_record(&unchecked_roles, i);

		remove_entry_if_unused(unchecked->role);
	}
}

/* Callback after commit, prepare or abort. */
static void
reset_nremoved_at_end(XactEvent event)
{
	nremoved = 0;
}

/* --- All roles --- */

static bool
add_used_role(const RoleReference *reference, void *arg)
{
	(void) hash_search((HTAB *) arg, &reference->role, HASH_ENTER, NULL);
	return true;
}

/*
 * Bring the entries up to date with the queues: add those that are missing,
 * and remove those that no queue needs.
 */
void
role_record_all(void)
{
	HTAB	   *roles = hash_create_blobs("roles of queues", sizeof(Oid),
										  sizeof(Oid), CurrentMemoryContext);
	HASH_SEQ_STATUS status;
	Oid		   *used;
	ListCell   *cell;

	scan_queue_roles(add_used_role, roles);
	foreach(cell, recorded_roles())
	{
		Oid			role = lfirst_oid(cell);

		/* Those that are left need an entry.  A role can have two of them. */
		if (hash_search(roles, &role, HASH_REMOVE, NULL) == NULL)
			remove_entry_if_unused(role);
	}
	hash_seq_init(&status, roles);
	while ((used = hash_seq_search(&status)) != NULL)
		if (can_be_dropped(*used))
		{
			(void) queue_lock_part((int32) *used, LOCK_ROLE, ShareLock, false);
			change_role_entry(*used, true);
		}
	hash_destroy(roles);
}

/* Raise an error if an argument is the OID of no role. */
void
role_check(Oid role)
{
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role with OID %u does not exist", role),
				 errhint("Name a role that exists.")));
}

/* --- Dumps --- */

/*
 * Raise an error if a role that a queue refers to does not exist: a dump would
 * have its OID, which may be that of another role where the dump is restored.
 */
void
role_check_exists(const char *queue, Oid role)
{
	if (SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("queue \"%s\" refers to role %u, which does not exist",
					queue, role),
			 errdetail("In a dump it could become a reference to another role."),
			 errhint("As a superuser, give the queue another owner with queue_set_owner, or remove the role from its privileges with queue_revoke, or from its publishers with topic_bind.")));
}

/* --- DROP ROLE --- */

static bool
append_reference(const RoleReference *reference, void *arg)
{
	RoleSearch *search = arg;
	QueueSummary queue;

	if (reference->role != search->role ||
		!queue_summary(reference->queue_id, &queue) ||
		++search->found > MAX_LISTED)
		return true;
	appendStringInfo(&search->list, "\n%s of queue \"%s\"",
					 reference->privilege, queue.name);
	if (*queue.project != '\0')
		appendStringInfo(&search->list, " in project \"%s\"", queue.project);
	return true;
}

/*
 * Returns the hint for a DROP ROLE that fails because of queues of this
 * database, or NULL if there are none.
 */
char *
role_drop_hint(DropRoleStmt *statement)
{
	RoleSearch	search = {0};
	ListCell   *cell;

	if (!OidIsValid(get_extension_oid("queue", true)))
		return NULL;
	initStringInfo(&search.list);
	foreach(cell, statement->roles)
	{
		search.role = get_rolespec_oid(lfirst_node(RoleSpec, cell), true);
		if (OidIsValid(search.role))
			scan_queue_roles(append_reference, &search);
	}
	if (search.found == 0)
		return NULL;
	if (search.found > MAX_LISTED)
		appendStringInfo(&search.list, "\nand %d others",
						 search.found - MAX_LISTED);
	return psprintf("Hand queues over with queue_set_owner, remove privileges with queue_revoke, and name other publishers with topic_bind. They are:%s",
					search.list.data);
}
