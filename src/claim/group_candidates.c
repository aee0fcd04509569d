/*-------------------------------------------------------------------------
 *
 * group_candidates.c
 *	  The groups that a pass over the whole queue has met, and what is free.
 *
 * NOTES
 *	  See claim_scan_groups.c.  Of each group, the pass counts the messages
 *	  that are under live claims, and keeps the first ones that are free.
 *
 * src/claim/group_candidates.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "catalog/message_id.h"
#include "claim/group_candidates.h"
#include "claim/group_turn.h"
#include "claim/scan_lists.h"
#include "claim/scan_row.h"
#include "map/availability_groups.h"
#include "queue/group.h"
#include "storage/message_row.h"
#include "util/hash.h"

#define FIRST_SIZE		4		/* room for candidates at first */

static ClaimGroup *find_group(ClaimScan *scan, const ScanRow *row);
static int	popped_of_group(const ClaimScan *scan, LaneId lane);
static bool comes_before(const Candidate *a, const Candidate *b);
static void add_candidate(ClaimScan *scan, ClaimGroup *group,
						  const Candidate *new);

/* A pass begins. */
void
group_candidates_begin(ClaimScan *scan)
{
	const Queue *queue = scan->request.queue;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "groups of a claim",
												  ALLOCSET_DEFAULT_SIZES);
	ClaimGroups *groups = MemoryContextAllocZero(context,
												 sizeof(ClaimGroups));

	groups->context = context;
	groups->candidates = AllocSetContextCreate(context,
											   "candidates of a claim",
											   ALLOCSET_DEFAULT_SIZES);
	groups->table = hash_create_blobs("groups of a claim", sizeof(LaneId),
									  sizeof(ClaimGroup), context);
	groups->changes = availability_begin_groups(queue->id,
												queue->group_concurrency);
	scan->pass.groups = groups;
}

/* Forget what the first reading has found, but not the locks. */
void
group_candidates_forget(ClaimScan *scan)
{
	ClaimGroups *groups = scan->pass.groups;
	HASH_SEQ_STATUS status;
	ClaimGroup *group;

	hash_seq_init(&status, groups->table);
	while ((group = hash_seq_search(&status)) != NULL)
	{
		group->live = popped_of_group(scan, group->turn.lane);
		group->is_blocked = false;
		group->n = group->size = 0;
	}
	MemoryContextReset(groups->candidates);
}

/*
 * What this transaction has popped of a group with a bound counts as under a
 * live claim, until the transaction ends.
 */
static int
popped_of_group(const ClaimScan *scan, LaneId lane)
{
	return group_turn_is_bounded(scan, lane) ?
		group_popped(scan->request.queue->id, lane) : 0;
}

/*
 * Returns the group of a message, or NULL if the second reading does not need
 * it.
 */
static ClaimGroup *
find_group(ClaimScan *scan, const ScanRow *row)
{
	ClaimGroups *groups = scan->pass.groups;
	LaneId		lane = message_lane(RelationGetDescr(row->table->heap),
									row->tuple);
	ClaimGroup *group;
	bool		found;

	group = hash_search(groups->table, &lane,
						groups->only_locked ? HASH_FIND : HASH_ENTER, &found);

	/* It is new, or without the lock its count would not hold. */
	if (group == NULL ||
		(groups->only_locked && group_turn_is_bounded(scan, lane) &&
		 !group->turn.is_locked))
		return NULL;
	if (!found)
	{
		memset(group, 0, sizeof(ClaimGroup));
		group->turn.lane = lane;
		group->turn.allowance = INT_MAX;
		group->live = popped_of_group(scan, lane);
	}
	return group;
}

/* The pass has met a message that is under a live claim, or may be. */
void
group_candidates_add_claimed(ClaimScan *scan, const ScanRow *row)
{
	ClaimGroup *group = find_group(scan, row);

	if (group != NULL)
		group->live++;
}

/*
 * The pass has met a message that is free, or delayed; "locked" says whether
 * another transaction has locked it.
 */
void
group_candidates_add_free(ClaimScan *scan, const ScanRow *row, bool locked)
{
	ClaimGroup *group = find_group(scan, row);
	Candidate	new = {.message.table = row->table};
	bool		first_out;

	if (group == NULL)
		return;
	first_out = scan->request.queue->group_concurrency == 1 &&
		group_turn_is_bounded(scan, group->turn.lane);
	new.message.tuple = row->tuple;
	new.message.form = row->form;
	new.message.locked = locked;
	new.was_delivered = first_out && group_turn_was_delivered(row);

	/*
	 * If the bound is 1, nothing of the group may overtake a message that was
	 * delivered and is delayed, nor a locked one, which is a candidate too.
	 */
	if (segment_is_delayed(row->table->segment))
		group->is_blocked |= new.was_delivered;
	else if (first_out || !locked)
		add_candidate(scan, group, &new);
}

/* Returns whether a comes before b in their group. */
static bool
comes_before(const Candidate *a, const Candidate *b)
{
	if (a->was_delivered != b->was_delivered)
		return a->was_delivered;
	return message_id_compare(a->message.form.id, b->message.form.id) < 0;
}

/* Add a candidate to the group's list, if it is one of the first. */
static void
add_candidate(ClaimScan *scan, ClaimGroup *group, const Candidate *new)
{
	MemoryContext old;
	int			most = scan->request.limit;
	int			i = group->n;

	/* One more than wanted shows the end of the pass that some are left. */
	if (scan->request.mode == CLAIM_SCAN_PROBE)
		most = 1;
	else if (group_turn_is_bounded(scan, group->turn.lane))
		most = Min(most + 1, scan->request.queue->group_concurrency);
	while (i > 0 && comes_before(new, &group->candidates[i - 1]))
		i--;
	if (i == most)
		return;
	if (group->n == most)
		heap_freetuple(group->candidates[--group->n].message.tuple);
	old = MemoryContextSwitchTo(scan->pass.groups->candidates);
	if (group->size == 0)
	{
		group->size = FIRST_SIZE;
		group->candidates = palloc(group->size * sizeof(Candidate));
	}
	else if (group->n == group->size)
	{
		group->size *= 2;
		group->candidates = repalloc(group->candidates,
									 group->size * sizeof(Candidate));
	}
	memmove(&group->candidates[i + 1], &group->candidates[i],
			(group->n - i) * sizeof(Candidate));
	group->n++;
	group->candidates[i] = *new;
	group->candidates[i].message.tuple = heap_copytuple(new->message.tuple);
	MemoryContextSwitchTo(old);
}

/* Returns whether the group has another message that may be handed out. */
bool
group_candidates_has_turn(const ClaimScan *scan, const ClaimGroup *group)
{
	int			taken = group->turn.taken;

	if (group->next >= group->n)
		return false;
	return !group_turn_is_bounded(scan, group->turn.lane) ||
		(!group->is_blocked &&
		 !group->candidates[group->next].message.locked &&
		 taken < group->turn.allowance &&
		 group->live + taken < scan->request.queue->group_concurrency);
}
