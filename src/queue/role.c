/*-------------------------------------------------------------------------
 *
 * role.c
 *	  Roles that own queues or are named in their privileges.
 *
 * NOTES
 *	  A queue refers to roles by OID.  If such a role were dropped, the OID
 *	  would be all that a dump could write, and in another cluster it may be
 *	  another role's.  So DROP ROLE has to be refused, as it is for the owner
 *	  of a table.
 *
 *	  For that each role is recorded in pg_shdepend as if it had a privilege
 *	  on the column "role" of the view queue_data.queue_roles: the detail of
 *	  DROP ROLE's error then names the view that lists the role's queues.  The
 *	  entry is not one of a real privilege, so DROP OWNED leaves it alone, and
 *	  REASSIGN OWNED does too.  There is one entry for each role, however many
 *	  queues refer to it.  It is removed when a queue is dropped, handed over
 *	  or narrowed, and no other queue refers to the role.
 *
 *	  A transaction that writes a reference holds a lock on the role's record
 *	  (registry.c), shared, until it ends.  A transaction that removes the
 *	  record needs that lock exclusively.  Neither waits for the other: the
 *	  one that writes adds a second entry, which is harmless, and the one that
 *	  would remove the record leaves it.
 *
 *	  To find that no queue refers to a role any more means to look at all
 *	  queues, or at least at those that this transaction has dropped.  A
 *	  transaction that removes many references looks when it commits, once for
 *	  each role.
 *
 *	  Entries are not dumped.  A trigger makes them when rows are written to
 *	  the table with SQL, as a restore does.
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
#include "catalog/indexing.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_shdepend.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "queue/queue_lock.h"
#include "queue/registry.h"
#include "queue/role.h"
#include "storage/row.h"
#include "util/xact.h"

#define ROLE_COLUMN		1		/* of the view */
#define LISTED_MAX		20		/* queues in a hint */
#define FORGET_AT_ONCE	100		/* removed references of a transaction */

/* Called for each reference of a queue to a role */
typedef void (*RoleAction) (void *arg, TupleDesc desc, HeapTuple tuple,
							Oid role, const char *privilege);

/* A role that is referred to */
typedef struct UsedRole
{
	Oid			role;
	bool		recorded;
} UsedRole;

/* A role that is perhaps not referred to any more */
typedef struct LooseRole
{
	XactRecord	record;
	Oid			role;
} LooseRole;

/* A search for the queues that refer to a role */
typedef struct RoleSearch
{
	Oid			role;
	int			found;
	StringInfoData list;		/* of some of them */
} RoleSearch;

static const struct
{
	int			attribute;
	const char *privilege;
}			role_lists[] =
{
	{Anum_queue_push_roles, "push"},
	{Anum_queue_claim_roles, "claim"},
	{Anum_queue_admin_roles, "admin"}
};

static bool exists(Oid role);
static bool can_go(Oid role);
static void add_entry(Oid role);
static void remove_entry(Oid role);
static List *recorded_roles(void);
static bool owns_queue(Oid role);
static void for_each_role(Relation rel, HeapTuple tuple, RoleAction action,
						  void *arg);
static void for_each_queue(RoleAction action, void *arg, const int *stop);
static void count_role(void *arg, TupleDesc desc, HeapTuple tuple, Oid role,
					   const char *privilege);
static void list_role(void *arg, TupleDesc desc, HeapTuple tuple, Oid role,
					  const char *privilege);
static void use_role(void *arg, TupleDesc desc, HeapTuple tuple, Oid role,
					 const char *privilege);
static void append_role(void *arg, TupleDesc desc, HeapTuple tuple, Oid role,
						const char *privilege);
static void remove_if_unused(Oid role);
static void remove_loose(XactEvent event);
static void end_transaction(XactEvent event);

static XactList loose_roles = {
	.record_size = sizeof(LooseRole),
	.before_end = remove_loose,
	.end = end_transaction
};

/* References that this transaction has removed */
static int	nremoved = 0;

