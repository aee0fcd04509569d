/*-------------------------------------------------------------------------
 *
 * whole_scan.c
 *	  A claim scan that reads all of a queue.
 *
 * NOTES
 *	  A pass reads the whole queue, highest priority first, lowest id first:
 *
 *	  - without an availability map: on a standby, where there is no room for
 *	  one, or after a pass that has given it up;
 *
 *	  - if the groups have a bound, as long as the lanes do not know what was
 *	  delivered: until the worker has read the queue after a restart, and
 *	  after the bound has changed; so always if no worker runs.
 *
 *	  Groups do not take turns here.  What is chosen is locked at once, since
 *	  other claims meet the same messages.  The map and its lanes are not used.
 *	  What such a pass claims or deletes is returned to them at the end of the
 *	  transaction, like any other change.
 *
 *	  If the queue has _group_concurrency, at most so many messages of a group
 *	  may be under live claims.  Rows are the count.  The pass reads them all
 *	  to see which groups have something free, and locks these, in the order in
 *	  which it has met them, up to the number of messages that it wants; it
 *	  skips those that other transactions have locked.  Then it counts again,
 *	  with a snapshot that is later than the locks, and only then chooses.
 *	  The locks of groups of which something was chosen stay until the
 *	  transaction ends.  A probe locks nothing, and counts once: others may
 *	  claim at once what it has found.
 *
 * src/claim/whole_scan.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "claim/claim_scan_internal.h"
#include "claim/group_turn.h"
#include "claim/whole_scan.h"
#include "queue/group.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"

static void count_groups(ClaimScan *scan);
static int	room_of_group(const ClaimScan *scan, const GroupTurn *turn);
static void lock_groups(ClaimScan *scan);
static void scan_whole_row(ClaimScan *scan, ScanRow *row);

/* One pass of a claim or a probe */
void
whole_scan_pass(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;
	bool		is_bounded = scan->has_groups &&
	scan->request.queue->group_concurrency > 0;
	ScanRow		row;

	Assert(!availability_is_reserving() && pass->turns.n == 0);
	if (is_bounded)
	{
		count_groups(scan);
		lock_groups(scan);

		/* What was counted before the locks may have changed since. */
		if (pass->nlocks > 0)
			count_groups(scan);

		/* Those that were not locked have no room. */
		for (int i = 0; i < pass->turns.n; i++)
		{
			GroupTurn  *turn = &pass->turns.items[i];

			if (turn->room > 0)
				turn->room = Min(turn->room, room_of_group(scan, turn));
		}
	}
	do
	{
		message_scan_end_parts(pass->rows);
		claim_scan_push_snapshot(scan);
		message_scan_add_ids(pass->rows, -1, PG_INT64_MIN, PG_INT64_MAX);
	} while (message_scan_is_stale(pass->rows));
	while (claim_scan_wants_more(scan) && message_scan_next(pass->rows, &row))
		scan_whole_row(scan, &row);

	/*
	 * Other claims have taken what the groups that we have locked seemed to
	 * have.  But there may be groups that we have not tried.
	 */
	if (pass->nlocks > 0 && scan->result.chosen.n == 0)
		pass->lost = true;
}

/* --- Groups with a bound --- */

/* Read all messages, delayed ones too, and count them in their groups. */
static void
count_groups(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;
	ScanRow		row;

	for (int i = 0; i < pass->turns.n; i++)
		memset(&pass->turns.items[i].count, 0, sizeof(GroupCount));
	message_scan_add_list(pass->rows, PG_INT64_MIN);
	pass->now = GetCurrentTimestamp();
	while (message_scan_next(pass->rows, &row))
	{
		LaneId		lane = message_lane(RelationGetDescr(row.table->heap),
										row.tuple);

		if (group_turn_is_bounded(scan, lane))
			group_count_row(scan, &group_turn_find(pass, lane)->count, &row);
	}
	message_scan_end_parts(pass->rows);
}

/* Returns how many messages of a group may be taken by what was counted. */
static int
room_of_group(const ClaimScan *scan, const GroupTurn *turn)
{
	const Queue *queue = scan->request.queue;

	if (!turn->count.has_head || group_count_is_blocked(&turn->count))
		return 0;

	/* What this transaction has popped counts too, until it ends. */
	return queue->group_concurrency - turn->count.live -
		group_popped(queue->id, turn->lane);
}

/*
 * Lock as many groups that have something as the claim wants messages, except
 * those that other transactions have locked or whose rate leaves none.  For
 * a probe, find the first group that is not locked.
 */
static void
lock_groups(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;
	int			wanted = Min(scan->request.limit, GROUP_LOCKS_OF_CLAIM);

	for (int i = 0; i < pass->turns.n && wanted > 0; i++)
	{
		GroupTurn  *turn = &pass->turns.items[i];

		if (room_of_group(scan, turn) <= 0 || !group_turn_lock(scan, turn))
			continue;
		if (turn->room > 0)
			wanted--;
		else
			group_turn_unlock(scan, turn);
	}
}

/* Choose the message, if it is free and its group has room. */
static void
scan_whole_row(ClaimScan *scan, ScanRow *row)
{
	ScanPass   *pass = &scan->pass;
	int			before = scan->result.chosen.n;
	LaneId		lane = LANE_WITHOUT_KEY;
	GroupTurn  *turn = NULL;

	if (scan->has_groups && scan->request.queue->group_concurrency > 0)
		lane = message_lane(RelationGetDescr(row->table->heap), row->tuple);
	if (group_turn_is_bounded(scan, lane))
	{
		turn = group_turn_find(pass, lane);

		/* If the bound is 1, only one message may be the next of its group. */
		if (turn->room <= 0 ||
			(scan->request.queue->group_concurrency == 1 &&
			 message_id_number(row->form.id) != turn->count.head.first))
			return;
	}
	claim_scan_row(scan, row);
	if (turn != NULL)
	{
		/* Without the lock of the group, the count would not hold. */
		Assert(turn->is_locked || scan->result.chosen.n == before);
		turn->taken += scan->result.chosen.n - before;
		turn->room -= scan->result.chosen.n - before;
	}
}
