/*-------------------------------------------------------------------------
 *
 * claim.h
 *	  Handing out messages: claim and pop.
 *
 * src/claim/claim.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLAIM_H
#define QUEUE_CLAIM_H

#include "utils/snapshot.h"

#include "claim/claim_scan.h"
#include "queue/message_result.h"
#include "queue/registry.h"
#include "storage/claim_id.h"

/* What the caller of a claim asks for */
typedef struct ClaimTerms
{
	int			ttl;			/* seconds that the claim lasts */
	int			grace;			/* seconds that its messages live beyond that,
								 * at least */
	int			limit;			/* messages, at most */
	TimestampTz until;			/* when it ends; 0 if ttl says so */
} ClaimTerms;

/*
 * Claim from one opened queue.  The messages are added to the result; the
 * first two functions return their number.
 */
extern int	claim_from_queue(const Queue *queue, const ClaimTerms *terms,
							 MessageResult *result);
extern int	claim_for_handler(const Queue *queue, const ClaimTerms *terms,
							  MessageResult *result);
extern void claim_pop(const Queue *queue, int limit, MessageResult *result);

/* For visibility.c */
extern HeapTuple claim_mark_message(ChosenMessage *message,
									const ClaimId *claim, TimestampTz now,
									const ClaimTerms *terms,
									Snapshot snapshot);

/*
 * Claim from the first of several queues that has something.  *queue is
 * filled in and has to live as long as the result, which refers to it.
 */
extern void claim_from_queues(const char **names, int n,
							  const ClaimTerms *terms, MessageResult *result,
							  Queue *queue);

#endif							/* QUEUE_CLAIM_H */
