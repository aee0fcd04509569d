/*-------------------------------------------------------------------------
 *
 * lanes.c
 *	  Lanes: the groups of a queue in which something may be free, in turn.
 *
 * NOTES
 *	  A lane is a sequence of messages that claims take in order: those of one
 *	  group of a queue, or those without a key.  Shared memory has an entry for
 *	  each lane in which something may be free now: the ranges of numbers where
 *	  that is.  Messages of other lanes may lie in the same ranges.  A lane
 *	  without such a range has no entry, so a group costs nothing as long as it
 *	  has nothing to claim.  Everything else, such as when claims run out, is
 *	  in the availability map of the queue, whatever the lane.
 *
 *	  The lanes of a queue form a ring, in the order of their turns.  A lane
 *	  begins at the end of the ring.  A claim takes a range of the first one,
 *	  which then goes to the end if it has another range, and else is gone
 *	  until something is added to it.
 *
 *	  Lanes are found by the map of their queue and the number of the lane, in
 *	  a hash table.  The lock of the map protects its ring and the ranges of
 *	  its lanes.  The lock of all lanes, which is taken after that, protects the
 *	  hash table and the list of unused entries; it is held for a few
 *	  instructions.
 *
 *	  There are as many entries as there can be maps.  If there is no room, the
 *	  caller has to leave what it would have added in the map.
 *
 *	  The memory of an entry that was never used is never written.
 *
 * src/shmem/lanes.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "storage/shmem.h"

#include "shmem/lanes.h"
#include "shmem/shmem.h"
#include "util/settings.h"

/* Entries have numbers from 1 on; 0: none */
typedef uint32 LaneNumber;

typedef struct Lane
{
	/* The key */
	uint32		map;			/* number of the queue's map */
	uint64		lane;

	LaneNumber	next_in_bucket; /* or, of an unused entry, the next of these */
	LaneNumber	previous_turn;	/* in the ring */
	LaneNumber	next_turn;
	MessageRanges ranges;		/* something may be free there, at once */
} Lane;

/* It is followed by the buckets of the hash table, and by the entries. */
typedef struct LaneTable
{
	LWLock	   *lock;
	uint32		size;			/* entries, and buckets */
	LaneNumber	used;			/* the highest number that was ever used */
	LaneNumber	unused;			/* the first unused one below that, or 0 */
} LaneTable;

static LaneTable *table = NULL;
static LaneNumber *buckets = NULL;
static Lane *entries = NULL;	/* entries[0] is not used */

static LaneNumber *bucket_of(uint32 map, uint64 lane);
static Lane *find(uint32 map, uint64 lane);
static Lane *create(uint32 map, uint64 lane);
static void destroy(Lane *entry);
static void enter_ring(AvailabilityMap *map, Lane *entry);
static void leave_ring(AvailabilityMap *map, Lane *entry);
static void take_first_range(AvailabilityMap *map, Lane *entry, int64 width,
							 MessageRange *range);

/* --- Setting up --- */

Size
lanes_size(void)
{
	Size		n = (Size) setting_max_availability_maps;
	Size		size = MAXALIGN(sizeof(LaneTable));

	size = add_size(size, MAXALIGN(mul_size(n, sizeof(LaneNumber))));
	return add_size(size, mul_size(n + 1, sizeof(Lane)));
}

/* Called with AddinShmemInitLock held. */
void
lanes_startup(LWLock *lock)
{
	uint32		n = (uint32) setting_max_availability_maps;
	bool		found;
	char	   *memory = ShmemInitStruct("queue lanes", lanes_size(), &found);

	table = (LaneTable *) memory;
	buckets = (LaneNumber *) (memory + MAXALIGN(sizeof(LaneTable)));
	entries = (Lane *) ((char *) buckets +
						MAXALIGN(n * sizeof(LaneNumber)));
	if (found)
		return;
	table->lock = lock;
	table->size = n;
	table->used = table->unused = 0;
	memset(buckets, 0, n * sizeof(LaneNumber));
}

/* --- The hash table --- */

static LaneNumber *
bucket_of(uint32 map, uint64 lane)
{
	return &buckets[hash_combine64(lane, murmurhash32(map)) % table->size];
}

/* NULL: there is none.  The map is locked. */
static Lane *
find(uint32 map, uint64 lane)
{
	LaneNumber	i;

	LWLockAcquire(table->lock, LW_SHARED);
	i = *bucket_of(map, lane);
	while (i != 0 && (entries[i].map != map || entries[i].lane != lane))
		i = entries[i].next_in_bucket;
	LWLockRelease(table->lock);
	return i == 0 ? NULL : &entries[i];
}

