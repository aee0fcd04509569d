/*-------------------------------------------------------------------------
 *
 * ring.c
 *	  Rings of tables: switching to the next table, and truncating.
 *
 * NOTES
 *	  Consumed messages leave dead rows and index entries, which vacuum cannot
 *	  remove while any snapshot in the cluster may still need them.  But a
 *	  table of which no row is to be kept can be truncated whatever old
 *	  snapshots there are, at no cost that grows with its size.  So messages
 *	  and the history are in rings of tables (catalog_rings).  One table of a
 *	  ring is active: it takes new rows.  In steps of one short transaction the
 *	  worker of the database attends to them:
 *
 *	  1.  It switches a ring to its next empty table if enough was written to
 *	  the active one, or it was active for long enough (switch_at of the kind
 *	  of ring).
 *
 *	  2.  It visits a table that is not active, and truncates it if no row in
 *	  it is to be kept (recycle of the kind).  A table is visited if its bit in
 *	  "changed" is set and its time has come.
 *
 *	  The kinds are messages (segment_recycle.c) and the history
 *	  (queue/finished_ring.c).  Only space depends on this.  If a lock is not
 *	  free, the worker tries again later.
 *
 *	  To switch, the worker
 *
 *	  1.  chooses a table that shared memory knows to be empty and that has no
 *	  pages;
 *
 *	  2.  locks it as a writer does, which fails if a segment has been changed
 *	  so that messages cannot be inserted;
 *
 *	  3.  writes its number into the row of the ring, and sends an invalidation
 *	  message for the table of that row.  A session that inserts opens the table
 *	  that the row names, and reads the row again once it has the lock
 *	  (segment_open_active, finished_insert).  So when all that had locked the
 *	  table by then have ended, no row of it can appear;
 *
 *	  4.  updates the shared state: sessions take numbers for their messages
 *	  from a new block of the sequence then (availability_take_numbers), so
 *	  that messages in a later segment have higher numbers in all queues.
 *
 *	  If no table is empty, the active one grows.
 *
 *	  A truncation is not MVCC: a transaction with an older snapshot sees the
 *	  table empty.  The extension's functions read with the latest snapshot,
 *	  and check whether a segment was emptied since (segment.c).  A dump does
 *	  not.  So nothing is truncated while a program called pg_dump is connected
 *	  whose role may read the tables.  A dump by another program fails instead:
 *	  each truncation updates a row of queue_data.segment, and the filter of
 *	  the dump compares what its snapshot shows of this row with the latest
 *	  version (ring_is_whole).  What is truncated of the history is too old
 *	  to be shown, so a dump does not miss it.
 *
 * src/storage/ring.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "catalog/message_table.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "shmem/database_state.h"
#include "shmem/segment_state.h"
#include "storage/ring.h"
#include "storage/row.h"
#include "util/compat.h"

#define VISIT_PAUSE		USECS_PER_SEC	/* if a table is locked */
#define ERROR_PAUSE		(10 * USECS_PER_SEC)	/* after an error */
#define RETRY_PAUSE		USECS_PER_SEC	/* until a free table is looked for
										 * again */
#define LOG_PAUSE		USECS_PER_HOUR	/* between two reports of a dump */

/* What the worker remembers of the kinds, the rings, and the tables */
static Oid	remembered[RING_KINDS]; /* of which extension */
static uint64 written_then[RINGS];	/* bytes in the active segment when last
									 * no segment was free */
static TimestampTz visit_at[RING_TABLES];	/* no visit before then */
static bool truncating = false;

static bool may_read_as(Oid role);
static bool is_dump(const PgBackendStatus *entry, void *arg);
static bool has_dump(void);
static HeapTuple fetch_segment_row(Relation rel, int segment);
static int	next_free_table(const Ring *ring, int active);
static void check_tables(const Ring *ring, RingState *state);
static void make_active(RingId id, int active, int next, RingState *state);
static bool switch_ring(const RingKind *kind, RingId id, RingState *state,
						TimestampTz *again);
