/*-------------------------------------------------------------------------
 *
 * dead_letter_queue.h
 *	  Dead letter queues that the metadata of other queues requires.
 *
 * src/commands/dead_letter_queue.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DEAD_LETTER_QUEUE_H
#define QUEUE_DEAD_LETTER_QUEUE_H

#include "utils/jsonb.h"

#include "queue/registry.h"

extern int32 dead_letter_queue_require(const Queue *queue, Jsonb *metadata,
									   bool is_default);
extern void dead_letter_queue_check_drop(const Queue *queue);

#endif							/* QUEUE_DEAD_LETTER_QUEUE_H */
