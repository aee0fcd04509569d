/*-------------------------------------------------------------------------
 *
 * row_check.c
 *	  Rows that no function of the extension has written.
 *
 * NOTES
 *	  The functions write the tables without the executor, and read them in
 *	  place.  A superuser can write them with SQL, too, and a restore does.
 *	  The tables have constraints, which such SQL obeys, but constraints can be
 *	  dropped, and those that an update of the extension has added do not check
 *	  the rows that were there.  So a row is input: what the code that uses it
 *	  relies on is checked here as the row is read, and a malformed row is an
 *	  error rather than a crash.  The constraints of src/sql have these rules,
 *	  too.
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
#include "utils/float.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "catalog/tables.h"
#include "util/limits.h"

/* The bit of a column in a set of columns */
#define COLUMN(attribute)	(1 << ((attribute) - 1))

/* A row, taken apart */
typedef struct RowValues
{
	Datum		values[Natts_handler];	/* no table has more columns */
	bool		isnull[Natts_handler];
} RowValues;

#define VALUE(row, attribute)	((row)->values[(attribute) - 1])
#define IS_NULL(row, attribute) ((row)->isnull[(attribute) - 1])

/* Returns what is wrong with a row, or NULL. */
typedef const char *(*RowRule) (const RowValues *row);

/* What is checked of a table */
typedef struct TableRules
{
	int			natts;			/* columns; 0 if nothing is checked */
	int			nullable;		/* COLUMN() of those that may be null */
	RowRule		rule;			/* NULL if there is none */
} TableRules;

static const char *queue_problem(const RowValues *row);
static const char *ring_problem(const RowValues *row);
static const char *dedup_key_problem(const RowValues *row);
static const char *root_job_problem(const RowValues *row);
static const char *job_counter_problem(const RowValues *row);
static const char *prepared_count_problem(const RowValues *row);
static const char *handler_problem(const RowValues *row);
static const char *batch_problem(const RowValues *row);
static const char *finished_problem(const RowValues *row);
static const char *finished_ring_problem(const RowValues *row);
static const char *topic_problem(const RowValues *row);

static const TableRules tables[CATALOG_RELATIONS] = {
	[CATALOG_QUEUE] = {Natts_queue,
		COLUMN(Anum_queue_push_roles) | COLUMN(Anum_queue_claim_roles) |
		COLUMN(Anum_queue_admin_roles) | COLUMN(Anum_queue_dead_queue_id) |
	COLUMN(Anum_queue_source_id), queue_problem},
	[CATALOG_RING] = {Natts_ring, 0, ring_problem},
	[CATALOG_SEGMENT] = {Natts_segment},
	[CATALOG_DEDUP_KEY] = {Natts_dedup_key,
		COLUMN(Anum_dedup_key_pushed_at) | COLUMN(Anum_dedup_key_kept_until),
	dedup_key_problem},
	[CATALOG_ROOT_JOB] = {Natts_root_job, 0, root_job_problem},
	[CATALOG_GROUPED] = {Natts_grouped},
	[CATALOG_GROUP_RATE] = {Natts_group_rate},
	[CATALOG_JOB_COUNTER] = {Natts_job_counter,
	COLUMN(Anum_job_counter_last_error), job_counter_problem},
	[CATALOG_PREPARED_COUNT] = {Natts_prepared_count, 0,
	prepared_count_problem},
	[CATALOG_HANDLER] = {Natts_handler,
		COLUMN(Anum_handler_teardown_takes_jsonb) |
		COLUMN(Anum_handler_teardown_schema) |
		COLUMN(Anum_handler_teardown_name) | COLUMN(Anum_handler_stopped) |
		COLUMN(Anum_handler_loaded_by),
	handler_problem},
	[CATALOG_SECRET] = {Natts_secret},
	[CATALOG_SERVER] = {Natts_server},
	[CATALOG_SHARD] = {Natts_shard},
	[CATALOG_PUSH_ORIGIN] = {Natts_push_origin,
	COLUMN(Anum_push_origin_message_id)},
	[CATALOG_BATCH] = {Natts_batch,
		COLUMN(Anum_batch_closed_at) | COLUMN(Anum_batch_finished_at) |
	COLUMN(Anum_batch_shard) | COLUMN(Anum_batch_name), batch_problem},
	[CATALOG_BATCH_PART] = {Natts_batch_part},
	[CATALOG_TOPIC] = {Natts_topic,
		COLUMN(Anum_topic_filter) | COLUMN(Anum_topic_publishers),
	topic_problem},
	[CATALOG_FINISHED_RING] = {Natts_finished_ring, 0, finished_ring_problem}
};

