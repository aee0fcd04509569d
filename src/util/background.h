/*-------------------------------------------------------------------------
 *
 * background.h
 *	  Describing background processes, and connecting them.
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
extern void background_connect(Oid database, const char *application_name);

#endif							/* QUEUE_BACKGROUND_H */
