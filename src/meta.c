/*-------------------------------------------------------------------------
 *
 * meta.c
 *	  The metadata of queues: the reserved keys and what they mean.
 *
 * NOTES
 *	  Metadata is the user's own, except for the keys in the table below.
 *	  They are checked when metadata is written, against the settings of the
 *	  session that writes; when it is read they are taken as they are, since
 *	  a bound that was moved later shall not make a queue unusable.
 *
 * src/meta.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "common/hashfn.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/numeric.h"

#define POST_SIZE_MAX		(1024 * 1024 * 1024 - 1)	/* bytes; of a value */
#define RETRY_BACKOFF_MAX	1000
#define DEAD_SUFFIX			".dead"

/* Dead letter queues that follow one another; more is a circle. */
#define DEAD_CHAIN_MAX		1000

static bool integer_key(Jsonb *metadata, const char *key, bool check,
						int min, const char *min_setting,
						int max, const char *max_setting, int *value);
pg_noreturn static void wrong_type(const char *key, const char *wanted);
static void default_dead_queue(const char *name, char *dead);
static double get_backoff(Jsonb *metadata, bool check);

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
		queue_check_bounds(key, integer, min, min_setting, max, max_setting,
						   "");
	else if (integer < 0 || integer > INT_MAX)
		return false;
	*value = (int) integer;
	return true;
}

/* The factor from one retry to the next; 1 when there is no (useful) value. */
static double
get_backoff(Jsonb *metadata, bool check)
{
	JsonbValue	v;
	double		backoff;

	if (!json_field(metadata, "_retry_backoff", &v))
		return 1;
	if (v.type != jbvNumeric)
	{
		if (check)
			wrong_type("_retry_backoff", "a number");
		return 1;
	}
	backoff = DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow,
												 NumericGetDatum(v.val.numeric)));
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

/*
 * The queue for the dead letters of one that names none.  A long name is cut
 * and told apart by a hash, so that it stays a valid name.
 */
static void
default_dead_queue(const char *name, char *dead)
{
	size_t		length = strlen(name);
	size_t		suffix = strlen(DEAD_SUFFIX);

	if (length + suffix <= QUEUE_NAME_LENGTH)
		snprintf(dead, QUEUE_NAME_LENGTH + 1, "%s" DEAD_SUFFIX, name);
	else
		snprintf(dead, QUEUE_NAME_LENGTH + 1, "%.*s.%08x" DEAD_SUFFIX,
				 (int) (QUEUE_NAME_LENGTH - suffix - 9), name,
				 hash_bytes((const unsigned char *) name, length));
}

/*
 * Take the reserved keys out of the metadata into queue, whose name is set.
 * With check, a wrong value is an error; else it is as if it were not there.
 */
void
meta_parse(Jsonb *metadata, Queue *queue, bool check)
{
	JsonbValue	v;

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
				queue_guc_min_message_ttl, "queue.min_message_ttl",
				queue_guc_max_message_ttl, "queue.max_message_ttl",
				&queue->default_ttl);
	integer_key(metadata, "_default_message_delay", check, 0, NULL,
				queue_guc_max_message_delay, "queue.max_message_delay",
				&queue->default_delay);
	integer_key(metadata, "_max_messages_post_size", check, 1, NULL,
				POST_SIZE_MAX, NULL, &queue->max_post_size);
	integer_key(metadata, "_max_claim_count", check, 1, NULL, INT_MAX, NULL,
				&queue->max_claim_count);
	integer_key(metadata, "_dead_letter_queue_messages_ttl", check,
				queue_guc_min_message_ttl, "queue.min_message_ttl",
				queue_guc_max_message_ttl, "queue.max_message_ttl",
				&queue->dead_ttl);
	integer_key(metadata, "_retry_delay", check, 0, NULL,
				queue_guc_max_message_delay, "queue.max_message_delay",
				&queue->retry_delay);
	queue->retry_backoff = get_backoff(metadata, check);

	if (json_field(metadata, "_dead_letter_queue", &v))
	{
		if (v.type == jbvString)
		{
			char	   *name = pnstrdup(v.val.string.val, v.val.string.len);

			if (check)
				queue_check_name(name, "_dead_letter_queue");
			strlcpy(queue->dead_queue, name, sizeof(queue->dead_queue));
			queue->dead_named = true;
		}
		else if (check)
			wrong_type("_dead_letter_queue", "the name of a queue");
	}
	else if (queue->max_claim_count >= 0)
		default_dead_queue(queue->name, queue->dead_queue);
}

