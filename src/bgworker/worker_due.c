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
 *	  3.  A probe for something to claim, unless the queue's availability map
 *	  knows already.  It sets the flag by which queue_ready() and the runners
 *	  find the queue.
 *
 *	  4.  Messages whose lifetime is over: they are removed (worker_expiry.c).
 *
 *	  The availability map records what a step did only after the step has
 *	  committed.
 *
 *	  The worker finds the queues that it has to visit in the array of
 *	  availability maps.  A queue without a map is unknown there: the extension
 *	  was just created or restored, or the map was evicted.  When the worker
 *	  starts, and when something is due in a queue whose map was evicted, the
 *	  worker goes over all queues and gives each of them a map.
 *
 * src/bgworker/worker_due.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "bgworker/worker_internal.h"
#include "queue/claim_scan.h"
#include "queue/registry.h"
#include "shmem/availability.h"
#include "shmem/availability_visit.h"
#include "shmem/shmem_maps.h"
#include "storage/delayed.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/limits.h"
#include "util/settings.h"

#define QUEUES_AT_ONCE	1000	/* queues in which something is due */
#define SCAN_PAUSE		USECS_PER_SEC	/* least pause between scans of all
										 * queues */
#define SCAN_SHARE		10		/* the same, in times of what the last took */

/* What the next step of a visit does */
typedef enum DuePhase
{
	DUE_SWEEP,					/* ends claims that have run out */
	DUE_DELAYED,				/* moves delayed messages that are due */
	DUE_PROBE,					/* probes for something to claim */
	DUE_EXPIRED					/* removes messages whose lifetime is over */
} DuePhase;

/* A visit to a queue */
typedef struct DueVisit
{
	DuePhase	phase;
	AvailabilityVisit known;	/* what the map knew when the visit began */
	TimestampTz began;
	bool		disturbed;		/* concurrent claims kept it from finishing */
	bool		exists;			/* the queue does */
	bool		paused;			/* the queue is */
	bool		probed;			/* by the last step */
	bool		found;			/* the probe found something to claim */
	ExpiryPass	expiry;
} DueVisit;

/* A scan of all queues */
typedef struct QueueScan
{
	int			n;
	int			next;			/* index of the next queue */
	int32	   *ids;
	int			ndue;
	int32		due[QUEUES_AT_ONCE];	/* found by the last step */
} QueueScan;

static MemoryContext scan_context;	/* of the array of a scan of all queues */
static int64 scan_not_before = 0;	/* by the monotonic clock */

static bool open_queue(DueVisit *visit, Queue *queue);
static bool visit_step(void *arg);
static void record_step(DueVisit *visit, bool last);
static void visit_queue(int32 queue_id);
static bool list_step(void *arg);
static bool scan_step(void *arg);
static bool visit_due(const QueueScan *scan);
static void scan_all_queues(void);
static TimestampTz collect_due(int32 *due, int *ndue, TimestampTz now);
static TimestampTz visit_queues(const int32 *due, int ndue, TimestampTz next);

/* To be called once, by the worker. */
void
due_init(void)
{
	scan_context = AllocSetContextCreate(TopMemoryContext, "queues",
										 ALLOCSET_DEFAULT_SIZES);
}

/* Lock the queue and open it as its project would.  False: it is gone. */
static bool
open_queue(DueVisit *visit, Queue *queue)
{
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
	int32		queue_id = visit->known.queue_id;

	visit->exists = queue_name_of(queue_id, project, name, &visit->paused);
	if (!visit->exists)
		return false;
	task_lock_queue(queue_id);
	settings_set_label("queue.project", project, true);
	visit->exists = queue_open_local(name, QUEUE_CLAIM, queue) &&
		queue->id == queue_id;
	return visit->exists;
}

