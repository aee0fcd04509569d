/*-------------------------------------------------------------------------
 *
 * push_once.c
 *	  Pushes that take effect once, however often they are repeated.
 *
 * NOTES
 *	  A caller whose own transaction is on another server cannot commit both at
 *	  once.  It repeats the push until it knows that its own transaction has
 *	  committed, and names what it pushes by an origin and an id.
 *
 *	  queue_data.push_origin has a row for each push that has taken effect,
 *	  written in the transaction of the message.  It is inserted first, before
 *	  the message: a call that repeats another one, which is still in progress,
 *	  waits for it on the unique index, at every isolation level.  If that one
 *	  commits, the row has the answer; if it aborts, there is no row, and the
 *	  call that has waited pushes.  The message's id is set when it is known.
 *
 *	  Rows are kept for longer than a caller may go on repeating.  Some of the
 *	  calls that push remove older ones of their queue, which they have locked
 *	  against being dropped.  There is an index by time for this alone.
 *
 * src/push/push_once.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "push/push_once.h"
#include "queue/registry.h"
#include "storage/row.h"

/*
 * A message of an outbox, and then the dead letter that it became, live for 14
 * days each.  So many rows at most are removed by one in so many pushes.
 */
#define ORIGIN_LIFETIME		(28 * USECS_PER_DAY)
#define CLEAN_ONE_IN		50
#define CLEAN_ROWS			500

#define ORIGIN_KEYS			3	/* columns of the unique index */

static HeapTuple form_origin_row(Relation rel, int32 queue_id,
								 const PushOrigin *origin);
static void delete_old_origins(Relation rel, int32 queue_id);

/* Form a row that has no message yet. */
static HeapTuple
form_origin_row(Relation rel, int32 queue_id, const PushOrigin *origin)
{
	Datum		values[Natts_push_origin] = {0};
	bool		isnull[Natts_push_origin] = {false};

	values[Anum_push_origin_queue_id - 1] = Int32GetDatum(queue_id);
	values[Anum_push_origin_origin - 1] = PointerGetDatum(origin->name);
	values[Anum_push_origin_origin_id - 1] = Int64GetDatum(origin->id);
	values[Anum_push_origin_pushed_at - 1] =
		TimestampTzGetDatum(GetCurrentTimestamp());
	isnull[Anum_push_origin_message_id - 1] = true;
	return heap_form_tuple(RelationGetDescr(rel), values, isnull);
}

/* Delete rows of the queue beyond their lifetime, unless they are locked. */
static void
delete_old_origins(Relation rel, int32 queue_id)
{
	TimestampTz before = GetCurrentTimestamp() - ORIGIN_LIFETIME;
	ScanKeyData keys[2];
	RowScan		scan;
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], Anum_push_origin_queue_id, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(queue_id));
	ScanKeyInit(&keys[1], Anum_push_origin_pushed_at, BTLessStrategyNumber,
				F_TIMESTAMPTZ_LT, TimestampTzGetDatum(before));
	row_scan_begin(&scan, rel, catalog_oid(CATALOG_PUSH_ORIGIN_TIME_INDEX),
				   keys, lengthof(keys));
	for (int n = 0; n < CLEAN_ROWS; n++)
	{
		CHECK_FOR_INTERRUPTS();
		tuple = row_scan_next(&scan);
		if (!HeapTupleIsValid(tuple))
			break;
		if (row_lock(rel, &tuple->t_self, LockTupleExclusive, LockWaitSkip))
			simple_heap_delete(rel, &tuple->t_self);
	}
	row_scan_end(&scan);
	CommandCounterIncrement();
}

/*
 * Push one message as queue_push() does, unless that was done before for its
 * origin.  Sets the message's id to what the first push has set it to.
 */
void
push_message_once(const char *queue_name, const PushOrigin *origin,
				  NewMessage *message)
{
	Queue		queue;
	Relation	index;
	Relation	rel;
	ScanKeyData keys[ORIGIN_KEYS];
	HeapTuple	earlier;
	bool		is_duplicate;
	int64		total = 0;

	queue_open_or_create(queue_name, QUEUE_PUSH, &queue);
	push_prepare(&queue, message, &total);
	rel = catalog_open_with_index(CATALOG_PUSH_ORIGIN, RowExclusiveLock,
								  &index);
	ScanKeyInit(&keys[0], Anum_push_origin_queue_id, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(queue.id));
	ScanKeyInit(&keys[1], Anum_push_origin_origin, BTEqualStrategyNumber,
				F_TEXTEQ, PointerGetDatum(origin->name));
	ScanKeyInit(&keys[2], Anum_push_origin_origin_id, BTEqualStrategyNumber,
				F_INT8EQ, Int64GetDatum(origin->id));

	/*
	 * Find the row of an earlier push, after waiting for a transaction that
	 * is doing it; or insert one.
	 */
	do
	{
		CHECK_FOR_INTERRUPTS();
		earlier = row_find_unique(rel, index, keys, ORIGIN_KEYS, NULL,
								  NULL);
	} while (!HeapTupleIsValid(earlier) &&
			 !row_insert_unique(rel, index,
								form_origin_row(rel, queue.id, origin)));
	if (HeapTupleIsValid(earlier))
	{
		Datum		id = heap_getattr(earlier, Anum_push_origin_message_id,
									  RelationGetDescr(rel), &is_duplicate);

		message->id = is_duplicate ? 0 : DatumGetInt64(id);
	}
	else
	{
		push_messages(&queue, message, 1);

		/*
		 * The row of a duplicate has no id, so that later calls return none.
		 */
		if (message->id != 0)
		{
			int			column = Anum_push_origin_message_id;
			Datum		id = Int64GetDatum(message->id);

			row_set_columns(rel, row_fetch(rel, RelationGetRelid(index), keys,
										   ORIGIN_KEYS),
							1, &column, &id);
		}
		if (pg_prng_uint32(&pg_global_prng_state) % CLEAN_ONE_IN == 0)
			delete_old_origins(rel, queue.id);
	}
	index_close(index, NoLock);
	table_close(rel, NoLock);
}
