/*-------------------------------------------------------------------------
 *
 * module.c
 *	  Loading of the library, and its hook on utility commands.
 *
 * NOTES
 *	  DROP DATABASE, and any other command that needs a database for itself,
 *	  would fail because of the database's worker and runners.  Before such a
 *	  command the hook asks them to end, and keeps the worker from coming back
 *	  for a few seconds.  The command itself waits up to five seconds for other
 *	  sessions to leave the database, which is enough.
 *
 *	  CREATE DATABASE announces the database to the launcher, and DROP EXTENSION
 *	  wakes the worker, once the transaction has committed.  (The scripts of the
 *	  extension announce their database themselves, by library_version().)
 *
 *	  DROP ROLE that fails because queues refer to the role gets a hint that
 *	  names these queues.
 *
 *	  Nothing is looked up for any other statement.
 *
 * src/module.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "tcop/utility.h"

#include "bgworker/launcher.h"
#include "catalog/relations.h"
#include "claim/cancel.h"
#include "claim/claim_commit.h"
#include "claim/claim_message.h"
#include "claim/group_rate.h"
#include "commands/queue_cmds.h"
#include "jobs/runner_pool.h"
#include "map/lanes_table.h"
#include "map/shmem_maps.h"
#include "push/lazy_push.h"
#include "queue/group.h"
#include "queue/queue_table.h"
#include "queue/role.h"
#include "shmem/await_state.h"
#include "shmem/batch_state.h"
#include "shmem/database_state.h"
#include "shmem/depth_state.h"
#include "shmem/error_state.h"
#include "shmem/shmem.h"
#include "storage/batches.h"
#include "storage/counts.h"
#include "storage/pending.h"
#include "storage/prepared.h"
#include "util/compat.h"
#include "util/settings.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

/* All areas of shared memory */
static const SharedArea *const areas[] = {
	&database_area, &recount_area, &batch_area, &await_area, &error_area,
	&prepared_area, &maps_area, &lanes_area, &runner_area, NULL
};

static ProcessUtility_hook_type previous_hook = NULL;

/*
 * At the end of a transaction, the callbacks of the modules run in this
 * order (xact.c).  Lazy pushes come first, since they create queues, change
 * messages and are counted.  Messages are counted before they are reported
 * (pending.c): where the depths are known, a queue with messages that were
 * reported has a map, which is not taken for that of a queue without
 * messages (shmem_maps.c).  Sessions in queue_await are woken when the maps
 * have what was reported, since they may claim next.  claim_commit.c comes
 * after all that write what a crash must not lose.
 */
static XactList *const xact_lists[] = {
	&lazy_pushes,
	&count_records,
	&database_callbacks,
	&pending_changes,
	&await_callbacks,
	&unchecked_roles,
	&group_deliveries,
	&claim_callbacks,
	&cancel_records,
	&batch_records,
	&group_pops,
	&group_locks
};

static void vacate_database(const char *database_name, bool drop);
static DefElem *named_option(List *options, const char *name);
static void vacate_for_statement(Node *statement);
static void add_drop_role_hint(void *arg);
static void process_utility(PlannedStmt *pstmt, const char *query,
							bool read_only_tree,
							ProcessUtilityContext context,
							ParamListInfo params,
							QueryEnvironment *environment,
							DestReceiver *dest, QueryCompletion *qc);

void
_PG_init(void)
{
	/*
	 * First what fails where there is no shared memory: then each call of a
	 * function loads the library again.  The settings say how large the areas
	 * are.
	 */
	shmem_check_preloaded();
	settings_define(shmem_is_preloaded());
	shmem_maps_init();
	lanes_init();
	shmem_init(areas);

	catalog_init();
	shmem_register_owner(queue_owner);

	xact_register(xact_lists, lengthof(xact_lists));
	previous_hook = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	launcher_init();
	claim_register_dead_letters(queue_require_dead_letters);
	cancel_init(pool_cancel_message);
}

/* --- Utility commands --- */

/*
 * Ask the worker and the runners of a database to end.  With "drop", the
 * runners are terminated.
 */
static void
vacate_database(const char *database_name, bool drop)
{
	Oid			database = get_database_oid(database_name, true);

	/* Only a role that may run the command may disturb them by it. */
	if (OidIsValid(database) && compat_owns_database(database))
	{
		database_vacate(database);
		pool_vacate(database, drop);
	}
}

static DefElem *
named_option(List *options, const char *name)
{
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = (DefElem *) lfirst(cell);

		if (strcmp(option->defname, name) == 0)
			return option;
	}
	return NULL;
}

static void
vacate_for_statement(Node *statement)
{
	DefElem    *option;

	switch (nodeTag(statement))
	{
		case T_DropdbStmt:
			vacate_database(((DropdbStmt *) statement)->dbname, true);
			break;
		case T_RenameStmt:
			if (((RenameStmt *) statement)->renameType == OBJECT_DATABASE)
				vacate_database(((RenameStmt *) statement)->subname, false);
			break;
		case T_AlterDatabaseStmt:
			if (named_option(((AlterDatabaseStmt *) statement)->options,
							 "tablespace") != NULL)
				vacate_database(((AlterDatabaseStmt *) statement)->dbname,
								false);
			break;
		case T_CreatedbStmt:
			option = named_option(((CreatedbStmt *) statement)->options,
								  "template");
			if (option != NULL && option->arg != NULL)
				vacate_database(defGetString(option), false);
			break;
		default:
			break;
	}
}

/* Error context callback of DROP ROLE */
static void
add_drop_role_hint(void *arg)
{
	if (geterrcode() == ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST)
		errhint("%s", (char *) arg);
}

static void
process_utility(PlannedStmt *pstmt, const char *query, bool read_only_tree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *environment, DestReceiver *dest,
				QueryCompletion *qc)
{
	Node	   *statement = pstmt->utilityStmt;
	ErrorContextCallback hint = {error_context_stack, add_drop_role_hint,
	NULL};

	if (IsA(statement, DropRoleStmt))
		hint.arg = role_drop_hint((DropRoleStmt *) statement);
	if (hint.arg != NULL)
		error_context_stack = &hint;
	vacate_for_statement(statement);
	if (previous_hook != NULL)
		previous_hook(pstmt, query, read_only_tree, context, params,
					  environment, dest, qc);
	else
		standard_ProcessUtility(pstmt, query, read_only_tree, context, params,
								environment, dest, qc);
	error_context_stack = hint.previous;
	if (IsA(statement, CreatedbStmt))
		database_record_change(CHANGE_DATABASE_CREATED);

	/* It may be ours, by its name or by CASCADE, so the worker checks. */
	else if (IsA(statement, DropStmt) &&
			 ((DropStmt *) statement)->removeType == OBJECT_EXTENSION)
		database_record_change(CHANGE_EXTENSION_DROPPED);
}