static void visit_table(const RingKind *kind, RingId id, int table,
						RingState *state);
static bool visit_next(const RingKind *kind, RingState *state,
					   TimestampTz *again);

/* --- Tables --- */

/* Returns the name of a table in messages. */
const char *
ring_table_name(int table)
{
	return table < ALL_SEGMENTS ? psprintf("segment %d", table) :
		psprintf("table %d of the history", table - FIRST_FINISHED_TABLE);
}

/* The bytes of a table and its TOAST table, without indexes. */
double
ring_relation_size(Relation rel)
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

/* Log why a table cannot be truncated. */
void
ring_log_kept(int table, const char *reason)
{
	ereport(DEBUG2,
			(errmsg_internal("%s is not truncated: %s",
							 ring_table_name(table), reason)));
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
static bool
has_dump(void)
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
ring_is_whole(int segment, Snapshot snapshot)
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
 * Lock a table and its TOAST table against all others, and open the table;
 * without waiting if "wait" is not set.  Returns false if others have locked
 * one of them, or a dump is running.
 */
bool
ring_lock_table(int table, bool wait, Relation *rel)
{
	Oid			relid = catalog_segment_oid(table);
	Oid			toast;

	if (has_dump())
	{
		ring_log_kept(table, "pg_dump is connected");
		return false;
	}
	if (wait)
		LockRelationOid(relid, AccessExclusiveLock);
	else if (!ConditionalLockRelationOid(relid, AccessExclusiveLock))
	{
		ring_log_kept(table, "another transaction has locked it");
		return false;
	}
	*rel = catalog_open_locked(relid);
	toast = (*rel)->rd_rel->reltoastrelid;

	/* Vacuum may be at work there without a lock on the table. */
	if (!OidIsValid(toast) ||
		ConditionalLockRelationOid(toast, AccessExclusiveLock))
		return true;
	ring_log_kept(table, "another transaction has locked it");
	table_close(*rel, AccessExclusiveLock);
	return false;
}

/*
 * Truncate a table that ring_lock_table() has opened, and of which no row is
 * to be kept.
 */
void
ring_truncate(int table, Relation rel)
{
	CheckTableNotInUse(rel, "TRUNCATE");

	/* Without pages, sessions only have to learn that it is empty. */
	if (RelationGetNumberOfBlocks(rel) > 0)
	{
		ereport(DEBUG1,
				(errmsg_internal("truncating %s, which has %u pages",
								 ring_table_name(table),
								 RelationGetNumberOfBlocks(rel))));
		truncating = true;
		compat_truncate(rel);
		truncating = false;

		/* Write when that was, for dumps. */
		if (table < ALL_SEGMENTS)
		{
			Relation	segments = catalog_open(CATALOG_SEGMENT,
												RowExclusiveLock, NULL);
			int			column = Anum_segment_truncated_at;
			Datum		now = TimestampTzGetDatum(GetCurrentTimestamp());

			row_set_columns(segments, fetch_segment_row(segments, table), 1,
							&column, &now);
			table_close(segments, NoLock);
			database_count(COUNT_TRUNCATED, 1);
		}

		/*
		 * A dump that has begun since the table was locked may have a
		 * snapshot that does not show that row, and would fail.  An error
		 * takes the truncation back.
		 */
		if (has_dump())
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("pg_dump has connected while %s was being truncated",
							table < ALL_SEGMENTS ? "a segment" :
							"a table of the history")));
	}
	segment_set_empty(table);
}

/*
 * Returns whether the TRUNCATE for which a trigger is called is one of this
 * file.  After an error it goes on to return true, but only the worker
 * truncates, and it runs no other SQL.
 */
bool
ring_is_truncating(void)
{
	return truncating;
}

/* --- Switching --- */

