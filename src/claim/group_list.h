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
	LaneId		lane;			/* the hash key */
	text	   *key;			/* empty for the messages without one */
	StateCounts states;
	TimestampTz oldest;			/* when the one with the lowest id was pushed */
	int			oldest_age;		/* of that one; in seconds */
} GroupCounts;

typedef void (*GroupListCallback) (const GroupCounts *group, void *arg);

extern void group_list(const Queue *queue, const text *marker, int limit,
					   GroupListCallback callback, void *arg);

#endif							/* QUEUE_GROUP_LIST_H */
