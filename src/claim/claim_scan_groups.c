/*-------------------------------------------------------------------------
 *
 * claim_scan_groups.c
 *	  A claim scan that takes groups in turn, reading all of a queue.
 *
 * NOTES
 *	  Where the groups cannot take turns by lanes (lane_scan.c), a pass
 *	  reads the whole queue instead:
 *
 *	  - without an availability map;
 *
 *	  - in a transaction that has made something free in the queue itself; or,
 *	  if the groups have a bound, has claimed something of it;
 *
 *	  - if the groups have a bound, as long as the lanes do not know what was
 *	  delivered: until the worker has read the queue after a restart, and
 *	  after the bound has changed; so always if no worker runs;
 *
 *	  - after a pass that has given up the lanes: there was no room for all of
 *	  them, or another session's reservation was open for too long.
 *
 *	  A pass reads all messages, and keeps the first free ones of each group.
 *	  Then it chooses in rounds: one message of each group that has one,
 *	  beginning with the group behind the one that had the last turn, then the
 *	  next round.  Messages without a key take turns as one group, which has
 *	  no bound.  A probe stops at the first group that has something.
 *
 *	  1. Bounds.  If the queue has _group_concurrency, at most so many
 *	  messages of a group may be under live claims.  Rows are the count.  The
 *	  pass reads them twice: first, to see which groups have something free;
 *	  these it locks (group_turn.c), up to the number of messages that it
 *	  wants, and skips those that other transactions have locked.  Then it
 *	  reads again, with a snapshot that is later than the locks, and counts.
 *	  The locks of groups of which something was chosen stay until the
 *	  transaction ends.
 *
 *	  2. What is chosen is locked at once, as in other scans without a map.
 *	  The queue's availability map and its lanes are not used, but for the
 *	  flag that something may be free.  What such a pass claims or deletes is
 *	  returned to them at the end of the transaction, like any other change.
 *
 * src/claim/claim_scan_groups.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "claim/claim_scan_internal.h"
#include "claim/group_candidates.h"
#include "claim/group_turn.h"
#include "map/availability_groups.h"
#include "queue/group.h"
#include "storage/message_scan.h"

static void read_whole_queue(ClaimScan *scan);
static int	compare_lanes(const void *a, const void *b);
static void sort_groups(ClaimScan *scan);
static int	lock_groups(ClaimScan *scan);
static bool choose_of_group(ClaimScan *scan, ClaimGroup *group);
static void choose_in_turns(ClaimScan *scan);
static void probe_groups(ClaimScan *scan);

/* One pass of a claim or a probe */
void
claim_scan_groups(ClaimScan *scan)
{
	group_candidates_begin(scan);
	read_whole_queue(scan);
	sort_groups(scan);

	/* A probe locks nothing; others may claim at once what it has found. */
	if (scan->request.mode == CLAIM_SCAN_PROBE)
		probe_groups(scan);
	else if (scan->request.queue->group_concurrency > 0)
	{
		int			nlocked = lock_groups(scan);

		group_candidates_forget(scan);
		scan->pass.groups->only_locked = true;
		read_whole_queue(scan);
		choose_in_turns(scan);

		/*
		 * Other claims have taken what the groups that we have locked seemed
		 * to have.  But there may be groups that we have not tried.
		 */
		if (scan->result.chosen.n == 0 && nlocked > 0)
			scan->pass.lost = true;
	}
	else
		choose_in_turns(scan);
}

/* The pass ends, and with it the locks of groups that are not needed. */
void
claim_scan_end_groups(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;
	ClaimGroups *groups = pass->groups;

	if (groups == NULL)
		return;
	for (int i = 0; i < groups->n; i++)
	{
		ClaimGroup *group = groups->order[i];

		if (!group->turn.is_locked)
			continue;

		/*
		 * Something is left, and other sessions may have skipped the group
		 * because of our lock.  The end of the transaction wakes those that
		 * wait, as lane_scan_end() has it do for a lane.
		 */
		if (group_candidates_has_turn(scan, group))
			group_make_room(scan->request.queue,
							group->candidates[group->next].message.table,
							group->candidates[group->next].message.tuple,
							false);
		if (group->turn.taken == 0)
			group_turn_unlock(scan, &group->turn);
	}

	/*
	 * Clear the flag that something may be free.  But what was locked, or
	 * changed meanwhile, or has to wait for a rate, may be free at any
	 * moment.
	 */
	if (scan->result.chosen.n == 0 && scan->result.nfree == 0 &&
		!pass->met_locked && !pass->met_locked_group && !pass->met_changed &&
		!pass->met_rate)
		availability_found_nothing(scan->request.queue->id, groups->changes);
	MemoryContextDelete(groups->context);
	pass->groups = NULL;
}

