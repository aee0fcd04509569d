/*-------------------------------------------------------------------------
 *
 * segment_recycle.c
 *	  Turning the ring: the next segment takes new messages, and one that holds
 *	  none is truncated.
 *
 * NOTES
 *	  What was consumed leaves dead rows and index entries, which vacuum cannot
 *	  remove while any transaction in the cluster may still see them.  But a
 *	  table in which no message lives can be truncated whatever old snapshots
 *	  there are, and then costs nothing.  So the worker of the database
 *
 *	  1.  closes the active segment when enough was written to it, and makes a
 *	  free one active;
 *
 *	  2.  looks at closed segments in which messages were deleted, and
 *	  truncates those that hold none;
 *
 *	  3.  when too many segments are in use, moves what is left in one that is
 *	  nearly empty (dead letters, messages that nobody reads, long claims) to
 *	  the active one, under the same ids and claims.  A segment full of waiting
 *	  messages stays as it is.
 *
 *	  A segment is truncated when a new snapshot shows no row in it that was
 *	  taken under an AccessExclusiveLock: then whoever wrote to it has ended,
 *	  so nobody can make a row appear.  The lock is only taken if that takes no
 *	  waiting, and the look under it is given up when somebody waits for us.
 *	  Before, there is a look without it, which begins where the last one
 *	  found messages, and ends when it has found many.  What such looks may
 *	  take is bounded to a small part of the time.
 *
 *	  Nothing but space depends on all this.  When a lock is not to be had, it
 *	  is tried again later; when no segment is free, the active one grows.
 *
 *	  A truncation is not MVCC: a transaction with an older snapshot sees the
 *	  segment empty.  Our functions read with the latest.  A dump does not, so
 *	  nothing is truncated while a pg_dump is connected whose role may read
 *	  the tables; and if one of another name runs, it fails: each truncation
 *	  updates a row of queue_data.segment, and the filter of the dump compares
 *	  what its snapshot shows of that with the latest (queue_segment_is_whole).
 *
 * src/storage/segment_recycle.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "commands/tablecmds.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "shmem/database_state.h"
#include "shmem/segment_state.h"
#include "storage/message.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "storage/segment_recycle.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/settings.h"

#define TURN_PAUSE		(2 * USECS_PER_SEC) /* between turns: each rewrites
											 * rows of the system catalog */
#define LOOK_PAUSE		USECS_PER_SEC	/* between looks at a segment */
#define LOOK_SHARE		50		/* the same, in times of what one took */
#define MOVE_AT_ONCE	1000	/* messages */
#define NEARLY_EMPTY	64		/* one part in so many is messages */
#define HALF_EMPTY		8
#define ERROR_PAUSE		(10 * USECS_PER_SEC)	/* for a segment that fails */
#define PAUSE_MAX		(60 * USECS_PER_SEC)
#define PAGES_AT_ONCE	1024	/* between looks for who waits for us */
#define ANY_SEGMENT		(-1)
#define Natts_ring		4

/* What was seen in a segment. */
typedef struct Look
{
	bool		all;			/* of it was looked at */
	int64		live;			/* rows */
	double		bytes;			/* in them */
	BlockNumber first;			/* the page of the first */
	int			ntids;			/* up to MOVE_AT_ONCE */
	ItemPointerData tids[MOVE_AT_ONCE];
} Look;

typedef struct Ring
{
	int			first;			/* segment */
	int			n;
	int			many_in_use;	/* then messages are moved out of some */
	int			few_free;		/* then more are */
} Ring;

static const Ring rings[RING_KINDS] = {
	{0, QUEUE_SEGMENTS, 4, 4},
	{QUEUE_DELAYED, QUEUE_DELAYED_SEGMENTS, 2, 2}
};

/* What the worker remembers of the segments. */
static TimestampTz look_at[QUEUE_RELATIONS];	/* not before */
static BlockNumber look_from[QUEUE_RELATIONS];
static TimestampTz switched_at[RING_KINDS];
static uint64 written_then[RING_KINDS]; /* when last no segment was free */
static int	visited = ANY_SEGMENT;	/* just now; an error ended that */
static Oid	remembered = InvalidOid;	/* of which extension */

PG_FUNCTION_INFO_V1(sql_queue_segment_is_whole);

static void remember_nothing(RingState *ring);
static void look_at_pages(Relation rel, Snapshot snapshot, BlockNumber from,
						  BlockNumber n, double max_bytes, Look *look);
static void look_into(Relation rel, BlockNumber from, double max_bytes,
					  bool locked, Look *look);
