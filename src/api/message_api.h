/*-------------------------------------------------------------------------
 *
 * message_api.h
 *	  Functions that return messages; only for the files of api/.
 *
 * src/api/message_api.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MESSAGE_API_H
#define QUEUE_MESSAGE_API_H

#include "fmgr.h"

#include "queue/message_result.h"

extern void message_api_begin(FunctionCallInfo fcinfo, MessageResult *result);

#endif							/* QUEUE_MESSAGE_API_H */
