/*-------------------------------------------------------------------------
 *
 * guc.c
 *	  Settings, and arguments against the bounds they set.
 *
 * NOTES
 *	  The bounds may be set by a superuser or by whom GRANT SET names, for a
 *	  database, a role or a session; only queue.project and queue.client_id
 *	  are everybody's.  A lower bound above its upper bound is no error here:
 *	  then no value fits, and the message names one of the two.
 *
 * src/guc.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/guc.h"

char	   *queue_guc_project = NULL;
char	   *queue_guc_client_id = NULL;
int			queue_guc_min_claim_ttl = 60;
int			queue_guc_max_claim_ttl = 43200;
int			queue_guc_min_claim_grace = 60;
int			queue_guc_max_claim_grace = 43200;
int			queue_guc_default_claim_limit = 10;
int			queue_guc_max_claim_limit = 100;
int			queue_guc_min_message_ttl = 60;
int			queue_guc_max_message_ttl = 1209600;
int			queue_guc_default_message_ttl = 1209600;
int			queue_guc_max_message_delay = 1209600;
int			queue_guc_max_message_size = 262144;
int			queue_guc_max_push_count = 10000;
int			queue_guc_max_cursors = 100000;
int			queue_guc_database_workers = 8;
int			queue_guc_worker_naptime = 1;
int			queue_guc_segment_size = 16 * 1024;
int			queue_guc_runners = 2;
int			queue_guc_max_runners = 4;
int			queue_guc_runner_idle_time = 60;
int			queue_guc_max_handler_time = 3600;
bool		queue_guc_auto_create = true;

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
queue_define_gucs(void)
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
		&queue_guc_min_claim_ttl, 60, 1, QUEUE_LIFETIME_MAX, GUC_UNIT_S},
		{"queue.max_claim_ttl", "Longest time that a claim may be asked for.",
		&queue_guc_max_claim_ttl, 43200, 1, QUEUE_LIFETIME_MAX, GUC_UNIT_S},
		{"queue.min_claim_grace", "Least grace that a claim may be asked for.",
		&queue_guc_min_claim_grace, 60, 0, QUEUE_LIFETIME_MAX, GUC_UNIT_S},
		{"queue.max_claim_grace", "Most grace that a claim may be asked for.",
		&queue_guc_max_claim_grace, 43200, 0, QUEUE_LIFETIME_MAX, GUC_UNIT_S},
		{"queue.default_claim_limit", "Messages in a claim that names no limit.",
		&queue_guc_default_claim_limit, 10, 1, QUEUE_LIST_MAX, 0},
		{"queue.max_claim_limit", "Most messages in one claim.",
		&queue_guc_max_claim_limit, 100, 1, QUEUE_LIST_MAX, 0},
		{"queue.min_message_ttl", "Shortest lifetime of a message.",
		&queue_guc_min_message_ttl, 60, 1, INT_MAX, GUC_UNIT_S},
		{"queue.max_message_ttl", "Longest lifetime of a message.",
		&queue_guc_max_message_ttl, 1209600, 1, INT_MAX, GUC_UNIT_S},
		{"queue.default_message_ttl", "Lifetime of a push that names none.",
		&queue_guc_default_message_ttl, 1209600, 1, INT_MAX, GUC_UNIT_S},
		{"queue.max_message_delay", "Longest delay of a message.",
		&queue_guc_max_message_delay, 1209600, 0, INT_MAX, GUC_UNIT_S},
		{"queue.max_message_size", "Largest body of a message, as jsonb.",
		&queue_guc_max_message_size, 262144, 1, MaxAllocSize / 2, GUC_UNIT_BYTE},
		{"queue.max_push_count", "Most messages in one push.",
		&queue_guc_max_push_count, 10000, 1, 1000000, 0},
		{"queue.max_handler_time", "Longest time that a handler may run for one message.",
		&queue_guc_max_handler_time, 3600, 1, QUEUE_LIFETIME_MAX, GUC_UNIT_S},
	};

	for (Size i = 0; i < lengthof(ints); i++)
		DefineCustomIntVariable(ints[i].name, ints[i].description, NULL,
								ints[i].variable, ints[i].boot, ints[i].min,
								ints[i].max, PGC_SUSET, ints[i].flags,
								NULL, NULL, NULL);

	DefineCustomBoolVariable("queue.auto_create",
							 "Whether a push to an unknown queue creates it.",
							 NULL, &queue_guc_auto_create, true, PGC_SUSET, 0,
							 NULL, NULL, NULL);
	DefineCustomStringVariable("queue.project",
							   "Namespace of queue names for this session.",
							   NULL, &queue_guc_project, "", PGC_USERSET, 0,
							   check_label, NULL, NULL);
	DefineCustomStringVariable("queue.client_id",
							   "Who pushes and lists messages.",
							   NULL, &queue_guc_client_id, "", PGC_USERSET, 0,
							   check_label, NULL, NULL);

	if (process_shared_preload_libraries_in_progress)
	{
		DefineCustomIntVariable("queue.max_cursors",
								"How many queues shared memory remembers the state of.",
								NULL, &queue_guc_max_cursors, 100000, 64,
								10000000, PGC_POSTMASTER, 0,
								NULL, NULL, NULL);
		DefineCustomIntVariable("queue.database_workers",
								"How many databases may have a worker at a time.",
								NULL, &queue_guc_database_workers, 8, 0, 256,
								PGC_SIGHUP, 0, NULL, NULL, NULL);
		DefineCustomIntVariable("queue.runners",
								"How many processes may run jobs in a database.",
								NULL, &queue_guc_runners, 2, 0, RUNNERS_MAX,
								PGC_SIGHUP, 0, NULL, NULL, NULL);
		DefineCustomIntVariable("queue.max_runners",
								"How many processes may run jobs in all databases.",
								NULL, &queue_guc_max_runners, 4, 0,
								RUNNERS_MAX, PGC_SIGHUP, 0, NULL, NULL, NULL);
		DefineCustomIntVariable("queue.runner_idle_time",
								"How long a process that runs jobs waits for the next one before it ends.",
								NULL, &queue_guc_runner_idle_time, 60, 1,
								INT_MAX / 1000, PGC_SIGHUP, GUC_UNIT_S,
								NULL, NULL, NULL);
		DefineCustomIntVariable("queue.worker_naptime",
								"How long a worker waits after it sent notifications.",
								NULL, &queue_guc_worker_naptime, 1, 0, 10000,
								PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
		DefineCustomIntVariable("queue.segment_size",
								"Size at which messages begin to go to the next segment of the ring.",
								"0: they go to the same one for ever.",
								&queue_guc_segment_size, 16 * 1024, 0,
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
queue_set_label(const char *setting, const char *label, bool local)
{
	(void) set_config_option(setting, label, PGC_USERSET, PGC_S_SESSION,
							 local ? GUC_ACTION_LOCAL : GUC_ACTION_SAVE,
							 true, 0, false);
}

/* A NULL where a value is needed. */
void
queue_arg_missing(const char *arg)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("parameter \"%s\" must not be null", arg),
			 errhint("Give a value for \"%s\".", arg)));
}

