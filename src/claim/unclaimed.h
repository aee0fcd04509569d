/*-------------------------------------------------------------------------
 *
 * unclaimed.h
 *	  Changing messages that no claim holds.
 *
 * src/claim/unclaimed.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_UNCLAIMED_H
#define QUEUE_UNCLAIMED_H

#include "queue/registry.h"

extern int64 unclaimed_run_now(const Queue *queue, Datum *ids, int n);
extern int64 unclaimed_bury(const Queue *queue, Datum *ids, int n,
							const char *error);

#endif							/* QUEUE_UNCLAIMED_H */
