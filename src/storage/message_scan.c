/*-------------------------------------------------------------------------
 *
 * message_scan.c
 *	  Runs of a queue's messages in order, and one message by its id.
 *
 * NOTES
 *	  A queue's messages lie in several segments, and among the delayed ones.
 *	  A scan merges as many parts as its caller adds, each an index scan that
 *	  is in order by itself, and hands out one row at a time.  There are few
 *	  parts with a row in hand, so the smallest is found by looking at all.
 *
 *	  All parts read with one snapshot, the active one, which the caller has
 *	  pushed: a message that another transaction moves from one table to
 *	  another is seen exactly once.
 *
 *	  The caller may lock, update and delete the row that it stands on.
 *
 * src/storage/message_scan.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/twophase.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "catalog/message_id.h"
#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "shmem/availability.h"
#include "shmem/message_ranges.h"
#include "storage/claim_id.h"
#include "storage/message.h"
#include "storage/message_scan.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/compat.h"
#include "util/limits.h"

/* A delayed message that is due; these are sorted before they are merged. */
typedef struct DueRow
{
	int16		priority;
	int64		id;
	TimestampTz due_at;			/* DT_NOEND: the caller took it */
	ItemPointerData tid;
} DueRow;

typedef struct ScanPart
{
	MessageTable *table;
	TupleTableSlot *slot;
	bool		in_range;		/* of the range that was added last */
	MessageRanges *pending;		/* where to note insertions under way */
	bool		has_row;		/* slot holds the next row of this part */
	IndexScanDesc scan;			/* or NULL: then the rows are these */
	DueRow	   *due;
	int			ndue;
	int			due_size;
	int			next_due;
	TimestampTz unread_from;	/* those that were not read are due from then
								 * on */
} ScanPart;

struct MessageScan
{
	int32		queue_id;
	bool		by_priority;	/* order: priority down, id; else id alone */
	LOCKMODE	lockmode;
	MessageTable *tables[QUEUE_RELATIONS];	/* those in use */
	int			nparts;
	int			maxparts;
	ScanPart  **parts;
	ScanPart   *current;		/* whose row the caller has */
	bool		no_wait;		/* for locks on tables */
	int			blocked_by;		/* the segment that could not be locked then;
								 * -1: none */
	bool		everywhere;		/* look in segments that should hold none */
	bool		adding_range;	/* parts that are added now are of it */
	MessageRanges *pending;		/* and note insertions there */
};

static MessageTable *get_table(MessageScan *scan, int segment);
static ScanPart *add_part(MessageScan *scan, MessageTable *table);
static void add_delayed(MessageScan *scan, int64 low);
static void end_part(ScanPart *part);
static bool is_gone(ScanPart *part);
static bool fetch_version(ScanPart *part, Snapshot snapshot);
static int64 entry_id(ScanPart *part);
static void advance(MessageScan *scan, ScanPart *part);
static void leave_row(MessageScan *scan);
static bool is_before(const MessageScan *scan, ScanPart *a, ScanPart *b);
static int	compare_due(const void *a, const void *b);
static bool read_due(ScanPart *part, int32 queue_id, int priority,
					 TimestampTz from, TimestampTz due, int max,
					 TimestampTz *next);
static void attributes_pending(ScanPart *part);
static bool starts_again(MessageScan *scan);

/* Begin a scan without parts. */
MessageScan *
message_scan_begin(int32 queue_id, LOCKMODE lockmode)
{
	MessageScan *scan = palloc0(sizeof(MessageScan));

	scan->queue_id = queue_id;
	scan->by_priority = true;
	scan->lockmode = lockmode;
	scan->blocked_by = -1;
	scan->maxparts = QUEUE_RELATIONS;
	scan->parts = palloc(scan->maxparts * sizeof(ScanPart *));
	return scan;
}

/*
 * The table of a segment, opened.  NULL: that would take waiting for a lock,
 * and the scan must not.
 */
static MessageTable *
get_table(MessageScan *scan, int segment)
{
	MessageTable *table = scan->tables[segment];

	if (table != NULL)
		return table;
	table = palloc(sizeof(MessageTable));
	if (!scan->no_wait)
		message_table_open(table, segment, scan->lockmode);
	else if (!message_table_try_open(table, segment, scan->lockmode))
	{
		scan->blocked_by = segment;
		pfree(table);
		return NULL;
	}
	scan->tables[segment] = table;
	return table;
}

