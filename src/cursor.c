/*-------------------------------------------------------------------------
 *
 * cursor.c
 *	  Where the next claim of a queue begins to look.
 *
 * NOTES
 *	  A claim that begins at the queue's first index entry walks over the
 *	  entries of all messages that were consumed since the last vacuum.  So a
 *	  session remembers, for each queue, the first message that its last walk
 *	  saw, if every entry before it was dead to all transactions.  No message
 *	  comes back from there: those that are claimed, or whose deletion or
 *	  insertion is not yet settled, are not dead to all.
 *
 *	  What may still turn up before that place is a message whose push had
 *	  taken its id, but not yet written its entry when we passed, and one that
 *	  comes back from being parked under its old id.  Neither stays hidden: a
 *	  place is forgotten after CURSOR_LIFETIME, and a claim that finds nothing
 *	  looks again from the start before it says so.  Until then such a message
 *	  is late by that much.
 *
 *	  The memory is the session's own; nothing depends on it but time.
 *
 * src/cursor.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"

#define CURSOR_LIFETIME		(200 * 1000)	/* microseconds */
#define CURSORS				1024	/* then all are forgotten */

typedef struct Cursor
{
	int32		queue_id;		/* key */
	CursorPlace place;
	TimestampTz good_until;
} Cursor;

static HTAB *cursors = NULL;
static uint64 cursors_generation = 0;

/* Forget everything when tables may have changed, or to save memory. */
static void
forget_if_stale(void)
{
	HASHCTL		info;

	if (cursors != NULL && cursors_generation == queue_catalog_generation() &&
		hash_get_num_entries(cursors) < CURSORS)
		return;
	if (cursors != NULL)
		hash_destroy(cursors);
	info.keysize = sizeof(int32);
	info.entrysize = sizeof(Cursor);
	info.hcxt = CacheMemoryContext;
	cursors = hash_create("cursors of queues", 16, &info,
						  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	cursors_generation = queue_catalog_generation();
}

/* Where to begin; false: at the start. */
bool
cursor_get(int32 queue_id, TimestampTz now, CursorPlace *place)
{
	Cursor	   *cursor;

	forget_if_stale();
	cursor = hash_search(cursors, &queue_id, HASH_FIND, NULL);

	/* A clock that stepped back must not make a place last. */
	if (cursor == NULL || now >= cursor->good_until ||
		now < cursor->good_until - CURSOR_LIFETIME)
		return false;
	*place = cursor->place;
	return true;
}

/*
 * Everything before this place was seen to be dead to all, in a walk that
 * began at the start, or (from_cursor) at the remembered place: then it is
 * forgotten no later than that would have been.
 */
void
cursor_set(int32 queue_id, const CursorPlace *place, TimestampTz now,
		   bool from_cursor)
{
	Cursor	   *cursor;
	bool		found;

	forget_if_stale();
	cursor = hash_search(cursors, &queue_id, HASH_ENTER, &found);
	if (!found || !from_cursor)
		cursor->good_until = now + CURSOR_LIFETIME;
	cursor->place = *place;
}

/* Begin at the start the next time. */
void
cursor_forget(int32 queue_id)
{
	forget_if_stale();
	hash_search(cursors, &queue_id, HASH_REMOVE, NULL);
}
