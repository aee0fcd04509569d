/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  Settings, and arguments against the bounds they set.
 *
 * NOTES
 *	  The bounds may be set by a superuser or by whom GRANT SET names, for a
 *	  database, a role or a session; only queue.project and queue.client_id
 *	  are everybody's.  A lower bound above its upper bound is no error here:
 *	  then no value fits, and the message names one of the two.
 *
 * src/util/settings.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/guc.h"

#include "util/limits.h"
#include "util/settings.h"

char	   *setting_project = NULL;
char	   *setting_client_id = NULL;
int			setting_min_claim_ttl = 60;
int			setting_max_claim_ttl = 43200;
int			setting_min_claim_grace = 60;
int			setting_max_claim_grace = 43200;
int			setting_default_claim_limit = 10;
int			setting_max_claim_limit = 100;
int			setting_min_message_ttl = 60;
int			setting_max_message_ttl = 1209600;
int			setting_default_message_ttl = 1209600;
int			setting_max_message_delay = 1209600;
int			setting_max_message_size = 262144;
int			setting_max_push_count = 10000;
int			setting_max_availability_maps = 100000;
int			setting_database_workers = 8;
int			setting_worker_naptime = 1;
int			setting_segment_size = 16 * 1024;
int			setting_runners = 2;
int			setting_max_runners = 4;
int			setting_runner_idle_time = 60;
int			setting_max_handler_time = 3600;
bool		setting_auto_create = true;

static bool check_label(char **newval, void **extra, GucSource source);

/*
 * Project and client id are stored with each queue and message: keep short.
 * A startup packet can bring bytes that are no text of the database.  Before
 * a database is chosen its encoding is not known, and any will do.
 */
static bool
check_label(char **newval, void **extra, GucSource source)
{
	if (OidIsValid(MyDatabaseId) &&
		!pg_verify_mbstr(GetDatabaseEncoding(), *newval, strlen(*newval),
						 true))
	{
		/* The usual message would show the value. */
		GUC_check_errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE);
		GUC_check_errmsg("invalid byte sequence in \"queue.project\" or \"queue.client_id\"");
		GUC_check_errdetail("The value is not valid in the encoding of the database, %s.",
							GetDatabaseEncodingName());
		return false;
	}
	if (strlen(*newval) > QUEUE_PROJECT_LENGTH)
	{
		GUC_check_errdetail("The value is longer than %d bytes.",
							QUEUE_PROJECT_LENGTH);
		return false;
	}
	return true;
}

