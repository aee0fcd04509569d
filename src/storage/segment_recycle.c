/*-------------------------------------------------------------------------
 *
 * segment_recycle.c
 *	  Recycling: a segment without messages is truncated.
 *
 * NOTES
 *	  Consumed messages leave dead rows and index entries, which vacuum cannot
 *	  remove while any snapshot in the cluster may still need them.  But a
 *	  table without live messages can be truncated whatever old snapshots there
 *	  are, at no cost that grows with its size.  So the worker of the database
 *
 *	  1.  switches to the next segment when enough was written to the active
 *	  one (segment.c);
 *
 *	  2.  surveys the other segments after messages were deleted from them, and
 *	  truncates those that hold none;
 *
 *	  3.  when too many segments are in use, moves the last messages of a
 *	  nearly empty one (dead letters, messages that are never read, long
 *	  claims) to the active segment, under the same ids and claims.  A segment
 *	  full of waiting messages stays as it is.
 *
 *	  Only space depends on this.  If a lock is not free, the worker tries
 *	  again later.
 *
 *	  Why the truncation loses nothing:
 *
 *	  1.  The worker takes an AccessExclusiveLock on the segment, and only
 *	  without waiting, since users can hold locks on it.
 *
 *	  2.  It then takes a snapshot.  Every transaction that has written to the
 *	  segment held a lock on it to its end, so it has ended before, and its
 *	  rows are visible in the snapshot or never will be.
 *
 *	  3.  If the snapshot shows no row, there is none and none can appear
 *	  while the lock is held.
 *
 *	  A survey without the lock comes first, so that the worker locks only
 *	  what seems to be empty.
 *
 *	  A truncation is not MVCC: a transaction with an older snapshot sees the
 *	  segment empty.  The extension's functions read with the latest snapshot,
 *	  and check whether a segment was emptied since (segment.c).  A dump does
 *	  not.  So nothing is truncated while a program called pg_dump is connected
 *	  whose role may read the tables.  A dump by another program fails instead:
 *	  each truncation updates a row of queue_data.segment, and the filter of
 *	  the dump compares what its snapshot shows of this row with the latest
 *	  version (segment_is_whole).
 *
 * src/storage/segment_recycle.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "catalog/message_table.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "shmem/database_state.h"
#include "shmem/segment_state.h"
#include "storage/message.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "storage/segment_recycle.h"
#include "util/compat.h"

#define SURVEY_PAUSE	USECS_PER_SEC	/* between surveys of a segment, */
#define SURVEY_SHARE	50		/* or this many times what one took, */
#define PAUSE_MAX		(60 * USECS_PER_SEC)	/* but at most this */
#define ERROR_PAUSE		(10 * USECS_PER_SEC)	/* after an error */
#define LOG_PAUSE		USECS_PER_HOUR	/* between two reports of a dump */
#define PAGES_AT_ONCE	1024	/* between checks for interrupts and waiters */
#define MOVE_AT_ONCE	1000	/* messages */
#define NEARLY_EMPTY	64		/* at most 1/64 of its pages is messages */
#define HALF_EMPTY		8		/* at most 1/8 */

/*
 * When messages are moved out of a segment: if more segments of its ring than
 * this are in use, out of a nearly empty one; if fewer than this are free,
 * also out of a half empty one.
 */
static const int move_thresholds[RING_KINDS] = {
	[RING_MESSAGES] = 4,
	[RING_DELAYED] = 2
};

/* What a survey has found in a segment */
typedef struct Survey
{
	bool		complete;		/* it has read all pages, and found no more
								 * bytes than it was asked for */
	int64		live;			/* rows */
	double		bytes;			/* in these rows */
	BlockNumber first;			/* the page of the first row, or
								 * InvalidBlockNumber */
	int			ntids;			/* of the first rows, up to MOVE_AT_ONCE */
	ItemPointerData tids[MOVE_AT_ONCE];
} Survey;

/* What the worker remembers of the segments */
static Oid	remembered = InvalidOid;	/* of which extension */
static TimestampTz survey_at[ALL_SEGMENTS]; /* no survey before then */
static BlockNumber survey_from[ALL_SEGMENTS];	/* page to begin with */
static int	visiting = NO_SEGMENT;	/* set if an error ended the last visit */
static bool truncating = false;

