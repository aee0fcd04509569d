/*-------------------------------------------------------------------------
 *
 * group_list.h
 *	  The groups of a queue and the number of their messages.
 *
 * src/claim/group_list.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_GROUP_LIST_H
#define QUEUE_GROUP_LIST_H

#include "queue/message_list.h"
#include "queue/registry.h"

/* The messages of a group, counted */
typedef struct GroupCounts
{
	text	   *key;			/* NULL for the messages without one */
	StateCounts states;
	int			oldest_age;		/* of the lowest id; in seconds */
} GroupCounts;

typedef void (*GroupListCallback) (const GroupCounts *group, void *arg);

extern void group_list(const Queue *queue, const text *marker, int limit,
					   GroupListCallback callback, void *arg);

#endif							/* QUEUE_GROUP_LIST_H */