void
role_init(void)
{
	xact_register(&loose_roles);
}

static bool
exists(Oid role)
{
	return SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role));
}

/* Can the role be dropped at all?  The first superuser cannot. */
static bool
can_go(Oid role)
{
	return !IsPinnedObject(AuthIdRelationId, role) && exists(role);
}

/* --- pg_shdepend --- */

/* Arrays that are passed to it are freed. */
static Oid *
array_of_one(Oid role)
{
	Oid		   *roles = palloc(sizeof(Oid));

	*roles = role;
	return roles;
}

static void
add_entry(Oid role)
{
	updateAclDependencies(RelationRelationId,
						  catalog_oid(CATALOG_QUEUE_ROLES), ROLE_COLUMN,
						  InvalidOid, 0, NULL, 1, array_of_one(role));
	CommandCounterIncrement();
}

static void
remove_entry(Oid role)
{
	updateAclDependencies(RelationRelationId,
						  catalog_oid(CATALOG_QUEUE_ROLES), ROLE_COLUMN,
						  InvalidOid, 1, array_of_one(role), 0, NULL);
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
	while ((tuple = systable_getnext(scan)) != NULL)
		roles = lappend_oid(roles,
							((Form_pg_shdepend) GETSTRUCT(tuple))->refobjid);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return roles;
}

/* --- References --- */

/* Call action for each role that a queue's row refers to. */
static void
for_each_role(Relation rel, HeapTuple tuple, RoleAction action, void *arg)
{
	TupleDesc	desc = RelationGetDescr(rel);
	bool		isnull;
	Datum		value = heap_getattr(tuple, Anum_queue_owner, desc, &isnull);

	action(arg, desc, tuple, DatumGetObjectId(value), "owner");
	for (int i = 0; i < (int) lengthof(role_lists); i++)
	{
		Datum	   *roles;
		int			n;

		value = heap_getattr(tuple, role_lists[i].attribute, desc, &isnull);
		if (isnull)
			continue;
		deconstruct_array(DatumGetArrayTypeP(value), REGROLEOID, sizeof(Oid),
						  true, TYPALIGN_INT, &roles, NULL, &n);
		for (int j = 0; j < n; j++)
			action(arg, desc, tuple, DatumGetObjectId(roles[j]),
				   role_lists[i].privilege);
	}
}

/* The same for all queues, or until *stop is not 0. */
static void
for_each_queue(RoleAction action, void *arg, const int *stop)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	RowScan		scan;
	HeapTuple	tuple;

	row_scan_begin(&scan, rel, catalog_oid(CATALOG_QUEUE_NAME_INDEX), NULL, 0);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)) &&
		   (stop == NULL || *stop == 0))
	{
		CHECK_FOR_INTERRUPTS();
		for_each_role(rel, tuple, action, arg);
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
}

/* Found by an index, since queues that name no role are the rule. */
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

