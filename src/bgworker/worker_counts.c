/*-------------------------------------------------------------------------
 *
 * worker_counts.c
 *	  The worker's tasks for counters and depths.
 *
 * NOTES
 *	  The worker
 *
 *	  1. counts what prepared transactions have changed, when they are
 *	  committed (prepared_counts.c);
 *
 *	  2. counts the messages of all queues when it starts, and when changes of
 *	  depths were lost (recount.c);
 *
 *	  3. counts messages as ready whose claims have ended (claim_ends.c);
 *
 *	  4. moves the counts of events from shared memory to their table
 *	  (counters.c);
 *
 *	  5. logs that messages were lost, and that there is no room for all
 *	  queues.
 *
 *	  A recount cannot be cut into steps.  If there are many messages, another
 *	  process makes it (counter.c), and tasks 1 and 3 wait until that is gone.
 *	  All other steps are short.
 *
 * src/bgworker/worker_counts.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "bgworker/counter.h"
#include "bgworker/worker_internal.h"
#include "catalog/relations.h"
#include "map/lanes_table.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "shmem/depth_state.h"
#include "stats/claim_ends.h"
#include "stats/counters.h"
#include "stats/recount.h"
#include "storage/counts.h"
#include "storage/message_scan.h"
#include "storage/prepared.h"
#include "storage/prepared_counts.h"
#include "util/clock.h"
#include "util/settings.h"

#define COUNTERS_AT_ONCE	64	/* queues whose counters one step writes */
#define PREPARED_PAUSE	(USECS_PER_SEC / 2) /* between looks for committed
											 * prepared transactions */
#define RECOUNT_SHARE	20		/* least pause between recounts, in times of
								 * what the last one took, */
#define RECOUNT_PAUSE	(10 * USECS_PER_SEC)	/* and this at least */
#define COLLECT_PAUSE	(USECS_PER_SEC / 4) /* between looks for claims that
											 * have ended, or as long as the
											 * last one took */
#define LOST_PAUSE	(60 * USECS_PER_SEC)	/* between log lines about lost
											 * messages */
#define ROOM_PAUSE	(INT64CONST(3600) * USECS_PER_SEC)	/* between those about
														 * missing room */
#define WRITE_SHARE		20		/* least pause between moves of counts to the
								 * table, in times of what the last one took */
#define ENDS_SLICE		(USECS_PER_SEC / 20)	/* for which their ends are
												 * counted before what is due
												 * has its turn */

/* When to do that again, by the monotonic clock */
static int64 next_prepared = 0;
static int64 next_recount = 0;
static int64 next_collect = 0;
static int64 next_write = 0;

/* Messages that have expired unclaimed and were not logged yet */
static int64 lost = 0;
static int64 next_lost_log = 0; /* by the monotonic clock */

static int64 next_room_log = 0; /* by the monotonic clock */

/* When the process began that counts in our place, see counts_poll() */
static int64 counter_began;		/* by the monotonic clock */

static bool prepared_step(void *arg);
static bool recount_step(void *arg);
static void recount_ended(int64 began);
static bool collect_step(void *arg);
static bool ends_step(void *arg);
static bool count_ends_in(const int32 *queue_ids, int n, int64 until);
static bool counters_step(void *arg);
static void write_counters(void);
static void log_lost_messages(void);
static void log_no_room(void);

/* --- Prepared transactions --- */

static bool
prepared_step(void *arg)
{
	/* A recount that runs will count these, or leave them to us. */
	if (!worker.counter_runs)
	{
		PushActiveSnapshot(GetLatestSnapshot());
		prepared_counts_take(GetActiveSnapshot(), true);
		PopActiveSnapshot();
	}
	prepared_return(catalog_queue_oid());
	return false;
}

/*
 * Count what prepared transactions have counted that are committed now, and
 * return what those have changed that have ended.  There is no hint whether
 * there are any.  The worker does not sleep for longer than a second
 * (worker.c).
 */
void
counts_take_prepared(void)
{
	if (max_prepared_xacts == 0 || clock_monotonic() < next_prepared ||
		task_postponed_for(POSTPONE_PREPARED, 0) > 0)
		return;
	(void) task_step_or_postpone(POSTPONE_PREPARED, 0, prepared_step, NULL);
	next_prepared = clock_monotonic() + PREPARED_PAUSE;
}

