/*-------------------------------------------------------------------------
 *
 * batch_end.h
 *	  The end of a batch.
 *
 * src/commands/batch_end.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_BATCH_END_H
#define QUEUE_BATCH_END_H

#include "shmem/batch_state.h"

/* A step towards the end of a batch */
typedef struct BatchStep
{
	int64		id;
	bool		look_for_old;	/* what has waited for too long becomes dead
								 * letters, if the batch has not finished */

	/* Set by the last step, for the next one */
	BatchProgress progress;
	bool		is_for_old;		/* it has only looked for these */

	/* Results */
	BatchState	state;			/* that the batch gets */
	bool		goes_on;		/* there is more to be read */
	int			nfreed;			/* messages */
} BatchStep;

extern int64 batch_end_next(int64 id);
extern bool batch_end_step(void *arg);

#endif							/* QUEUE_BATCH_END_H */