static ScanPart *
add_part(MessageScan *scan, MessageTable *table)
{
	ScanPart   *part = palloc0(sizeof(ScanPart));

	if (scan->nparts == scan->maxparts)
	{
		scan->maxparts *= 2;
		scan->parts = repalloc(scan->parts,
							   scan->maxparts * sizeof(ScanPart *));
	}
	part->table = table;
	part->in_range = scan->adding_range;
	part->pending = scan->pending;
	part->slot = message_slot(part->table);
	scan->parts[scan->nparts++] = part;
	return part;
}

/*
 * The scan's caller must not wait: where a table that has to be looked at
 * cannot be locked at once, nothing more is added.  To be said before there
 * are parts.
 */
void
message_scan_no_wait(MessageScan *scan)
{
	scan->no_wait = true;
}

/* Could a table not be locked? */
bool
message_scan_is_blocked(const MessageScan *scan)
{
	return scan->blocked_by >= 0;
}

/* The same, where the caller cannot go on: an error. */
void
message_scan_lock_error(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("a table of messages is locked")));
}

/*
 * Wait for that lock, with nothing reserved; the table stays open.  All parts
 * of the scan end.
 */
void
message_scan_wait_for_lock(MessageScan *scan)
{
	message_scan_end_parts(scan);
	scan->no_wait = false;
	(void) get_table(scan, scan->blocked_by);
	scan->no_wait = true;
	scan->blocked_by = -1;
}

/* End all parts.  Rows and tables that the caller has stay. */
void
message_scan_end_parts(MessageScan *scan)
{
	for (int i = 0; i < scan->nparts; i++)
		end_part(scan->parts[i]);
	scan->nparts = 0;
	scan->current = NULL;
}

/*
 * Add the messages in all segments with priorities and ids in these bounds.
 * Bounds of ids are only of use for a single priority.
 */
void
message_scan_add_ids(MessageScan *scan, int low_priority, int high_priority,
				  int64 low, int64 high)
{
	ScanKeyData keys[5];
	int			nkeys = 0;

	ScanKeyInit(&keys[nkeys++], 1, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(scan->queue_id));
	if (low_priority == high_priority)
		ScanKeyInit(&keys[nkeys++], 2, BTEqualStrategyNumber, F_INT2EQ,
					Int16GetDatum(low_priority));
	else
	{
		if (low_priority > 0)
			ScanKeyInit(&keys[nkeys++], 2, BTGreaterEqualStrategyNumber,
						F_INT2GE, Int16GetDatum(low_priority));
		if (high_priority < QUEUE_PRIORITIES - 1)
			ScanKeyInit(&keys[nkeys++], 2, BTLessEqualStrategyNumber,
						F_INT2LE, Int16GetDatum(high_priority));
	}
	if (low > PG_INT64_MIN)
		ScanKeyInit(&keys[nkeys++], 3, BTGreaterEqualStrategyNumber,
					F_INT8GE, Int64GetDatum(low));
	if (high < PG_INT64_MAX)
		ScanKeyInit(&keys[nkeys++], 3, BTLessEqualStrategyNumber, F_INT8LE,
					Int64GetDatum(high));

	for (int i = 0; i < QUEUE_SEGMENTS; i++)
	{
		MessageTable *table;
		ScanPart   *part;

		if (scan->everywhere ? !segment_in_use(i) :
			!segment_may_hold(i, message_id_number(low), message_id_number(high)))
			continue;
		table = get_table(scan, i);
		if (table == NULL)
			return;
		part = add_part(scan, table);
		part->scan = compat_index_beginscan(part->table->heap,
											part->table->index,
											GetActiveSnapshot(), nkeys);
		part->scan->xs_want_itup = part->pending != NULL;
		index_rescan(part->scan, keys, nkeys, NULL, 0);
		advance(scan, part);
	}
}

/*
 * Look in all segments, not only in those that hold messages by what the
 * sessions tell each other.  To be said before there are parts.
 */
void
message_scan_everywhere(MessageScan *scan)
{
	scan->everywhere = true;
}

/* Add the messages with these numbers of one priority. */
void
message_scan_add_numbers(MessageScan *scan, int priority, int64 first, int64 last)
{
	message_scan_add_ids(scan, priority, priority, message_id_make(first, 0, 0),
					  message_id_make(last + 1, 0, 0) - 1);
}

/*
 * Add the messages in a range of numbers; an insertion there that is under
 * way is noted in pending, unless that is NULL.
 */
void
message_scan_add_range(MessageScan *scan, const MessageRange *range,
			   MessageRanges *pending)
{
	scan->adding_range = true;
	scan->pending = pending;
	message_scan_add_numbers(scan, range->priority, range->first, range->last);
	scan->adding_range = false;
	scan->pending = NULL;
}

