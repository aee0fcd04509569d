/*-------------------------------------------------------------------------
 *
 * claim_message.h
 *	  Single messages: deleting, retrying and burying them.
 *
 * src/claim/claim_message.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLAIM_MESSAGE_H
#define QUEUE_CLAIM_MESSAGE_H

#include "datatype/timestamp.h"
#include "nodes/lockoptions.h"
#include "utils/jsonb.h"

#include "queue/registry.h"
#include "storage/claim_id.h"

/* The claim is NULL for messages that are not claimed. */
extern bool claim_delete_message(const Queue *queue, int64 id,
								 const ClaimId *claim, Jsonb *result);
extern int64 claim_delete_messages(const Queue *queue, Datum *ids, int n,
								   const ClaimId *claim, bool live);

extern TimestampTz claim_retry_message(const Queue *queue, int64 id,
									   const ClaimId *claim,
									   const char *error, int delay,
									   bool is_live);
extern void claim_retry_job(const Queue *queue, int64 id,
							const ClaimId *claim, const char *error,
							LockWaitPolicy wait);

/* Called for a queue that needs a dead letter queue and has none */
typedef void (*ClaimDeadLetters) (const Queue *queue);

extern void claim_register_dead_letters(ClaimDeadLetters function);
extern void claim_prepare_bury(Queue *queue);
extern void claim_bury_message(const Queue *queue, int64 id,
							   const ClaimId *claim, const char *error,
							   bool is_live);

/* Messages that no claim holds */
extern int64 claim_run_now(const Queue *queue, Datum *ids, int n);
extern int64 claim_bury_unclaimed(const Queue *queue, Datum *ids, int n,
								  const char *error);

#endif							/* QUEUE_CLAIM_MESSAGE_H */
