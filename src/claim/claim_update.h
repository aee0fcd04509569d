/*-------------------------------------------------------------------------
 *
 * claim_update.h
 *	  Claims as a whole: describing, renewing, releasing, completing them.
 *
 * src/claim/claim_update.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLAIM_UPDATE_H
#define QUEUE_CLAIM_UPDATE_H

#include "datatype/timestamp.h"

#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "queue/message_result.h"
#include "queue/registry.h"
#include "storage/claim_id.h"
#include "storage/message.h"
#include "util/compat.h"

/* What the messages of a live claim say about it */
typedef struct ClaimInfo
{
	TimestampTz now;			/* when they were read */
	TimestampTz claimed_at;		/* or renewed */
	TimestampTz claimed_until;
	int			grace;			/* seconds */
	int			nmessages;		/* that it still has */
	int			ncanceled;		/* besides those */
} ClaimInfo;

/* Returns whether the message is in this claim, and the claim is live. */
static inline bool
claim_has_message(const ClaimId *claim, const MessageForm *form,
				  TimestampTz now)
{
	return form->claim_token == claim->token && message_is_claimed(form, now);
}

/* Reading */
extern bool claim_is_live(const Queue *queue, const ClaimId *claim);
extern bool claim_get_info(const Queue *queue, const ClaimId *claim,
						   ClaimInfo *info);
extern void claim_get_messages(const Queue *queue, const ClaimId *claim,
							   MessageResult *result);

/* Changing */
extern bool claim_renew(const Queue *queue, const ClaimId *claim, int ttl,
						int grace, TimestampTz *until);
extern int64 claim_release(const Queue *queue, const ClaimId *claim,
						   int delay, bool failed);
extern int64 claim_complete(const Queue *queue, const ClaimId *claim,
							const int64 *ids, int n, bool only, int64 *kept);
extern void claim_keep_only(const Queue *queue, const ClaimId *claim,
							int64 keep, int ttl);

/* For claim_message.c */
extern bool claim_give_back(const Queue *queue, MessageTable *table,
							HeapTuple tuple, TimestampTz due, bool is_retry,
							MessageTable *delayed);
pg_noreturn extern void claim_not_live(void);
pg_noreturn extern void claim_canceled(const Queue *queue,
									   const ClaimId *claim);

#endif							/* QUEUE_CLAIM_UPDATE_H */
