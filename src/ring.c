/*-------------------------------------------------------------------------
 *
 * ring.c
 *	  Which segments hold messages, and which one takes new ones.
 *
 * NOTES
 *	  Messages are inserted into the active segment; those in the others are
 *	  what is left of earlier turns.  An empty segment has no pages, so what
 *	  is in use is told by the size of each, looked up when the catalog is
 *	  loaded and again before anything answers "there is nothing" (a restore
 *	  fills tables without telling anybody).
 *
 *	  A segment is only ever truncated under a lock that excludes every user,
 *	  and the truncation sends an invalidation message: a segment that we
 *	  believe to be in use and is empty costs a look, nothing else.
 *
 * src/ring.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

static uint64 known_generation = 0;
static bool in_use[QUEUE_SEGMENTS];

static bool look(bool all);

/* Look at the sizes of all segments, or of those not yet known to be in use. */
static bool
look(bool all)
{
	uint64		generation = queue_catalog_generation();
	bool		grown = false;

	for (int i = 0; i < QUEUE_SEGMENTS; i++)
	{
		if (in_use[i] && !all)
			continue;
		in_use[i] = queue_table_has_pages(i);
		grown |= in_use[i];
	}

	known_generation = generation;
	return grown;
}

/*
 * May this segment hold messages?  The active one may at any time; of the
 * others, false is only as new as the last ring_refresh.
 */
bool
ring_in_use(int segment)
{
	if (known_generation != queue_catalog_generation())
		look(true);
	return in_use[segment] || segment == queue_active_segment();
}

/* The only segment that holds messages, or -1 when there are more or none. */
int
ring_only_segment(void)
{
	int			only = -1;

	for (int i = 0; i < QUEUE_SEGMENTS; i++)
		if (ring_in_use(i))
		{
			if (only >= 0)
				return -1;
			only = i;
		}
	return only;
}

/* Look for segments that have come into use; true when there are some. */
bool
ring_refresh(void)
{
	return look(known_generation != queue_catalog_generation());
}

/* Open the segment that new messages go to, for inserting. */
void
ring_open_active(MessageTable *table)
{
	for (;;)
	{
		int			active = queue_active_segment();

		queue_open_table(table, active, RowExclusiveLock);

		/* Now that we hold the lock nobody can truncate it: is it still? */
		if (queue_active_segment() == active)
			break;
		queue_close_table(table, false);
	}
	in_use[table->segment] = true;
}
