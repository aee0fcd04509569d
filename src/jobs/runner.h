/*-------------------------------------------------------------------------
 *
 * runner.h
 *	  The background processes that run jobs.
 *
 * src/jobs/runner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_RUNNER_H
#define QUEUE_RUNNER_H

#include "util/compat.h"

/* The entry point of the process, which runner_dispatch.c registers by name */
extern PGDLLEXPORT void queue_runner_main(Datum arg);

#endif							/* QUEUE_RUNNER_H */
