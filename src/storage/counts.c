/*-------------------------------------------------------------------------
 *
 * counts.c
 *	  What the open transaction counts.
 *
 * NOTES
 *	  A transaction counts two kinds of things, for each queue:
 *
 *	  1. Events: messages that were pushed, claimed, completed and so on.  The
 *	  functions that do that count them.
 *
 *	  2. Changes of the depths: how many messages there are that are ready,
 *	  claimed and delayed.  message.c counts these where it writes a row, by
 *	  the state of the row before and after:
 *
 *		ready: without a claim, or marked: the end of its claim was counted
 *			(claim_ends.c);
 *		claimed: with a claim, also for seconds after that has ended;
 *		delayed: in a table of delayed messages, also for a moment after it is
 *			due.
 *
 *	  No clock is part of that, so each row always counts for the same depth,
 *	  until it is changed or marked.  That a claim has ended is noticed by the
 *	  worker's sweep, and so are delays and lifetimes that are over: the worker
 *	  moves or removes these messages.
 *
 *	  What was counted is added to the availability map of the queue when the
 *	  transaction has committed.  The worker moves events from there to the
 *	  table of counters (counters.c).  Depths stay in the map; depth_state.c
 *	  says to what they are added, and what loses them.  A queue without a map
 *	  has no messages, or the depths are not known.
 *
 *	  The events of a transaction that is prepared count at once, as if it had
 *	  committed.  But depths have to be right, and it may be rolled back yet.
 *	  So it writes their changes to a table, and the worker counts them when it
 *	  can see the rows (prepared_counts.c).
 *
 * src/storage/counts.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/extension.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/relations.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "shmem/depth_state.h"
#include "shmem/shmem.h"
#include "storage/counts.h"
#include "storage/prepared_counts.h"

/* How many of the last records are searched for one to add to */
#define LOOK_BACK	8

static CountRecord *count_record(int32 queue_id, uint64 generation,
								 bool counted);
static CountRecord *depth_record(int32 queue_id, int64 first, int64 last);
static bool all_zero(const int64 *n, int count);
static void add_depths_to_map(AvailabilityMap *map, uint64 generation,
							  const int64 *depths);
static bool add_record_to_map(const CountRecord *record, AvailabilityMap *map,
							  uint64 generation, bool with_depths);
static void add_depths_now(AvailabilityMap *map, uint64 generation,
						   const int64 *depths);
static AvailabilityMap *find_counted_map(const CountRecord *record,
										 bool with_depths);
static bool adds_depths(const CountRecord *record, XactEvent event,
						uint64 *generation);
static void counts_before_end(XactEvent event);
static void counts_after_end(XactEvent event);

static XactList records = {
	.record_size = sizeof(CountRecord),
	.before_end = counts_before_end,
	.end = counts_after_end
};

void
counts_init(void)
{
	xact_register(&records);
}

/* --- Counting in a transaction --- */

/*
 * Returns a record of the current subtransaction for a queue: of depths that
 * were changed in that generation, and that a recount had passed or not; or
 * with generation 0 any one, for events.
 */
static CountRecord *
count_record(int32 queue_id, uint64 generation, bool counted)
{
	int			level = GetCurrentTransactionNestLevel();
	Oid			extension = catalog_queue_oid();
	CountRecord *record;

	for (int i = records.n - 1; i >= 0 && i >= records.n - LOOK_BACK; i--)
	{
		record = xact_record(&records, i);
		if (record->queue_id == queue_id &&
			record->xact.nest_level == level &&
			record->extension == extension &&
			(generation == 0 || record->first > record->last ||
			 (record->generation == generation &&
			  record->counted == counted)))
			return record;
	}
	record = xact_add(&records);
	record->extension = extension;
	record->queue_id = queue_id;
	record->first = PG_INT64_MAX;
	record->last = PG_INT64_MIN;
	return record;
}

/*
 * Returns the record for a change of the depths of a queue, by messages with
 * ids from first to last.
 */
static CountRecord *
depth_record(int32 queue_id, int64 first, int64 last)
{
	uint64		generation;
	bool		counted = depth_has_counted(queue_id, last, &generation);
	CountRecord *record = count_record(queue_id, generation, counted);

	record->generation = generation;
	record->counted = counted;
	record->first = Min(record->first, first);
	record->last = Max(record->last, last);
	return record;
}

