/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The settings (GUC parameters).
 *
 * NOTES
 *	  Any role may set queue.project, queue.client_id and
 *	  queue.durable_claims.  The bounds and defaults of arguments may be set
 *	  by superusers, and by roles with GRANT SET, for a database, a role or a
 *	  session.  The other settings are of the whole server.
 *
 *	  A lower and an upper bound may contradict each other, for a moment or for
 *	  good: two settings are changed one after the other.  Then no value fits,
 *	  and the error of the call names both (arg_check_bounds()).
 *
 * src/util/settings.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "util/limits.h"
#include "util/settings.h"

char	   *setting_project = NULL;
char	   *setting_client_id = NULL;
bool		setting_durable_claims = true;
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
int			setting_max_retry_delay = 3600;
int			setting_max_message_size = 262144;
int			setting_max_push_count = 10000;
int			setting_max_active_queues = 32000;
int			setting_max_active_groups = 40000;
int			setting_database_workers = 8;
int			setting_worker_naptime = 1;
int			setting_segment_size = 16 * 1024;
int			setting_runners = 2;
int			setting_max_runners = 4;
int			setting_runner_idle_time = 60;
int			setting_max_handler_time = 3600;
bool		setting_auto_create = true;

/*
 * Without preloading, shared memory has this part of the default size, since
 * it may be in the /dev/shm of a container.
 */
#define UNPRELOADED_SHARE	8

/*
 * Whether the settings have the values that were given before they were
 * defined
 */
static bool settings_are_defined = false;

static bool check_label(char **newval, void **extra, GucSource source);

/*
 * Check queue.project or queue.client_id, which are stored with each queue
 * and message.  A startup packet can bring bytes that are not valid in the
 * encoding of the database.  As long as no database is chosen, that is not
 * checked.
 */
static bool
check_label(char **newval, void **extra, GucSource source)
{
	if (OidIsValid(MyDatabaseId) &&
		!pg_verify_mbstr(GetDatabaseEncoding(), *newval, strlen(*newval),
						 true))
	{
		/* The usual message would print the invalid value. */
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
		GUC_check_errhint("Give a shorter value, such as a digest.");
		return false;
	}
	return true;
}

/*
 * The integer settings.  The initial value of the variable is the default.
 * Those that are not PGC_SUSET are of the whole server; those that are
 * PGC_POSTMASTER say how much shared memory there is.
 */
static const struct
{
	const char *name;
	int		   *variable;
	int			min;
	int			max;
	GucContext	context;
	int			flags;
	const char *short_desc;
	const char *long_desc;
}			int_settings[] =

{
	{
		"queue.min_claim_ttl", &setting_min_claim_ttl,
		1, QUEUE_LIFETIME_MAX, PGC_SUSET, GUC_UNIT_S,
		.short_desc = "Sets the minimum time for which messages can be claimed."
	},
	{
		"queue.max_claim_ttl", &setting_max_claim_ttl,
		1, QUEUE_LIFETIME_MAX, PGC_SUSET, GUC_UNIT_S,
		.short_desc = "Sets the maximum time for which messages can be claimed."
	},
	{
		"queue.min_claim_grace", &setting_min_claim_grace,
		0, QUEUE_LIFETIME_MAX, PGC_SUSET, GUC_UNIT_S,
		.short_desc = "Sets the minimum grace of a claim.",
		.long_desc = "A claimed message does not expire before the claim and its grace have ended."
	},
	{
		"queue.max_claim_grace", &setting_max_claim_grace,
		0, QUEUE_LIFETIME_MAX, PGC_SUSET, GUC_UNIT_S,
		.short_desc = "Sets the maximum grace of a claim."
	},
	{
		"queue.default_claim_limit", &setting_default_claim_limit,
		1, QUEUE_LIST_MAX, PGC_SUSET, 0,
		.short_desc = "Sets the number of messages that are claimed if no limit is given."
	},
	{
		"queue.max_claim_limit", &setting_max_claim_limit,
		1, QUEUE_LIST_MAX, PGC_SUSET, 0,
		.short_desc = "Sets the maximum number of messages in a claim."
	},
	{
		"queue.min_message_ttl", &setting_min_message_ttl,
		1, INT_MAX, PGC_SUSET, GUC_UNIT_S,
		.short_desc = "Sets the minimum lifetime of a message."
	},
	{
		"queue.max_message_ttl", &setting_max_message_ttl,
		1, INT_MAX, PGC_SUSET, GUC_UNIT_S,
		.short_desc = "Sets the maximum lifetime of a message."
	},
	{
		"queue.default_message_ttl", &setting_default_message_ttl,
		1, INT_MAX, PGC_SUSET, GUC_UNIT_S,
		.short_desc = "Sets the lifetime of messages that are pushed without one."
	},
	{
		"queue.max_message_delay", &setting_max_message_delay,
		0, INT_MAX, PGC_SUSET, GUC_UNIT_S,
		.short_desc = "Sets the maximum time for which a message can be delayed."
	},
	{
		"queue.max_retry_delay", &setting_max_retry_delay,
		1, INT_MAX / 4, PGC_SUSET, GUC_UNIT_S,
		.short_desc = "Sets the maximum time between two attempts at a message, unless its queue sets another.",
		.long_desc = "A quarter of that, at most, is added at random."
	},
	{
		"queue.max_message_size", &setting_max_message_size,
		1, MaxAllocSize / 2, PGC_SUSET, GUC_UNIT_BYTE,
		.short_desc = "Sets the maximum size of a message.",
		.long_desc = "The size is that of the body and headers as jsonb, uncompressed."
	},
	{
		"queue.max_push_count", &setting_max_push_count,
		1, 1000000, PGC_SUSET, 0,
		.short_desc = "Sets the maximum number of messages in a push."
	},
	{
		"queue.max_handler_time", &setting_max_handler_time,
		1, QUEUE_LIFETIME_MAX, PGC_SUSET, GUC_UNIT_S,
		.short_desc = "Sets the maximum time for which a handler may run for one message."
	},
	{
		"queue.max_active_queues", &setting_max_active_queues,
		64, 10000000, PGC_POSTMASTER, 0,
		.short_desc = "Sets the maximum number of queues with messages that have a place in shared memory.",
		.long_desc = "Claims of other queues read all their messages."
	},
	{
		"queue.max_active_groups", &setting_max_active_groups,
		64, 10000000, PGC_POSTMASTER, 0,
		.short_desc = "Sets the maximum number of groups with messages that have a place in shared memory.",
		.long_desc = "The messages of other groups of a queue are claimed as if they were one."
	},
	{
		"queue.database_workers", &setting_database_workers,
		0, 256, PGC_SIGHUP, 0,
		.short_desc = "Sets the maximum number of databases that have a background worker at a time."
	},
	{
		"queue.runners", &setting_runners,
		0, RUNNERS_MAX, PGC_SIGHUP, 0,
		.short_desc = "Sets the maximum number of processes that run handlers in a database."
	},
	{
		"queue.max_runners", &setting_max_runners,
		0, RUNNERS_MAX, PGC_SIGHUP, 0,
		.short_desc = "Sets the maximum number of processes that run handlers in all databases together."
	},
	{
		"queue.runner_idle_time", &setting_runner_idle_time,
		1, INT_MAX / 1000, PGC_SIGHUP, GUC_UNIT_S,
		.short_desc = "Sets the time after which a process that runs handlers exits if there are no messages."
	},
	{
		"queue.worker_naptime", &setting_worker_naptime,
		0, 10000, PGC_SIGHUP, GUC_UNIT_MS,
		.short_desc = "Sets the time for which a worker sleeps after it has sent notifications."
	},
	{
		"queue.segment_size", &setting_segment_size,
		0, MAX_KILOBYTES, PGC_SIGHUP, GUC_UNIT_KB,
		.short_desc = "Sets the size of a segment at which the next one takes new messages.",
		.long_desc = "0 means that the same segment takes them forever."
	}
};

