/*-------------------------------------------------------------------------
 *
 * prepared_counts.c
 *	  Changes of depths by prepared transactions.
 *
 * NOTES
 *	  No callback runs when a prepared transaction is committed or rolled back.
 *	  So it writes the changes of depths that it has counted to
 *	  queue_data.prepared_count as it is prepared.  The rows become visible
 *	  with its other changes.  The worker takes those that it can see, about
 *	  once a second, and counts in their place.
 *
 * src/storage/prepared_counts.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "storage/bufmgr.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "catalog/tables.h"
#include "map/shmem_maps.h"
#include "shmem/database_state.h"
#include "shmem/depth_state.h"
#include "storage/prepared_counts.h"

/* A row; all columns have a fixed width. */
typedef struct PreparedCount
{
	int32		queue_id;
	int64		depths[DEPTHS];
	int64		first;			/* ids of these messages */
	int64		last;
} PreparedCount;

static void count_row(const PreparedCount *row, const DepthCursor *passed);

/* Write a record of the transaction that is about to be prepared. */
void
prepared_counts_write(const CountRecord *record)
{
	Relation	rel = catalog_open(CATALOG_PREPARED_COUNT, RowExclusiveLock,
								   NULL);
	Datum		values[Natts_prepared_count] = {0};
	bool		isnull[Natts_prepared_count] = {false};
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel), values, isnull);
	PreparedCount *row = (PreparedCount *) GETSTRUCT(tuple);

	row->queue_id = record->queue_id;
	memcpy(row->depths, record->depths, sizeof(row->depths));
	row->first = record->first;
	row->last = record->last;
	simple_heap_insert(rel, tuple);
	heap_freetuple(tuple);
	table_close(rel, NoLock);
}

/*
 * For the worker: delete all rows that the snapshot shows, and count what
 * they say.  With "passed", this is the snapshot of a step of a recount that
 * has come so far before, so it shows the messages from there on.
 */
void
prepared_counts_take(Snapshot snapshot, const DepthCursor *passed)
{
	Relation	rel = catalog_open(CATALOG_PREPARED_COUNT, RowExclusiveLock,
								   NULL);
	TableScanDesc scan = table_beginscan_strat(rel, snapshot, 0, NULL, true,
											   false);
	HeapTuple	tuple;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		/* A malformed one is deleted, too, or we would meet it forever. */
		if (row_is_valid(rel, tuple))
			count_row((PreparedCount *) GETSTRUCT(tuple), passed);
		simple_heap_delete(rel, &tuple->t_self);
	}
	table_endscan(scan);
	table_close(rel, NoLock);
}

/* Count what a row says. */
static void
count_row(const PreparedCount *row, const DepthCursor *passed)
{
	AvailabilityMap *map;

	/* The recount counts the messages itself, or only some of them. */
	if (passed != NULL &&
		!depth_cursor_is_behind(passed, row->queue_id, row->last))
	{
		if (depth_cursor_is_behind(passed, row->queue_id, row->first))
			depth_lose_mine();
		return;
	}

	/*
	 * Make a map if the queue has none, as one that has just come from
	 * another server, or that had no messages: without a map the depths would
	 * be lost after the commit.  We visit the queue then, to find out what is
	 * free.
	 */
	map = shmem_get_map(row->queue_id);
	if (map != NULL)
	{
		database_wake(map_wake_at(map), false);
		LWLockRelease(&map->lock);
	}
	counts_add_depths(row->queue_id, row->first, row->last, row->depths);
}
