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
 *	  2. Pieces.  For each priority a lane has a list of ranges of message
 *	  numbers in which something may be free, in order (lanes_table.c).
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
 *	  (group_make_room, lanes_make_room).
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
 *	  the map (knows_delivered); see availability_groups.c.
 *
 *	  4. Groups with a rate.  A claim may find that the rate of a group allows
 *	  nothing before a time (group_rate.c).  Until then its lane waits.
 *
 *	  5. States (LaneState).  A lane that a claim has taken stays so until the
 *	  claim gives it back.  Any other is in the first of these states whose
 *	  condition holds (state_of_untaken).  After each change of a lane,
 *	  settle_lane() puts it where it belongs.
 *
 *	  State     Condition                       The lane is
 *	  --------  ------------------------------  --------------------------
 *	  TAKEN     a claim reads it, and there is  in the ring first_resting,
 *	            a bound                         which has no turns
 *	  NO_ENTRY  no pieces, nothing delivered    nowhere
 *	  EMPTY     no pieces: nothing is free      in the ring first_resting
 *	  FULL      is_full: its group has no room  in the ring first_resting
 *	  WAITS     not_before is set, by its rate  in the heap waiting_lanes,
 *	                                            the earliest time first
 *	  HAS_TURN  otherwise                       in the ring first_lane
 *
 *	  Which event changes the state of a lane, and in which function, is in
 *	  doc/internals.md, "States of a lane"; lane_transitions has what may follow
 *	  each state.
 *
 *	  6. Locks.  The lock of the map protects its lanes, their rings and their
 *	  heap.  That of all lanes is taken after it (lanes_table.c).
 *
 * src/map/lanes.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "map/lanes.h"
#include "map/lanes_table.h"

static EntryNumber merge_heaps(EntryNumber a, EntryNumber b,
							   EntryNumber parent);
static EntryNumber *ring_of(AvailabilityMap *map, const Lane *entry);
static void enter_place(AvailabilityMap *map, Lane *entry);
static void leave_place(AvailabilityMap *map, Lane *entry);
static bool has_pieces(const Lane *entry);
static LaneState state_with_pieces(const Lane *entry);
static LaneState state_of_untaken(const Lane *entry);
static void set_lane_state(AvailabilityMap *map, Lane *entry, LaneState state);
static void settle_lane(AvailabilityMap *map, Lane *entry);
static void settle_with_room(AvailabilityMap *map, Lane *entry);
static void take_from_lane(AvailabilityMap *map, Lane *entry, int64 width,
						   MessageRange *range);

/* --- States --- */

#define TO(state)	(1 << (state))

/* The states that may follow each one, if the map does not forget the lane */
PG_USED_FOR_ASSERTS_ONLY static const uint8 lane_transitions[] = {
	[LANE_NO_ENTRY] = TO(LANE_NO_ENTRY) | TO(LANE_EMPTY) | TO(LANE_HAS_TURN),
	[LANE_TAKEN] = TO(LANE_NO_ENTRY) | TO(LANE_FULL) | TO(LANE_EMPTY) |
	TO(LANE_WAITS) | TO(LANE_HAS_TURN),
	[LANE_FULL] = TO(LANE_WAITS) | TO(LANE_HAS_TURN),
	[LANE_EMPTY] = TO(LANE_NO_ENTRY) | TO(LANE_WAITS) | TO(LANE_HAS_TURN),
	[LANE_WAITS] = TO(LANE_HAS_TURN),
	[LANE_HAS_TURN] = TO(LANE_NO_ENTRY) | TO(LANE_TAKEN)
};

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
		EntryNumber *heap = &a;
		Lane	   *first;

		if (lane_at(a)->not_before > lane_at(b)->not_before)
			heap = &b;
		first = lane_at(*heap);

		/* We merge the other heap with the right child, on the left side. */
		*heap = first->next;
		first->next = first->previous;
		first->parent = parent;
		parent = *link = first->number;
		link = &first->previous;
	}
	*link = a != 0 ? a : b;
	if (*link != 0)
		lane_at(*link)->parent = parent;
	return result;
}

static EntryNumber *
ring_of(AvailabilityMap *map, const Lane *entry)
{
	return entry->state == LANE_HAS_TURN ? &map->first_lane :
		&map->first_resting;
}

