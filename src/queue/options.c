/*-------------------------------------------------------------------------
 *
 * options.c
 *	  Options of queues: the reserved keys of their metadata.
 *
 * NOTES
 *	  The metadata of a queue is a JSON object of the user's own, except for
 *	  the reserved keys, which are options of the queue like the reloptions of
 *	  a table.  The table below has one entry for each of them; what it says is
 *	  all that is needed to add a key with an integer, a number or a boolean.
 *
 *	  Options are checked when metadata is written, against the settings of
 *	  the session that writes it.  When they are read, a value that is no
 *	  longer within the bounds is used as it is, and one of a wrong type is
 *	  ignored, so that a change of a setting does not make a queue unusable.
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
#include "queue/options.h"
#include "queue/queue_table.h"
#include "queue/registry.h"
#include "storage/attributes.h"
#include "storage/message_row.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/json.h"
#include "util/limits.h"
#include "util/settings.h"

#define POST_SIZE_MAX		(1024 * 1024 * 1024 - 1)	/* bytes; of a value */
#define RETRY_BACKOFF_MAX	1000
#define GROUP_CONCURRENCY_MAX	10000
#define GROUP_RATE_MAX		1000000 /* messages per second */
#define KEEP_FINISHED_MAX	(365 * SECS_PER_DAY)

typedef enum OptionType
{
	OPTION_INTEGER,				/* its field is an int */
	OPTION_NUMBER,				/* its field is a double */
	OPTION_BOOLEAN,				/* its field is a bool, false by default */
	OPTION_QUEUE_NAME,			/* _dead_letter_queue only */
	OPTION_MESSAGE_NUMBER		/* _pgmq_base only: its field is an int64 */
} OptionType;

/* A bound of an option's value: that of a setting, or a constant */
typedef struct OptionBound
{
	int			constant;
	const int  *setting;		/* NULL if the constant counts */
	const char *setting_name;
} OptionBound;

typedef struct Option
{
	const char *key;
	OptionType	type;
	size_t		field;			/* offset in Queue */
	int			default_value;
	OptionBound min;
	OptionBound max;
	bool		excludes_min;	/* a number must be greater than min */
	const char *hint;			/* of a number that is out of bounds */
} Option;

#define MESSAGE_TTL_BOUNDS \
	.min = {.setting = &setting_min_message_ttl, \
			.setting_name = "queue.min_message_ttl"}, \
	.max = {.setting = &setting_max_message_ttl, \
			.setting_name = "queue.max_message_ttl"}
#define DELAY_BOUNDS \
	.max = {.setting = &setting_max_message_delay, \
			.setting_name = "queue.max_message_delay"}

/* In the order in which the manual and the hint of options_warn() list them */
static const Option options[] = {
	{
		"_default_message_ttl", OPTION_INTEGER, offsetof(Queue, default_ttl),
		.default_value = -1,
		MESSAGE_TTL_BOUNDS
	},
	{
		"_default_message_delay", OPTION_INTEGER, offsetof(Queue, default_delay),
		DELAY_BOUNDS
	},
	{
		"_max_messages_post_size", OPTION_INTEGER, offsetof(Queue, max_post_size),
		.default_value = -1,
		.min = {.constant = 1},
		.max = {.constant = POST_SIZE_MAX}
	},
	{
		"_max_claim_count", OPTION_INTEGER, offsetof(Queue, max_claim_count),
		.default_value = -1,
		.min = {.constant = 1},
		.max = {.constant = INT_MAX}
	},
	{
		.key = "_dead_letter_queue",
		.type = OPTION_QUEUE_NAME
	},
	{
		"_dead_letter_queue_messages_ttl", OPTION_INTEGER,
		offsetof(Queue, dead_ttl),
		.default_value = -1,
		MESSAGE_TTL_BOUNDS
	},
	{
		"_retry_delay", OPTION_INTEGER, offsetof(Queue, retry_delay),
		.default_value = -1,
		DELAY_BOUNDS
	},
	{
		"_retry_backoff", OPTION_NUMBER, offsetof(Queue, retry_backoff),
		.default_value = -1,
		.min = {.constant = 1},
		.max = {.constant = RETRY_BACKOFF_MAX},
		.hint = "Give a factor by which the delay grows from one retry to the next."
	},
	{
		"_group_concurrency", OPTION_INTEGER, offsetof(Queue, group_concurrency),
		.default_value = -1,
		.min = {.constant = 1},
		.max = {.constant = GROUP_CONCURRENCY_MAX}
	},
	{
		"_group_rate", OPTION_NUMBER, offsetof(Queue, group_rate),
		.min = {.constant = 0},
		.max = {.constant = GROUP_RATE_MAX},
		.excludes_min = true,
		.hint = "Give a number of messages per second."
	},
	{
		"_keep_finished", OPTION_INTEGER, offsetof(Queue, keep_finished),
		.default_value = -1,
		.min = {.constant = 1},
		.max = {.constant = KEEP_FINISHED_MAX}
	},
	{
		.key = "_keep_body",
		.type = OPTION_BOOLEAN,
		.field = offsetof(Queue, keep_body)
	},
	{
		.key = "_results_for_producers",
		.type = OPTION_BOOLEAN,
		.field = offsetof(Queue, results_for_producers)
	},
	{
		.key = "_pgmq_notify",
		.type = OPTION_BOOLEAN,
		.field = offsetof(Queue, pgmq_notifies)
	},
	{
		.key = "_pgmq_base",
		.type = OPTION_MESSAGE_NUMBER,
		.field = offsetof(Queue, pgmq_base)
	}
};

