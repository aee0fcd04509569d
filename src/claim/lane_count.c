/*-------------------------------------------------------------------------
 *
 * lane_count.c
 *	  How many messages of a lane may be taken: groups with a bound.
 *
 * NOTES
 *	  A claim that has reserved a range of a lane locks its group
 *	  (group_turn.c), asks what was delivered of it and may be unfinished
 *	  (lanes.c), and reads these messages, with a snapshot that is later than
 *	  the lock.  What is under live claims, or may be, leaves the less room.
 *
 *	  First in, first out.  With a bound of 1, one that was delivered and is
 *	  not finished comes before all others (the head).  So does one that is
 *	  free and comes before the range that was reserved, because a prepared
 *	  transaction that had claimed it was rolled back.  If the head is free,
 *	  it is taken, and the range goes back; if it is delayed or locked, it
 *	  blocks the group.
 *
 * src/claim/lane_count.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "claim/claim_scan_internal.h"
#include "claim/group_turn.h"
#include "claim/lane_count.h"
#include "claim/scan_lists.h"
#include "claim/scan_row.h"
#include "map/availability_groups.h"
#include "map/lanes.h"
#include "map/message_ranges.h"
#include "queue/group.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "storage/pending_own.h"

/* What is counted of a lane, and what that has found */
typedef struct LaneCount
{
	int			n;				/* messages that may be unfinished */
	int64		last_id;		/* of the last one */
	int			live;			/* of these, under live claims, or may be */
	bool		is_changing;	/* another transaction has locked one, or is
								 * changing it */
	const MessageRange *range;	/* what the claim has reserved of the lane */

	/* If the bound is 1 */
	bool		is_blocked;		/* a message that comes first is delayed or
								 * locked */
	bool		has_head;		/* a message is free that was delivered, or
								 * that comes before the range */
	bool		head_was_delivered;
	MessageRange head;			/* this message */
} LaneCount;

static int	count_room(ClaimScan *scan, const LaneTurn *turn, LaneCount *count,
					   int wanted);
static MessageRange *list_delivered(const ClaimScan *scan, LaneId lane,
									int *n);
static void read_delivered(ClaimScan *scan, const LaneTurn *turn,
						   LaneCount *count, const MessageRange *ranges,
						   int n);
static void count_row(ClaimScan *scan, LaneCount *count, const ScanRow *row);
static void find_head(ClaimScan *scan, LaneCount *count, const ScanRow *row,
					  bool was_delivered);

/*
 * Lock the group of a lane of which this range is reserved, and return how
 * many messages of it may be taken.  That is 0 or less if the group is full or
 * blocked, its rate allows none now, another transaction has locked it, the
 * claim has enough locks (does_not_fit), something has been added before the
 * range, a table is locked, or the lanes do not know what was delivered.
 */
int
lane_count_open(ClaimScan *scan, LaneTurn *turn, const MessageRange *range,
				uint32 changes, int wanted)
{
	const Queue *queue = scan->request.queue;
	LaneCount	count = {.range = range};

	/*
	 * The pass has locked and counted it before.  A probe locks nothing, and
	 * counts each time.
	 */
	if (turn->group.is_locked)
		return turn->room;
	turn->changes = changes;

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
	if (!group_turn_lock(scan, &turn->group))
		return 0;
	turn->room = turn->group.allowance;

	/*
	 * With a bound of 1, messages go out in order; but the end of another
	 * transaction has added something to the lane that comes before the
	 * range.  The next pass, or the next claim, takes the lane again.
	 */
	if (turn->room > 0 && queue->group_concurrency == 1 &&
		!availability_is_first(queue->id, turn->group.lane, range))
	{
		scan->pass.lost = true;
		turn->room = 0;
	}

	/* The rate, or the order, may leave none. */
	if (turn->room > 0)
	{
		int			room = count_room(scan, turn, &count,
									  Min(wanted, turn->room));

		turn->room = Min(turn->room, room);
		turn->has_head = count.has_head;
		turn->head = count.head;
	}

	/*
	 * The lane may rest if what was counted leaves no room, since whatever
	 * becomes of these messages gives it a turn again.  But none of them may
	 * be locked or being changed, because no callback reports the end of a
	 * prepared transaction.  If nothing was counted, the reason is its rate
	 * or its order, and the group is not full.
	 */
	if (turn->room <= 0)
		lane_count_close(scan, turn,
						 count.n > 0 && !count.is_changing);
	return turn->room;
}

