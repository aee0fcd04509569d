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
 *	  that reports its end.  A role that has locked a queue reports nothing: so
 *	  these probes are also repeated after a pause.
 *
 *	  A pass goes over all batches that have not finished, or for which
 *	  messages wait: when the worker starts, when one was lost for lack of
 *	  room, when a prepared transaction has ended of which the worker knows
 *	  nothing (prepared.c), and every hour, for what has become old.
 *
 *	  Passes and repeated probes are not urgent, and neither is reading further
 *	  what waits for a batch where a step could free nothing.  At most half of
 *	  our time is spent on each of the two.
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

#define POSTPONE_MAX	USECS_PER_MINUTE
#define SLICE			(USECS_PER_SEC / 100)	/* then other tasks have their
												 * turn */
#define PASS_TIME		(60 * USECS_PER_MINUTE) /* between two passes */
#define NEVER			PG_INT64_MAX

/* The pass over all batches that goes on, or else the last one */
static struct
{
	bool		goes_on;
	int64		marker;			/* the last batch */
	BatchStep	step;			/* the last step, with that batch */
	uint64		generation;		/* batches_lost when it began */

	/* By the monotonic clock */
	int64		next;			/* when the next one begins, or NEVER */
	int64		began;
	int64		not_before;		/* at most half of our time is spent on passes */
}			pass;

/* When a probe is repeated, by the same clock, and not before */
static int64 retry_at = 0;
static int64 retry_not_before = 0;

static bool pass_step(void *arg);
static bool take_step(TaskStep function, BatchStep *step);
static void end_step(const BatchStep *step);
static int64 pass_due(void);
static void continue_pass(void);

/* The step for the next batch of the pass */
static bool
pass_step(void *arg)
{
	BatchStep  *step = arg;

	if (!step->goes_on)
	{
		memset(step, 0, sizeof(BatchStep));
		step->look_for_old = true;
		step->id = batch_end_next(pass.marker);
		if (step->id == 0)
			return false;
		batch_state_add(step->id, &step->progress);
	}
	return batch_end_step(step);
}

/* Take a step.  If it fails, it has no results; returns whether it did. */
static bool
take_step(TaskStep function, BatchStep *step)
{
	if (task_step(function, step) != TASK_FAILED)
		return false;
	if (step->id != 0)
		batch_state_add(step->id, &step->progress);
	step->state = BATCH_UNKNOWN;
	step->goes_on = false;
	return true;
}

/* What a step has found is true only now that it has committed. */
static void
end_step(const BatchStep *step)
{
	BatchState	state = step->state;
	int64		again;

	/*
	 * What is read next is likely to be as urgent as this: it is if some
	 * could be freed.
	 */
	if (step->goes_on)
		state = step->nfreed > 0 ? BATCH_MAY_END : BATCH_UNKNOWN;
	again = batch_state_set(step->id, state, step->goes_on, &step->progress);
	retry_at = Min(retry_at, again);

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
		   (step.id = batch_state_take(&step.progress)) != 0)
	{
		(void) take_step(batch_end_step, &step);
		end_step(&step);
	}
}

/* Returns when the pass goes on, or the next one begins; or NEVER. */
static int64
pass_due(void)
{
	int64		postponed = clock_monotonic() +
	task_postponed_for(POSTPONE_BATCHES, 0);
	int64		due = pass.goes_on ||
	pass.generation != pg_atomic_read_u64(&worker.state->batches_lost) ?
	0 : pass.next;

	return Max(Max(due, pass.not_before), postponed);
}

/* Look at some batches of the pass. */
static void
continue_pass(void)
{
	int64		until = clock_monotonic() + SLICE;
	BatchStep  *step = &pass.step;

	if (!pass.goes_on)
	{
		pass.goes_on = true;
		pass.marker = 0;
		memset(step, 0, sizeof(BatchStep));
		pass.generation = pg_atomic_read_u64(&worker.state->batches_lost);
		pass.next = NEVER;
		pass.began = clock_monotonic();
	}
	while (pass.goes_on && !task_must_end() && clock_monotonic() < until)
	{
		bool		failed;

		if (!step->goes_on)
			step->id = 0;
		failed = take_step(pass_step, step);
		if (step->goes_on)
			continue;
		if (step->id != 0)
		{
			pass.marker = step->id;
			end_step(step);
		}
		else if (failed)
		{
			task_postpone(POSTPONE_BATCHES, 0, POSTPONE_MAX);
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
	/* Without the lock: the caller looks again before it sleeps. */
	return worker.state->batches != 0 || pass_due() <= clock_monotonic();
}

/* Do what is not urgent. */
void
batches_round(void)
{
	int64		began = clock_monotonic();
	int64		now = began;
	BatchStep	step = {0};

	/* Repeat probes that could not find out, or free all, when it is time. */
	if (now >= Max(retry_at, retry_not_before))
	{
		while (!task_must_end() && now < began + SLICE &&
			   (step.id = batch_state_take_overdue(now, &step.progress,
												   &retry_at)) != 0)
		{
			(void) take_step(batch_end_step, &step);
			end_step(&step);
			now = clock_monotonic();
		}
		retry_not_before = 2 * now - began;
	}
	if (pass_due() <= clock_monotonic())
		continue_pass();
}

/* Returns when there is something to do again. */
TimestampTz
batches_next_due(void)
{
	int64		due = Min(pass_due(), Max(retry_at, retry_not_before));

	return due == NEVER ? DT_NOEND :
		GetCurrentTimestamp() + due - clock_monotonic();
}
