/*-------------------------------------------------------------------------
 *
 * hooks.c
 *	  The hook on utility commands.
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
 * src/bgworker/hooks.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "tcop/utility.h"

#include "bgworker/hooks.h"
#include "jobs/runner_pool.h"
#include "queue/role.h"
#include "shmem/database_state.h"
#include "util/compat.h"

static ProcessUtility_hook_type previous_hook = NULL;

static void vacate_database(const char *database_name, bool drop);
static DefElem *named_option(List *options, const char *name);
static void vacate_for_statement(Node *statement);
static void record_statement(Node *statement);
static void add_drop_role_hint(void *arg);
static void process_utility(PlannedStmt *pstmt, const char *query,
							bool read_only_tree,
							ProcessUtilityContext context,
							ParamListInfo params,
							QueryEnvironment *environment,
							DestReceiver *dest, QueryCompletion *qc);

/* To be called once, when the library is loaded. */
void
hooks_init(void)
{
	previous_hook = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}

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

static void
record_statement(Node *statement)
{
	if (IsA(statement, CreatedbStmt))
		database_record_change(CHANGE_DATABASE_CREATED);

	/* It may be ours, by its name or by CASCADE, so the worker checks. */
	else if (IsA(statement, DropStmt) &&
			 ((DropStmt *) statement)->removeType == OBJECT_EXTENSION)
		database_record_change(CHANGE_EXTENSION_DROPPED);
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
	record_statement(statement);
}