/* --- Recounts --- */

/*
 * Count all messages or, if that takes long, have another process do so.
 * *arg is set to whether it is done.
 */
static bool
recount_step(void *arg)
{
	bool	   *is_done = arg;
	RecountResult result = recount_messages(false, true);

	*is_done = true;
	if (result == RECOUNT_LONG && counter_start())
		*is_done = false;

	/* No process could be started. */
	else if (result == RECOUNT_LONG)
		result = recount_messages(true, true);
	if (result == RECOUNT_LOCKED)
		message_scan_lock_error();
	return false;
}

/* A recount has ended that had begun at that time of the monotonic clock. */
static void
recount_ended(int64 began)
{
	next_recount = clock_monotonic();
	next_recount += Max(RECOUNT_PAUSE, RECOUNT_SHARE * (next_recount - began));
}

/*
 * Look whether another process counts all messages: one that this worker has
 * started, or one that was left by an earlier worker.
 */
void
counts_poll(void)
{
	bool		ran = worker.counter_runs;

	worker.counter_runs = counter_is_running();
	if (worker.counter_runs && !ran)
		counter_began = clock_monotonic();
	if (!ran || worker.counter_runs)
		return;
	recount_ended(counter_began);

	/*
	 * It has left in the maps when claims end.  Collect that now, because
	 * until then we do not know for how long we may sleep.
	 */
	next_collect = 0;
}

/*
 * Count all messages, if that is needed, and not too soon after the last
 * time.
 */
void
counts_recount(void)
{
	int64		began = clock_monotonic();
	bool		is_done;

	if (worker.counter_runs || !depth_is_lost() || began < next_recount ||
		task_postponed_for(POSTPONE_RECOUNT, 0) > 0 ||
		task_step_or_postpone(POSTPONE_RECOUNT, 0, recount_step,
							  &is_done) != TASK_DONE)
		return;
	if (is_done)
	{
		depth_end_recount();
		recount_ended(began);
	}
	else
	{
		worker.counter_runs = true;
		counter_began = began;
	}
}

/* --- Ends of claims --- */

static bool
collect_step(void *arg)
{
	claim_ends_collect();
	return false;
}

static bool
ends_step(void *arg)
{
	return claim_ends_step(*(int32 *) arg);
}

/*
 * Count the ends of claims in these queues, for a moment, as what is due there
 * must not wait.  Returns false if there is more to do.
 */
static bool
count_ends_in(const int32 *queue_ids, int n, int64 until)
{
	bool		in_time = true;

	for (int i = 0; i < n && in_time && !task_must_end(); i++)
	{
		int32		queue_id = queue_ids[i];

		if (task_postponed_for(POSTPONE_ENDS, queue_id) > 0)
			continue;
		while (task_step_or_postpone(POSTPONE_ENDS, queue_id, ends_step,
									 &queue_id) == TASK_MORE &&
			   in_time && !task_must_end())
		{
			worker_do_urgent(false);
			in_time = clock_monotonic() < until;
		}
	}
	claim_ends_find_next();
	return in_time;
}

/* Count the ends of all claims that have ended, a few times a second. */
void
counts_do_urgent(void)
{
	static bool is_active = false;
	int64		began = clock_monotonic();
	int64		pause = COLLECT_PAUSE;
	int32	   *due;
	int			n;

	/*
	 * count_ends_in() does what is urgent between its steps, and so calls
	 * this.
	 */
	if (is_active || began < next_collect || task_must_end() ||
		worker.counter_runs ||
		task_postponed_for(POSTPONE_COLLECT, 0) > 0)
		return;
	is_active = true;
	if (task_step_or_postpone(POSTPONE_COLLECT, 0, collect_step,
							  NULL) == TASK_DONE &&
		claim_ends_next() <= GetCurrentTimestamp())
	{
		due = claim_ends_due(GetCurrentTimestamp(), &n);
		if (!count_ends_in(due, n, began + ENDS_SLICE))
			pause = 0;
		pfree(due);
	}
	next_collect = clock_monotonic();
	next_collect += Max(pause, next_collect - began);
	is_active = false;
}