static void log_kept(int segment, const char *reason);
static void survey_pages(Relation rel, Snapshot snapshot, BlockNumber from,
						 BlockNumber n, double max_bytes, Survey *survey);
static void survey_segment(Relation rel, BlockNumber from, double max_bytes,
						   bool locked, Survey *survey);
static double most_to_move(const MessageTable *table);
static bool move_messages(MessageTable *table, const Survey *survey);
static bool may_read_as(Oid role);
static bool is_dump(const PgBackendStatus *entry, void *arg);
static HeapTuple fetch_segment_row(Relation rel, int segment);
static void write_truncation(int segment);
static bool lock_for_truncate(Oid relid, Relation *rel);
static bool try_truncate(int segment);
static bool recycle_segment(int segment, TimestampTz began);
static void visit_segment(int segment, RingState *state);

/* Log why a segment cannot be truncated. */
static void
log_kept(int segment, const char *reason)
{
	ereport(DEBUG2,
			(errmsg_internal("segment %d is not truncated: %s", segment,
							 reason)));
}

/* --- What is in a segment --- */

/* Add the rows in n pages, until the survey has more than max_bytes. */
static void
survey_pages(Relation rel, Snapshot snapshot, BlockNumber from,
			 BlockNumber n, double max_bytes, Survey *survey)
{
	TableScanDesc scan = table_beginscan_strat(rel, snapshot, 0, NULL, true,
											   false);
	TupleTableSlot *slot = table_slot_create(rel, NULL);

	heap_setscanlimits(scan, from, n);
	while (survey->bytes <= max_bytes &&
		   table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		if (survey->live == 0)
			survey->first = ItemPointerGetBlockNumber(&slot->tts_tid);
		if (survey->ntids < MOVE_AT_ONCE)
			survey->tids[survey->ntids++] = slot->tts_tid;
		survey->live++;
		survey->bytes += row_tuple(slot)->t_len;
	}
	ExecDropSingleTupleTableSlot(slot);
	table_endscan(scan);
}

/*
 * Survey a segment with a new snapshot: read its pages, beginning with page
 * "from" and going on at page 0 after the last one, until there are more
 * bytes than max_bytes.  If "locked" is set, the caller holds an
 * AccessExclusiveLock on the segment.
 */
static void
survey_segment(Relation rel, BlockNumber from, double max_bytes, bool locked,
			   Survey *survey)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	BlockNumber pages = RelationGetNumberOfBlocks(rel);
	BlockNumber done = 0;
	BlockNumber page = from;

	/*
	 * The last survey has found nothing, or there was none.  Messages that
	 * are still being claimed are most likely in the last pages.
	 */
	if (page >= pages)
		page = pages - Min(pages, PAGES_AT_ONCE);
	memset(survey, 0, offsetof(Survey, tids));
	survey->first = InvalidBlockNumber;
	while (done < pages && survey->bytes <= max_bytes)
	{
		BlockNumber n = Min(PAGES_AT_ONCE, pages - page);

		CHECK_FOR_INTERRUPTS();

		/*
		 * Do not keep other sessions waiting for longer than one step takes:
		 * the survey is incomplete then, and the segment is truncated another
		 * time.
		 */
		if (locked && done > 0 &&
			LockHasWaitersRelation(rel, AccessExclusiveLock))
			break;

		/* In the end, stop before the page with which we began. */
		n = Min(n, pages - done);
		survey_pages(rel, snapshot, page, n, max_bytes, survey);
		done += n;
		page += n;
		if (page == pages)
			page = 0;
	}
	survey->complete = done == pages && survey->bytes <= max_bytes;
	UnregisterSnapshot(snapshot);
}

/* --- Moving what is left --- */

/*
 * Returns how many bytes of messages a segment may hold at most for them to
 * be moved out of it.
 */