static double size_of(Relation rel);
static int	count_free(RingKind kind);
static double most_to_move(const MessageTable *table);
static void look_again(int segment, RingState *ring);
static void visit(int segment, RingState *ring);
static bool may_dump(Oid role);
static bool has_dump(void);
static bool truncate_segment(int segment);
static bool move_rows(MessageTable *table, const Look *look);
static int	next_free(int active, RingState *ring);
static void make_active(int segment, RingState *ring);
static bool is_full(RingKind kind, RingState *ring);
static bool turn(RingKind kind, RingState *ring, TimestampTz *again);
static void write_row(Relation rel, int find, int column, int segment);
static HeapTuple find_row(Relation rel, int segment);

#define Anum_ring_turned_at			2
#define Anum_segment_truncated_at	2

/* --- What is in the segments --- */

/* A worker has started, or the extension is another one. */
static void
remember_nothing(RingState *ring)
{
	remembered = catalog_queue_oid();
	memset(look_at, 0, sizeof(look_at));
	memset(look_from, 0, sizeof(look_from));
	pg_atomic_write_u32(&ring->changed, (1 << QUEUE_RELATIONS) - 1);

	/* What was written before the server started counts too. */
	for (RingKind kind = 0; kind < RING_KINDS; kind++)
	{
		MessageTable table;
		uint64		size;
		uint64		written = 0;

		message_table_open(&table, catalog_active_segment(kind), AccessShareLock);
		size = (uint64) size_of(table.heap) / 2;
		message_table_close(&table, false);
		pg_atomic_compare_exchange_u64(&ring->written[kind], &written, size);
	}
}

/* Bytes that a table has taken, beside those of its indexes. */
static double
size_of(Relation rel)
{
	double		size = (double) RelationGetNumberOfBlocks(rel) * BLCKSZ;

	if (OidIsValid(rel->rd_rel->reltoastrelid))
	{
		Relation	toast = table_open(rel->rd_rel->reltoastrelid,
									   AccessShareLock);

		size += (double) RelationGetNumberOfBlocks(toast) * BLCKSZ;
		table_close(toast, AccessShareLock);
	}
	return size;
}

/* Look for rows in some pages, until there are more bytes of them. */
static void
look_at_pages(Relation rel, Snapshot snapshot, BlockNumber from,
			  BlockNumber n, double max_bytes, Look *look)
{
	TableScanDesc scan = table_beginscan_strat(rel, snapshot, 0, NULL, true,
											   false);
	TupleTableSlot *slot = table_slot_create(rel, NULL);

	heap_setscanlimits(scan, from, n);
	while (look->bytes <= max_bytes &&
		   table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		if (look->live == 0)
			look->first = ItemPointerGetBlockNumber(&slot->tts_tid);
		if (look->ntids < MOVE_AT_ONCE)
			look->tids[look->ntids++] = slot->tts_tid;
		look->live++;
		look->bytes += row_tuple(slot)->t_len;
	}
	ExecDropSingleTupleTableSlot(slot);
	table_endscan(scan);
}

/*
 * Look for rows that are there now, from a page on and round, until there are
 * more bytes of them.  "locked": we keep others from the table, but not for
 * long.
 */
static void
look_into(Relation rel, BlockNumber from, double max_bytes, bool locked,
		  Look *look)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	BlockNumber pages = RelationGetNumberOfBlocks(rel);
	BlockNumber done = 0;
	BlockNumber page = from < pages ? from : 0;

	memset(look, 0, offsetof(Look, tids));
	while (done < pages && look->bytes <= max_bytes)
	{
		BlockNumber n = Min(PAGES_AT_ONCE, pages - page);

		CHECK_FOR_INTERRUPTS();
		if (locked && done > 0 &&
			LockHasWaitersRelation(rel, AccessExclusiveLock))
			break;
		n = Min(n, pages - done);
		look_at_pages(rel, snapshot, page, n, max_bytes, look);
		done += n;
		page += n;
		if (page == pages)
			page = 0;
	}
	look->all = done == pages && look->bytes <= max_bytes;
	UnregisterSnapshot(snapshot);
}

/* --- Emptying segments --- */

static int
count_free(RingKind kind)
{
	int			n = 0;

	for (int i = 0; i < rings[kind].n; i++)
		if (segment_is_free(rings[kind].first + i))
			n++;
	return n;
}

