/*-------------------------------------------------------------------------
 *
 * worker_due.c
 *	  The worker's tasks in queues where something is due.
 *
 * NOTES
 *	  A visit to a queue goes through these phases, in one or more steps:
 *
 *	  1.  Claims that have run out: their messages become free, or move to the
 *	  dead letter queue (claim_scan_sweep).
 *
 *	  2.  Delayed messages that are due: they move to the ring of segments in
 *	  which claims scan (delayed.c).
 *
 *	  Then the availability map knows whether something may be free.  If it
 *	  has begun anew, listeners are notified of that (availability_end_visit).
 *
 *	  3.  Messages whose lifetime is over: they are removed (worker_expiry.c).
 *
 *	  A role can keep a queue of its own busy for as long as it likes, with
 *	  messages that become due faster than the worker moves them.  So a visit
 *	  has a slice of time (VISIT_SLICE), and other queues have their turn in
 *	  between.
 *
 *	  The worker finds the queues that it has to visit in the array of
 *	  availability maps.  A queue without a map is unknown there: the extension
 *	  was just created or restored, or there was no room for a map.  When the
 *	  worker starts, and when something is due in a queue that had no map, the
 *	  worker goes over all queues and gives each of them a map that may have
 *	  messages.  So it does if that makes the list of queues that are ready
 *	  complete again (ready.c).  When there is no room for another map, it
 *	  borrows one for the time of the visit.
 *
 *	  After a restart that is a visit to each of perhaps 100,000 queues, and
 *	  what is due must not wait for it.  So this scan of all queues goes on
 *	  for SCAN_SLICE at a time, and what is due comes first.  Where something
 *	  is due is known of queues that were visited, and of others as far as
 *	  sessions have pushed or claimed there since, or a recount, which reads
 *	  all messages, has met a message that is due (map_first_due).  Therefore
 *	  the scan begins when the recount has ended.
 *
 * src/bgworker/worker_due.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "bgworker/worker_internal.h"
#include "claim/claim_scan.h"
#include "map/availability.h"
#include "map/availability_visit.h"
#include "map/shmem_maps.h"
#include "shmem/depth_state.h"
#include "storage/delayed.h"
#include "util/clock.h"
#include "util/compat.h"

#define QUEUES_AT_ONCE	1000	/* queues in which something is due */
#define SCAN_PAUSE		USECS_PER_SEC	/* least pause between scans of all
										 * queues */
#define SCAN_SHARE		10		/* least pause, in times of what the last scan
								 * took */
#define VISIT_SLICE		(USECS_PER_SEC / 50)	/* then other queues have
												 * their turn */
#define SCAN_SLICE		(USECS_PER_SEC / 10)	/* then what is due comes
												 * first */

/* What the next step of a visit does */
typedef enum DuePhase
{
	DUE_SWEEP,					/* ends claims that have run out */
	DUE_DELAYED,				/* moves delayed messages that are due */
	DUE_LISTENERS,				/* has listeners notified */
	DUE_EXPIRED					/* removes messages whose lifetime is over */
} DuePhase;

/* A visit to a queue */
typedef struct DueVisit
{
	DuePhase	phase;
	AvailabilityVisit known;	/* what the map knew when the visit began */
	TimestampTz began;
	int64		until;			/* end of the slice, by the monotonic clock */
	bool		disturbed;		/* concurrent claims kept it from finishing */
	bool		exists;			/* the queue does */
	ExpiryPass	expiry;
} DueVisit;

/* A scan of all queues, which takes many rounds of due_queues() */
typedef struct QueueScan
{
	int64		began;
	uint64		generation;		/* of maps_missing, when it began */
	int			n;
	int			next;			/* index of the next queue */
	int32	   *ids;			/* NULL if they are not listed */
	int			ndue;
	int			nvisited;		/* of these */
	bool		is_borrowed;	/* the map of the last of these is */
	int32		due[QUEUES_AT_ONCE];	/* found by the last step */
} QueueScan;

static QueueScan scan;
static int64 scan_not_before = 0;	/* by the monotonic clock */

static bool visit_step(void *arg);
static void visit_queue(int32 queue_id);
static bool list_queues_step(void *arg);
static bool scan_queues_step(void *arg);
static void end_queue_scan(bool finished);
static void continue_queue_scan(void);
static TimestampTz queue_scan_due(void);
static bool queue_scan_is_wanted(TimestampTz now);
static TimestampTz collect_due_queues(int32 *due, int *ndue, TimestampTz now);
static void visit_due_queues(void);

