/*-------------------------------------------------------------------------
 *
 * queue_api.c
 *	  The SQL functions on queues themselves.
 *
 * src/api/queue_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "api/api_arg.h"
#include "commands/queue_cmds.h"
#include "queue/acl.h"
#include "queue/queue_table.h"
#include "queue/registry.h"
#include "util/args.h"
#include "util/compat.h"

PG_FUNCTION_INFO_V1(sql_queue_create);
PG_FUNCTION_INFO_V1(sql_queue_set_metadata);
PG_FUNCTION_INFO_V1(sql_queue_update);
PG_FUNCTION_INFO_V1(sql_queue_exists);
PG_FUNCTION_INFO_V1(sql_queue_drop);
PG_FUNCTION_INFO_V1(sql_queue_get);
PG_FUNCTION_INFO_V1(sql_queue_list);
PG_FUNCTION_INFO_V1(sql_queue_purge);
PG_FUNCTION_INFO_V1(sql_queue_pause);
PG_FUNCTION_INFO_V1(sql_queue_resume);
PG_FUNCTION_INFO_V1(sql_queue_grant);
PG_FUNCTION_INFO_V1(sql_queue_revoke);
PG_FUNCTION_INFO_V1(sql_queue_set_owner);

static QueuePrivilege get_privilege(FunctionCallInfo fcinfo, int arg);
static void put_queue(const QueueSummary *queue, Jsonb *metadata, void *arg);

static QueuePrivilege
get_privilege(FunctionCallInfo fcinfo, int arg)
{
	char	   *name = TextDatumGetCString(arg_required(fcinfo, arg,
														"privilege"));

	for (int i = 0; i < QUEUE_PRIVILEGES; i++)
		if (strcmp(name, queue_privileges[i].name) == 0)
			return i;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("parameter \"%s\" is not a privilege on queues: \"%s\"",
					"privilege", name),
			 errhint("The privileges are push, claim and admin.")));
}

/*
 * queue_create(q text, metadata jsonb = '{}') returns boolean
 *
 * Creates a queue, which the current user will own.  metadata: an object, at
 * most 65,536 bytes as text, with reserved keys (see options.c) and other keys
 * of the user's own.  The dead letter queue that the metadata requires is
 * created too.
 *
 * Result: true: created; false: it exists and is unchanged, with a NOTICE if
 * its metadata is different.
 * Errors: 22004 and 22023 name or metadata, 54000 metadata is too large, 42501
 * not a member of queue_producer or queue_admin, or the dead letter queue
 * belongs to another role or does not allow the push.
 * Source: Zaqar, create queue.
 */
Datum
sql_queue_create(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "queue_create()");
	Datum		metadata = arg_required(fcinfo, 1, "metadata");

	PG_RETURN_BOOL(queue_create(name, DatumGetJsonbP(metadata)));
}

/*
 * queue_set_metadata(q text, metadata jsonb) returns jsonb
 *
 * Replaces the metadata of a queue.
 *
 * Result: the metadata as it now is.
 * Errors: 42704 unknown queue, 22004 and 22023 metadata, 54000 metadata is too
 * large, 42501 no admin privilege on the queue, or the dead letter queue
 * belongs to another role or does not allow the push.
 * Source: Zaqar, set queue metadata.
 */
Datum
sql_queue_set_metadata(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "queue_set_metadata()");
	Jsonb	   *metadata = DatumGetJsonbP(arg_required(fcinfo, 1, "metadata"));

	queue_set_metadata(name, metadata);
	PG_RETURN_JSONB_P(metadata);
}

/*
 * queue_update(q text, patch jsonb) returns jsonb
 *
 * Merges the keys of patch into the metadata of a queue; a key whose value is
 * null is removed.
 *
 * Result and errors: as queue_set_metadata.
 * Source: Zaqar, update queue.
 */
Datum
sql_queue_update(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "queue_update()");
	Jsonb	   *patch = DatumGetJsonbP(arg_required(fcinfo, 1, "patch"));

	if (!JB_ROOT_IS_OBJECT(patch))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be a JSON object", "patch"),
				 errhint("Give an object such as {\"key\": \"value\"}.")));
	PG_RETURN_JSONB_P(queue_update_metadata(name, patch));
}

/*
 * queue_exists(q text) returns boolean
 *
 * Result: true if the session's project has such a queue.
 * Errors: 22004 and 22023 name.
 * Source: Zaqar, check queue existence.
 */
Datum
sql_queue_exists(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	Queue		queue;
	bool		exists = queue_open(name, QUEUE_DESCRIBE, &queue);

	queue_check_left(name, exists);
	PG_RETURN_BOOL(exists);
}

/* Return one row that describes a queue. */
static void
put_queue(const QueueSummary *queue, Jsonb *metadata, void *arg)
{
	ApiRow		row = {0};

	api_row_add(&row, CStringGetTextDatum(queue->name));
	api_row_add(&row, JsonbPGetDatum(metadata));
	api_row_add(&row, TimestampTzGetDatum(queue->created_at));
	api_row_add(&row, BoolGetDatum(queue->paused));
	api_row_put(&row, arg);
}

/*
 * queue_get(q text)
 * returns table (name text, metadata jsonb, created_at timestamptz,
 *				  paused boolean)
 *
 * Describes a queue.
 *
 * Result: one row; no row when the queue is unknown.
 * Errors: 22004 and 22023 name.
 * Source: Zaqar, get queue metadata.
 */