/* Count n events of a queue, if the subtransaction commits. */
void
counts_add(int32 queue_id, JobCounter counter, int64 n)
{
	if (n != 0)
		count_record(queue_id, 0, false)->n[counter] += n;
}

/*
 * Count n messages more (or fewer, if n is negative) for a depth, which have
 * ids from first to last.
 */
void
counts_add_rows(int32 queue_id, int64 first, int64 last, QueueDepth depth,
				int n)
{
	depth_record(queue_id, first, last)->depths[depth] += n;
}

/* Count a message for another depth than before. */
void
counts_move_row(int32 queue_id, int64 id, QueueDepth from, QueueDepth to)
{
	CountRecord *record = depth_record(queue_id, id, id);

	record->depths[from]--;
	record->depths[to]++;
}

/* Count these changes of depths by messages with ids from first to last. */
void
counts_add_depths(int32 queue_id, int64 first, int64 last,
				  const int64 *depths)
{
	CountRecord *record = depth_record(queue_id, first, last);

	for (int i = 0; i < DEPTHS; i++)
		record->depths[i] += depths[i];
}

/* Set the last error of a queue, if the subtransaction commits. */
void
counts_set_error(int32 queue_id, const char *error, int length)
{
	CountRecord *record = count_record(queue_id, 0, false);

	record->error = MemoryContextAlloc(TopTransactionContext, length + 1);
	memcpy(record->error, error, length);
	record->error[length] = '\0';
	record->error_at = GetCurrentTimestamp();
}

/* Returns record i of this transaction, or NULL if there are not so many. */
const CountRecord *
counts_record(int i)
{
	return i < records.n ? xact_record(&records, i) : NULL;
}

static bool
all_zero(const int64 *n, int count)
{
	for (int i = 0; i < count; i++)
		if (n[i] != 0)
			return false;
	return true;
}

/* --- Adding to availability maps --- */

/*
 * Add depths, which were counted in that generation, to a map, which is
 * locked.
 */
static void
add_depths_to_map(AvailabilityMap *map, uint64 generation, const int64 *depths)
{
	Assert(map_is_locked(map));

	/* A later generation has begun, whose recount counts our changes. */
	if (map->depth_generation > generation)
		return;
	if (map->depth_generation < generation)
	{
		map->depth_generation = generation;
		memset(map->depths, 0, sizeof(map->depths));
	}
	for (int i = 0; i < DEPTHS; i++)
		map->depths[i] += depths[i];
}

/*
 * Add a record to the map of its queue, which the caller has locked, and
 * unlock it; "map" is NULL if there is none.  Returns whether the worker has
 * more to do now than before.
 */
static bool
add_record_to_map(const CountRecord *record, AvailabilityMap *map,
				  uint64 generation, bool with_depths)
{
	bool		wake = false;

	/* It found no room.  The worker has to visit the queue. */
	if (map == NULL)
	{
		if (with_depths)
			database_map_missing(database_mine(), DT_NOBEGIN);
		return with_depths;
	}
	for (int i = 0; i < JOB_COUNTERS; i++)
		map->counts[i] += record->n[i];
	if (!shmem_has_flag(map, MAP_COUNTED) &&
		!all_zero(record->n, JOB_COUNTERS))
	{
		shmem_set_flag(map, MAP_COUNTED);
		wake = true;
	}
	if (with_depths)
		add_depths_to_map(map, generation, record->depths);
	LWLockRelease(&map->lock);
	return wake;
}

/*
 * Add to a map, which is locked, what is so whether or not the transaction
 * commits; "map" is NULL if there is none.
 */
static void
add_depths_now(AvailabilityMap *map, uint64 generation, const int64 *depths)
{
	/* What we have counted would be missing in the depths. */
	if (map == NULL)
	{
		depth_set_incomplete();
		return;
	}
	add_depths_to_map(map, generation, depths);
	LWLockRelease(&map->lock);
}

