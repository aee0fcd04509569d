/*-------------------------------------------------------------------------
 *
 * lanes.c
 *	  Lanes: the groups of a queue in which something may be free, in turn.
 *
 * NOTES
 *	  A lane is a sequence of messages that claims take in order: those of one
 *	  group of a queue, or those without a key.  Shared memory has an entry
 *	  for each lane in which something may be free now; and for each group
 *	  with a bound of which something was delivered and may be unfinished.
 *	  Any other lane has no entry, so a group costs nothing as long as it has
 *	  nothing to claim.  When claims end is in the availability map of the
 *	  queue, whatever the lane.
 *
 *	  1. Turns.  The lanes of a queue form a ring, in the order of their
 *	  turns.  A lane begins at the end of the ring.  A claim takes a range of
 *	  the first one, which then goes to the end if it has another range, and
 *	  else leaves the ring until something is added to it.
 *
 *	  2. Pieces.  For each priority a lane has a list of pieces: ranges of
 *	  message numbers in which something may be free, in order.  Messages of
 *	  other lanes may lie between the first and the last number of a piece,
 *	  and claims pass over them; so only numbers that are close are in one
 *	  piece.
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
 *	  A claim reads the rows while others change the lane.  So each change
 *	  takes a new number of the map (lane_changes), by which the claim learns
 *	  at its end whether what it has counted still holds.  A claim calls a
 *	  group full only if all that it has counted is under claims, and none of
 *	  it is locked or being changed, because no callback reports the end of a
 *	  prepared transaction.
 *
 *	  If there is no room for what was delivered, the callers record that in
 *	  the map (knows_delivered); see availability.c.
 *
 *	  4. Groups with a rate.  A claim may find that the rate of a group allows
 *	  nothing before a time (group_rate.c).  Until then its lane waits.
 *
 *	  5. States.  A lane is in the first of these states whose condition
 *	  holds; after each change of a lane, settle() puts it where it belongs.
 *
 *	  State     Condition                       The lane is
 *	  --------  ------------------------------  --------------------------
 *	  no entry  no pieces, nothing delivered,   nowhere
 *	            and not is_taken
 *	  RESTS     one of these:                   in the ring first_resting,
 *	    taken   is_taken: a claim reads it      which has no turns
 *	    full    is_full: its group has no room
 *	    empty   no pieces: nothing is free
 *	  WAITS     not_before is set, by its rate  in the heap waiting_lanes,
 *	                                            the earliest time first
 *	  HAS_TURN  otherwise                       in the ring first_lane
 *
 *	  These are the transitions.  A lane that is taken stays so until the
 *	  claim gives it back, whatever else happens to it.  A lane of which
 *	  not_before is set comes to WAITS where the table says HAS_TURN.
 *
 *	  Event                      From      To              Function
 *	  -------------------------  --------  --------------  -------------------
 *	  something is free in it    no entry  HAS_TURN, last  lanes_add
 *	                             full      HAS_TURN, last
 *	                             empty     HAS_TURN, last
 *	  its first message does     HAS_TURN  HAS_TURN, 1st   lanes_keep_turn
 *	  not fit into the claim
 *	  the map forgets it         any       no entry        lanes_forget
 *
 *	  In a queue with a bound or a rate:
 *	  a claim takes a range      HAS_TURN  taken           lanes_take
 *	    takes one more           HAS_TURN  taken           lanes_take_more
 *	    counts                   taken     taken           lanes_set_delivered
 *	    finds the group full,    taken     full            lanes_end, then
 *	    and gives all back                                 lanes_give_back
 *	    finds that the rate      taken     WAITS           lanes_end, then
 *	    allows nothing now                                 lanes_give_back
 *	    gives back the rest,     taken     HAS_TURN, last  lanes_give_back
 *	    which may be nothing     taken     empty
 *	                             taken     no entry
 *	    unlocks the group        full      HAS_TURN, last  lanes_end
 *	  the time has come          WAITS     HAS_TURN, last  lanes_wake
 *	  something was delivered,   no entry  empty           lanes_add_delivered
 *	  or may be, by PREPARE      full      HAS_TURN, last
 *	  a commit finishes, delays  full      HAS_TURN, last  lanes_make_room
 *	  or unlocks something       empty     no entry
 *
 *	  In any other queue:
 *	  a claim takes a range      HAS_TURN  HAS_TURN, last  lanes_take
 *	                             HAS_TURN  no entry
 *	    takes one more           HAS_TURN  HAS_TURN        lanes_take_more
 *	                             HAS_TURN  no entry
 *	    gives back the rest      no entry  HAS_TURN, last  lanes_give_back
 *
 *	  6. Room.  Lanes are in a table that grows (shmem_table.c), up to half as
 *	  many more than there can be maps, and so are the pieces beside them.  A
 *	  transaction that has ended cannot allocate memory for the lanes that it
 *	  adds; so it calls lanes_grow() before its end.  If there is no unused
 *	  lane nevertheless, or no piece for what comes behind all others of its
 *	  list, the caller has to leave what it would have added in the map.  A
 *	  part of both is only for what was delivered, or is given back.
 *
 *	  7. Locks.  Lanes are found by the map of their queue and the number of
 *	  the lane, in the index of the table.  The lock of the map protects its
 *	  rings, its heap and the pieces of its lanes.  The lock of all lanes,
 *	  which is taken after that, protects the index and the lists of unused
 *	  entries; it is held for a few instructions.
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
 * This part of the entries is the reserve, for what must find room if
 * possible: what was delivered, and what is given back.
 */