/* Returns the next empty table after the active one, or NO_SEGMENT. */
static int
next_free_table(const Ring *ring, int active)
{
	for (int i = 1; i < ring->n; i++)
	{
		int			table = ring->first + (active - ring->first + i) % ring->n;

		if (!segment_is_free(table))
			continue;
		if (!message_table_has_pages(table))
			return table;

		/*
		 * Plain SQL has written to it, so it is not free after all, nor can
		 * it be chosen before it was recycled.
		 */
		segment_found_rows(table);
	}
	return NO_SEGMENT;
}

/* Have all tables of a ring visited, but for the active one. */
static void
check_tables(const Ring *ring, RingState *state)
{
	uint64		bits = (((uint64) 1 << ring->n) - 1) << ring->first;

	pg_atomic_fetch_or_u64(&state->changed, bits);
}

/* Steps 2 to 4 of switching, see NOTES */
static void
make_active(RingId id, int active, int next, RingState *state)
{
	const Ring *ring = &catalog_rings[id];
	int			columns[2] = {ring->active, ring->switched_at};
	Datum		values[2];
	ScanKeyData key;
	MessageTable table;
	Relation	rel;

	if (id < RING_HISTORY)
	{
		ereport(DEBUG1,
				(errmsg_internal("segment %d becomes active: about %llu bytes were written to segment %d",
								 next,
								 (unsigned long long) pg_atomic_read_u64(&state->written[id]),
								 active)));
		message_table_open(&table, next, RowExclusiveLock);
	}
	else
		ereport(DEBUG1,
				(errmsg_internal("%s becomes active", ring_table_name(next))));
	rel = catalog_open(ring->row, RowExclusiveLock, NULL);
	ScanKeyInit(&key, ring->active, BTEqualStrategyNumber, F_INT2EQ,
				Int16GetDatum(active - ring->base));
	values[0] = Int16GetDatum(next - ring->base);
	values[1] = TimestampTzGetDatum(GetCurrentTimestamp());
	row_set_columns(rel, row_fetch(rel, InvalidOid, &key, 1), 2, columns,
					values);

	/* An update of a row does not make sessions read the table again. */
	CacheInvalidateRelcache(rel);
	table_close(rel, NoLock);
	pg_atomic_write_u32(&state->active[id], (uint32) next);
	if (id < RING_HISTORY)
	{
		message_table_close(&table, true);
		pg_atomic_write_u64(&state->written[id], 0);
		pg_atomic_fetch_add_u32(&state->switches, 1);
		database_count(COUNT_SWITCHES, 1);
	}

	/* Have all tables checked, above all the one that was active. */
	check_tables(ring, state);
}

/*
 * Switch a ring to its next table if it is time.  Returns false if it is not,
 * or no table is free, and lowers *again to when to try again, if that is
 * known.
 */
static bool
switch_ring(const RingKind *kind, RingId id, RingState *state,
			TimestampTz *again)
{
	int			active = catalog_active_table(id);
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz switched_at = catalog_switched_at(id);
	TimestampTz due;
	uint64		written = pg_atomic_read_u64(&state->written[id]);
	int			next;

	/* A superuser has deleted the row of the ring. */
	if (active == NO_SEGMENT)
		return false;

	/* It is wrong after a server start, or a switch that has failed. */
	pg_atomic_write_u32(&state->active[id], (uint32) active);

	/* If the last switch seems to be in the future, the clock was set back. */
	due = kind->switch_at(id, active, switched_at > now ? DT_NOBEGIN :
						  switched_at, state);
	if (due > now)
	{
		*again = Min(*again, due);
		return false;
	}
	next = next_free_table(&catalog_rings[id], active);
	if (next != NO_SEGMENT)
	{
		make_active(id, active, next, state);
		return true;
	}

	/*
	 * Perhaps one has become empty and shared memory does not know it: have
	 * all segments checked.  Once is enough until more was written, so that a
	 * full ring to which nobody writes is left alone.  The session that
	 * writes wakes the worker.
	 */
	if (written != written_then[id])
	{
		ereport(DEBUG1,
				(errmsg_internal("segment %d stays active: no other one is empty",
								 active)));
		written_then[id] = written;
		*again = Min(*again, now + RETRY_PAUSE);
		check_tables(&catalog_rings[id], state);
	}
	return false;
}

