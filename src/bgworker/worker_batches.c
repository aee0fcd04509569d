/*-------------------------------------------------------------------------
 *
 * worker_batches.c
 *	  The worker's part in batches: noticing that one has finished.
 *
 * NOTES
 *	  shmem/batch_state.c says which batches are to be probed, and why the
 *	  order in which we read and write its state is safe.  A probe is urgent,
 *	  since messages may wait for the end of the batch.
 *
 *	  A probe that meets a transaction which is in progress is repeated when
 *	  that reports its end.  A prepared one reports nothing, and neither does
 *	  a role that has locked a queue: so these probes are also repeated after
 *	  a pause, which doubles while that does not help.
 *
 *	  A pass goes over all batches that have not finished, or for which
 *	  messages wait: when the worker starts, when one was lost for lack of
 *	  room, and every hour, for what has become old.
 *
 * src/bgworker/worker_batches.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "bgworker/worker_internal.h"
#include "commands/batch_end.h"
#include "shmem/batch_state.h"
#include "util/clock.h"

#define RETRY_MIN		USECS_PER_SEC
#define RETRY_MAX		USECS_PER_MINUTE
#define SLICE			(USECS_PER_SEC / 100)	/* then other tasks have their
												 * turn */
#define PASS_TIME		(60 * USECS_PER_MINUTE) /* between two passes */
#define NEVER			PG_INT64_MAX

/* The pass over all batches that goes on, or else the last one */
static struct
{
	bool		goes_on;
	int64		marker;			/* the last batch */
	uint64		generation;		/* batch_state_generation() at its begin */

	/* By the monotonic clock */
	int64		next;			/* when the next one begins, or NEVER */
	int64		began;
	int64		not_before;		/* at most half of our time is spent on passes */
}			pass;

static int64 retry_at = NEVER;	/* by the same clock: probes that could not
								 * find out */
static int64 retry_pause = RETRY_MIN;

static bool pass_step(void *arg);
static void end_step(BatchStep *step, bool failed);
static void retry(void);
static int64 pass_due(void);
static void continue_pass(void);

/* The step for the next batch of the pass */
static bool
pass_step(void *arg)
{
	BatchStep  *step = arg;

	step->id = batch_end_next(pass.marker);
	if (step->id == 0)
		return false;
	step->member = batch_state_add(step->id);
	return batch_end_step(step);
}

/* What a step has found is true only now that it has committed. */
static void
end_step(BatchStep *step, bool failed)
{
	BatchState	state = failed ? BATCH_UNKNOWN : step->state;

	if (state == BATCH_UNKNOWN)
		retry_at = Min(retry_at, clock_monotonic() + retry_pause);
	batch_state_set(step->id, state, step->member);

	/* It may become old. */
	pass.next = Min(pass.next, clock_monotonic() + PASS_TIME);
}

/*
 * Probe the batches that may have finished.  If there are very many, some are
 * left for the next call, so that the worker does not do only that.
 */
void
batches_do_urgent(void)
{
	int64		until = clock_monotonic() + SLICE;
	BatchStep	step = {0};

	while (!task_must_end() && clock_monotonic() < until &&
		   (step.id = batch_state_take(&step.member)) != 0)
		end_step(&step, task_step(batch_end_step, &step) == TASK_FAILED);
}

/* Have the probes repeated that could not find out, when it is time. */
static void
retry(void)
{
	if (clock_monotonic() < retry_at)
		return;
	retry_at = NEVER;
	retry_pause = Min(2 * retry_pause, RETRY_MAX);
	batch_state_retry();
	batches_do_urgent();
	if (retry_at == NEVER && !batch_state_is_pending())
		retry_pause = RETRY_MIN;
}

/* Returns when the pass goes on, or the next one begins; or NEVER. */
static int64
pass_due(void)
{
	int64		postponed = clock_monotonic() +
	task_postponed_for(POSTPONE_BATCHES, 0);
	int64		due = pass.goes_on ||
	pass.generation != batch_state_generation() ? 0 : pass.next;

	return Max(Max(due, pass.not_before), postponed);
}

/* Look at some batches of the pass. */
static void
continue_pass(void)
{
	int64		until = clock_monotonic() + SLICE;
	BatchStep	step = {.look_for_old = true};

	if (!pass.goes_on)
	{
		pass.goes_on = true;
		pass.marker = 0;
		pass.generation = batch_state_generation();
		pass.next = NEVER;
		pass.began = clock_monotonic();
	}
	while (pass.goes_on && !task_must_end() && clock_monotonic() < until)
	{
		bool		failed;

		step.id = 0;
		failed = task_step(pass_step, &step) == TASK_FAILED;
		if (step.id != 0)
		{
			pass.marker = step.id;
			end_step(&step, failed);
		}
		else if (failed)
		{
			task_postpone(POSTPONE_BATCHES, 0, RETRY_MAX);
			return;
		}
		else
		{
			pass.goes_on = false;
			pass.not_before = 2 * clock_monotonic() - pass.began;
		}
	}
}

/* Returns whether a batch is to be probed now. */
bool
batches_are_pending(void)
{
	return batch_state_is_pending() || pass_due() <= clock_monotonic();
}

/* Do what is not urgent. */
void
batches_round(void)
{
	retry();
	if (pass_due() <= clock_monotonic())
		continue_pass();
}

/* Returns when there is something to do again. */
TimestampTz
batches_next_due(void)
{
	int64		due = Min(pass_due(), retry_at);

	return due == NEVER ? DT_NOEND :
		GetCurrentTimestamp() + due - clock_monotonic();
}