/* So many bytes of messages are moved out of a segment, if it has no more. */
static double
most_to_move(const MessageTable *table)
{
	RingKind	kind = segment_kind(table->segment);
	int			nfree = count_free(kind);

	if (nfree >= rings[kind].n - rings[kind].many_in_use)
		return 0;
	return (double) RelationGetNumberOfBlocks(table->heap) * BLCKSZ /
		(nfree < rings[kind].few_free ? HALF_EMPTY : NEARLY_EMPTY);
}

static void
look_again(int segment, RingState *ring)
{
	pg_atomic_fetch_or_u32(&ring->changed, (uint32) 1 << segment);
}

/* See to a closed segment. */
static void
visit(int segment, RingState *ring)
{
	Look	   *look = palloc(sizeof(Look));
	TimestampTz began = GetCurrentTimestamp();
	TimestampTz now;
	MessageTable table;
	double		max_bytes;
	bool		again = false;

	/* Who wants to keep writers away shall not make us wait. */
	look_at[segment] = began + LOOK_PAUSE;
	if (!ConditionalLockRelationOid(catalog_segment_oid(segment),
									RowExclusiveLock))
	{
		pfree(look);
		return;
	}

	/* Should it fail, the others come first. */
	visited = segment;
	look_at[segment] = began + ERROR_PAUSE;
	pg_atomic_fetch_and_u32(&ring->changed, ~((uint32) 1 << segment));
	message_table_open(&table, segment, RowExclusiveLock);
	max_bytes = most_to_move(&table);
	look_into(table.heap, look_from[segment], max_bytes, false, look);
	look_from[segment] = look->first;
	now = GetCurrentTimestamp();
	look_at[segment] = now + Min(Max(LOOK_PAUSE, LOOK_SHARE * (now - began)),
								 PAUSE_MAX);
	if (look->all && look->live > 0)
	{
		/* Unless others hold some of them, the rest follows at once. */
		if (move_rows(&table, look))
			look_at[segment] = now;
		again = true;
	}
	message_table_close(&table, true);
	if (look->all && look->live == 0)
		again = !truncate_segment(segment);
	if (again)
		look_again(segment, ring);
	visited = ANY_SEGMENT;
	pfree(look);
}

/*
 * May the role that a session has logged in as read the tables, itself or as a
 * role that it is a member of (pg_dump --role)?  All have the same owner and
 * privileges, unless some were changed.
 */
static bool
may_dump(Oid role)
{
	Oid			relid = catalog_segment_oid(0);
	HeapTuple	tuple;
	Datum		value;
	bool		isnull;
	bool		result;

	/* It was dropped, or this is no session of a role. */
	if (!OidIsValid(role) ||
		!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)))
		return false;
	if (pg_class_aclcheck(relid, role, ACL_SELECT) == ACLCHECK_OK ||
		is_member_of_role(role, ROLE_PG_READ_ALL_DATA))
		return true;
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	if (!HeapTupleIsValid(tuple))
		return true;
	result = is_member_of_role(role,
							   ((Form_pg_class) GETSTRUCT(tuple))->relowner);
	value = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_relacl, &isnull);
	if (!result && !isnull)
	{
		Acl		   *acl = DatumGetAclPCopy(value);

		for (int i = 0; i < ACL_NUM(acl) && !result; i++)
		{
			const AclItem *item = &ACL_DAT(acl)[i];

			result = (ACLITEM_GET_PRIVS(*item) & ACL_SELECT) != 0 &&
				is_member_of_role(role, item->ai_grantee);
		}
	}
	ReleaseSysCache(tuple);
	return result;
}

/* Any role may call itself pg_dump; only one that may read counts. */
static bool
has_dump(void)
{
	return compat_has_session(MyDatabaseId, "pg_dump", may_dump);
}

/*
 * Nothing was seen in the segment: if that is still so when nobody else has
 * it, truncate it.
 */
