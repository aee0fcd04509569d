/*-------------------------------------------------------------------------
 *
 * dead_letter.h
 *	  Dead letters: messages that were claimed too often.
 *
 * src/queue/dead_letter.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DEAD_LETTER_H
#define QUEUE_DEAD_LETTER_H

#include "access/htup.h"
#include "utils/jsonb.h"

#include "catalog/relations.h"
#include "queue/registry.h"

extern int32 dead_letter_require_queue(const Queue *queue, Jsonb *metadata);
extern void dead_letter_check_drop(const Queue *queue);
extern bool dead_letter_can_move(const Queue *queue);
extern bool dead_letter_move(const Queue *queue, MessageTable *table,
					  HeapTuple tuple);

#endif							/* QUEUE_DEAD_LETTER_H */