/* The end of a message's claim was counted: it is ready now. */
void
counts_end_claim(int32 queue_id, uint64 generation)
{
	const int64 depths[DEPTHS] = {[DEPTH_READY] = 1,[DEPTH_CLAIMED] = -1};

	add_depths_now(shmem_find_map(catalog_queue_oid(), queue_id), generation,
				   depths);
}

/*
 * For the worker: a recount has found so many messages in a queue, or in a
 * part of it.
 */
void
counts_set_depths(int32 queue_id, const int64 *depths)
{
	add_depths_now(shmem_get_map(queue_id), depth_generation(), depths);
}

/* --- Reading --- */

/*
 * Get the depths of a queue, with what the current transaction has changed.
 * The caller checks that they are known (depth_state.c).
 */
void
counts_read_depths(int32 queue_id, int64 *depths)
{
	Oid			extension = catalog_queue_oid();
	AvailabilityMap *map = shmem_find_map(extension, queue_id);

	memset(depths, 0, DEPTHS * sizeof(int64));
	if (map != NULL)
	{
		/*
		 * With an earlier generation in the map, the recount has found
		 * nothing, nor was anything added since.
		 */
		if (map->depth_generation == depth_generation())
			memcpy(depths, map->depths, sizeof(map->depths));
		LWLockRelease(&map->lock);
	}
	for (int i = 0; i < records.n; i++)
	{
		const CountRecord *record = xact_record(&records, i);

		if (record->queue_id == queue_id && record->extension == extension)
			for (int j = 0; j < DEPTHS; j++)
				depths[j] += record->depths[j];
	}

	/*
	 * A depth is below 0 for a moment if a transaction has added that it has
	 * changed a message, and the one that has inserted the message has
	 * committed, but not added it yet.
	 */
	for (int i = 0; i < DEPTHS; i++)
		depths[i] = Max(depths[i], 0);
}

/* --- The end of a transaction --- */

/* Callback before commit or prepare. */
static void
counts_before_end(XactEvent event)
{
	if (records.n == 0)
		return;

	if (event == XACT_EVENT_PRE_COMMIT)
	{
		depth_before_commit();
		return;
	}

	/* If the transaction has dropped the extension, there is no table. */
	if (!OidIsValid(get_extension_oid("queue", true)))
		return;
	for (int i = 0; i < records.n; i++)
	{
		const CountRecord *record = xact_record(&records, i);

		if (record->first <= record->last)
			prepared_counts_write(record);
	}
}

/*
 * Returns the map to which a record is added, locked; NULL if there is none.
 */
static AvailabilityMap *
find_counted_map(const CountRecord *record, bool with_depths)
{
	AvailabilityMap *map = shmem_find_map(record->extension,
										  record->queue_id);

	if (map != NULL || !with_depths)
		return map;

	/*
	 * A map that another session makes is taken for that of a queue without
	 * messages, until it can see this.  If it could not, we find the map now.
	 */
	depth_set_incomplete();
	return shmem_find_map(record->extension, record->queue_id);
}

/*
 * The transaction has ended.  Returns whether the depths of a record have to
 * be added, and sets *generation to the one to which.
 */
static bool
adds_depths(const CountRecord *record, XactEvent event, uint64 *generation)
{
	*generation = record->generation;

	/* A recount may count only one of two changes that make up for another. */
	if (all_zero(record->depths, DEPTHS) &&
		(record->counted || record->first > record->last))
		return false;

	/* A prepared transaction has written its depths to a table. */
	return event == XACT_EVENT_COMMIT &&
		depth_adds_change(generation, record->counted, record->queue_id,
						  record->first, record->last);
}

/*
 * Callback after commit, prepare or abort: add all records to the maps of
 * their queues, and wake the worker.
 */
static void
counts_after_end(XactEvent event)
{
	bool		wake = false;

	if (records.n == 0 || event == XACT_EVENT_ABORT)
		return;
	for (int i = 0; i < records.n; i++)
	{
		const CountRecord *record = xact_record(&records, i);
		uint64		generation;
		bool		depths = adds_depths(record, event, &generation);

		if (depths || !all_zero(record->n, JOB_COUNTERS))
			wake |= add_record_to_map(record, find_counted_map(record, depths),
									  generation, depths);
	}
	if (wake)
		database_wake(GetCurrentTimestamp() + COUNTS_PAUSE, false);
}
