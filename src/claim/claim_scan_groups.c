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
 *	  - for probes of a queue whose groups have a bound, if their lanes have
 *	  nothing and something is due;
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
 *	  these it locks (group.c), up to the number of messages that it wants,
 *	  and skips those that other transactions have locked.  Then it reads
 *	  again, with a snapshot that is later than the locks, and counts.  The
 *	  locks of groups of which something was chosen stay until the transaction
 *	  ends.
 *
 *	  2. First in, first out.  With a bound of 1, a message that was delivered
 *	  and is not finished comes before the others of its group, and blocks
 *	  them while it is delayed or locked.  A message that was never delivered
 *	  blocks nothing while it is delayed.
 *
 *	  3. What is chosen is locked at once, as in other scans without a map.
 *	  The queue's availability map and its lanes are not used, but for the
 *	  flag that something may be free.  What such a pass claims or deletes is
 *	  returned to them at the end of the transaction, like any other change.
 *
 * src/claim/claim_scan_groups.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "catalog/message_id.h"
#include "catalog/tables.h"
#include "claim/claim_scan_internal.h"
#include "claim/group_rate.h"
#include "map/availability.h"
#include "queue/group.h"
#include "queue/options.h"
#include "storage/message.h"
#include "storage/message_scan.h"
#include "util/limits.h"

#define LOCKS_MAX		100		/* groups that one claim locks, at most */
#define FIRST_SIZE		4		/* candidates that there is room for at first */

/* A free message that is kept */
typedef struct Candidate
{
	ChosenMessage message;		/* "locked": by another transaction */
	bool		was_delivered;	/* in this queue; only if the bound is 1 */
} Candidate;

typedef struct ClaimGroup
{
	uint64		lane;			/* hash key */
	char	   *key;			/* "" for messages without one */
	int			live;			/* messages under live claims */
	bool		is_blocked;		/* if the bound is 1: a message that comes
								 * first is delayed or locked */
	bool		is_locked;		/* this transaction has the group's lock */
	bool		is_new_lock;	/* ... and took it in this pass */
	int			allowance;		/* messages that its rate leaves */

	/* The first free messages, in the order in which they are handed out */
	int			n;
	int			size;			/* allocated */
	int			next;			/* the next one to be chosen */
	int			taken;			/* chosen */
	Candidate  *candidates;
} ClaimGroup;

struct ClaimGroups
{
	MemoryContext context;		/* of all of this */
	MemoryContext candidates;	/* its child; of one reading */
	HTAB	   *table;
	int			bound;			/* of each group; INT_MAX if there is none */
	bool		only_locked;	/* the second reading, only of groups that are
								 * locked or have no bound */
	uint32		changes;		/* availability_begin_groups() at the
								 * beginning */
	int			n;				/* groups in "order" */
	ClaimGroup **order;			/* by lane, from the one whose turn it is */
};

static void begin(ClaimScan *scan);
static void end_group(const ClaimScan *scan, ClaimGroup *group);
static void read_all(ClaimScan *scan);
static void start_count(const ClaimScan *scan, ClaimGroup *group);
static ClaimGroup *find_group(ClaimScan *scan, const ScanRow *row);
static bool comes_before(const Candidate *a, const Candidate *b);
static bool is_first_out(const ClaimGroups *groups, const ClaimGroup *group);
static bool is_delayed(const ClaimScan *scan, const ScanRow *row);
static int	most_candidates(const ClaimScan *scan, const ClaimGroup *group);
static Candidate *make_room(ClaimScan *scan, ClaimGroup *group,
							const Candidate *new);
static void add_candidate(ClaimScan *scan, ClaimGroup *group,
						  const ScanRow *row, bool was_delivered,
						  bool locked);
static bool is_bounded(const ClaimGroups *groups, const ClaimGroup *group);
static bool has_turn(const ClaimGroups *groups, const ClaimGroup *group);
static int	compare_lanes(const void *a, const void *b);
static void sort_groups(ClaimScan *scan);
static void skip_locked(ClaimScan *scan, uint64 holder);
static bool has_allowance(ClaimScan *scan, ClaimGroup *group);
static void unlock(const ClaimScan *scan, ClaimGroup *group);
static int	lock_groups(ClaimScan *scan);
static void forget_candidates(const ClaimScan *scan);
static bool choose_next(ClaimScan *scan, ClaimGroup *group);
static void choose_in_turns(ClaimScan *scan);
static void probe_groups(ClaimScan *scan);

