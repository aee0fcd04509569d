/*-------------------------------------------------------------------------
 *
 * claim_keep.h
 *	  Claims of those who run jobs inside the server.
 *
 * src/queue/claim_keep.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLAIM_KEEP_H
#define QUEUE_CLAIM_KEEP_H

#include "nodes/lockoptions.h"

#include "queue/registry.h"
#include "storage/claim_id.h"

extern void claim_keep_only(const Queue *queue, const ClaimId *claim, int64 keep,
					  int ttl, LockWaitPolicy wait);

#endif							/* QUEUE_CLAIM_KEEP_H */
