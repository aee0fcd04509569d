/*-------------------------------------------------------------------------
 *
 * lanes.c
 *	  Lanes: the groups of a queue in which something may be free, in turn.
 *
 * NOTES
 *	  A lane is a sequence of messages that claims take in order: those of one
 *	  group of a queue, or those without a key.  Shared memory has an entry for
 *	  each lane in which something may be free now; and for each group with a
 *	  bound of which something was delivered and may be unfinished.  Any other
 *	  lane has no entry, so a group costs nothing as long as it has nothing to
 *	  claim.  When claims end is in the availability map of the queue, whatever
 *	  the lane.
 *
 *	  1. Turns.  The lanes of a queue form a ring, in the order of their turns.
 *	  A lane begins at the end of the ring.  A claim takes a range of the first
 *	  one, which then goes to the end if it has another range, and else leaves
 *	  the ring until something is added to it.  It is the first one again if
 *	  its first message does not fit into the claim (lanes_keep_turn).
 *
 *	  2. Pieces.  For each priority a lane has a list of pieces: ranges of
 *	  message numbers in which something may be free, in order.  Messages of
 *	  other lanes may lie between the first and the last number of a piece, and
 *	  claims pass over them; so only numbers that are close are in one piece.  A
 *	  new piece that belongs far from both ends of a long list makes an earlier
 *	  one so long that it includes it; so the order stays.
 *
 *	  3. Groups with a bound.  Only so many messages of a group may be under
 *	  live claims.  Rows are the count, but a claim does not want to read the
 *	  whole queue for it.  So each lane has a second list: ranges of what was
 *	  delivered and may be unfinished.  It may hold too much, but it must
 *	  include each message under a live claim, or the bound is exceeded:
 *
 *	  - The callback at the end of the claim's transaction adds the claimed
 *	  messages (availability_add_range).  The group is locked from before the
 *	  count to the end of the transaction, and heavyweight locks are released
 *	  after that callback.  So the next claim that locks the group finds them.
 *
 *	  - The callback of a commit cuts exactly the messages that were deleted
 *	  (pending_record_room, lanes_make_room).
 *
 *	  - A claim that has locked the group and counted replaces the ranges that
 *	  it has read by those of the unfinished messages (lanes_set_delivered).
 *
 *	  A lane whose group is full, or that has nothing free, rests: it is in a
 *	  second ring, which has no turns.  So does a lane of a queue with a bound
 *	  from when a claim takes a range of it until that is given back
 *	  (is_taken): others would overtake the messages in that range.  A claim
 *	  reads the rows while others change the lane.  So each change takes a new
 *	  number of the map (lane_changes), and the lane rests after the claim only
 *	  if it has the number that lanes_take() has returned (lanes_end).  Whatever may leave
 *	  room gives the lane a turn again: something is added, delivered or
 *	  deleted, a group is unlocked.  A claim lets a full lane rest only if all
 *	  that it has counted is under claims, and none of it is locked or being
 *	  changed, since no callback reports the end of a prepared transaction.
 *
 *	  If there is no room for what was delivered, the callers note that in the
 *	  map (knows_delivered); see availability.c.
 *
 *	  4. Groups with a rate.  A claim that finds that the rate of a group allows
 *	  nothing before a time (group_rate.c) says so (lanes_end).  Until then the
 *	  lane waits: it is in a heap that has the earliest time first, and has no
 *	  turn.  The next claim, or the worker, gives a turn to the lanes whose time
 *	  has come (lanes_wake).
 *
 *	  5. Room.  Lanes are in a table that grows (shmem_table.c), up to half as
 *	  many more than there can be maps, and so are the pieces beside them.
 *	  What adds lanes at the end of a transaction cannot wait for memory; so
 *	  lanes_grow() is called before.  If there is no unused lane
 *	  nevertheless, or no piece for what comes behind all others of its list,
 *	  the caller has to leave what it would have added in the map.  What belongs
 *	  in between makes the next piece grow instead.  A part of both is only for
 *	  what was delivered, or is given back.
 *
 *	  6. Locks.  Lanes are found by the map of their queue and the number of the
 *	  lane, in the index of the table.  The lock of the map protects its rings,
 *	  its heap and the pieces of its lanes.  The lock of all lanes, which is
 *	  taken after that, protects the index and the lists of unused entries; it
 *	  is held for a few instructions.
 *
 * src/map/lanes.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"

#include "map/lanes.h"
#include "shmem/shmem.h"
#include "shmem/shmem_table.h"
#include "util/settings.h"

/* Numbers between messages of one piece, at most */
#define PIECE_GAP	32

