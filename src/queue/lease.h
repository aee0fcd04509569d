/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  The SQL functions on a claim: query, renew, release, complete; and
 *	  deleting messages, under a claim or without.
 *
 * src/queue/lease.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_LEASE_H
#define QUEUE_LEASE_H

#include "datatype/timestamp.h"
#include "nodes/lockoptions.h"

#include "queue/registry.h"
#include "storage/claim_id.h"
#include "util/compat.h"

extern int64 claim_complete(const Queue *queue, const char *claim_id);
extern bool claim_delete_message(const Queue *queue, int64 id, const ClaimId *claim);
extern bool claim_retry_message(const Queue *queue, int64 id, const ClaimId *claim,
						const char *error, int delay, bool by_handler,
						LockWaitPolicy wait, TimestampTz *due);
pg_noreturn extern void claim_not_live(void);

#endif							/* QUEUE_LEASE_H */
