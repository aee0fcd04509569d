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
 *	  A transaction counts in its own memory (counts.c).  When it commits or is
 *	  prepared, its counts become valid.  There are two ways from there to the
 *	  row:
 *
 *	  1. With shared memory, the counts are added to the queue's availability
 *		 map (protected by the map's lock) after the transaction has ended.
 *		 The worker of the database moves the counts of all maps to the table
 *		 every COUNTS_PAUSE, and once more when it shuts down.  Counts that
 *		 were not moved yet are lost in a crash, and when a standby is
 *		 promoted.
 *
 *	  2. Without shared memory, the session keeps the counts, and writes them
 *		 to the table in one of its next commits, or when it exits.  Until then
 *		 only this session sees them.  See counters_session.c.
 *
 *	  An error always takes the second way, in the same commit: a map has no
 *	  room for its text.
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
#include "shmem/shmem.h"
#include "stats/counters.h"
#include "stats/counters_session.h"
#include "stats/counters_table.h"
#include "storage/counts.h"
#include "util/clock.h"
#include "util/xact.h"

/*
 * Whether the transaction has set an error; a hint, as that may have been
 * rolled back
 */
static bool has_errors = false;

static void counters_before_end(XactEvent event);
static void counters_after_end(XactEvent event);

/* No records: what the transaction has counted is in counts.c. */
static XactList callbacks = {
	.record_size = sizeof(XactRecord),
	.before_end = counters_before_end,
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
								  COUNTER_ERROR_LENGTH));
	has_errors = true;
}

/* --- The end of a transaction --- */

/* Callback before commit or prepare. */
static void
counters_before_end(XactEvent event)
{
	bool		with_counts = !shmem_exists();
	const CountRecord *record;

	/* Pass the errors to the session, and the counts if no map gets them. */
	for (int i = 0; (has_errors || with_counts) &&
		 (record = counts_record(i)) != NULL; i++)
	{
		if (with_counts)
			counters_session_add(record->extension, record->queue_id,
								 record->n);
		if (record->error != NULL)
			counters_session_set_error(record->extension, record->queue_id,
									   record->error, record->error_at);
	}

	/*
	 * The session writes to the table only in a transaction that counted
	 * something, so that others stay read-only.  A prepared transaction would
	 * keep the row locked, and serializable ones would conflict.
	 */
	if (counts_record(0) != NULL && event != XACT_EVENT_PRE_PREPARE &&
		!IsolationIsSerializable())
		counters_session_write(has_errors);
}

/* Callback after commit, prepare or abort. */
static void
counters_after_end(XactEvent event)
{
	counters_session_end_xact(event != XACT_EVENT_ABORT);
	has_errors = false;
}

/* --- Moving counts from availability maps to the table --- */

/* Returns whether a map of this database has counts. */
bool
counters_are_in_maps(void)
{
	uint32		from = 0;
	AvailabilityMap *map;

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
		LWLockAcquire(&map->lock, LW_EXCLUSIVE);
		add.extension = extension;
		add.queue_id = map_queue_id(map);
		LWLockRelease(&map->lock);
		add.from_map = true;
		if (counters_table_add(&add) == COUNTERS_WRITTEN)
			*expired += add.n[JOB_EXPIRED];
	}
	return false;
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

	memset(row, 0, sizeof(CounterRow));
	row->extension = catalog_queue_oid();
	row->queue_id = queue_id;
	row->error_at = DT_NOBEGIN;
	counters_table_read(row);
	counters_session_read(row);
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