/* NULL: there is no room. */
static Lane *
create(uint32 map, uint64 lane)
{
	Lane	   *entry = NULL;

	LWLockAcquire(table->lock, LW_EXCLUSIVE);
	if (table->unused != 0)
	{
		entry = &entries[table->unused];
		table->unused = entry->next_in_bucket;
	}
	else if (table->used < table->size)
		entry = &entries[++table->used];
	if (entry != NULL)
	{
		LaneNumber *bucket = bucket_of(map, lane);

		entry->map = map;
		entry->lane = lane;
		entry->next_in_bucket = *bucket;
		*bucket = (LaneNumber) (entry - entries);
	}
	LWLockRelease(table->lock);
	if (entry != NULL)
		entry->ranges.n = 0;
	return entry;
}

static void
destroy(Lane *entry)
{
	LaneNumber	number = (LaneNumber) (entry - entries);
	LaneNumber *i;

	LWLockAcquire(table->lock, LW_EXCLUSIVE);
	i = bucket_of(entry->map, entry->lane);
	while (*i != number)
		i = &entries[*i].next_in_bucket;
	*i = entry->next_in_bucket;
	entry->next_in_bucket = table->unused;
	table->unused = number;
	LWLockRelease(table->lock);
}

/* --- The ring of a queue --- */

/* At its end: before the first one */
static void
enter_ring(AvailabilityMap *map, Lane *entry)
{
	LaneNumber	number = (LaneNumber) (entry - entries);

	if (map->first_lane == 0)
	{
		entry->previous_turn = entry->next_turn = number;
		map->first_lane = number;
	}
	else
	{
		Lane	   *first = &entries[map->first_lane];

		entry->next_turn = map->first_lane;
		entry->previous_turn = first->previous_turn;
		entries[first->previous_turn].next_turn = number;
		first->previous_turn = number;
	}
	map->nlanes++;
}

static void
leave_ring(AvailabilityMap *map, Lane *entry)
{
	entries[entry->previous_turn].next_turn = entry->next_turn;
	entries[entry->next_turn].previous_turn = entry->previous_turn;
	if (map->first_lane == (LaneNumber) (entry - entries))
		map->first_lane = entry->next_turn;
	if (--map->nlanes == 0)
		map->first_lane = 0;
}

/*
 * Something may be free in this range, now.  False: there is no room for the
 * lane.
 */
bool
lanes_add(AvailabilityMap *map, uint64 lane, const MessageRange *range,
		  TimestampTz now)
{
	uint32		number = shmem_map_number(map);
	Lane	   *entry = find(number, lane);

	if (entry == NULL)
	{
		entry = create(number, lane);
		if (entry == NULL)
			return false;
		enter_ring(map, entry);
	}
	message_ranges_add(&entry->ranges, range, now);
	return true;
}

/*
 * Take the first range of a lane, or the beginning of one that has more numbers
 * than "width".
 */
static void
take_first_range(AvailabilityMap *map, Lane *entry, int64 width,
				 MessageRange *range)
{
	int			first = 0;

	for (int i = 1; i < entry->ranges.n; i++)
		if (message_range_is_before(&entry->ranges.items[i],
									&entry->ranges.items[first]))
			first = i;
	*range = entry->ranges.items[first];
	if (range->last - range->first < width)
		message_ranges_remove(&entry->ranges, first);
	else
	{
		range->last = range->first + width - 1;
		entry->ranges.items[first].first = range->last + 1;
	}
	if (entry->ranges.n == 0)
	{
		leave_ring(map, entry);
		destroy(entry);
	}
}

/* The lane whose turn it is, and its first range.  False: there is none. */
bool
lanes_take(AvailabilityMap *map, int64 width, uint64 *lane,
		   MessageRange *range)
{
	Lane	   *entry = &entries[map->first_lane];

	if (map->first_lane == 0)
		return false;
	*lane = entry->lane;
	map->first_lane = entry->next_turn;
	take_first_range(map, entry, width, range);
	return true;
}

/* The next range of that lane.  False: it has none. */
bool
lanes_take_more(AvailabilityMap *map, int64 width, uint64 lane,
				MessageRange *range)
{
	Lane	   *entry = find(shmem_map_number(map), lane);

	if (entry == NULL)
		return false;
	take_first_range(map, entry, width, range);
	return true;
}

/* Forget all lanes of a queue. */
void
lanes_forget(AvailabilityMap *map)
{
	while (map->first_lane != 0)
	{
		Lane	   *entry = &entries[map->first_lane];

		leave_ring(map, entry);
		destroy(entry);
	}
}

/*
 * The ranges of the first lanes, as many as fit.  False: there are others.
 */
bool
lanes_list(const AvailabilityMap *map, MessageRange *ranges, int max, int *n)
{
	LaneNumber	i = map->first_lane;

	*n = 0;
	for (int left = map->nlanes; left > 0; left--)
	{
		const MessageRanges *lane = &entries[i].ranges;

		if (*n + lane->n > max)
			return false;
		memcpy(&ranges[*n], lane->items, lane->n * sizeof(MessageRange));
		*n += lane->n;
		i = entries[i].next_turn;
	}
	return true;
}
