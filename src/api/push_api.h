/*-------------------------------------------------------------------------
 *
 * push_api.h
 *	  The SQL functions that push messages.
 *
 * src/api/push_api.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PUSH_API_H
#define QUEUE_PUSH_API_H

#include "fmgr.h"
#include "utils/jsonb.h"

#include "queue/push.h"
#include "queue/registry.h"

extern const char *push_args(FunctionCallInfo fcinfo, NewMessage *message);
extern void push_check_size(Jsonb *body);
extern void push_defaults(const Queue *queue, NewMessage *message);

#endif							/* QUEUE_PUSH_API_H */
