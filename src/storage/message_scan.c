/*-------------------------------------------------------------------------
 *
 * message_scan.c
 *	  Scans of the messages of a queue, in order.
 *
 * NOTES
 *	  A queue's messages are in several segments, and delayed ones in tables of
 *	  their own.  A scan merges as many parts as its caller adds and returns
 *	  one row at a time.  A part is an index scan of one table.  There are few
 *	  parts with a row, so the first of these rows is found by comparing all.
 *
 *	  All parts read with one snapshot.  So a message that another transaction
 *	  moves from one table to another is seen exactly once.  This takes an
 *	  order of steps:
 *
 *	  1.  message_scan_push_snapshot().
 *
 *	  2.  Parts are added; that opens and locks the tables which may hold such
 *	  messages.
 *
 *	  3.  If message_scan_is_stale(), a segment was emptied between the
 *	  snapshot and the lock, and the snapshot may not show where its messages
 *	  have gone.  Then message_scan_end_parts(), and step 1 again.
 *
 *	  4.  message_scan_next() until it returns false.
 *
 *	  5.  message_scan_end(), which pops all snapshots.
 *
 *	  The functions that begin the scan of a claim, or add a list, take steps 1
 *	  to 3 themselves.
 *
 *	  A claim that has reserved a range must not wait for a lock, since others
 *	  wait for the end of the reservation.  After message_scan_no_wait() the
 *	  scan adds nothing more if it meets a table that it cannot lock at once.
 *	  The caller gives back what it has reserved, and then calls
 *	  message_scan_wait_for_lock().
 *
 *	  The caller may lock, update and delete the row that the scan stands on.
 *
 * src/storage/message_scan.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "catalog/pg_type.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "catalog/message_id.h"
#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "map/message_ranges.h"
#include "storage/claim_id.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/compat.h"
#include "util/limits.h"

/* What index scans of eight tables take, each 27 kB */
#define SCAN_MEMORY		(256 * 1024)

/* One of the sources that a scan merges */
typedef struct ScanPart
{
	MessageTable *table;
	IndexScanDesc index;
	TupleTableSlot *slot;
	bool		has_row;		/* slot holds the next row */
	bool		in_range;		/* it is of the range that was added last */
	int			priority;		/* of the rows that it returns; -1: any */
} ScanPart;

struct MessageScan
{
	/* What is asked for */
	int32		queue_id;
	bool		by_id;			/* not in the order of claims, but by id */
	LOCKMODE	lockmode;
	bool		no_wait;		/* for locks on tables */
	int			nsnapshots;		/* pushed */
	Snapshot	snapshot;		/* the last one, */
	SnapshotToken token;		/* and its token */
	ArrayType  *ids;			/* only messages with these, or NULL */

	/* The parts */
	MemoryContext memory;		/* of index scans and copies of rows; NULL if
								 * there were none */
	MessageTables own_tables;	/* unless others are shared */
	MessageTables *tables;
	int			nparts;
	int			maxparts;
	ScanPart  **parts;
	ScanPart   *current;		/* whose row the caller has, or NULL */
	int			blocked_by;		/* the segment that could not be locked, or
								 * NO_SEGMENT */

	/* What parts that are added now get */
	bool		adding_range;
	int			priority;
};

/* The memory of an earlier scan, or NULL */
static MemoryContext spare_memory = NULL;

static MemoryContext take_scan_memory(MessageScan *scan);
static void keep_scan_memory(MessageScan *scan);
static MessageTable *get_scan_table(MessageScan *scan, int segment);
static void add_scan_part(MessageScan *scan, MessageTable *table,
						  ScanKey keys, int nkeys);
static void add_parts_of_ring(MessageScan *scan, int first, int end, int64 low,
							  int64 high, ScanKey keys, int nkeys);
static void end_scan_part(ScanPart *part);
static void add_delayed_parts(MessageScan *scan, int64 low, int64 high);
static void advance_part(ScanPart *part);
static void leave_current_row(MessageScan *scan);

