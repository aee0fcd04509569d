/*-------------------------------------------------------------------------
 *
 * lane_takes.c
 *	  Reading the ranges of several lanes at once.
 *
 * NOTES
 *	  A claim of many messages takes few of each lane.  Where the groups come
 *	  in turn, their messages lie side by side, and an index scan for each of
 *	  them would cost more than all else.  So the claim reserves a range of
 *	  each of many lanes at once, and reads them in the order of their
 *	  numbers: what is close together is read by one index scan, all with one
 *	  snapshot.  The rows of other lanes, and of lanes that have given all that
 *	  is wanted of them, are passed over.
 *
 * src/claim/lane_takes.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/message_id.h"
#include "claim/claim_scan_internal.h"
#include "claim/lane_takes.h"
#include "map/availability_reserve.h"
#include "map/message_ranges.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"

/*
 * A scan goes on to the next range if no more numbers than these lie between:
 * to read the rows costs less than another index scan.
 */
#define READ_GAP		8

#define HASH_SIZE		(2 * LANES_AT_ONCE)

/* The lanes, in the order of their ranges and by a hash */
typedef struct Takes
{
	int			n;
	LaneTake   *in_order[LANES_AT_ONCE];
	LaneTake   *by_hash[HASH_SIZE];
	int			next;			/* the first in order that may be read yet */

	/* Up to here all that is wanted was read */
	int16		priority;
	int64		number;
} Takes;

static void begin_takes(Takes *all, LaneTake *takes, int n);
static int	compare_ranges(const void *a, const void *b);
static LaneTake *find_take(const Takes *all, LaneId lane);
static bool next_range(Takes *all, MessageRange *range);
static bool was_read(const Takes *all, const MessageRange *range);
static void take_row(ClaimScan *scan, const Takes *all, ScanRow *row);
static int64 end_of_take(const Takes *all, const LaneTake *take);
static void read_range(ClaimScan *scan, Takes *all, const MessageRange *range,
					   bool has_snapshot);

static void
begin_takes(Takes *all, LaneTake *takes, int n)
{
	memset(all, 0, sizeof(Takes));
	all->n = n;
	all->priority = QUEUE_PRIORITIES;
	for (int i = 0; i < n; i++)
	{
		int			slot = takes[i].lane.hash % HASH_SIZE;

		while (all->by_hash[slot] != NULL)
			slot = (slot + 1) % HASH_SIZE;
		all->by_hash[slot] = &takes[i];
		all->in_order[i] = &takes[i];
		takes[i].range = availability_reserved()[i].range;
		takes[i].scanned_to = takes[i].range.first - 1;
	}
	qsort(all->in_order, n, sizeof(LaneTake *), compare_ranges);
}

static int
compare_ranges(const void *a, const void *b)
{
	const MessageRange *x = &(*(LaneTake *const *) a)->range;
	const MessageRange *y = &(*(LaneTake *const *) b)->range;

	if (message_range_is_before(x, y))
		return -1;
	return message_range_is_before(y, x) ? 1 : 0;
}

static LaneTake *
find_take(const Takes *all, LaneId lane)
{
	int			slot = lane.hash % HASH_SIZE;

	while (all->by_hash[slot] != NULL &&
		   !lane_equals(all->by_hash[slot]->lane, lane))
		slot = (slot + 1) % HASH_SIZE;
	return all->by_hash[slot];
}

/* Returns whether all of the range was read that is wanted. */
static bool
was_read(const Takes *all, const MessageRange *range)
{
	return range->priority > all->priority ||
		(range->priority == all->priority && range->last <= all->number);
}

/*
 * Sets *range to what one index scan is to read next: the ranges of lanes of
 * which something is wanted that are close together.  Returns false if there
 * are none.
 */
static bool
next_range(Takes *all, MessageRange *range)
{
	while (all->next < all->n &&
		   (all->in_order[all->next]->wanted == 0 ||
			was_read(all, &all->in_order[all->next]->range)))
		all->next++;
	if (all->next == all->n)
		return false;
	*range = all->in_order[all->next]->range;
	if (range->priority == all->priority)
		range->first = Max(range->first, all->number + 1);
	for (int i = all->next + 1; i < all->n; i++)
	{
		const LaneTake *take = all->in_order[i];

		if (take->wanted == 0)
			continue;
		if (take->range.priority != range->priority ||
			take->range.first > range->last + READ_GAP)
			break;
		range->last = Max(range->last, take->range.last);
	}
	return true;
}

