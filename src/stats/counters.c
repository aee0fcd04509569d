/*-------------------------------------------------------------------------
 *
 * counters.c
 *	  Counts of what happens to messages, and each queue's last error.
 *
 * NOTES
 *	  queue_data.job_counter has one row for each queue that something was
 *	  counted of: a number for each JobCounter, and the last error that
 *	  message_retry() or a failed handler reported.  job_stats() shows it, and
 *	  queue_status.
 *
 *	  A transaction counts in its own memory (counts.c).  When it has committed,
 *	  or is prepared, the counts are added to the queue's availability map
 *	  (protected by the map's lock), and an error to error_state.c.  The worker
 *	  of the database moves both to the table every COUNTS_PAUSE, and once more
 *	  when it shuts down.  What was not moved yet is lost in a crash, and when a
 *	  standby is promoted.
 *
 *	  How a row is changed without leaving dead versions, and why a reader sees
 *	  each event exactly once, is described in counters_table.c.
 *
 * src/stats/counters.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "map/availability.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "shmem/error_state.h"
#include "shmem/shmem.h"
#include "stats/counters.h"
#include "stats/counters_table.h"
#include "storage/counts.h"
#include "util/xact.h"

/*
 * Whether the transaction has set an error; a hint, as that may have been
 * rolled back
 */
static bool has_errors = false;

static void counters_after_end(XactEvent event);

/* No records: what the transaction has counted is in counts.c. */
static XactList callbacks = {
	.record_size = sizeof(XactRecord),
	.end = counters_after_end
};

/* After counts_init() */
void
counters_init(void)
{
	xact_register(&callbacks);
}

/* Set the last error of a queue, if the subtransaction commits. */
void
counters_set_error(int32 queue_id, const char *error)
{
	counts_set_error(queue_id, error,
					 pg_mbcliplen(error, strlen(error),
								  QUEUE_ERROR_LENGTH));
	has_errors = true;
}

/* Callback after commit, prepare or abort. */
static void
counters_after_end(XactEvent event)
{
	const CountRecord *record;

	for (int i = 0; has_errors && event != XACT_EVENT_ABORT &&
		 (record = counts_record(i)) != NULL; i++)
		if (record->error != NULL)
		{
			error_state_set(record->extension, record->queue_id,
							record->error, record->error_at);
			database_wake(GetCurrentTimestamp() + COUNTS_PAUSE, false);
		}
	has_errors = false;
}

/* --- Moving counts and errors to the table --- */

/* Returns whether there are counts or errors of this database. */
bool
counters_are_pending(void)
{
	uint32		from = 0;
	int			first_error = 0;
	AvailabilityMap *map;
	QueueError	error;

	if (error_state_next(&first_error, &error))
		return true;
	while ((map = shmem_next_flagged(MAP_COUNTED, &from)) != NULL)
		if (map_database(map) == MyDatabaseId)
			return true;
	return false;
}

/*
 * Move the counts of up to max maps of this database to the table, of maps
 * whose number is not below *from, which is advanced, and add the messages
 * that have expired to *expired.  Returns whether that was the last map.
 */
bool
counters_flush(uint32 *from, int max, int64 *expired)
{
	Oid			extension = catalog_queue_oid();
	AvailabilityMap *map;

	for (int i = 0; i < max; i++)
	{
		CounterAddition add = {0};

		map = shmem_next_flagged(MAP_COUNTED, from);
		if (map == NULL)
			return true;
		if (map_database(map) != MyDatabaseId ||
			map_extension(map) != extension)
			continue;
		shmem_lock(&map->lock, LW_EXCLUSIVE);
		add.extension = extension;
		add.queue_id = map_queue_id(map);
		LWLockRelease(&map->lock);
		if (counters_table_add(&add))
			*expired += add.n[JOB_EXPIRED];
	}
	return false;
}

/*
 * Move the errors of this database to the table, and the counts of their
 * queues with them.
 */
void
counters_flush_errors(int64 *expired)
{
	Oid			extension = catalog_queue_oid();
	QueueError	error;
	int			from = 0;

	while (error_state_next(&from, &error))
	{
		CounterAddition add = {
			.extension = error.extension,
			.queue_id = error.queue_id,
			.error = error.message,
			.error_at = error.error_at
		};

		/* Errors of an extension that was dropped are discarded. */
		if (error.extension == extension && !counters_table_add(&add))
			continue;
		*expired += add.n[JOB_EXPIRED];
		error_state_remove(&error);
	}
}

/* --- Reading --- */

/*
 * Read the counters of a queue, with those of the current transaction.  If the
 * error is not valid in the encoding of the database, a question mark replaces
 * each byte that is not ASCII.
 */
void
counters_read(int32 queue_id, CounterRow *row)
{
	const CountRecord *record;
	QueueError	error;

	memset(row, 0, sizeof(CounterRow));
	row->extension = catalog_queue_oid();
	row->queue_id = queue_id;
	row->error_at = DT_NOBEGIN;

	/*
	 * Before the row, since an error stays here until it is in the row for
	 * good.
	 */
	if (error_state_get(row->extension, queue_id, &error))
	{
		row->error = error.message;
		row->error_at = error.error_at;
	}
	counters_table_read(row);
	for (int i = 0; (record = counts_record(i)) != NULL; i++)
	{
		if (record->queue_id != row->queue_id ||
			record->extension != row->extension)
			continue;
		for (int j = 0; j < JOB_COUNTERS; j++)
			row->n[j] += record->n[j];
		if (record->error != NULL)
		{
			row->error = record->error;
			row->error_at = record->error_at;
		}
	}
	if (row->error == NULL)
		return;

	/* The original is to be written as it is. */
	row->error = pstrdup(row->error);
	if (!pg_verifymbstr(row->error, strlen(row->error), true))
		for (char *c = row->error; *c != '\0'; c++)
			if (IS_HIGHBIT_SET(*c))
				*c = '?';
}

/*
 * Returns the ids of the queues for which counters_read() may find an error,
 * in ascending order.
 */
List *
counters_with_errors(void)
{
	const CountRecord *record;
	List	   *ids = NIL;
	QueueError	error;
	int			from = 0;

	/* Before the rows, as in counters_read() */
	while (error_state_next(&from, &error))
		ids = lappend_int(ids, error.queue_id);
	ids = list_concat(ids, counters_table_with_errors());
	for (int i = 0; (record = counts_record(i)) != NULL; i++)
		if (record->error != NULL)
			ids = lappend_int(ids, record->queue_id);
	list_sort(ids, list_int_cmp);
	return ids;
}