/* Step off the current row. */
static void
leave_row(MessageScan *scan)
{
	if (scan->current != NULL)
		advance(scan, scan->current);
	scan->current = NULL;
}

/* Has the range another row? */
bool
message_scan_range_has_rows(MessageScan *scan)
{
	leave_row(scan);
	for (int i = 0; i < scan->nparts; i++)
		if (scan->parts[i]->in_range && scan->parts[i]->has_row)
			return true;
	return false;
}

/* Has the scan? */
bool
message_scan_has_rows(MessageScan *scan)
{
	leave_row(scan);
	for (int i = 0; i < scan->nparts; i++)
		if (scan->parts[i]->has_row)
			return true;
	return false;
}

/* End the range.  Rows and tables of it that the caller has stay. */
void
message_scan_end_range(MessageScan *scan)
{
	int			kept = 0;

	for (int i = 0; i < scan->nparts; i++)
	{
		if (scan->parts[i]->in_range)
		{
			if (scan->current == scan->parts[i])
				scan->current = NULL;
			end_part(scan->parts[i]);
		}
		else
			scan->parts[kept++] = scan->parts[i];
	}
	scan->nparts = kept;
}

/* Add the delayed messages with ids from low on; for scans in order of id. */
static void
add_delayed(MessageScan *scan, int64 low)
{
	ScanKeyData keys[2];

	Assert(!scan->by_priority && !scan->no_wait);
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(scan->queue_id));
	ScanKeyInit(&keys[1], 2, BTGreaterEqualStrategyNumber, F_INT8GE,
				Int64GetDatum(low));
	for (int i = QUEUE_DELAYED; i < QUEUE_RELATIONS; i++)
	{
		ScanPart   *part;

		if (!segment_in_use(i))
			continue;
		part = add_part(scan, get_table(scan, i));
		part->scan = compat_index_beginscan(part->table->heap,
											part->table->index,
											GetActiveSnapshot(), 2);
		index_rescan(part->scan, keys, 2, NULL, 0);
		advance(scan, part);
	}
}

static int
compare_due(const void *a, const void *b)
{
	const DueRow *x = a;
	const DueRow *y = b;

	if (x->priority != y->priority)
		return x->priority > y->priority ? -1 : 1;
	return x->id < y->id ? -1 : (x->id > y->id);
}

/*
 * Read the due messages of one priority; false: there are more than max.
 * *next is lowered to when the next one is due.
 */
static bool
read_due(ScanPart *part, int32 queue_id, int priority, TimestampTz from,
		 TimestampTz due, int max, TimestampTz *next)
{
	ScanKeyData keys[3];
	IndexScanDesc scan;
	bool		all = true;

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT2EQ,
				Int16GetDatum(priority));
	ScanKeyInit(&keys[2], 3, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(from));
	scan = compat_index_beginscan(part->table->heap, part->table->due_index,
								  GetActiveSnapshot(), 3);
	index_rescan(scan, keys, 3, NULL, 0);
	part->scan = scan;			/* for is_gone */
	while (index_getnext_tid(scan, ForwardScanDirection) != NULL)
	{
		HeapTuple	tuple;
		MessageForm *form;
		bool		isnull;
		TimestampTz due_at;
		DueRow	   *row;

		if (!index_fetch_heap(scan, part->slot))
		{
			/* Nobody will tell when a prepared transaction ends. */
			if (max_prepared_xacts > 0 && !is_gone(part))
			{
				*next = Min(*next, availability_recheck_at(due));
				part->unread_from = from;
			}
			continue;
		}
		tuple = row_tuple(part->slot);
		form = MESSAGE_FORM(tuple);
		due_at = DatumGetTimestampTz(heap_getattr(tuple, Anum_delayed_due_at,
												  RelationGetDescr(part->table->heap),
												  &isnull));
		if (due_at > due)
		{
			*next = Min(*next, due_at);
			part->unread_from = Min(part->unread_from, due_at);
			break;
		}
		if (part->ndue >= max)
		{
			/* Of lower priorities nothing was read. */
			part->unread_from = Min(part->unread_from,
									priority > 0 ? from : due_at);
			all = false;
			break;
		}
		if (part->ndue == part->due_size)
		{
			part->due_size *= 2;
			part->due = repalloc(part->due, part->due_size * sizeof(DueRow));
		}
		row = &part->due[part->ndue++];
		row->priority = form->priority;
		row->id = form->id;
		row->due_at = due_at;
		row->tid = part->slot->tts_tid;
	}
	part->scan = NULL;
	index_endscan(scan);
	return all;
}

