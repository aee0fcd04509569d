/*-------------------------------------------------------------------------
 *
 * finished.c
 *	  The history: what became of messages.
 *
 * NOTES
 *	  Where the metadata of a queue has _keep_finished, the transaction that
 *	  removes a message inserts a row into one of the tables
 *	  queue_data.finished_0 ... finished_17; one that reports an error of an
 *	  attempt inserts another row, which only job_errors shows.  So the
 *	  history, job_errors and the dead letters say the same of an attempt.  Such
 *	  errors are kept without _keep_finished, too: for a day.
 *
 *	  Rows are never updated or deleted.  The tables are rings, one for each
 *	  step of _keep_finished: up to a minute, an hour, a day, 31 days, a year.
 *	  One table of a ring takes new rows, and the worker truncates those in
 *	  which all rows are too old (finished_ring.c).  A reader leaves out what
 *	  is too old by the present _keep_finished, so it does not matter when that
 *	  is.  It reads all rings, since _keep_finished may have changed.
 *
 *	  A truncation is not MVCC, but all that it removes is too old to be shown.
 *	  So a reader need not care for it, but for values in TOAST tables.
 *
 * src/queue/finished.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "queue/finished.h"
#include "queue/options.h"
#include "queue/registry.h"
#include "shmem/await_state.h"
#include "shmem/database_state.h"
#include "storage/attributes.h"
#include "storage/message_row.h"
#include "storage/row.h"

/* The rows of one queue in all tables, or those of one message */
typedef struct FinishedScan
{
	TimestampTz not_before;		/* what was finished earlier is left out */
	Relation	rels[FINISHED_SEGMENTS];
	RowScan		scans[FINISHED_SEGMENTS];
	bool		is_open[FINISHED_SEGMENTS];
	HeapTuple	next[FINISHED_SEGMENTS];	/* the next row of each scan that
											 * is not too old; NULL if there
											 * is none */
	Finished	rows[FINISHED_SEGMENTS];	/* and its columns */
	int			last;			/* the table of the row that was returned
								 * last, or -1 */
	HeapTuple	whole;			/* a copy of that row with the values that are
								 * in the TOAST table; or NULL */
} FinishedScan;

const char *const finished_outcomes[FINISHED_OUTCOMES] = {
	[FINISHED_COMPLETED] = "completed",
	[FINISHED_DEAD] = "dead",
	[FINISHED_EXPIRED] = "expired",
	[FINISHED_CANCELED] = "canceled",
	[FINISHED_DUPLICATE] = "duplicate",
	[FINISHED_DELETED] = "deleted",
	[FINISHED_FAILED] = "failed"
};

static int	errors_kept(const Queue *queue);
static void read_finished(Relation rel, HeapTuple tuple, Finished *row);
static bool begin_finished_scan(FinishedScan *scan, const Queue *queue,
								bool is_attempt, StrategyNumber strategy,
								int64 id);
static void advance_scan(FinishedScan *scan, int i);
static bool next_finished(FinishedScan *scan, Finished *row);
static void end_finished_scan(FinishedScan *scan);
static int	compare_finished_at(const void *a, const void *b);

/* --- Writing --- */

/* Returns the ring for a queue that keeps its history for so many seconds. */
RingKind
finished_ring_of(int64 seconds)
{
	RingKind	ring = RINGS - 1;

	while (ring > RING_FINISHED && seconds > catalog_rings[ring].keep_max)
		ring--;
	return ring;
}

/* Returns for how many seconds a queue keeps the errors of attempts. */
static int
errors_kept(const Queue *queue)
{
	return queue->keep_finished >= 0 ? queue->keep_finished :
		FINISHED_ERRORS_KEPT;
}

/*
 * Insert the row of a message that was removed, of which "tuple" was the last
 * version, or of an attempt that has failed.  error: NULL for the last one
 * that the message has, unless it was completed.  result: NULL for none.
 */
