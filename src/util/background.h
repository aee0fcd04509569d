/*-------------------------------------------------------------------------
 *
 * background.h
 *	  Describing background processes.
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

#endif							/* QUEUE_BACKGROUND_H */
