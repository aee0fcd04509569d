/*-------------------------------------------------------------------------
 *
 * delayed.c
 *	  Moving delayed messages that are due into the ring that claims scan.
 *
 * NOTES
 *	  Claims do not read the tables of delayed messages.  When some are due,
 *	  the worker moves them to the active segment, a limited number in each
 *	  transaction, those of the highest priority first.  There they are in the
 *	  order in which messages are claimed.  As with a push, the end of the
 *	  transaction publishes that something has become free, so listeners are
 *	  notified.  A claim that finds nothing while something is due waits for
 *	  that (availability_awaits_move).
 *
 *	  Messages that were moved leave index entries behind while a snapshot may
 *	  need them.  The availability map knows a time before which there are only
 *	  such entries, so that the next scan can begin behind them.
 *
 * src/storage/delayed.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "map/availability.h"
#include "map/availability_reserve.h"
#include "storage/delayed.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/compat.h"
#include "util/limits.h"

#define MOVE_AT_ONCE	1000	/* messages of a table */

/* What one transaction moves */
typedef struct DelayedMove
{
	int32		queue_id;
	TimestampTz from;			/* skip index entries of earlier times */
	TimestampTz now;
	MessageTable active;		/* where the messages go */
	Size		bytes;			/* moved so far */
	TimestampTz left_from;		/* what is left is delayed until then or later */
	TimestampTz next_due;		/* when to move some of that */
} DelayedMove;

static IndexScanDesc begin_due_scan(const DelayedMove *move,
									MessageTable *table, int priority);
static void leave(DelayedMove *move, TimestampTz from, TimestampTz due);
static bool move_of_priority(DelayedMove *move, MessageTable *table,
							 TupleTableSlot *slot, int priority, int *n);
static void move_of_table(DelayedMove *move, int segment);

static IndexScanDesc
begin_due_scan(const DelayedMove *move, MessageTable *table, int priority)
{
	ScanKeyData keys[3];

	ScanKeyInit(&keys[0], Anum_delayed_due_idx_queue_id,
				BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(move->queue_id));
	ScanKeyInit(&keys[1], Anum_delayed_due_idx_priority,
				BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(priority));
	ScanKeyInit(&keys[2], Anum_delayed_due_idx_due_at,
				BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(move->from));
	return compat_index_beginscan(table->heap, table->due_index,
								  GetActiveSnapshot(), keys, lengthof(keys));
}

/*
 * Leave messages that are delayed until "from" or later to a transaction that
 * begins when they are "due".
 */
static void
leave(DelayedMove *move, TimestampTz from, TimestampTz due)
{
	move->left_from = Min(move->left_from, from);
	move->next_due = Min(move->next_due, due);
}

/*
 * Move the messages of one priority that are due; *n counts those of the
 * table.  Returns false if this transaction has moved enough, and some are
 * left.
 */
static bool
move_of_priority(DelayedMove *move, MessageTable *table, TupleTableSlot *slot,
				 int priority, int *n)
{
	IndexScanDesc scan = begin_due_scan(move, table, priority);
	TimestampTz later = availability_recheck_at(move->now);
	bool		goes_on = true;

	while (index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		TimestampTz due_at;

		(void) message_row_check(ERROR, table->heap, row_tuple(slot));
		due_at = message_due_at(table, row_tuple(slot));

		/* All that follow in the index are due even later. */
		if (due_at > move->now)
		{
			leave(move, due_at, due_at);
			break;
		}
		if (*n == MOVE_AT_ONCE || move->bytes >= MESSAGE_MOVE_BYTES)
		{
			/* Those of lower priorities are not read. */
			leave(move, priority > 0 ? move->from : due_at, move->now);
			goes_on = false;
			break;
		}

		/*
		 * If another transaction has locked it, no callback may report the
		 * end of that.
		 */
		if (message_move(table, slot, &move->active, &move->bytes))
			(*n)++;
		else
			leave(move, due_at, later);
	}
	index_endscan(scan);
	return goes_on;
}

static void
move_of_table(DelayedMove *move, int segment)
{
	MessageTable table;
	TupleTableSlot *slot;
	int			n = 0;

	/* Claims may wait for this transaction, so it does not wait. */
	if (!message_table_try_open(&table, segment, RowExclusiveLock))
		message_scan_lock_error();
	slot = table_slot_create(table.heap, NULL);
	for (int priority = QUEUE_PRIORITIES - 1; priority >= 0; priority--)
		if (!move_of_priority(move, &table, slot, priority, &n))
			break;
	ExecDropSingleTupleTableSlot(slot);
	message_table_close(&table, true);
}

/*
 * Move some of the delayed messages of a queue that are due, and set *more if
 * there may be others.  Returns false if none is due.
 *
 * The caller holds a lock on the queue, and commits next.
 */
bool
delayed_move_due(int32 queue_id, bool *more)
{
	DelayedMove move = {
		.queue_id = queue_id,
		.now = GetCurrentTimestamp(),
		.left_from = DT_NOEND,
		.next_due = DT_NOEND
	};

	if (!availability_begin_move(queue_id, move.now, &move.from))
		return false;

	/* It does not become stale: only this process empties segments. */
	segment_push_snapshot();
	if (!segment_open_active(&move.active, RING_MESSAGES, false))
		message_scan_lock_error();
	for (int i = FIRST_DELAYED_SEGMENT; i < ALL_SEGMENTS; i++)
		if (segment_may_hold(i, 0, PG_INT64_MAX))
			move_of_table(&move, i);
	message_table_close(&move.active, true);
	PopActiveSnapshot();
	CommandCounterIncrement();
	availability_moved(move.left_from, move.next_due);
	*more = move.next_due <= move.now;
	return true;
}