/* How far from the end of a list a new piece is inserted */
#define STEPS_MAX	1000

#define PIECES_PER_LANE	10

/*
 * This part of the entries is for what needs one for sure: what was delivered,
 * and what is given back.
 */
#define RESERVE_SHARE	8

typedef struct Piece
{
	int64		first;
	int64		last;
	EntryNumber previous;		/* in the list */
	EntryNumber next;			/* or, if it is not used, the next unused one */
	int16		priority;
	bool		delayed;		/* see MessageRange */
} Piece;

typedef struct PieceList
{
	EntryNumber first;
	EntryNumber last;
} PieceList;

typedef enum LanePlace
{
	LANE_HAS_TURN,				/* in the ring of turns */
	LANE_RESTS,					/* in the other ring, until something changes */
	LANE_WAITS					/* in the heap, until a time */
} LanePlace;

typedef struct Lane
{
	TableEntry	entry;
	EntryNumber number;			/* of the lane; never changes */

	/* The key */
	EntryNumber map;			/* number of the queue's map */
	uint64		lane;

	EntryNumber previous;		/* in a ring; in the heap: the left child */
	EntryNumber next;			/* in a ring; in the heap: the right child;
								 * or, if it is not used, the next unused one */
	EntryNumber parent;			/* in the heap; 0: it is the first */
	PieceList	pieces[QUEUE_PRIORITIES];	/* something may be free there */

	LanePlace	place;

	/* Groups with a bound, or a rate */
	bool		is_taken;		/* a claim looks at it: others must not
								 * overtake it */
	bool		is_full;		/* no message can be handed out */
	uint32		changed;		/* map->lane_changes, when something may have
								 * made room */
	PieceList	delivered;		/* what was delivered and may be unfinished */
	TimestampTz not_before;		/* its rate allows nothing earlier; 0: it may */
} Lane;

/* Which entries of an array are used */
typedef struct Pool
{
	uint32		n;				/* in use */
	EntryNumber used;			/* the highest number that was ever used */
	EntryNumber unused;			/* the first unused one below that, or 0 */
} Pool;

/* What is shared besides the lanes and pieces themselves */
typedef struct SharedLanes
{
	LWLock		lock;
	SharedTable table;
	Pool		lanes;
	Pool		pieces;
} SharedLanes;

static SharedLanes *shared = NULL;

/* A part also has the pieces. */
static Table lanes =
{
	.entry_size = MAXALIGN(sizeof(Lane)),
	.extra_size = TABLE_FIRST_PART * PIECES_PER_LANE * sizeof(Piece)
};

static void init(void *area);
static void attach(void *area);
static Lane *lane_at(EntryNumber number);
static Piece *piece_at(EntryNumber number);
static uint32 lanes_max(void);
static uint32 size_of(const Pool *pool);
static uint32 hash_lane(EntryNumber map, uint64 lane);
static Lane *find(const AvailabilityMap *map, uint64 lane);
static int	room_in(const Pool *pool);
static Lane *create(AvailabilityMap *map, uint64 lane, bool reserve);
static void destroy(AvailabilityMap *map, Lane *entry);
static EntryNumber merge_heaps(EntryNumber a, EntryNumber b,
							   EntryNumber parent);
static void enter_heap(AvailabilityMap *map, Lane *entry);
static void leave_heap(AvailabilityMap *map, Lane *entry);
static EntryNumber *ring_of(AvailabilityMap *map, const Lane *entry);
static void enter_ring(AvailabilityMap *map, Lane *entry);
static void leave_ring(AvailabilityMap *map, Lane *entry);
static void enter(AvailabilityMap *map, Lane *entry);
static void leave(AvailabilityMap *map, Lane *entry);
static bool is_empty(const Lane *entry);
static void settle(AvailabilityMap *map, Lane *entry);
static EntryNumber new_piece(bool reserve);
static void free_piece(PieceList *list, EntryNumber number);
static void free_pieces(PieceList *list);
static void insert_after(PieceList *list, EntryNumber previous,
						 EntryNumber number);