/*
 * Add the delayed messages whose time has come, highest priority first; of
 * more than max in a segment, those that are due longest.  Index entries of an
 * earlier time than "from" are not looked at.  Returns their number; *more:
 * there are others; *next: when the next one will be due (DT_NOEND: none).
 */
int
message_scan_add_due(MessageScan *scan, TimestampTz from, TimestampTz due, int max,
			 bool *more, TimestampTz *next)
{
	int			n = 0;

	Assert(scan->by_priority);
	*more = false;
	*next = DT_NOEND;
	for (int i = QUEUE_DELAYED; i < QUEUE_RELATIONS; i++)
	{
		MessageTable *table;
		ScanPart   *part;
		bool		all = true;

		if (scan->everywhere ? !segment_in_use(i) :
			!segment_may_hold(i, 0, PG_INT64_MAX))
			continue;
		table = get_table(scan, i);
		if (table == NULL)
			return n;
		part = add_part(scan, table);
		part->unread_from = DT_NOEND;
		part->due_size = 64;
		part->due = palloc(part->due_size * sizeof(DueRow));
		for (int priority = QUEUE_PRIORITIES - 1; priority >= 0 && all;
			 priority--)
			all = read_due(part, scan->queue_id, priority, from, due, max,
						   next);
		qsort(part->due, part->ndue, sizeof(DueRow), compare_due);
		advance(scan, part);
		n += part->ndue;
		*more |= !all;
	}
	return n;
}

/* The caller takes the row that the scan stands on, if it is a delayed one. */
void
message_scan_take_due(MessageScan *scan)
{
	ScanPart   *part = scan->current;

	if (part->scan == NULL)
		part->due[part->next_due - 1].due_at = DT_NOEND;
}

/* What is left of the delayed messages was delayed until then, or longer. */
TimestampTz
message_scan_due_left(MessageScan *scan)
{
	TimestampTz from = DT_NOEND;

	for (int i = 0; i < scan->nparts; i++)
	{
		const ScanPart *part = scan->parts[i];

		if (part->scan != NULL)
			continue;
		from = Min(from, part->unread_from);
		for (int j = 0; j < part->ndue; j++)
			from = Min(from, part->due[j].due_at);
	}
	return from;
}

/*
 * The index entry that the scan stands on has no row that its snapshot, the
 * latest, sees.  Is the message gone for good: was it deleted by a committed
 * transaction, or inserted by an aborted one?  If not, part->slot gets a
 * version of it.
 */
static bool
is_gone(ScanPart *part)
{
	Snapshot	snapshot = part->scan->xs_snapshot;

	if (part->scan->kill_prior_tuple)
		return true;			/* whoever looks */

	/* Was its insertion under way?  Then there is a first version. */
	if (fetch_version(part, SnapshotAny))
	{
		HeapTupleHeader header = row_tuple(part->slot)->t_data;
		TransactionId xmin = HeapTupleHeaderGetXmin(header);

		if (!HeapTupleHeaderXminFrozen(header) &&
			!HeapTupleHeaderXminInvalid(header) &&
			(TransactionIdIsCurrentTransactionId(xmin) ||
			 XidInMVCCSnapshot(xmin, snapshot)))
			return false;
	}

	/* What we have deleted ourselves comes back if we roll back. */
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
	{
		SnapshotData before = *snapshot;

		before.curcid = FirstCommandId;
		return !fetch_version(part, &before);
	}
	return true;
}

/*
 * Fill the part's slot with the version of the entry's message that another
 * snapshot sees; its page is at hand.
 */
static bool
fetch_version(ScanPart *part, Snapshot snapshot)
{
	ItemPointerData tid = part->scan->xs_heaptid;
	bool		call_again = false;

	return table_index_fetch_tuple(part->scan->xs_heapfetch, &tid, snapshot,
								   part->slot, &call_again, NULL);
}

/* The id in the index entry that the scan of a segment stands on. */
static int64
entry_id(ScanPart *part)
{
	bool		isnull;

	return DatumGetInt64(index_getattr(part->scan->xs_itup, 3,
									   part->scan->xs_itupdesc, &isnull));
}

/* The message of the entry that the scan stands on is being inserted. */
static void
attributes_pending(ScanPart *part)
{
	int64		id = entry_id(part);
	TimestampTz now = GetCurrentTimestamp();
	MessageRange range;

	range.first = range.last = message_id_number(id);
	range.priority = (int16) message_id_priority(id);
	range.due = availability_recheck_at(now);
	range.scanned_at = now;
	range.uncertain = true;
	range.swept = 0;
	message_ranges_add(part->pending, &range, now);
}