static double
most_to_move(const MessageTable *table)
{
	RingKind	kind = segment_kind(table->segment);
	const Ring *ring = &catalog_rings[kind];
	int			threshold = move_thresholds[kind];
	int			nfree = 0;

	for (int i = 0; i < ring->n; i++)
		if (segment_is_free(ring->first + i))
			nfree++;

	/* Few segments are in use, so their space is not worth the moves. */
	if (nfree >= ring->n - threshold)
		return 0;
	return (double) RelationGetNumberOfBlocks(table->heap) * BLCKSZ /
		(nfree < threshold ? HALF_EMPTY : NEARLY_EMPTY);
}

/*
 * Move the messages that a survey has found, or as many as make a short
 * transaction.  Returns false if other transactions have locked some of them.
 */
static bool
move_messages(MessageTable *table, const Survey *survey)
{
	MessageTable active;
	TupleTableSlot *slot = table_slot_create(table->heap, NULL);
	bool		all = true;
	Size		bytes = 0;

	segment_begin_move();
	segment_open_active(&active, segment_kind(table->segment), true);
	PushActiveSnapshot(GetLatestSnapshot());
	for (int i = 0; i < survey->ntids && bytes < MESSAGE_MOVE_BYTES; i++)
	{
		ItemPointerData tid = survey->tids[i];

		CHECK_FOR_INTERRUPTS();

		/* It may have been deleted since the survey. */
		if (!table_tuple_fetch_row_version(table->heap, &tid,
										   GetActiveSnapshot(), slot))
			continue;
		if (message_move(table, slot, &active, &bytes))
			database_count(COUNT_MOVED, 1);
		else
			all = false;
	}
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
	message_table_close(&active, true);
	CommandCounterIncrement();
	return all;
}

/* --- Dumps --- */

/*
 * Returns whether a role is a member of one that owns the segments or was
 * granted the privilege to read them, even if it does not inherit that
 * privilege: pg_dump --role sets such a role.
 */
static bool
may_read_as(Oid role)
{
	HeapTuple	tuple = SearchSysCache1(RELOID,
										ObjectIdGetDatum(catalog_segment_oid(0)));
	Datum		value;
	bool		isnull;
	bool		result;

	/* If in doubt, truncate nothing. */
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

/*
 * Returns whether a session is a dump: its program is called pg_dump, and the
 * role that it has logged in as may read the segments, itself or as a role
 * that it is a member of.  (Any program may call itself pg_dump.)  We ask for
 * the first segment only, since all have the same owner and privileges,
 * unless a superuser has changed some.
 */
static bool
is_dump(const PgBackendStatus *entry, void *arg)
{
	Oid			role = entry->st_userid;

	if (entry->st_appname == NULL || strcmp(entry->st_appname, "pg_dump") != 0)
		return false;

	/* The role was dropped, or this is no session of a role. */
	if (!OidIsValid(role) ||
		!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)))
		return false;
	return pg_class_aclcheck(catalog_segment_oid(0), role,
							 ACL_SELECT) == ACLCHECK_OK ||
		is_member_of_role(role, ROLE_PG_READ_ALL_DATA) ||
		may_read_as(role);
}

/* Returns whether a dump is running. */
bool
segment_has_dump(void)
{
	static TimestampTz logged_at = 0;
	TimestampTz now = GetCurrentTimestamp();

	if (compat_find_session(MyDatabaseId, is_dump, NULL) == 0)
		return false;

	/* A session that keeps this name for days must not go unnoticed. */
	if (now >= logged_at + LOG_PAUSE || now < logged_at)
	{
		logged_at = now;
		ereport(LOG,
				(errmsg("tables of messages are not truncated while pg_dump is connected"),
				 errhint("They grow meanwhile. pg_stat_activity shows which session has set application_name to pg_dump.")));
	}
	return true;
}

/* Returns a copy of a segment's row in queue_data.segment. */
static HeapTuple
fetch_segment_row(Relation rel, int segment)
{
	ScanKeyData key;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_segment_segment, BTEqualStrategyNumber, F_INT2EQ,
				Int16GetDatum(segment));
	tuple = row_fetch(rel, InvalidOid, &key, 1);
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "queue_data.segment has no row for segment %d", segment);
	return tuple;
}

/*
 * Returns whether the snapshot shows the last truncation of the segment, and
 * so where the messages are that were moved out of it before.
 */