static bool is_close(const Piece *piece, const MessageRange *range);
static void unite(Piece *piece, const MessageRange *range);
static EntryNumber find_previous(const PieceList *list, int64 first,
								 bool *exact);
static bool add_piece(PieceList *list, const MessageRange *range,
					  bool reserve);
static bool split(PieceList *list, EntryNumber number, int64 first,
				  int64 last);
static void cut(PieceList *list, const MessageRange *range);
static bool append_delivered(Lane *entry, const MessageRange *range);
static void fill_range(MessageRange *range, const Piece *piece);
static Lane *any_lane(const AvailabilityMap *map);
static void take_first_range(AvailabilityMap *map, Lane *entry, int64 width,
							 MessageRange *range);

/* --- Setting up --- */

static void
init(void *area)
{
	SharedLanes *new = area;

	shmem_init_lock(&new->lock, LOCK_LANES);
	table_init(&new->table);
}

static void
attach(void *area)
{
	shared = area;
	lanes.shared = &shared->table;
}

/* To be called once, when the library is loaded. */
void
lanes_init(void)
{
	shmem_add_area(sizeof(SharedLanes), lanes.entry_size + lanes.extra_size,
				   init, attach);
}

static Lane *
lane_at(EntryNumber number)
{
	return table_entry(&lanes, number);
}

static Piece *
piece_at(EntryNumber number)
{
	uint32		first;
	int			part = table_part(number / PIECES_PER_LANE, &first);

	return (Piece *) lanes.extras[part] + (number - first * PIECES_PER_LANE);
}

/* How many lanes can there be? */
static uint32
lanes_max(void)
{
	uint32		n = (uint32) setting_max_availability_maps;

	return n + n / 2;
}

/* For how many entries is there memory?  Entry 0 is not used. */
static uint32
size_of(const Pool *pool)
{
	uint32		n = table_size(lanes.nparts);

	n = n == 0 ? 0 : Min(n - 1, lanes_max());
	return pool == &shared->lanes ? n : n * PIECES_PER_LANE;
}

/*
 * Provide for n more lanes, with one piece each, as far as there is memory.  To
 * be called before the end of a transaction that may add them.
 */
void
lanes_grow(int n)
{
	uint32		most = lanes_max();
	uint32		wanted;

	table_attach(&lanes);
	if (n == 0)
		return;
	wanted = Max(shared->lanes.n, shared->pieces.n / PIECES_PER_LANE) + n;

	/* More than that, as others may end at the same time. */
	wanted = Min(wanted + wanted / 2, most);
	(void) table_grow(&lanes, wanted + 1);
}

/* Attach to all lanes, as far as they exist now. */
void
lanes_attach(void)
{
	table_attach(&lanes);
}

/* Is the session attached to all lanes?  See table_is_attached(). */
bool
lanes_are_attached(void)
{
	return table_is_attached(&lanes);
}

/* --- The table, and the rings and the heap of a queue --- */

static uint32
hash_lane(EntryNumber map, uint64 lane)
{
	return (uint32) hash_combine64(lane, murmurhash32(map));
}

/* NULL: there is none.  The map is locked. */
static Lane *
find(const AvailabilityMap *map, uint64 lane)
{
	TableEntry *entry;

	LWLockAcquire(&shared->lock, LW_SHARED);
	entry = table_first(&lanes, hash_lane(map->number, lane));
	while (entry != NULL && (((Lane *) entry)->map != map->number ||
							 ((Lane *) entry)->lane != lane))
		entry = table_next(&lanes, entry);
	LWLockRelease(&shared->lock);
	return (Lane *) entry;
}

/* How many entries are not in use, besides the reserve? */
static int
room_in(const Pool *pool)
{
	uint32		size = size_of(pool);

	return Max((int) (size - size / RESERVE_SHARE) - (int) pool->n, 0);
}

/* For how many lanes is there room, at least? */
int
lanes_room(void)
{
	int			room;

	LWLockAcquire(&shared->lock, LW_SHARED);
	table_attach(&lanes);
	room = Min(room_in(&shared->lanes), room_in(&shared->pieces));
	LWLockRelease(&shared->lock);
	return room;
}

