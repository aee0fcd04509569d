/*-------------------------------------------------------------------------
 *
 * execute.h
 *	  Running jobs: calling handlers with the messages of their queues.
 *
 * src/jobs/execute.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_EXECUTE_H
#define QUEUE_EXECUTE_H

#include "jobs/handler.h"
#include "jobs/run.h"

extern bool execute_queue(Run *run, Handler *handler);

#endif							/* QUEUE_EXECUTE_H */
