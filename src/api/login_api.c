/*-------------------------------------------------------------------------
 *
 * login_api.c
 *	  The SQL functions that start the background processes at a login.
 *
 * NOTES
 *	  Without preloading, nothing runs after a restart of the server until a
 *	  session loads the library.  A login event trigger, which PostgreSQL 17
 *	  introduced, makes the first connection to a database do that.
 *
 *	  An error in such a trigger refuses the login, to every role.  The
 *	  library can fail to load: its file may be missing, or be that of another
 *	  version than the one that the server runs.  So the function of the
 *	  trigger, queue_data.start_at_login(), is in PL/pgSQL, which catches such
 *	  errors, and it calls start_worker() here.
 *
 *	  The event trigger does not belong to the extension, because pg_dump would
 *	  leave it out then.  So DROP EXTENSION names it, and needs CASCADE.
 *
 * src/api/login_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_event_trigger.h"
#include "commands/event_trigger.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/syscache.h"

#include "api/api_arg.h"
#include "shmem/database_state.h"
#include "util/compat.h"

#define TRIGGER_NAME	"queue_start_at_login"

/* The event trigger as it is */
typedef enum LoginTrigger
{
	LOGIN_TRIGGER_NONE,
	LOGIN_TRIGGER_DISABLED,		/* or for sessions of replication only */
	LOGIN_TRIGGER_ENABLED
} LoginTrigger;

PG_FUNCTION_INFO_V1(sql_queue_start_at_login);
PG_FUNCTION_INFO_V1(sql_queue_start_worker);

static LoginTrigger find_login_trigger(void);

static LoginTrigger
find_login_trigger(void)
{
	Oid			oid = get_event_trigger_oid(TRIGGER_NAME, true);
	HeapTuple	tuple;
	char		enabled;

	if (!OidIsValid(oid))
		return LOGIN_TRIGGER_NONE;
	tuple = SearchSysCache1(EVENTTRIGGEROID, ObjectIdGetDatum(oid));
	if (!HeapTupleIsValid(tuple))
		return LOGIN_TRIGGER_NONE;
	enabled = ((Form_pg_event_trigger) GETSTRUCT(tuple))->evtenabled;
	ReleaseSysCache(tuple);
	return enabled == TRIGGER_DISABLED ||
		enabled == TRIGGER_FIRES_ON_REPLICA ?
		LOGIN_TRIGGER_DISABLED : LOGIN_TRIGGER_ENABLED;
}

/*
 * queue_start_at_login(enable boolean = true) returns void
 *
 * Makes the first connection to this database after a restart of the server
 * start the background processes, by an event trigger, which it creates, or
 * enables if it was disabled; with false, drops that.  Nothing happens if it
 * is so already.
 *
 * Errors: 42501 not a superuser, 0A000 the server has no login event triggers,
 * 22004 enable is null, 25006 read-only transaction.
 */
Datum
sql_queue_start_at_login(PG_FUNCTION_ARGS)
{
	bool		enable = DatumGetBool(arg_required(fcinfo, 0, "enable"));
	LoginTrigger trigger;

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to call queue_start_at_login()"),
				 errdetail("An event trigger runs in the sessions of all roles.")));
	api_check_can_write("queue_start_at_login()");
	if (!compat_has_login_event())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("queue_start_at_login() needs PostgreSQL 17 or later"),
				 errhint("Add \"queue\" to \"shared_preload_libraries\" and restart the server.")));

	trigger = find_login_trigger();
	if (trigger == (enable ? LOGIN_TRIGGER_ENABLED : LOGIN_TRIGGER_NONE))
		PG_RETURN_VOID();
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute(!enable ?
					"DROP EVENT TRIGGER " TRIGGER_NAME :
					trigger == LOGIN_TRIGGER_DISABLED ?
					"ALTER EVENT TRIGGER " TRIGGER_NAME " ENABLE" :
					"CREATE EVENT TRIGGER " TRIGGER_NAME " ON login"
					" EXECUTE FUNCTION queue_data.start_at_login()",
					false, 0) != SPI_OK_UTILITY)
		elog(ERROR, "SPI_execute failed");
	SPI_finish();
	PG_RETURN_VOID();
}

/*
 * queue_data.start_worker() returns void
 *
 * Has the background processes started, for queue_data.start_at_login().
 * Loading the library has started the launcher, if there was none.  A launcher
 * that runs may know nothing of this database, so we announce it, too.
 */
Datum
sql_queue_start_worker(PG_FUNCTION_ARGS)
{
	database_join();
	PG_RETURN_VOID();
}