/*
 * Is the value in its bounds?  A bound without a setting has a NULL name.
 * The error names the parameter, the bound and the setting.
 */
int
queue_check_bounds(const char *arg, int64 value, int min,
				   const char *min_setting, int max, const char *max_setting,
				   const char *unit)
{
	bool		low = value < min;
	const char *setting = low ? min_setting : max_setting;
	int			bound = low ? min : max;

	if (value >= min && value <= max)
		return (int) value;

	if (setting == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be between %d and %d%s, not %lld",
						arg, min, max, unit, (long long) value),
				 errhint("Give a value between %d and %d.", min, max)));

	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 low ?
			 errmsg("parameter \"%s\" must be at least %d%s (%s), not %lld",
					arg, bound, unit, setting, (long long) value) :
			 errmsg("parameter \"%s\" must be at most %d%s (%s), not %lld",
					arg, bound, unit, setting, (long long) value),
			 low ?
			 errhint("Give a higher value, or have \"%s\" lowered.", setting) :
			 errhint("Give a lower value, or have \"%s\" raised.", setting)));
}

int
queue_check_ttl(int64 ttl)
{
	return queue_check_bounds("ttl", ttl,
							  queue_guc_min_message_ttl, "queue.min_message_ttl",
							  queue_guc_max_message_ttl, "queue.max_message_ttl",
							  " seconds");
}

int
queue_check_delay(int64 delay)
{
	if (delay < 0)
		return queue_check_bounds("delay", delay, 0, NULL,
								  queue_guc_max_message_delay, NULL, " seconds");
	return queue_check_bounds("delay", delay, 0, NULL,
							  queue_guc_max_message_delay,
							  "queue.max_message_delay", " seconds");
}

int
queue_check_priority(int64 priority)
{
	return queue_check_bounds("priority", priority, 0, NULL,
							  QUEUE_PRIORITIES - 1, NULL, "");
}

int
queue_check_claim_ttl(int ttl)
{
	return queue_check_bounds("ttl", ttl,
							  queue_guc_min_claim_ttl, "queue.min_claim_ttl",
							  queue_guc_max_claim_ttl, "queue.max_claim_ttl",
							  " seconds");
}

int
queue_check_grace(int grace)
{
	return queue_check_bounds("grace", grace,
							  queue_guc_min_claim_grace, "queue.min_claim_grace",
							  queue_guc_max_claim_grace, "queue.max_claim_grace",
							  " seconds");
}

int
queue_check_claim_limit(int limit)
{
	if (limit < 1)
		return queue_check_bounds("limit", limit, 1, NULL,
								  queue_guc_max_claim_limit, NULL, "");
	return queue_check_bounds("limit", limit, 1, NULL,
							  queue_guc_max_claim_limit,
							  "queue.max_claim_limit", "");
}

int
queue_check_list_limit(int limit)
{
	return queue_check_bounds("limit", limit, 1, NULL, QUEUE_LIST_MAX, NULL, "");
}
