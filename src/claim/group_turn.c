/*-------------------------------------------------------------------------
 *
 * group_turn.c
 *	  Whether a claim may take something of a group.
 *
 * NOTES
 *	  These are the rules of groups with a bound, for passes that take lanes
 *	  in turn (lane_scan.c) and for those that read the whole queue
 *	  (whole_scan.c).
 *
 *	  A claim locks the group before it counts, and keeps the lock to the end
 *	  of its transaction if it has chosen something (group.c).  It skips a
 *	  group that another transaction has locked, or whose rate allows nothing
 *	  now.  A probe locks nothing, and only asks.
 *
 *	  A claim that has reserved a range of a lane locks its group, asks what
 *	  was delivered of it and may be unfinished (lanes.c), and reads these
 *	  messages, with a snapshot that is later than the lock.  What is under
 *	  live claims, or may be, leaves the less room.  The messages that this
 *	  transaction has changed itself are read too, because the lane gets them
 *	  only when it ends.  Without lanes all messages of the group are counted.
 *
 *	  With a bound of 1, messages of a group are handed out in order, and one
 *	  that was delivered and is not finished comes before all others (the
 *	  head).  So does one that is free and comes before the range that was
 *	  reserved, because a prepared transaction that had claimed it was rolled
 *	  back.  If the head is free, it is taken, and the range goes back; if it is
 *	  delayed or locked, it blocks the group.  A message that was never
 *	  delivered blocks nothing while it is delayed.
 *
 * src/claim/group_turn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "claim/claim_scan_internal.h"
#include "claim/group_rate.h"
#include "map/availability_groups.h"
#include "map/lanes.h"
#include "map/message_ranges.h"
#include "queue/group.h"
#include "queue/options.h"
#include "shmem/database_state.h"
#include "storage/message_scan.h"
#include "storage/pending.h"
#include "storage/prepared.h"
#include "util/hash.h"

/* By its lane, a GroupTurn of the pass */
typedef struct TurnEntry
{
	LaneId		lane;			/* the hash key */
	int			turn;
} TurnEntry;

static int	count_room(ClaimScan *scan, GroupTurn *turn, int wanted);
static int	list_delivered(const ClaimScan *scan, LaneId lane,
						   OwnRanges *ranges);
static void read_delivered(ClaimScan *scan, GroupTurn *turn,
						   const OwnRanges *ranges, int ndelivered);
static void find_head(ClaimScan *scan, GroupCount *count, const ScanRow *row,
					  bool was_delivered);

/*
 * Returns what the pass has done with a group or a lane, or a new entry for
 * it.  The next call may move the entry.
 */
GroupTurn *
group_turn_find(ScanPass *pass, LaneId lane)
{
	GroupTurns *turns = &pass->turns;
	GroupTurn  *turn;
	TurnEntry  *entry;
	bool		found;

	if (turns->by_lane == NULL)
		turns->by_lane = hash_create_blobs("turns of groups", sizeof(LaneId),
										   sizeof(TurnEntry),
										   CurrentMemoryContext);
	entry = hash_search(turns->by_lane, &lane, HASH_ENTER, &found);
	if (found)
		return &turns->items[entry->turn];
	entry->turn = turns->n;
	turns->items = scan_list_make_room(turns->items, turns->n, &turns->size,
									   sizeof(GroupTurn));
	turn = &turns->items[turns->n++];
	memset(turn, 0, sizeof(GroupTurn));
	turn->lane = lane;
	return turn;
}

/* Messages without a key have no bound. */
bool
group_turn_is_bounded(const ClaimScan *scan, LaneId lane)
{
	return scan->request.queue->group_concurrency > 0 &&
		!lane_equals(lane, LANE_WITHOUT_KEY);
}

/*
 * Lock a group with a bound; a probe only asks whether it is locked.  Sets
 * turn->room to what its rate allows, which may be 0.  Returns false if
 * another transaction has locked it.  The claim has locked less than
 * GROUP_LOCKS_OF_CLAIM groups.
 */