/* NULL: there is no room.  reserve: the reserve may be used. */
static Lane *
create(AvailabilityMap *map, uint64 lane, bool reserve)
{
	Pool	   *pool = &shared->lanes;
	EntryNumber number = 0;
	Lane	   *entry;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	table_attach(&lanes);
	if (!reserve && room_in(pool) == 0)
		number = 0;
	else if (pool->unused != 0)
	{
		number = pool->unused;
		pool->unused = lane_at(number)->next;
	}
	else if (pool->used < size_of(pool))
		number = ++pool->used;
	if (number != 0)
	{
		entry = lane_at(number);
		memset(entry, 0, sizeof(Lane));
		entry->number = number;
		entry->map = map->number;
		entry->lane = lane;
		table_add(&lanes, number, hash_lane(map->number, lane));
		pool->n++;
	}
	LWLockRelease(&shared->lock);
	if (number == 0)
		return NULL;
	entry->changed = ++map->lane_changes;
	entry->place = LANE_RESTS;
	enter(map, entry);
	return entry;
}

/* It has no pieces. */
static void
destroy(AvailabilityMap *map, Lane *entry)
{
	leave(map, entry);
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	table_remove(&lanes, entry->number);
	entry->next = shared->lanes.unused;
	shared->lanes.unused = entry->number;
	shared->lanes.n--;
	LWLockRelease(&shared->lock);
}

/*
 * The heap is a skew heap: a tree in which a lane does not wait longer than its
 * children.  Merging two of them takes turns with the children, which keeps the
 * tree balanced on average.  Returns the first lane.
 */
static EntryNumber
merge_heaps(EntryNumber a, EntryNumber b, EntryNumber parent)
{
	EntryNumber result = 0;
	EntryNumber *link = &result;

	while (a != 0 && b != 0)
	{
		bool		a_is_first = lane_at(a)->not_before <= lane_at(b)->not_before;
		EntryNumber number = a_is_first ? a : b;
		Lane	   *first = lane_at(number);

		/* The other one goes on with what was the right child. */
		if (a_is_first)
			a = first->next;
		else
			b = first->next;
		first->next = first->previous;
		first->parent = parent;
		*link = number;
		link = &first->previous;
		parent = number;
	}
	*link = a != 0 ? a : b;
	if (*link != 0)
		lane_at(*link)->parent = parent;
	return result;
}

static void
enter_heap(AvailabilityMap *map, Lane *entry)
{
	entry->previous = entry->next = 0;
	map->waiting_lanes = merge_heaps(map->waiting_lanes, entry->number, 0);
}

static void
leave_heap(AvailabilityMap *map, Lane *entry)
{
	Lane	   *parent = entry->parent == 0 ? NULL : lane_at(entry->parent);
	EntryNumber *link = &map->waiting_lanes;

	if (parent != NULL)
		link = parent->previous == entry->number ? &parent->previous :
			&parent->next;
	*link = merge_heaps(entry->previous, entry->next, entry->parent);
}

static EntryNumber *
ring_of(AvailabilityMap *map, const Lane *entry)
{
	return entry->place == LANE_RESTS ? &map->first_resting :
		&map->first_lane;
}

/* At its end: before the first one */
static void
enter_ring(AvailabilityMap *map, Lane *entry)
{
	EntryNumber number = entry->number;
	EntryNumber *first = ring_of(map, entry);

	if (*first == 0)
		*first = entry->previous = entry->next = number;
	else
	{
		entry->next = *first;
		entry->previous = lane_at(*first)->previous;
		lane_at(entry->previous)->next = number;
		lane_at(entry->next)->previous = number;
	}
}

static void
leave_ring(AvailabilityMap *map, Lane *entry)
{
	EntryNumber number = entry->number;
	EntryNumber *first = ring_of(map, entry);

	lane_at(entry->previous)->next = entry->next;
	lane_at(entry->next)->previous = entry->previous;
	if (*first == number)
		*first = entry->next == number ? 0 : entry->next;
}

/* To its place */
static void
enter(AvailabilityMap *map, Lane *entry)
{
	if (entry->place == LANE_WAITS)
		enter_heap(map, entry);
	else
		enter_ring(map, entry);
	if (entry->place == LANE_HAS_TURN)
		map->nlanes++;
}

static void
leave(AvailabilityMap *map, Lane *entry)
{
	if (entry->place == LANE_WAITS)
		leave_heap(map, entry);
	else
		leave_ring(map, entry);
	if (entry->place == LANE_HAS_TURN)
		map->nlanes--;
}

