/*-------------------------------------------------------------------------
 *
 * options.c
 *	  The metadata of queues: the reserved keys and what they mean.
 *
 * NOTES
 *	  Metadata belongs to the user, except for the reserved keys below.  Their
 *	  values are checked when metadata is written, against the settings of the
 *	  session that writes it.  When metadata is read, a value that is no longer
 *	  within the bounds is used as it is, so that a change of a setting does
 *	  not make a queue unusable.
 *
 * src/queue/options.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/numeric.h"

#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "queue/options.h"
#include "queue/registry.h"
#include "storage/attributes.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/json.h"
#include "util/limits.h"
#include "util/settings.h"

#define POST_SIZE_MAX		(1024 * 1024 * 1024 - 1)	/* bytes; of a value */
#define RETRY_BACKOFF_MAX	1000
#define GROUP_CONCURRENCY_MAX	10000
#define GROUP_RATE_MAX		1000000 /* messages per second */
#define DEAD_SUFFIX			".dead"

/* The last two are for groups, and have no effect yet. */
static const char *const reserved_keys[] = {
	"_default_message_ttl",
	"_default_message_delay",
	"_max_messages_post_size",
	"_max_claim_count",
	"_dead_letter_queue",
	"_dead_letter_queue_messages_ttl",
	"_retry_delay",
	"_retry_backoff",
	"_group_concurrency",
	"_group_rate"
};

static bool integer_key(Jsonb *metadata, const char *key, bool check,
						int min, const char *min_setting,
						int max, const char *max_setting, int *value);
pg_noreturn static void wrong_type(const char *key, const char *wanted);
static bool number_key(Jsonb *metadata, const char *key, bool check,
					   double *value);
static double get_backoff(Jsonb *metadata, bool check);
static void check_groups(Jsonb *metadata);
static void get_dead_queue(Jsonb *metadata, Queue *queue, bool check);
static bool is_reserved(const char *key);

static void
wrong_type(const char *key, const char *wanted)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("metadata key \"%s\" must be %s", key, wanted),
			 errhint("Correct it, or leave it out; queue_update removes a key that is set to null.")));
}

/* Read a key that is an integer; false when there is no (useful) value. */
static bool
integer_key(Jsonb *metadata, const char *key, bool check,
			int min, const char *min_setting, int max,
			const char *max_setting, int *value)
{
	JsonbValue	v;
	int64		integer;

	if (!json_field(metadata, key, &v))
		return false;
	if (!json_integer(&v, &integer))
	{
		if (check)
			wrong_type(key, "an integer");
		return false;
	}
	if (check)
		arg_check_bounds(key, integer, min, min_setting, max, max_setting,
						   "");
	else if (integer < 0 || integer > INT_MAX)
		return false;
	*value = (int) integer;
	return true;
}

/* Read a key that is a number; false when there is no (useful) value. */
static bool
number_key(Jsonb *metadata, const char *key, bool check, double *value)
{
	JsonbValue	v;

	if (!json_field(metadata, key, &v))
		return false;
	if (v.type != jbvNumeric)
	{
		if (check)
			wrong_type(key, "a number");
		return false;
	}
	*value = DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow,
												NumericGetDatum(v.val.numeric)));
	return true;
}

/* The factor from one retry to the next; 1 when there is no (useful) value. */
static double
get_backoff(Jsonb *metadata, bool check)
{
	double		backoff;

	if (!number_key(metadata, "_retry_backoff", check, &backoff))
		return 1;
	if (backoff >= 1 && backoff <= RETRY_BACKOFF_MAX)
		return backoff;
	if (check)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("metadata key \"%s\" must be between %d and %d",
						"_retry_backoff", 1, RETRY_BACKOFF_MAX),
				 errhint("Give a factor by which the delay grows from one retry to the next.")));
	return 1;
}

/* The keys of groups: only their values are checked. */
static void
check_groups(Jsonb *metadata)
{
	int			concurrency;
	double		rate;

	integer_key(metadata, "_group_concurrency", true, 1, NULL,
				GROUP_CONCURRENCY_MAX, NULL, &concurrency);
	if (number_key(metadata, "_group_rate", true, &rate) &&
		!(rate > 0 && rate <= GROUP_RATE_MAX))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("metadata key \"%s\" must be above 0 and at most %d",
						"_group_rate", GROUP_RATE_MAX),
				 errhint("Give a number of messages per second.")));
}

/* The dead letter queue that the metadata requires; "" for none. */
static void
get_dead_queue(Jsonb *metadata, Queue *queue, bool check)
{
	JsonbValue	v;

	queue->dead_queue[0] = '\0';
	queue->dead_named = json_field(metadata, "_dead_letter_queue", &v);
	if (queue->dead_named && v.type == jbvString)
	{
		char	   *name = pnstrdup(v.val.string.val, v.val.string.len);

		if (check)
			queue_check_name(name, "_dead_letter_queue");
		strlcpy(queue->dead_queue, name, sizeof(queue->dead_queue));
	}
	else if (queue->dead_named)
	{
		if (check)
			wrong_type("_dead_letter_queue", "the name of a queue");
	}
	else if (queue->max_claim_count >= 0)
	{
		if (strlen(queue->name) + strlen(DEAD_SUFFIX) <= QUEUE_NAME_LENGTH)
			snprintf(queue->dead_queue, sizeof(queue->dead_queue),
					 "%s" DEAD_SUFFIX, queue->name);
		else if (check)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("queue name \"%s\" leaves no room for the suffix \"%s\" of a dead letter queue",
							queue->name, DEAD_SUFFIX),
					 errhint("Name a dead letter queue in the metadata: \"_dead_letter_queue\".")));
	}
}