/* Read all messages of the queue, and sort them into groups. */
static void
read_whole_queue(ClaimScan *scan)
{
	MessageScan *rows = scan->pass.rows;
	ScanRow		row;

	message_scan_end_parts(rows);
	claim_scan_push_snapshot(scan);
	scan->pass.now = GetCurrentTimestamp();
	message_scan_add_list(rows, PG_INT64_MIN);
	while (message_scan_next(rows, &row))
		claim_scan_row(scan, &row);
	message_scan_end_parts(rows);
}

/* --- Turns --- */

static int
compare_lanes(const void *a, const void *b)
{
	uint64		x = (*(ClaimGroup *const *) a)->turn.lane.hash;
	uint64		y = (*(ClaimGroup *const *) b)->turn.lane.hash;

	return x < y ? -1 : (x > y);
}

/*
 * List the groups that have something, beginning with the one whose turn it
 * is.
 */
static void
sort_groups(ClaimScan *scan)
{
	ClaimGroups *groups = scan->pass.groups;
	LaneId		last = availability_last_turn(scan->request.queue->id);
	int			max = (int) hash_get_num_entries(groups->table);
	ClaimGroup **sorted = MemoryContextAlloc(groups->context, (max + 1) *
											 sizeof(ClaimGroup *));
	HASH_SEQ_STATUS status;
	ClaimGroup *group;
	int			n = 0;
	int			first = 0;

	hash_seq_init(&status, groups->table);
	while ((group = hash_seq_search(&status)) != NULL)
		if (group_candidates_has_turn(scan, group))
			sorted[n++] = group;
	qsort(sorted, n, sizeof(ClaimGroup *), compare_lanes);
	while (first < n && sorted[first]->turn.lane.hash <= last.hash)
		first++;
	groups->n = n;
	groups->order = MemoryContextAlloc(groups->context, (n + 1) *
									   sizeof(ClaimGroup *));
	for (int i = 0; i < n; i++)
		groups->order[i] = sorted[(first + i) % n];
}

/*
 * Lock as many groups as the claim wants messages, in turn, except those that
 * other transactions have locked or whose rate leaves none.  Returns their
 * number.
 */
static int
lock_groups(ClaimScan *scan)
{
	ClaimGroups *groups = scan->pass.groups;
	int			nwanted = Min(scan->request.limit, GROUP_LOCKS_OF_CLAIM);

	for (int i = 0; i < groups->n && nwanted > 0; i++)
	{
		GroupTurn  *turn = &groups->order[i]->turn;

		/* Messages without a key need no lock, but have their turn too. */
		if (group_turn_is_bounded(scan, turn->lane))
		{
			if (!group_turn_lock(scan, turn))
				continue;
			if (turn->allowance <= 0)
			{
				group_turn_unlock(scan, turn);
				continue;
			}
		}
		nwanted--;
	}
	return scan->pass.nlocks;
}

/*
 * Choose the next message of a group.  Returns false if it has none, or none
 * that fits into the claim.
 */
static bool
choose_of_group(ClaimScan *scan, ClaimGroup *group)
{
	while (group_candidates_has_turn(scan, group))
	{
		const ChosenMessage *message =
		&group->candidates[group->next].message;

		/* It is left to others, so the end of the pass has to find it. */
		scan->pass.does_not_fit = !claim_scan_fits(scan, &message->form);
		if (scan->pass.does_not_fit)
			return false;
		group->next++;
		if (claim_scan_choose(scan, message))
		{
			group->turn.taken++;
			return true;
		}

		/* If the bound is 1, nothing of the group may overtake this one. */
		group->is_blocked |= scan->request.queue->group_concurrency == 1;
	}
	return false;
}

/* Choose messages in rounds, until the claim is complete. */
static void
choose_in_turns(ClaimScan *scan)
{
	ClaimGroups *groups = scan->pass.groups;
	const ClaimGroup *last = NULL;
	bool		progress;

	do
	{
		progress = false;
		for (int i = 0; i < groups->n && claim_scan_wants_more(scan); i++)
			if (choose_of_group(scan, groups->order[i]))
			{
				last = groups->order[i];
				progress = true;
			}
	} while (progress && claim_scan_wants_more(scan));
	if (last != NULL)
		availability_set_last_turn(scan->request.queue->id, last->turn.lane);
}

/* Find the first group that has something for a claim. */
static void
probe_groups(ClaimScan *scan)
{
	ClaimGroups *groups = scan->pass.groups;

	for (int i = 0; i < groups->n && scan->result.nfree == 0; i++)
	{
		GroupTurn  *turn = &groups->order[i]->turn;

		if (!group_turn_is_bounded(scan, turn->lane) ||
			(group_turn_lock(scan, turn) && turn->allowance > 0))
			scan->result.nfree++;
	}
}
