/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The background worker of one database.
 *
 * NOTES
 *	  The worker sees to what is due, and tells those who listen.  Nothing
 *	  depends on it: what it does is done by claims too, only later.
 *
 *	  It sleeps until the first of what the cursors know is due (cursor.c), or
 *	  until a session that made something free, or due earlier, sets its
 *	  latch (database.c).  Then it runs a round:
 *
 *	  1.  News: one NOTIFY for each queue in which something came free.
 *	  Producers only raise a flag, since transactions that NOTIFY commit one
 *	  after the other in the whole cluster.  After news the worker naps for
 *	  queue.worker_naptime, so that many pushes share a notification.
 *
 *	  2.  What is due: of each queue, claims that have run out (their messages
 *	  are given back to the cursor, or sent to the dead letter queue), parked
 *	  messages (they are told of; claims take them, but where many are due they
 *	  are brought in first, park.c), and messages whose lifetime is over.  Each
 *	  batch is a transaction of its own, so that nobody waits long for it.
 *
 *	  3.  Jobs: it calls those who run them, and sees to what they leave behind
 *	  (pool.c); that also when the server is stopped, and they with it.
 *
 *	  4.  The ring of segments: turn.c.
 *
 *	  When it starts it looks at each queue once, so that the cursors know all
 *	  that is ready.
 *
 *	  It works as the bootstrap superuser, in the project of each queue, runs
 *	  no code of users, and waits for a lock no longer than a moment: a queue
 *	  that somebody else keeps locked, or that fails, is left alone for a
 *	  second.
 *
 *	  It leaves when the extension is gone, and when the database is to be
 *	  dropped, renamed, moved or copied (launcher.c asks it to).
 *
 * src/worker.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "access/xact.h"
#include "catalog/pg_extension.h"
#include "commands/async.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "tcop/tcopprot.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#define QUEUES_AT_ONCE	1000	/* with something due */
#define COUNTS_AT_ONCE	64		/* queues whose counts are written */
#define LEFT_ALONE		64		/* queues that failed of late */
#define CHANNELS_MAX	10000	/* to remember */
#define ERROR_PAUSE		USECS_PER_SEC
#define DISTURBED_PAUSE (USECS_PER_SEC / 10)
#define LAST_WAIT		USECS_PER_SEC	/* for runners that end with us */
#define LAST_NAP		10		/* ms */
#define RING_PAUSE		(120 * USECS_PER_SEC)	/* more than turn.c wants */
#define EXPIRY_SHARE	50		/* time between looks for expired messages,
								 * in times of what the last one took */

/* A queue that failed */
typedef struct Postponed
{
	int32		queue_id;
	TimestampTz until;
} Postponed;

/* What a queue's listeners are told */
typedef struct Channel
{
	int32		queue_id;		/* key */
	bool		paused;
	char		name[QUEUE_NAME_LENGTH + 1];
	char		channel[CHANNEL_LENGTH + 1];
} Channel;

typedef enum Errand
{
	ERRAND_JOBS,				/* see to those who run jobs */
	ERRAND_NEWS,				/* tell of some queues */
	ERRAND_DUE,					/* see to one */
	ERRAND_ALL,					/* look at all queues */
	ERRAND_RING,				/* turn the ring of segments */
	ERRAND_COUNTS,				/* write counts to their table */
	ERRAND_LEFT					/* see to what runners left behind */
} Errand;

PGDLLEXPORT void queue_worker_main(Datum arg);

static DatabaseState *state;
static bool gone = false;		/* the extension is */
static volatile sig_atomic_t told_to_end = false;
static volatile sig_atomic_t in_errand = false;
static Oid	extension_table = InvalidOid;
static bool look_at_all = true; /* at each queue, once */
static TimestampTz ring_due;	/* next */
static MemoryContext round_context;
static Postponed left_alone[LEFT_ALONE];
static MemoryContext handler_context;
static Handler *handlers = NULL;
static int	nhandlers = 0;
static HandlerVersion handlers_version;
static HTAB *channels = NULL;
static uint64 channels_generation = 0;

