/*-------------------------------------------------------------------------
 *
 * counter.c
 *	  The process that counts all messages in the place of a database's worker.
 *
 * NOTES
 *	  A recount has one snapshot (recount.c), and takes seconds if there are
 *	  millions of messages.  The worker must not stop for so long, so it starts
 *	  this process, which makes one recount and exits.  Once it is connected,
 *	  it waits for no lock that a user can hold.
 *
 *	  There is one such process of a database at a time, since a recount relies
 *	  on what the worker leaves alone meanwhile.  The process enters its pid in
 *	  shared memory (DepthState.counter), unless the worker that has started it
 *	  is gone by then, and before_shmem_exit removes it.  The worker terminates
 *	  the process when it exits.  A new worker waits until it is gone.
 *
 *	  If no process can be started (max_worker_processes), the worker counts.
 *
 * src/bgworker/counter.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"

#include "bgworker/counter.h"
#include "catalog/relations.h"
#include "shmem/depth_state.h"
#include "stats/recount.h"
#include "util/background.h"

/* In the worker: the process that it has started last, or NULL */
static BackgroundWorkerHandle *started = NULL;

static void counter_at_exit(int code, Datum arg);

/* --- In the worker --- */

/* Start the process.  Returns false if there are too many processes. */
bool
counter_start(void)
{
	BackgroundWorker counter;
	MemoryContext old;
	bool		result;

	background_describe(&counter, "queue counter", "queue_counter_main");
	snprintf(counter.bgw_name, BGW_MAXLEN, "queue counter for database %u",
			 MyDatabaseId);
	counter.bgw_main_arg = ObjectIdGetDatum(MyDatabaseId);
	memcpy(counter.bgw_extra, &MyProcPid, sizeof(MyProcPid));
	counter.bgw_notify_pid = MyProcPid;
	old = MemoryContextSwitchTo(TopMemoryContext);
	result = RegisterDynamicBackgroundWorker(&counter, &started);
	MemoryContextSwitchTo(old);
	return result;
}

/*
 * Returns whether the process runs, or one that an earlier worker has
 * started.
 */
bool
counter_is_running(void)
{
	pid_t		pid;

	if (started != NULL &&
		GetBackgroundWorkerPid(started, &pid) == BGWH_STOPPED)
	{
		pfree(started);
		started = NULL;
	}
	return started != NULL || depth_has_counter();
}

/* Called when the worker exits: end the process, too. */
void
counter_terminate(void)
{
	if (started != NULL)
		TerminateBackgroundWorker(started);
}

/* --- The process --- */

/* Called however the process ends. */
static void
counter_at_exit(int code, Datum arg)
{
	depth_leave_counter();
}

void
queue_counter_main(Datum arg)
{
	int			worker_pid;
	bool		done;

	memcpy(&worker_pid, MyBgworkerEntry->bgw_extra, sizeof(worker_pid));
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	background_connect(DatumGetObjectId(arg), "queue counter");

	/*
	 * The worker that has started this process is gone; the next one counts.
	 */
	if (!depth_enter_counter(worker_pid))
		proc_exit(0);
	before_shmem_exit(counter_at_exit, (Datum) 0);

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	done = catalog_hold_extension() == EXTENSION_HELD &&
		recount_messages(true, false) == RECOUNT_DONE;
	CommitTransactionCommand();

	/* The depths are known only when the transaction has committed. */
	if (done)
		depth_end_recount();
	proc_exit(0);
}
