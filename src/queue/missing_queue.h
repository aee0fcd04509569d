/*-------------------------------------------------------------------------
 *
 * missing_queue.h
 *	  Notices about queues, each once in a session.
 *
 * src/queue/missing_queue.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MISSING_QUEUE_H
#define QUEUE_MISSING_QUEUE_H

#include "queue/queue_table.h"
#include "queue/registry.h"

extern bool queue_open_or_notice(const char *name, QueueAccess access,
								 Queue *queue);
extern void queue_notice_missing(const char *name);
extern void queue_notice_result(const char *name);
extern void queue_notice_dead_letters(const Queue *queue);

#endif							/* QUEUE_MISSING_QUEUE_H */
