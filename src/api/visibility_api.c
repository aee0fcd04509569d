/*-------------------------------------------------------------------------
 *
 * visibility_api.c
 *	  The SQL functions that the extension queue_pgmq is made of.
 *
 * NOTES
 *	  They are declared in the script of that extension, in its schema, and are
 *	  not for users: the functions of pgmq call them.  They work only on queues
 *	  that pgmq.create has made queues of pgmq, as their owner or admin: the
 *	  metadata has _pgmq_base.  So the settings still bound all other claims of
 *	  the same role.
 *
 * src/api/visibility_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/api_arg.h"
#include "catalog/message_id.h"
#include "claim/visibility.h"
#include "map/availability.h"
#include "queue/group.h"
#include "queue/message_list.h"
#include "queue/message_result.h"
#include "queue/registry.h"
#include "stats/counters.h"
#include "storage/lane.h"
#include "storage/message.h"
#include "util/args.h"
#include "util/compat.h"

#define GRACE			60		/* seconds that a message lives after it can
								 * be read again, at least */
#define ARCHIVE_MORE	1024	/* bytes that the archive keeps of a message
								 * beside its headers */
#define TIMEOUT_MAX		(INT64CONST(2000000000) * USECS_PER_SEC)

PG_FUNCTION_INFO_V1(sql_visibility_read);
PG_FUNCTION_INFO_V1(sql_visibility_pop);
PG_FUNCTION_INFO_V1(sql_visibility_read_ids);
PG_FUNCTION_INFO_V1(sql_visibility_set);
PG_FUNCTION_INFO_V1(sql_visibility_delete);
PG_FUNCTION_INFO_V1(sql_visibility_list);
PG_FUNCTION_INFO_V1(sql_visibility_sent);
PG_FUNCTION_INFO_V1(sql_visibility_may);
PG_FUNCTION_INFO_V1(sql_visibility_msg_id);
PG_FUNCTION_INFO_V1(sql_visibility_notifies);
PG_FUNCTION_INFO_V1(sql_visibility_new_base);
PG_FUNCTION_INFO_V1(sql_visibility_try_group);

static TimestampTz arg_until(FunctionCallInfo fcinfo, int arg);
static void open_queue(const char *name, QueueAccess access, Queue *queue);

/* Get a time until which messages are to be hidden. */
static TimestampTz
arg_until(FunctionCallInfo fcinfo, int arg)
{
	TimestampTz until = DatumGetTimestampTz(arg_required(fcinfo, arg, "vt"));

	if (TIMESTAMP_NOT_FINITE(until) ||
		until > GetCurrentTimestamp() + TIMEOUT_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"vt\" is out of range"),
				 errhint("Give a time in the next 60 years, or seconds from now.")));
	return until;
}

/* Open a queue of pgmq, or raise an error. */
static void
open_queue(const char *name, QueueAccess access, Queue *queue)
{
	if (!queue_open(name, access, queue) || queue->pgmq_base == NOT_OF_PGMQ)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("there is no queue \"%s\" of pgmq", name),
				 errhint("Call pgmq.create.")));
}

/*
 * _read(queue_name text, vt timestamptz, qty int) returns setof message_record
 *
 * Claims up to qty (1 to 10000) free messages, as queue_claim does, until the
 * time vt.
 *
 * Errors: 22004 and 22023 arguments, 42501 no right to claim, 42704 no
 * queue of pgmq.
 * Source: pgmq, read.
 */
Datum
sql_visibility_read(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "queue_name", "pgmq.read()");
	ClaimTerms	terms = {.grace = GRACE};
	MessageResult result;
	Queue		queue;

	terms.until = arg_until(fcinfo, 1);
	terms.limit = arg_check_list_limit(arg_int(fcinfo, 2, "qty"));
	api_begin_messages(fcinfo, &result);
	open_queue(name, QUEUE_CLAIM, &queue);
	(void) claim_from_queue(&queue, &terms, &result);
	return (Datum) 0;
}

/*
 * _pop(queue_name text, qty int) returns setof message_record
 *
 * Deletes and returns up to qty (1 to 10000) free messages, as queue_pop does.
 *
 * Errors: as _read.
 * Source: pgmq, pop.
 */
Datum
sql_visibility_pop(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "queue_name", "pgmq.pop()");
	int			limit = arg_check_list_limit(arg_int(fcinfo, 1, "qty"));
	MessageResult result;
	Queue		queue;

	api_begin_messages(fcinfo, &result);
	open_queue(name, QUEUE_CLAIM, &queue);

	/* The history is there for the archive only. */
	queue.keep_finished = -1;
	claim_pop(&queue, limit, &result);
	return (Datum) 0;
}

