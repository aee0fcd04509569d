/*-------------------------------------------------------------------------
 *
 * group_rate.c
 *	  How fast the messages of a group are handed out.
 *
 * NOTES
 *	  If a queue has _group_rate, each of its groups has a time at which the
 *	  next message may be handed out (next_at).  A delivery moves it forward
 *	  by the interval between two messages.  A claim that comes late may make
 *	  up for CATCH_UP at most, so next_at is never further behind than that.
 *
 *	  The interval is somewhat longer than the rate says (RATE_SHARE).  So in
 *	  a window of time t there are at most
 *
 *		1 + RATE_SHARE * rate * (t + CATCH_UP)
 *
 *	  deliveries.  That is never more than 1 + rate * t if t is ten seconds or
 *	  more.  So a group keeps its rate, within RATE_SHARE, although its claims
 *	  are now and then late.
 *
 *	  The rows of queue_data.group_rate have next_at.  A claim reads it when
 *	  it has locked the group (group.c), and the lock is kept to the end of
 *	  the transaction.  Deliveries are counted as the transaction commits or
 *	  is prepared, with the time of that: so those that are rolled back do not
 *	  count, and a claim in a long transaction is no reason to hand out the
 *	  next message early.  A row is overwritten in place
 *	  (row_act_in_place), which leaves no dead version.  If the commit
 *	  fails after that, or a prepared transaction is rolled back, nothing of
 *	  the group is handed out for an interval, without need.
 *
 *	  A row whose next_at is further behind than CATCH_UP has the same effect
 *	  as a missing one, and is removed by the worker, once a minute.  The rows
 *	  of a queue are removed when it is dropped, and move and are dumped with
 *	  it: a row has the queue's id, and its lane, which depends on the queue
 *	  alone (lane.c).
 *
 * src/claim/group_rate.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "storage/bufmgr.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "claim/group_rate.h"
#include "shmem/database_state.h"
#include "storage/message_row.h"
#include "storage/row.h"
#include "util/xact.h"

#define CATCH_UP			(USECS_PER_SEC / 10)
#define RATE_SHARE			0.99
#define DELAY_MAX			(100 * 365.0 * USECS_PER_DAY)

#define PAGES_AT_ONCE		10	/* in which rows are removed */

/* The columns of a row, all of which have a fixed place */
typedef struct GroupRateForm
{
	int64		lane;
	TimestampTz delivered_at;	/* the last message */
	TimestampTz next_at;
	int32		queue_id;
} GroupRateForm;

#define GROUP_RATE_FORM(tuple)	((GroupRateForm *) GETSTRUCT(tuple))

/* What this transaction has handed out of a group */
typedef struct Delivery
{
	XactRecord	xact;
	int32		queue_id;
	LaneId		lane;
	double		interval;		/* microseconds between two messages */
	int			n;				/* messages */
} Delivery;

static void write_deliveries(XactEvent event);

XactList	group_deliveries = {
	.record_size = sizeof(Delivery),
	.before_end = write_deliveries
};

static double message_interval(const Queue *queue);
static TimestampTz add_intervals(TimestampTz at, double interval, int n);
static TimestampTz next_delivery(HeapTuple tuple, TimestampTz now,
								 double interval);
static HeapTuple fetch_rate(Relation rel, Oid index, int32 queue_id,
							LaneId lane);
static int	count_deliveries(int32 queue_id, LaneId lane, bool clear);
static void set_rate_times(HeapTuple tuple, void *arg);
static bool write_delivery(Relation rel, Oid index, const Delivery *delivery,
						   TimestampTz now);

/* Microseconds between two messages of a group */
static double
message_interval(const Queue *queue)
{
	/* Any rate above zero is valid: do not overflow. */
	return Min(USECS_PER_SEC / (queue->group_rate * RATE_SHARE), DELAY_MAX);
}

/* The time n intervals later, but at most DELAY_MAX later */
static TimestampTz
add_intervals(TimestampTz at, double interval, int n)
{
	return at + (TimestampTz) Min(ceil(n * interval), DELAY_MAX);
}

/*
 * Returns when the next message may be handed out, if this is the row of the
 * group, or NULL because it has none.
 */
