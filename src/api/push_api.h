/*-------------------------------------------------------------------------
 *
 * push_api.h
 *	  What the SQL functions that push messages share.
 *
 * src/api/push_api.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PUSH_API_H
#define QUEUE_PUSH_API_H

#include "fmgr.h"

#include "push/push.h"

/* New messages */
extern NewMessage *push_alloc_messages(const char *arg, int n);
extern void push_set_dedup_key(NewMessage *message, const char *key);
extern void push_set_group_key(NewMessage *message, text *key);
extern void push_get_message(FunctionCallInfo fcinfo, int body, int ttl,
							 int dedup_key, int group_key, int headers,
							 NewMessage *message);
extern void push_set_at(NewMessage *message, TimestampTz at);
extern void push_set_dedup(NewMessage *message, const char *mode);
extern void push_set_period(NewMessage *message, int64 seconds);
extern void push_check_dedup(const NewMessage *message);
extern int64 push_batch_id(int64 id);
extern Datum push_ids_array(NewMessage *messages, int n);

#endif							/* QUEUE_PUSH_API_H */