/* Do some of what is due in a queue. */
static bool
visit_step(void *arg)
{
	DueVisit   *visit = arg;
	Queue		queue;
	bool		paused;
	bool		more = false;

	/* What is changed after this, the map counts as later than the visit. */
	if (visit->phase == DUE_SWEEP)
		availability_begin_visit(visit->known.queue_id, &visit->known);
	visit->exists = task_open_queue(visit->known.queue_id, &paused, &queue);
	if (!visit->exists)
		return false;
	switch (visit->phase)
	{
		case DUE_SWEEP:
			if (claim_scan_sweep(&queue, &visit->disturbed))
			{
				/*
				 * The rest is left to the next visit, which is due at once,
				 * or soon if claims are at work there.
				 */
				if (visit->disturbed || clock_monotonic() >= visit->until)
					visit->phase = DUE_DELAYED;
				return true;
			}
			visit->phase = DUE_DELAYED;
			pg_fallthrough;
		case DUE_DELAYED:

			/*
			 * Here, too, the rest is left to the next visit when the time is
			 * over.
			 */
			if (delayed_move_due(queue.id, &more))
			{
				if (!more || clock_monotonic() >= visit->until)
					visit->phase = DUE_LISTENERS;
				return true;
			}
			visit->phase = DUE_LISTENERS;
			pg_fallthrough;
		case DUE_LISTENERS:
			/* Otherwise they were notified already. */
			if (!visit->known.examined)
				availability_end_visit(&visit->known, paused);

			/* No message of the queue has expired yet. */
			if (visit->known.expires_at > visit->began)
				return false;
			visit->phase = DUE_EXPIRED;
			expiry_begin(&visit->expiry, queue.id, visit->known.incarnation);

			/* Removing begins in the next transaction, to keep each short. */
			return true;
		case DUE_EXPIRED:
			return expiry_step(&queue, &visit->expiry);
	}
	return false;
}

/* Do all that is due in one queue, unless it is postponed. */
static void
visit_queue(int32 queue_id)
{
	DueVisit	visit = {0};
	TaskResult	result;

	if (task_postponed_for(POSTPONE_VISIT, queue_id) > 0)
		return;
	ereport(DEBUG2, (errmsg_internal("visits queue number %d", queue_id)));
	visit.known.queue_id = queue_id;
	visit.began = GetCurrentTimestamp();
	visit.until = clock_monotonic() + VISIT_SLICE;
	for (;;)
	{
		result = task_step_or_postpone(POSTPONE_VISIT, queue_id, visit_step,
									   &visit);
		if (result == TASK_FAILED)
			return;

		/* The step has committed, so the availability map may know. */
		if (!visit.exists)
		{
			availability_found_no_queue(&visit.known);
			expiry_forget(queue_id);
		}
		else if (result == TASK_DONE && visit.phase == DUE_EXPIRED)
			availability_end_expiry(&visit.known, expiry_end(&visit.expiry));
		if (result == TASK_DONE || task_must_end())
			break;
		worker_do_urgent(false);
	}

	/* Nothing has failed, but claims might disturb the next sweep as well. */
	if (visit.disturbed)
		task_postpone(POSTPONE_VISIT, queue_id, TASK_PAUSE_MIN);
}

/* --- All queues, for those that have no map --- */

/* List all queues, for scan_queues_step(). */
static bool
list_queues_step(void *arg)
{
	QueueEntry *queues = queue_all(NULL, NULL, &scan.n);
	int			first = (int) (clock_monotonic() % Max(scan.n, 1));

	/* A scan that is always cut short begins with another queue each time. */
	scan.ids = MemoryContextAllocHuge(TopMemoryContext,
									  Max(scan.n, 1) * sizeof(int32));
	for (int i = 0; i < scan.n; i++)
		scan.ids[i] = queues[(first + i) % scan.n].id;
	return false;
}

/*
 * Give some queues a map, and collect those that need a visit.  One whose map
 * is borrowed is visited before the next one.
 */
static bool
scan_queues_step(void *arg)
{
	TimestampTz now = GetCurrentTimestamp();

	scan.ndue = scan.nvisited = 0;
	scan.is_borrowed = false;
	for (int i = 0; i < QUEUES_AT_ONCE && scan.next < scan.n &&
		 !scan.is_borrowed; i++)
	{
		int32		queue_id = scan.ids[scan.next++];

		CHECK_FOR_INTERRUPTS();
		if (availability_is_due(queue_id, now, &scan.is_borrowed))
			scan.due[scan.ndue++] = queue_id;
	}
	return false;
}

static void
end_queue_scan(bool finished)
{
	worker.is_scanning = false;
	if (scan.ids != NULL)
		pfree(scan.ids);
	scan.ids = NULL;
	scan_not_before = clock_monotonic();
	scan_not_before += Max(Max(SCAN_PAUSE,
							   SCAN_SHARE * (scan_not_before - scan.began)),
						   task_postponed_for(POSTPONE_SCAN, 0));
	if (finished)
	{
		pg_atomic_write_u64(&worker.state->maps_restored, scan.generation);
		ereport(DEBUG1,
				(errmsg_internal("visited all of %d queues", scan.n)));
	}
	else
		database_map_missing(worker.state, DT_NOBEGIN); /* begin again later */

	/* First visits, which were left to the scan, are due now. */
	database_wake(DT_NOBEGIN, false);
}

