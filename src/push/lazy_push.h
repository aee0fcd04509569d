/*-------------------------------------------------------------------------
 *
 * lazy_push.h
 *	  Pushes that are done when the transaction commits.
 *
 * src/push/lazy_push.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_LAZY_PUSH_H
#define QUEUE_LAZY_PUSH_H

#include "push/push.h"
#include "util/xact.h"

extern XactList lazy_pushes;
extern void lazy_push_add(const char *queue_name, const NewMessage *message);

#endif							/* QUEUE_LAZY_PUSH_H */
