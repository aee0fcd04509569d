/*-------------------------------------------------------------------------
 *
 * wakeup.c
 *	  The SQL functions for those who wait for messages: which channel to
 *	  listen on, waiting, and which queues are ready.
 *
 * NOTES
 *	  queue_wait looks, and sleeps until somebody tells it that something came
 *	  free: on a condition variable in the queue's availability map, so that as many are
 *	  woken as there are messages.  It begins to listen before it looks, so
 *	  that nothing comes in between unheard.
 *
 *	  While it sleeps it holds no snapshot, no transaction id and no lock that
 *	  others meet.  So it has to end the transaction it was called in, which
 *	  only a procedure can that was called outside of a transaction block.
 *	  Elsewhere it raises an error, unless it need not wait.
 *
 *	  A session that is woken may end before it claims.  So waiting sessions
 *	  look every few seconds without being woken.
 *
 *	  Without shared memory there is nobody to tell it, and nothing to sleep
 *	  on: then it looks ten times a second.  The same for a queue that does
 *	  not exist yet.
 *
 * src/bgworker/wakeup.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/tuplestore.h"

#include "bgworker/wakeup.h"
#include "catalog/relations.h"
#include "queue/claim_scan.h"
#include "queue/ready.h"
#include "queue/registry.h"
#include "shmem/availability.h"
#include "shmem/database_state.h"
#include "util/args.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/digest.h"
#include "util/limits.h"
#include "util/settings.h"

#define POLL_MS			100		/* where nobody tells */
#define GRACE_MS		50		/* for the worker to see to what is due */
#define LOOK_MS			5000	/* without being told */

PG_FUNCTION_INFO_V1(sql_queue_channel);
PG_FUNCTION_INFO_V1(sql_queue_wait);
PG_FUNCTION_INFO_V1(sql_queue_ready);

static bool is_ready(const char *name, int32 *id);
static void check_may_wait(FunctionCallInfo fcinfo);
static long ms_until(int64 then, int64 now, long max);
static bool wait_once(const char *name, int32 id, int64 deadline);
static void put_if_ready(ReturnSetInfo *rsinfo, int32 id);

/*
 * queue_channel(q text) returns text
 *
 * The channel to LISTEN on: a notification follows whenever queue q, of the
 * session's project, gets something to claim.  The payload is the queue's
 * name.  The queue need not exist yet.
 *
 * Result: a name of 38 bytes, always the same for project and queue.
 * Errors: 22004 and 22023 name.
 */
Datum
sql_queue_channel(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	char		channel[CHANNEL_LENGTH + 1];

	wakeup_channel_name(setting_project, name, channel);
	PG_RETURN_TEXT_P(cstring_to_text(channel));
}

/* Names of projects and queues may be longer than a channel's. */
void
wakeup_channel_name(const char *project, const char *name, char *channel)
{
	char	   *key = psprintf("%s\n%s", project, name);
	pg_uuid_t	digest;

	digest_text(key, &digest);
	strcpy(channel, "queue_");
	for (int i = 0; i < UUID_LEN; i++)
		sprintf(channel + 6 + 2 * i, "%02x", digest.data[i]);
	pfree(key);
}

/* Is something to be claimed?  *id: the queue's, 0 when it is unknown. */
static bool
is_ready(const char *name, int32 *id)
{
	char		found_project[QUEUE_PROJECT_LENGTH + 1];
	char		found_name[QUEUE_NAME_LENGTH + 1];
	Queue		queue;

	/* Rights, or the queue, may have changed while we slept. */
	AcceptInvalidationMessages();
	*id = 0;
	if (!queue_open(name, QUEUE_READ, &queue))
		return false;
	*id = queue.id;

	/* We are woken when it is resumed, before its row is invalid. */
	if (queue.paused &&
		(!queue_name_of(queue.id, found_project, found_name, &queue.paused) ||
		 queue.paused))
		return false;
	return claim_scan_probe(&queue, false);
}

/* Can the procedure end the transaction that it was called in? */
static void
check_may_wait(FunctionCallInfo fcinfo)
{
	if (fcinfo->context != NULL && IsA(fcinfo->context, CallContext) &&
		!castNode(CallContext, fcinfo->context)->atomic &&
		!IsSubTransaction() && !(MyXactFlags & XACT_FLAGS_PIPELINING))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
			 errmsg("queue_wait() cannot wait here"),
			 errdetail("It ends the transaction to wait, so it cannot be called inside a transaction block, a pipeline, a function, or a procedure with SECURITY DEFINER or SET."),
			 errhint("Call it by itself, with autocommit, or with a timeout of 0 to check once.")));
}

/* Milliseconds until then by the same clock, at least 1, at most max. */
static long
ms_until(int64 then, int64 now, long max)
{
	if (then <= now)
		return 1;
	return (long) Min((then - now) / 1000 + 1, max);
}