bool
segment_is_whole(int segment, Snapshot snapshot)
{
	Relation	rel = catalog_open(CATALOG_SEGMENT, AccessShareLock, NULL);
	HeapTuple	tuple = fetch_segment_row(rel, segment);
	HeapTupleHeader header = tuple->t_data;

	table_close(rel, AccessShareLock);
	return HeapTupleHeaderXminFrozen(header) ||
		!XidInMVCCSnapshot(HeapTupleHeaderGetRawXmin(header), snapshot);
}

/* --- Truncating --- */

/*
 * Lock a segment and its TOAST table against all others, without waiting, and
 * open the segment.  Returns false if others have locked one of them.
 */
static bool
lock_for_truncate(Oid relid, Relation *rel)
{
	Oid			toast;

	if (!ConditionalLockRelationOid(relid, AccessExclusiveLock))
		return false;
	*rel = catalog_open_locked(relid);
	toast = (*rel)->rd_rel->reltoastrelid;

	/* Vacuum may be at work there without a lock on the table. */
	if (!OidIsValid(toast) ||
		ConditionalLockRelationOid(toast, AccessExclusiveLock))
		return true;
	table_close(*rel, AccessExclusiveLock);
	return false;
}

/* Write that a segment is being truncated. */
static void
write_truncation(int segment)
{
	Relation	rel = catalog_open(CATALOG_SEGMENT, RowExclusiveLock, NULL);
	int			column = Anum_segment_truncated_at;
	Datum		now = TimestampTzGetDatum(GetCurrentTimestamp());

	row_set_columns(rel, fetch_segment_row(rel, segment), 1, &column, &now);
	table_close(rel, NoLock);
	database_count(COUNT_TRUNCATED, 1);
}

/*
 * Truncate a segment, or a table of the history, in which there is nothing to
 * be kept.  The caller has locked it against all others.
 */
void
segment_truncate(Relation rel, const char *name)
{
	CheckTableNotInUse(rel, "TRUNCATE");
	ereport(DEBUG1,
			(errmsg_internal("truncating %s, which has %u pages", name,
							 RelationGetNumberOfBlocks(rel))));
	truncating = true;
	compat_truncate(rel);
	truncating = false;

	/*
	 * A dump that has begun since the caller looked for one may have a
	 * snapshot that does not show the row of the segment, and would fail.  An
	 * error takes the truncation back.
	 */
	if (segment_has_dump())
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("pg_dump has connected while %s was being truncated",
						name)));
}

/*
 * Returns whether the TRUNCATE for which a trigger is called is one of this
 * file.  After an error it goes on to return true, but only the worker
 * truncates, and it runs no other SQL.
 */
bool
segment_is_truncating(void)
{
	return truncating;
}

/*
 * A survey has found no message: truncate the segment, if there is still none
 * when no other session can write to it.  Returns false if it was not
 * possible.
 */
static bool
try_truncate(int segment)
{
	Survey	   *survey;
	Relation	rel;
	bool		is_empty;

	if (segment_has_dump())
	{
		log_kept(segment, "pg_dump is connected");
		return false;
	}
	if (!lock_for_truncate(catalog_segment_oid(segment), &rel))
	{
		log_kept(segment, "another transaction has locked it");
		return false;
	}
	survey = palloc(sizeof(Survey));
	survey_segment(rel, survey_from[segment], 0, true, survey);
	is_empty = survey->complete && survey->live == 0;
	pfree(survey);
	if (is_empty)
	{
		/* Without pages, sessions only have to learn that it is empty. */
		if (RelationGetNumberOfBlocks(rel) > 0)
		{
			write_truncation(segment);
			segment_truncate(rel, psprintf("segment %d", segment));
		}
		segment_set_empty(segment);
	}
	else
		log_kept(segment, "it has a message now, or another session waits for its lock");

	/* The lock is kept to the end of the transaction. */
	table_close(rel, NoLock);
	return is_empty;
}

/* --- One step --- */

/*
 * Survey a segment that the caller has locked as a writer, and then move its
 * messages or truncate it, if there are few or none.  Returns false if
 * something is left to be done later; not if there are many messages, because
 * the segment is checked again after some of them were deleted.
 */
