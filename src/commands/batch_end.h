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

/* A step towards the end of a batch; all but the last two are set before */
typedef struct BatchStep
{
	int64		id;
	int64		member;			/* that was found last, or BATCH_NOT_PROBED;
								 * is set to the one that this step finds */
	bool		look_for_old;	/* what has waited for too long becomes dead
								 * letters, if the batch has not finished */
	int32		only_queue;		/* free only messages of this queue, or 0 */
	BatchState	state;			/* that the batch gets */
	int			nfreed;			/* messages */
} BatchStep;

extern void batch_end_init(void);
extern int64 batch_end_next(int64 id);
extern bool batch_end_step(void *arg);
extern bool batch_end_here(int64 id, int32 queue_id);

#endif							/* QUEUE_BATCH_END_H */
