/*-------------------------------------------------------------------------
 *
 * worker_counts.c
 *	  The worker's tasks for what transactions have counted.
 *
 * NOTES
 *	  The worker
 *
 *	  1. returns what prepared transactions have changed, when they have ended,
 *	  and what others have left to it (prepared.c);
 *
 *	  2. moves the counts of events from shared memory to their table
 *	  (counters.c);
 *
 *	  3. logs that messages were lost, and that there is no room for all
 *	  queues.
 *
 * src/bgworker/worker_counts.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "bgworker/worker_internal.h"
#include "map/lanes_table.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "stats/counters.h"
#include "storage/counts.h"
#include "storage/prepared.h"
#include "util/clock.h"
#include "util/settings.h"

#define COUNTERS_AT_ONCE	64	/* queues whose counters one step writes */
#define PREPARED_PAUSE	(USECS_PER_SEC / 2) /* between looks for prepared
											 * transactions that have ended */
#define LOST_PAUSE	(60 * USECS_PER_SEC)	/* between log lines about lost
											 * messages */
#define ROOM_PAUSE	(INT64CONST(3600) * USECS_PER_SEC)	/* between those about
														 * missing room */
#define WRITE_SHARE		20		/* least pause between moves of counts to the
								 * table, in times of what the last one took */

/* When to do that again, by the monotonic clock */
static int64 next_prepared = 0;
static int64 next_write = 0;

/* Messages that have expired unclaimed and were not logged yet */
static int64 lost = 0;
static int64 next_lost_log = 0; /* by the monotonic clock */

static bool counters_step(void *arg);
static void write_counters(void);
static void log_lost_messages(void);
static void log_no_room(void);

/* --- Prepared transactions --- */

/*
 * Return what prepared transactions have changed that have ended.  There is no
 * hint whether there are any.  The worker does not sleep for longer than a
 * second (worker.c).
 */
void
counts_take_prepared(void)
{
	if (prepared_is_idle() || clock_monotonic() < next_prepared ||
		task_postponed_for(POSTPONE_PREPARED, 0) > 0)
		return;
	(void) task_step_or_postpone(POSTPONE_PREPARED, 0, prepared_return, NULL);
	next_prepared = clock_monotonic() + PREPARED_PAUSE;
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
	static int64 next_log = 0;	/* by the monotonic clock */
	int64		now = clock_monotonic();
	uint32		nlanes;
	uint32		npieces;
	uint32		max_pieces;

	if (now < next_log || !database_take_flag(DATABASE_NO_ROOM))
		return;
	next_log = now + ROOM_PAUSE;
	lanes_count(&nlanes, &npieces, &max_pieces);
	ereport(LOG,
			(errmsg("there is no room in shared memory for all active queues, or groups, of this database"),
			 errdetail("The databases of this server together have %u active queues of \"queue.max_active_queues\" (%d), and %u active groups of \"queue.max_active_groups\" (%d). The queues of one owner get at most half of either.",
					   shmem_places_used(), setting_max_active_queues,
					   nlanes, setting_max_active_groups),
			 errhint("Raise these settings, and restart the server. Without room, claims read whole queues, and queue_ready and the background worker visit all of them.")));
}

/* Do the rest, and have the worker wake up when there is more to do. */
void
counts_round(void)
{
	counts_take_prepared();
	write_counters();
	log_lost_messages();
	log_no_room();
	recount_wake();
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
