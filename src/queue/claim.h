/*-------------------------------------------------------------------------
 *
 * claim.h
 *	  The SQL functions that hand out messages: claim and pop.
 *
 * src/queue/claim.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLAIM_H
#define QUEUE_CLAIM_H

#include "utils/array.h"

#include "queue/message_result.h"
#include "queue/registry.h"

extern const char **arg_queue_names(ArrayType *array, int *n);
extern int	claim_for_handler(const Queue *queue, int ttl, int grace, int limit,
					   MessageResult *result);

#endif							/* QUEUE_CLAIM_H */