/*
 * Sleep until something may have come, or the deadline of the monotonic clock,
 * or something is due; looks once more before.  The transaction holds nothing
 * when this begins.  True: something is there.
 */
static bool
wait_once(const char *name, int32 id, int64 deadline)
{
	TimestampTz now = GetCurrentTimestamp();
	long		timeout = ms_until(deadline, clock_monotonic(), POLL_MS);
	AvailabilityMap	   *map;
	TimestampTz wake_at;

	map = claim_scan_uses_map() && id != 0 ? availability_wait_begin(id) : NULL;
	if (map == NULL)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout, compat_wait_event("QueueWait"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		return false;
	}

	ConditionVariablePrepareToSleep(&map->arrival);
	if (is_ready(name, &id))
	{
		availability_wait_end(false);
		return true;
	}

	/* To look takes no transaction id: nothing is held. */
	Assert(!TransactionIdIsValid(GetTopTransactionIdIfAny()));
	wake_at = map_wake_at(map);
	timeout = ms_until(deadline, clock_monotonic(), LOOK_MS);
	if (wake_at < DT_NOEND - GRACE_MS * 1000)
		timeout = Min(timeout, ms_until(Max(wake_at, now) + GRACE_MS * 1000,
										now, LOOK_MS));
	ConditionVariableTimedSleep(&map->arrival, timeout,
								compat_wait_event("QueueWait"));
	availability_wait_end(false);
	CHECK_FOR_INTERRUPTS();
	return false;
}

/*
 * CALL queue_wait(q text, timeout_ms int, INOUT ready boolean = NULL)
 *
 * Waits until queue q has something to claim, at most timeout_ms
 * milliseconds; 0 looks once.
 *
 * Result: ready: whether it has.  Another session may be quicker to claim it.
 * Errors: 22004 and 22023 arguments, 42501 no right to claim, 25006 read-only,
 * 25001 unless timeout_ms is 0: called where it cannot wait, in a transaction
 * block, a pipeline, a function, or a procedure with SECURITY DEFINER or SET.
 * Source: Amazon SQS, long polling.
 */
Datum
sql_queue_wait(PG_FUNCTION_ARGS)
{
	char		name[QUEUE_NAME_LENGTH + 1];
	int			timeout;
	int64		deadline;
	TupleDesc	desc;
	Datum		value;
	bool		isnull = false;
	bool		ready;
	int32		id;

	queue_prevent("queue_wait()");
	strlcpy(name, queue_name_arg(fcinfo, 0, "q"), sizeof(name));
	if (PG_ARGISNULL(1))
		arg_missing("timeout_ms");
	timeout = arg_check_bounds("timeout_ms", PG_GETARG_INT32(1), 0, NULL,
								 INT_MAX, NULL, " milliseconds");
	deadline = clock_monotonic() + (int64) timeout * 1000;
	if (timeout > 0)
		check_may_wait(fcinfo);

	ready = is_ready(name, &id);
	if (!ready && timeout > 0)
	{
		if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
			elog(ERROR, "SPI_connect_ext failed");
		do
		{
			SPI_commit();
			ready = wait_once(name, id, deadline) || is_ready(name, &id);
		} while (!ready && clock_monotonic() < deadline);
		SPI_finish();
	}

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	value = BoolGetDatum(ready);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  &value, &isnull)));
}

/* Return the queue if it is of this project, ours to claim from, and ready. */
static void
put_if_ready(ReturnSetInfo *rsinfo, int32 id)
{
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		paused;
	bool		may;
	Queue		queue;
	Datum		value;
	bool		isnull = false;

	CHECK_FOR_INTERRUPTS();
	if (!queue_name_of(id, project, name, &paused) || paused ||
		strcmp(project, setting_project) != 0 ||
		!queue_peek(name, GetUserId(), QUEUE_READ, &queue, &may) || !may ||
		queue.id != id || !claim_scan_probe(&queue, false))
		return;
	value = CStringGetTextDatum(name);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &value, &isnull);
}

/*
 * queue_ready() returns setof text
 *
 * The names of the queues of the session's project that have something to
 * claim, as far as the session may claim from them.
 *
 * Takes time for these only where the library is preloaded and the database's
 * worker runs; else for all queues.
 * Source: MediaWiki, JobQueueAggregator.
 */
Datum
sql_queue_ready(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	uint64		generation;
	int32	   *ids = NULL;
	int			n = 0;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	if (ready_is_complete(&generation))
	{
		ids = ready_queue_ids(&n);
		if (!ready_was_complete(generation))
			ids = NULL;
	}
	if (ids == NULL)
	{
		QueueEntry *queues = queue_all(setting_project, &n);

		ids = palloc(Max(n, 1) * sizeof(int32));
		for (int i = 0; i < n; i++)
			ids[i] = queues[i].id;
	}
	for (int i = 0; i < n; i++)
		put_if_ready(rsinfo, ids[i]);
	return (Datum) 0;
}
