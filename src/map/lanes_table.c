/*-------------------------------------------------------------------------
 *
 * lanes_table.c
 *	  The memory of lanes: their entries, and the lists of their pieces.
 *
 * NOTES
 *	  See lanes.c for the design.
 *
 *	  1. Pieces.  For each priority a lane has a list of pieces: ranges of
 *	  message numbers in which something may be free, in order.  Messages of
 *	  other lanes may lie between the first and the last number of a piece,
 *	  and claims pass over them; so only numbers that are close are in one
 *	  piece.  Another list, in no order, has what was delivered.
 *
 *	  2. Room.  There is room for queue.max_active_groups lanes, and for ten
 *	  times as many pieces, of all queues together.  The queues of one owner get
 *	  at most half of both (place_owners.c).  If there is no unused lane, or
 *	  no piece for what comes behind all others of its list, the caller has to
 *	  leave what it would have added in the map.  A part of both is only for
 *	  what was delivered, or is given back.
 *
 *	  3. Locks.  Lanes are found by the map of their queue and the number of
 *	  the lane, in the index of the table.  The lock of the map protects its
 *	  lanes and their pieces.  The lock of all lanes, which is taken after
 *	  that, protects the index and the lists of unused entries; it is held for
 *	  a few instructions.
 *
 * src/map/lanes_table.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"

#include "map/lanes_table.h"
#include "map/place_owners.h"
#include "shmem/database_state.h"
#include "shmem/shmem.h"
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
} Piece;

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
	Pool		lanes;
	Pool		pieces;
} SharedLanes;

static SharedLanes *shared = NULL;

static Table lanes = {.entry_size = MAXALIGN(sizeof(Lane))};
static Piece *pieces = NULL;

static void attach_lanes(void *area);
static Piece *piece_at(EntryNumber number);
static uint32 pool_size(const Pool *pool);
static uint32 *used_by_owner(const AvailabilityMap *map, const Pool *pool);
static int	room_in_pool(const AvailabilityMap *map, const Pool *pool);
static EntryNumber *next_unused(const Pool *pool, EntryNumber number);
static EntryNumber take_unused(const AvailabilityMap *map, Pool *pool,
							   bool reserve);
static void put_unused(const AvailabilityMap *map, Pool *pool,
					   EntryNumber number);
static uint32 hash_lane(EntryNumber map, LaneId lane);
static EntryNumber *link_to_next(PieceList *list, EntryNumber number);
static EntryNumber *link_to_previous(PieceList *list, EntryNumber number);
static void fill_range(MessageRange *range, const Piece *piece);
static bool insert_piece(const AvailabilityMap *map, PieceList *list,
						 EntryNumber previous, const MessageRange *range,
						 bool reserve);
static void free_piece(const AvailabilityMap *map, PieceList *list,
					   EntryNumber number);
static bool is_close(const Piece *piece, const MessageRange *range);
static void extend_piece(Piece *piece, const MessageRange *range);
static EntryNumber find_previous_piece(const PieceList *list, int64 first,
									   bool *exact);

SharedArea	lanes_area = {&shared, 0, LOCK_LANES, NULL, attach_lanes};

/* --- Setting up --- */

static void
attach_lanes(void *area)
{
	char	   *memory = (char *) area + MAXALIGN(sizeof(SharedLanes));

	table_attach(&lanes, memory);
	pieces = (Piece *) (memory + table_memory(&lanes));
}

/*
 * To be called once, when the library is loaded and the settings are defined.
 */
void
lanes_init(void)
{
	lanes.size = setting_max_active_groups;
	lanes_area.size = MAXALIGN(sizeof(SharedLanes)) + table_memory(&lanes) +
		PIECES_PER_LANE * lanes.size * sizeof(Piece);
}

/* --- Entries --- */

Lane *
lane_at(EntryNumber number)
{
	return table_entry(&lanes, number);
}

static Piece *
piece_at(EntryNumber number)
{
	Assert(number > 0 && number <= pool_size(&shared->pieces));
	return &pieces[number - 1];
}

/* Returns how many entries there are. */
static uint32
pool_size(const Pool *pool)
{
	return pool == &shared->lanes ? lanes.size :
		lanes.size * PIECES_PER_LANE;
}