/* Add the lane to the heap, or at the end of the ring, of its state. */
static void
enter_place(AvailabilityMap *map, Lane *entry)
{
	EntryNumber number = entry->number;
	EntryNumber *first = ring_of(map, entry);

	if (entry->state == LANE_WAITS)
	{
		entry->previous = entry->next = 0;
		map->waiting_lanes = merge_heaps(map->waiting_lanes, number, 0);
		return;
	}
	if (*first == 0)
		*first = entry->previous = entry->next = number;
	else
	{
		/* The end of a ring is before its first lane. */
		entry->next = *first;
		entry->previous = lane_at(*first)->previous;
		lane_at(entry->previous)->next = number;
		lane_at(entry->next)->previous = number;
	}
	map->nlanes += entry->state == LANE_HAS_TURN ? 1 : 0;
}

static void
leave_place(AvailabilityMap *map, Lane *entry)
{
	EntryNumber number = entry->number;
	EntryNumber *first = ring_of(map, entry);

	if (entry->state == LANE_WAITS)
	{
		Lane	   *parent = entry->parent == 0 ? NULL : lane_at(entry->parent);
		EntryNumber *link = &map->waiting_lanes;

		if (parent != NULL)
			link = parent->previous == number ? &parent->previous :
				&parent->next;
		*link = merge_heaps(entry->previous, entry->next, entry->parent);
		return;
	}
	lane_at(entry->previous)->next = entry->next;
	lane_at(entry->next)->previous = entry->previous;
	if (*first == number)
		*first = entry->next == number ? 0 : entry->next;
	map->nlanes -= entry->state == LANE_HAS_TURN ? 1 : 0;
}

static bool
has_pieces(const Lane *entry)
{
	for (int p = 0; p < QUEUE_PRIORITIES; p++)
		if (entry->pieces[p].first != 0)
			return true;
	return false;
}

/* Returns the state of a lane that no claim has taken, if it has pieces. */
static LaneState
state_with_pieces(const Lane *entry)
{
	if (entry->is_full)
		return LANE_FULL;
	return entry->not_before != 0 ? LANE_WAITS : LANE_HAS_TURN;
}

/* Returns the state of a lane that no claim has taken. */
static LaneState
state_of_untaken(const Lane *entry)
{
	if (has_pieces(entry))
		return state_with_pieces(entry);
	return entry->delivered.first == 0 ? LANE_NO_ENTRY : LANE_EMPTY;
}

/* Put the lane where it belongs by its new state.  The entry may be gone. */
static void
set_lane_state(AvailabilityMap *map, Lane *entry, LaneState state)
{
	Assert(map_is_locked(map) && entry->map == map->number);

	/*
	 * Its turn must not move when its state is the same.  But an entry that
	 * was just made, and got no piece, has to be freed.
	 */
	if (state == entry->state && state != LANE_NO_ENTRY)
		return;
	Assert((lane_transitions[entry->state] & TO(state)) != 0);

	/* An entry that was just made is in no place yet. */
	if (entry->state != LANE_NO_ENTRY)
		leave_place(map, entry);
	entry->state = state;
	if (state == LANE_NO_ENTRY)
		lane_free(map, entry);
	else
		enter_place(map, entry);
}

/*
 * The lane has changed: put it where it belongs, unless a claim has taken it.
 * The entry may be gone then.
 */
static void
settle_lane(AvailabilityMap *map, Lane *entry)
{
	if (entry->state != LANE_TAKEN)
		set_lane_state(map, entry, state_of_untaken(entry));
}

/* Something has changed by which there may be room in the lane's group. */
static void
settle_with_room(AvailabilityMap *map, Lane *entry)
{
	entry->is_full = false;
	entry->changed = ++map->lane_changes;
	settle_lane(map, entry);
}

/* --- The lanes of a queue --- */

/*
 * Something may be free in this range, now.  With "only_between" it is added
 * only if it does not come behind all that the lane has of this priority.
 * Returns false if it was not added, for that reason or because there is no
 * room.
 */
bool
lanes_add(AvailabilityMap *map, LaneId lane, const MessageRange *range,
		  bool only_between)
{
	Lane	   *entry = lane_find(map, lane);
	PieceList  *list = entry == NULL ? NULL : &entry->pieces[range->priority];
	bool		added;

	Assert(map->has_lanes && !lane_equals(lane, LANE_OF_OVERFLOW));
	if (only_between && (list == NULL || list->first == 0 ||
						 range->first > lane_last_number(list)))
		return false;
	if (entry == NULL)
		entry = lane_make(map, lane, false);
	if (entry == NULL)
		return false;
	added = lane_add_piece(map, &entry->pieces[range->priority], range, false);

	/* It may have been under a claim, and counted toward the bound. */
	settle_with_room(map, entry);
	return added;
}

/*
 * Give back what was taken and not used, which may be nothing.  Returns false
 * if there is no room for it.
 */
