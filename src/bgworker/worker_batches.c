/*-------------------------------------------------------------------------
 *
 * worker_batches.c
 *	  The worker's part in batches: noticing that one has finished.
 *
 * NOTES
 *	  shmem/batch_state.c says which batches are to be probed, and why the order
 *	  in which we read and write its state is safe.  A probe is urgent, since
 *	  messages may wait for the end of the batch.
 *
 *	  A probe that meets a transaction which is in progress is repeated when
 *	  that reports its end.  A prepared one reports nothing, and neither does a
 *	  role that has locked a queue: so the probe is also repeated after
 *	  RETRY_TIME.
 *
 *	  When the worker starts, and when a batch was lost for lack of room, all
 *	  batches are probed.
 *
 * src/bgworker/worker_batches.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "bgworker/worker_internal.h"
#include "commands/batch_end.h"
#include "shmem/batch_state.h"
#include "util/clock.h"

#define RETRY_TIME		USECS_PER_SEC
#define PROBE_SLICE		(USECS_PER_SEC / 100)	/* then other tasks have their
												 * turn */
#define OLD_TIME		(60 * USECS_PER_MINUTE) /* between looks for old ones */
#define LIST_AT_ONCE	100		/* batches */

/* A step of batch_end_step() */
typedef struct BatchStep
{
	int64		id;
	int64		member;			/* see there */
	BatchEnd	result;
} BatchStep;

/* A step that goes over all batches */
typedef struct BatchList
{
	int64		marker;
	int64		ids[LIST_AT_ONCE];
	int			n;
} BatchList;

/* A batch that is probed again */
typedef struct Undecided
{
	int64		id;
	TimestampTz at;
} Undecided;

/* By time, since each is added for the same time from then */
static Undecided *undecided = NULL;
static int	nundecided = 0;
static int	max_undecided = 0;

static uint64 probed_generation = 0;	/* see batch_state_generation() */
static bool all_probed = false; /* since the worker has started */
static TimestampTz old_due = DT_NOBEGIN;	/* DT_NOEND: there are no batches */

static bool probe_step(void *arg);
static bool list_step(void *arg);
static bool old_step(void *arg);
static void add_undecided(int64 id);
static void probe(int64 id, int64 witness);
static void probe_undecided(void);
static void probe_all(void);

static bool
probe_step(void *arg)
{
	BatchStep  *step = arg;

	step->result = batch_end_step(step->id, &step->member);
	return step->result == BATCH_FREES;
}

static bool
list_step(void *arg)
{
	BatchList  *list = arg;

	return batch_end_list_step(&list->marker, list->ids, &list->n,
							   LIST_AT_ONCE);
}

static bool
old_step(void *arg)
{
	return batch_end_old_step((int64 *) arg);
}

static void
add_undecided(int64 id)
{
	for (int i = 0; i < nundecided; i++)
		if (undecided[i].id == id)
			return;
	if (nundecided == max_undecided)
	{
		max_undecided = Max(2 * max_undecided, 16);
		undecided = undecided == NULL ?
			MemoryContextAlloc(TopMemoryContext,
							   max_undecided * sizeof(Undecided)) :
			repalloc_huge(undecided, max_undecided * sizeof(Undecided));
	}
	undecided[nundecided++] = (Undecided)
	{
		.id = id,.at = GetCurrentTimestamp() + RETRY_TIME
	};
}

/*
 * Probe a batch that was taken from shared memory, or added to it, and its last
 * witness.
 */
static void
probe(int64 id, int64 witness)
{
	BatchStep	step = {.id = id,.member = witness};
	TaskResult	result;

	old_due = Min(old_due, GetCurrentTimestamp() + OLD_TIME);
	while ((result = task_step(probe_step, &step)) == TASK_MORE &&
		   !task_must_end())
		;

	/* What was found is true only now that the step has committed. */
	if (result != TASK_DONE)
		add_undecided(id);
	else
		switch (step.result)
		{
			case BATCH_HAS_MEMBER:
				batch_state_set_witness(id, step.member);
				break;
			case BATCH_OPEN:
				batch_state_set_witness(id, BATCH_NOT_PROBED);
				break;
			case BATCH_UNDECIDED:
				add_undecided(id);
				break;
			case BATCH_MISSING:
			case BATCH_DONE:
				batch_state_forget(id);
				break;
			case BATCH_FREES:
				break;
		}
}

/* Repeat the probes whose time has come. */
static void
probe_undecided(void)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		until = clock_monotonic() + PROBE_SLICE;

	/*
	 * Only those that are there now: a probe that fails adds its batch again.
	 * A time that is too far away was set before the clock was set back.
	 */
	for (int n = nundecided; n > 0 && !task_must_end() &&
		 clock_monotonic() < until &&
		 (undecided[0].at <= now || undecided[0].at > now + RETRY_TIME); n--)
	{
		int64		id = undecided[0].id;

		memmove(&undecided[0], &undecided[1],
				--nundecided * sizeof(Undecided));
		probe(id, batch_state_add(id));
	}
}

/* Probe all batches, if need be. */
static void
probe_all(void)
{
	uint64		generation = batch_state_generation();
	BatchList	list = {0};
	TaskResult	result;

	if (all_probed && generation == probed_generation)
		return;
	do
	{
		result = task_step_or_postpone(POSTPONE_BATCHES, 0, list_step, &list);
		for (int i = 0; result != TASK_FAILED && i < list.n && !task_must_end();
			 i++)
		{
			probe(list.ids[i], batch_state_add(list.ids[i]));
			worker_do_urgent(false);
		}
	} while (result == TASK_MORE && !task_must_end());
	if (result == TASK_DONE)
	{
		all_probed = true;
		probed_generation = generation;
	}
}

/* Returns whether a batch is to be probed now. */
bool
batches_are_pending(void)
{
	return batch_state_is_pending() ||
		(probed_generation != batch_state_generation() &&
		 task_postponed_for(POSTPONE_BATCHES, 0) == 0);
}

/*
 * Probe the batches that may have finished.  If there are very many, some are
 * left for the next call, so that the worker does not do only that.
 */
void
batches_do_urgent(void)
{
	int64		until = clock_monotonic() + PROBE_SLICE;
	int64		id;
	int64		witness;

	while (!task_must_end() && clock_monotonic() < until &&
		   (id = batch_state_take(&witness)) != 0)
		probe(id, witness);
}

/* Do what is not urgent. */
void
batches_round(void)
{
	TimestampTz now = GetCurrentTimestamp();

	probe_undecided();
	if (task_postponed_for(POSTPONE_BATCHES, 0) == 0)
		probe_all();

	/* A time that is too far away was set before the clock was set back. */
	if (now >= old_due || (old_due > now + OLD_TIME && old_due != DT_NOEND))
	{
		int64		marker = 0;
		TaskResult	result;

		while ((result = task_step(old_step, &marker)) == TASK_MORE &&
			   !task_must_end())
			worker_do_urgent(false);
		old_due = result == TASK_DONE && marker == 0 ? DT_NOEND : now + OLD_TIME;
	}
}

/* Returns when there is something to do again. */
TimestampTz
batches_next_due(void)
{
	TimestampTz next = old_due;
	int64		postponed = task_postponed_for(POSTPONE_BATCHES, 0);

	if (nundecided > 0)
		next = Min(next, undecided[0].at);
	if (!all_probed || probed_generation != batch_state_generation())
		next = Min(next, GetCurrentTimestamp() + postponed);
	return next;
}