static void worker_exit(int code, Datum arg);
static bool enter(Oid database);
static void set_state(WorkerState to);
static void hold_extension(void);
static void extension_gone(void);
static void keep_error(ErrorData *error);
static void be_told_to_end(SIGNAL_ARGS);
static bool run(Errand errand, int32 queue_id);
static const Channel *channel_of(int32 queue_id);
static bool has_jobs(void);
static void errand_jobs(void);
static void see_to_runner(const Runner *runner);
static void retry_of_gone(const Queue *queue, const Runner *runner);
static void errand_news(void);
static void errand_due(int32 queue_id);
static void errand_all(void);
static void errand_ring(void);
static void errand_left(void);
static void errand_counts(void);
static void next_transaction(const char *project);
static void leave_alone(int32 queue_id, TimestampTz until);
static TimestampTz alone_until(int32 queue_id);
static bool has_news(void);
static bool is_ours(const Cursor *cursor);
static bool see_to_due(void);
static bool see_to_ring(void);
static TimestampTz next_due(void);
static void finish(void);
static bool sleep_until_due(void);

/* The process ends, however it does. */
static void
worker_exit(int code, Datum arg)
{
	LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
	if (state->pid == MyProcPid)
	{
		pg_atomic_write_u32(&state->proc, 0);
		pg_atomic_write_u64(&state->sleeps_until, (uint64) DT_NOBEGIN);
		state->pid = 0;

		/* Whoever is asked to leave, or is terminated, comes back later. */
		if (state->state != WORKER_NONE)
		{
			state->state = WORKER_WANTED;
			state->start_at = Max(state->start_at,
								  GetCurrentTimestamp() + USECS_PER_SEC);
		}
		state->leave = false;
	}
	LWLockRelease(shmem_database_lock());
	database_wake_launcher();
}

static void
set_state(WorkerState to)
{
	LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
	state->state = to;
	if (to == WORKER_BUSY)
	{
		state->last_run = GetCurrentTimestamp();
		pg_atomic_fetch_add_u64(&state->counters[COUNT_ROUNDS], 1);
	}
	LWLockRelease(shmem_database_lock());
}

/*
 * Keep the extension from being dropped while this transaction runs: then
 * nothing that we look at can go away.  An error if it has been.
 */
static void
hold_extension(void)
{
	Oid			extension = get_extension_oid("queue", true);

	if (OidIsValid(extension))
	{
		LockDatabaseObject(ExtensionRelationId, extension, 0,
						   AccessShareLock);

		/* Or is it gone since we began to wait? */
		if (get_extension_oid("queue", true) != extension)
			extension = InvalidOid;
	}
	gone = !OidIsValid(extension);
	if (gone)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"queue\" does not exist")));
	if (extension_table != queue_table_oid())
	{
		extension_table = queue_table_oid();
		look_at_all = true;
		state->all_known = KNOWN_SOME;
	}
}

/* Then there is nothing to do here, for nobody. */
static void
extension_gone(void)
{
	set_state(WORKER_NONE);
	pool_vacate(MyDatabaseId, false);
}

static void
keep_error(ErrorData *error)
{
	LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
	strlcpy(state->last_error, error->message, WORKER_ERROR_LENGTH);
	state->last_error_at = GetCurrentTimestamp();
	LWLockRelease(shmem_database_lock());
}

/* --- Transactions --- */

/*
 * End the transaction, if one is running, and begin the next one, in a
 * project: its queues, and their dead letter queues, go by its names.
 */
static void
next_transaction(const char *project)
{
	if (IsTransactionState())
		CommitTransactionCommand();
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	MemoryContextSwitchTo(round_context);
	hold_extension();
	if (project != NULL)
		queue_set_label("queue.project", project, true);
}

/* An errand ends with an error, so that the worker can finish what must be. */
static void
be_told_to_end(SIGNAL_ARGS)
{
	int			save_errno = errno;

	told_to_end = true;
	if (in_errand)
		InterruptPending = QueryCancelPending = true;
	SetLatch(MyLatch);
	errno = save_errno;
}

/*
 * Do something, in transactions.  False: the extension is gone.  An error is
 * reported and ends no more than that.
 */
static bool
run(Errand errand, int32 queue_id)
{
	gone = false;
	in_errand = true;
	PG_TRY();
	{
		next_transaction(NULL);
		switch (errand)
		{
			case ERRAND_JOBS:
				errand_jobs();
				break;
			case ERRAND_NEWS:
				errand_news();
				break;
			case ERRAND_DUE:
				errand_due(queue_id);
				break;
			case ERRAND_ALL:
				errand_all();
				break;
			case ERRAND_RING:
				errand_ring();
				break;
			case ERRAND_COUNTS:
				errand_counts();
				break;
			case ERRAND_LEFT:
				errand_left();
				break;
		}
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(round_context);
		error = CopyErrorData();
		HOLD_INTERRUPTS();
		if (!gone && error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
			!told_to_end)
		{
			EmitErrorReport();
			keep_error(error);
		}
		AbortCurrentTransaction();
		FlushErrorState();
		RESUME_INTERRUPTS();
		if (errand == ERRAND_DUE)
			leave_alone(queue_id, GetCurrentTimestamp() + ERROR_PAUSE);
	}
	PG_END_TRY();
	in_errand = false;
	QueryCancelPending = false;
	MemoryContextSwitchTo(round_context);
	MemoryContextReset(round_context);
	return !gone;
}