static bool
is_empty(const Lane *entry)
{
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (entry->pieces[p].first != 0)
			return false;
	return true;
}

/* The lane has changed: put it where it belongs, or remove it. */
static void
settle(AvailabilityMap *map, Lane *entry)
{
	LanePlace	place = LANE_HAS_TURN;

	if (entry->is_full || entry->is_taken || is_empty(entry))
		place = LANE_RESTS;
	else if (entry->not_before != 0)
		place = LANE_WAITS;
	if (is_empty(entry) && entry->delivered.first == 0 && !entry->is_taken)
	{
		destroy(map, entry);
		return;
	}
	if (place == entry->place)
		return;
	leave(map, entry);
	entry->place = place;
	enter(map, entry);
}

/* --- Pieces --- */

/* 0: there is none.  reserve: the reserve may be used. */
static EntryNumber
new_piece(bool reserve)
{
	Pool	   *pool = &shared->pieces;
	EntryNumber number = 0;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	table_attach(&lanes);
	if (!reserve && room_in(pool) == 0)
		number = 0;
	else if (pool->unused != 0)
	{
		number = pool->unused;
		pool->unused = piece_at(number)->next;
	}
	else if (pool->used < size_of(pool))
		number = ++pool->used;
	if (number != 0)
		pool->n++;
	LWLockRelease(&shared->lock);
	return number;
}

static void
free_piece(PieceList *list, EntryNumber number)
{
	Piece	   *piece = piece_at(number);

	if (piece->previous == 0)
		list->first = piece->next;
	else
		piece_at(piece->previous)->next = piece->next;
	if (piece->next == 0)
		list->last = piece->previous;
	else
		piece_at(piece->next)->previous = piece->previous;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	piece->next = shared->pieces.unused;
	shared->pieces.unused = number;
	shared->pieces.n--;
	LWLockRelease(&shared->lock);
}

static void
free_pieces(PieceList *list)
{
	if (list->first == 0)
		return;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (EntryNumber i = list->first; i != 0; i = piece_at(i)->next)
		shared->pieces.n--;
	piece_at(list->last)->next = shared->pieces.unused;
	shared->pieces.unused = list->first;
	LWLockRelease(&shared->lock);
	list->first = list->last = 0;
}

/* previous: 0 for the beginning of the list */
static void
insert_after(PieceList *list, EntryNumber previous, EntryNumber number)
{
	Piece	   *piece = piece_at(number);

	piece->previous = previous;
	piece->next = previous == 0 ? list->first : piece_at(previous)->next;
	if (piece->previous == 0)
		list->first = number;
	else
		piece_at(piece->previous)->next = number;
	if (piece->next == 0)
		list->last = number;
	else
		piece_at(piece->next)->previous = number;
}

static bool
is_close(const Piece *piece, const MessageRange *range)
{
	return range->first <= piece->last + PIECE_GAP &&
		piece->first <= range->last + PIECE_GAP;
}

static void
unite(Piece *piece, const MessageRange *range)
{
	piece->first = Min(piece->first, range->first);
	piece->last = Max(piece->last, range->last);
	piece->delayed |= range->delayed;
}

/*
 * The last piece of the list that begins before this number; 0: there is none.
 * It is looked for from both ends.  Not *exact: it is farther from them than
 * STEPS_MAX, and the result is an earlier piece.
 */
static EntryNumber
find_previous(const PieceList *list, int64 first, bool *exact)
{
	EntryNumber from_end = list->last;
	EntryNumber from_start = list->first;

	*exact = true;
	for (int i = 0; i < STEPS_MAX; i++)
	{
		if (from_end == 0 || piece_at(from_end)->first < first)
			return from_end;
		if (piece_at(from_start)->first >= first)
			return piece_at(from_start)->previous;
		from_end = piece_at(from_end)->previous;
		from_start = piece_at(from_start)->next;
	}
	*exact = false;
	return from_start;
}

/*
 * Without room the next piece grows, so that the order stays.  False: there is
 * none, and no room.
 */