#define RESERVE_SHARE	8

typedef struct Piece
{
	int64		first;
	int64		last;
	EntryNumber previous;		/* in the list */
	EntryNumber next;			/* or, if unused, the next unused one */
	int16		priority;
	bool		delayed;		/* see MessageRange */
} Piece;

typedef struct PieceList
{
	EntryNumber first;
	EntryNumber last;
} PieceList;

/* The states of a lane that has an entry; see NOTES */
typedef enum LanePlace
{
	LANE_HAS_TURN,				/* in the ring of turns */
	LANE_RESTS,					/* in the other ring, which has no turns */
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
								 * or, if unused, the next unused one */
	EntryNumber parent;			/* in the heap; 0: it is the first */
	PieceList	pieces[QUEUE_PRIORITIES];	/* something may be free there */

	LanePlace	place;

	/* Groups with a bound, or a rate */
	bool		is_taken;		/* a claim reads a range of it: others must
								 * not overtake that */
	bool		is_full;		/* its group has no room for a message */
	uint32		changed;		/* map->lane_changes, when something may have
								 * made room */
	PieceList	delivered;		/* what was delivered and may be unfinished */
	TimestampTz not_before;		/* its rate allows nothing earlier, or 0 */
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

/* Returns how many lanes there can be. */
static uint32
lanes_max(void)
{
	uint32		n = (uint32) setting_max_availability_maps;

	return n + n / 2;
}

/* Returns for how many entries there is memory.  Entry 0 is not used. */
static uint32
size_of(const Pool *pool)
{
	uint32		n = table_size(lanes.nparts);

	n = n == 0 ? 0 : Min(n - 1, lanes_max());
	return pool == &shared->lanes ? n : n * PIECES_PER_LANE;
}

/*
 * Provide for n more lanes, with one piece each, as far as there is memory.
 * To be called before the end of a transaction that may add them.
 */
void
lanes_grow(int n)
{
	uint32		most = lanes_max();
	uint32		wanted;

	/* It may use lanes that there are, even if it adds none. */
	table_attach(&lanes);
	if (n == 0)
		return;
	wanted = Max(shared->lanes.n, shared->pieces.n / PIECES_PER_LANE) + n;

	/* More than that, because other transactions may end at the same time. */
	wanted = Min(wanted + wanted / 2, most);
	(void) table_grow(&lanes, wanted + 1);
}

/* Attach to all lanes, as far as they exist now. */
void
lanes_attach(void)
{
	table_attach(&lanes);
}

/*
 * Returns whether the session is attached to all lanes.  The caller holds the
 * parts of tables (table_hold_parts).
 */
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

/*
 * Returns the entry of a lane of a map, which is locked; or NULL if there is
 * none.
 */
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

/* Returns how many entries are not in use, besides the reserve. */
static int
room_in(const Pool *pool)
{
	uint32		size = size_of(pool);

	return Max((int) (size - size / RESERVE_SHARE) - (int) pool->n, 0);
}

/* Returns for how many lanes there is room, at least. */
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

/*
 * Make an entry for a lane; with "reserve", also one of the reserve.  Returns
 * NULL if there is no room.
 */
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

	/* The caller adds something to it, and then calls settle(). */
	entry->place = LANE_RESTS;
	enter(map, entry);
	return entry;
}