/* --- Beginning and ending --- */

/*
 * Begin a scan without parts, in the order in which messages are claimed.
 * tables: those that earlier scans with this lock mode have opened, which are
 * left open (message_tables_close); or NULL.
 */
MessageScan *
message_scan_begin(int32 queue_id, LOCKMODE lockmode, MessageTables *tables)
{
	MessageScan *scan = palloc0(sizeof(MessageScan));

	scan->queue_id = queue_id;
	scan->lockmode = lockmode;
	scan->tables = tables != NULL ? tables : &scan->own_tables;
	scan->blocked_by = NO_SEGMENT;
	scan->priority = -1;
	scan->maxparts = ALL_SEGMENTS;
	scan->parts = palloc(scan->maxparts * sizeof(ScanPart *));
	return scan;
}

/* Push the latest snapshot, which stays until the scan ends. */
void
message_scan_push_snapshot(MessageScan *scan)
{
	scan->token = segment_push_snapshot();
	scan->snapshot = GetActiveSnapshot();
	scan->nsnapshots++;
}

/* Returns whether the parts have to be added again; not if one is locked. */
bool
message_scan_is_stale(const MessageScan *scan)
{
	return !message_scan_is_blocked(scan) &&
		segment_snapshot_is_stale(scan->token);
}

/*
 * Begin a scan of the numbers and priorities in which a claim's messages are,
 * or of these messages, if they are known.
 */
MessageScan *
message_scan_begin_claim(int32 queue_id, const ClaimId *claim,
						 LOCKMODE lockmode)
{
	MessageScan *scan = message_scan_begin(queue_id, lockmode, NULL);

	scan->ids = claim_id_members(claim);
	do
	{
		message_scan_end_parts(scan);
		message_scan_push_snapshot(scan);
		for (int priority = QUEUE_PRIORITIES - 1; priority >= 0; priority--)
			if (claim->priorities & (1 << priority))
				message_scan_add_numbers(scan, priority, claim->first,
										 claim->first + claim->span);
	} while (message_scan_is_stale(scan));
	return scan;
}

/*
 * Begin a scan of all messages, delayed ones too, with ids from low on, in the
 * order of ids.
 */
MessageScan *
message_scan_begin_list(int32 queue_id, int64 low, LOCKMODE lockmode)
{
	MessageScan *scan = message_scan_begin(queue_id, lockmode, NULL);

	scan->by_id = true;
	message_scan_add_list(scan, low);
	return scan;
}

/*
 * Add all messages, delayed ones too, with ids from low on.  If they are not
 * merged by id, delayed ones come between the others in no order.
 */
void
message_scan_add_list(MessageScan *scan, int64 low)
{
	do
	{
		message_scan_end_parts(scan);
		message_scan_push_snapshot(scan);
		for (int priority = 0; priority < QUEUE_PRIORITIES; priority++)
			message_scan_add_ids(scan, priority, low, PG_INT64_MAX);
		add_delayed_parts(scan, low, PG_INT64_MAX);
	} while (message_scan_is_stale(scan));
}

/*
 * Add all delayed messages, due or not, with ids from low on, in the order of
 * ids.
 */
void
message_scan_add_delayed_list(MessageScan *scan, int64 low)
{
	scan->by_id = true;
	do
	{
		message_scan_end_parts(scan);
		message_scan_push_snapshot(scan);
		add_delayed_parts(scan, low, PG_INT64_MAX);
	} while (message_scan_is_stale(scan));
}

/* End the scan.  If the caller may have written, the locks on tables stay. */
void
message_scan_end(MessageScan *scan)
{
	message_scan_end_parts(scan);
	if (scan->tables == &scan->own_tables)
		message_tables_close(scan->tables, scan->lockmode != AccessShareLock);
	keep_scan_memory(scan);
	Assert(scan->nsnapshots == 0 || scan->snapshot == GetActiveSnapshot());
	for (; scan->nsnapshots > 0; scan->nsnapshots--)
		PopActiveSnapshot();
	pfree(scan->parts);
	pfree(scan);
}