/*
 * Returns how many messages of the group, which is locked, its bound leaves
 * room for.  What this transaction has popped counts too, until it ends.
 */
static int
count_room(ClaimScan *scan, const LaneTurn *turn, LaneCount *count,
		   int wanted)
{
	int			bound = scan->request.queue->group_concurrency;
	int			room = bound - group_popped(scan->request.queue->id,
											turn->group.lane);
	int64		most = 0;		/* under live claims */
	int			n;
	MessageRange *ranges = list_delivered(scan, turn->group.lane, &n);

	if (n < 0)
	{
		/*
		 * The map was cleared, or there was no room for what was delivered:
		 * then only a pass that reads the whole queue can count.  But a claim
		 * that has something need not be complete.
		 */
		scan->pass.gave_up = scan->result.chosen.n == 0;
		return 0;
	}
	for (int i = 0; i < n; i++)
		most += ranges[i].last - ranges[i].first + 1;

	/*
	 * If there is room enough even if all of these are under live claims, we
	 * need not read them.  But with a bound of 1 one of them is the head of
	 * the group, if it is not finished.
	 */
	if (n > 0 && (bound == 1 || most + wanted > room))
	{
		read_delivered(scan, turn, count, ranges, n);
		most = count->live;
	}
	pfree(ranges);

	/*
	 * A message blocks the group; or a table is locked, and we know too
	 * little.
	 */
	return count->is_blocked ||
		message_scan_is_blocked(scan->pass.rows) ? 0 : (int) (room - most);
}

/*
 * Returns the ranges of what was delivered of the group and may be
 * unfinished.  Sets *n to -1 if the lanes do not know that any more.
 */
static MessageRange *
list_delivered(const ClaimScan *scan, LaneId lane, int *n)
{
	int			size = 16;
	MessageRange *ranges = palloc(size * sizeof(MessageRange));

	for (;;)
	{
		*n = availability_list_delivered(scan->request.queue->id, lane,
										 ranges, size);
		if (*n <= size)
			return ranges;
		size *= 2;
		ranges = repalloc(ranges, size * sizeof(MessageRange));
	}
}

/*
 * Read the messages of the group that are in these ranges, with a snapshot
 * that is later than the lock.  Those that are unfinished replace the ranges
 * in the lane.
 */
static void
read_delivered(ClaimScan *scan, const LaneTurn *turn, LaneCount *count,
			   const MessageRange *ranges, int n)
{
	ScanPass   *pass = &scan->pass;
	LaneRanges *found = &pass->delivered;
	ScanRow		row;

	do
	{
		message_scan_end_parts(pass->rows);
		claim_scan_push_snapshot(scan);
		for (int i = 0; i < n; i++)
		{
			message_scan_add_range(pass->rows, &ranges[i]);

			/* Some may have been given back with a delay. */
			message_scan_add_delayed(pass->rows, &ranges[i]);
		}
	} while (!message_scan_is_blocked(pass->rows) &&
			 message_scan_is_stale(pass->rows));

	/* A claim that has ended since the pass began leaves room. */
	pass->now = GetCurrentTimestamp();
	while (!message_scan_is_blocked(pass->rows) &&
		   message_scan_next(pass->rows, &row))
		if (scan_row_is_of_lane(&row, turn->group.lane))
			count_row(scan, count, &row);
	message_scan_end_parts(pass->rows);

	/*
	 * Only what the lock protects is exact, so a probe replaces nothing.  Nor
	 * does a transaction that has changed a message of the group itself: a
	 * rollback would bring back what it has deleted.
	 */
	if (!message_scan_is_blocked(pass->rows) && turn->group.is_locked &&
		!pending_has_lane(scan->request.queue->id, turn->group.lane))
	{
		MessageRange *left = palloc(Max(found->n, 1) * sizeof(MessageRange));

		for (int i = 0; i < found->n; i++)
			left[i] = found->items[i].range;
		availability_set_delivered(scan->request.queue->id, turn->group.lane,
								   ranges, n, left, found->n);
		pfree(left);
	}
	found->n = 0;
}