/* Free the entry of a lane, which has no pieces any more. */
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
 * Merge two heaps, or what is left of one.  Returns the first lane.
 *
 * The heap is a skew heap: a tree in which a lane does not wait longer than
 * its children.  Merging swaps the children of each lane that it passes,
 * which keeps the tree balanced on average.
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

		/* We merge the other heap with the right child, on the left side. */
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

/* Add the lane at the end of its ring, which is before the first lane. */
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

/* Add the lane to the ring or the heap of its state. */
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

/*
 * The lane has changed: find out its state, and put it where it belongs.  The
 * entry may be gone then.
 */
static void
settle(AvailabilityMap *map, Lane *entry)
{
	LanePlace	place = LANE_HAS_TURN;

	if (entry->is_full || entry->is_taken || is_empty(entry))
		place = LANE_RESTS;
	else if (entry->not_before != 0)
		place = LANE_WAITS;

	/* A claim that has taken all of it may give something back. */
	if (is_empty(entry) && entry->delivered.first == 0 && !entry->is_taken)
	{
		destroy(map, entry);
		return;
	}

	/* Its turn must not move when its state is the same. */
	if (place == entry->place)
		return;
	leave(map, entry);
	entry->place = place;
	enter(map, entry);
}

/* --- Pieces --- */

/*
 * Take an unused piece; with "reserve", also one of the reserve.  Returns its
 * number, or 0 if there is no room.
 */
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

/* Insert a piece behind another one, or (previous is 0) as the first one. */
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
 * Find the last piece of the list that begins before this number, from both
 * ends of the list.  Returns 0 if there is none.  If it is farther from both
 * ends than STEPS_MAX, *exact is false, and the result is an earlier piece.
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
 * Add a range to a list that is in the order of numbers; with "reserve", also
 * by means of the reserve.  Returns false if there is no room.
 */
static bool
add_piece(PieceList *list, const MessageRange *range, bool reserve)
{
	bool		exact;
	EntryNumber previous = find_previous(list, range->first, &exact);
	EntryNumber next = previous == 0 ? list->first : piece_at(previous)->next;
	EntryNumber number;

	/*
	 * A piece grows by what is close to it.  In the middle of a long list an
	 * earlier one grows so far that it includes the range, because that keeps
	 * the list in order without more steps.
	 */
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

	/*
	 * There is no room.  The caller cannot leave in the map what comes before
	 * a piece of the lane, or claims would take that piece first: so that
	 * piece grows.
	 */
	else if (next != 0)
		unite(piece_at(next), range);
	else
		return false;
	return true;
}

/*
 * Cut these numbers out of a piece.  Returns false, and leaves the piece as
 * it is, if it would become two and there is no room for another one.
 */
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

/*
 * Remove these numbers from a list of what was delivered.  It may hold too
 * much: where there is no room for the rest of a piece, the piece stays.
 */
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
 * Something may be free in this range, now.  With "only_between" it is added
 * only if it does not come behind all that the lane has of this priority.
 * Returns false if it was not added, for that reason or because there is no
 * room.
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

	/* It may have been under a claim, and counted toward the bound. */
	entry->is_full = false;
	entry->changed = ++map->lane_changes;
	settle(map, entry);
	return added;
}

/*
 * Give back what was taken and not used, which may be nothing.  Returns false
 * if there is no room for it.
 */
bool
lanes_give_back(AvailabilityMap *map, uint64 lane, const MessageRange *range)
{
	Lane	   *entry = find(map, lane);
	bool		is_rest = range->first <= range->last;
	bool		added = true;

	/* Without a bound, a lane of which all was taken has no entry. */
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
 * Take the first "width" numbers of a lane, or as many of these as it has
 * pieces for.
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

	/* Only the beginning of this piece is wanted. */
	range->last = last;
	range->delayed |= piece->delayed;
	piece->first = last + 1;
	settle(map, entry);
}

/*
 * Take the first range of the lane whose turn it is.  *changes is for
 * lanes_end().  Returns false if no lane has a turn.
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

	/* The ring begins with the next lane, so this one is the last. */
	map->first_lane = entry->next;

	/* In a group with a bound, others must not overtake the range. */
	entry->is_taken = map->bound > 0;
	take_first_range(map, entry, width, range);
	return true;
}

/*
 * Take the next range of a lane, whether or not it is its turn.  Returns
 * false if it has none, or if another claim has taken the lane.
 */
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