static bool
recycle_segment(int segment, TimestampTz began)
{
	Survey	   *survey = palloc(sizeof(Survey));
	MessageTable table;
	TimestampTz now;
	bool		is_empty;
	bool		done = true;

	message_table_open(&table, segment, RowExclusiveLock);
	survey_segment(table.heap, survey_from[segment], most_to_move(&table),
				   false, survey);
	survey_from[segment] = survey->first;

	/* Surveys must take only a small part of the worker's time. */
	now = GetCurrentTimestamp();
	survey_at[segment] = now +
		Min(Max(SURVEY_PAUSE, SURVEY_SHARE * (now - began)), PAUSE_MAX);
	is_empty = survey->complete && survey->live == 0;
	if (!survey->complete)
		log_kept(segment, "it still has messages");
	else if (survey->live > 0)
	{
		ereport(DEBUG1,
				(errmsg_internal("moving %d messages out of segment %d",
								 survey->ntids, segment)));

		/*
		 * What is left, if only the truncation, follows at once; after a
		 * pause if other sessions have locked some messages.
		 */
		if (move_messages(&table, survey))
			survey_at[segment] = GetCurrentTimestamp();
		done = false;
	}
	message_table_close(&table, true);
	if (is_empty)
		done = try_truncate(segment);
	pfree(survey);
	return done;
}

/* Attend to a segment that is not active. */
static void
visit_segment(int segment, RingState *state)
{
	TimestampTz began = GetCurrentTimestamp();

	/*
	 * A user may keep writers away from the segment, and we wait for no user.
	 * The segment's bit in "changed" stays, so it is visited again.
	 */
	survey_at[segment] = began + SURVEY_PAUSE;
	if (!ConditionalLockRelationOid(catalog_segment_oid(segment),
									RowExclusiveLock))
	{
		log_kept(segment, "another transaction keeps writers away from it");
		return;
	}

	/*
	 * If an error ends the visit, the next one comes after ERROR_PAUSE, so
	 * that the other segments come first.
	 */
	visiting = segment;
	survey_at[segment] = began + ERROR_PAUSE;

	/* Before the survey: it may miss what is deleted from here on. */
	pg_atomic_fetch_and_u32(&state->changed, ~((uint32) 1 << segment));
	if (!recycle_segment(segment, began))
		pg_atomic_fetch_or_u32(&state->changed, (uint32) 1 << segment);
	visiting = NO_SEGMENT;
}

/*
 * A step of the worker: switch one ring, or attend to one segment.  Returns
 * false if there is nothing to do before the time *arg, which this sets.
 */
bool
segment_recycle_step(void *arg)
{
	TimestampTz *again = arg;
	RingState  *state = segment_state_own();
	TimestampTz now = GetCurrentTimestamp();

	*again = DT_NOEND;
	if (state == NULL)
		return false;

	/* A new worker, or one that finds another extension, knows nothing. */
	if (remembered != catalog_queue_oid())
	{
		remembered = catalog_queue_oid();
		memset(survey_at, 0, sizeof(survey_at));
		for (int i = 0; i < ALL_SEGMENTS; i++)
			survey_from[i] = InvalidBlockNumber;
		pg_atomic_write_u32(&state->changed, (1 << ALL_SEGMENTS) - 1);
		segment_switch_begin(state);
	}

	/* An error has ended the last visit, after it had cleared the bit. */
	if (visiting != NO_SEGMENT)
	{
		pg_atomic_fetch_or_u32(&state->changed, (uint32) 1 << visiting);
		visiting = NO_SEGMENT;
	}
	for (RingKind kind = 0; kind < RING_KINDS; kind++)
		if (segment_switch(kind, state, again))
			return true;
	for (int i = 0; i < ALL_SEGMENTS; i++)
	{
		/* An active segment has its turn after the ring has switched. */
		if (i == catalog_active_table(segment_kind(i)) ||
			segment_is_free(i) ||
			(pg_atomic_read_u32(&state->changed) & ((uint32) 1 << i)) == 0)
			continue;

		/* If it is too far ahead, the clock was set back since. */
		if (survey_at[i] <= now || survey_at[i] > now + PAUSE_MAX)
		{
			visit_segment(i, state);
			return true;
		}
		*again = Min(*again, survey_at[i]);
	}
	return false;
}