bool
group_turn_lock(ClaimScan *scan, GroupTurn *turn)
{
	const Queue *queue = scan->request.queue;
	ScanPass   *pass = &scan->pass;
	bool		probes = scan->request.mode == CLAIM_SCAN_PROBE;
	uint64		holder;

	turn->room = 0;
	turn->not_before = 0;

	Assert(pass->nlocks < GROUP_LOCKS_OF_CLAIM);
	turn->is_locked = !probes &&
		group_try_lock(queue->id, turn->lane, &turn->is_new_lock);
	if (turn->is_locked)
		pass->nlocks++;
	else
	{
		holder = group_locked_by(queue->id, turn->lane);

		/*
		 * That is final if the next pass finds the same transaction there. If
		 * it has ended meanwhile, the group may have something for us.
		 */
		if (holder != 0)
			scan_list_add_busy(scan, (int64) holder);
		else if (!probes)
			pass->lost = true;
		if (holder != 0 || !probes)
		{
			pass->met_locked_group = true;
			return false;
		}
	}

	/*
	 * Its lane does not have all that comes first until the worker has
	 * returned that; then it has a turn again.
	 */
	if (pass->uses_map && database_has_worker() &&
		prepared_frees(queue->id, turn->lane))
	{
		group_turn_unlock(scan, turn);
		pass->met_locked_group = true;
		return false;
	}
	turn->room = queue->group_rate <= 0 ? INT_MAX :
		group_rate_allowance(queue, turn->lane, &turn->not_before);
	return true;
}

/* Unlock a group of which nothing was chosen. */
void
group_turn_unlock(ClaimScan *scan, GroupTurn *turn)
{
	/* An older lock protects what this transaction has claimed before. */
	if (turn->is_new_lock)
		group_unlock(scan->request.queue->id, turn->lane);
	if (turn->is_locked)
		scan->pass.nlocks--;
	turn->is_locked = turn->is_new_lock = false;
}

/* --- How many messages may be taken --- */

/*
 * Lock the group of a lane of which this range is reserved, and return how
 * many messages of it may be taken.  That is 0 or less if the group is full or
 * blocked, its rate allows none now, another transaction has locked it, the
 * claim has enough locks (does_not_fit), something has been added before the
 * range, a table is locked, or the lanes do not know what was delivered.
 */
int
group_turn_open(ClaimScan *scan, GroupTurn *turn, const MessageRange *range,
				uint32 changes, int wanted)
{
	const Queue *queue = scan->request.queue;

	/*
	 * The pass has locked and counted it before.  A probe locks nothing, and
	 * counts each time.
	 */
	if (turn->is_locked)
		return turn->room;
	turn->changes = changes;
	memset(&turn->count, 0, sizeof(GroupCount));
	turn->count.range = range;

	/*
	 * The claim has something of each group that it has locked, so it need
	 * not look for more: the next claim begins with this lane.
	 */
	if (scan->pass.nlocks == GROUP_LOCKS_OF_CLAIM)
	{
		scan->pass.does_not_fit = true;
		return 0;
	}

	/*
	 * Another transaction has locked the group.  The lane keeps a turn,
	 * behind the others.  The end of that transaction wakes the sessions that
	 * wait.
	 */
	if (!group_turn_lock(scan, turn))
		return 0;

	/*
	 * With a bound of 1, messages go out in order; but the end of another
	 * transaction has added something to the lane that comes before the
	 * range.  The next pass, or the next claim, takes the lane again.
	 */
	if (turn->room > 0 && queue->group_concurrency == 1 &&
		!availability_is_first(queue->id, turn->lane, range))
	{
		scan->pass.lost = true;
		turn->room = 0;
	}

	/* The rate, or the order, may leave none. */
	if (turn->room > 0)
	{
		int			room = count_room(scan, turn, Min(wanted, turn->room));

		turn->room = Min(turn->room, room);
	}

	/*
	 * The lane may rest if what was counted leaves no room, since whatever
	 * becomes of these messages gives it a turn again.  But none of them may
	 * be locked or being changed, because no callback reports the end of a
	 * prepared transaction.  If nothing was counted, the reason is its rate
	 * or its order, and the group is not full.
	 */
	if (turn->room <= 0)
		group_turn_close(scan, turn,
						 turn->count.n > 0 && !turn->count.is_changing);
	return turn->room;
}

/*
 * Returns how many messages of the group, which is locked, its bound leaves
 * room for.  What this transaction has popped counts too, until it ends.
 */