/*
 * A claim has taken a range of the lane, chosen nothing in it, and given it
 * back: the lane is the first one again.
 */
void
lanes_keep_turn(AvailabilityMap *map, uint64 lane)
{
	Lane	   *entry = find(map, lane);

	/* Another session may have changed it meanwhile. */
	if (entry == NULL || entry->place != LANE_HAS_TURN)
		return;
	leave_ring(map, entry);
	enter_ring(map, entry);
	map->first_lane = entry->number;
}

/* Returns any lane of the queue, or NULL if there is none. */
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
 * List the ranges of the lanes that have a turn, as many as fit.  Returns
 * false if there are others.
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
 * Returns whether this range, which was taken, still comes first: nothing was
 * added to the lane meanwhile that comes before it.
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

/*
 * Add a range to what was delivered, which is in no order.  Returns false if
 * there is no room.
 */
static bool
append_delivered(Lane *entry, const MessageRange *range)
{
	EntryNumber number = new_piece(true);

	if (number == 0)
		return false;
	piece_at(number)->first = range->first;
	piece_at(number)->last = range->last;
	piece_at(number)->priority = range->priority;

	/* Its messages may be released with a delay, and are unfinished then. */
	piece_at(number)->delayed = true;
	insert_after(&entry->delivered, entry->delivered.last, number);
	return true;
}

/*
 * Messages in this range of a group were delivered, and may be unfinished.
 * Returns false if there is no room for that.
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

	/*
	 * No callback may report when these messages leave room (PREPARE), so the
	 * lane must not rest because it is full.
	 */
	entry->is_full = false;
	entry->changed = ++map->lane_changes;
	settle(map, entry);
	return known;
}

/*
 * A claim that has locked the group has read the messages in the old ranges,
 * and has found these to be unfinished.  Returns false if there is no room
 * for them.
 */
bool
lanes_set_delivered(AvailabilityMap *map, uint64 lane,
					const MessageRange *old, int nold,
					const MessageRange *found, int nfound)
{
	Lane	   *entry = find(map, lane);
	bool		result = true;

	/* The map has forgotten it meanwhile. */
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
 * The messages in this range are finished, or (is_finished is false)
 * something else may leave room in the group.  Returns whether something may
 * be free in the lane.
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
 * List what was delivered of a group and may be unfinished: up to max ranges.
 * Returns how many there are, which may be more.
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
 * A claim that had locked a group has unlocked it, and may have found the
 * group full, or that its rate allows nothing before that time (else 0).
 * "changes" is what lanes_take() has returned.  Returns whether the lane has
 * a turn, now or when the claim gives it back.
 */
bool
lanes_end(AvailabilityMap *map, uint64 lane, uint32 changes, bool is_full,
		  TimestampTz not_before)
{
	Lane	   *entry = find(map, lane);
	bool		result;

	if (entry == NULL)
		return false;

	/*
	 * If the lane has changed since it was taken, that may have left room
	 * which the claim has not seen: then the lane must not rest.
	 */
	entry->is_full = is_full && entry->changed == changes;
	entry->changed = ++map->lane_changes;

	/* The heap is in the order of these times: none may change there. */
	if (not_before != 0 && entry->place != LANE_WAITS)
		entry->not_before = not_before;
	result = !entry->is_full && entry->not_before == 0 && !is_empty(entry);
	settle(map, entry);
	return result;
}

/*
 * Returns when the first lane that waits gets a turn, or DT_NOEND if none
 * waits.
 */
TimestampTz
lanes_next_wake(const AvailabilityMap *map)
{
	if (map->waiting_lanes == 0)
		return DT_NOEND;
	table_attach(&lanes);
	return lane_at(map->waiting_lanes)->not_before;
}

/*
 * Give a turn to the lanes whose time has come.  Returns how many these are.
 */
int
lanes_wake(AvailabilityMap *map, TimestampTz now)
{
	int			n = 0;

	table_attach(&lanes);
	while (map->waiting_lanes != 0)
	{
		Lane	   *entry = lane_at(map->waiting_lanes);

		/* If a time is too far ahead, the clock was set back. */
		if (entry->not_before > now &&
			entry->not_before <= now + LANE_WAIT_MAX)
			break;

		/* A lane that waits has pieces, and is neither full nor taken. */
		leave(map, entry);
		entry->not_before = 0;
		entry->place = LANE_HAS_TURN;
		enter(map, entry);
		n++;
	}
	return n;
}