/* Choose a message, if it is wanted, and fits into the claim. */
static void
take_row(ClaimScan *scan, const Takes *all, ScanRow *row)
{
	ChosenMessages *chosen = &scan->result.chosen;
	int64		number = message_id_number(row->form.id);
	int			before = chosen->n;
	LaneTake   *take = find_take(all,
								 message_lane(RelationGetDescr(row->table->heap),
											  row->tuple));

	/* Other messages of the lane may lie here, which are not reserved. */
	if (take == NULL || take->wanted == 0 ||
		row->form.priority != take->range.priority ||
		number < take->range.first || number > take->range.last)
		return;
	claim_scan_row(scan, row);
	if (!scan->pass.does_not_fit)
		take->scanned_to = number;
	if (chosen->n > before)
	{
		chosen->items[before].lane = take->turn;
		take->wanted--;
	}
}

/* Returns up to where the range of a lane was scanned. */
static int64
end_of_take(const Takes *all, const LaneTake *take)
{
	/* Behind the last one that was chosen nothing was wanted. */
	if (take->wanted == 0)
		return take->scanned_to;
	if (was_read(all, &take->range))
		return take->range.last;
	return take->range.priority < all->priority ? take->range.first - 1 :
		Max(take->range.first - 1, all->number);
}

/*
 * Read one range, until nothing near is wanted any more.  With has_snapshot,
 * the snapshot was taken for an earlier one.
 */
static void
read_range(ClaimScan *scan, Takes *all, const MessageRange *range,
		   bool has_snapshot)
{
	ScanPass   *pass = &scan->pass;
	MessageRange next;
	ScanRow		row;

	claim_scan_add_range(scan, range, has_snapshot);
	if (message_scan_is_blocked(pass->rows))
		return;
	all->priority = range->priority;
	all->number = range->first - 1;
	for (;;)
	{
		if (!message_scan_next(pass->rows, &row))
		{
			all->number = range->last;
			break;
		}
		take_row(scan, all, &row);
		if (pass->does_not_fit)
			break;
		all->number = message_id_number(row.form.id);
		if (!next_range(all, &next) || next.priority != range->priority ||
			next.first > all->number + READ_GAP)
			break;
	}
	message_scan_end_range(pass->rows);
}

/*
 * Choose messages in the ranges of lanes that are reserved, and give back the
 * rest of these.
 */
void
lane_takes_scan(ClaimScan *scan, LaneTake *takes, int n)
{
	ScanPass   *pass = &scan->pass;
	bool		has_snapshot = false;
	int64		scanned_to[LANES_AT_ONCE];
	MessageRanges passed;
	MessageRange range;
	Takes		all;

	passed.n = 0;
	begin_takes(&all, takes, n);
	pass->lane_step = LANE_STEP_TAKE;
	while (!pass->does_not_fit && !message_scan_is_blocked(pass->rows) &&
		   next_range(&all, &range))
	{
		read_range(scan, &all, &range, has_snapshot);
		has_snapshot = true;
		for (int i = 0; i < pass->skipped.n; i++)
			message_ranges_add(&passed, &pass->skipped.items[i], pass->now);
	}
	pass->skipped.n = 0;
	pass->head_failed = false;
	pass->lane_step = LANE_STEP_NONE;
	for (int i = 0; i < n; i++)
		scanned_to[i] = takes[i].scanned_to = end_of_take(&all, &takes[i]);
	availability_give_back(scanned_to, &passed, pass->now);
}

/*
 * Reserve another range of each lane that has not given all that is wanted of
 * it, and has more.  Returns how many these are; they are the first in "takes"
 * then.
 */
int
lane_takes_continue(ClaimScan *scan, LaneTake *takes, int n, int64 width)
{
	LaneId		lanes[LANES_AT_ONCE];
	int			nlanes = 0;
	int			kept = 0;

	if (scan->pass.does_not_fit || message_scan_is_blocked(scan->pass.rows))
		return 0;
	for (int i = 0; i < n; i++)
		if (takes[i].wanted > 0)
			lanes[nlanes++] = takes[i].lane;
	if (nlanes == 0)
		return 0;
	nlanes = availability_reserve_more(lanes, nlanes, width);
	for (int i = 0; i < n && kept < nlanes; i++)
		if (lane_equals(takes[i].lane, availability_reserved()[kept].lane))
			takes[kept++] = takes[i];
	return kept;
}
