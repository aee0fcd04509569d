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
#include "utils/builtins.h"
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
 * When moving counts to the table takes long, the worker pauses for longer
 * than COUNTS_PAUSE, so that it spends at most 1/FLUSH_SHARE of its time on
 * it.
 */
#define FLUSH_SHARE			20

/*
 * Whether the transaction has set an error; a hint, as that may have been
 * rolled back
 */
static bool has_errors = false;

/* When the worker moves counts to the table again, by the monotonic clock */
static int64 next_flush = 0;

static void add_to_session(bool with_counts);
static void before_end(XactEvent event);
static void after_end(XactEvent event);
static bool maps_have_counts(void);
static void add_current(CounterRow *row);
static text *error_as_text(char *error);

/* No records: what the transaction has counted is in counts.c. */
static XactList callbacks = {
	.record_size = sizeof(XactRecord),
	.before_end = before_end,
	.end = after_end
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

/* Pass the errors to the session, and the counts if no map gets them. */
static void
add_to_session(bool with_counts)
{
	const CountRecord *record;

	for (int i = 0; (record = counts_record(i)) != NULL; i++)
	{
		if (with_counts)
			counters_session_add(record->extension, record->queue_id,
								 record->n);
		if (record->error != NULL)
			counters_session_set_error(record->extension, record->queue_id,
									   record->error, record->error_at);
	}
}

/* Callback before commit or prepare. */
static void
before_end(XactEvent event)
{
	bool		with_counts = !shmem_exists();

	if (has_errors || with_counts)
		add_to_session(with_counts);

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
after_end(XactEvent event)
{
	counters_session_end_xact(event != XACT_EVENT_ABORT);
	has_errors = false;
}

/* --- Moving counts from availability maps to the table --- */

/* Returns whether a map of this database has counts. */
static bool
maps_have_counts(void)
{
	uint32		from = 0;
	AvailabilityMap *map;

	while ((map = shmem_next_flagged(MAP_COUNTED, &from)) != NULL)
		if (map_database(map) == MyDatabaseId)
			return true;
	return false;
}

/* Returns whether it is time to move counts, and there are any. */
bool
counters_flush_is_due(void)
{
	return clock_monotonic() >= next_flush && maps_have_counts();
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

/*
 * The worker has moved the counts of all maps, and has started that at
 * "began", by the monotonic clock.
 */
void
counters_flush_done(int64 began)
{
	int64		now = clock_monotonic();

	next_flush = now + Max(COUNTS_PAUSE, FLUSH_SHARE * (now - began));
}

/* Have the worker wake up when the next flush is due, if there are counts. */
void
counters_schedule_flush(void)
{
	if (maps_have_counts())
		database_wake(GetCurrentTimestamp() +
					  Max(next_flush - clock_monotonic(), 0), false);
}

/* --- Reading --- */

/* Add what the current transaction has counted. */
static void
add_current(CounterRow *row)
{
	const CountRecord *record;

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
}

/*
 * Returns an error as text.  If it is not valid in the encoding of the
 * database, a question mark replaces each byte that is not ASCII.
 */
static text *
error_as_text(char *error)
{
	if (!pg_verify_mbstr(GetDatabaseEncoding(), error, strlen(error), true))
		for (char *c = error; *c != '\0'; c++)
			if (IS_HIGHBIT_SET(*c))
				*c = '?';
	return cstring_to_text(error);
}

/* Read the counters of a queue, with those of the current transaction. */
void
counters_read(int32 queue_id, CounterValues *values)
{
	CounterRow	row = {0};

	row.extension = catalog_queue_oid();
	row.queue_id = queue_id;
	row.error_at = DT_NOBEGIN;
	counters_table_read(&row);
	counters_session_read(&row);
	add_current(&row);

	memcpy(values->n, row.n, sizeof(values->n));
	values->since = row.since;
	values->last_error = row.error == NULL ? NULL : error_as_text(row.error);
	values->last_error_at = row.error_at;
}
