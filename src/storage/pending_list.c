/*-------------------------------------------------------------------------
 *
 * pending_list.c
 *	  The records of pending changes.
 *
 * NOTES
 *	  A record holds a range of message numbers, and grows while changes follow
 *	  each other closely.  pending.c says what becomes of the records.
 *
 *	  When a transaction has UNITE_FROM records, those of one queue are united
 *	  (unite_all_records).  A united record covers all that its parts do, and
 *	  more: numbers in between, the first of the times at which the parts are
 *	  free, and no certain lane.  So claims scan more than they need, but
 *	  nothing is left out.  What must not be lost by this is in the key of a
 *	  record (RecordKey): for each queue and level of subtransactions, there
 *	  are few keys.  If there are still more than half as many records, the
 *	  next time they are united is when there are twice as many.  So the memory
 *	  grows with the number of queues, up to RECORDS_MAX records; changes above
 *	  that are not recorded.
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

#define UNITE_FROM		100000	/* records of a transaction; see NOTES */
#define RECORDS_MAX		400000
#define EXTEND_DEPTH	32		/* how many of the latest records with the
								 * same hash may grow */
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

/* Records with the same key may be united. */
typedef struct RecordKey
{
	uint64		lane;			/* of a push; else 0 */
	Oid			extension;
	int32		queue_id;
	int			nest_level;
	int			target;
	int			kind;
	int			priority;
	int			is_free;		/* a commit makes the messages free at once */
} RecordKey;

/* pending_init() sets its callbacks. */
XactList	pending_list = {.record_size = sizeof(PendingChange)};

/* When there are so many records, they are united. */
static int	unite_at;

static bool extend_record(PendingChange *record, const PendingChange *new);
static void grow_record(PendingChange *record, const PendingChange *new);
static void get_key(const PendingChange *record, RecordKey *key);
static void unite_record(PendingChange *into, const PendingChange *record);
static void unite_all_records(void);
static int *head_of_hash(uint32 hash);
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
	grow_record(record, new);
	return true;
}

static void
grow_record(PendingChange *record, const PendingChange *new)
{
	record->range.first = Min(record->range.first, new->range.first);
	record->range.last = Max(record->range.last, new->range.last);
	record->expires_at = Min(record->expires_at, new->expires_at);
	record->delayed_from = Min(record->delayed_from, new->delayed_from);
}

/*
 * Add a record, or let one of the latest of its queue grow by it.  Returns
 * false if there is no room, because the memory of one transaction has to be
 * bounded.
 */
bool
pending_list_add(const PendingChange *new)
{
	PendingChange coarse;
	PendingChange *record;
	int			latest = -1;

	/*
	 * A push to very many groups makes a record of each.  From here on we
	 * leave out the lanes, so that messages of different groups fit into one
	 * record.  Claims find them as what has no room in lanes, which only
	 * works for what is free at once.
	 */
	if (pending_list.n >= UNITE_FROM && pending_is_push(new))
	{
		coarse = *new;
		coarse.lane = LANE_OF_OVERFLOW;
		new = &coarse;
	}
	if (pending_list.n > 0)
		latest = *head_of_queue(new->queue_id);
	for (int i = 0; i < EXTEND_DEPTH && latest >= 0; i++)
	{
		if (extend_record(pending_list_at(latest), new))
			return true;
		latest = pending_list_at(latest)->previous;
	}
	if (pending_list.size == 0)
		unite_at = UNITE_FROM;
	if (pending_list.n >= unite_at && unite_at <= RECORDS_MAX)
		unite_all_records();
	if (pending_list.n >= RECORDS_MAX)
		return false;
	if (pending_list.size == 0 || pending_list.n == nheads)
		enlarge_heads();
	record = xact_add(&pending_list);
	*record = *new;
	link_record(pending_list.n - 1);
	return true;
}

/* --- Uniting records --- */

static void
get_key(const PendingChange *record, RecordKey *key)
{
	memset(key, 0, sizeof(RecordKey));
	key->extension = record->extension;
	key->queue_id = record->queue_id;

	/* The rollback of a subtransaction returns its own records only. */
	key->nest_level = record->xact.nest_level;
	key->target = record->target;
	key->kind = record->kind;
	key->priority = record->range.priority;

	/*
	 * The worker does not sweep what is free at once.  So it would not notice
	 * when other messages in that range become free.
	 */
	key->is_free = record->range.due == DT_NOBEGIN;

	/* What was pushed goes to its lane, and not to the overflow, if it can. */
	if (pending_is_push(record))
		key->lane = record->lane;
}

/* Unite two records that have the same key. */
static void
unite_record(PendingChange *into, const PendingChange *record)
{
	/*
	 * Numbers between those of a TARGET_ROOM are not finished, so it does not
	 * say any more which ones are: as if it were of several lanes.
	 */
	if (into->lane != record->lane || into->target == TARGET_ROOM)
		into->lane = LANE_OF_OVERFLOW;
	into->scanned = into->scanned && record->scanned;
	into->range.due = Min(into->range.due, record->range.due);
	grow_record(into, record);
}

/*
 * Unite all records that have the same key.  The first of them stays where it
 * is, so that the levels still do not decrease along the list.
 */
static void
unite_all_records(void)
{
	int			before = pending_list.n;
	int			n = 0;

	/* The hash table is that of keys meanwhile. */
	for (int i = 0; i < nheads; i++)
		heads[i] = -1;
	for (int i = 0; i < before; i++)
	{
		PendingChange *record = pending_list_at(i);
		RecordKey	key;
		RecordKey	other;
		int		   *head;
		int			j;

		get_key(record, &key);
		head = head_of_hash(hash_bytes((const unsigned char *) &key,
									   sizeof(RecordKey)));
		for (j = *head; j >= 0; j = pending_list_at(j)->previous)
		{
			get_key(pending_list_at(j), &other);
			if (memcmp(&key, &other, sizeof(RecordKey)) == 0)
				break;
		}
		if (j >= 0)
			unite_record(pending_list_at(j), record);
		else
		{
			record->previous = *head;
			*head = n;
			*pending_list_at(n++) = *record;
		}
	}
	pending_list_truncate(n);
	unite_at = Max(unite_at, 2 * n);
	ereport(DEBUG2,
			(errmsg_internal("the transaction has made %d records of changes to messages: they were united to %d",
							 before, n)));
}

/* --- The hash table --- */

static int *
head_of_hash(uint32 hash)
{
	return &heads[hash & (uint32) (nheads - 1)];
}

static int *
head_of_queue(int32 queue_id)
{
	return head_of_hash(murmurhash32((uint32) queue_id));
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
