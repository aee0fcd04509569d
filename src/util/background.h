/*-------------------------------------------------------------------------
 *
 * background.h
 *	  Describing, connecting and reconfiguring background processes.
 *
 * src/util/background.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_BACKGROUND_H
#define QUEUE_BACKGROUND_H

#include "postmaster/bgworker.h"

extern void background_describe(BackgroundWorker *process, const char *type,
								const char *function);
extern bool background_reload(void);
extern void background_connect(Oid database, const char *application_name);

#endif							/* QUEUE_BACKGROUND_H */
