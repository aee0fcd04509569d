/*-------------------------------------------------------------------------
 *
 * cursor.c
 *	  Where the next claim of a queue begins to look.
 *
 * NOTES
 *	  A claim that begins at the queue's first index entry walks over the
 *	  entries of all messages that were consumed since the last vacuum, or
 *	  since some old transaction began that vacuum has to wait for.  So a
 *	  session remembers, for each queue, where its last walk met the first
 *	  message that was not gone: one is gone when its deletion is committed,
 *	  or its insertion rolled back.  Nothing comes back from before that place.
 *
 *	  What may still turn up before that place is a message whose push had
 *	  taken its id, but not yet written its entry when we passed, and one that
 *	  comes back from being parked under its old id.  Neither stays hidden: a
 *	  place is forgotten after a while, and a claim that finds nothing looks
 *	  again from the start before it says so.  Until then such a message is
 *	  late by that much.  The while is long where the walk from the start was
 *	  long, so that these walks take a small part of the time.
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

#define LIFETIME			(200 * 1000)	/* microseconds, at least */
#define LIFETIME_PER_WALK	50		/* times what the walk took */
#define LIFETIME_MAX		(10 * 1000 * 1000)	/* should the clock jump */
#define CURSORS				1024	/* then all are forgotten */

typedef struct Cursor
{
	int32		queue_id;		/* key */
	CursorPlace place;
	TimestampTz set_at;
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
	{
		HTAB	   *old = cursors;

		cursors = NULL;
		hash_destroy(old);
	}
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
	if (cursor == NULL || now >= cursor->good_until || now < cursor->set_at)
		return false;
	*place = cursor->place;
	return true;
}

/* A walk that began at the start, at begun, found this place. */
void
cursor_set(int32 queue_id, const CursorPlace *place, TimestampTz begun)
{
	TimestampTz now = GetCurrentTimestamp();
	Cursor	   *cursor;

	forget_if_stale();
	cursor = hash_search(cursors, &queue_id, HASH_ENTER, NULL);
	cursor->place = *place;
	cursor->set_at = begun;
	cursor->good_until = now +
		Min(Max(LIFETIME, LIFETIME_PER_WALK * (now - begun)), LIFETIME_MAX);
}

/* One that began at the remembered place did, which is forgotten as before. */
void
cursor_move(int32 queue_id, const CursorPlace *place)
{
	Cursor	   *cursor;

	forget_if_stale();
	cursor = hash_search(cursors, &queue_id, HASH_FIND, NULL);
	if (cursor != NULL)
		cursor->place = *place;
}
