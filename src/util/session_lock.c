/*-------------------------------------------------------------------------
 *
 * session_lock.c
 *	  Heavyweight locks that a process holds over its transactions.
 *
 * NOTES
 *	  The server releases session-level locks of the default lock method when
 *	  a transaction aborts, but not when a process exits outside of one.  Such
 *	  a lock would stay with the PGPROC: no process could take it any more,
 *	  and the next process that gets the PGPROC would fail with "lock is
 *	  already held".  So a process that takes one registers a callback that
 *	  releases them all, however it exits.  No other file of the extension
 *	  takes such locks.
 *
 *	  Advisory locks ("user locks" in the server's source) of the session
 *	  belong to whoever runs statements in it.
 *
 * src/util/session_lock.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"

#include "util/session_lock.h"

static void release_locks_at_exit(int code, Datum arg);

/*
 * Called after ShutdownPostgres() has ended the transaction, so that no lock
 * of a transaction is released before its end, and before ProcKill() gives the
 * PGPROC back.
 */
static void
release_locks_at_exit(int code, Datum arg)
{
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
}

/*
 * Acquire a lock without waiting, until it is released, a transaction aborts
 * or the process exits.
 */
LockAcquireResult
session_lock_try(const LOCKTAG *tag, LOCKMODE mode)
{
	static bool registered = false;

	if (!registered)
	{
		on_shmem_exit(release_locks_at_exit, (Datum) 0);
		registered = true;
	}
	return LockAcquire(tag, mode, true, true);
}

/*
 * Returns whether this process holds an advisory lock.  We read the lock
 * table of the server, because only there all locks of a process can be
 * found.
 */
bool
session_lock_has_user_locks(void)
{
	LockData   *data = GetLockStatusData();
	bool		result = false;

	for (int i = 0; i < data->nelements && !result; i++)
	{
		const		LockInstanceData *lock = &data->locks[i];

		result = lock->pid == MyProcPid && lock->holdMask != 0 &&
			lock->locktag.locktag_lockmethodid == USER_LOCKMETHOD;
	}
	pfree(data->locks);
	pfree(data);
	return result;
}