/*
 * Take the reserved keys out of the metadata into queue, whose name is set.
 * With check, a wrong value is an error; else it is as if it were not there.
 */
void
options_parse(Jsonb *metadata, Queue *queue, bool check)
{
	queue->default_ttl = -1;
	queue->default_delay = 0;
	queue->max_post_size = -1;
	queue->max_claim_count = -1;
	queue->dead_ttl = -1;
	queue->retry_delay = 0;
	queue->retry_backoff = 1;
	queue->dead_queue[0] = '\0';
	queue->dead_named = false;
	if (!JB_ROOT_IS_OBJECT(metadata))
		return;

	integer_key(metadata, "_default_message_ttl", check,
				setting_min_message_ttl, "queue.min_message_ttl",
				setting_max_message_ttl, "queue.max_message_ttl",
				&queue->default_ttl);
	integer_key(metadata, "_default_message_delay", check, 0, NULL,
				setting_max_message_delay, "queue.max_message_delay",
				&queue->default_delay);
	integer_key(metadata, "_max_messages_post_size", check, 1, NULL,
				POST_SIZE_MAX, NULL, &queue->max_post_size);
	integer_key(metadata, "_max_claim_count", check, 1, NULL, INT_MAX, NULL,
				&queue->max_claim_count);
	integer_key(metadata, "_dead_letter_queue_messages_ttl", check,
				setting_min_message_ttl, "queue.min_message_ttl",
				setting_max_message_ttl, "queue.max_message_ttl",
				&queue->dead_ttl);
	integer_key(metadata, "_retry_delay", check, 0, NULL,
				setting_max_message_delay, "queue.max_message_delay",
				&queue->retry_delay);
	queue->retry_backoff = get_backoff(metadata, check);

	get_dead_queue(metadata, queue, check);
	if (check)
		check_groups(metadata);
}

/*
 * May this be the metadata of that queue, as far as the metadata alone tells?
 * What it says of other queues is for dead_letter_queue_require() to check.
 */
void
options_check(const char *name, Jsonb *metadata)
{
	Queue		queue;
	StringInfoData text;

	if (!JB_ROOT_IS_OBJECT(metadata))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("metadata must be a JSON object"),
				 errhint("Give an object such as {\"key\": \"value\"}.")));
	initStringInfo(&text);
	JsonbToCString(&text, &metadata->root, VARSIZE(metadata));
	if (text.len > QUEUE_METADATA_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("metadata of %d bytes is too large", text.len),
				 errdetail("The metadata of a queue is at most %d bytes as JSON text.",
						   QUEUE_METADATA_MAX),
				 errhint("Keep large values elsewhere and refer to them.")));
	pfree(text.data);

	memset(&queue, 0, sizeof(queue));
	strlcpy(queue.name, name, sizeof(queue.name));
	options_parse(metadata, &queue, true);
}

static bool
is_reserved(const char *key)
{
	for (int i = 0; i < (int) lengthof(reserved_keys); i++)
		if (strcmp(key, reserved_keys[i]) == 0)
			return true;
	return false;
}

/*
 * Warn of keys that look like reserved ones and are none, in metadata or a
 * patch that a user gave.
 */
void
options_warn(Jsonb *given)
{
	JsonbIterator *it = JsonbIteratorInit(&given->root);
	JsonbIteratorToken token;
	JsonbValue	v;
	StringInfoData unknown;
	StringInfoData reserved;

	initStringInfo(&unknown);
	while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		char	   *key;

		if (token != WJB_KEY)
			continue;
		key = pnstrdup(v.val.string.val, v.val.string.len);
		token = JsonbIteratorNext(&it, &v, true);
		if (key[0] == '_' && v.type != jbvNull && !is_reserved(key))
			appendStringInfo(&unknown, "%s%s", unknown.len > 0 ? ", " : "",
							 key);
		pfree(key);
	}
	if (unknown.len == 0)
		return;

	initStringInfo(&reserved);
	for (int i = 0; i < (int) lengthof(reserved_keys); i++)
		appendStringInfo(&reserved, "%s%s", i > 0 ? ", " : "",
						 reserved_keys[i]);
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("metadata keys that begin with \"_\" but are not reserved have no effect: %s",
					arg_clip(unknown.data)),
			 errhint("The reserved keys are %s.", reserved.data)));
}

/* The lifetime of a push that names none; never outside the bounds. */
int
options_default_ttl(const Queue *queue)
{
	int			ttl = queue->default_ttl >= 0 ?
		queue->default_ttl : setting_default_message_ttl;

	return Max(Min(ttl, setting_max_message_ttl),
			   setting_min_message_ttl);
}

/*
 * How often was the message claimed in its queue?  A dead letter brings a
 * count along, which its tries here are counted from.
 */
int
options_attempts(MessageTable *table, HeapTuple tuple)
{
	int			count = MESSAGE_FORM(tuple)->claim_count;
	int64		brought;

	if (attributes_integer(attributes_of(RelationGetDescr(table->heap), tuple),
					 "claim_count", &brought))
		count -= (int) brought;
	return count;
}

/* Was it claimed as often as the queue allows? */
bool
options_is_exhausted(const Queue *queue, MessageTable *table, HeapTuple tuple)
{
	return queue->max_claim_count >= 0 &&
		MESSAGE_FORM(tuple)->claim_count >= queue->max_claim_count &&
		options_attempts(table, tuple) >= queue->max_claim_count;
}
