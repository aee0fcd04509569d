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

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "utils/array.h"
#include "utils/jsonb.h"

/* A binding as a session keeps it, until bindings have changed */
typedef struct TopicBinding
{
	char	   *project;
	char	   *pattern;
	char	   *key;			/* both, with a newline and a dot between them */
	int32		queue_id;
	const char *queue_name;		/* "" if it was not needed, or was dropped */
	Jsonb	   *filter;			/* or NULL */
	ArrayType  *publishers;		/* or NULL */
	TimestampTz bound_at;

	/* For push.c: the copies that were left out since the last log line */
	int64		left_out;
} TopicBinding;

/* Writing */
extern bool topic_bind(const char *pattern, const char *queue_name,
					   Jsonb *filter, ArrayType *publishers);
extern bool topic_unbind(const char *pattern, const char *queue_name);
extern bool topic_remove(int32 queue_id, const char *pattern);

/* Reading */
extern List *topic_match(const char *topic, Jsonb *headers);
extern List *topic_list(const char *marker, const char *queue_name);

#endif							/* QUEUE_TOPIC_H */