void
finished_insert(const Queue *queue, MessageTable *table, HeapTuple tuple,
				FinishedOutcome outcome, const char *error, Jsonb *result)
{
	TupleDesc	desc = RelationGetDescr(table->heap);
	MessageForm form = message_read(tuple);
	TimestampTz now = GetCurrentTimestamp();
	bool		is_attempt = outcome == FINISHED_FAILED;
	RingKind	ring = finished_ring_of(errors_kept(queue));
	int			active;
	Datum		values[Natts_finished];
	bool		isnull[Natts_finished] = {false};
	Relation	rel;
	HeapTuple	row;

	if (error == NULL && outcome != FINISHED_COMPLETED)
		error = attributes_last_error(desc, tuple);

#define SET(attribute, value) values[Anum_finished_##attribute - 1] = (value)
#define SET_OR_NULL(attribute, value, is_null) \
	(isnull[Anum_finished_##attribute - 1] = (is_null), \
	 SET(attribute, isnull[Anum_finished_##attribute - 1] ? (Datum) 0 : (value)))
#define COPY(attribute) \
	SET(attribute, heap_getattr(tuple, Anum_message_##attribute, desc, \
								&isnull[Anum_finished_##attribute - 1]))
	SET(id, Int64GetDatum(form.id));

	/* That of a message that waits for a batch is in the future. */
	SET(pushed_at, TimestampTzGetDatum(Min(form.created_at, now)));
	SET(finished_at, TimestampTzGetDatum(now));
	SET(queue_id, Int32GetDatum(form.queue_id));
	SET(attempts, Int32GetDatum(options_attempts(table, tuple)));
	SET(outcome, Int16GetDatum(outcome));
	SET(is_attempt, BoolGetDatum(is_attempt));

	COPY(batch);
	COPY(group_key);
	SET_OR_NULL(result, JsonbPGetDatum(result), result == NULL);
	SET_OR_NULL(error, CStringGetTextDatum(error), error == NULL);
	if (queue->keep_body && !is_attempt)
		COPY(body);
	else
		SET_OR_NULL(body, 0, true);
#undef SET
#undef SET_OR_NULL
#undef COPY

	for (;;)
	{
		active = catalog_active_table(ring);

		/* A superuser has deleted the row of the ring. */
		if (active == NO_SEGMENT)
			return;
		rel = catalog_open(CATALOG_FINISHED_0 + active, RowExclusiveLock,
						   NULL);

		/* The worker may be about to truncate it (segment_open_active). */
		if (catalog_active_table(ring) == active)
			break;
		table_close(rel, RowExclusiveLock);
	}
	database_history_written();
	row = heap_form_tuple(RelationGetDescr(rel), values, isnull);
	row_insert(rel, row);
	heap_freetuple(row);
	table_close(rel, NoLock);
	if (!is_attempt)
		await_state_finished(form.id);
}

/* --- Reading --- */

/*
 * Open a queue to read its history, which needs the privilege claim, or if the
 * metadata says so, push.  Returns false, with a notice, if it is unknown.
 */
bool
finished_open(const char *name, Queue *queue)
{
	return (queue_find_as(name, GetUserId(), QUEUE_PUSH, queue) == QUEUE_OK &&
			queue->results_for_producers) ||
		queue_open_or_notice(name, QUEUE_READ, queue);
}

static void
read_finished(Relation rel, HeapTuple tuple, Finished *row)
{
	heap_deform_tuple(tuple, RelationGetDescr(rel), row->values, row->isnull);
#define VALUE(attribute) row->values[Anum_finished_##attribute - 1]
	row->id = DatumGetInt64(VALUE(id));
	row->pushed_at = DatumGetTimestampTz(VALUE(pushed_at));
	row->finished_at = DatumGetTimestampTz(VALUE(finished_at));
	row->attempts = DatumGetInt32(VALUE(attempts));
	row->outcome = DatumGetInt16(VALUE(outcome));
#undef VALUE
}

/*
 * Begin to read the rows of a queue whose id is equal to this one, or above
 * it: those of messages, or of attempts that have failed.  Returns false if
 * there is no history.
 */
static bool
begin_finished_scan(FinishedScan *scan, const Queue *queue, bool is_attempt,
					StrategyNumber strategy, int64 id)
{
	ScanKeyData keys[3];
	int			keep = is_attempt ? errors_kept(queue) : queue->keep_finished;

	if (keep < 0)
		return false;
	scan->not_before = GetCurrentTimestamp() - keep * USECS_PER_SEC;
	ScanKeyInit(&keys[0], Anum_finished_queue_id, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(queue->id));
	ScanKeyInit(&keys[1], Anum_finished_is_attempt, BTEqualStrategyNumber,
				F_BOOLEQ, BoolGetDatum(is_attempt));
	ScanKeyInit(&keys[2], Anum_finished_id, strategy,
				strategy == BTEqualStrategyNumber ? F_INT8EQ : F_INT8GT,
				Int64GetDatum(id));
	scan->last = -1;
	scan->whole = NULL;
	for (int i = 0; i < FINISHED_SEGMENTS; i++)
	{
		Oid			index;

		scan->rels[i] = catalog_open(CATALOG_FINISHED_0 + i, AccessShareLock,
									 &index);
		scan->next[i] = NULL;
		scan->is_open[i] = RelationGetNumberOfBlocks(scan->rels[i]) > 0;
		if (!scan->is_open[i])
			continue;
		row_scan_begin(&scan->scans[i], scan->rels[i], index, keys, 3);
		advance_scan(scan, i);
	}
	return true;
}

/* Go to the next row of a table that is not too old. */
static void
advance_scan(FinishedScan *scan, int i)
{
	do
	{
		CHECK_FOR_INTERRUPTS();
		scan->next[i] = row_scan_next(&scan->scans[i]);
		if (HeapTupleIsValid(scan->next[i]))
			read_finished(scan->rels[i], scan->next[i], &scan->rows[i]);
	} while (HeapTupleIsValid(scan->next[i]) &&
			 scan->rows[i].finished_at < scan->not_before);
}

/*
 * Get the next row, by ascending ids, valid until the following call.  Returns
 * false if there are no more.  Values that are in the TOAST table are fetched,
 * since that may be truncated when the scan has ended.
 */
static bool
next_finished(FinishedScan *scan, Finished *row)
{
	int			next = -1;

	if (scan->last >= 0)
		advance_scan(scan, scan->last);
	if (scan->whole != NULL)
		heap_freetuple(scan->whole);
	scan->whole = NULL;
	for (int i = 0; i < FINISHED_SEGMENTS; i++)
		if (HeapTupleIsValid(scan->next[i]) &&
			(next < 0 || scan->rows[i].id < scan->rows[next].id))
			next = i;
	scan->last = next;
	if (next < 0)
		return false;
	scan->whole = toast_flatten_tuple(scan->next[next],
									  RelationGetDescr(scan->rels[next]));
	read_finished(scan->rels[next], scan->whole, row);
	return true;
}

static void
end_finished_scan(FinishedScan *scan)
{
	for (int i = 0; i < FINISHED_SEGMENTS; i++)
	{
		if (scan->is_open[i])
			row_scan_end(&scan->scans[i]);
		table_close(scan->rels[i], AccessShareLock);
	}
}

/* Get the row of a message.  Returns false if it is not in the history. */
bool
finished_fetch(const Queue *queue, int64 id, Finished *row)
{
	FinishedScan scan;
	bool		found;

	if (!begin_finished_scan(&scan, queue, false, BTEqualStrategyNumber, id))
		return false;
	found = next_finished(&scan, row);
	end_finished_scan(&scan);
	return found;
}

/*
 * Call the callback for the finished messages of a queue with ids above the
 * marker, by id, at most limit; outcome: only those with this one, or all if
 * it is -1.
 */
void
finished_list(const Queue *queue, int64 marker, int limit, int outcome,
			  FinishedCallback callback, void *arg)
{
	FinishedScan scan;
	Finished	row;

	if (!begin_finished_scan(&scan, queue, false, BTGreaterStrategyNumber,
							 marker))
		return;
	while (limit > 0 && next_finished(&scan, &row))
		if (outcome < 0 || row.outcome == (FinishedOutcome) outcome)
		{
			callback(&row, arg);
			limit--;
		}
	end_finished_scan(&scan);
}

/* The latest first; of two at the same time, the later attempt */
static int
compare_finished_at(const void *a, const void *b)
{
	const Finished *x = a;
	const Finished *y = b;

	if (x->finished_at != y->finished_at)
		return x->finished_at > y->finished_at ? -1 : 1;
	return x->attempts > y->attempts ? -1 : x->attempts < y->attempts;
}

/*
 * Call the callback for the attempts of a queue that have failed before that
 * time, the latest first, at most limit.  Reads all of them that the history
 * has.
 */
void
finished_errors(const Queue *queue, TimestampTz before, int limit,
				FinishedCallback callback, void *arg)
{
	FinishedScan scan;
	Finished   *rows;
	int			n = 0;

	if (!begin_finished_scan(&scan, queue, true, BTGreaterStrategyNumber,
							 PG_INT64_MIN))
		return;
	rows = palloc(2 * limit * sizeof(Finished));
	while (next_finished(&scan, &rows[n]))
	{
		Datum	   *error = &rows[n].values[Anum_finished_error - 1];

		/* No function writes such a row without an error. */
		if (rows[n].isnull[Anum_finished_error - 1] ||
			rows[n].finished_at >= before)
			continue;
		*error = datumCopy(*error, false, -1);
		if (++n < 2 * limit)
			continue;
		qsort(rows, n, sizeof(Finished), compare_finished_at);
		for (; n > limit; n--)
			pfree(DatumGetPointer(rows[n - 1].values[Anum_finished_error - 1]));
	}
	qsort(rows, n, sizeof(Finished), compare_finished_at);
	for (int i = 0; i < Min(n, limit); i++)
		callback(&rows[i], arg);
	end_finished_scan(&scan);
}