static bool
truncate_segment(int segment)
{
	Oid			relid = catalog_segment_oid(segment);
	Look	   *look;
	Relation	rel;
	bool		done = false;

	if (has_dump() ||
		!ConditionalLockRelationOid(relid, AccessExclusiveLock))
		return false;
	rel = table_open(relid, NoLock);

	/* Vacuum may be at work there without a lock on the table. */
	if (OidIsValid(rel->rd_rel->reltoastrelid) &&
		!ConditionalLockRelationOid(rel->rd_rel->reltoastrelid,
									AccessExclusiveLock))
	{
		table_close(rel, AccessExclusiveLock);
		return false;
	}
	look = palloc(sizeof(Look));
	look_into(rel, look_from[segment], 0, true, look);
	if (look->all && look->live == 0)
	{
		CheckTableNotInUse(rel, "TRUNCATE");
		if (RelationGetNumberOfBlocks(rel) > 0)
		{
			Relation	segments = catalog_open_segments(RowExclusiveLock);

			compat_truncate(rel);
			write_row(segments, segment, 1, segment);
			table_close(segments, NoLock);

			/* Its snapshot does not show what we have done. */
			if (has_dump())
				ereport(ERROR,
						(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						 errmsg("a pg_dump has connected meanwhile")));
			database_count(COUNT_TRUNCATED, 1);
		}
		segment_set_empty(segment);
		done = true;
	}
	pfree(look);

	/* Whoever waits for the lock gets it with the end of the transaction. */
	table_close(rel, NoLock);
	return done;
}

/*
 * Move what was seen, or as much of it as makes a short transaction.  False:
 * others hold some.
 */
static bool
move_rows(MessageTable *table, const Look *look)
{
	MessageTable active;
	TupleTableSlot *slot = message_slot(table);
	bool		all = true;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "a message to be moved",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old;
	Size		bytes = 0;

	segment_begin_move();
	if (segment_is_delayed(table->segment))
		segment_open_delayed(&active);
	else
		segment_open_active(&active);
	PushActiveSnapshot(GetLatestSnapshot());
	old = MemoryContextSwitchTo(context);
	for (int i = 0; i < look->ntids && bytes < MESSAGE_MOVE_BYTES; i++)
	{
		ItemPointerData tid = look->tids[i];

		CHECK_FOR_INTERRUPTS();

		/* It may be gone. */
		if (!table_tuple_fetch_row_version(table->heap, &tid,
										   GetActiveSnapshot(), slot))
			continue;
		if (message_move(table, slot, &active, &bytes))
			database_count(COUNT_MOVED, 1);
		else
			all = false;
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
	message_table_close(&active, true);
	CommandCounterIncrement();
	return all;
}

/* --- Turning --- */

/* Has enough been written to the active segment? */
static bool
is_full(RingKind kind, RingState *ring)
{
	return setting_segment_size > 0 &&
		pg_atomic_read_u64(&ring->written[kind]) >=
		(uint64) setting_segment_size * 1024 / 2;
}

/* The next segment that holds nothing, or -1. */
static int
next_free(int active, RingState *ring)
{
	const Ring *r = &rings[segment_kind(active)];

	for (int i = 1; i < r->n; i++)
	{
		int			segment = r->first + (active - r->first + i) % r->n;

		if (!segment_is_free(segment))
			continue;
		if (!message_table_has_pages(segment))
			return segment;

		/* Somebody has written to it with plain SQL. */
		segment_found_rows(segment);
	}
	return -1;
}

/*
 * The only row of queue_data.ring, or that of a segment in queue_data.segment,
 * as the latest snapshot shows it.  A copy.
 */
static HeapTuple
find_row(Relation rel, int segment)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);
	HeapTuple	tuple;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		bool		isnull;
		Datum		number = heap_getattr(tuple, 1, RelationGetDescr(rel),
										  &isnull);

		if (segment == ANY_SEGMENT || DatumGetInt16(number) == segment)
			break;
	}
	if (tuple == NULL)
		elog(ERROR, "%s has no row for segment %d",
			 RelationGetRelationName(rel), segment);
	tuple = heap_copytuple(tuple);
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	return tuple;
}

/*
 * Write a segment, and behind it that this was now, into columns of such a
 * row.
 */
static void
write_row(Relation rel, int find, int column, int segment)
{
	HeapTuple	old = find_row(rel, find);
	Datum		values[Natts_ring] = {0};
	bool		isnull[Natts_ring] = {false};
	bool		replace[Natts_ring] = {false};

	values[column - 1] = Int16GetDatum(segment);
	values[column] = TimestampTzGetDatum(GetCurrentTimestamp());
	replace[column - 1] = replace[column] = true;
	if (!row_update(rel, &old->t_self,
					heap_modify_tuple(old, RelationGetDescr(rel), values,
									  isnull, replace)))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("table \"%s\" was changed by somebody else",
						RelationGetRelationName(rel))));
	CommandCounterIncrement();
}