static bool
add_piece(PieceList *list, const MessageRange *range, bool reserve)
{
	bool		exact;
	EntryNumber previous = find_previous(list, range->first, &exact);
	EntryNumber next = previous == 0 ? list->first : piece_at(previous)->next;
	EntryNumber number;

	if (previous != 0 && (!exact || is_close(piece_at(previous), range)))
		unite(piece_at(previous), range);
	else if (next != 0 && is_close(piece_at(next), range))
		unite(piece_at(next), range);
	else if ((number = new_piece(reserve)) != 0)
	{
		piece_at(number)->first = range->first;
		piece_at(number)->last = range->last;
		piece_at(number)->priority = range->priority;
		piece_at(number)->delayed = range->delayed;
		insert_after(list, previous, number);
	}
	else if (next != 0)
		unite(piece_at(next), range);
	else
		return false;
	return true;
}

/* Keep what lies outside of these numbers.  False: there is no room. */
static bool
split(PieceList *list, EntryNumber number, int64 first, int64 last)
{
	Piece	   *piece = piece_at(number);
	EntryNumber rest;

	if (piece->first < first && last < piece->last)
	{
		rest = new_piece(true);
		if (rest == 0)
			return false;
		piece_at(rest)->first = last + 1;
		piece_at(rest)->last = piece->last;
		piece_at(rest)->priority = piece->priority;
		piece_at(rest)->delayed = piece->delayed;
		piece->last = first - 1;
		insert_after(list, number, rest);
	}
	else if (piece->first < first)
		piece->last = Min(piece->last, first - 1);
	else if (last < piece->last)
		piece->first = Max(piece->first, last + 1);
	else
		free_piece(list, number);
	return true;
}

/* Remove these numbers from a list, as far as there is room for the rest. */
static void
cut(PieceList *list, const MessageRange *range)
{
	EntryNumber next;

	for (EntryNumber i = list->first; i != 0; i = next)
	{
		next = piece_at(i)->next;
		if (piece_at(i)->priority == range->priority &&
			piece_at(i)->first <= range->last && range->first <= piece_at(i)->last)
			(void) split(list, i, range->first, range->last);
	}
}

static void
fill_range(MessageRange *range, const Piece *piece)
{
	memset(range, 0, sizeof(MessageRange));
	range->priority = piece->priority;
	range->first = piece->first;
	range->last = piece->last;
	range->delayed = piece->delayed;
	range->due = DT_NOBEGIN;
	range->scanned_at = DT_NOBEGIN;
}

/* --- The lanes of a queue --- */

/*
 * Something may be free in this range, now.  False: there is no room; or it
 * comes behind all that the lane has of this priority, and the caller wants it
 * only in between.
 */
bool
lanes_add(AvailabilityMap *map, uint64 lane, const MessageRange *range,
		  bool only_between)
{
	Lane	   *entry = find(map, lane);
	bool		added;

	if (only_between &&
		(entry == NULL || entry->pieces[range->priority].last == 0 ||
		 range->first > piece_at(entry->pieces[range->priority].last)->last))
		return false;
	if (entry == NULL)
		entry = create(map, lane, false);
	if (entry == NULL)
		return false;
	added = add_piece(&entry->pieces[range->priority], range, false);
	entry->is_full = false;
	entry->changed = ++map->lane_changes;
	settle(map, entry);
	return added;
}

/*
 * Give back what was taken and not used, which may be nothing.  False: there is
 * no room.
 */
bool
lanes_give_back(AvailabilityMap *map, uint64 lane, const MessageRange *range)
{
	Lane	   *entry = find(map, lane);
	bool		is_rest = range->first <= range->last;
	bool		added = true;

	if (entry == NULL && is_rest)
		entry = create(map, lane, true);
	if (entry == NULL)
		return !is_rest;
	if (is_rest)
		added = add_piece(&entry->pieces[range->priority], range, true);
	entry->is_taken = false;
	settle(map, entry);
	return added;
}

/*
 * Take the first "width" numbers of a lane, or as many of these as it has pieces
 * for.
 */
static void
take_first_range(AvailabilityMap *map, Lane *entry, int64 width,
				 MessageRange *range)
{
	int			priority = QUEUE_PRIORITIES - 1;
	PieceList  *list;
	Piece	   *piece;
	int64		last;

	while (entry->pieces[priority].first == 0)
		priority--;
	list = &entry->pieces[priority];
	piece = piece_at(list->first);
	fill_range(range, piece);
	last = range->first + width - 1;
	while (piece->last <= last)
	{
		/* Pieces may overlap. */
		range->last = Max(range->last, piece->last);
		range->delayed |= piece->delayed;
		free_piece(list, list->first);
		if (list->first == 0 || piece_at(list->first)->first > last)
		{
			settle(map, entry);
			return;
		}
		piece = piece_at(list->first);
	}
	range->last = last;
	range->delayed |= piece->delayed;
	piece->first = last + 1;
	settle(map, entry);
}