/* Of each table of the history */
static const TableRules finished_rules = {
	Natts_finished,
	COLUMN(Anum_finished_batch) | COLUMN(Anum_finished_group_key) |
	COLUMN(Anum_finished_result) | COLUMN(Anum_finished_error) |
	COLUMN(Anum_finished_body), finished_problem
};

static const TableRules *table_rules_of(Relation rel);
static Size text_length(Datum value);
static const char *row_problem(Relation rel, HeapTuple tuple);

/* --- Rules --- */

/* Returns the number of bytes of a text, without fetching it. */
static Size
text_length(Datum value)
{
	return toast_raw_datum_size(value) - VARHDRSZ;
}

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

static const char *
queue_problem(const RowValues *row)
{
	static const int roles[] = {
		Anum_queue_push_roles, Anum_queue_claim_roles, Anum_queue_admin_roles
	};
	Size		length = text_length(VALUE(row, Anum_queue_name));

	/* 0 stands for no queue. */
	if (DatumGetInt32(VALUE(row, Anum_queue_id)) <= 0)
		return "Its id is not positive.";

	/* Names are copied to buffers of fixed size. */
	if (length == 0 || length > QUEUE_NAME_LENGTH)
		return "Its name is empty or too long.";
	if (text_length(VALUE(row, Anum_queue_project)) > QUEUE_PROJECT_LENGTH)
		return "Its project is too long.";
	for (int i = 0; i < (int) lengthof(roles); i++)
		if (!IS_NULL(row, roles[i]) && !row_array_is_plain(VALUE(row, roles[i])))
			return "One of its arrays of roles has a null or several dimensions.";
	return NULL;
}

static const char *
ring_problem(const RowValues *row)
{
	int			active = DatumGetInt16(VALUE(row, Anum_ring_active));
	int			delayed = DatumGetInt16(VALUE(row, Anum_ring_delayed));

	return active >= 0 && active < MESSAGE_SEGMENTS &&
		delayed >= FIRST_DELAYED_SEGMENT && delayed < ALL_SEGMENTS ? NULL :
		"It names segments that there are not.";
}

static const char *
dedup_key_problem(const RowValues *row)
{
	/* The ids are read as an array of int64. */
	return row_array_is_plain(VALUE(row, Anum_dedup_key_message_ids)) ? NULL :
		"Its array of ids has a null or several dimensions.";
}

static const char *
root_job_problem(const RowValues *row)
{
	TimestampTz at =
	DatumGetTimestampTz(VALUE(row, Anum_root_job_registered_at));

	/* The time is printed, and has no form if it is infinite. */
	return TIMESTAMP_NOT_FINITE(at) ? "Its time is infinite." : NULL;
}

static const char *
job_counter_problem(const RowValues *row)
{
	Pointer		error = DatumGetPointer(VALUE(row, Anum_job_counter_last_error));

	/* Another error is written over it, in place. */
	return IS_NULL(row, Anum_job_counter_last_error) ||
		(!VARATT_IS_EXTERNAL(error) && !VARATT_IS_COMPRESSED(error)) ? NULL :
		"Its last error is compressed, or stored out of line.";
}

static const char *
prepared_count_problem(const RowValues *row)
{
	int32		priorities =
	DatumGetInt32(VALUE(row, Anum_prepared_count_priorities));

	/* Each bit is the number of a list in shared memory. */
	return (priorities & ~((1 << QUEUE_PRIORITIES) - 1)) == 0 ? NULL :
		"Its set of priorities has others than 0 to 9.";
}

static const char *
handler_problem(const RowValues *row)
{
	float4		rate = DatumGetFloat4(VALUE(row, Anum_handler_rate));
	int			nulls = IS_NULL(row, Anum_handler_teardown_takes_jsonb) +
	IS_NULL(row, Anum_handler_teardown_schema) +
	IS_NULL(row, Anum_handler_teardown_name);

	if (DatumGetInt32(VALUE(row, Anum_handler_concurrency)) < 1)
		return "Its concurrency is not positive.";
	if (DatumGetInt32(VALUE(row, Anum_handler_timeout)) < 0)
		return "Its timeout is negative.";

	/* Also if the rate is not a number */
	if (!(rate >= 0 && rate < get_float4_infinity()))
		return "Its rate is negative, infinite or not a number.";
	if (nulls != 0 && nulls != 3)
		return "Some of the columns of its teardown function are null, and some are not.";
	return NULL;
}

