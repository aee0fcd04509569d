/*-------------------------------------------------------------------------
 *
 * visibility.h
 *	  Visibility timeouts: messages that are hidden one by one.
 *
 * src/claim/visibility.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_VISIBILITY_H
#define QUEUE_VISIBILITY_H

#include "datatype/timestamp.h"

#include "claim/claim.h"
#include "queue/message_result.h"
#include "queue/registry.h"

extern void visibility_claim(const Queue *queue, const Datum *ids, int n,
							 bool skip, const ClaimTerms *terms,
							 MessageResult *result);
extern void visibility_set(const Queue *queue, const Datum *ids, int n,
						   TimestampTz until, MessageResult *result);
extern bool visibility_delete(const Queue *queue, int64 id, bool record,
							  Jsonb *result);
extern void visibility_list(const Queue *queue, const Datum *ids, int n,
							MessageResult *result);

#endif							/* QUEUE_VISIBILITY_H */
