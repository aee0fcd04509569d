/*-------------------------------------------------------------------------
 *
 * launcher.h
 *	  The launcher, which starts a worker for each database that needs one.
 *
 * src/bgworker/launcher.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_LAUNCHER_H
#define QUEUE_LAUNCHER_H

#include "util/compat.h"

extern void launcher_init(void);

/* Entry point of the process */
extern PGDLLEXPORT void queue_launcher_main(Datum arg);

#endif							/* QUEUE_LAUNCHER_H */
