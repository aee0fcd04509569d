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
#include "nodes/pg_list.h"
#include "utils/jsonb.h"

#include "push/dedup.h"
#include "queue/registry.h"
#include "storage/claim_id.h"
#include "storage/message.h"

/* The claim is NULL for messages that are not claimed. */
extern int64 claim_delete_messages(const Queue *queue, Datum *ids, int n,
								   const ClaimId *claim, bool live,
								   Jsonb *result);

/* How a message is to be given back that has failed */
typedef struct RetryTerms
{
	const char *error;			/* stored with it; NULL keeps the last */
	int			delay;			/* seconds; -1 for what the queue says */
	bool		is_live;		/* this transaction has locked or changed
								 * messages of the claim, so that it was live,
								 * even if it has none left */
	bool		for_job;		/* the server called its handler, which must
								 * not fail with it again and again without a
								 * pause; if it was canceled, it is removed */
	bool		bury;			/* it becomes a dead letter instead, whatever
								 * its attempts; an error if that is not
								 * possible now */
	LockWaitPolicy wait;		/* LockWaitBlock, or LockWaitError in a
								 * background process */
} RetryTerms;

extern TimestampTz claim_retry_message(const Queue *queue, int64 id,
									   const ClaimId *claim,
									   RetryTerms *terms);

/* Called for a queue that needs a dead letter queue and has none */
typedef void (*ClaimDeadLetters) (const Queue *queue);

extern void claim_register_dead_letters(ClaimDeadLetters function);
extern void claim_prepare_bury(Queue *queue);

/* A call that changes messages which the caller names by their ids */
typedef struct MessageChange
{
	/*
	 * Changes one.  Returns false if another transaction has changed it
	 * meanwhile; then it is found again.
	 */
	bool		(*action) (const Queue *queue, FoundMessage *message,
						   struct MessageChange *change);
	const char *error;			/* stored with them, or NULL */
	List	   *entries;		/* DedupEntries that the caller has to drop */

	/* Set by the action, of one message */
	bool		is_done;		/* it was changed, and counts */
	bool		is_pending;		/* a claim holds it: it was only marked */
	DedupEntry *entry;			/* of its key, or NULL */
} MessageChange;

extern int64 claim_change_messages(const Queue *queue, Datum *ids, int64 n,
								   MessageChange *change);
extern void claim_drop_entries(List *entries);

/* Messages that no claim holds */
extern int64 claim_run_now(const Queue *queue, Datum *ids, int n);
extern int64 claim_bury_unclaimed(const Queue *queue, Datum *ids, int n,
								  const char *error);

#endif							/* QUEUE_CLAIM_MESSAGE_H */
