/*-------------------------------------------------------------------------
 *
 * row_check.c
 *	  Rows that no function of the extension has written.
 *
 * NOTES
 *	  The functions write the tables without the executor, and read them in
 *	  place.  A superuser can write them with SQL, too, and a restore does.
 *	  The constraints of the tables (src/sql) say what such rows have to be.
 *	  But constraints can be dropped, and a row without them must not make the
 *	  code read or write beyond what there is.  So what memory depends on is
 *	  checked here as a row is read: that columns are not null, the length of
 *	  what is copied, the shape of what is read in place, and the bounds of
 *	  what is an index.  What a value means is for the constraints alone.
 *
 *	  Code that looks for one row raises an error, which names the row.  Code
 *	  that goes over many rows, for the worker or a listing, leaves the row out
 *	  with a warning, because the queues of other rows must still be served.
 *
 *	  This is about the tables of relations.c.  storage/message_row.c checks
 *	  messages.
 *
 * src/catalog/row_check.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "storage/itemptr.h"
#include "utils/array.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "catalog/tables.h"
#include "util/limits.h"

/* The bit of a column in a set of columns */
#define COLUMN(attribute)	(1 << ((attribute) - 1))

/* What a column has to be besides not null */
typedef enum ColumnRule
{
	RULE_INDEX,					/* int2 from min to max: indexes an array */
	RULE_LENGTH,				/* text of at most max bytes: is copied to a
								 * buffer of that size */
	RULE_ARRAY,					/* one dimension, no nulls: its elements are
								 * read in place */
	RULE_IN_ROW					/* text, neither compressed nor stored out of
								 * line: is overwritten in place */
} ColumnRule;

typedef struct ColumnCheck
{
	int			attribute;		/* 0 ends the list */
	ColumnRule	rule;
	int			min;
	int			max;
} ColumnCheck;

/* What is checked of a table, besides that its columns are not null */
typedef struct TableRules
{
	int			nullable;		/* COLUMN() of those that may be null */
	ColumnCheck columns[6];
} TableRules;

static const TableRules tables[CATALOG_RELATIONS] = {
	[CATALOG_QUEUE] = {
		COLUMN(Anum_queue_push_roles) | COLUMN(Anum_queue_claim_roles) |
		COLUMN(Anum_queue_admin_roles) | COLUMN(Anum_queue_dead_queue_id) |
		COLUMN(Anum_queue_source_id),
		{
			{Anum_queue_name, RULE_LENGTH, 1, QUEUE_NAME_LENGTH},
			{Anum_queue_project, RULE_LENGTH, 0, QUEUE_PROJECT_LENGTH},
			{Anum_queue_push_roles, RULE_ARRAY},
			{Anum_queue_claim_roles, RULE_ARRAY},
			{Anum_queue_admin_roles, RULE_ARRAY}
		}
	},
	[CATALOG_RING] = {0,
		{
			{Anum_ring_active, RULE_INDEX, 0, MESSAGE_SEGMENTS - 1},
			{Anum_ring_delayed, RULE_INDEX, FIRST_DELAYED_SEGMENT,
			ALL_SEGMENTS - 1}
		}
	},
	[CATALOG_DEDUP_KEY] = {
		COLUMN(Anum_dedup_key_pushed_at) | COLUMN(Anum_dedup_key_kept_until),
		{
			{Anum_dedup_key_message_ids, RULE_ARRAY}
		}
	},
	[CATALOG_JOB_COUNTER] = {
		COLUMN(Anum_job_counter_last_error),
		{
			{Anum_job_counter_last_error, RULE_IN_ROW}
		}
	},
	[CATALOG_HANDLER] = {
		COLUMN(Anum_handler_teardown_takes_jsonb) |
		COLUMN(Anum_handler_teardown_schema) |
		COLUMN(Anum_handler_teardown_name) | COLUMN(Anum_handler_stopped) |
	COLUMN(Anum_handler_loaded_by)},
	[CATALOG_PUSH_ORIGIN] = {COLUMN(Anum_push_origin_message_id)},
	[CATALOG_BATCH] = {
		COLUMN(Anum_batch_closed_at) | COLUMN(Anum_batch_finished_at) |
	COLUMN(Anum_batch_shard) | COLUMN(Anum_batch_name)},
	[CATALOG_TOPIC] = {
		COLUMN(Anum_topic_filter) | COLUMN(Anum_topic_publishers),
		{
			{Anum_topic_publishers, RULE_ARRAY}
		}
	}
};

