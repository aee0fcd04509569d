/*-------------------------------------------------------------------------
 *
 * await_state.c
 *	  Sessions that wait until a message is finished, in shared memory.
 *
 * NOTES
 *	  A session that waits sleeps on a condition variable, one of many: the id
 *	  of the message says which.  It prepares to sleep first, and looks for the
 *	  message afterwards.  A transaction that has finished a message wakes those
 *	  that sleep when it has left the proc array.  So if the session does not
 *	  see that the message is finished, it is woken.
 *
 *	  A session whose message has the same condition variable is woken, too,
 *	  and looks once more.
 *
 * src/shmem/await_state.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "shmem/await_state.h"
#include "shmem/shmem.h"
#include "util/hash.h"

#define CONDITIONS		1024

typedef struct SharedAwaits
{
	ConditionVariable finished[CONDITIONS];
} SharedAwaits;

static SharedAwaits *shared = NULL;

static void init_awaits(void *area);
static void attach_awaits(void *area);

static void
init_awaits(void *area)
{
	SharedAwaits *new = area;

	for (int i = 0; i < CONDITIONS; i++)
		ConditionVariableInit(&new->finished[i]);
}

static void
attach_awaits(void *area)
{
	shared = area;
}

/* To be called once, when the library is loaded. */
void
await_state_init(void)
{
	shmem_add_area(sizeof(SharedAwaits), 0, init_awaits, attach_awaits);
}

/*
 * Returns the condition variable on which a session sleeps that waits for this
 * message of its database; NULL if nothing will wake it.
 */
ConditionVariable *
await_state_condition(int64 message)
{
	if (!shmem_exists())
		return NULL;
	return &shared->finished[hash_in_database(message) % CONDITIONS];
}

/* Wake the sessions that wait for this message, or for any (AWAIT_ALL). */
void
await_state_finished(int64 message)
{
	if (!shmem_exists())
		return;
	if (message != AWAIT_ALL)
		ConditionVariableBroadcast(await_state_condition(message));
	else
		for (int i = 0; i < CONDITIONS; i++)
			ConditionVariableBroadcast(&shared->finished[i]);
}