/*
 * Fill the part's slot with its next row, if there is one.  This is
 * index_getnext_slot, but with an eye on why an entry has no visible row.
 */
static void
advance(MessageScan *scan, ScanPart *part)
{
	if (part->scan != NULL)
	{
		part->has_row = false;
		while (!part->has_row &&
			   index_getnext_tid(part->scan, ForwardScanDirection) != NULL)
		{
			part->has_row = index_fetch_heap(part->scan, part->slot);
			if (part->pending != NULL && !part->has_row && !is_gone(part))
				attributes_pending(part);
		}
	}
	else
	{
		part->has_row = false;
		while (!part->has_row && part->next_due < part->ndue)
			part->has_row =
				table_tuple_fetch_row_version(part->table->heap,
											  &part->due[part->next_due++].tid,
											  GetActiveSnapshot(),
											  part->slot);
	}
}

static bool
is_before(const MessageScan *scan, ScanPart *a, ScanPart *b)
{
	MessageForm *x = MESSAGE_FORM(row_tuple(a->slot));
	MessageForm *y = MESSAGE_FORM(row_tuple(b->slot));

	if (scan->by_priority && x->priority != y->priority)
		return x->priority > y->priority;
	return x->id < y->id;
}

/*
 * Step to the next row; false at the end.  The index scans allocate memory in
 * the current context, which has to live as long as the scan.
 */
bool
message_scan_next(MessageScan *scan, ScanRow *row)
{
	ScanPart   *best = NULL;

	CHECK_FOR_INTERRUPTS();
	leave_row(scan);
	for (int i = 0; i < scan->nparts; i++)
	{
		ScanPart   *part = scan->parts[i];

		if (part->has_row &&
			(best == NULL || is_before(scan, part, best)))
			best = part;
	}

	scan->current = best;
	if (best == NULL)
		return false;
	row->table = best->table;
	row->in_range = best->in_range;
	row->slot = best->slot;
	row->tuple = row_tuple(best->slot);
	row->form = MESSAGE_FORM(row->tuple);
	return true;
}

static void
end_part(ScanPart *part)
{
	if (part->scan != NULL)
		index_endscan(part->scan);
	else
		pfree(part->due);
	ExecDropSingleTupleTableSlot(part->slot);
	pfree(part);
}

/* End the scan.  The locks of one that may have written stay. */
void
message_scan_end(MessageScan *scan)
{
	for (int i = 0; i < scan->nparts; i++)
		end_part(scan->parts[i]);
	for (int i = 0; i < QUEUE_RELATIONS; i++)
		if (scan->tables[i] != NULL)
		{
			message_table_close(scan->tables[i],
							  scan->lockmode != AccessShareLock);
			pfree(scan->tables[i]);
		}
	pfree(scan->parts);
	pfree(scan);
}

/* The snapshot is stale: end all parts, and take a new one. */
static bool
starts_again(MessageScan *scan)
{
	if (!segment_snapshot_is_stale())
		return false;
	message_scan_end_parts(scan);
	segment_renew_snapshot();
	return true;
}

/*
 * A scan of the range in which a claim's messages lie.  The caller has called
 * segment_push_snapshot.
 */
MessageScan *
message_scan_begin_claim(int32 queue_id, const ClaimId *claim, LOCKMODE lockmode,
				 bool everywhere)
{
	MessageScan *scan = message_scan_begin(queue_id, lockmode);

	scan->everywhere = everywhere;
	do
		for (int priority = QUEUE_PRIORITIES - 1; priority >= 0; priority--)
			if (claim->priorities & (1 << priority))
				message_scan_add_numbers(scan, priority, claim->first,
								 claim->first + claim->span);
	while (starts_again(scan));
	return scan;
}

/*
 * A scan of all messages from id low on, in the order of their ids; delayed
 * ones too if wanted.  The caller has called segment_push_snapshot.
 */
MessageScan *
message_scan_begin_list(int32 queue_id, int64 low, LOCKMODE lockmode, bool delayed)
{
	MessageScan *scan = message_scan_begin(queue_id, lockmode);

	scan->by_priority = false;
	segment_refresh();
	scan->everywhere = true;
	do
	{
		for (int priority = 0; priority < QUEUE_PRIORITIES; priority++)
			message_scan_add_ids(scan, priority, priority, low, PG_INT64_MAX);
		if (delayed)
			add_delayed(scan, low);
	} while (starts_again(scan));
	return scan;
}
