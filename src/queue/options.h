/*-------------------------------------------------------------------------
 *
 * options.h
 *	  Options of queues: the reserved keys of their metadata.
 *
 * src/queue/options.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_OPTIONS_H
#define QUEUE_OPTIONS_H

#include "utils/jsonb.h"

#include "catalog/message_table.h"
#include "queue/queue_table.h"

/* Metadata */
extern void options_parse(Jsonb *metadata, Queue *queue, bool check);
extern void options_check(const char *name, Jsonb *metadata);
extern void options_warn(Jsonb *given);
extern void options_set_default_dead_queue(Queue *queue, bool check);

/* What options mean for messages */
extern int	options_default_ttl(const Queue *queue);
extern int	options_deliveries(MessageTable *table, HeapTuple tuple);
extern int	options_attempts(MessageTable *table, HeapTuple tuple);
extern bool options_is_exhausted(const Queue *queue, MessageTable *table,
								 HeapTuple tuple);

#endif							/* QUEUE_OPTIONS_H */
