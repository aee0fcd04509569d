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

/* What a step of batch_end_step() has found */
typedef enum BatchEnd
{
	BATCH_MISSING,				/* the batch does not exist */
	BATCH_OPEN,					/* it cannot finish before it is closed */
	BATCH_HAS_MEMBER,			/* this member is unfinished */
	BATCH_UNDECIDED,			/* another transaction was in the way */
	BATCH_FREES,				/* it has finished; there is another step */
	BATCH_DONE					/* it has finished, and nothing waits for it */
} BatchEnd;

extern void batch_end_init(void);
extern int64 batch_end_next(int64 id, bool waiting);
extern BatchEnd batch_end_step(int64 id, int64 *member, bool look_for_old);
extern bool batch_end_here(int64 id, int32 queue_id);

#endif							/* QUEUE_BATCH_END_H */
