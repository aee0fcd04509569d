/*-------------------------------------------------------------------------
 *
 * shard_api.c
 *	  The SQL functions for several servers: queue_shard, queue_shard_init,
 *	  those for queue_shard_move, and the trigger of the map of shards.
 *
 * src/api/shard_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "api/api_arg.h"
#include "catalog/message_id.h"
#include "catalog/row_check.h"
#include "catalog/tables.h"
#include "queue/queue_lock.h"
#include "queue/registry.h"
#include "queue/shard.h"
#include "shmem/database_state.h"
#include "stats/counters.h"
#include "storage/pending.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/settings.h"

PG_FUNCTION_INFO_V1(sql_queue_shard);
PG_FUNCTION_INFO_V1(sql_queue_shard_init);
PG_FUNCTION_INFO_V1(sql_queue_shard_lock);
PG_FUNCTION_INFO_V1(sql_queue_count_copied);
PG_FUNCTION_INFO_V1(sql_queue_counts);
PG_FUNCTION_INFO_V1(sql_queue_shard_written);

static int	get_bounded_int(FunctionCallInfo fcinfo, int arg,
							const char *name, int min, int max);

/*
 * queue_shard(q text, project text = NULL) returns int
 *
 * The shard of queue q of a project (NULL: the session's), the same for all
 * time: the first byte of the SHA-256 of the name without all trailing
 * ".dead", one space, and the project, in UTF-8.  The queue need not exist,
 * nor the database be sharded.
 *
 * Result: 0 to 255.
 * Errors: 22004 and 22023 name.
 */
Datum
sql_queue_shard(PG_FUNCTION_ARGS)
{
	const char *name = arg_queue_name(fcinfo, 0, "q");
	const char *project = PG_ARGISNULL(1) ? setting_project :
	text_to_cstring(PG_GETARG_TEXT_PP(1));

	PG_RETURN_INT32(shard_of(project, name));
}

static int
get_bounded_int(FunctionCallInfo fcinfo, int arg, const char *name, int min,
				int max)
{
	return arg_check_bounds(name, arg_int(fcinfo, arg, name), min, NULL, max,
							NULL, "");
}

/*
 * queue_shard_init(server int, servers int) returns void
 *
 * Makes this database, which has no queues, one of several servers that each
 * have some of the 256 shards: shard s is here if s % servers = server %
 * servers.  A server that is added later has a number greater than servers,
 * and no shard until one is moved to it.  Each server has a number of its
 * own, which is never used again; with it, ids of queues and messages are
 * unique across all servers.
 *
 * Errors: 55000 the database is sharded already, or has queues, 22004 and
 * 22023 an argument is not within 0 or 1 and 256, 42501 not the owner of the
 * extension, 25006 read-only transaction.
 */
Datum
sql_queue_shard_init(PG_FUNCTION_ARGS)
{
	int			server = get_bounded_int(fcinfo, 0, "server", 0, SERVERS_MAX);
	int			servers = get_bounded_int(fcinfo, 1, "servers", 1, SHARDS);

	api_check_can_write("queue_shard_init()");
	shard_init(server, servers);
	PG_RETURN_VOID();
}

/*
 * queue_data.shard_lock(shard int) returns void
 *
 * Locks a shard until the transaction ends, so that no queue is created in it:
 * for queue_shard_move.  Waits for transactions that have created one; honors
 * lock_timeout.
 *
 * Errors: 22004 and 22023 shard is not within 0 and 255, 42501 not the owner
 * of the extension, 25006 read-only transaction.
 */
Datum
sql_queue_shard_lock(PG_FUNCTION_ARGS)
{
	int			shard = get_bounded_int(fcinfo, 0, "shard", 0, SHARDS - 1);

	api_check_can_write("shard_lock()");
	(void) queue_lock_part(shard, LOCK_SHARD, ExclusiveLock, true);
	PG_RETURN_VOID();
}

/*
 * queue_data.counts(queue_id int) returns bigint[]
 *
 * What was counted of a queue, in the order of the columns of
 * queue_data.job_counter: for queue_shard_move, as these counts may still be
 * in shared memory.
 *
 * Errors: 22004 no queue_id, 42501 not the owner of the extension.
 */
Datum
sql_queue_counts(PG_FUNCTION_ARGS)
{
	CounterRow	values;
	Datum		counts[JOB_COUNTERS];

	counters_read(arg_int(fcinfo, 0, "queue_id"), &values);
	for (int i = 0; i < JOB_COUNTERS; i++)
		counts[i] = Int64GetDatum(values.n[i]);
	PG_RETURN_ARRAYTYPE_P(construct_array(counts, JOB_COUNTERS, INT8OID,
										  sizeof(int64), FLOAT8PASSBYVAL,
										  TYPALIGN_DOUBLE));
}

/*
 * queue_data.count_copied(queue_id int) returns void
 *
 * Counts the messages of a queue, which COPY has written in this transaction:
 * for queue_shard_move.  If the transaction is prepared, queue_status has
 * them when it has been committed.
 *
 * Errors: 22004 queue_id is NULL, 42501 not the owner of the extension, 25006
 * read-only transaction.
 */
Datum
sql_queue_count_copied(PG_FUNCTION_ARGS)
{
	int32		queue_id = arg_int(fcinfo, 0, "queue_id");

	api_check_can_write("count_copied()");
	shard_count_copied(queue_id);
	PG_RETURN_VOID();
}

/*
 * queue_data.shard_written() returns trigger
 *
 * The trigger on queue_data.shard and queue_data.server: SQL has written the
 * map.  When that commits, sessions read it again.  Those that wait for a
 * queue whose shard has come or gone are woken, and listeners notified; what
 * is known of its messages is forgotten.  For each row: the state of a shard
 * has changed.
 *
 * Errors: 39P01 called, but not as a trigger.
 */
Datum
sql_queue_shard_written(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = api_check_trigger(fcinfo,
											 "queue_data.shard_written");

	if (TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
	{
		shard_change(DatumGetInt16(row_getattr(trigger->tg_relation,
											   trigger->tg_newtuple,
											   Anum_shard_shard)));
		PG_RETURN_POINTER(NULL);
	}
	queue_invalidate();

	/* The worker reads again the handlers of what is here now. */
	if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
		database_record_change(CHANGE_HANDLERS);
	else
		pending_record_restore(RelationGetRelid(trigger->tg_relation));
	PG_RETURN_POINTER(NULL);
}
