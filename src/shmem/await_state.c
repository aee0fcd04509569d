/*-------------------------------------------------------------------------
 *
 * await_state.c
 *	  Sessions that wait until a message is finished, in shared memory.
 *
 * NOTES
 *	  A session that waits sleeps on a condition variable, one of many: the id
 *	  of the message says which.  It prepares to sleep first, and looks for the
 *	  message afterwards.  A transaction that has finished a message wakes
 *	  those that sleep when it has left the proc array.  So if the session does
 *	  not see that the message is finished, it is woken.
 *
 *	  A transaction remembers the condition variables, not the messages, so it
 *	  needs little memory for any number of them.
 *
 *	  A session whose message has the same condition variable is woken, too,
 *	  and looks once more.
 *
 * src/shmem/await_state.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "nodes/bitmapset.h"
#include "utils/memutils.h"

#include "shmem/await_state.h"
#include "shmem/shmem.h"
#include "util/hash.h"
#include "util/xact.h"

#define CONDITIONS		1024

typedef struct SharedAwaits
{
	ConditionVariable finished[CONDITIONS];
} SharedAwaits;

static SharedAwaits *shared = NULL;

/*
 * Those of messages that this transaction has finished, by number; in
 * TopTransactionContext
 */
static Bitmapset *to_wake = NULL;

static void init_awaits(void *area);
static int	condition_number(int64 message);
static void wake_sessions(XactEvent event);

const SharedArea await_area = {
	&shared, sizeof(SharedAwaits), LOCK_NONE, init_awaits, NULL
};

XactList	await_callbacks = {.end = wake_sessions};

static void
init_awaits(void *area)
{
	SharedAwaits *new = area;

	for (int i = 0; i < CONDITIONS; i++)
		ConditionVariableInit(&new->finished[i]);
}

static int
condition_number(int64 message)
{
	return hash_in_database(message) % CONDITIONS;
}

/*
 * Returns the condition variable on which a session sleeps that waits for this
 * message of its database.
 */
ConditionVariable *
await_state_condition(int64 message)
{
	return &shared->finished[condition_number(message)];
}

/*
 * This transaction has finished a message: wake the sessions that wait for it
 * when it has committed.  If a subtransaction is rolled back, they look in
 * vain.
 */
void
await_state_finished(int64 message)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	to_wake = bms_add_member(to_wake, condition_number(message));
	MemoryContextSwitchTo(old);
}

/* Callback after commit, prepare or abort */
static void
wake_sessions(XactEvent event)
{
	if (event == XACT_EVENT_COMMIT)
		for (int i = -1; (i = bms_next_member(to_wake, i)) >= 0;)
			ConditionVariableBroadcast(&shared->finished[i]);
	to_wake = NULL;
}