/*
 * The lane whose turn it is, and its first range.  If groups have a bound, other
 * claims leave the lane alone until the range is given back.  *changes is for
 * lanes_end().  False: there is none.
 */
bool
lanes_take(AvailabilityMap *map, int64 width, uint64 *lane, uint32 *changes,
		   MessageRange *range)
{
	Lane	   *entry;

	if (map->first_lane == 0)
		return false;
	table_attach(&lanes);
	entry = lane_at(map->first_lane);
	*lane = entry->lane;
	*changes = entry->changed;
	map->first_lane = entry->next;
	entry->is_taken = map->bound > 0;
	take_first_range(map, entry, width, range);
	return true;
}

/* The next range of that lane.  False: it has none. */
bool
lanes_take_more(AvailabilityMap *map, int64 width, uint64 lane,
				MessageRange *range)
{
	Lane	   *entry = find(map, lane);

	if (entry == NULL || is_empty(entry) || entry->is_taken)
		return false;
	entry->is_taken = map->bound > 0;
	take_first_range(map, entry, width, range);
	return true;
}

/* The lane has lost its turn, and nothing was taken: it is the first again. */
void
lanes_keep_turn(AvailabilityMap *map, uint64 lane)
{
	Lane	   *entry = find(map, lane);

	if (entry == NULL || entry->place != LANE_HAS_TURN)
		return;
	leave_ring(map, entry);
	enter_ring(map, entry);
	map->first_lane = entry->number;
}

/* NULL: the queue has none. */
static Lane *
any_lane(const AvailabilityMap *map)
{
	table_attach(&lanes);
	if (map->waiting_lanes != 0)
		return lane_at(map->waiting_lanes);
	if (map->first_lane != 0)
		return lane_at(map->first_lane);
	return map->first_resting != 0 ? lane_at(map->first_resting) : NULL;
}

/* Forget all lanes of a queue. */
void
lanes_forget(AvailabilityMap *map)
{
	Lane	   *entry;

	while ((entry = any_lane(map)) != NULL)
	{
		for (int p = 0; p < QUEUE_PRIORITIES; p++)
			free_pieces(&entry->pieces[p]);
		free_pieces(&entry->delivered);
		destroy(map, entry);
	}
}

/*
 * The first ranges of the first lanes, as many as fit.  False: there are others.
 */
bool
lanes_list(const AvailabilityMap *map, MessageRange *ranges, int max, int *n)
{
	EntryNumber i = map->first_lane;

	table_attach(&lanes);
	*n = 0;
	for (int left = map->nlanes; left > 0; left--)
	{
		for (int p = QUEUE_PRIORITIES - 1; p >= 0; p--)
			for (EntryNumber j = lane_at(i)->pieces[p].first; j != 0;
				 j = piece_at(j)->next)
			{
				MessageRange *range = &ranges[*n];

				if (*n == max)
					return false;
				fill_range(range, piece_at(j));
				(*n)++;
			}
		i = lane_at(i)->next;
	}
	return true;
}

/* --- Groups with a bound --- */

/*
 * Was nothing added to the lane, since this range of it was taken, that comes
 * before the range?
 */
bool
lanes_is_first(const AvailabilityMap *map, uint64 lane,
			   const MessageRange *range)
{
	const Lane *entry = find(map, lane);

	if (entry == NULL)
		return true;
	for (int p = range->priority; p < QUEUE_PRIORITIES; p++)
	{
		EntryNumber first = entry->pieces[p].first;

		if (first != 0 &&
			(p > range->priority || piece_at(first)->first < range->first))
			return false;
	}
	return true;
}

/* False: there is no room. */
static bool
append_delivered(Lane *entry, const MessageRange *range)
{
	EntryNumber number = new_piece(true);

	if (number == 0)
		return false;
	piece_at(number)->first = range->first;
	piece_at(number)->last = range->last;
	piece_at(number)->priority = range->priority;
	piece_at(number)->delayed = true;
	insert_after(&entry->delivered, entry->delivered.last, number);
	return true;
}

