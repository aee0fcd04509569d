/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  The background worker of one database.
 *
 * src/bgworker/worker.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_WORKER_H
#define QUEUE_WORKER_H

#include "util/compat.h"

/* Entry point of the process; the argument is the database's OID. */
extern PGDLLEXPORT void queue_worker_main(Datum arg);

#endif							/* QUEUE_WORKER_H */