/* New messages go to this segment from now on. */
static void
make_active(int segment, RingState *ring)
{
	RingKind	kind = segment_kind(segment);
	MessageTable table;
	Relation	rel;

	/* An error, if it cannot be written to. */
	message_table_open(&table, segment, RowExclusiveLock);
	rel = catalog_open_ring(RowExclusiveLock);
	write_row(rel, ANY_SEGMENT, kind == RING_DELAYED ? 3 : 1, segment);
	CacheInvalidateRelcache(rel);
	table_close(rel, NoLock);
	message_table_close(&table, true);

	switched_at[kind] = GetCurrentTimestamp();
	pg_atomic_write_u32(&ring->active[kind], (uint32) segment);
	pg_atomic_write_u64(&ring->written[kind], 0);
	pg_atomic_fetch_add_u32(&ring->switches, 1);
	pg_atomic_write_u32(&ring->changed, (1 << QUEUE_RELATIONS) - 1);
	database_count(COUNT_SWITCHES, 1);
}

/* Turn a ring if it is time; false: not before *again. */
static bool
turn(RingKind kind, RingState *ring, TimestampTz *again)
{
	int			active = catalog_active_segment(kind);
	TimestampTz now = GetCurrentTimestamp();
	int			next;

	pg_atomic_write_u32(&ring->active[kind], (uint32) active);
	if (!is_full(kind, ring))
		return false;

	/* Unless the clock has stepped back */
	if (now < switched_at[kind] + TURN_PAUSE && now >= switched_at[kind])
	{
		*again = Min(*again, switched_at[kind] + TURN_PAUSE);
		return false;
	}
	next = next_free(active, ring);
	if (next >= 0)
	{
		make_active(next, ring);
		return true;
	}

	/*
	 * Perhaps we have missed that one is empty.  Who writes more wakes us
	 * again.
	 */
	if (pg_atomic_read_u64(&ring->written[kind]) != written_then[kind])
	{
		written_then[kind] = pg_atomic_read_u64(&ring->written[kind]);
		*again = Min(*again, now + LOOK_PAUSE);
		pg_atomic_write_u32(&ring->changed, (1 << QUEUE_RELATIONS) - 1);
	}
	return false;
}

/*
 * Do one thing for the rings, in one transaction.  False: there is nothing to
 * do before *again.
 */
bool
segment_recycle_step(TimestampTz *again)
{
	RingState  *ring = segment_state_own();
	TimestampTz now = GetCurrentTimestamp();

	*again = DT_NOEND;
	if (ring == NULL)
		return false;
	if (remembered != catalog_queue_oid())
		remember_nothing(ring);
	if (visited != ANY_SEGMENT)
	{
		look_again(visited, ring);
		visited = ANY_SEGMENT;
	}
	for (RingKind kind = 0; kind < RING_KINDS; kind++)
		if (turn(kind, ring, again))
			return true;
	for (int i = 0; i < QUEUE_RELATIONS; i++)
	{
		if (i == catalog_active_segment(segment_kind(i)) || segment_is_free(i) ||
			(pg_atomic_read_u32(&ring->changed) & ((uint32) 1 << i)) == 0)
			continue;
		if (look_at[i] <= now || look_at[i] > now + PAUSE_MAX)
		{
			visit(i, ring);
			return true;
		}
		*again = Min(*again, look_at[i]);
	}
	return false;
}

/*
 * queue_data.segment_is_whole(segment int) returns boolean
 *
 * True, or an error if the segment was truncated since the snapshot of the
 * statement was taken, so that it does not show all that was there then.  In
 * the filter of what pg_dump takes along.
 *
 * Errors: 22023 no such segment, 55000 it was truncated.
 * Source: DESIGN, "a truncate is not MVCC".
 */
Datum
sql_queue_segment_is_whole(PG_FUNCTION_ARGS)
{
	int			segment = arg_check_bounds("segment", PG_GETARG_INT32(0), 0,
											 NULL, QUEUE_RELATIONS - 1, NULL,
											 "");
	Relation	rel = catalog_open_segments(AccessShareLock);
	HeapTuple	tuple = find_row(rel, segment);
	HeapTupleHeader header = tuple->t_data;

	table_close(rel, AccessShareLock);
	if (!HeapTupleHeaderXminFrozen(header) &&
		XidInMVCCSnapshot(HeapTupleHeaderGetRawXmin(header),
						  GetActiveSnapshot()))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("segment %d of queue_data was emptied since the snapshot was taken",
						segment),
				 errdetail("Messages that were in it then have been consumed, but an older snapshot has to show them."),
				 errhint("Run the dump again; while a program whose application_name is \"pg_dump\" is connected, no table is emptied.")));
	PG_RETURN_BOOL(true);
}