/* Returns how many entries the queues of the owner of this one have. */
static uint32 *
used_by_owner(const AvailabilityMap *map, const Pool *pool)
{
	Assert(LWLockHeldByMe(&shared->lock));
	return owner_places(map->owner, pool == &shared->pieces);
}

/*
 * Returns how many entries the queue can still have, besides the reserve.  Its
 * owner gets at most half of all.
 */
static int
room_in_pool(const AvailabilityMap *map, const Pool *pool)
{
	int			size = pool_size(pool);
	int			half = size / 2;

	return Max(Min(size - size / RESERVE_SHARE - (int) pool->n,
				   half - half / RESERVE_SHARE -
				   (int) *used_by_owner(map, pool)), 0);
}

/* Returns for how many lanes of this queue there is room, at least. */
int
lanes_space(const AvailabilityMap *map)
{
	int			room;

	shmem_lock(&shared->lock, LW_SHARED);
	room = Min(room_in_pool(map, &shared->lanes),
			   room_in_pool(map, &shared->pieces));
	LWLockRelease(&shared->lock);
	return room;
}

static EntryNumber *
next_unused(const Pool *pool, EntryNumber number)
{
	return pool == &shared->lanes ? &lane_at(number)->next :
		&piece_at(number)->next;
}

/*
 * Take an unused entry; with "reserve", also one of the reserve.  Returns its
 * number, or 0 if there is no room.
 */
static EntryNumber
take_unused(const AvailabilityMap *map, Pool *pool, bool reserve)
{
	uint32	   *used = used_by_owner(map, pool);
	EntryNumber number = pool->unused;

	Assert(LWLockHeldByMeInMode(&shared->lock, LW_EXCLUSIVE));
	if (reserve ? *used >= pool_size(pool) / 2 : room_in_pool(map, pool) == 0)
		return 0;
	if (number != 0)
		pool->unused = *next_unused(pool, number);
	else if (pool->used < pool_size(pool))
		number = ++pool->used;
	else
		return 0;
	pool->n++;
	(*used)++;
	return number;
}

static void
put_unused(const AvailabilityMap *map, Pool *pool, EntryNumber number)
{
	Assert(LWLockHeldByMeInMode(&shared->lock, LW_EXCLUSIVE));
	*next_unused(pool, number) = pool->unused;
	pool->unused = number;
	pool->n--;
	(*used_by_owner(map, pool))--;
}

static uint32
hash_lane(EntryNumber map, LaneId lane)
{
	return (uint32) hash_combine64(lane.hash, murmurhash32(map));
}

/*
 * Returns the entry of a lane of a map, which is locked; or NULL if there is
 * none.
 */
Lane *
lane_find(const AvailabilityMap *map, LaneId lane)
{
	TableEntry *entry;

	Assert(map_is_locked(map));
	shmem_lock(&shared->lock, LW_SHARED);
	entry = table_first(&lanes, hash_lane(map->number, lane));
	while (entry != NULL && (((Lane *) entry)->map != map->number ||
							 !lane_equals(((Lane *) entry)->lane, lane)))
		entry = table_next(&lanes, entry);
	LWLockRelease(&shared->lock);
	return (Lane *) entry;
}

/*
 * Make an entry for a lane; with "reserve", also one of the reserve.  Returns
 * NULL if there is no room.
 */
Lane *
lane_make(AvailabilityMap *map, LaneId lane, bool reserve)
{
	EntryNumber number;
	Lane	   *entry = NULL;

	Assert(map_is_locked(map) && lane_find(map, lane) == NULL);
	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	number = take_unused(map, &shared->lanes, reserve);
	if (number != 0)
	{
		entry = lane_at(number);
		memset(entry, 0, sizeof(Lane));
		entry->number = number;
		entry->map = map->number;
		entry->lane = lane;
		entry->changed = ++map->lane_changes;
		table_add(&lanes, number, hash_lane(map->number, lane));
	}
	LWLockRelease(&shared->lock);
	if (entry == NULL)
		database_set_flag(database_mine(), DATABASE_NO_ROOM);
	return entry;
}

