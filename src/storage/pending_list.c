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
#include "util/hash.h"

#define UNITE_FROM		100000	/* records of a transaction; see NOTES */
#define RECORDS_MAX		400000
#define EXTEND_DEPTH	32		/* how many of the latest records of the same
								 * class may grow */
#define EXTEND_GAP		32		/* message numbers that may lie between a
								 * record and what it grows by */

/* The records of a queue */
typedef struct QueueRecords
{
	int32		queue_id;
	char		status;			/* for simplehash.h */
	PendingRecords of_class[PENDING_CLASSES];
} QueueRecords;

#define SH_PREFIX		queues
#define SH_ELEMENT_TYPE	QueueRecords
#define SH_KEY_TYPE		int32
#define SH_KEY			queue_id
#define SH_HASH_KEY(table, key)	murmurhash32((uint32) (key))
#define SH_EQUAL(table, a, b)	((a) == (b))
#define SH_SCOPE		static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* Each queue that has records; in TopTransactionContext */
static queues_hash * queues = NULL;

/* Records with the same key may be united. */
typedef struct RecordKey
{
	LaneId		lane;			/* of a push; else 0 */
	Oid			extension;
	int32		queue_id;
	int			nest_level;
	int			target;
	int			priority;
	int			is_free;		/* a commit makes the messages free at once */
	int			was_free;		/* a rollback does */
	int			is_new;			/* they were not there before */
} RecordKey;

/* A united record, while records are united */
typedef struct UnitedRecord
{
	RecordKey	key;
	int			record;
} UnitedRecord;

/* pending_init() sets its callbacks. */
XactList	pending_list = {.record_size = sizeof(PendingChange)};

/* When there are so many records, they are united. */
static int	unite_at;

static bool extend_record(PendingChange *record, const PendingChange *new);
static void grow_record(PendingChange *record, const PendingChange *new);
static void get_key(const PendingChange *record, RecordKey *key);
static void unite_record(PendingChange *into, const PendingChange *record);
static void unite_all_records(void);
static void make_records(int32 queue_id);
static PendingClass class_of_record(const PendingChange *record);
static PendingRecords *records_like(const PendingChange *record);

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
		!lane_equals(record->lane, new->lane) ||
		(record->due_before == DT_NOBEGIN) != (new->due_before == DT_NOBEGIN) ||
		(record->due_before == DT_NOEND) != (new->due_before == DT_NOEND) ||
		record->in_map || new->range.first <= record->scanned_to ||
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
	record->due_before = Min(record->due_before, new->due_before);
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
	int			i;

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

	/* An earlier transaction has taken its hash table with it. */
	if (pending_list.size == 0)
	{
		queues = queues_create(TopTransactionContext, 1, NULL);
		unite_at = UNITE_FROM;
	}
	make_records(new->queue_id);
	i = records_like(new)->latest;
	for (int depth = 0; depth < EXTEND_DEPTH && i >= 0; depth++)
	{
		if (extend_record(pending_list_at(i), new))
		{
			pending_list_unscanned(i);
			return true;
		}
		i = pending_list_at(i)->previous;
	}
	if (pending_list.n >= unite_at && unite_at <= RECORDS_MAX)
		unite_all_records();
	if (pending_list.n >= RECORDS_MAX)
		return false;
	*(PendingChange *) xact_add(&pending_list) = *new;
	pending_list_link(pending_list.n - 1);
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
	key->priority = record->range.priority;

	/*
	 * The worker does not sweep what is free at once.  So it would not notice
	 * when other messages in that range become free.
	 */
	key->is_free = record->range.due == DT_NOBEGIN;
	key->was_free = record->due_before == DT_NOBEGIN;
	key->is_new = record->due_before == DT_NOEND;

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
	if (!lane_equals(into->lane, record->lane) || into->target == TARGET_ROOM)
		into->lane = LANE_OF_OVERFLOW;
	into->in_map = into->in_map && record->in_map;
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
	HTAB	   *united = hash_create_blobs("united pending changes",
										   sizeof(RecordKey),
										   sizeof(UnitedRecord),
										   CurrentMemoryContext);
	int			before = pending_list.n;
	int			n = 0;

	for (int i = 0; i < before; i++)
	{
		PendingChange *record = pending_list_at(i);
		RecordKey	key;
		UnitedRecord *entry;
		bool		found;

		get_key(record, &key);
		entry = hash_search(united, &key, HASH_ENTER, &found);
		if (found)
			unite_record(pending_list_at(entry->record), record);
		else
		{
			entry->record = n;
			*pending_list_at(n++) = *record;
		}
	}
	hash_destroy(united);

	/*
	 * Own claims scan all once more: what they have scanned is not known of
	 * the united records.
	 */
	own_scans.n = 0;
	queues_reset(queues);
	pending_list.n = n;
	for (int i = 0; i < n; i++)
	{
		pending_list_at(i)->scanned_to = PG_INT64_MIN;
		make_records(pending_list_at(i)->queue_id);
		pending_list_link(i);
	}
	unite_at = Max(unite_at, 2 * n);
	ereport(DEBUG2,
			(errmsg_internal("the transaction has made %d records of changes to messages: they were united to %d",
							 before, n)));
}

