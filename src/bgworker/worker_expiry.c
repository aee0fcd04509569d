/*-------------------------------------------------------------------------
 *
 * worker_expiry.c
 *	  The worker's passes over messages for those whose lifetime is over.
 *
 * NOTES
 *	  There is no index on lifetimes.  The worker knows when the next message
 *	  of a queue expires, but not which one that is.
 *
 *	  1. A full pass reads all messages of the queue.  In a large queue that
 *	  takes long, so it is done again only after a pause of FULL_SHARE times as
 *	  long.
 *
 *	  2. Meanwhile the worker knows more.  A full pass divides a large queue
 *	  into parts, one for each step, and remembers when the next message of
 *	  each part expires.  A quick pass reads only those parts in which
 *	  something has expired, and what was pushed since.
 *
 *	  A quick pass may miss a message: one that was pushed into a part before,
 *	  but committed after that was read, or one that was canceled while a claim
 *	  held it, which expires with that.  Claims make a message live longer,
 *	  never shorter.
 *
 * src/bgworker/worker_expiry.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "bgworker/worker_internal.h"
#include "claim/expire.h"
#include "util/clock.h"
#include "util/hash.h"

/* Pauses, in times of what the last pass took */
#define FULL_SHARE		50		/* before a full pass */
#define QUICK_SHARE		4		/* before a quick pass, */
#define QUICK_PAUSE		USECS_PER_SEC	/* which is this at least */

#define PARTS_MIN		16		/* initial size of the array */

/* Messages with successive ids */
typedef struct ExpiryPart
{
	int64		last;			/* id of the last one */
	TimestampTz next;			/* none expires before then */
} ExpiryPart;

/* What the last full pass over a large queue, and those since, have found */
struct ExpiryParts
{
	int32		queue_id;		/* key */
	uint64		incarnation;	/* of the queue's map */
	bool		unfinished;		/* a pass has begun, and was not ended */
	int64		full_at;		/* the next full pass, by the monotonic clock */
	int			n;
	int			max;
	ExpiryPart *items;			/* by id */
};

static HTAB *queues = NULL;

/* Forget the parts of a queue, if there are any. */
void
expiry_forget(int32 queue_id)
{
	ExpiryParts *parts = queues == NULL ? NULL :
	hash_search(queues, &queue_id, HASH_FIND, NULL);

	if (parts == NULL)
		return;
	if (parts->items != NULL)
		pfree(parts->items);
	hash_search(queues, &queue_id, HASH_REMOVE, NULL);
}

/* Begin a pass over a queue, whose map has that incarnation. */
void
expiry_begin(ExpiryPass *pass, int32 queue_id, uint64 incarnation)
{
	ExpiryParts *parts;
	bool		found;

	if (queues == NULL)
		queues = hash_create_blobs("parts of queues", sizeof(int32),
								   sizeof(ExpiryParts), TopMemoryContext);
	parts = hash_search(queues, &queue_id, HASH_ENTER, &found);
	if (!found)
	{
		/* Whatever its incarnation, there is no part to be read. */
		parts->incarnation = 0;
		parts->unfinished = true;
		parts->n = parts->max = 0;
		parts->items = NULL;
	}
	pass->began = clock_monotonic();
	pass->now = GetCurrentTimestamp();

	/*
	 * The parts do not hold for another incarnation of the map, nor after a
	 * pass that has failed.
	 */
	pass->full = parts->unfinished || parts->incarnation != incarnation ||
		pass->began >= parts->full_at;
	if (pass->full)
		parts->n = 0;
	parts->incarnation = incarnation;
	parts->unfinished = true;
	pass->parts = parts;
	pass->current = 0;
	pass->marker = -1;
	pass->next = DT_NOEND;
}

/*
 * Remove some expired messages.  Returns false at the end of the pass.  If the
 * transaction fails, the pass must not go on.
 */
bool
expiry_step(const Queue *queue, ExpiryPass *pass)
{
	ExpiryParts *parts = pass->parts;
	int64		before;
	TimestampTz next = DT_NOEND;
	bool		more;

	/* Skip the parts in which nothing has expired. */
	while (pass->current < parts->n &&
		   parts->items[pass->current].next > pass->now)
		pass->marker = parts->items[pass->current++].last;
	if (pass->current < parts->n)
	{
		ExpiryPart *part = &parts->items[pass->current];

		if (expire_messages(queue, &pass->marker, part->last, &pass->next))
		{
			pass->marker = part->last;
			part->next = pass->next;
			pass->next = DT_NOEND;
			pass->current++;
		}
		return true;
	}

	/* Read what follows the parts. */
	before = pass->marker;
	more = !expire_messages(queue, &pass->marker, PG_INT64_MAX, &next);
	if (pass->marker == before)
		return more;
	if (parts->n == parts->max)
	{
		int			max = Max(2 * parts->max, PARTS_MIN);
		Size		size = max * sizeof(ExpiryPart);

		parts->items = parts->items == NULL ?
			MemoryContextAlloc(TopMemoryContext, size) :
			repalloc_huge(parts->items, size);
		parts->max = max;
	}
	parts->items[parts->n++] = (ExpiryPart)
	{
		.last = pass->marker,.next = next
	};
	pass->current = parts->n;
	return more;
}

/* The pass has ended.  Returns when the next one is due. */
TimestampTz
expiry_end(ExpiryPass *pass)
{
	ExpiryParts *parts = pass->parts;
	TimestampTz next = DT_NOEND;
	TimestampTz now = GetCurrentTimestamp();
	int64		clock = clock_monotonic();
	int64		took = clock - pass->began;
	TimestampTz full_at;

	for (int i = 0; i < parts->n; i++)
		next = Min(next, parts->items[i].next);
	parts->unfinished = false;
	if (pass->full)
		parts->full_at = clock + FULL_SHARE * took;
	full_at = now + Max(parts->full_at - clock, 0);
	if (pass->full && (parts->n <= 1 || next >= full_at))
	{
		/* A quick pass would be a full one, or would come later than one. */
		expiry_forget(parts->queue_id);
		return Max(next, full_at);
	}
	next = Max(next, now + Max(QUICK_SHARE * (pass->full ? 0 : took),
							   QUICK_PAUSE));

	/*
	 * A quick pass may have missed messages, so a full one follows in time.
	 */
	return pass->full ? next : Min(next, full_at);
}