/* Define all settings; called once, when the library is loaded. */
void
settings_define(void)
{
	static const struct
	{
		const char *name;
		const char *description;
		int		   *variable;
		int			boot;
		int			min;
		int			max;
		int			flags;
	}			ints[] =
	{
		{"queue.min_claim_ttl", "Shortest time that a claim may be asked for.",
		&setting_min_claim_ttl, 60, 1, QUEUE_LIFETIME_MAX, GUC_UNIT_S},
		{"queue.max_claim_ttl", "Longest time that a claim may be asked for.",
		&setting_max_claim_ttl, 43200, 1, QUEUE_LIFETIME_MAX, GUC_UNIT_S},
		{"queue.min_claim_grace", "Least grace that a claim may be asked for.",
		&setting_min_claim_grace, 60, 0, QUEUE_LIFETIME_MAX, GUC_UNIT_S},
		{"queue.max_claim_grace", "Most grace that a claim may be asked for.",
		&setting_max_claim_grace, 43200, 0, QUEUE_LIFETIME_MAX, GUC_UNIT_S},
		{"queue.default_claim_limit", "Messages in a claim that names no limit.",
		&setting_default_claim_limit, 10, 1, QUEUE_LIST_MAX, 0},
		{"queue.max_claim_limit", "Most messages in one claim.",
		&setting_max_claim_limit, 100, 1, QUEUE_LIST_MAX, 0},
		{"queue.min_message_ttl", "Shortest lifetime of a message.",
		&setting_min_message_ttl, 60, 1, INT_MAX, GUC_UNIT_S},
		{"queue.max_message_ttl", "Longest lifetime of a message.",
		&setting_max_message_ttl, 1209600, 1, INT_MAX, GUC_UNIT_S},
		{"queue.default_message_ttl", "Lifetime of a push that names none.",
		&setting_default_message_ttl, 1209600, 1, INT_MAX, GUC_UNIT_S},
		{"queue.max_message_delay", "Longest delay of a message.",
		&setting_max_message_delay, 1209600, 0, INT_MAX, GUC_UNIT_S},
		{"queue.max_message_size", "Largest body of a message, as jsonb.",
		&setting_max_message_size, 262144, 1, MaxAllocSize / 2, GUC_UNIT_BYTE},
		{"queue.max_push_count", "Most messages in one push.",
		&setting_max_push_count, 10000, 1, 1000000, 0},
		{"queue.max_handler_time", "Longest time that a handler may run for one message.",
		&setting_max_handler_time, 3600, 1, QUEUE_LIFETIME_MAX, GUC_UNIT_S},
	};

	for (Size i = 0; i < lengthof(ints); i++)
		DefineCustomIntVariable(ints[i].name, ints[i].description, NULL,
								ints[i].variable, ints[i].boot, ints[i].min,
								ints[i].max, PGC_SUSET, ints[i].flags,
								NULL, NULL, NULL);

	DefineCustomBoolVariable("queue.auto_create",
							 "Whether a push to an unknown queue creates it.",
							 NULL, &setting_auto_create, true, PGC_SUSET, 0,
							 NULL, NULL, NULL);
	DefineCustomStringVariable("queue.project",
							   "Namespace of queue names for this session.",
							   NULL, &setting_project, "", PGC_USERSET, 0,
							   check_label, NULL, NULL);
	DefineCustomStringVariable("queue.client_id",
							   "Who pushes and lists messages.",
							   NULL, &setting_client_id, "", PGC_USERSET, 0,
							   check_label, NULL, NULL);

	if (process_shared_preload_libraries_in_progress)
	{
		DefineCustomIntVariable("queue.max_availability_maps",
								"How many queues shared memory remembers the state of.",
								NULL, &setting_max_availability_maps, 100000, 64,
								10000000, PGC_POSTMASTER, 0,
								NULL, NULL, NULL);
		DefineCustomIntVariable("queue.database_workers",
								"How many databases may have a worker at a time.",
								NULL, &setting_database_workers, 8, 0, 256,
								PGC_SIGHUP, 0, NULL, NULL, NULL);
		DefineCustomIntVariable("queue.runners",
								"How many processes may run jobs in a database.",
								NULL, &setting_runners, 2, 0, RUNNERS_MAX,
								PGC_SIGHUP, 0, NULL, NULL, NULL);
		DefineCustomIntVariable("queue.max_runners",
								"How many processes may run jobs in all databases.",
								NULL, &setting_max_runners, 4, 0,
								RUNNERS_MAX, PGC_SIGHUP, 0, NULL, NULL, NULL);
		DefineCustomIntVariable("queue.runner_idle_time",
								"How long a process that runs jobs waits for the next one before it ends.",
								NULL, &setting_runner_idle_time, 60, 1,
								INT_MAX / 1000, PGC_SIGHUP, GUC_UNIT_S,
								NULL, NULL, NULL);
		DefineCustomIntVariable("queue.worker_naptime",
								"How long a worker waits after it sent notifications.",
								NULL, &setting_worker_naptime, 1, 0, 10000,
								PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
		DefineCustomIntVariable("queue.segment_size",
								"Size at which messages begin to go to the next segment of the ring.",
								"0: they go to the same one for ever.",
								&setting_segment_size, 16 * 1024, 0,
								MAX_KILOBYTES, PGC_SIGHUP, GUC_UNIT_KB,
								NULL, NULL, NULL);
	}

	MarkGUCPrefixReserved("queue");
}

/*
 * Set queue.project or queue.client_id until the transaction ends, or (not
 * "local") the caller takes its settings back.
 */
void
settings_set_label(const char *setting, const char *label, bool local)
{
	(void) set_config_option(setting, label, PGC_USERSET, PGC_S_SESSION,
							 local ? GUC_ACTION_LOCAL : GUC_ACTION_SAVE,
							 true, 0, false);
}
