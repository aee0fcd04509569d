/*-------------------------------------------------------------------------
 *
 * await_state.h
 *	  Sessions that wait until a message is finished, in shared memory.
 *
 * src/shmem/await_state.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_AWAIT_STATE_H
#define QUEUE_AWAIT_STATE_H

#include "storage/condition_variable.h"

#include "shmem/shmem.h"
#include "util/xact.h"

extern const SharedArea await_area;
extern XactList await_callbacks;

extern ConditionVariable *await_state_condition(int64 message);
extern void await_state_finished(int64 message);

#endif							/* QUEUE_AWAIT_STATE_H */
