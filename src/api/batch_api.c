/*-------------------------------------------------------------------------
 *
 * batch_api.c
 *	  SQL functions of batches.
 *
 * src/api/batch_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "api/api_arg.h"
#include "catalog/numbers.h"
#include "claim/cancel.h"
#include "push/push_batch.h"
#include "queue/shard.h"
#include "storage/batches.h"
#include "util/args.h"
#include "util/limits.h"
#include "util/settings.h"

PG_FUNCTION_INFO_V1(sql_batch_create);
PG_FUNCTION_INFO_V1(sql_batch_close);
PG_FUNCTION_INFO_V1(sql_batch_cancel);
PG_FUNCTION_INFO_V1(sql_batch_status);
PG_FUNCTION_INFO_V1(sql_batch_list);

/*
 * batch_create(name text = NULL, keep_open boolean = false, q text = NULL)
 * returns bigint
 *
 * Makes a batch of the current role.  It finishes when no member is left that
 * is not finished: with keep_open not before batch_close, or 14 days.  name:
 * up to 256 bytes, for people.  q: only in a sharded database, where the batch
 * belongs to the shard of that queue.
 *
 * Result: its id, higher than that of any batch that was created before.
 * Errors: 22004 and 22023 arguments.
 * Source: Sidekiq Pro, Batch.
 */
Datum
sql_batch_create(PG_FUNCTION_ARGS)
{
	Batch		batch = {0};
	bool		keep_open = DatumGetBool(arg_required(fcinfo, 1, "keep_open"));

	api_check_can_write("batch_create()");
	if (!PG_ARGISNULL(0))
	{
		batch.name = text_to_cstring(PG_GETARG_TEXT_PP(0));
		if (strlen(batch.name) > QUEUE_BATCH_NAME_LENGTH)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("parameter \"%s\" must be at most %d bytes long, not %d",
							"name", QUEUE_BATCH_NAME_LENGTH,
							(int) strlen(batch.name)),
					 errhint("Give a shorter name, or none.")));
	}
	batch.shard = NO_SHARD;
	if (!shard_map_exists())
		;						/* the batch is of all queues */
	else if (PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" is required in a sharded database",
						"q"),
				 errhint("Name a queue of the shard that the batch belongs to.")));
	else
	{
		const char *name = arg_queue_name(fcinfo, 2, "q");

		shard_check(name);
		batch.shard = shard_of(setting_project, name);
	}
	batch.id = numbers_next_batch_id();
	batch.owner = GetUserId();
	batch.created_at = GetCurrentTimestamp();
	batch.closed_at = keep_open ? DT_NOEND : batch.created_at;
	batch.finished_at = DT_NOEND;
	batches_write(&batch);
	batches_record_changed(batch.id);
	PG_RETURN_INT64(batch.id);
}

/*
 * batch_close(batch bigint) returns boolean
 *
 * Lets a batch that was made with keep_open finish.
 *
 * Result: false if it could finish before.
 * Errors: 42704 no such batch, 42501 not its owner, 22004 argument.
 * Source: Oban Pro, Batch.
 */
Datum
sql_batch_close(PG_FUNCTION_ARGS)
{
	int64		id = DatumGetInt64(arg_required(fcinfo, 0, "batch"));
	Batch		batch;

	api_check_can_write("batch_close()");
	do
	{
		CHECK_FOR_INTERRUPTS();
		batch_open(id, &batch);
		if (batch.closed_at != DT_NOEND)
			PG_RETURN_BOOL(false);

		/* It may be closed by another session; then we look again. */
	} while (!batches_lock(&batch, LockTupleNoKeyExclusive, LockWaitBlock));
	batch.closed_at = GetCurrentTimestamp();
	batches_write(&batch);
	batches_record_changed(id);
	PG_RETURN_BOOL(true);
}

