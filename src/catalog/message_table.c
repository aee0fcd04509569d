/*-------------------------------------------------------------------------
 *
 * message_table.c
 *	  Opening a segment and its indexes.
 *
 * NOTES
 *	  A session that may have written to a segment keeps its lock until the
 *	  end of the transaction, so that the worker does not truncate the segment
 *	  before.
 *
 * src/catalog/message_table.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/pg_am.h"
#include "nodes/primnodes.h"
#include "storage/lmgr.h"

#include "catalog/message_table.h"
#include "catalog/relations.h"
#include "util/xact.h"

static bool is_not_null_predicate(Relation index);
static void open_locked_segment(MessageTable *table, int segment, Oid relid,
								LOCKMODE lockmode);

/* Open a segment and its indexes. */
void
message_table_open(MessageTable *table, int segment, LOCKMODE lockmode)
{
	Oid			relid = catalog_segment_oid(segment);

	Assert(!xact_has_ended);
	LockRelationOid(relid, lockmode);
	open_locked_segment(table, segment, relid, lockmode);
}

/*
 * Open a segment and its indexes without waiting for a lock.  Returns false
 * if one is not available; locks that were taken before stay until the
 * transaction ends.
 */
bool
message_table_try_open(MessageTable *table, int segment, LOCKMODE lockmode)
{
	Oid			relid = catalog_segment_oid(segment);
	List	   *indexes;
	ListCell   *cell;
	Relation	heap;
	bool		all = true;

	if (!ConditionalLockRelationOid(relid, lockmode))
		return false;
	heap = catalog_open_locked(relid);
	indexes = RelationGetIndexList(heap);

	/* REINDEX has a stronger lock on the index than on the table. */
	foreach(cell, indexes)
		all = all && ConditionalLockRelationOid(lfirst_oid(cell), lockmode);
	list_free(indexes);
	table_close(heap, NoLock);
	if (all)
		open_locked_segment(table, segment, relid, lockmode);
	return all;
}

/* Open a segment that is locked, and its indexes. */
static void
open_locked_segment(MessageTable *table, int segment, Oid relid,
					LOCKMODE lockmode)
{
	Oid			index;
	Oid			due_index;

	table->segment = segment;
	table->lockmode = lockmode;
	table->heap = catalog_open_locked(relid);
	catalog_segment_indexes(segment, table->heap, &index, &due_index);
	table->index = index_open(index, lockmode);
	table->due_index = OidIsValid(due_index) ?
		index_open(due_index, lockmode) : NULL;
	table->out = NULL;
	if (lockmode != AccessShareLock)
	{
		table->out = MakeSingleTupleTableSlot(RelationGetDescr(table->heap),
											  &TTSOpsHeapTuple);
		index_list_open(table->heap, segment, &table->all);
	}
}

/* Close what message_table_open() has opened. */
void
message_table_close(MessageTable *table, bool keep_lock)
{
	LOCKMODE	lockmode = keep_lock ? NoLock : table->lockmode;

	if (table->out != NULL)
	{
		ExecDropSingleTupleTableSlot(table->out);
		index_list_close(&table->all);
	}
	if (table->due_index != NULL)
		index_close(table->due_index, lockmode);
	index_close(table->index, lockmode);
	table_close(table->heap, lockmode);
	table->heap = NULL;
}

/* Close all that are open. */
void
message_tables_close(MessageTables *tables, bool keep_locks)
{
	for (int i = 0; i < ALL_SEGMENTS; i++)
		if (tables->items[i].heap != NULL)
			message_table_close(&tables->items[i], keep_locks);
}

/*
 * Returns whether the predicate of an index is that its first column, which is
 * not an expression, is not null.
 */
static bool
is_not_null_predicate(Relation index)
{
	List	   *predicate = RelationGetIndexPredicate(index);
	NullTest   *test = list_length(predicate) == 1 &&
	IsA(linitial(predicate), NullTest) ? linitial(predicate) : NULL;

	return test != NULL && test->nulltesttype == IS_NOT_NULL &&
		IsA(test->arg, Var) &&
		((Var *) test->arg)->varattno == index->rd_index->indkey.values[0];
}

/*
 * Open all indexes of a table that have to get entries: those of the
 * extension, those that an administrator has added, and those that REINDEX
 * CONCURRENTLY is about to build.  Those of a segment that only have messages
 * of batches are left out (storage/batches.c); segment: NO_SEGMENT for another
 * table.
 *
 * An index may be a partial one if its predicate is that its first column is
 * not null, as in those that are left out: REINDEX CONCURRENTLY makes copies
 * of them.
 */
void
index_list_open(Relation rel, int segment, IndexList *indexes)
{
	List	   *oids = RelationGetIndexList(rel);
	ListCell   *cell;

	indexes->nlive = 0;
	indexes->n = 0;
	indexes->has_partial = false;
	indexes->relations = palloc(list_length(oids) * sizeof(Relation));
	foreach(cell, oids)
	{
		Relation	index;

		if (segment != NO_SEGMENT &&
			(lfirst_oid(cell) == catalog_batch_index(segment, false) ||
			 lfirst_oid(cell) == catalog_batch_index(segment, true)))
			continue;
		indexes->nlive++;
		index = index_open(lfirst_oid(cell), RowExclusiveLock);

		/* It is not built yet, and gets no entries before. */
		if (!index->rd_index->indisready)
		{
			index_close(index, RowExclusiveLock);
			continue;
		}

		/* Only plain columns can be entered without the executor. */
		if (index->rd_rel->relam != BTREE_AM_OID ||
			index->rd_index->indisexclusion ||
			RelationGetIndexExpressions(index) != NIL ||
			(RelationGetIndexPredicate(index) != NIL &&
			 !is_not_null_predicate(index)))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("index \"%s\" on table \"%s.%s\" is not a plain btree index",
							RelationGetRelationName(index), CATALOG_SCHEMA,
							RelationGetRelationName(rel)),
					 errdetail("The extension writes to its tables without evaluating expressions and predicates."),
					 errhint("Drop the index.")));
		indexes->has_partial |= RelationGetIndexPredicate(index) != NIL;
		indexes->relations[indexes->n++] = index;
	}
	list_free(oids);
}

/* Close what index_list_open() has opened; the locks stay. */
void
index_list_close(IndexList *indexes)
{
	for (int i = 0; i < indexes->n; i++)
		index_close(indexes->relations[i], NoLock);
	pfree(indexes->relations);
}
