/*-------------------------------------------------------------------------
 *
 * counter.h
 *	  The process that counts all messages in the place of a database's worker.
 *
 * src/bgworker/counter.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_COUNTER_H
#define QUEUE_COUNTER_H

#include "util/compat.h"

/* Entry point of the process; the argument is the database's OID. */
extern PGDLLEXPORT void queue_counter_main(Datum arg);

/* For the worker */
extern bool counter_start(void);
extern bool counter_is_running(void);
extern void counter_terminate(void);

#endif							/* QUEUE_COUNTER_H */