static TimestampTz
next_delivery(HeapTuple tuple, TimestampTz now, double interval)
{
	const GroupRateForm *row;

	/* If the clock was set back since, next_at may be very far ahead. */
	if (!HeapTupleIsValid(tuple) ||
		GROUP_RATE_FORM(tuple)->delivered_at > now)
		return now - CATCH_UP;

	/* If the rate was raised since, next_at is too late for the new one. */
	row = GROUP_RATE_FORM(tuple);
	return Max(Min(row->next_at,
				   add_intervals(row->delivered_at, interval, 1)),
			   now - CATCH_UP);
}

/* Returns the row of a group, or NULL if it has none. */
static HeapTuple
fetch_rate(Relation rel, Oid index, int32 queue_id, LaneId lane)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], Anum_group_rate_queue_id, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(queue_id));
	ScanKeyInit(&keys[1], Anum_group_rate_lane, BTEqualStrategyNumber,
				F_INT8EQ, Int64GetDatum((int64) lane.hash));
	return row_fetch(rel, index, keys, 2);
}

/*
 * Returns how many messages of a group this transaction has handed out.  If
 * "clear" is set, they are not counted again.
 */
static int
count_deliveries(int32 queue_id, LaneId lane, bool clear)
{
	int			n = 0;

	for (int i = 0; i < group_deliveries.n; i++)
	{
		Delivery   *delivery = xact_record(&group_deliveries, i);

		if (delivery->queue_id != queue_id || !lane_equals(delivery->lane, lane))
			continue;
		n += delivery->n;
		if (clear)
			delivery->n = 0;
	}
	return n;
}

/*
 * Lock the table for the rest of the transaction, because the caller is about
 * to reserve a range, and must not wait for the table then.
 */
void
group_rate_prepare(void)
{
	table_close(catalog_open(CATALOG_GROUP_RATE, AccessShareLock, NULL), NoLock);
}

/*
 * Returns how many messages of a group, which is locked, may be handed out
 * now.  If none may, sets *next_at to when the next one may.
 */
int
group_rate_allowance(const Queue *queue, LaneId lane, TimestampTz *next_at)
{
	Oid			index;
	Relation	rel = catalog_open(CATALOG_GROUP_RATE, AccessShareLock,
								   &index);
	HeapTuple	tuple = fetch_rate(rel, index, queue->id, lane);
	double		interval = message_interval(queue);
	TimestampTz now = GetCurrentTimestamp();
	int			delivered = count_deliveries(queue->id, lane, false);
	TimestampTz next = add_intervals(next_delivery(tuple, now, interval),
									 interval, delivered);

	if (HeapTupleIsValid(tuple))
		heap_freetuple(tuple);
	table_close(rel, AccessShareLock);
	if (next > now)
	{
		*next_at = next;
		return 0;
	}
	return (int) Min((now - next) / interval + 1, INT_MAX / 2);
}

/* --- Counting deliveries --- */

/* Record that a message is being handed out. */
void
group_rate_record(const Queue *queue, MessageTable *table, HeapTuple tuple)
{
	Delivery   *delivery;
	LaneId		lane;

	if (queue->group_rate <= 0 ||
		message_row_is_null(tuple, Anum_message_group_key))
		return;
	lane = message_lane(RelationGetDescr(table->heap), tuple);
	for (int i = group_deliveries.n - 1; i >= 0; i--)
	{
		delivery = xact_record(&group_deliveries, i);

		/* A rollback of this subtransaction removes no earlier records. */
		if (delivery->xact.nest_level < GetCurrentTransactionNestLevel())
			break;
		if (delivery->queue_id == queue->id && lane_equals(delivery->lane, lane))
		{
			delivery->n++;
			return;
		}
	}
	delivery = xact_add(&group_deliveries);
	delivery->queue_id = queue->id;
	delivery->lane = lane;
	delivery->interval = message_interval(queue);
	delivery->n = 1;
}

/* Callback of row_act_in_place: set the times of a row. */
static void
set_rate_times(HeapTuple tuple, void *arg)
{
	const GroupRateForm *new = arg;

	GROUP_RATE_FORM(tuple)->delivered_at = new->delivered_at;
	GROUP_RATE_FORM(tuple)->next_at = new->next_at;
}