static void
count_role(void *arg, TupleDesc desc, HeapTuple tuple, Oid role,
		   const char *privilege)
{
	RoleSearch *search = arg;

	if (role == search->role)
		search->found++;
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
	if (!queue_lock_role(role, false))
	{
		/* The record is perhaps being removed. */
		add_entry(role);
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
		add_entry(role);
	list_free(recorded);
}

static void
remove_if_unused(Oid role)
{
	RoleSearch	search = {0};

	if (!can_go(role) || owns_queue(role) || !queue_lock_role(role, true))
		return;
	search.role = role;
	for_each_queue(count_role, &search, &search.found);
	if (search.found == 0)
		remove_entry(role);
}

/* The caller has removed a reference to the role, perhaps the last one. */
void
role_forget(Oid role)
{
	if (++nremoved <= FORGET_AT_ONCE)
	{
		remove_if_unused(role);
		return;
	}
	for (int i = 0; i < loose_roles.n; i++)
		if (((LooseRole *) xact_record(&loose_roles, i))->role == role)
			return;
	((LooseRole *) xact_add(&loose_roles))->role = role;
}

static void
remove_loose(XactEvent event)
{
	/* The extension may have been dropped, and its entries with it. */
	if (loose_roles.n == 0 || !OidIsValid(get_extension_oid("queue", true)))
		return;
	for (int i = 0; i < loose_roles.n; i++)
		remove_if_unused(((LooseRole *) xact_record(&loose_roles, i))->role);
}

static void
end_transaction(XactEvent event)
{
	nremoved = 0;
}

static void
append_role(void *arg, TupleDesc desc, HeapTuple tuple, Oid role,
			const char *privilege)
{
	List	  **roles = arg;

	*roles = list_append_unique_oid(*roles, role);
}

/* The roles that a queue's row refers to */
List *
role_all_of(Relation rel, HeapTuple tuple)
{
	List	   *roles = NIL;

	for_each_role(rel, tuple, append_role, &roles);
	return roles;
}

static void
use_role(void *arg, TupleDesc desc, HeapTuple tuple, Oid role,
		 const char *privilege)
{
	bool		found;
	UsedRole   *used = hash_search((HTAB *) arg, &role, HASH_ENTER, &found);

	if (!found)
		used->recorded = false;
}

/*
 * Bring the entries up to date with the queues: add those that are missing,
 * and remove those that no queue needs.
 */
void
role_record_all(void)
{
	HASHCTL		info = {.keysize = sizeof(Oid),.entrysize = sizeof(UsedRole),
	.hcxt = CurrentMemoryContext};
	HTAB	   *used_roles = hash_create("roles of queues", 64, &info,
										 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	HASH_SEQ_STATUS status;
	UsedRole   *used;
	ListCell   *cell;

	for_each_queue(use_role, used_roles, NULL);
	foreach(cell, recorded_roles())
	{
		Oid			role = lfirst_oid(cell);

		used = hash_search(used_roles, &role, HASH_FIND, NULL);
		if (used == NULL)
			remove_if_unused(role);
		else
			used->recorded = true;
	}
	hash_seq_init(&status, used_roles);
	while ((used = hash_seq_search(&status)) != NULL)
		if (!used->recorded && can_go(used->role))
		{
			(void) queue_lock_role(used->role, false);
			add_entry(used->role);
		}
	hash_destroy(used_roles);
}

/*
 * Raise an error if a role that a queue refers to does not exist: a dump would
 * have its OID, which may be another role's where the dump is restored.
 */
void
role_check_exists(const char *queue, Oid role)
{
	if (exists(role))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("queue \"%s\" refers to role %u, which does not exist",
					queue, role),
			 errdetail("In a dump it could become a reference to another role."),
			 errhint("As a superuser, give the queue another owner with queue_set_owner, or remove the role from its privileges with queue_revoke.")));
}

/* --- DROP ROLE --- */

static void
list_role(void *arg, TupleDesc desc, HeapTuple tuple, Oid role,
		  const char *privilege)
{
	RoleSearch *search = arg;
	bool		isnull;
	char	   *project;
	char	   *name;

	if (role != search->role || ++search->found > LISTED_MAX)
		return;
	project = TextDatumGetCString(heap_getattr(tuple, Anum_queue_project,
											   desc, &isnull));
	name = TextDatumGetCString(heap_getattr(tuple, Anum_queue_name, desc,
											&isnull));
	appendStringInfo(&search->list, "\n%s of queue \"%s\"", privilege, name);
	if (*project != '\0')
		appendStringInfo(&search->list, " in project \"%s\"", project);
}

/*
 * What to tell a user whose DROP ROLE fails because of queues of this
 * database; NULL when there are none.
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
			for_each_queue(list_role, &search, NULL);
	}
	if (search.found == 0)
		return NULL;
	if (search.found > LISTED_MAX)
		appendStringInfo(&search.list, "\nand %d others",
						 search.found - LISTED_MAX);
	return psprintf("Hand queues over with queue_set_owner, and remove privileges with queue_revoke. They are:%s",
					search.list.data);
}