/* --- The records of a queue --- */

/* Make the lists of a queue, if it has none. */
static void
make_records(int32 queue_id)
{
	bool		found;
	QueueRecords *entry = queues_insert(queues, queue_id, &found);

	for (int i = 0; i < PENDING_CLASSES && !found; i++)
	{
		entry->of_class[i].latest = -1;
		entry->of_class[i].unscanned = PG_INT32_MAX;
		entry->of_class[i].due = DT_NOEND;
	}
}

/* Returns the records of a queue; NULL if it has never had any. */
PendingRecords *
pending_list_find(int32 queue_id, PendingClass class)
{
	QueueRecords *entry;

	/* There is no hash table before the first record. */
	if (pending_list.size == 0)
		return NULL;
	entry = queues_lookup(queues, queue_id);
	return entry == NULL ? NULL : &entry->of_class[class];
}

/*
 * Returns the next queue after this one, in the order of ids, that has
 * records; PG_INT32_MAX if there is none.
 */
int32
pending_list_next_queue(int32 queue_id)
{
	int32		next = PG_INT32_MAX;
	queues_iterator iterator;
	QueueRecords *entry;

	if (pending_list.size == 0)
		return next;
	queues_start_iterate(queues, &iterator);
	while ((entry = queues_iterate(queues, &iterator)) != NULL)
		if (entry->queue_id > queue_id)
			next = Min(next, entry->queue_id);
	return next;
}

static PendingClass
class_of_record(const PendingChange *record)
{
	if (record->target == TARGET_ROOM || record->target == TARGET_TURN)
		return PENDING_ROOM;
	if (record->in_map || record->target >= TARGET_QUEUE ||
		record->range.due == DT_NOEND)
		return PENDING_OTHER;
	if (record->target == TARGET_DELAYED)
		return PENDING_DELAYED;
	return record->range.due == DT_NOBEGIN ? PENDING_FREE : PENDING_LATER;
}

/* Returns the records among which this one belongs. */
static PendingRecords *
records_like(const PendingChange *record)
{
	QueueRecords *entry = queues_lookup(queues, record->queue_id);

	Assert(entry != NULL);
	return &entry->of_class[class_of_record(record)];
}

/* Own claims have to scan something of the record. */
void
pending_list_unscanned(int i)
{
	const PendingChange *record = pending_list_at(i);
	PendingRecords *records = records_like(record);

	records->unscanned = Min(records->unscanned, i);
	records->due = Min(records->due, record->range.due);
}

/* Add the record to those of its class, as the latest one. */
void
pending_list_link(int i)
{
	PendingChange *record = pending_list_at(i);
	PendingRecords *records = records_like(record);

	Assert(records->latest < i);
	record->previous = records->latest;
	records->latest = i;
	pending_list_unscanned(i);
}

/* Remove all records from "first" on from those of their classes. */
void
pending_list_unlink(int first)
{
	for (int i = pending_list.n - 1; i >= first; i--)
	{
		PendingRecords *records = records_like(pending_list_at(i));

		Assert(records->latest == i);
		records->latest = pending_list_at(i)->previous;
	}
}