/* --- Errands --- */

static bool
is_ours(const Cursor *cursor)
{
	return cursor->database == MyDatabaseId &&
		cursor->extension == extension_table;
}

static bool
has_news(void)
{
	uint32		from = 0;
	Cursor	   *cursor;

	while ((cursor = shmem_next_flagged(CURSOR_NEWS, &from)) != NULL)
		if (is_ours(cursor))
			return true;
	return false;
}

/* What to send for this queue, from memory if nothing has changed. */
static const Channel *
channel_of(int32 queue_id)
{
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		paused;
	bool		found;
	Channel    *channel;

	if (channels == NULL || channels_generation != queue_catalog_generation() ||
		hash_get_num_entries(channels) >= CHANNELS_MAX)
	{
		HASHCTL		info;

		if (channels != NULL)
			hash_destroy(channels);
		info.keysize = sizeof(int32);
		info.entrysize = sizeof(Channel);
		info.hcxt = TopMemoryContext;
		channels = hash_create("channels of queues", 64, &info,
							   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		channels_generation = queue_catalog_generation();
	}

	/* Of a queue that is resumed we are told before its row is invalid. */
	channel = hash_search(channels, &queue_id, HASH_FIND, NULL);
	if (channel != NULL && !channel->paused)
		return channel;
	if (!queue_name_of(queue_id, project, name, &paused))
		return NULL;
	channel = hash_search(channels, &queue_id, HASH_ENTER, &found);
	channel->paused = paused;
	strlcpy(channel->name, name, sizeof(channel->name));
	queue_channel_name(project, name, channel->channel);
	return channel;
}

/* A runner was terminated while this message was at work, or just after. */
static void
retry_of_gone(const Queue *queue, const Runner *runner)
{
	ResourceOwner owner = CurrentResourceOwner;
	TimestampTz due;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		lease_retry(queue, runner->message_id, &runner->claim,
					"runner was terminated", -1, true, &due);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		int			code = geterrcode();

		RollbackAndReleaseCurrentSubTransaction();
		CurrentResourceOwner = owner;
		if (code != ERRCODE_CLAIM_NOT_LIVE &&
			code != ERRCODE_MESSAGE_NOT_IN_CLAIM)
			PG_RE_THROW();
		FlushErrorState();
	}
	PG_END_TRY();
	CurrentResourceOwner = owner;
	MemoryContextSwitchTo(round_context);
}

/* Renew the claim of a runner, or see to what one has left behind. */
static void
see_to_runner(const Runner *runner)
{
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		paused;
	bool		gone = runner->state == RUNNER_GONE;
	Queue		queue;

	if (queue_name_of(runner->queue_id, project, name, &paused))
	{
		next_transaction(project);
		if (queue_open(name, QUEUE_CLAIM, &queue) &&
			queue.id == runner->queue_id)
		{
			if (gone && runner->message_id != 0)
				retry_of_gone(&queue, runner);
			hold_only(&queue, &runner->claim, gone ? 0 : runner->message_id,
					  runner->ttl);
		}
	}
	next_transaction(NULL);
	if (gone)
		pool_took_over(runner);
}

/* Is there a reason to look? */
static bool
has_jobs(void)
{
	return handlers == NULL || nhandlers > 0 ||
		!handler_is_current(&handlers_version) ||
		pool_next_due() <= GetCurrentTimestamp();
}

/* Have jobs run, and see to those who run them. */
static void
errand_jobs(void)
{
	if (handlers == NULL || !handler_is_current(&handlers_version))
	{
		handlers = NULL;
		MemoryContextReset(handler_context);
		MemoryContextSwitchTo(handler_context);
		handlers = handler_all(&nhandlers, &handlers_version);
		MemoryContextSwitchTo(round_context);
	}
	if (nhandlers > 0)
		pool_dispatch(handlers, nhandlers, extension_table);
	errand_left();
}

/* Renew claims, and see to those that were left behind. */
static void
errand_left(void)
{
	Runner		runner;

	while (pool_take_due(&runner))
		see_to_runner(&runner);
}

