/*-------------------------------------------------------------------------
 *
 * claim_ends.h
 *	  Counting messages as ready whose claims have ended; for the worker.
 *
 * src/stats/claim_ends.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLAIM_ENDS_H
#define QUEUE_CLAIM_ENDS_H

#include "map/availability.h"

extern void claim_ends_forget(void);
extern void claim_ends_add(int32 queue_id, const ClaimedMessages *claimed,
						   TimestampTz now);
extern void claim_ends_collect(void);
extern TimestampTz claim_ends_next(void);
extern void claim_ends_find_next(void);
extern int32 *claim_ends_due(TimestampTz now, int *n);
extern bool claim_ends_step(int32 queue_id);

#endif							/* QUEUE_CLAIM_ENDS_H */