/* --- Counters --- */

/* Write the counters of some queues; *arg says where the next step begins. */
static bool
counters_step(void *arg)
{
	if (*(uint32 *) arg == 0)
		counters_flush_errors(&lost);
	return !counters_flush((uint32 *) arg, COUNTERS_AT_ONCE, &lost);
}

/* Write the counters of all queues, if it is time. */
static void
write_counters(void)
{
	int64		began = clock_monotonic();
	int64		pause = task_postponed_for(POSTPONE_COUNTERS, 0);
	uint32		from = 0;

	if (pause > 0)
	{
		database_wake(GetCurrentTimestamp() + pause, false);
		return;
	}
	if (began >= next_write && counters_are_pending())
	{
		while (task_step_or_postpone(POSTPONE_COUNTERS, 0, counters_step,
									 &from) == TASK_MORE &&
			   !task_must_end())
			worker_do_urgent(false);
		next_write = clock_monotonic();
		next_write += Max(COUNTS_PAUSE, WRITE_SHARE * (next_write - began));
	}
	if (counters_are_pending())
		database_wake(GetCurrentTimestamp() +
					  Max(next_write - clock_monotonic(), 0), false);
}

/*
 * No session notices that a message expires before it was completed, so we log
 * it: the first one at once, then the sum of a minute.
 */
static void
log_lost_messages(void)
{
	int64		now = clock_monotonic();

	if (lost == 0)
		return;
	if (now < next_lost_log)
	{
		database_wake(GetCurrentTimestamp() + (next_lost_log - now), false);
		return;
	}
	ereport(LOG,
			(errmsg_plural("%lld message expired unclaimed",
						   "%lld messages expired unclaimed",
						   (unsigned long) lost, (long long) lost),
			 errhint("See \"expired\" in queue_data.queue_status for their queues. Have more workers claim from these, or give their messages a longer ttl.")));
	lost = 0;
	next_lost_log = now + LOST_PAUSE;
}

/*
 * Where queues or groups find no room, calls become slower without an error,
 * and those that have it may be of another database.  So we log it, once an
 * hour.
 */
static void
log_no_room(void)
{
	int64		now = clock_monotonic();
	uint32		nlanes;
	uint32		npieces;
	uint32		max_pieces;

	if (now < next_room_log ||
		pg_atomic_exchange_u32(&worker.state->no_room, 0) == 0)
		return;
	lanes_count(&nlanes, &npieces, &max_pieces);
	ereport(LOG,
			(errmsg("there is no room in shared memory for all active queues, or groups, of this database"),
			 errdetail("The databases of this server together have %u active queues of \"queue.max_active_queues\" (%d), and %u active groups of \"queue.max_active_groups\" (%d). The queues of one owner get at most half of either.",
					   shmem_places_used(), setting_max_active_queues,
					   nlanes, setting_max_active_groups),
			 errhint("Raise these settings, and restart the server. Without room, claims read whole queues, and queue_ready and the background worker visit all of them.")));
	next_room_log = now + ROOM_PAUSE;
}

/* Do the rest, and have the worker wake up when there is more to do. */
void
counts_round(void)
{
	TimestampTz now;

	counts_take_prepared();
	write_counters();
	log_lost_messages();
	log_no_room();
	now = GetCurrentTimestamp();

	/* The worker does not sleep until that process has ended. */
	if (worker.counter_runs)
		return;
	database_wake(Max(claim_ends_next(),
					  now + Max(next_collect - clock_monotonic(), 0)), false);
	if (depth_is_lost())
		database_wake(now + Max(next_recount - clock_monotonic(),
								task_postponed_for(POSTPONE_RECOUNT, 0)),
					  false);
}

/*
 * The worker ends, so write the counters, which would be lost with the
 * memory.
 */
void
counts_finish(void)
{
	/* The first time inserts rows for queues that had none. */
	for (int i = 0; i < 2; i++)
	{
		uint32		from = 0;

		while (task_step(counters_step, &from) == TASK_MORE)
			;
	}
}