bool
lanes_give_back(AvailabilityMap *map, LaneId lane, const MessageRange *range)
{
	Lane	   *entry = lane_find(map, lane);
	bool		is_rest = range->first <= range->last;
	bool		added = true;

	/* Without a bound, a lane of which all was taken has no entry. */
	if (entry == NULL && is_rest)
		entry = lane_make(map, lane, true);

	/* There is no room; or nothing is left, and the lane is gone. */
	if (entry == NULL)
		return !is_rest;
	if (is_rest)
		added = lane_add_piece(map, &entry->pieces[range->priority], range, true);

	/* settle_lane() would leave it taken. */
	set_lane_state(map, entry, state_of_untaken(entry));
	return added;
}

/* Take the first "width" numbers of a lane, of which something is free. */
static void
take_from_lane(AvailabilityMap *map, Lane *entry, int64 width,
			   MessageRange *range)
{
	int			priority = QUEUE_PRIORITIES - 1;

	/* The highest priority comes first; one list is not empty. */
	Assert(has_pieces(entry));
	while (entry->pieces[priority].first == 0)
		priority--;
	lane_take_pieces(map, &entry->pieces[priority], width, range);

	/*
	 * Where groups have a bound, others must not overtake the range.  The
	 * lane of the messages without a key is treated alike.
	 */
	if (map->bound > 0)
		set_lane_state(map, entry, LANE_TAKEN);
	else
		settle_lane(map, entry);
}

/*
 * Take the first range of the lane whose turn it is.  *changes is for
 * lanes_end().  Returns false if no lane has a turn.
 */
bool
lanes_take(AvailabilityMap *map, int64 width, LaneId *lane, uint32 *changes,
		   MessageRange *range)
{
	Lane	   *entry;

	Assert(map_is_locked(map) && map->has_lanes && width > 0);
	if (map->first_lane == 0)
		return false;

	entry = lane_at(map->first_lane);
	*lane = entry->lane;
	*changes = entry->changed;

	/* The ring begins with the next lane, so this one is the last. */
	Assert(entry->state == LANE_HAS_TURN);
	map->first_lane = entry->next;
	take_from_lane(map, entry, width, range);
	return true;
}

/*
 * Take the next range of a lane, whether or not it is its turn.  Returns
 * false if it has none, or if another claim has taken the lane.
 */
bool
lanes_take_more(AvailabilityMap *map, int64 width, LaneId lane,
				MessageRange *range)
{
	Lane	   *entry = lane_find(map, lane);

	if (entry == NULL || !has_pieces(entry) || entry->state == LANE_TAKEN)
		return false;
	take_from_lane(map, entry, width, range);
	return true;
}

/*
 * A claim has had several lanes at once, and has given them back: if the lane
 * has a turn, it is the last one now.  Returns whether it has.
 */
bool
lanes_end_turn(AvailabilityMap *map, LaneId lane)
{
	Lane	   *entry = lane_find(map, lane);

	/* Another session may have changed it meanwhile. */
	if (entry == NULL || entry->state != LANE_HAS_TURN)
		return false;
	leave_place(map, entry);
	enter_place(map, entry);
	return true;
}

/*
 * A claim has taken a range of the lane, chosen nothing in it, and given it
 * back: the lane is the first one again.
 */
void
lanes_keep_turn(AvailabilityMap *map, LaneId lane)
{
	/* The end of the ring is before its first lane. */
	if (lanes_end_turn(map, lane))
		map->first_lane = lane_at(map->first_lane)->previous;
}

/* Forget all lanes of a queue. */
void
lanes_forget(AvailabilityMap *map)
{
	EntryNumber number;

	Assert(map_is_locked(map));
	while ((number = map->waiting_lanes) != 0 ||
		   (number = map->first_lane) != 0 ||
		   (number = map->first_resting) != 0)
	{
		Lane	   *entry = lane_at(number);

		for (int p = 0; p < QUEUE_PRIORITIES; p++)
			lane_free_pieces(map, &entry->pieces[p]);
		lane_free_pieces(map, &entry->delivered);
		leave_place(map, entry);
		lane_free(map, entry);
	}
}

/*
 * List the ranges of the lanes that have a turn.  Returns how many there are,
 * or max + 1 if more than max.
 */
int
lanes_list(const AvailabilityMap *map, MessageRange *ranges, int max)
{
	EntryNumber i = map->first_lane;
	int			n = 0;

	Assert(map_is_locked(map));
	for (int left = map->nlanes; left > 0 && n <= max; left--)
	{
		for (int p = QUEUE_PRIORITIES - 1; p >= 0 && n <= max; p--)
			n += lane_list_pieces(&lane_at(i)->pieces[p], ranges + n, max - n);
		i = lane_at(i)->next;
	}
	return n;
}