/*
 * Returns the memory of a scan, taken at the first use.  malloc() would give
 * so much of it back to the operating system at the end of a claim of many
 * messages, or one that reads several segments, and the next claim would get
 * it anew, page by page.  So a session keeps the memory of one scan.
 */
static MemoryContext
take_scan_memory(MessageScan *scan)
{
	if (scan->memory != NULL)
		return scan->memory;
	if (spare_memory != NULL)
		scan->memory = spare_memory;
	else
		scan->memory = GenerationContextCreate(TopMemoryContext,
											   "scan of messages",
											   SCAN_MEMORY, SCAN_MEMORY,
											   ALLOCSET_DEFAULT_MAXSIZE);
	spare_memory = NULL;

	/* After an error it is deleted where the scan is. */
	MemoryContextSetParent(scan->memory, GetMemoryChunkContext(scan));
	return scan->memory;
}

/* Returns a copy of a row, which is freed as the scan ends. */
HeapTuple
message_scan_copy_row(MessageScan *scan, const ScanRow *row)
{
	MemoryContext old = MemoryContextSwitchTo(take_scan_memory(scan));
	HeapTuple	copy = heap_copytuple(row->tuple);

	MemoryContextSwitchTo(old);
	return copy;
}

/* The scan has ended: keep its memory for the next one. */
static void
keep_scan_memory(MessageScan *scan)
{
	if (scan->memory == NULL)
		return;

	/* Another scan, which began later, has ended before. */
	if (spare_memory != NULL)
	{
		MemoryContextDelete(scan->memory);
		return;
	}
	MemoryContextReset(scan->memory);
	MemoryContextSetParent(scan->memory, TopMemoryContext);
	spare_memory = scan->memory;
}

/*
 * Do not wait for locks on tables: if one cannot be locked at once, nothing
 * more is added.
 */
void
message_scan_no_wait(MessageScan *scan)
{
	scan->no_wait = true;
}

/* --- Tables that could not be locked --- */

/* Returns whether a table could not be locked at once. */
bool
message_scan_is_blocked(const MessageScan *scan)
{
	return scan->blocked_by != NO_SEGMENT;
}

/*
 * Wait for the lock on the table that could not be locked.  The caller has
 * nothing reserved.  All parts end; the tables stay open.
 */
void
message_scan_wait_for_lock(MessageScan *scan)
{
	message_scan_end_parts(scan);
	scan->no_wait = false;
	(void) get_scan_table(scan, scan->blocked_by);
	scan->no_wait = true;
	scan->blocked_by = NO_SEGMENT;
}

/*
 * Raise an error because a table could not be locked; for a background
 * process, which never waits for a lock that a user can hold.
 */
void
message_scan_lock_error(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("a table of messages is locked")));
}

/* --- Parts --- */

/*
 * Returns the table of a segment, opened; NULL if it could not be locked at
 * once, and the scan must not wait.
 */
static MessageTable *
get_scan_table(MessageScan *scan, int segment)
{
	MessageTable *table = &scan->tables->items[segment];

	if (table->heap != NULL)
		return table;
	if (!scan->no_wait)
		message_table_open(table, segment, scan->lockmode);
	else if (!message_table_try_open(table, segment, scan->lockmode))
	{
		scan->blocked_by = segment;
		return NULL;
	}
	return table;
}

/* Add a scan of a table's index, and fetch its first row. */
static void
add_scan_part(MessageScan *scan, MessageTable *table, ScanKey keys, int nkeys)
{
	ScanPart   *part = palloc0(sizeof(ScanPart));
	MemoryContext old;

	if (scan->nparts == scan->maxparts)
	{
		scan->maxparts *= 2;
		scan->parts = repalloc(scan->parts,
							   scan->maxparts * sizeof(ScanPart *));
	}
	part->table = table;
	part->in_range = scan->adding_range;
	part->priority = scan->priority;
	part->slot = table_slot_create(table->heap, NULL);
	scan->parts[scan->nparts++] = part;
	old = MemoryContextSwitchTo(take_scan_memory(scan));
	part->index = compat_index_beginscan(table->heap, table->index,
										 GetActiveSnapshot(), keys, nkeys);
	MemoryContextSwitchTo(old);
	advance_part(part);
}

