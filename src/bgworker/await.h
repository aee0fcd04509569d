/*-------------------------------------------------------------------------
 *
 * await.h
 *	  Waiting until a message is finished.
 *
 * src/bgworker/await.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_AWAIT_H
#define QUEUE_AWAIT_H

#include "utils/jsonb.h"

#define AWAIT_FOREVER	(-1)	/* as a timeout */

extern Jsonb *await_message(const char *name, int64 id, int timeout_ms);

#endif							/* QUEUE_AWAIT_H */