Datum
sql_queue_get(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	QueueSummary queue;
	Jsonb	   *metadata;

	InitMaterializedSRF(fcinfo, 0);
	if (queue_describe(name, &queue, &metadata))
		put_queue(&queue, metadata, fcinfo);
	return (Datum) 0;
}

/*
 * queue_list(marker text = NULL, "limit" int = 10, pattern text = NULL)
 * returns table: as queue_get
 *
 * Lists the queues of the session's project in the order of their names:
 * those after marker (NULL: from the first one on) whose names match the
 * regular expression pattern (NULL: all), at most limit (1 to 10000).
 *
 * Errors: 22004 and 22023 limit, 2201B pattern.
 * Source: Zaqar, list queues.
 */
Datum
sql_queue_list(PG_FUNCTION_ARGS)
{
	int			limit = arg_check_list_limit(arg_int(fcinfo, 1, "limit"));

	InitMaterializedSRF(fcinfo, 0);
	queue_list(PG_ARGISNULL(0) ? NULL : PG_GETARG_TEXT_PP(0), limit,
			   PG_ARGISNULL(2) ? NULL : PG_GETARG_TEXT_PP(2),
			   put_queue, fcinfo);
	return (Datum) 0;
}

/*
 * queue_purge(q text) returns bigint
 *
 * Removes all messages of a queue, claimed and delayed ones too.  Waits for
 * transactions that push to the queue or claim from it.
 *
 * Result: the number of messages that had not expired; 0 when the queue is
 * unknown.
 * Errors: 22004 and 22023 name, 42501 no admin privilege, 55P03 lock_timeout.
 * Source: Zaqar, purge queue.
 */
Datum
sql_queue_purge(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "queue_purge()");

	PG_RETURN_INT64(queue_purge(name));
}

/*
 * queue_drop(q text) returns boolean
 *
 * Drops a queue and its messages, but not its dead letter queue.  Waits for
 * transactions that push to the queue or claim from it.
 *
 * Result: true: dropped; false: it did not exist.
 * Errors: 22004 and 22023 name, 42501 no admin privilege, 2BP01 another queue
 * sends dead letters to it, 55P03 lock_timeout.
 * Source: Zaqar, delete queue.
 */
Datum
sql_queue_drop(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "queue_drop()");

	PG_RETURN_BOOL(queue_drop(name));
}

/*
 * queue_pause(q text) returns boolean
 *
 * Pauses a queue: it accepts pushes but allows no claims.  Live claims go on.
 *
 * Result: true: now paused; false: it was paused already.
 * Errors: 42704 unknown queue, 22004 and 22023 name, 42501 no admin privilege.
 */
Datum
sql_queue_pause(PG_FUNCTION_ARGS)
{
	api_check_can_write("queue_pause()");
	PG_RETURN_BOOL(queue_set_paused(arg_queue_name(fcinfo, 0, "q"), true));
}

/*
 * queue_resume(q text) returns boolean
 *
 * Ends the pause of a queue.
 *
 * Result: true: ended; false: it was not paused.
 * Errors: as queue_pause.
 */
Datum
sql_queue_resume(PG_FUNCTION_ARGS)
{
	api_check_can_write("queue_resume()");
	PG_RETURN_BOOL(queue_set_paused(arg_queue_name(fcinfo, 0, "q"), false));
}

/*
 * queue_grant(q text, role regrole, privilege text) returns void
 *
 * Grants a privilege on a queue to a role.  'push' and 'claim' are narrowed to
 * the roles that they were granted to by name: other roles lose them, even as
 * members of queue_producer or queue_consumer.  With 'admin' the role can do
 * all that the owner can.
 *
 * Errors: 42704 unknown queue or role, 22004 and 22023 arguments, 42501 no
 * admin privilege.
 */
Datum
sql_queue_grant(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "queue_grant()");
	Oid			role = DatumGetObjectId(arg_required(fcinfo, 1, "role"));

	queue_grant(name, role, get_privilege(fcinfo, 2));
	PG_RETURN_VOID();
}

/*
 * queue_revoke(q text, role regrole, privilege text) returns void
 *
 * Revokes a privilege that was granted to the role by name; a NOTICE says if
 * it was not.  When no role is left, the privilege stays narrowed: then only
 * the owner and the roles with admin have it.
 *
 * Errors: as queue_grant; 55000 the privilege was granted to no role by name,
 * so that there is nothing to revoke.
 */
Datum
sql_queue_revoke(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "queue_revoke()");
	Oid			role = DatumGetObjectId(arg_required(fcinfo, 1, "role"));

	queue_revoke(name, role, get_privilege(fcinfo, 2));
	PG_RETURN_VOID();
}

/*
 * queue_set_owner(q text, role regrole) returns void
 *
 * Changes the owner of a queue, and of the dead letter queues that were
 * created for it.  The current user must be a superuser, or be the owner or a
 * member of that role and be able to SET ROLE to the new owner.
 *
 * Errors: 42704 unknown queue or role, 22004 and 22023 arguments, 42501 not
 * permitted, 55000 the queue was created for the dead letters of another one,
 * with which its owner changes.
 */
Datum
sql_queue_set_owner(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_to_write(fcinfo, "q", "queue_set_owner()");

	queue_set_owner(name, DatumGetObjectId(arg_required(fcinfo, 1, "role")));
	PG_RETURN_VOID();
}