/*
 * Write what was delivered of the group of this record.  Returns whether the
 * row is new.
 */
static bool
write_delivery(Relation rel, Oid index, const Delivery *delivery,
			   TimestampTz now)
{
	HeapTuple	tuple;
	int			n = count_deliveries(delivery->queue_id, delivery->lane, true);
	GroupRateForm new = {.delivered_at = now};
	Datum		values[Natts_group_rate];
	bool		isnull[Natts_group_rate] = {false};

	for (;;)
	{
		tuple = fetch_rate(rel, index, delivery->queue_id, delivery->lane);
		new.next_at = add_intervals(next_delivery(tuple, now,
												  delivery->interval),
									delivery->interval, n);
		if (!HeapTupleIsValid(tuple))
			break;
		if (row_act_in_place(rel, &tuple->t_self, true, set_rate_times,
							 &new))
			return false;

		/*
		 * A transaction is removing the row, or has locked it.  row_update()
		 * waits for it; if the row is gone then, we look for it again.
		 */
		set_rate_times(tuple, &new);
		if (row_update(rel, &tuple->t_self, tuple))
			return false;
	}
	values[Anum_group_rate_lane - 1] = Int64GetDatum(delivery->lane.hash);
	values[Anum_group_rate_delivered_at - 1] = TimestampTzGetDatum(now);
	values[Anum_group_rate_next_at - 1] = TimestampTzGetDatum(new.next_at);
	values[Anum_group_rate_queue_id - 1] = Int32GetDatum(delivery->queue_id);
	CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), values,
											isnull));
	return true;
}

/* Callback before commit or prepare */
static void
write_deliveries(XactEvent event)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		inserted = false;
	Oid			index;
	Relation	rel;

	if (group_deliveries.n == 0)
		return;
	rel = catalog_open(CATALOG_GROUP_RATE, RowExclusiveLock, &index);

	/* The snapshot keeps the rows where they are found. */
	PushActiveSnapshot(GetLatestSnapshot());
	for (int i = 0; i < group_deliveries.n; i++)
	{
		const Delivery *delivery = xact_record(&group_deliveries, i);

		/* Write each row once, though several records may be of its group. */
		if (delivery->n > 0)
			inserted |= write_delivery(rel, index, delivery, now);
	}
	PopActiveSnapshot();
	table_close(rel, NoLock);

	/* New rows have to be removed some time. */
	if (inserted)
		database_wake(now + GROUP_RATE_PAUSE, false);
}

/* --- Rows that are not needed any more --- */

/*
 * A step of the worker: remove the rows that are not needed any more from the
 * next few pages of the table.  Returns false if these were the last ones.
 * *arg is a RateSweep, which says where the next step begins.
 */
bool
group_rate_forget(void *arg)
{
	RateSweep  *sweep = arg;
	TimestampTz before = GetCurrentTimestamp() - CATCH_UP;
	Relation	rel = catalog_open(CATALOG_GROUP_RATE, RowExclusiveLock,
								   NULL);
	BlockNumber pages = RelationGetNumberOfBlocks(rel);
	RowScan		scan;
	HeapTuple	tuple;
	int			nread = 0;

	/* Vacuum may have cut the table off there. */
	if (sweep->page >= pages)
	{
		table_close(rel, NoLock);
		return false;
	}
	row_scan_begin(&scan, rel, InvalidOid, NULL, 0);
	row_scan_set_pages(&scan, sweep->page,
					   Min(PAGES_AT_ONCE, pages - sweep->page));
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		nread++;

		/*
		 * The tuple is the row on its page, not a copy.  So with the lock we
		 * read next_at once more, as a claim may just have overwritten it.
		 */
		if (GROUP_RATE_FORM(tuple)->next_at <= before &&
			row_lock(rel, &tuple->t_self, LockTupleExclusive,
					 LockWaitSkip) &&
			GROUP_RATE_FORM(tuple)->next_at <= before)
			CatalogTupleDelete(rel, &tuple->t_self);
		else
			sweep->left = true;
	}
	row_scan_end(&scan);
	table_close(rel, NoLock);
	ereport(DEBUG2,
			(errmsg_internal("read %d rates of groups", nread)));
	sweep->page += PAGES_AT_ONCE;
	return sweep->page < pages;
}