/* Of each table of the history */
static const TableRules finished_rules = {
	COLUMN(Anum_finished_batch) | COLUMN(Anum_finished_group_key) |
	COLUMN(Anum_finished_result) | COLUMN(Anum_finished_error) |
	COLUMN(Anum_finished_body),
	{
		{Anum_finished_outcome, RULE_INDEX, 0, FINISHED_OUTCOMES - 1}
	}
};

static bool value_is_valid(const ColumnCheck *check, Datum value);
static int	find_malformed_column(Relation rel, HeapTuple tuple);

/*
 * Returns whether an array has one dimension, or none, and no nulls, so that
 * code may read its elements in place.
 */
bool
row_array_is_plain(Datum value)
{
	ArrayType  *array = DatumGetArrayTypeP(value);
	bool		result = ARR_NDIM(array) <= 1 && !array_contains_nulls(array);

	if ((Pointer) array != DatumGetPointer(value))
		pfree(array);
	return result;
}

/* Returns whether a value that is not null obeys its rule. */
static bool
value_is_valid(const ColumnCheck *check, Datum value)
{
	Pointer		pointer = DatumGetPointer(value);
	Size		length;

	switch (check->rule)
	{
		case RULE_INDEX:
			return DatumGetInt16(value) >= check->min &&
				DatumGetInt16(value) <= check->max;
		case RULE_LENGTH:
			/* The length, without fetching the text */
			length = toast_raw_datum_size(value) - VARHDRSZ;
			return length >= (Size) check->min &&
				length <= (Size) check->max;
		case RULE_ARRAY:
			return row_array_is_plain(value);
		case RULE_IN_ROW:
			return !VARATT_IS_EXTERNAL(pointer) &&
				!VARATT_IS_COMPRESSED(pointer);
	}
	return false;				/* keep compiler quiet */
}

/*
 * Returns the number of a column of a table other than a segment that is null
 * and must not be, or does not obey its rule; 0 if there is none.
 */
static int
find_malformed_column(Relation rel, HeapTuple tuple)
{
	const TableRules *rules = NULL;
	int			natts = RelationGetNumberOfAttributes(rel);

	for (int i = 0; i < CATALOG_RELATIONS && rules == NULL; i++)
		if (catalog_oid(i) == RelationGetRelid(rel))
			rules = i >= CATALOG_FINISHED_0 ? &finished_rules : &tables[i];
	if (rules == NULL)
		return 0;

	/* Most rows have no nulls; a short row lacks its last columns. */
	if (HeapTupleHasNulls(tuple) ||
		HeapTupleHeaderGetNatts(tuple->t_data) < natts)
	{
		for (int i = 1; i <= natts; i++)
			if ((rules->nullable & COLUMN(i)) == 0 &&
				heap_attisnull(tuple, i, RelationGetDescr(rel)))
				return i;
	}
	for (const ColumnCheck *check = rules->columns; check->attribute != 0; check++)
	{
		bool		isnull;
		Datum		value = heap_getattr(tuple, check->attribute,
										 RelationGetDescr(rel), &isnull);

		if (!isnull && !value_is_valid(check, value))
			return check->attribute;
	}
	return 0;
}

/*
 * Report a malformed row of any table of the extension: as an ERROR, or as a
 * WARNING where the caller leaves the row out.
 */
void
row_report_malformed(int elevel, Relation rel, HeapTuple tuple,
					 const char *problem)
{
	ereport(elevel,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 elevel == WARNING ?
			 errmsg("ignoring a malformed row of table \"%s.%s\"",
					CATALOG_SCHEMA, RelationGetRelationName(rel)) :
			 errmsg("a row of table \"%s.%s\" is malformed",
					CATALOG_SCHEMA, RelationGetRelationName(rel)),
			 errdetail_internal("%s", problem),
			 errhint("No function writes such a row. As a superuser, correct or delete it: the row WHERE ctid = '(%u,%u)'.",
					 ItemPointerGetBlockNumber(&tuple->t_self),
					 ItemPointerGetOffsetNumber(&tuple->t_self))));
}

/*
 * Returns whether a row is well-formed.  If it is not, this is an ERROR, or
 * with that level a WARNING, because the caller leaves the row out.
 */
bool
row_check(int elevel, Relation rel, HeapTuple tuple)
{
	int			column = find_malformed_column(rel, tuple);

	if (column == 0)
		return true;
	row_report_malformed(elevel, rel, tuple,
						 psprintf("Its column \"%s\" is null, or of a form that no function writes.",
								  NameStr(TupleDescAttr(RelationGetDescr(rel),
														column - 1)->attname)));
	return false;
}

/* Get a column that is never null in a well-formed row. */
Datum
row_getattr(Relation rel, HeapTuple tuple, int attribute)
{
	bool		isnull;

	return heap_getattr(tuple, attribute, RelationGetDescr(rel), &isnull);
}
