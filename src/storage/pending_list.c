/*-------------------------------------------------------------------------
 *
 * pending_list.c
 *	  The records of pending changes.
 *
 * NOTES
 *	  A record holds a range of message numbers, and grows while changes follow
 *	  each other closely.  pending.c says what becomes of the records.
 *
 * src/storage/pending_list.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/memutils.h"

#include "map/lanes.h"
#include "storage/pending_internal.h"

#define RECORDS_MAX		100000
#define COARSE_MAX		1000	/* records of pushes, above these */
#define EXTEND_DEPTH	32		/* how many of the latest records may grow */
#define EXTEND_GAP		32		/* message numbers that may lie between a
								 * record and what it grows by */
#define FIRST_HEADS		16

/*
 * A hash table of the records, so that the changes to one queue are found in a
 * transaction that has changed many: the latest record for each hash of a
 * queue's id, or -1.  Allocated in TopTransactionContext.
 */
static int *heads = NULL;
static int	nheads = 0;			/* a power of two, at least pending_list.n */

/* pending_init() sets its callbacks. */
XactList	pending_list = {.record_size = sizeof(PendingChange)};

static bool extend_record(PendingChange *record, const PendingChange *new);
static int *head_of_queue(int32 queue_id);
static void link_record(int i);
static void link_all_records(void);
static void enlarge_heads(void);

/*
 * Let the record grow by a new one.  Returns false if they do not fit
 * together: one record is returned, dropped at a rollback, or scanned by a
 * claim of this transaction, as a whole.
 */
static bool
extend_record(PendingChange *record, const PendingChange *new)
{
	int64		gap = EXTEND_GAP;

	/*
	 * Numbers in between only cost a scan.  But those of a TARGET_ROOM are
	 * cut out of what was delivered of the lane (lanes_make_room), and then
	 * what is in between would not count toward the bound any more.
	 */
	if (new->target == TARGET_ROOM)
		gap = 1;
	if (record->queue_id != new->queue_id ||
		record->xact.nest_level != new->xact.nest_level ||
		record->target != new->target ||
		record->lane != new->lane ||
		record->kind != new->kind ||
		record->scanned || new->scanned ||
		record->range.priority != new->range.priority ||
		record->range.due != new->range.due ||
		record->extension != new->extension ||
		new->range.first > record->range.last + gap ||
		new->range.last < record->range.first - gap)
		return false;
	record->range.first = Min(record->range.first, new->range.first);
	record->range.last = Max(record->range.last, new->range.last);
	record->expires_at = Min(record->expires_at, new->expires_at);
	record->delayed_from = Min(record->delayed_from, new->delayed_from);
	return true;
}

/*
 * Add a record, or let one of the latest grow by it.  Returns false if there
 * is no room, because the memory of one transaction has to be bounded.
 */
bool
pending_list_add(const PendingChange *new)
{
	PendingChange coarse;
	PendingChange *added;

	/*
	 * A push to very many groups makes a record of each.  From here on we
	 * leave out the lanes, so that messages of different groups fit into one
	 * record.  Claims find them as what has no room in lanes, which only
	 * works for what is free at once.
	 */
	if (pending_list.n >= RECORDS_MAX && new->kind == PENDING_INSERT &&
		new->target == TARGET_MESSAGES && new->range.due == DT_NOBEGIN)
	{
		coarse = *new;
		coarse.lane = LANE_OF_OVERFLOW;
		new = &coarse;
	}
	for (int i = pending_list.n - 1;
		 i >= 0 && i >= pending_list.n - EXTEND_DEPTH; i--)
		if (extend_record(pending_list_at(i), new))
			return true;
	if (pending_list.n == RECORDS_MAX + COARSE_MAX ||
		(pending_list.n >= RECORDS_MAX && new->lane != LANE_OF_OVERFLOW))
		return false;
	if (pending_list.size == 0 || pending_list.n == nheads)
		enlarge_heads();
	added = xact_add(&pending_list);
	*added = *new;
	link_record(pending_list.n - 1);
	return true;
}

/* --- The hash table --- */

static int *
head_of_queue(int32 queue_id)
{
	return &heads[murmurhash32((uint32) queue_id) & (uint32) (nheads - 1)];
}

static void
link_record(int i)
{
	PendingChange *record = pending_list_at(i);
	int		   *head = head_of_queue(record->queue_id);

	record->previous = *head;
	*head = i;
}

/* Build the hash table anew: its size or the array of records has changed. */
static void
link_all_records(void)
{
	for (int i = 0; i < nheads; i++)
		heads[i] = -1;
	for (int i = 0; i < pending_list.n; i++)
		link_record(i);
}

static void
enlarge_heads(void)
{
	/* An earlier transaction has taken its hash table with it. */
	bool		is_first = pending_list.size == 0;
	int			n = is_first ? FIRST_HEADS : nheads * 2;

	heads = is_first ?
		MemoryContextAlloc(TopTransactionContext, n * sizeof(int)) :
		repalloc(heads, n * sizeof(int));
	nheads = n;
	link_all_records();
}

/*
 * Returns the latest record of a queue, or the next earlier one than "after";
 * NULL if there is none.
 */
PendingChange *
pending_list_next(int32 queue_id, const PendingChange *after)
{
	int			i;

	/* There is no hash table before the first record. */
	if (pending_list.n == 0)
		return NULL;
	i = after == NULL ? *head_of_queue(queue_id) : after->previous;
	while (i >= 0 && pending_list_at(i)->queue_id != queue_id)
		i = pending_list_at(i)->previous;
	return i < 0 ? NULL : pending_list_at(i);
}

/* Keep only the first n records, after records have moved. */
void
pending_list_truncate(int n)
{
	pending_list.n = n;
	link_all_records();
}