/*
 * _read_ids(queue_name text, vt timestamptz, ids bigint[], skip boolean)
 * returns setof message_record
 *
 * Claims these messages, in the order of the array, until the time vt.  One
 * that is not free, or that another transaction has locked, is skipped; or if
 * skip is false, it is the last.
 *
 * Errors: as _read; 55000 also if the groups of the queue have bounds.
 * Source: pgmq, read with a condition and read_grouped.
 */
Datum
sql_visibility_read_ids(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "queue_name", "pgmq.read()");
	ClaimTerms	terms = {.grace = GRACE};
	MessageResult result;
	Queue		queue;
	Datum	   *ids;
	int			n;
	bool		skip;

	terms.until = arg_until(fcinfo, 1);
	n = arg_ids(fcinfo, 2, &ids);
	skip = DatumGetBool(arg_required(fcinfo, 3, "skip"));
	api_begin_messages(fcinfo, &result);
	open_queue(name, QUEUE_CLAIM, &queue);
	if (queue.group_concurrency >= 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the groups of queue \"%s\" have bounds", name),
				 errhint("Call pgmq.read without a condition, which keeps them, or remove _group_concurrency and _group_rate from its metadata.")));
	visibility_claim(&queue, ids, n, skip, &terms, &result);
	return (Datum) 0;
}

/*
 * _set_vt(queue_name text, ids bigint[], vt timestamptz)
 * returns setof message_record
 *
 * Hides these messages until the time vt, whether or not they were read; shows
 * them if that is not in the future.  All functions lock messages in one
 * order: the caller has sorted the ids.
 *
 * Errors: as _read.
 * Source: pgmq, set_vt; SQS, ChangeMessageVisibility.
 */
Datum
sql_visibility_set(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "queue_name", "pgmq.set_vt()");
	MessageResult result;
	TimestampTz until;
	Queue		queue;
	Datum	   *ids;
	int			n = arg_ids(fcinfo, 1, &ids);

	until = arg_until(fcinfo, 2);
	api_begin_messages(fcinfo, &result);
	open_queue(name, QUEUE_CLAIM, &queue);
	visibility_set(&queue, ids, n, until, &result);
	return (Datum) 0;
}

/*
 * _delete(queue_name text, ids bigint[], results jsonb[]) returns bigint[]
 *
 * Deletes these messages, whether or not they are claimed.  With results, the
 * history keeps each of them as completed, with its result.  All functions
 * lock messages in one order: the caller has sorted the ids.
 *
 * Result: the ids of those that there were, in the order of the array.
 * Errors: 22004 and 22023 arguments, 42501 no right to claim, 42704 no
 * queue of pgmq.
 * Source: pgmq, delete and archive.
 */
Datum
sql_visibility_delete(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "queue_name", "pgmq.delete()");
	Queue		queue;
	Datum	   *ids;
	Datum	   *results = NULL;
	bool	   *isnull = NULL;
	int			nresults = 0;
	int			n = arg_ids(fcinfo, 1, &ids);
	int			deleted = 0;

	if (!PG_ARGISNULL(2))
		deconstruct_array(PG_GETARG_ARRAYTYPE_P(2), JSONBOID, -1, false,
						  TYPALIGN_INT, &results, &isnull, &nresults);
	open_queue(name, QUEUE_CLAIM, &queue);
	for (int i = 0; i < n; i++)
		if (visibility_delete(&queue, DatumGetInt64(ids[i]), results != NULL,
							  i < nresults && !isnull[i] ?
							  arg_check_result(DatumGetJsonbP(results[i]),
											   ARCHIVE_MORE) : NULL))
			ids[deleted++] = ids[i];
	PG_RETURN_ARRAYTYPE_P(construct_array(ids, deleted, INT8OID, sizeof(int64),
										  FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/*
 * _list(queue_name text, ids bigint[], condition jsonb, qty int,
 *		 bodies boolean)
 * returns setof message_record
 *
 * The messages with these ids; or if that is NULL, those of the queue by id,
 * with a condition only those whose bodies contain it, and with qty only those
 * that are free, at most so many.  The bodies are NULL if bodies is false.
 *
 * Errors: 22004 and 22023 arguments, 42501 no right to claim, 42704 no
 * queue of pgmq.
 * Source: pgmq, its tables.
 */
Datum
sql_visibility_list(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "queue_name");
	MessageFilter filter = ALL_MESSAGES;
	MessageResult result;
	Queue		queue;

	if (!PG_ARGISNULL(2))
		filter.body = PG_GETARG_JSONB_P(2);
	if (!PG_ARGISNULL(3))
	{
		filter.states = STATE_FREE;
		filter.limit = arg_check_list_limit(PG_GETARG_INT32(3));
	}
	api_begin_messages(fcinfo, &result);
	result.no_bodies = !DatumGetBool(arg_required(fcinfo, 4, "bodies"));
	open_queue(name, QUEUE_READ, &queue);
	if (PG_ARGISNULL(1))
		(void) message_list(&queue, &filter, &result);
	else
	{
		Datum	   *ids;
		int			n = arg_elements("ids", PG_GETARG_ARRAYTYPE_P(1), &ids);

		visibility_list(&queue, ids, n, &result);
	}
	return api_check_left(fcinfo, name);
}

/*
 * _sent(queue_name text) returns bigint
 *
 * How many messages were pushed since the counting began; up to 2 s late.
 *
 * Errors: 42501 no right to claim, 42704 no queue of pgmq.
 * Source: pgmq, metrics.
 */
Datum
sql_visibility_sent(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "queue_name");
	CounterRow	counters;
	Queue		queue;

	open_queue(name, QUEUE_READ, &queue);
	counters_read(queue.id, &counters);
	PG_RETURN_INT64(counters.n[JOB_PUSHED]);
}