/*
 * batch_cancel(batch bigint) returns bigint
 *
 * Cancels the members of the batch that are unfinished now, as message_cancel
 * does, whatever the role's privileges on their queues.  They have failed.
 *
 * Result: how many there were.
 * Errors: 42704 no such batch, 42501 not its owner, 22004 argument.
 * Source: Sidekiq Pro, Batch.
 */
Datum
sql_batch_cancel(PG_FUNCTION_ARGS)
{
	int64		id = DatumGetInt64(arg_required(fcinfo, 0, "batch"));
	Batch		batch;

	api_check_can_write("batch_cancel()");
	batch_open(id, &batch);
	PG_RETURN_INT64(cancel_batch(id));
}

/*
 * batch_status(batch bigint)
 * returns table (name text, members bigint, unfinished bigint,
 *				  completed bigint, failed bigint, waiting bigint,
 *				  created_at timestamptz, closed_at timestamptz,
 *				  finished_at timestamptz)
 *
 * The state of a batch in one row, exact as of the call: its members, how
 * many of them are unfinished, completed and failed, and how many messages
 * wait for it.  closed_at: since when it can finish.
 *
 * Errors: 42704 no such batch, 42501 not its owner, 22004 argument.
 * Source: Sidekiq Pro, Batch::Status.
 */
Datum
sql_batch_status(PG_FUNCTION_ARGS)
{
	int64		id = DatumGetInt64(arg_required(fcinfo, 0, "batch"));
	Batch		batch;
	Batch		later;
	int64		unfinished;
	int64		waiting;
	ApiRow		row = {0};

	InitMaterializedSRF(fcinfo, 0);
	batch_open(id, &batch);
	batches_count(&batch, &unfinished, &waiting);

	/* If it has finished since, its row has the counts. */
	batch_open(id, &later);
	if (later.finished_at != DT_NOEND)
	{
		batch = later;
		unfinished = 0;
	}
	api_row_add_text(&row, batch.name);
	api_row_add(&row, Int64GetDatum(batch.members));
	api_row_add(&row, Int64GetDatum(unfinished));
	api_row_add(&row, Int64GetDatum(batch.completed));
	api_row_add(&row, Int64GetDatum(batch.failed));
	api_row_add(&row, Int64GetDatum(waiting));
	api_row_add(&row, TimestampTzGetDatum(batch.created_at));
	api_row_add_time(&row, batch.closed_at);
	api_row_add_time(&row, batch.finished_at);
	api_row_put(&row, fcinfo);
	return (Datum) 0;
}

/*
 * batch_list(marker bigint = NULL, "limit" int = 10)
 * returns table (batch bigint, name text, created_at timestamptz,
 *				  closed_at timestamptz, finished_at timestamptz)
 *
 * The batches of the current role, and of roles that it is a member of, by id,
 * after the marker, at most limit (1 to 10000).
 *
 * Errors: 22004 and 22023 arguments.
 * Source: Sidekiq Pro, BatchSet.
 */
Datum
sql_batch_list(PG_FUNCTION_ARGS)
{
	int64		marker = PG_ARGISNULL(0) ? 0 : PG_GETARG_INT64(0);
	int			limit = arg_check_list_limit(arg_int(fcinfo, 1, "limit"));
	Batch		batch;

	InitMaterializedSRF(fcinfo, 0);
	while (limit > 0 && batches_next(marker, &batch))
	{
		ApiRow		row = {0};

		CHECK_FOR_INTERRUPTS();
		marker = batch.id;
		if (!has_privs_of_role(GetUserId(), batch.owner))
			continue;
		api_row_add(&row, Int64GetDatum(batch.id));
		api_row_add_text(&row, batch.name);
		api_row_add(&row, TimestampTzGetDatum(batch.created_at));
		api_row_add_time(&row, batch.closed_at);
		api_row_add_time(&row, batch.finished_at);
		api_row_put(&row, fcinfo);
		limit--;
	}
	return (Datum) 0;
}
