/*-------------------------------------------------------------------------
 *
 * topic.h
 *	  Topics: which queues are bound to which patterns.
 *
 * src/queue/topic.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_TOPIC_H
#define QUEUE_TOPIC_H

#include "access/htup.h"
#include "datatype/timestamp.h"
#include "utils/array.h"
#include "utils/jsonb.h"
#include "utils/relcache.h"

/* A binding in a list */
typedef struct TopicEntry
{
	const char *key;			/* the pattern, a space and the queue */
	text	   *pattern;
	char	   *queue;
	Jsonb	   *filter;			/* or NULL */
	ArrayType  *publishers;		/* or NULL */
	TimestampTz bound_at;
} TopicEntry;

typedef void (*TopicCallback) (const TopicEntry *binding, void *arg);

extern void topic_check(const char *topic);

/* Bindings */
extern bool topic_bind(const char *pattern, const char *queue_name,
					   Jsonb *filter, ArrayType *publishers);
extern bool topic_unbind(const char *pattern, const char *queue_name);
extern void topic_drop_queue(int32 queue_id);
extern Jsonb *topic_filter_of(Relation rel, HeapTuple tuple);
extern ArrayType *topic_publishers_of(Relation rel, HeapTuple tuple);
extern void topic_list(const char *marker, int limit, const char *queue_name,
					   TopicCallback callback, void *arg);

#endif							/* QUEUE_TOPIC_H */