static const char *
batch_problem(const RowValues *row)
{
	/* It is added to, and is the age of the batch. */
	return TIMESTAMP_NOT_FINITE(DatumGetTimestampTz(VALUE(row, Anum_batch_created_at))) ?
		"The time when it was created is infinite." : NULL;
}

static const char *
topic_problem(const RowValues *row)
{
	return IS_NULL(row, Anum_topic_publishers) ||
		row_array_is_plain(VALUE(row, Anum_topic_publishers)) ? NULL :
		"Its array of roles has a null or several dimensions.";
}

static const char *
finished_problem(const RowValues *row)
{
	int			outcome = DatumGetInt16(VALUE(row, Anum_finished_outcome));

	/* It is the index of a name. */
	if (outcome < 0 || outcome >= FINISHED_OUTCOMES)
		return "Its outcome is none that there is.";

	/* It is added to. */
	return TIMESTAMP_NOT_FINITE(DatumGetTimestampTz(VALUE(row, Anum_finished_finished_at))) ?
		"The time when the message was finished is infinite." : NULL;
}

static const char *
finished_ring_problem(const RowValues *row)
{
	int			active = DatumGetInt16(VALUE(row, Anum_finished_ring_active));

	return active >= 0 && active < FINISHED_SEGMENTS ? NULL :
		"It names a table that there is not.";
}

/* --- Checking --- */

/* Returns what is checked of the rows of a table, or NULL. */
static const TableRules *
table_rules_of(Relation rel)
{
	for (int i = 0; i < CATALOG_RELATIONS; i++)
		if (catalog_oid(i) == RelationGetRelid(rel))
			return i >= CATALOG_FINISHED_0 && i < CATALOG_FINISHED_0_INDEX ?
				&finished_rules : tables[i].natts > 0 ? &tables[i] : NULL;
	return NULL;
}

/*
 * Returns what is wrong with a row of a table other than a segment, as a
 * sentence; NULL if it is such a row as the functions write.
 */
static const char *
row_problem(Relation rel, HeapTuple tuple)
{
	const TableRules *rules = table_rules_of(rel);
	RowValues	row;

	/* Without a rule and without nulls we need not take the row apart. */
	if (rules == NULL ||
		(rules->rule == NULL && !HeapTupleHasNulls(tuple) &&
		 HeapTupleHeaderGetNatts(tuple->t_data) >= rules->natts))
		return NULL;

	/* A superuser has added columns, for which there is no room here. */
	if (RelationGetNumberOfAttributes(rel) > (int) lengthof(row.values))
		return NULL;
	heap_deform_tuple(tuple, RelationGetDescr(rel), row.values, row.isnull);
	for (int i = 0; i < Min(rules->natts, RelationGetNumberOfAttributes(rel)); i++)
		if (row.isnull[i] && (rules->nullable & (1 << i)) == 0)
			return psprintf("Its column \"%s\" is null.",
							NameStr(TupleDescAttr(RelationGetDescr(rel),
												  i)->attname));
	return rules->rule == NULL ? NULL : rules->rule(&row);
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

/* Raise an error if a row is malformed. */
void
row_check(Relation rel, HeapTuple tuple)
{
	const char *problem = row_problem(rel, tuple);

	if (problem != NULL)
		row_report_malformed(ERROR, rel, tuple, problem);
}

/*
 * Returns whether a row is well-formed.  Warns if it is not, because the
 * caller leaves it out.
 */
bool
row_is_valid(Relation rel, HeapTuple tuple)
{
	const char *problem = row_problem(rel, tuple);

	if (problem != NULL)
		row_report_malformed(WARNING, rel, tuple, problem);
	return problem == NULL;
}

/* Get a column that is never null in a well-formed row. */
Datum
row_getattr(Relation rel, HeapTuple tuple, int attribute)
{
	bool		isnull;

	return heap_getattr(tuple, attribute, RelationGetDescr(rel), &isnull);
}
