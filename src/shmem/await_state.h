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

#define AWAIT_NO_SLOT	(-1)

/* As the id of a message: all of the database */
#define AWAIT_ALL		0

extern void await_state_init(void);

/* A session that waits */
extern int	await_state_begin(int64 message);
extern bool await_state_take_wakeup(int slot);
extern void await_state_end(int slot);

/* After the commit of a transaction that has finished a message */
extern bool await_state_has_waiters(void);
extern void await_state_finished(int64 message);

#endif							/* QUEUE_AWAIT_STATE_H */
