/*-------------------------------------------------------------------------
 *
 * pending_own.c
 *	  What the open transaction may claim of its own changes.
 *
 * NOTES
 *	  The availability map learns of a change when the transaction ends
 *	  (pending.c).  Until then claims of the transaction itself find what it
 *	  has made free by the records of pending changes.
 *
 *	  1.  Each record says up to which number such claims have scanned it.  A
 *	  claim scans all that is left, together with ranges of the map; what it
 *	  has not come to is left to the next claim (pending_rescan_own).  So a
 *	  message is scanned once, however many messages the transaction pushes
 *	  and claims.
 *
 *	  2.  A message that a claim has scanned may be free later for a reason
 *	  that has a record of its own: it was claimed, and the record says when
 *	  the claim ends; or it was released.
 *
 *	  3.  own_scans has what each claim has scanned.  If the claim is rolled
 *	  back to a savepoint, that is undone, since the messages are free again
 *	  and the map does not have them.
 *
 *	  4.  Records are in lists by queue and class (pending_list.c), and each
 *	  list says before which record, and before which time, there is nothing
 *	  to scan.  So a claim does not read the records of all earlier ones.
 *
 * src/storage/pending_own.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/message_id.h"
#include "map/availability_groups.h"
#include "map/lanes.h"
#include "storage/pending_internal.h"
#include "storage/pending_own.h"

#define LIST_SIZE		16		/* of a new list of ranges */

/* A claim has scanned a record, which was scanned up to a number before */
typedef struct OwnScan
{
	XactRecord	xact;
	int			record;
	int64		scanned_to;
} OwnScan;

static void undo_own_scans(int first);

XactList	own_scans = {
	.record_size = sizeof(OwnScan),
	.roll_back = undo_own_scans
};

static MessageRange *new_own_range(OwnRanges *own);
static void add_own_range(OwnRanges *own, int i);
static void take_own_of(int32 queue_id, PendingClass class, TimestampTz now,
						OwnRanges *own);

/*
 * Set *queue_id to the next queue after it, in the order of ids, in which
 * this transaction has changed anything.  Returns false if there is none.
 */
bool
pending_next_queue(int32 *queue_id)
{
	*queue_id = pending_list_next_queue(*queue_id);
	return *queue_id != PG_INT32_MAX;
}

/* --- Scanning --- */

/* Returns the next item of the list, enlarged if there is no room. */
static MessageRange *
new_own_range(OwnRanges *own)
{
	if (own->n == own->size)
	{
		own->size = own->size == 0 ? LIST_SIZE : own->size * 2;
		own->items = own->items == NULL ?
			palloc(own->size * sizeof(MessageRange)) :
			repalloc_huge(own->items, own->size * sizeof(MessageRange));
	}
	return &own->items[own->n++];
}

/* Add what is left to scan of a record to the ranges. */
static void
add_own_range(OwnRanges *own, int i)
{
	PendingChange *record = pending_list_at(i);
	OwnScan    *scan = xact_add(&own_scans);
	MessageRange *range = new_own_range(own);

	*range = record->range;
	range->first = Max(range->first, record->scanned_to + 1);
	scan->record = i;
	scan->scanned_to = record->scanned_to;
	record->scanned_to = range->last;
}

/* Take what claims have to scan of this class. */
static void
take_own_of(int32 queue_id, PendingClass class, TimestampTz now,
			OwnRanges *own)
{
	PendingRecords *records = pending_list_find(queue_id, class);
	int			unscanned = PG_INT32_MAX;
	TimestampTz due = DT_NOEND;

	if (records == NULL || records->due > now)
		return;
	for (int i = records->latest; i >= records->unscanned;
		 i = pending_list_at(i)->previous)
	{
		const PendingChange *record = pending_list_at(i);

		if (!pending_is_unscanned(record))
			continue;
		if (record->range.due <= now)
			add_own_range(own, i);
		else
		{
			unscanned = i;
			due = Min(due, record->range.due);
		}
	}
	records->unscanned = unscanned;
	records->due = due;
}

/*
 * Get the ranges of messages that this transaction has made free itself, and
 * that none of its claims has scanned since.  Each is returned once, since the
 * caller is about to scan it.  Returns a number for pending_rescan_own().
 */
int
pending_take_own(int32 queue_id, TimestampTz now, OwnRanges *own)
{
	int			scans = own_scans.n;

	take_own_of(queue_id, PENDING_FREE, now, own);
	take_own_of(queue_id, PENDING_LATER, now, own);
	return scans;
}

/*
 * The claim has scanned the ranges that it has taken since only up to this
 * message (0: nothing of them), in the order of claims: they are left to the
 * next claim from there on.
 */
void
pending_rescan_own(int scans, int64 scanned_to)
{
	int			n = own_scans.n;

	/* If the records were united since, all of them are scanned once more. */
	own_scans.n = Min(scans, n);
	for (int i = scans; i < n; i++)
	{
		OwnScan    *scan = xact_record(&own_scans, i);
		PendingChange *record = pending_list_at(scan->record);
		int			priority = message_id_priority(scanned_to);
		int64		last = scan->scanned_to;

		if (scanned_to != 0 && record->range.priority > priority)
			last = record->scanned_to;
		else if (scanned_to != 0 && record->range.priority == priority)
			last = Max(last, Min(message_id_number(scanned_to),
								 record->scanned_to));
		record->scanned_to = last;
		if (pending_is_unscanned(record))
			pending_list_unscanned(scan->record);
		if (last > scan->scanned_to)
			*(OwnScan *) xact_record(&own_scans, own_scans.n++) = *scan;
	}
}

/*
 * Callback after the rollback of a subtransaction, whose scans are those from
 * "first" on.  It may have claimed messages that its parents have made free.
 * These are free again, and only our own claims can find them.
 */
static void
undo_own_scans(int first)
{
	while (own_scans.n > first)
	{
		const OwnScan *scan = xact_record(&own_scans, --own_scans.n);

		pending_list_at(scan->record)->scanned_to = scan->scanned_to;
		pending_list_unscanned(scan->record);
	}
}

/* --- Asking --- */

/*
 * Give a turn to the groups in which this transaction has made room, because
 * other sessions may have found them full, but its own claims will not.
 */
void
pending_give_turns(int32 queue_id)
{
	const PendingRecords *records = pending_list_find(queue_id, PENDING_ROOM);

	if (records == NULL)
		return;
	for (int i = records->latest; i >= 0; i = pending_list_at(i)->previous)
		availability_give_turn(queue_id, pending_list_at(i)->lane);
}

/*
 * Add the ranges of the messages of a lane that this transaction may have
 * locked, changed or deleted.  The records of delayed messages do not have
 * the lane, and those of messages of several lanes have been united, so these
 * ranges may hold messages of other lanes.
 */
void
pending_add_of_lane(int32 queue_id, LaneId lane, OwnRanges *own)
{
	for (int class = 0; class < PENDING_CLASSES; class++)
	{
		const PendingRecords *records = pending_list_find(queue_id, class);
		int			i = records == NULL ? -1 : records->latest;

		for (; i >= 0; i = pending_list_at(i)->previous)
		{
			const PendingChange *record = pending_list_at(i);

			/* What it has pushed was not delivered. */
			if (pending_is_push(record))
				continue;
			if (record->target == TARGET_DELAYED ||
				(record->target == TARGET_MESSAGES &&
				 (lane_equals(record->lane, lane) ||
				  lane_equals(record->lane, LANE_OF_OVERFLOW))))
				*new_own_range(own) = record->range;
		}
	}
}