/*
 * _may(queue_name text, privilege text) returns boolean
 *
 * Returns whether the current role has that privilege on the queue: push,
 * claim or admin.
 *
 * Errors: 22004 and 22023 arguments.
 */
Datum
sql_visibility_may(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "queue_name");
	char	   *privilege;
	QueueAccess access;
	Queue		queue;

	privilege = TextDatumGetCString(arg_required(fcinfo, 1, "privilege"));
	access = strcmp(privilege, "push") == 0 ? QUEUE_PUSH :
		strcmp(privilege, "claim") == 0 ? QUEUE_CLAIM : QUEUE_ALTER;
	PG_RETURN_BOOL(queue_find_as(name, GetUserId(), access,
								 &queue) == QUEUE_OK);
}

/*
 * _msg_id(queue_name text, id bigint) returns bigint
 *
 * The id that pgmq shows of the message with this id.
 *
 * Errors: 22004 argument, 42704 no queue of pgmq.
 */
Datum
sql_visibility_msg_id(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "queue_name");
	int64		id = DatumGetInt64(arg_required(fcinfo, 1, "id"));
	Queue		queue;

	open_queue(name, QUEUE_DESCRIBE, &queue);
	PG_RETURN_INT64(message_id_for_pgmq(id, queue.pgmq_base));
}

/*
 * _notifies(queue_name text) returns boolean
 *
 * Returns whether listeners may have to be notified of changes of the queue.
 *
 * Errors: 42704 no queue of pgmq.
 */
Datum
sql_visibility_notifies(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "queue_name");
	Queue		queue;

	open_queue(name, QUEUE_DESCRIBE, &queue);
	PG_RETURN_BOOL(queue.pgmq_notifies);
}

/*
 * _new_base(queue_name text) returns bigint
 *
 * The value of _pgmq_base for a queue that was just created.
 *
 * Errors: 42704 unknown queue, 42501 no admin privilege.
 */
Datum
sql_visibility_new_base(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "queue_name", "pgmq.create()");
	Queue		queue;
	int			n = 1;

	queue_open_existing(name, QUEUE_ALTER, &queue);

	/* Its ids count from this one. */
	PG_RETURN_INT64(availability_take_numbers(queue.id, 1, n, &n));
}

/*
 * _try_group(queue_name text, grp text) returns boolean
 *
 * Locks a group of the queue, or the messages without one (an empty grp), to
 * the end of the transaction, for one that reads in the order of the group.
 * False: another transaction has locked it.
 *
 * Errors: 22004 and 22023 arguments, 42501 no right to claim, 42704 no
 * queue of pgmq, 54000 too many groups in a transaction.
 */
Datum
sql_visibility_try_group(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "queue_name", "pgmq.read_grouped()");
	text	   *group = DatumGetTextPP(arg_required(fcinfo, 1, "grp"));
	Queue		queue;
	bool		is_new;

	open_queue(name, QUEUE_CLAIM, &queue);
	PG_RETURN_BOOL(group_try_lock(queue.id,
								  lane_of_key(queue.id, VARDATA_ANY(group),
											  (int) VARSIZE_ANY_EXHDR(group)),
								  &is_new));
}