/* --- Groups with a bound --- */

/*
 * Messages in this range of a group were delivered, and may be unfinished.
 * Returns false if there is no room for that.
 */
bool
lanes_add_delivered(AvailabilityMap *map, LaneId lane,
					const MessageRange *range)
{
	Lane	   *entry = lane_find(map, lane);
	bool		known;

	Assert(map->has_lanes && lane_is_group(lane));
	if (entry == NULL)
		entry = lane_make(map, lane, true);
	if (entry == NULL)
		return false;
	known = lane_includes(&entry->delivered, range) ||
		lane_append_delivered(map, &entry->delivered, range);

	/*
	 * No callback may report when these messages leave room (PREPARE), so the
	 * lane must not rest because it is full.
	 */
	settle_with_room(map, entry);
	return known;
}

/*
 * A claim that has locked the group has read the messages in the old ranges,
 * and has found these to be unfinished.  Returns false if there is no room
 * for them.
 */
bool
lanes_set_delivered(AvailabilityMap *map, LaneId lane,
					const MessageRange *old, int nold,
					const LaneRange *found, int nfound)
{
	Lane	   *entry = lane_find(map, lane);
	bool		result = true;

	/* The map has forgotten it meanwhile. */
	if (entry == NULL)
		return nfound == 0;
	Assert(lane_is_group(lane));
	for (int i = 0; i < nold; i++)
		lane_cut_pieces(map, &entry->delivered, &old[i]);
	for (int i = 0; i < nfound && result; i++)
		result = lane_append_delivered(map, &entry->delivered,
									   &found[i].range);
	settle_lane(map, entry);
	return result;
}

/*
 * Something may leave room in a group: the messages in the range "finished",
 * or if that is NULL, something else.  Returns whether something may be free
 * in the lane, now or when a claim or a probe gives it back.
 */
bool
lanes_make_room(AvailabilityMap *map, LaneId lane,
				const MessageRange *finished)
{
	Lane	   *entry = lane_find(map, lane);
	bool		result;

	if (entry == NULL)
		return false;
	if (finished != NULL)
		lane_cut_pieces(map, &entry->delivered, finished);

	/* What is taken of it comes back, if the claim or probe takes nothing. */
	result = has_pieces(entry) || entry->state == LANE_TAKEN;
	settle_with_room(map, entry);
	return result;
}

/*
 * A claim or a probe is done with a lane of which it has taken nothing.  It may
 * have found its group full, or that its rate allows nothing before that time
 * (else 0).  "changes" is what lanes_take() has returned; is_left says that
 * messages are left for which there is room.  Returns whether another claim
 * may find something, now or when this one has given the lane back.
 */
bool
lanes_end(AvailabilityMap *map, LaneId lane, uint32 changes, bool is_full,
		  bool is_left, TimestampTz not_before)
{
	Lane	   *entry = lane_find(map, lane);
	bool		changed;
	bool		result;

	if (entry == NULL)
		return false;

	/*
	 * If the lane has changed since it was taken, that may have left room
	 * which the claim has not seen: then the lane must not rest.
	 */
	changed = entry->changed != changes;
	entry->is_full = is_full && !changed;
	entry->changed = ++map->lane_changes;

	/* The heap is in the order of these times: none may change there. */
	if (not_before != 0 && entry->state != LANE_WAITS)
		entry->not_before = not_before;

	/*
	 * While it is taken, its range comes back: nothing of it was used.  If
	 * nothing has changed, another claim would find no more than this one.
	 * Claims that find nothing would wake each other for ever.
	 */
	result = (changed || is_left) &&
		(entry->state == LANE_TAKEN || has_pieces(entry)) &&
		state_with_pieces(entry) == LANE_HAS_TURN;
	settle_lane(map, entry);
	return result;
}

/* --- Groups with a rate --- */

/*
 * Give a turn to the lanes whose time has come.  Returns how many these are.
 */
int
lanes_wake(AvailabilityMap *map, TimestampTz now)
{
	int			n = 0;

	Assert(map_is_locked(map));
	while (map->waiting_lanes != 0)
	{
		Lane	   *entry = lane_at(map->waiting_lanes);

		/* If a time is too far ahead, the clock was set back. */
		if (entry->not_before > now &&
			entry->not_before <= now + LANE_WAIT_MAX)
			break;
		entry->not_before = 0;
		settle_lane(map, entry);
		n++;
	}
	return n;
}