/* Free the entry of a lane of a map, which has no pieces any more. */
void
lane_free(const AvailabilityMap *map, Lane *entry)
{
	Assert(entry->delivered.first == 0);
	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	table_remove(&lanes, entry->number);
	put_unused(map, &shared->lanes, entry->number);
	LWLockRelease(&shared->lock);
}

/* --- Lists of pieces --- */

static void
fill_range(MessageRange *range, const Piece *piece)
{
	memset(range, 0, sizeof(MessageRange));
	range->priority = piece->priority;
	range->first = piece->first;
	range->last = piece->last;
	range->due = DT_NOBEGIN;
}

/* Returns where a list has the number of the piece behind that one. */
static EntryNumber *
link_to_next(PieceList *list, EntryNumber number)
{
	return number == 0 ? &list->first : &piece_at(number)->next;
}

/* Returns where a list has the number of the piece before that one. */
static EntryNumber *
link_to_previous(PieceList *list, EntryNumber number)
{
	return number == 0 ? &list->last : &piece_at(number)->previous;
}

/*
 * Insert a new piece behind another one, or (previous is 0) as the first one;
 * with "reserve", also by means of the reserve.  Returns false if there is no
 * room.
 */
static bool
insert_piece(const AvailabilityMap *map, PieceList *list,
			 EntryNumber previous, const MessageRange *range, bool reserve)
{
	EntryNumber number;
	Piece	   *piece;

	Assert(range->first <= range->last);
	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	number = take_unused(map, &shared->pieces, reserve);
	LWLockRelease(&shared->lock);
	if (number == 0)
		return false;
	piece = piece_at(number);
	piece->first = range->first;
	piece->last = range->last;
	piece->priority = range->priority;
	piece->previous = previous;
	piece->next = *link_to_next(list, previous);
	*link_to_next(list, previous) = number;
	*link_to_previous(list, piece->next) = number;
	return true;
}

static void
free_piece(const AvailabilityMap *map, PieceList *list, EntryNumber number)
{
	Piece	   *piece = piece_at(number);

	*link_to_next(list, piece->previous) = piece->next;
	*link_to_previous(list, piece->next) = piece->previous;
	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	put_unused(map, &shared->pieces, number);
	LWLockRelease(&shared->lock);
}

/* Free all pieces of a list. */
void
lane_free_pieces(const AvailabilityMap *map, PieceList *list)
{
	uint32		n = 0;

	if (list->first == 0)
		return;
	for (EntryNumber i = list->first; i != 0; i = piece_at(i)->next)
		n++;

	/* The list as a whole is unused: other queues need the lock, too. */
	shmem_lock(&shared->lock, LW_EXCLUSIVE);
	piece_at(list->last)->next = shared->pieces.unused;
	shared->pieces.unused = list->first;
	shared->pieces.n -= n;
	*used_by_owner(map, &shared->pieces) -= n;
	LWLockRelease(&shared->lock);
	list->first = list->last = 0;
}

static bool
is_close(const Piece *piece, const MessageRange *range)
{
	return range->first <= piece->last + PIECE_GAP &&
		piece->first <= range->last + PIECE_GAP;
}

/* Let a piece grow, so that it includes a range. */
static void
extend_piece(Piece *piece, const MessageRange *range)
{
	piece->first = Min(piece->first, range->first);
	piece->last = Max(piece->last, range->last);
}

/*
 * Find the last piece of the list that begins before this number, from both
 * ends of the list.  Returns 0 if there is none.  If it is farther from both
 * ends than STEPS_MAX, *exact is false, and the result is an earlier piece.
 */
static EntryNumber
find_previous_piece(const PieceList *list, int64 first, bool *exact)
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
bool
lane_add_piece(const AvailabilityMap *map, PieceList *list,
			   const MessageRange *range, bool reserve)
{
	bool		exact;
	EntryNumber previous = find_previous_piece(list, range->first, &exact);
	EntryNumber next = *link_to_next(list, previous);

	/*
	 * A piece grows by what is close to it.  In the middle of a long list an
	 * earlier one grows so far that it includes the range, because that keeps
	 * the list in order without more steps.
	 */
	if (previous != 0 && (!exact || is_close(piece_at(previous), range)))
		extend_piece(piece_at(previous), range);

	/*
	 * If there is no room, the next piece grows although it is not close. The
	 * caller cannot leave in the map what comes before a piece of the lane,
	 * or claims would take that piece first.
	 */
	else if ((next != 0 && is_close(piece_at(next), range)) ||
			 !insert_piece(map, list, previous, range, reserve))
	{
		if (next == 0)
			return false;
		extend_piece(piece_at(next), range);
	}
	return true;
}