/* Go on with the scan for a moment. */
static void
continue_queue_scan(void)
{
	int64		until = clock_monotonic() + SCAN_SLICE;

	while (worker.is_scanning && clock_monotonic() < until && !task_must_end())
	{
		if (scan.nvisited < scan.ndue)
		{
			int32		queue_id = scan.due[scan.nvisited++];

			visit_queue(queue_id);
			worker_do_urgent(false);

			/* Listeners were notified, so the next one can have the map. */
			if (scan.is_borrowed && scan.nvisited == scan.ndue)
				shmem_return_map(worker.extension, queue_id);
		}
		else if (scan.next == scan.n)
			end_queue_scan(true);
		else if (task_step_or_postpone(POSTPONE_SCAN, 0, scan_queues_step,
									   NULL) == TASK_FAILED)
			end_queue_scan(false);
	}
}

/*
 * Returns when the worker has to visit all queues: when something is due in
 * one without a map, or at once if the list of queues that are ready is not
 * complete, and can be.  While more queues have messages than there is room
 * for, the depths are not known, and the list cannot be complete.
 */
static TimestampTz
queue_scan_due(void)
{
	DatabaseState *state = worker.state;

	if (pg_atomic_read_u64(&state->maps_missing) !=
		pg_atomic_read_u64(&state->maps_restored) &&
		depth_known() != 0)
		return DT_NOBEGIN;
	return (TimestampTz) pg_atomic_read_u64(&state->full_visit_at);
}

/*
 * Returns whether it is time to begin a scan.  It is not while the worker
 * learns what is due.
 */
static bool
queue_scan_is_wanted(TimestampTz now)
{
	return !worker.is_scanning && !worker.is_counting &&
		queue_scan_due() <= now &&
		clock_monotonic() >= scan_not_before;
}

/* --- Queues that have a map --- */

/*
 * Collect some queues in which something is due.  Returns when the next visit
 * is due in any other queue.  The first visit to a queue in which nothing is
 * known to be due is left to the scan of all queues.
 */
static TimestampTz
collect_due_queues(int32 *due, int *ndue, TimestampTz now)
{
	TimestampTz next = DT_NOEND;
	uint32		n = shmem_count_maps();
	bool		leaves_first = worker.is_scanning || worker.is_counting ||
	queue_scan_is_wanted(now);

	*ndue = 0;
	for (uint32 i = 0; i < n; i++)
	{
		const AvailabilityMap *map = shmem_map_in_use(i);
		TimestampTz at = map_wake_at(map);

		if (!worker_owns_map(map))
			continue;
		if (leaves_first)
			at = Max(at, map_first_due(map));
		if (at <= now)
			at = Max(at, now + task_postponed_for(POSTPONE_VISIT,
												  map_queue_id(map)));
		if (at <= now && *ndue < QUEUES_AT_ONCE)
			due[(*ndue)++] = map_queue_id(map);
		else
			next = Min(next, at);
	}
	return next;
}

/* Visit the queues in which something is due. */
static void
visit_due_queues(void)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next;
	int32	   *due;
	int			ndue;

	if ((TimestampTz) pg_atomic_read_u64(&worker.state->next_due) > now)
		return;

	/* What becomes due from here on lowers it again. */
	pg_atomic_write_u64(&worker.state->next_due, (uint64) DT_NOEND);
	pg_memory_barrier();
	now = GetCurrentTimestamp();
	due = MemoryContextAlloc(TopMemoryContext,
							 QUEUES_AT_ONCE * sizeof(int32));
	next = collect_due_queues(due, &ndue, now);
	for (int i = 0; i < ndue && !task_must_end(); i++)
	{
		int64		pause;

		visit_queue(due[i]);
		worker_do_urgent(false);

		/* A visit that fails does not set the time of the next one. */
		pause = task_postponed_for(POSTPONE_VISIT, due[i]);
		if (pause > 0)
			next = Min(next, GetCurrentTimestamp() + pause);
	}
	pfree(due);

	/* If the clock was set back, what was due then is not due yet. */
	if (GetCurrentTimestamp() < now)
		next = DT_NOBEGIN;
	database_wake(next, false);
}

/* Visit all queues in which something is due; then some others, if need be. */
void
due_queues(void)
{
	TimestampTz scan_at;

	visit_due_queues();
	if (queue_scan_is_wanted(GetCurrentTimestamp()))
	{
		worker.is_scanning = true;
		scan = (QueueScan)
		{
			.began = clock_monotonic(),
				.generation = pg_atomic_read_u64(&worker.state->maps_missing)
		};

		/* A map that is missing from here on lowers it again. */
		pg_atomic_write_u64(&worker.state->full_visit_at, (uint64) DT_NOEND);
		pg_memory_barrier();
		if (task_step_or_postpone(POSTPONE_SCAN, 0, list_queues_step,
								  NULL) == TASK_FAILED)
			end_queue_scan(false);
	}
	continue_queue_scan();

	/*
	 * Wake up for the next scan; while one goes on, the worker does not
	 * sleep.
	 */
	scan_at = queue_scan_due();
	if (scan_at != DT_NOEND && !worker.is_scanning && !worker.is_counting)
		database_wake(Max(scan_at, GetCurrentTimestamp() +
						  scan_not_before - clock_monotonic()), false);
}
