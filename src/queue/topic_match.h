/*-------------------------------------------------------------------------
 *
 * topic_match.h
 *	  The bindings that a topic matches.
 *
 * src/queue/topic_match.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_TOPIC_MATCH_H
#define QUEUE_TOPIC_MATCH_H

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "utils/array.h"
#include "utils/jsonb.h"

/* A binding as a session keeps it, until bindings have changed */
typedef struct TopicBinding
{
	int32		queue_id;
	char	   *queue_name;		/* NULL until it is needed */
	Jsonb	   *filter;			/* or NULL */
	ArrayType  *publishers;		/* or NULL */
	struct TopicBinding *next;	/* of the same pattern */

	/* For publish.c: the copies that were left out since the last log line */
	int64		left_out;
	TimestampTz logged_at;
} TopicBinding;

extern List *topic_match(const char *topic, Jsonb *headers);

#endif							/* QUEUE_TOPIC_MATCH_H */