/* One NOTIFY for each queue that has news. */
static void
errand_news(void)
{
	TimestampTz now = GetCurrentTimestamp();
	uint32		from = 0;
	int			told = 0;
	Cursor	   *cursor;

	while ((cursor = shmem_next_flagged(CURSOR_NEWS, &from)) != NULL)
	{
		const Channel *channel;
		int32		queue_id;

		if (!is_ours(cursor))
			continue;
		SpinLockAcquire(&cursor->mutex);
		queue_id = is_ours(cursor) ? cursor->queue_id : 0;
		if (queue_id != 0)
			cursor->told_at = now;
		shmem_clear_flag(cursor, CURSOR_NEWS);
		SpinLockRelease(&cursor->mutex);
		channel = queue_id == 0 ? NULL : channel_of(queue_id);
		if (channel == NULL || channel->paused)
			continue;
		Async_Notify(channel->channel, channel->name);
		told++;
	}
	database_count(COUNT_NOTIFICATIONS, told);
}

/* See to all that is due in one queue. */
static void
errand_due(int32 queue_id)
{
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		paused;
	Queue		queue;
	bool		more = true;
	bool		disturbed = false;
	int			found = 0;
	TimestampTz began = GetCurrentTimestamp();

	if (!queue_name_of(queue_id, project, name, &paused))
	{
		cursor_silence(queue_id);
		return;
	}
	while (more)
	{
		next_transaction(project);
		if (!queue_open(name, QUEUE_CLAIM, &queue) || queue.id != queue_id)
			return;				/* dropped just now */
		found += walk_sweep(&queue, &more, &disturbed);
		CHECK_FOR_INTERRUPTS();
	}
	if (disturbed)
		leave_alone(queue_id, GetCurrentTimestamp() + DISTURBED_PAUSE);
	if (cursor_is_crowded(queue_id))
		while (park_bring_in(queue_id))
		{
			CHECK_FOR_INTERRUPTS();
			next_transaction(project);
			if (!queue_open(name, QUEUE_CLAIM, &queue) ||
				queue.id != queue_id)
				return;
		}
	if (cursor_tell_parked(queue_id, began) && !paused && found == 0 &&
		walk_peek(&queue))
		found++;
	if (found > 0)
		cursor_news(queue_id, found);

	if (cursor_take_expiry(queue_id, began))
	{
		int64		marker = -1;
		TimestampTz next = DT_NOEND;
		TimestampTz now;

		/* Should an error end this, it is done again. */
		PG_TRY();
		{
			while (!expire_messages(queue_id, &marker, &next))
			{
				next_transaction(project);
				if (!queue_open(name, QUEUE_CLAIM, &queue) ||
					queue.id != queue_id)
					break;
			}
		}
		PG_CATCH();
		{
			cursor_give_expiry(queue_id, began);
			PG_RE_THROW();
		}
		PG_END_TRY();

		/* In a large queue, a small part of the time goes to this. */
		now = GetCurrentTimestamp();
		cursor_give_expiry(queue_id,
						   Max(next, now + EXPIRY_SHARE * (now - began)));
	}
}

/* Let each queue have a cursor that knows whether it is ready. */
static void
errand_all(void)
{
	int			n;
	QueueEntry *queues = queue_all(NULL, &n);

	look_at_all = false;
	if (n > queue_guc_max_cursors)
		return;
	state->all_known = KNOWN_SOON;
	for (int i = 0; i < n; i++)
	{
		char		project[QUEUE_PROJECT_LENGTH + 1];
		char		name[QUEUE_NAME_LENGTH + 1];
		bool		paused;
		Queue		queue;

		if (i % QUEUES_AT_ONCE == 0 && i > 0)
			next_transaction(NULL);
		CHECK_FOR_INTERRUPTS();
		if (!queue_name_of(queues[i].id, project, name, &paused))
			continue;
		queue_set_label("queue.project", project, true);
		if (queue_open(name, QUEUE_READ, &queue) && walk_peek(&queue))
			cursor_news(queues[i].id, 1);
	}
	if (state->all_known == KNOWN_SOON)
		state->all_known = KNOWN_ALL;
}

/*
 * Do what there is to do for the ring, and learn when there will be more.
 * What others wait for comes first.
 */
static void
errand_ring(void)
{
	while (turn_step(&ring_due))
	{
		CHECK_FOR_INTERRUPTS();
		if (has_news() ||
			(TimestampTz) pg_atomic_read_u64(&state->next_due) <=
			GetCurrentTimestamp())
		{
			ring_due = DT_NOBEGIN;
			break;
		}
		next_transaction(NULL);
	}
}

