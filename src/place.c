/*-------------------------------------------------------------------------
 *
 * place.c
 *	  Where the next claim of a queue begins to look, as one session knows it.
 *
 * NOTES
 *	  This serves where there is no shared memory (cursor.c), because the
 *	  library is not in shared_preload_libraries.
 *
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
 *	  The place cannot pass a message that is claimed, so that a slow worker
 *	  leaves a growing stretch behind his message in which all else is gone.
 *	  For that the session also remembers single index entries of messages
 *	  that are gone, as many as fit, so that a walk from the place need not
 *	  look them up again.  An entry is told by id and row position: a message
 *	  that was parked meanwhile has come back at another one.  Walks from the
 *	  start do without this memory.
 *
 *	  The memory is the session's own; nothing depends on it but time.
 *
 * src/place.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"

#define LIFETIME			(200 * 1000)	/* microseconds, at least */
#define LIFETIME_PER_WALK	50		/* times what the walk took */
#define LIFETIME_MAX		(10 * 1000 * 1000)	/* should the clock jump */
#define PLACES				1024	/* then all are forgotten */
#define GONE_ENTRIES		4096	/* a power of 2 */

typedef struct Place
{
	int32		queue_id;		/* key */
	MessagePlace place;
	TimestampTz set_at;
	TimestampTz good_until;
} Place;

/* An index entry whose message is gone. */
typedef struct GoneEntry
{
	int64		id;				/* 0: none */
	ItemPointerData tid;
} GoneEntry;

static GoneEntry *gone = NULL;	/* each entry has one place in it */

static HTAB *places = NULL;
static uint64 places_generation = 0;

static GoneEntry *gone_entry(int64 id);

/* Forget everything when tables may have changed, or to save memory. */
static void
forget_if_stale(void)
{
	HASHCTL		info;

	if (places != NULL && places_generation == queue_tables_generation() &&
		hash_get_num_entries(places) < PLACES)
		return;
	if (places != NULL)
	{
		HTAB	   *old = places;

		places = NULL;
		hash_destroy(old);
	}
	info.keysize = sizeof(int32);
	info.entrysize = sizeof(Place);
	info.hcxt = CacheMemoryContext;
	places = hash_create("places in queues", 16, &info,
						  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	places_generation = queue_tables_generation();
}

/* Where to begin; false: at the start. */
bool
place_get(int32 queue_id, TimestampTz now, MessagePlace *place)
{
	Place	   *known;

	forget_if_stale();
	known = hash_search(places, &queue_id, HASH_FIND, NULL);

	/* A clock that stepped back must not make a place last. */
	if (known == NULL || now >= known->good_until || now < known->set_at)
		return false;
	*place = known->place;
	return true;
}

/* A walk that began at the start, at begun, found this place. */
void
place_set(int32 queue_id, const MessagePlace *place, TimestampTz begun)
{
	TimestampTz now = GetCurrentTimestamp();
	Place	   *known;

	forget_if_stale();
	known = hash_search(places, &queue_id, HASH_ENTER, NULL);
	known->place = *place;
	known->set_at = begun;
	known->good_until = now +
		Min(Max(LIFETIME, LIFETIME_PER_WALK * (now - begun)), LIFETIME_MAX);
}

/* One that began at the remembered place did, which is forgotten as before. */
void
place_move(int32 queue_id, const MessagePlace *place)
{
	Place	   *known;

	forget_if_stale();
	known = hash_search(places, &queue_id, HASH_FIND, NULL);
	if (known != NULL)
		known->place = *place;
}

/* Where this id is remembered, if it is; the sequence fills all places. */
static GoneEntry *
gone_entry(int64 id)
{
	return &gone[(id_number(id) ^ (id_number(id) >> ID_BLOCK_BITS)) &
				 (GONE_ENTRIES - 1)];
}

/* The message of this index entry is gone for good. */
void
place_set_gone(int64 id, ItemPointer tid)
{
	GoneEntry  *entry;

	if (gone == NULL)
		gone = MemoryContextAllocZero(TopMemoryContext,
									  GONE_ENTRIES * sizeof(GoneEntry));
	entry = gone_entry(id);
	entry->id = id;
	entry->tid = *tid;
}

/* Is it known to be?  False says nothing. */
bool
place_is_gone(int64 id, ItemPointer tid)
{
	GoneEntry  *entry;

	if (gone == NULL)
		return false;
	entry = gone_entry(id);
	return entry->id == id && ItemPointerEquals(&entry->tid, tid);
}