/*
 * Add a range to what was delivered, which is in no order.  Returns false if
 * there is no room.
 */
bool
lane_append_delivered(const AvailabilityMap *map, PieceList *list,
					  const MessageRange *range)
{
	return insert_piece(map, list, list->last, range, true);
}

/*
 * Take the first "width" numbers of a list that is not empty, or as many of
 * these as it has pieces for.
 */
void
lane_take_pieces(const AvailabilityMap *map, PieceList *list, int64 width,
				 MessageRange *range)
{
	int64		last = piece_at(list->first)->first + width - 1;
	EntryNumber next;

	Assert(list->first != 0 && width > 0);

	fill_range(range, piece_at(list->first));
	for (EntryNumber i = list->first;
		 i != 0 && piece_at(i)->first <= last; i = next)
	{
		Piece	   *piece = piece_at(i);

		next = piece->next;
		range->last = Min(Max(range->last, piece->last), last);

		/*
		 * Only the beginning of this piece is wanted.  As pieces may overlap
		 * (lane_add_piece), the next one may begin before that, too.
		 */
		if (piece->last > last)
			piece->first = last + 1;
		else
			free_piece(map, list, i);
	}
	Assert(list->first == 0 || piece_at(list->first)->first > last);
}

/*
 * Remove these numbers from a list of what was delivered.  It may hold too
 * much: where a piece would become two, and there is no room for another one,
 * the piece stays.
 */
void
lane_cut_pieces(const AvailabilityMap *map, PieceList *list,
				const MessageRange *range)
{
	EntryNumber next;

	for (EntryNumber i = list->first; i != 0; i = next)
	{
		Piece	   *piece = piece_at(i);
		MessageRange rest;

		next = piece->next;
		if (piece->priority != range->priority ||
			piece->first > range->last || piece->last < range->first)
			continue;
		fill_range(&rest, piece);
		rest.first = range->last + 1;
		if (piece->first >= range->first && piece->last <= range->last)
			free_piece(map, list, i);
		else if (piece->first >= range->first)
			piece->first = rest.first;
		else if (piece->last <= range->last ||
				 insert_piece(map, list, i, &rest, true))
			piece->last = range->first - 1;
	}
}

/*
 * List the pieces as ranges.  Returns how many there are, or max + 1 if more
 * than max; a list may be long, and the map is locked.
 */
int
lane_list_pieces(const PieceList *list, MessageRange *ranges, int max)
{
	int			n = 0;

	for (EntryNumber i = list->first; i != 0 && n <= max; i = piece_at(i)->next)
	{
		if (n < max)
			fill_range(&ranges[n], piece_at(i));
		n++;
	}
	return n;
}

/* Returns whether a piece, searched from the end, includes the range. */
bool
lane_includes(const PieceList *list, const MessageRange *range)
{
	for (EntryNumber i = list->last; i != 0; i = piece_at(i)->previous)
		if (piece_at(i)->priority == range->priority &&
			piece_at(i)->first <= range->first &&
			range->last <= piece_at(i)->last)
			return true;
	return false;
}

/* Returns the first number of a list that is not empty. */
int64
lane_first_number(const PieceList *list)
{
	return piece_at(list->first)->first;
}

/* Returns the last number of a list that is not empty. */
int64
lane_last_number(const PieceList *list)
{
	return piece_at(list->last)->last;
}

/* Returns how many lanes and pieces there are in use. */
void
lanes_count(uint32 *nlanes, uint32 *npieces, uint32 *max_pieces)
{
	shmem_lock(&shared->lock, LW_SHARED);
	*nlanes = shared->lanes.n;
	*npieces = shared->pieces.n;
	*max_pieces = pool_size(&shared->pieces);
	LWLockRelease(&shared->lock);
}

/* Returns how much memory a piece takes. */
Size
lane_piece_size(void)
{
	return sizeof(Piece);
}
