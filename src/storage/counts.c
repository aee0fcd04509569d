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
 *		ready: without a claim, or marked: the end of its claim was counted;
 *		claimed: with a claim, also for seconds after that has ended;
 *		delayed: in a table of delayed messages, also for a moment after it is
 *			due.
 *
 *	  No clock is part of that, so each row always counts for the same depth,
 *	  until it is changed or marked.  That a claim has ended is noticed by the
 *	  worker's sweep (counts_end_claim), and so are delays and lifetimes that
 *	  are over: the worker moves or removes these messages.
 *
 *	  What was counted is added to the availability map of the queue when the
 *	  transaction has committed.  The worker moves events from there to the
 *	  table of counters (counters.c), and so the last error of a queue, which is
 *	  left in error_state.c.  Depths stay in the map; depth_state.c says to what
 *	  they are added, and what loses them.  A queue without a map has no
 *	  messages, or the depths are not known.
 *
 *	  The events of a transaction that is prepared count at once, as if it had
 *	  committed.  But depths have to be right, and it may be rolled back yet.
 *	  So their changes are left to the worker, which adds them after the commit
 *	  (prepared.c), and so are those of which only the worker knows whether a
 *	  recount has counted them.
 *
 * src/storage/counts.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/relations.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "shmem/depth_state.h"
#include "shmem/error_state.h"
#include "shmem/shmem.h"
#include "storage/counts.h"
#include "storage/message_row.h"
#include "storage/prepared.h"
#include "storage/row.h"

/* How many of the last records are searched for one to add to */
#define LOOK_BACK	8

static CountRecord *count_record(int32 queue_id, const DepthChange *change);
static bool all_zero(const int64 *n, int count);
static void add_depths_to_map(AvailabilityMap *map, uint64 generation,
							  const int64 *depths);
static bool add_record_to_map(const CountRecord *record, bool with_depths);
static void add_depths_now(AvailabilityMap *map, const int64 *depths);
static void counts_after_end(XactEvent event);

XactList	count_records = {
	.record_size = sizeof(CountRecord),
	.end = counts_after_end
};

/* --- Counting in a transaction --- */

/*
 * Returns a record of the current subtransaction for a queue: for changes of
 * rows at that position, which the recount of that generation had passed (0:
 * none had); or with NULL any one, for events.
 */
static CountRecord *
count_record(int32 queue_id, const DepthChange *change)
{
	int			level = GetCurrentTransactionNestLevel();
	Oid			extension = catalog_queue_oid();
	CountRecord *record;

	for (int i = count_records.n - 1;
		 i >= Max(0, count_records.n - LOOK_BACK); i--)
	{
		record = xact_record(&count_records, i);
		if (record->queue_id == queue_id &&
			record->xact.nest_level == level &&
			record->extension == extension &&
			(change == NULL || !record->depths.is_used ||
			 (record->depths.position == change->position &&
			  record->depths.counted_in == change->counted_in)))
			return record;
	}

	/* The end of the transaction needs the database's entry. */
	database_join();
	record = xact_add(&count_records);
	record->extension = extension;
	record->queue_id = queue_id;
	return record;
}

/* Count n events of a queue, if the subtransaction commits. */
void
counts_add(int32 queue_id, JobCounter counter, int64 n)
{
	if (n != 0)
		count_record(queue_id, NULL)->n[counter] += n;
}

/*
 * Count n messages more (or fewer, if n is negative) for a depth, whose rows
 * are at that position.
 */
void
counts_add_rows(int32 queue_id, uint64 position, QueueDepth depth, int n)
{
	DepthChange change = {
		.is_used = true,
		.position = position,
		.counted_in = depth_counted_in(position)
	};
	DepthChange *depths = &count_record(queue_id, &change)->depths;

	if (!depths->is_used)
		*depths = change;
	depths->n[depth] += n;
}

