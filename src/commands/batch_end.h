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

extern void batch_end_init(void);
extern int64 batch_end_next(int64 id, bool waiting);
extern BatchState batch_end_step(int64 id, int64 *member, bool look_for_old);
extern bool batch_end_here(int64 id, int32 queue_id);

#endif							/* QUEUE_BATCH_END_H */
