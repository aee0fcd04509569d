/*-------------------------------------------------------------------------
 *
 * publish.h
 *	  Publishing: a message to each queue that is bound to its topic.
 *
 * src/push/publish.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PUBLISH_H
#define QUEUE_PUBLISH_H

#include "push/push.h"

extern int	publish_message(const char *topic, const NewMessage *message);

#endif							/* QUEUE_PUBLISH_H */