/* Write the counts of all queues to their table. */
static void
errand_counts(void)
{
	uint32		from = 0;

	while (!count_flush(&from, COUNTS_AT_ONCE))
	{
		CHECK_FOR_INTERRUPTS();
		next_transaction(NULL);
	}
}

/* --- Queues that are left alone for a while --- */

static void
leave_alone(int32 queue_id, TimestampTz until)
{
	Postponed  *entry = &left_alone[queue_id % LEFT_ALONE];

	entry->queue_id = queue_id;
	entry->until = until;
}

static TimestampTz
alone_until(int32 queue_id)
{
	Postponed  *entry = &left_alone[queue_id % LEFT_ALONE];

	return entry->queue_id == queue_id ? entry->until : DT_NOBEGIN;
}

/* --- Rounds --- */

/* See to all queues in which something is due.  False: leave. */
static bool
see_to_due(void)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next = DT_NOEND;
	uint32		n = shmem_count_cursors();
	int32	   *due;
	int			ndue = 0;

	if ((TimestampTz) pg_atomic_read_u64(&state->next_due) > now)
		return true;

	/* What becomes due from here on lowers it again. */
	pg_atomic_write_u64(&state->next_due, (uint64) DT_NOEND);
	pg_memory_barrier();
	due = MemoryContextAlloc(TopMemoryContext,
							 QUEUES_AT_ONCE * sizeof(int32));
	for (uint32 i = 0; i < n; i++)
	{
		const Cursor *cursor = shmem_cursor_in_use(i);
		TimestampTz at = cursor->wake_at;

		if (!is_ours(cursor))
			continue;
		if (at <= now)
			at = Max(at, alone_until(cursor->queue_id));
		if (at <= now && ndue < QUEUES_AT_ONCE)
			due[ndue++] = cursor->queue_id;
		else
			next = Min(next, at);
	}
	for (int i = 0; i < ndue; i++)
		if (!run(ERRAND_DUE, due[i]))
		{
			pfree(due);
			return false;
		}
	pfree(due);

	/* What was seen to told its next time itself, unless it failed. */
	for (int i = 0; i < LEFT_ALONE; i++)
		if (left_alone[i].until > now)
			next = Min(next, left_alone[i].until);
	database_wake(next, false);

	if (count_is_due(now))
	{
		if (!run(ERRAND_COUNTS, 0))
			return false;
		count_flushed(now);
	}
	count_flush_again();
	return true;
}

/* Turn the ring, if somebody says so or it is time.  False: leave. */
static bool
see_to_ring(void)
{
	TimestampTz now = GetCurrentTimestamp();
	RingState  *ring = &state->ring;
	uint64		nothing = (uint64) DT_NOEND;

	TimestampTz due = (TimestampTz) pg_atomic_read_u64(&ring->due);

	/* Not later than that, unless the clock has stepped back. */
	if (due == DT_NOEND || (due > now && due < now + RING_PAUSE))
		return true;

	/* Who says so from here on is heard the next time. */
	pg_atomic_write_u64(&ring->due, (uint64) DT_NOEND);
	pg_memory_barrier();
	ring_due = now + ERROR_PAUSE;	/* if it fails */
	if (!run(ERRAND_RING, 0))
		return false;
	(void) pg_atomic_compare_exchange_u64(&ring->due, &nothing,
										  (uint64) ring_due);
	return true;
}

/* When is something due, in a queue or for the ring? */
static TimestampTz
next_due(void)
{
	return Min((TimestampTz) pg_atomic_read_u64(&state->next_due),
			   (TimestampTz) pg_atomic_read_u64(&state->ring.due));
}

/*
 * Before the worker ends: what it has not written is lost with the memory.  If
 * the server is being stopped, so are the runners, and nobody else would give
 * back what they have claimed.
 */
static void
finish(void)
{
	TimestampTz until = GetCurrentTimestamp() + LAST_WAIT;

	if (state->state == WORKER_NONE)
		return;
	while (told_to_end && pool_is_leaving() && GetCurrentTimestamp() < until)
	{
		(void) WaitLatch(NULL, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, LAST_NAP,
						 compat_wait_event("QueueWorkerNap"));
		(void) run(ERRAND_LEFT, 0);
	}

	/* The first time writes rows for queues that had none. */
	(void) run(ERRAND_COUNTS, 0);
	(void) run(ERRAND_COUNTS, 0);
}