pg_noreturn static void option_type_error(const Option *option);
static int	bound_value(const OptionBound *bound);
static bool has_type_of_option(const Option *option, const JsonbValue *v,
							   int64 *integer);
static int	integer_of_option(const Option *option, int64 value, bool check);
static double number_of_option(const Option *option, const JsonbValue *v,
							   bool check);
static void parse_dead_queue(const Option *option, const JsonbValue *v,
							 Queue *queue, bool check);
static bool is_reserved_key(const char *key);
static bool is_misspelled_key(const char *key);

static void
option_type_error(const Option *option)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 option->type == OPTION_INTEGER ?
			 errmsg("metadata key \"%s\" must be an integer between %d and %d",
					option->key, bound_value(&option->min),
					bound_value(&option->max)) :
			 option->type == OPTION_NUMBER ?
			 errmsg("metadata key \"%s\" must be a number", option->key) :
			 option->type == OPTION_BOOLEAN ?
			 errmsg("metadata key \"%s\" must be true or false",
					option->key) :
			 option->type == OPTION_MESSAGE_NUMBER ?
			 errmsg("metadata key \"%s\" must be an integer", option->key) :
			 errmsg("metadata key \"%s\" must be the name of a queue",
					option->key),
			 errhint("Correct it, or leave it out; queue_update removes a key that is set to null.")));
}

static int
bound_value(const OptionBound *bound)
{
	return bound->setting != NULL ? *bound->setting : bound->constant;
}

/* Returns whether a value has the type of the option; gets an integer. */
static bool
has_type_of_option(const Option *option, const JsonbValue *v, int64 *integer)
{
	switch (option->type)
	{
		case OPTION_INTEGER:
		case OPTION_MESSAGE_NUMBER:
			return json_integer(v, integer);
		case OPTION_NUMBER:
			return v->type == jbvNumeric;
		case OPTION_BOOLEAN:
			return v->type == jbvBool;
		case OPTION_QUEUE_NAME:
			return v->type == jbvString;
	}
	return false;
}

static int
integer_of_option(const Option *option, int64 value, bool check)
{
	if (check)
		arg_check_bounds(option->key, value,
						 bound_value(&option->min), option->min.setting_name,
						 bound_value(&option->max), option->max.setting_name,
						 "");
	else if (value < 0 || value > INT_MAX)
		return option->default_value;
	return (int) value;
}

static double
number_of_option(const Option *option, const JsonbValue *v, bool check)
{
	int			min = bound_value(&option->min);
	int			max = bound_value(&option->max);
	double		value =
	DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow,
									   NumericGetDatum(v->val.numeric)));

	if (value >= min && value <= max &&
		!(option->excludes_min && value == min))
		return value;
	if (check)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 option->excludes_min ?
				 errmsg("metadata key \"%s\" must be above %d and at most %d",
						option->key, min, max) :
				 errmsg("metadata key \"%s\" must be between %d and %d",
						option->key, min, max),
				 errhint("%s", option->hint)));
	return option->default_value;
}

/*
 * Set the dead letter queue of a queue whose metadata names none.  If there is
 * no room for its name, raises an error if "check" is set.
 */
void
options_set_default_dead_queue(Queue *queue, bool check)
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

/*
 * The dead letter queue that the metadata requires, "" for none.  The option
 * _max_claim_count has been read.
 */
static void
parse_dead_queue(const Option *option, const JsonbValue *v, Queue *queue,
				 bool check)
{
	queue->dead_queue[0] = '\0';
	queue->dead_named = v != NULL;
	if (v != NULL)
	{
		char	   *name = pnstrdup(v->val.string.val, v->val.string.len);

		if (check)
			queue_check_name(name, option->key);
		strlcpy(queue->dead_queue, name, sizeof(queue->dead_queue));
	}

	/* It needs none unless messages can be exhausted. */
	else if (queue->max_claim_count >= 0)
		options_set_default_dead_queue(queue, check);
}

/*
 * Read the options into a queue whose name is set; without "check" a wrong
 * value counts as none.
 */