/*
 * Add parts of the segments from "first" to before "end" that may hold ids
 * within these bounds, up to one that is locked (message_scan_is_blocked).
 */
static void
add_parts_of_ring(MessageScan *scan, int first, int end, int64 low,
				  int64 high, ScanKey keys, int nkeys)
{
	for (int i = first; i < end && !message_scan_is_blocked(scan); i++)
	{
		MessageTable *table = NULL;

		if (segment_may_hold(i, message_id_number(low),
							 message_id_number(high)))
			table = get_scan_table(scan, i);
		if (table != NULL)
			add_scan_part(scan, table, keys, nkeys);
	}
}

/*
 * Make the keys of an index for the messages of a queue with ids within these
 * bounds, of one priority, or of all if that is -1; of delayed messages, of
 * all.  Returns how many there are, one for each bound that restricts
 * anything.
 */
int
message_scan_keys(ScanKey keys, bool is_delayed, int32 queue_id, int priority,
				  int64 low, int64 high)
{
	AttrNumber	id = is_delayed ? Anum_delayed_id_idx_id : Anum_message_idx_id;
	int			n = 0;

	ScanKeyInit(&keys[n++], is_delayed ? Anum_delayed_id_idx_queue_id :
				Anum_message_idx_queue_id, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	if (priority >= 0 && !is_delayed)
		ScanKeyInit(&keys[n++], Anum_message_idx_priority,
					BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(priority));
	if (low == high)
	{
		ScanKeyInit(&keys[n++], id, BTEqualStrategyNumber, F_INT8EQ,
					Int64GetDatum(low));
		return n;
	}
	if (low > PG_INT64_MIN)
		ScanKeyInit(&keys[n++], id, BTGreaterEqualStrategyNumber, F_INT8GE,
					Int64GetDatum(low));
	if (high < PG_INT64_MAX)
		ScanKeyInit(&keys[n++], id, BTLessEqualStrategyNumber, F_INT8LE,
					Int64GetDatum(high));
	return n;
}

static void
end_scan_part(ScanPart *part)
{
	index_endscan(part->index);
	ExecDropSingleTupleTableSlot(part->slot);
	pfree(part);
}

/* End all parts.  Rows that the caller has copied, and tables, stay. */
void
message_scan_end_parts(MessageScan *scan)
{
	for (int i = 0; i < scan->nparts; i++)
		end_scan_part(scan->parts[i]);
	scan->nparts = 0;
	scan->current = NULL;
}

/*
 * Add the messages of a priority (-1: of all) with ids within these bounds, of
 * all segments.  Bounds of ids are only of use for a single priority, because
 * of the order of the index.
 */
void
message_scan_add_ids(MessageScan *scan, int priority, int64 low, int64 high)
{
	ScanKeyData keys[MESSAGE_KEYS_MAX + 1];
	int			nkeys = message_scan_keys(keys, false, scan->queue_id,
										  priority, low, high);

	if (scan->ids != NULL)
		ScanKeyEntryInitialize(&keys[nkeys++], SK_SEARCHARRAY,
							   Anum_message_idx_id, BTEqualStrategyNumber,
							   INT8OID, InvalidOid, F_INT8EQ,
							   PointerGetDatum(scan->ids));
	add_parts_of_ring(scan, 0, MESSAGE_SEGMENTS, low, high, keys, nkeys);
}

/* Add the messages with these numbers of one priority. */
void
message_scan_add_numbers(MessageScan *scan, int priority, int64 first,
						 int64 last)
{
	message_scan_add_ids(scan, priority, message_id_make(first, 0, 0),
						 message_id_make(last + 1, 0, 0) - 1);
}

/* Add the messages of a range. */
void
message_scan_add_range(MessageScan *scan, const MessageRange *range)
{
	scan->adding_range = true;
	message_scan_add_numbers(scan, range->priority, range->first, range->last);
	scan->adding_range = false;
}

/* Add the delayed messages of a range. */
void
message_scan_add_delayed(MessageScan *scan, const MessageRange *range)
{
	/*
	 * The index of delayed messages does not have the priority, so
	 * advance_part() leaves out rows of others.
	 */
	scan->priority = range->priority;
	add_delayed_parts(scan, message_id_make(range->first, 0, 0),
					  message_id_make(range->last + 1, 0, 0) - 1);
	scan->priority = -1;
}

/* End the parts of the range that was added last. */
void
message_scan_end_range(MessageScan *scan)
{
	int			kept = 0;

	for (int i = 0; i < scan->nparts; i++)
	{
		if (scan->parts[i]->in_range)
		{
			/* leave_current_row() must not advance a part that has ended. */
			if (scan->current == scan->parts[i])
				scan->current = NULL;
			end_scan_part(scan->parts[i]);
		}
		else
			scan->parts[kept++] = scan->parts[i];
	}
	scan->nparts = kept;
}

/*
 * Add the delayed messages with ids within these bounds, of all priorities, in
 * the order of ids.
 */
static void
add_delayed_parts(MessageScan *scan, int64 low, int64 high)
{
	ScanKeyData keys[MESSAGE_KEYS_MAX];
	int			nkeys = message_scan_keys(keys, true, scan->queue_id, -1, low,
										  high);

	add_parts_of_ring(scan, FIRST_DELAYED_SEGMENT, ALL_SEGMENTS, low, high,
					  keys, nkeys);
}

/* --- Reading --- */

/* Fetch the next row of a part into its slot, if there is one. */
static void
advance_part(ScanPart *part)
{
	do
	{
		part->has_row = index_getnext_slot(part->index, ForwardScanDirection,
										   part->slot);
		if (!part->has_row)
			return;
		(void) message_row_check(ERROR, part->table->heap, row_tuple(part->slot));

		/* A part of delayed messages, of one priority */
	} while (part->priority >= 0 && part->priority !=
			 message_id_priority(message_row_id(row_tuple(part->slot))));
}

/* Step off the current row, which was the caller's until now. */
static void
leave_current_row(MessageScan *scan)
{
	if (scan->current != NULL)
		advance_part(scan->current);
	scan->current = NULL;
}

/*
 * Step to the next row.  Returns false at the end.  The index scans allocate
 * memory in the current context, which has to live as long as the scan.
 */
bool
message_scan_next(MessageScan *scan, ScanRow *row)
{
	ScanPart   *best = NULL;
	int64		best_id = 0;

	CHECK_FOR_INTERRUPTS();
	leave_current_row(scan);
	for (int i = 0; i < scan->nparts; i++)
	{
		ScanPart   *part = scan->parts[i];
		int64		id;

		if (!part->has_row)
			continue;
		id = message_row_id(row_tuple(part->slot));
		if (best == NULL ||
			(scan->by_id ? id < best_id :
			 message_id_compare(id, best_id) < 0))
		{
			best = part;
			best_id = id;
		}
	}

	scan->current = best;
	if (best == NULL)
		return false;
	row->table = best->table;
	row->in_range = best->in_range;
	row->slot = best->slot;
	row->tuple = row_tuple(best->slot);
	row->form = message_read(row->tuple);
	return true;
}

/*
 * Returns whether there is another row; if in_range is set, of the range that
 * was added last.  Steps off the current row.
 */
bool
message_scan_has_rows(MessageScan *scan, bool in_range)
{
	leave_current_row(scan);
	for (int i = 0; i < scan->nparts; i++)
		if (scan->parts[i]->has_row &&
			(scan->parts[i]->in_range || !in_range))
			return true;
	return false;
}