/* True: somebody woke us. */
static bool
sleep_until_due(void)
{
	bool		woken = false;
	TimestampTz until;
	TimestampTz now = GetCurrentTimestamp();
	int			events = WL_LATCH_SET | WL_EXIT_ON_PM_DEATH;
	long		timeout = -1;

	set_state(WORKER_IDLE);

	/*
	 * Who changes something reads this afterwards: so either he wakes us, or
	 * we see it.
	 */
	until = next_due();
	pg_atomic_write_u64(&state->sleeps_until, (uint64) until);
	pg_memory_barrier();
	until = Min(until, next_due());
	if (!has_news() && until > now)
	{
		if (until != DT_NOEND)
		{
			events |= WL_TIMEOUT;
			timeout = (long) Min((until - now) / 1000 + 1, INT_MAX);
		}
		woken = (WaitLatch(MyLatch, events, timeout,
						   compat_wait_event("QueueWorker")) &
				 WL_LATCH_SET) != 0;
		ResetLatch(MyLatch);
	}
	pg_atomic_write_u64(&state->sleeps_until, (uint64) DT_NOBEGIN);
	return woken;
}

/*
 * Become the worker of the database, and one of its sessions; false: it has
 * one, or shall have none.
 */
static bool
enter(Oid database)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	LWLockAcquire(shmem_database_lock(), LW_EXCLUSIVE);
	state = database_find(database, false);
	if (state == NULL || state->pid != 0 || state->leave)
	{
		LWLockRelease(shmem_database_lock());
		return false;
	}
	state->start_at = 0;
	state->pid = MyProcPid;
	pg_atomic_write_u32(&state->proc, (uint32) my_proc_number() + 1);
	LWLockRelease(shmem_database_lock());
	before_shmem_exit(worker_exit, (Datum) 0);

	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
	pqsignal(SIGTERM, be_told_to_end);
	SetConfigOption("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION);
	SetConfigOption("lock_timeout", "100ms", PGC_USERSET, PGC_S_SESSION);
	SetConfigOption("statement_timeout", "0", PGC_USERSET, PGC_S_SESSION);
	SetConfigOption("idle_in_transaction_session_timeout", "0", PGC_USERSET,
					PGC_S_SESSION);
	SetConfigOption("default_transaction_read_only", "off", PGC_USERSET,
					PGC_S_SESSION);
	SetConfigOption("default_transaction_isolation", "read committed",
					PGC_USERSET, PGC_S_SESSION);
	SetConfigOption("search_path", "pg_catalog, pg_temp", PGC_USERSET,
					PGC_S_SESSION);
	round_context = AllocSetContextCreate(TopMemoryContext, "queue worker",
										  ALLOCSET_DEFAULT_SIZES);
	handler_context = AllocSetContextCreate(TopMemoryContext, "handlers",
											ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(round_context);
	database_announce();		/* finds our own entry */
	pg_atomic_write_u64(&state->ring.due, 0);
	return true;
}

void
queue_worker_main(Datum arg)
{
	bool		woken = false;

	if (!enter(DatumGetObjectId(arg)))
		proc_exit(0);
	for (;;)
	{
		bool		news;

		/* Not by an error: it is nothing to be said in the log. */
		if (told_to_end || state->leave)
			break;
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		set_state(WORKER_BUSY);
		if (state->look_again)
		{
			state->look_again = false;
			look_at_all = true;
		}
		if (look_at_all && !run(ERRAND_ALL, 0))
		{
			extension_gone();
			break;
		}

		/*
		 * Woken without news: the extension may have been dropped.  That is
		 * said at commit, but before the message that invalidates what we
		 * know.
		 */
		news = has_news();
		if (woken && !news && next_due() > GetCurrentTimestamp())
			news = true;
		if ((has_jobs() && !run(ERRAND_JOBS, 0)) ||
			(news && !run(ERRAND_NEWS, 0)) || !see_to_due() ||
			!see_to_ring())
		{
			extension_gone();
			break;
		}

		/* Notifications that follow soon become one. */
		if (news && queue_guc_worker_naptime > 0)
		{
			(void) WaitLatch(NULL, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 queue_guc_worker_naptime,
							 compat_wait_event("QueueWorkerNap"));
		}
		if (told_to_end)
			break;
		database_wake(pool_next_due(), false);
		woken = look_at_all || sleep_until_due();
		pgstat_report_stat(false);
	}
	finish();
	proc_exit(0);
}
