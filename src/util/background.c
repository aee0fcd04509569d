/*-------------------------------------------------------------------------
 *
 * background.c
 *	  Describing, connecting and reconfiguring background processes.
 *
 * src/util/background.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"

#include "util/background.h"
#include "util/compat.h"
#include "util/settings.h"

static void override_setting(const char *name, const char *value);

/*
 * Describe a process of this library that connects to a database and is not
 * started again when it exits.  The type is its name, too, unless the caller
 * gives it another one.
 */
void
background_describe(BackgroundWorker *process, const char *type,
					const char *function)
{
	memset(process, 0, sizeof(BackgroundWorker));
	strlcpy(process->bgw_name, type, BGW_MAXLEN);
	strlcpy(process->bgw_type, type, BGW_MAXLEN);
	process->bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	process->bgw_start_time = BgWorkerStart_RecoveryFinished;
	process->bgw_restart_time = BGW_NEVER_RESTART;
	strcpy(process->bgw_library_name, "queue");
	strlcpy(process->bgw_function_name, function, BGW_MAXLEN);
}

/*
 * Set a setting so that those of the database and the role do not count.  To
 * be called before the process connects, which applies these.
 */
static void
override_setting(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_OVERRIDE,
							 GUC_ACTION_SET, true, WARNING, false);
}

/*
 * Connect a process that does not run code of users to a database, as the
 * bootstrap superuser.  We set what it depends on, and keep for its whole life
 * what the server has for all else that any role may set.
 */
void
background_connect(Oid database, const char *application_name)
{
	static const char *const options[][2] = {
		{"synchronous_commit", "off"},

		{"lock_timeout", "0"},	/* while it connects */
		{"statement_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},

		/* A table that is truncated is empty, so help would only cost. */
		{"max_parallel_maintenance_workers", "0"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_isolation", "read committed"},
		{"search_path", "pg_catalog, pg_temp"},
	};
	int			n;
	struct config_generic **settings = compat_settings(&n);

	override_setting("application_name", application_name);
	for (Size i = 0; i < lengthof(options); i++)
		override_setting(options[i][0], options[i][1]);
	settings_without_transaction_timeout();
	for (int i = 0; i < n; i++)
	{
		const char *value;

		/*
		 * An owner of a database cannot set the others there.  Those that
		 * RESET ALL leaves alone are no settings but the state of a
		 * transaction or a session.
		 */
		if (settings[i]->context != PGC_USERSET ||
			(settings[i]->flags & GUC_NO_RESET_ALL) != 0)
			continue;
		value = GetConfigOption(settings[i]->name, true, false);
		if (value != NULL)
			override_setting(settings[i]->name, value);
	}
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);

	/*
	 * Locks that users can hold are never waited for; this bounds the wait
	 * for any other.
	 */
	override_setting("lock_timeout", "100ms");

	/* This ends a SET ROLE, too. */
	StartTransactionCommand();
	SetConfigOption("session_authorization",
					GetUserNameFromId(BOOTSTRAP_SUPERUSERID, false),
					PGC_SUSET, PGC_S_SESSION);
	CommitTransactionCommand();
}

/*
 * Read the configuration files again if the postmaster has asked for it.
 * Returns whether it has.
 */
bool
background_reload(void)
{
	if (!ConfigReloadPending)
		return false;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	return true;
}