/* --- Recycling --- */

/* Attend to a table that is not active. */
static void
visit_table(const RingKind *kind, RingId id, int table, RingState *state)
{
	TimestampTz began = GetCurrentTimestamp();
	TimestampTz again = began;
	uint64		bit = (uint64) 1 << table;
	volatile bool done = false;

	/*
	 * A user may keep others away from the table, and we wait for no user.
	 * The table's bit in "changed" stays, so it is visited again.
	 */
	visit_at[table] = began + VISIT_PAUSE;
	if (!ConditionalLockRelationOid(catalog_segment_oid(table), kind->lock))
	{
		ring_log_kept(table, "another transaction has locked it");
		return;
	}

	/*
	 * If an error ends the visit, the next one comes after ERROR_PAUSE, so
	 * that the other tables come first.
	 */
	visit_at[table] = began + ERROR_PAUSE;

	/* Before the survey: it may miss what is deleted from here on. */
	pg_atomic_fetch_and_u64(&state->changed, ~bit);
	PG_TRY();
	{
		done = kind->recycle(id, table, began, &again);
	}
	PG_FINALLY();
	{
		if (!done)
			pg_atomic_fetch_or_u64(&state->changed, bit);
	}
	PG_END_TRY();
	visit_at[table] = again;
}

/*
 * Visit the table whose time has come first.  Returns false if there is none,
 * and lowers *again to when there will be one.
 */
static bool
visit_next(const RingKind *kind, RingState *state, TimestampTz *again)
{
	TimestampTz now = GetCurrentTimestamp();
	uint64		changed = pg_atomic_read_u64(&state->changed);
	TimestampTz due = DT_NOEND;
	RingId		ring = kind->first;
	int			table = NO_SEGMENT;

	for (RingId id = kind->first; id < kind->first + kind->n; id++)
	{
		const Ring *r = &catalog_rings[id];
		TimestampTz latest = now + RING_PAUSE_MAX + r->keep_max * USECS_PER_SEC;

		for (int i = r->first; i < r->first + r->n; i++)
		{
			/* If it is too far ahead, the clock was set back since. */
			TimestampTz at = visit_at[i] <= latest ? visit_at[i] : DT_NOBEGIN;

			/* An active table has its turn after the ring has switched. */
			if (i == catalog_active_table(id) || segment_is_free(i) ||
				(changed & ((uint64) 1 << i)) == 0 || at >= due)
				continue;
			ring = id;
			table = i;
			due = at;
		}
	}
	if (due > now)
	{
		*again = Min(*again, due);
		return false;
	}
	visit_table(kind, ring, table, state);
	return true;
}

/* Have a table visited at once, if its bit in "changed" is set. */
void
ring_visit_soon(int table)
{
	visit_at[table] = DT_NOBEGIN;
}

/* --- One step --- */

/*
 * Switch one ring of this kind, or attend to one table; the caller commits.
 * Returns false if there is nothing to do before *again.
 */
bool
ring_step(const RingKind *kind, TimestampTz *again)
{
	RingState  *state = segment_state_own();
	bool		is_new = remembered[kind->id] != catalog_queue_oid();
	bool		is_due;

	*again = DT_NOEND;
	if (state == NULL)
		return false;

	/* A new worker, or one that finds another extension, knows nothing. */
	if (is_new)
	{
		memset(visit_at, 0, sizeof(visit_at));
		for (RingId id = kind->first; id < kind->first + kind->n; id++)
			check_tables(&catalog_rings[id], state);
	}

	is_due = kind->begin(is_new, state, again);
	remembered[kind->id] = catalog_queue_oid();
	if (!is_due)
		return false;
	for (RingId id = kind->first; id < kind->first + kind->n; id++)
		if (switch_ring(kind, id, state, again))
			return true;
	return visit_next(kind, state, again);
}