void
options_parse(Jsonb *metadata, Queue *queue, bool check)
{
	for (int i = 0; i < (int) lengthof(options); i++)
	{
		const Option *option = &options[i];
		void	   *field = (char *) queue + option->field;
		JsonbValue	found;
		JsonbValue *v = NULL;
		int64		integer = 0;

		if (json_field(metadata, option->key, &found))
		{
			if (has_type_of_option(option, &found, &integer))
				v = &found;
			else if (check)
				option_type_error(option);
		}
		switch (option->type)
		{
			case OPTION_INTEGER:
				*(int *) field = v == NULL ? option->default_value :
					integer_of_option(option, integer, check);
				break;
			case OPTION_NUMBER:
				*(double *) field = v == NULL ? option->default_value :
					number_of_option(option, v, check);
				break;
			case OPTION_BOOLEAN:
				*(bool *) field = v != NULL && v->val.boolean;
				break;
			case OPTION_QUEUE_NAME:
				parse_dead_queue(option, v, queue, check);
				break;
			case OPTION_MESSAGE_NUMBER:
				*(int64 *) field = v == NULL ? NOT_OF_PGMQ : integer;
				break;
		}
	}

	/* A rate is kept under the lock of the group, which needs a bound. */
	if (queue->group_rate > 0 && queue->group_concurrency < 0)
		queue->group_concurrency = GROUP_CONCURRENCY_NO_LIMIT;
}

/* --- Checking --- */

/*
 * Raise an error if this cannot be the metadata of a queue of that name.
 * Other queues are not looked at; dead_letter_queue_require() checks these.
 */
void
options_check(const char *name, Jsonb *metadata)
{
	Queue		queue = {0};
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
				 errdetail("The metadata of a queue is at most %d bytes as the JSON text that PostgreSQL prints.",
						   QUEUE_METADATA_MAX),
				 errhint("Keep large values elsewhere and refer to them.")));
	pfree(text.data);
	strlcpy(queue.name, name, sizeof(queue.name));
	options_parse(metadata, &queue, true);
}

static bool
is_reserved_key(const char *key)
{
	for (int i = 0; i < (int) lengthof(options); i++)
		if (strcmp(key, options[i].key) == 0)
			return true;
	return false;
}

/* Returns whether a key is not reserved, but may be meant to be. */
static bool
is_misspelled_key(const char *key)
{
	return key[0] == '_' ? !is_reserved_key(key) :
		is_reserved_key(psprintf("_%s", key));
}

/*
 * Warn about keys that may be misspelled reserved ones, in metadata or a patch
 * as the user gave it.  Keys with the value null do not count.
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
		(void) JsonbIteratorNext(&it, &v, true);
		if (v.type != jbvNull && is_misspelled_key(key))
			appendStringInfo(&unknown, "%s%s", unknown.len > 0 ? ", " : "",
							 key);
		pfree(key);
	}
	if (unknown.len == 0)
		return;

	/* Only pgmq.create and the like set the keys that begin so. */
	initStringInfo(&reserved);
	for (int i = 0; i < (int) lengthof(options); i++)
		if (strncmp(options[i].key, "_pgmq_", strlen("_pgmq_")) != 0)
			appendStringInfo(&reserved, "%s%s", i > 0 ? ", " : "",
							 options[i].key);
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("metadata keys that resemble reserved ones have no effect: %s",
					arg_clip(unknown.data, CLIP_LENGTH)),
			 errhint("The reserved keys are %s.", reserved.data)));
}

/* --- What options mean for messages --- */

/* The lifetime of a push without a ttl, within the bounds of the settings */
int
options_default_ttl(const Queue *queue)
{
	int			ttl = queue->default_ttl >= 0 ? queue->default_ttl :
	setting_default_message_ttl;

	return Max(Min(ttl, setting_max_message_ttl), setting_min_message_ttl);
}

/*
 * Returns how often the message was claimed in its queue.  The claim_count of
 * a dead letter includes the claims in the queue that it came from, which its
 * attributes have.
 */
int
options_deliveries(MessageTable *table, HeapTuple tuple)
{
	int			count = message_read(tuple).claim_count;
	int64		before;

	if (attributes_integer(attributes_of(RelationGetDescr(table->heap), tuple),
						   "claim_count", &before))
		count -= (int) before;
	return count;
}

/*
 * As options_deliveries(), without the claims that gave the message back
 * without having failed.
 */
int
options_attempts(MessageTable *table, HeapTuple tuple)
{
	return options_deliveries(table, tuple) -
		attributes_given_back(RelationGetDescr(table->heap), tuple);
}

/* Returns whether as many attempts have failed as the queue allows. */
bool
options_is_exhausted(const Queue *queue, MessageTable *table, HeapTuple tuple)
{
	return queue->max_claim_count >= 0 &&
		message_read(tuple).claim_count >= queue->max_claim_count &&
		options_attempts(table, tuple) >= queue->max_claim_count;
}