/* Do some of what is due in a queue. */
static bool
visit_step(void *arg)
{
	DueVisit   *visit = arg;
	Queue		queue;
	bool		more = false;
	bool		disturbed = false;

	if (visit->phase == DUE_SWEEP)
		(void) availability_begin_visit(visit->known.queue_id, &visit->known);
	if (!open_queue(visit, &queue))
		return false;
	switch (visit->phase)
	{
		case DUE_SWEEP:
			if (claim_scan_sweep(&queue, &disturbed))
				return true;
			visit->disturbed |= disturbed;
			visit->phase = DUE_DELAYED;
			pg_fallthrough;
		case DUE_DELAYED:
			if (delayed_move_due(queue.id, &more))
			{
				visit->phase = more ? DUE_DELAYED : DUE_PROBE;
				return true;
			}
			visit->phase = DUE_PROBE;
			pg_fallthrough;
		case DUE_PROBE:
			if (!visit->known.examined && !visit->paused)
			{
				visit->found = claim_scan_probe(&queue, true);
				visit->probed = true;
			}
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

/* Record in the availability map what a step did; the step has committed. */
static void
record_step(DueVisit *visit, bool last)
{
	if (!visit->exists)
	{
		availability_set_quiet(&visit->known, false);
		expiry_forget(visit->known.queue_id);
		return;
	}
	if (visit->probed)
		availability_end_visit(&visit->known, visit->found);
	visit->probed = false;
	if (!last)
		return;
	if (!visit->known.examined && visit->paused)
		availability_set_quiet(&visit->known, true);
	if (visit->phase == DUE_EXPIRED)
		availability_end_expiry(&visit->known, expiry_end(&visit->expiry));
}

/* Do all that is due in one queue, unless it is postponed. */
static void
visit_queue(int32 queue_id)
{
	DueVisit	visit = {0};
	TaskResult	result;

	if (task_postponed_for(POSTPONE_VISIT, queue_id) > 0)
		return;
	visit.known.queue_id = queue_id;
	visit.began = GetCurrentTimestamp();
	for (;;)
	{
		result = task_step_or_postpone(POSTPONE_VISIT, queue_id, visit_step, &visit);
		if (result == TASK_FAILED)
			return;
		record_step(&visit, result == TASK_DONE);
		if (result == TASK_DONE || task_must_end())
			break;
		worker_do_urgent(false);
	}
	if (visit.disturbed)
		task_postpone(POSTPONE_VISIT, queue_id);
}

/* --- All queues, for those that have no map --- */

/* List all queues, for scan_step(). */
static bool
list_step(void *arg)
{
	QueueScan  *scan = arg;
	QueueEntry *queues;
	int			first;

	queues = queue_all(NULL, &scan->n);
	scan->ids = MemoryContextAllocHuge(scan_context,
									   Max(scan->n, 1) * sizeof(int32));

	/* A scan that is always cut short begins with another queue each time. */
	first = scan->n == 0 ? 0 : (int) (clock_monotonic() % scan->n);
	for (int i = 0; i < scan->n; i++)
		scan->ids[i] = queues[(first + i) % scan->n].id;
	return true;
}

/*
 * Give some queues a map, and collect those that need a visit.  Where there is
 * no room for a map of each queue, collect one at a time, which is visited
 * before others take its place.
 */
static bool
scan_step(void *arg)
{
	QueueScan  *scan = arg;
	TimestampTz now = GetCurrentTimestamp();
	int			max = QUEUES_AT_ONCE;

	if (scan->n > setting_max_availability_maps)
		max = 1;
	scan->ndue = 0;
	while (scan->next < scan->n && scan->ndue < max)
	{
		int32		queue_id = scan->ids[scan->next++];

		CHECK_FOR_INTERRUPTS();
		if (availability_is_due(queue_id, now))
			scan->due[scan->ndue++] = queue_id;
	}
	return scan->next < scan->n;
}

/* Visit the queues that a step has collected.  False: the worker must end. */
static bool
visit_due(const QueueScan *scan)
{
	for (int i = 0; i < scan->ndue; i++)
	{
		if (task_must_end())
			return false;
		worker_do_urgent(false);
		visit_queue(scan->due[i]);
	}
	return !task_must_end();
}

/* Go over all queues, for those that have no map. */
static void
scan_all_queues(void)
{
	static QueueScan scan;
	int64		began = clock_monotonic();
	uint64		generation = pg_atomic_read_u64(&worker.state->maps_evicted);
	TaskResult	result;
	bool		finished = false;

	/* A map that is evicted from here on lowers it again. */
	pg_atomic_write_u64(&worker.state->full_visit_at, (uint64) DT_NOEND);
	pg_memory_barrier();

	scan.n = scan.next = 0;
	result = task_step_or_postpone(POSTPONE_SCAN, 0, list_step, &scan);
	while (result == TASK_MORE && !task_must_end())
	{
		result = task_step_or_postpone(POSTPONE_SCAN, 0, scan_step, &scan);
		finished = result != TASK_FAILED && visit_due(&scan) &&
			result == TASK_DONE;
	}

	MemoryContextReset(scan_context);
	scan_not_before = clock_monotonic();
	scan_not_before += Max(Max(SCAN_PAUSE,
							   SCAN_SHARE * (scan_not_before - began)),
						   task_postponed_for(POSTPONE_SCAN, 0));
	if (finished)
		pg_atomic_write_u64(&worker.state->maps_restored, generation);
	else
		database_map_evicted(worker.state, DT_NOBEGIN); /* begin again later */
}

/* --- Queues that have a map --- */

/*
 * Collect some queues in which something is due.  Returns when the next visit
 * is due in any other queue.
 */
static TimestampTz
collect_due(int32 *due, int *ndue, TimestampTz now)
{
	TimestampTz next = DT_NOEND;
	uint32		n = shmem_count_maps();

	*ndue = 0;
	for (uint32 i = 0; i < n; i++)
	{
		const AvailabilityMap *map = shmem_map_in_use(i);
		TimestampTz at = map_wake_at(map);

		if (!worker_owns_map(map))
			continue;
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

/*
 * Visit these queues.  A visit sets the time of the queue's next visit in
 * shared memory, unless it fails; so returns when the first of the failed ones
 * is due, or "next", whichever is earlier.
 */
static TimestampTz
visit_queues(const int32 *due, int ndue, TimestampTz next)
{
	for (int i = 0; i < ndue && !task_must_end(); i++)
	{
		int64		pause;

		visit_queue(due[i]);
		worker_do_urgent(false);
		pause = task_postponed_for(POSTPONE_VISIT, due[i]);
		if (pause > 0)
			next = Min(next, GetCurrentTimestamp() + pause);
	}
	return next;
}

/* Visit all queues in which something is due. */
void
due_queues(void)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next;
	TimestampTz scan_at;
	int32	   *due;
	int			ndue;

	if ((TimestampTz) pg_atomic_read_u64(&worker.state->next_due) > now)
		return;

	/* What becomes due from here on lowers it again. */
	pg_atomic_write_u64(&worker.state->next_due, (uint64) DT_NOEND);
	pg_memory_barrier();
	scan_at = (TimestampTz) pg_atomic_read_u64(&worker.state->full_visit_at);
	if (scan_at <= now && clock_monotonic() >= scan_not_before)
		scan_all_queues();
	now = GetCurrentTimestamp();
	due = MemoryContextAlloc(TopMemoryContext,
							 QUEUES_AT_ONCE * sizeof(int32));
	next = collect_due(due, &ndue, now);
	next = visit_queues(due, ndue, next);
	pfree(due);

	/* If the clock was set back, what was due then is not due yet. */
	if (GetCurrentTimestamp() < now)
		next = DT_NOBEGIN;
	scan_at = (TimestampTz) pg_atomic_read_u64(&worker.state->full_visit_at);
	if (scan_at != DT_NOEND)
		next = Min(next, Max(scan_at, GetCurrentTimestamp() +
							 scan_not_before - clock_monotonic()));
	database_wake(next, false);
}