/* Set the last error of a queue, if the subtransaction commits. */
void
counts_set_error(int32 queue_id, const char *error)
{
	CountRecord *record = count_record(queue_id, NULL);
	int			length = pg_mbcliplen(error, strlen(error),
									  QUEUE_ERROR_LENGTH);

	record->error = MemoryContextAlloc(TopTransactionContext, length + 1);
	memcpy(record->error, error, length);
	record->error[length] = '\0';
	record->error_at = GetCurrentTimestamp();
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
 * Add a record to the map of its queue.  Returns whether the worker has more to
 * do now than before.
 */
static bool
add_record_to_map(const CountRecord *record, bool with_depths)
{
	AvailabilityMap *map = shmem_find_map(record->extension,
										  record->queue_id);
	bool		wake = false;

	/*
	 * A map that another session makes is taken for that of a queue without
	 * messages, until it can see this.  If it could not, we find the map now.
	 */
	if (map == NULL && with_depths)
	{
		depth_set_incomplete();
		map = shmem_find_map(record->extension, record->queue_id);
	}

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
		add_depths_to_map(map, record->depths.counted_in, record->depths.n);
	LWLockRelease(&map->lock);
	return wake;
}

/*
 * For the worker: add to a map, which is locked, what is so whether or not the
 * transaction commits; "map" is NULL if there is none.
 */
static void
add_depths_now(AvailabilityMap *map, const int64 *depths)
{
	/* What we have counted would be missing in the depths. */
	if (map == NULL)
	{
		depth_set_incomplete();
		return;
	}
	add_depths_to_map(map, depth_generation(), depths);
	LWLockRelease(&map->lock);
}

/*
 * For the worker: a recount has found so many messages in a queue, or in a
 * part of it.
 */
void
counts_set_depths(int32 queue_id, const int64 *depths)
{
	add_depths_now(shmem_get_map(queue_id), depths);
}

/* --- Claims that run out --- */

/*
 * If the claim of a message has ended, count it as ready, unless that was done.
 * Nothing writes a message as its claim ends, so the worker's sweep does this,
 * which meets it because its range is due then.
 *
 * The row is marked, or it would be counted again.  The mark is set in place,
 * under the lock of the page: it is no new version, and no claim meets a lock.
 * It takes effect at once, and so does the count, whatever becomes of the
 * transaction.  It is set only if no other transaction has locked the row or is
 * changing it; one that changes it later finds the mark (depth_of_old_row in
 * message.c).  A snapshot of the session has kept the row in its place since it
 * was found.
 *
 * Returns false if that has to be done later, because another transaction has
 * locked the row or is changing it, or this is not the worker.
 */
bool
counts_end_claim(MessageTable *table, HeapTuple tuple,
				 const MessageForm *form, TimestampTz now)
{
	const int64 depths[DEPTHS] = {[DEPTH_READY] = 1,[DEPTH_CLAIMED] = -1};
	bool		is_first = false;
	bool		marked;
	uint64		position;

	if (form->claim_token == 0 || form->end_counted ||
		form->claimed_until > now || form->is_delayed)
		return true;
	if (!depth_publish_end_of_claim(form->claimed_until))
		return false;
	marked = row_act_in_place(table->heap, &tuple->t_self, true,
							  message_row_count_end, &is_first);

	/* Otherwise a recount will meet the mark. */
	position = depth_position(table->segment,
							  ItemPointerGetBlockNumber(&tuple->t_self));
	if (is_first && depth_counted_in(position) != 0)
		add_depths_now(shmem_find_map(catalog_queue_oid(), form->queue_id),
					   depths);
	return marked;
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
	for (int i = 0; i < count_records.n; i++)
	{
		const CountRecord *record = xact_record(&count_records, i);

		if (record->queue_id == queue_id && record->extension == extension)
			for (int j = 0; j < DEPTHS; j++)
				depths[j] += record->depths.n[j];
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

/*
 * Callback after commit, prepare or abort: add all records to the maps of
 * their queues, leave errors for the worker, and wake it.
 */
static void
counts_after_end(XactEvent event)
{
	bool		wake = false;

	if (count_records.n == 0 || event == XACT_EVENT_ABORT)
		return;
	for (int i = 0; i < count_records.n; i++)
	{
		const CountRecord *record = xact_record(&count_records, i);
		bool		with_depths = false;

		/* A prepared transaction has left its changes to the worker. */
		if (event == XACT_EVENT_COMMIT && record->depths.is_used)
			switch (depth_fate(&record->depths))
			{
				case DEPTH_ADD:
					with_depths = !all_zero(record->depths.n, DEPTHS);
					break;
				case DEPTH_SHOWN:
					break;
				case DEPTH_ASK_WORKER:
					prepared_add_depths(record);
					wake = true;
					break;
			}
		if (with_depths || !all_zero(record->n, JOB_COUNTERS))
			wake |= add_record_to_map(record, with_depths);
		if (record->error != NULL)
		{
			error_state_set(record->extension, record->queue_id,
							record->error, record->error_at);
			wake = true;
		}
	}
	if (wake)
		database_wake(GetCurrentTimestamp() + COUNTS_PAUSE, false);
}

/* --- Transactions that have ended --- */

/*
 * For the worker: add what a transaction has changed that has committed, and
 * that was left to the worker.
 */
void
counts_add_ended(const CountRecord *record, TransactionId xid)
{
	AvailabilityMap *map;

	/* The extension was dropped since, and created again. */
	if (record->extension != catalog_queue_oid())
		return;
	if (!depth_adds_ended(&record->depths, xid))
		return;

	/*
	 * Make a map if the queue has none, as one that has just come from
	 * another server, or that had no messages: without a map the depths would
	 * be lost.  We visit the queue then, to find out what is free.
	 */
	map = shmem_get_map(record->queue_id);
	if (map != NULL)
		database_wake(map_wake_at(map), false);
	add_depths_now(map, record->depths.n);
}
