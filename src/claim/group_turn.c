/*-------------------------------------------------------------------------
 *
 * group_turn.c
 *	  Whether a claim may take something of a group.
 *
 * NOTES
 *	  These are the rules of groups with a bound, for passes that take lanes
 *	  in turn (lane_scan.c) and for those that read the whole queue
 *	  (whole_scan.c).  Which messages are counted differs (lane_count.c).
 *
 *	  A claim locks the group before it counts, and keeps the lock to the end
 *	  of its transaction if it has chosen something (group.c).  It skips a
 *	  group that another transaction has locked, or whose rate allows nothing
 *	  now.  A probe locks nothing, and only asks.
 *
 *	  With a bound of 1, messages of a group are handed out in order, and one
 *	  that was delivered and is not finished comes before the others.  Nothing
 *	  is handed out while that one is delayed or locked.  A message that was
 *	  never delivered blocks nothing while it is delayed.
 *
 * src/claim/group_turn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "claim/claim_scan_internal.h"
#include "claim/group_rate.h"
#include "claim/group_turn.h"
#include "claim/scan_lists.h"
#include "map/lanes.h"
#include "queue/group.h"
#include "queue/options.h"
#include "shmem/database_state.h"
#include "storage/prepared.h"
#include "util/hash.h"

/* By its lane, a GroupTurn of the pass */
typedef struct TurnEntry
{
	LaneId		lane;			/* the hash key */
	int			turn;
} TurnEntry;

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
	pass->met_rate |= turn->room == 0;
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

/*
 * Returns whether a message that is not under a claim was delivered, in this
 * queue: claims in the queue that a dead letter came from do not count.
 */
bool
group_turn_was_delivered(const ScanRow *row)
{
	return row->form.claim_count > 0 &&
		options_deliveries(row->table, row->tuple) > 0;
}