/* Count a message of the group that was delivered, or may have been. */
static void
count_row(ClaimScan *scan, LaneCount *count, const ScanRow *row)
{
	MessageClass class = scan_row_class(scan, row);
	bool		is_live = scan_row_counts_as_claimed(row, class);
	bool		was_delivered = class == MESSAGE_FREE &&
	group_turn_was_delivered(row);

	/* The ranges may overlap, and their messages are merged in order. */
	if (count->n > 0 && row->form.id == count->last_id)
		return;
	if (is_live)
		count->live++;

	/*
	 * It stays in the lane's list until it is finished.  One that is expired,
	 * a duplicate or exhausted, and under no claim, leaves the list, since it
	 * takes no room and blocks nothing.
	 */
	if (is_live || was_delivered)
	{
		count->last_id = row->form.id;
		scan_list_add_range(&scan->pass.delivered, row);
		count->n++;
		count->is_changing |= scan_row_is_changing(row);
	}
	if (class == MESSAGE_FREE && !is_live &&
		scan->request.queue->group_concurrency == 1)
		find_head(scan, count, row, was_delivered);
}

/*
 * With a bound of 1: the message, which is not under a claim, may be the head
 * of its group, or block it.
 */
static void
find_head(ClaimScan *scan, LaneCount *count, const ScanRow *row,
		  bool was_delivered)
{
	bool		is_locked = scan_row_is_locked(row);
	bool		is_delayed = segment_is_delayed(row->table->segment);
	MessageRange head = {0};

	head.first = head.last = message_id_number(row->form.id);
	head.priority = row->form.priority;
	head.due = DT_NOBEGIN;
	if (!was_delivered)
	{
		/*
		 * It is free after all, if a prepared transaction that had claimed it
		 * was rolled back.  It is the head only if it comes before the range,
		 * and before others like it, and blocks nothing while it is delayed.
		 * It is not counted, so it alone does not make the group full.
		 */
		if (is_delayed || count->has_head ||
			!message_range_is_before(&head, count->range))
			return;

		/* It stays in the lane's list until it is handed out. */
		scan_list_add_range(&scan->pass.delivered, row);
		count->is_changing |= is_locked;
	}

	/* One that was delivered comes before one that was not. */
	if (is_locked || is_delayed)
		count->is_blocked = true;
	else if (!count->has_head ||
			 (was_delivered && !count->head_was_delivered))
	{
		count->has_head = true;
		count->head_was_delivered = was_delivered;
		count->head = head;
	}
}

/*
 * Nothing of the group was chosen: unlock it.  Its lane rests if the group is
 * full, and nothing has changed since the lane was taken.
 */
void
lane_count_close(ClaimScan *scan, LaneTurn *turn, bool is_full)
{
	bool		probes = !turn->group.is_locked;

	group_turn_unlock(scan, &turn->group);

	/* What a probe has counted does not hold without the lock. */
	if (probes && turn->group.not_before == 0)
		return;

	/* It does not wait for long, because the rate may be changed meanwhile. */
	availability_end_lane(scan->request.queue->id, turn->group.lane,
						  turn->changes, is_full && !probes,
						  scan->pass.does_not_fit,
						  Min(turn->group.not_before,
							  scan->pass.now + LANE_WAIT_MAX));
}