/* One pass of a claim or a probe */
void
claim_scan_groups(ClaimScan *scan)
{
	begin(scan);
	read_all(scan);
	sort_groups(scan);

	/* A probe locks nothing; others may claim at once what it has found. */
	if (scan->request.mode == CLAIM_SCAN_PROBE)
	{
		probe_groups(scan);
		return;
	}
	if (scan->pass.groups->bound != INT_MAX)
	{
		int			nlocked = lock_groups(scan);

		forget_candidates(scan);
		scan->pass.groups->only_locked = true;
		read_all(scan);
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

static void
begin(ClaimScan *scan)
{
	const Queue *queue = scan->request.queue;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "groups of a claim",
												  ALLOCSET_DEFAULT_SIZES);
	ClaimGroups *groups = MemoryContextAllocZero(context,
												 sizeof(ClaimGroups));
	HASHCTL		control = {0};

	control.keysize = sizeof(uint64);
	control.entrysize = sizeof(ClaimGroup);
	control.hcxt = context;
	groups->context = context;
	groups->candidates = AllocSetContextCreate(context,
											   "candidates of a claim",
											   ALLOCSET_DEFAULT_SIZES);
	groups->table = hash_create("groups of a claim", 64, &control,
								HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	groups->bound = queue->group_concurrency > 0 ?
		queue->group_concurrency : INT_MAX;
	groups->changes = availability_begin_groups(queue->id,
												queue->group_concurrency);
	scan->pass.groups = groups;
}

/* The pass ends with this group, which is unlocked if nothing was chosen. */
static void
end_group(const ClaimScan *scan, ClaimGroup *group)
{
	if (!group->is_locked)
		return;

	/*
	 * Something is left, and other sessions may have skipped the group
	 * because of our lock.  The end of the transaction wakes those that wait.
	 */
	if (has_turn(scan->pass.groups, group))
		group_make_room(scan->request.queue,
						group->candidates[group->next].message.table,
						group->candidates[group->next].message.tuple, false);
	if (group->taken == 0)
		unlock(scan, group);
}

/* The pass ends, and with it the locks of groups that are not needed. */
void
claim_scan_end_groups(ClaimScan *scan)
{
	ClaimGroups *groups = scan->pass.groups;

	if (groups == NULL)
		return;
	for (int i = 0; i < groups->n; i++)
		end_group(scan, groups->order[i]);

	/*
	 * Clear the flag that something may be free.  But what was locked, or
	 * changed meanwhile, or has to wait for a rate, may be free at any
	 * moment.
	 */
	if (scan->result.chosen.n == 0 && scan->result.nfree == 0 &&
		!scan->pass.met_locked && !scan->pass.met_changed &&
		!scan->pass.met_rate)
		availability_found_nothing(scan->request.queue->id, groups->changes);
	MemoryContextDelete(groups->context);
	scan->pass.groups = NULL;
}

/* --- Reading --- */

/* Read all messages of the queue, and sort them into groups. */
static void
read_all(ClaimScan *scan)
{
	MessageScan *rows = scan->pass.rows;
	ScanRow		row;

	message_scan_end_parts(rows);
	claim_scan_push_snapshot(scan);
	scan->pass.now = GetCurrentTimestamp();
	message_scan_add_list(rows, PG_INT64_MIN, true);
	while (message_scan_next(rows, &row))
		claim_scan_row(scan, &row);
	message_scan_end_parts(rows);
}

/*
 * Returns the group of a message, or NULL if the second reading does not need
 * it.
 */
static ClaimGroup *
find_group(ClaimScan *scan, const ScanRow *row)
{
	ClaimGroups *groups = scan->pass.groups;
	bool		isnull;
	Datum		key = heap_getattr(row->tuple, Anum_message_group_key,
								   RelationGetDescr(row->table->heap),
								   &isnull);
	char	   *name = isnull ? pstrdup("") : TextDatumGetCString(key);
	uint64		lane = group_lane(scan->request.queue->id, name);
	ClaimGroup *group;
	bool		found;

	group = hash_search(groups->table, &lane,
						groups->only_locked ? HASH_FIND : HASH_ENTER, &found);
	if (!groups->only_locked && !found)
	{
		memset(group, 0, sizeof(ClaimGroup));
		group->lane = lane;
		group->key = MemoryContextStrdup(groups->context, name);
		group->allowance = INT_MAX;
		start_count(scan, group);
	}
	pfree(name);

	/* Without the lock its count would not hold. */
	if (groups->only_locked && group != NULL && is_bounded(groups, group) &&
		!group->is_locked)
		return NULL;
	return group;
}

/*
 * Begin to count what is under live claims.  What this transaction has popped
 * counts too, until it ends.
 */
static void
start_count(const ClaimScan *scan, ClaimGroup *group)
{
	group->live = is_bounded(scan->pass.groups, group) ?
		group_popped(scan->request.queue->id, group->lane) : 0;
}

/* The pass has met a message that is under a live claim, or may be. */
void
claim_scan_add_claimed(ClaimScan *scan, const ScanRow *row)
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
claim_scan_add_free(ClaimScan *scan, const ScanRow *row, bool locked)
{
	ClaimGroup *group = find_group(scan, row);
	bool		first_out;
	bool		was_delivered;

	if (group == NULL)
		return;
	first_out = is_first_out(scan->pass.groups, group);

	/* Claims in the queue that a dead letter came from do not count. */
	was_delivered = first_out && row->form.claim_count > 0 &&
		options_attempts(row->table, row->tuple) > 0;

	/*
	 * If the bound is 1, nothing of the group may overtake a message that was
	 * delivered and is delayed, nor a locked one, which is a candidate too.
	 */
	if (is_delayed(scan, row))
		group->is_blocked |= was_delivered;
	else if (first_out || !locked)
		add_candidate(scan, group, row, was_delivered, locked);
}

static bool
is_first_out(const ClaimGroups *groups, const ClaimGroup *group)
{
	return groups->bound == 1 && is_bounded(groups, group);
}

static bool
is_delayed(const ClaimScan *scan, const ScanRow *row)
{
	return segment_is_delayed(row->table->segment) &&
		message_due_at(row->table, row->tuple) > scan->pass.now;
}

/* Returns whether a comes before b in their group. */
static bool
comes_before(const Candidate *a, const Candidate *b)
{
	if (a->was_delivered != b->was_delivered)
		return a->was_delivered;
	return message_id_compare(a->message.form.id, b->message.form.id) < 0;
}

/* Returns how many free messages of a group may be needed. */
static int
most_candidates(const ClaimScan *scan, const ClaimGroup *group)
{
	if (scan->request.mode == CLAIM_SCAN_PROBE)
		return 1;

	/* One more than are wanted shows end_group() that something is left. */
	return is_bounded(scan->pass.groups, group) ?
		Min(scan->request.limit + 1, scan->pass.groups->bound) :
		scan->request.limit;
}

/*
 * Returns the place of a new candidate in the group's list, which keeps the
 * first ones, or NULL if it is not one of these.
 */
static Candidate *
make_room(ClaimScan *scan, ClaimGroup *group, const Candidate *new)
{
	int			i = group->n;

	while (i > 0 && comes_before(new, &group->candidates[i - 1]))
		i--;
	if (i == most_candidates(scan, group))
		return NULL;
	if (group->n == most_candidates(scan, group))
		heap_freetuple(group->candidates[--group->n].message.tuple);
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
	return &group->candidates[i];
}

static void
add_candidate(ClaimScan *scan, ClaimGroup *group, const ScanRow *row,
			  bool was_delivered, bool locked)
{
	MemoryContext old = MemoryContextSwitchTo(scan->pass.groups->candidates);
	Candidate	new = {{row->table, row->tuple, row->form, locked, 0, 0},
	was_delivered};
	Candidate  *candidate = make_room(scan, group, &new);

	if (candidate != NULL)
	{
		*candidate = new;
		candidate->message.tuple = heap_copytuple(row->tuple);
	}
	MemoryContextSwitchTo(old);
}

/* --- Turns --- */

static bool
is_bounded(const ClaimGroups *groups, const ClaimGroup *group)
{
	return groups->bound != INT_MAX && group->key[0] != '\0';
}

/* Returns whether the group has another message that may be handed out. */
static bool
has_turn(const ClaimGroups *groups, const ClaimGroup *group)
{
	if (group->next >= group->n)
		return false;
	return !is_bounded(groups, group) ||
		(!group->is_blocked && !group->candidates[group->next].message.locked &&
		 group->taken < group->allowance &&
		 group->live + group->taken < groups->bound);
}

static int
compare_lanes(const void *a, const void *b)
{
	uint64		x = (*(ClaimGroup *const *) a)->lane;
	uint64		y = (*(ClaimGroup *const *) b)->lane;

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
	uint64		last = group_last_turn(scan->request.queue->id);
	int			max = (int) hash_get_num_entries(groups->table);
	ClaimGroup **sorted = MemoryContextAlloc(groups->context, (max + 1) *
											 sizeof(ClaimGroup *));
	HASH_SEQ_STATUS status;
	ClaimGroup *group;
	int			n = 0;
	int			first = 0;

	hash_seq_init(&status, groups->table);
	while ((group = hash_seq_search(&status)) != NULL)
		if (has_turn(groups, group))
			sorted[n++] = group;
	qsort(sorted, n, sizeof(ClaimGroup *), compare_lanes);
	while (first < n && sorted[first]->lane <= last)
		first++;
	groups->n = n;
	groups->order = MemoryContextAlloc(groups->context, (n + 1) *
									   sizeof(ClaimGroup *));
	for (int i = 0; i < n; i++)
		groups->order[i] = sorted[(first + i) % n];
}

/*
 * A group is skipped, because another transaction has locked it.  That is
 * final if the next pass finds the same transaction there.
 */
static void
skip_locked(ClaimScan *scan, uint64 holder)
{
	scan->pass.met_locked = true;

	/* If it has ended meanwhile, the group may have something for us. */
	if (holder == 0)
		scan->pass.lost = true;
	else
		claim_scan_add_busy(scan, (int64) holder);
}

/* Returns whether the rate of the group allows another message now. */
static bool
has_allowance(ClaimScan *scan, ClaimGroup *group)
{
	TimestampTz next_at;

	if (scan->request.queue->group_rate <= 0)
		return true;
	group->allowance = group_rate_allowance(scan->request.queue, group->lane,
											&next_at);
	scan->pass.met_rate |= group->allowance == 0;
	return group->allowance > 0;
}

static void
unlock(const ClaimScan *scan, ClaimGroup *group)
{
	/* An older lock protects what this transaction has claimed before. */
	if (group->is_new_lock)
		group_unlock(scan->request.queue->id, group->lane);
	group->is_locked = false;
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
	int32		queue_id = scan->request.queue->id;
	int			nlocked = 0;
	int			nwanted = scan->request.limit;

	for (int i = 0; i < groups->n && nwanted > 0 && nlocked < LOCKS_MAX; i++)
	{
		ClaimGroup *group = groups->order[i];

		/* Messages without a key need no lock, but have their turn too. */
		if (is_bounded(groups, group))
		{
			group->is_locked = group_try_lock(queue_id, group->lane,
											  &group->is_new_lock);
			if (!group->is_locked)
			{
				skip_locked(scan, group_locked_by(queue_id, group->lane));
				continue;
			}
			if (!has_allowance(scan, group))
			{
				unlock(scan, group);
				continue;
			}
			nlocked++;
		}
		nwanted--;
	}
	return nlocked;
}

/* Forget what the first reading has found, but not the locks. */
static void
forget_candidates(const ClaimScan *scan)
{
	ClaimGroups *groups = scan->pass.groups;
	HASH_SEQ_STATUS status;
	ClaimGroup *group;

	hash_seq_init(&status, groups->table);
	while ((group = hash_seq_search(&status)) != NULL)
	{
		start_count(scan, group);
		group->is_blocked = false;
		group->n = group->size = 0;
	}
	MemoryContextReset(groups->candidates);
}

/*
 * Choose the next message of a group.  Returns false if it has none, or none
 * that fits into the claim.
 */
static bool
choose_next(ClaimScan *scan, ClaimGroup *group)
{
	ClaimGroups *groups = scan->pass.groups;

	while (has_turn(groups, group))
	{
		const ChosenMessage *message =
		&group->candidates[group->next].message;

		/* It is left to others, so end_group() has to find it. */
		scan->pass.claim_is_full = !claim_scan_fits(scan, &message->form);
		if (scan->pass.claim_is_full)
			return false;
		group->next++;
		if (claim_scan_choose(scan, message))
		{
			group->taken++;
			return true;
		}

		/* If the bound is 1, nothing of the group may overtake this one. */
		group->is_blocked |= groups->bound == 1;
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
			if (choose_next(scan, groups->order[i]))
			{
				last = groups->order[i];
				progress = true;
			}
	} while (progress && claim_scan_wants_more(scan));
	if (last != NULL)
		group_set_last_turn(scan->request.queue->id, last->lane);
}

/* Find the first group that has something for a claim. */
static void
probe_groups(ClaimScan *scan)
{
	ClaimGroups *groups = scan->pass.groups;

	for (int i = 0; i < groups->n && scan->result.nfree == 0; i++)
	{
		ClaimGroup *group = groups->order[i];
		uint64		holder = is_bounded(groups, group) ?
		group_locked_by(scan->request.queue->id, group->lane) : 0;

		if (holder != 0)
			skip_locked(scan, holder);
		else if (!is_bounded(groups, group) || has_allowance(scan, group))
			scan->result.nfree++;
	}
}