static int
count_room(ClaimScan *scan, GroupTurn *turn, int wanted)
{
	int			bound = scan->request.queue->group_concurrency;
	int			room = bound - group_popped(scan->request.queue->id,
											turn->lane);
	int64		most = 0;		/* under live claims */
	OwnRanges	ranges = {0};
	int			ndelivered = list_delivered(scan, turn->lane, &ranges);

	if (ndelivered < 0)
	{
		/*
		 * The map was cleared, or there was no room for what was delivered:
		 * then only a pass that reads the whole queue can count.  But a claim
		 * that has something need not be complete.
		 */
		scan->pass.gave_up = scan->result.chosen.n == 0;
		return 0;
	}
	for (int i = 0; i < ranges.n; i++)
		most += ranges.items[i].last - ranges.items[i].first + 1;

	/*
	 * If there is room enough even if all of these are under live claims, we
	 * need not read them.  But with a bound of 1 one of them is the head of
	 * the group, if it is not finished.
	 */
	if (ranges.n > 0 && (bound == 1 || most + wanted > room))
	{
		read_delivered(scan, turn, &ranges, ndelivered);
		most = turn->count.live;
	}
	if (ranges.items != NULL)
		pfree(ranges.items);

	/*
	 * A message blocks the group; or a table is locked, and we know too
	 * little.
	 */
	return group_count_is_blocked(&turn->count) ||
		message_scan_is_blocked(scan->pass.rows) ? 0 : (int) (room - most);
}

/*
 * List what was delivered of the group and may be unfinished: first what its
 * lane has, then what this transaction has changed itself, which the lane gets
 * as it ends.  Returns how many ranges the lane has; -1 if the lanes do not
 * know what was delivered any more.
 */
static int
list_delivered(const ClaimScan *scan, LaneId lane, OwnRanges *ranges)
{
	int32		queue_id = scan->request.queue->id;
	int			n;

	ranges->size = 16;
	ranges->items = palloc(ranges->size * sizeof(MessageRange));
	while ((n = availability_list_delivered(queue_id, lane, ranges->items,
											ranges->size)) > ranges->size)
	{
		ranges->size *= 2;
		ranges->items = repalloc(ranges->items,
								 ranges->size * sizeof(MessageRange));
	}
	ranges->n = Max(n, 0);
	pending_add_of_lane(queue_id, lane, ranges);
	return n;
}

/*
 * Read the messages of the group that are in these ranges, with a snapshot
 * that is later than the lock.  Those that are unfinished replace the ranges
 * in the lane, which are the first ones.
 */
static void
read_delivered(ClaimScan *scan, GroupTurn *turn, const OwnRanges *ranges,
			   int ndelivered)
{
	ScanPass   *pass = &scan->pass;
	LaneRanges *found = &pass->delivered;
	ScanRow		row;

	do
	{
		message_scan_end_parts(pass->rows);
		claim_scan_push_snapshot(scan);
		for (int i = 0; i < ranges->n; i++)
		{
			message_scan_add_range(pass->rows, &ranges->items[i]);

			/* Some may have been given back with a delay. */
			message_scan_add_delayed(pass->rows, &ranges->items[i]);
		}
	} while (message_scan_is_stale(pass->rows));

	/* A claim that has ended since the pass began leaves room. */
	pass->now = GetCurrentTimestamp();
	while (!message_scan_is_blocked(pass->rows) &&
		   message_scan_next(pass->rows, &row))
		if (scan_row_is_of_lane(&row, turn->lane))
			group_count_row(scan, &turn->count, &row);
	message_scan_end_parts(pass->rows);

	/*
	 * Only what the lock protects is exact, so a probe replaces nothing.  Nor
	 * does a transaction that has changed a message of the group itself: a
	 * rollback would bring back what it has deleted.
	 */
	if (!message_scan_is_blocked(pass->rows) && turn->is_locked &&
		ranges->n == ndelivered)
		availability_set_delivered(scan->request.queue->id, turn->lane,
								   ranges->items, ndelivered, found->items,
								   found->n);
	found->n = 0;
}

/*
 * Count a message of a group with a bound.  If only some are read, they were
 * delivered, or may have been.
 */