/*
 * Messages in this range of a group were delivered, and may be unfinished.
 * False: there is no room for that.
 */
bool
lanes_add_delivered(AvailabilityMap *map, uint64 lane,
					const MessageRange *range)
{
	Lane	   *entry = find(map, lane);
	bool		known = false;

	if (entry == NULL)
		entry = create(map, lane, true);
	if (entry == NULL)
		return false;
	for (EntryNumber i = entry->delivered.last; i != 0 && !known;
		 i = piece_at(i)->previous)
		known = piece_at(i)->priority == range->priority &&
			piece_at(i)->first <= range->first && range->last <= piece_at(i)->last;
	if (!known)
		known = append_delivered(entry, range);
	entry->is_full = false;
	entry->changed = ++map->lane_changes;
	settle(map, entry);
	return known;
}

/*
 * A claim that has locked the group has looked at the messages in the old
 * ranges, and these are the unfinished ones.  False: there is no room.
 */
bool
lanes_set_delivered(AvailabilityMap *map, uint64 lane,
					const MessageRange *old, int nold,
					const MessageRange *found, int nfound)
{
	Lane	   *entry = find(map, lane);
	bool		result = true;

	if (entry == NULL)
		return nfound == 0;
	for (int i = 0; i < nold; i++)
		cut(&entry->delivered, &old[i]);
	for (int i = 0; i < nfound && result; i++)
		result = append_delivered(entry, &found[i]);
	settle(map, entry);
	return result;
}

/*
 * The messages in this range are finished, or (is_finished is false) do not
 * count toward the bound any more.  Has the lane a turn now?
 */
bool
lanes_make_room(AvailabilityMap *map, uint64 lane, const MessageRange *range,
				bool is_finished)
{
	Lane	   *entry = find(map, lane);

	bool		result;

	if (entry == NULL)
		return false;
	if (is_finished)
		cut(&entry->delivered, range);
	entry->is_full = false;
	entry->changed = ++map->lane_changes;
	result = !is_empty(entry);
	settle(map, entry);
	return result;
}

/*
 * What was delivered of a group and may be unfinished: up to max ranges.
 * Returns how many there are.
 */
int
lanes_list_delivered(const AvailabilityMap *map, uint64 lane,
					 MessageRange *ranges, int max)
{
	const Lane *entry = find(map, lane);
	int			n = 0;

	if (entry == NULL)
		return 0;
	for (EntryNumber i = entry->delivered.first; i != 0; i = piece_at(i)->next)
	{
		if (n < max)
			fill_range(&ranges[n], piece_at(i));
		n++;
	}
	return n;
}

/*
 * A claim that had locked a group has unlocked it.  If it has found the group
 * full, and nothing has changed since lanes_take(), the lane has no turn before
 * something does; and none before that time (0: at once), if the rate of the
 * group allows nothing.  Has it a turn?
 */
bool
lanes_end(AvailabilityMap *map, uint64 lane, uint32 changes, bool is_full,
		  TimestampTz not_before)
{
	Lane	   *entry = find(map, lane);
	bool		result;

	if (entry == NULL)
		return false;
	entry->is_full = is_full && entry->changed == changes;
	entry->changed = ++map->lane_changes;
	if (not_before != 0 && entry->place != LANE_WAITS)
		entry->not_before = not_before;
	result = !entry->is_full && entry->not_before == 0 && !is_empty(entry);
	settle(map, entry);
	return result;
}

/* When does the first lane that waits get a turn?  DT_NOEND: none waits. */
TimestampTz
lanes_next_wake(const AvailabilityMap *map)
{
	if (map->waiting_lanes == 0)
		return DT_NOEND;
	table_attach(&lanes);
	return lane_at(map->waiting_lanes)->not_before;
}

/* Give a turn to the lanes whose time has come; returns how many these are. */
int
lanes_wake(AvailabilityMap *map, TimestampTz now)
{
	int			n = 0;

	table_attach(&lanes);
	while (map->waiting_lanes != 0)
	{
		Lane	   *entry = lane_at(map->waiting_lanes);

		/* A time that is too far ahead: the clock was set back. */
		if (entry->not_before > now &&
			entry->not_before <= now + LANE_WAIT_MAX)
			break;
		leave(map, entry);
		entry->not_before = 0;
		entry->place = LANE_HAS_TURN;
		enter(map, entry);
		n++;
	}
	return n;
}