/*
 * Define the settings.  To be called when the library is loaded, which may
 * happen again after an error.
 */
void
settings_define(bool preloaded)
{
	if (settings_are_defined)
		return;
	for (Size i = 0; i < lengthof(int_settings); i++)
	{
		GucContext	context = int_settings[i].context;

		/*
		 * The server has started, so nothing can be set any more for which
		 * that is too late.
		 */
		if (context == PGC_POSTMASTER && !preloaded)
		{
			*int_settings[i].variable /= UNPRELOADED_SHARE;
			context = PGC_INTERNAL;
		}
		DefineCustomIntVariable(int_settings[i].name,
								int_settings[i].short_desc,
								int_settings[i].long_desc,
								int_settings[i].variable,
								*int_settings[i].variable,
								int_settings[i].min, int_settings[i].max,
								context, int_settings[i].flags,
								NULL, NULL, NULL);
	}
	DefineCustomBoolVariable("queue.auto_create",
							 "Creates a queue when a message is pushed to an unknown one.",
							 NULL, &setting_auto_create, setting_auto_create,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("queue.durable_claims",
							 "Has the commit of a claim wait until it is flushed to disk.",
							 "If off, a crash of the server may return the messages of the last claims. It does not concern transactions that have also done other work, nor queues that limit the number of claims.",
							 &setting_durable_claims, setting_durable_claims,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("queue.project",
							   "Sets the project of this session, a namespace of queue names.",
							   NULL, &setting_project, "", PGC_USERSET, 0,
							   check_label, NULL, NULL);
	DefineCustomStringVariable("queue.client_id",
							   "Sets the client id that is stored with messages this session pushes.",
							   "A session does not list its own messages unless it asks for them.",
							   &setting_client_id, "", PGC_USERSET, 0,
							   check_label, NULL, NULL);
	settings_are_defined = true;
	MarkGUCPrefixReserved("queue");
}

/*
 * Set a setting that any user can set: until the transaction ends if "local",
 * else until the caller restores it with AtEOXact_GUC().
 */
void
settings_set(const char *setting, const char *value, bool local)
{
	(void) set_config_option(setting, value, PGC_USERSET, PGC_S_SESSION,
							 local ? GUC_ACTION_LOCAL : GUC_ACTION_SAVE,
							 true, 0, false);
}

/* PostgreSQL 17 and later would end a process after that time. */
void
settings_without_transaction_timeout(void)
{
	if (GetConfigOption("transaction_timeout", true, false) != NULL)
		SetConfigOption("transaction_timeout", "0", PGC_USERSET,
						PGC_S_SESSION);
}