void
group_count_row(ClaimScan *scan, GroupCount *count, const ScanRow *row)
{
	ScanPass   *pass = &scan->pass;
	MessageClass class = scan_row_class(scan, row);
	bool		is_live = scan_row_counts_as_claimed(row, class);

	/* Claims in the queue that a dead letter came from do not count. */
	bool		was_delivered = class == MESSAGE_FREE &&
	row->form.claim_count > 0 &&
	options_deliveries(row->table, row->tuple) > 0;

	/* The ranges may overlap, and their messages are merged in order. */
	if (count->n > 0 && row->form.id == count->last_id)
		return;
	if (is_live)
		count->live++;

	/*
	 * A pass that finds nothing without a map is repeated until what it has
	 * met locked stays the same.  If the row has changed since our snapshot,
	 * or since we have counted it, only another pass shows what it is now.
	 */
	if (!pass->uses_map && class == MESSAGE_FREE)
	{
		if (scan_row_is_locked(row))
		{
			pass->met_locked = true;
			scan_list_add_busy(scan, row->form.id);
		}
		else if (is_live || scan_row_is_changing(row))
			pass->lost = true;
	}

	/*
	 * It stays in the lane's list until it is finished.  One that is expired,
	 * a duplicate or exhausted, and under no claim, leaves the list, since it
	 * takes no room and blocks nothing.
	 */
	if (pass->uses_map && (is_live || was_delivered))
	{
		count->last_id = row->form.id;
		scan_list_add_range(&pass->delivered, row);
		count->n++;
		count->is_changing |= scan_row_is_changing(row);
	}
	if (class == MESSAGE_FREE && !is_live)
		find_head(scan, count, row, was_delivered);
}

/*
 * The message, which is not under a claim, may be the head of its group, or
 * with a bound of 1, block it.
 */
static void
find_head(ClaimScan *scan, GroupCount *count, const ScanRow *row,
		  bool was_delivered)
{
	bool		is_locked = scan_row_is_locked(row);
	bool		is_delayed = segment_is_delayed(row->table->segment);
	MessageRange head = {0};

	/* It is enough to know that something of the group is free. */
	if (scan->request.queue->group_concurrency != 1)
	{
		count->has_head |= !scan->pass.uses_map && !is_locked && !is_delayed;
		return;
	}
	head.first = head.last = message_id_number(row->form.id);
	head.priority = row->form.priority;
	head.due = DT_NOBEGIN;
	if (was_delivered && (is_locked || is_delayed))
		count->is_blocked = true;
	if (is_delayed)
		return;
	if (!was_delivered && scan->pass.uses_map)
	{
		/*
		 * It is free after all, if a prepared transaction that had claimed it
		 * was rolled back.  It is the head only if it comes before the range,
		 * and before others like it.  It is not counted, so it alone does not
		 * make the group full.
		 */
		if (count->has_head || !message_range_is_before(&head, count->range))
			return;

		/* It stays in the lane's list until it is handed out. */
		scan_list_add_range(&scan->pass.delivered, row);
		count->is_changing |= is_locked;
	}

	/* One that was delivered comes before one that was not. */
	if (!count->has_head || (was_delivered && !count->head_was_delivered))
	{
		count->has_head = true;
		count->head_was_delivered = was_delivered;
		count->head_is_locked = is_locked;
		count->head = head;
	}
}

/*
 * Nothing of the group was chosen: unlock it.  Its lane rests if the group is
 * full, and nothing has changed since the lane was taken.
 */
void
group_turn_close(ClaimScan *scan, GroupTurn *turn, bool is_full)
{
	bool		probes = !turn->is_locked;

	group_turn_unlock(scan, turn);

	/* What a probe has counted does not hold without the lock. */
	if (probes && turn->not_before == 0)
		return;

	/* It does not wait for long, because the rate may be changed meanwhile. */
	availability_end_lane(scan->request.queue->id, turn->lane,
						  turn->changes, is_full && !probes,
						  scan->pass.does_not_fit,
						  Min(turn->not_before,
							  scan->pass.now + LANE_WAIT_MAX));
}

/*
 * The pass ends.  Groups of which something was chosen stay locked to the end
 * of the transaction.
 */
void
group_turns_end(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;

	for (int i = 0; i < pass->turns.n; i++)
	{
		GroupTurn  *turn = &pass->turns.items[i];

		if (!turn->is_locked)
			continue;

		/*
		 * Other claims have passed over a group that was locked.  The end of
		 * the transaction gives its lane a turn, and wakes sessions that
		 * wait, if there may be more.  A pass over the whole queue may have
		 * left something in a group of which it has chosen nothing.  If it
		 * has found nothing at all, it is repeated.
		 */
		if (turn->taken > 0 ||
			(!pass->uses_map && turn->room > 0 && scan->result.chosen.n > 0))
			pending_record_queue(scan->request.queue->id, TARGET_TURN,
								 turn->lane);
		if (turn->taken > 0)
			continue;
		if (pass->uses_map)
			group_turn_close(scan, turn, false);
		else
			group_turn_unlock(scan, turn);
	}
}