/* May this be the metadata of that queue, as far as itself goes? */
void
meta_check(const char *name, Jsonb *metadata)
{
	Queue		queue;

	if (!JB_ROOT_IS_OBJECT(metadata))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("metadata must be a JSON object"),
				 errhint("Give an object such as {\"key\": \"value\"}.")));
	if (VARSIZE(metadata) > QUEUE_METADATA_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("metadata of %u bytes is too large",
						(unsigned) VARSIZE(metadata)),
				 errdetail("The metadata of a queue is at most %d bytes.",
						   QUEUE_METADATA_MAX),
				 errhint("Keep large values elsewhere and refer to them.")));

	memset(&queue, 0, sizeof(queue));
	strlcpy(queue.name, name, sizeof(queue.name));
	meta_parse(metadata, &queue, true);
}

/*
 * And as far as others go?  The dead letter queue may not be the queue
 * itself, nor one whose dead letters come back here, and the owner has to
 * have the right to push to it.
 */
void
meta_check_dead_queue(const char *name, Jsonb *metadata, Oid owner)
{
	Queue		queue;
	Queue		next;
	bool		may;

	memset(&queue, 0, sizeof(queue));
	strlcpy(queue.name, name, sizeof(queue.name));
	meta_parse(metadata, &queue, false);
	if (queue.dead_queue[0] == '\0')
		return;

	queue_lock_dead_letters();
	next = queue;
	for (int n = 0; next.dead_queue[0] != '\0'; n++)
	{
		char		dead[QUEUE_NAME_LENGTH + 1];

		strlcpy(dead, next.dead_queue, sizeof(dead));
		if (strcmp(dead, name) == 0 || n > DEAD_CHAIN_MAX)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("dead letters of queue \"%s\" would come back to it",
							name),
					 errdetail("\"_dead_letter_queue\" is \"%s\".",
							   queue.dead_queue),
					 errhint("Name a queue whose own dead letters go elsewhere.")));
		if (!queue_peek(dead, owner, QUEUE_PUSH, &next, &may))
			break;
		if (n == 0 && !may)
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for queue \"%s\"", dead),
					 errdetail("The owner of queue \"%s\" may not push to it.",
							   name),
					 errhint("Grant push on it to the owner, or name another dead letter queue.")));
	}
}

/* The lifetime of a push that names none; never outside the bounds. */
int
meta_default_ttl(const Queue *queue)
{
	int			ttl = queue->default_ttl >= 0 ?
		queue->default_ttl : queue_guc_default_message_ttl;

	return Max(Min(ttl, queue_guc_max_message_ttl),
			   queue_guc_min_message_ttl);
}

/*
 * How often was the message claimed in its queue?  A dead letter brings a
 * count along, which its tries here are counted from.
 */
int
meta_tries(MessageTable *table, HeapTuple tuple)
{
	int			count = MESSAGE_FORM(tuple)->claim_count;
	int64		brought;

	if (note_integer(note_of(RelationGetDescr(table->heap), tuple),
					 "claim_count", &brought))
		count -= (int) brought;
	return count;
}

/* Was it claimed as often as the queue allows? */
bool
meta_is_exhausted(const Queue *queue, MessageTable *table, HeapTuple tuple)
{
	return queue->max_claim_count >= 0 &&
		MESSAGE_FORM(tuple)->claim_count >= queue->max_claim_count &&
		meta_tries(table, tuple) >= queue->max_claim_count;
}
