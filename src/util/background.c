/*-------------------------------------------------------------------------
 *
 * background.c
 *	  Describing background processes.
 *
 * src/util/background.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "util/background.h"

/*
 * Describe a process of this library that connects to a database and is not
 * started again when it exits.  The type is its name, too, unless the caller
 * gives it another one.
 */
void
background_describe(BackgroundWorker *process, const char *type,
					const char *function)
{
	memset(process, 0, sizeof(BackgroundWorker));
	strlcpy(process->bgw_name, type, BGW_MAXLEN);
	strlcpy(process->bgw_type, type, BGW_MAXLEN);
	process->bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	process->bgw_start_time = BgWorkerStart_RecoveryFinished;
	process->bgw_restart_time = BGW_NEVER_RESTART;
	strcpy(process->bgw_library_name, "queue");
	strlcpy(process->bgw_function_name, function, BGW_MAXLEN);
}
