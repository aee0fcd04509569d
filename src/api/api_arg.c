/*-------------------------------------------------------------------------
 *
 * api_arg.c
 *	  What SQL functions share: checks, arguments, and the rows that they
 *	  return.
 *
 * NOTES
 *	  util/args.c has the arguments of other types.
 *
 * src/api/api_arg.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "api/api_arg.h"
#include "catalog/relations.h"
#include "queue/message_result.h"
#include "queue/registry.h"
#include "storage/claim_id.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/settings.h"

static bool notice_given = false;	/* in this session */

static const char *get_queue_name(Datum value, const char *argname);

/*
 * Raise an error where a function that writes cannot run: in a read-only
 * transaction, during recovery, and in a parallel worker, which cannot take
 * the latest snapshot.
 */
void
api_check_can_write(const char *function)
{
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
	PreventCommandDuringRecovery(function);
}

/* Returns whether a function has put rows into its result. */
bool
api_has_rows(FunctionCallInfo fcinfo)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	return tuplestore_tuple_count(rsinfo->setResult) > 0;
}

/*
 * A function has read from a queue without a lock, and has put what it has
 * found into its result.  Raise an error if the queue has left, as
 * queue_check_left() does; otherwise return what the function returns.
 */
Datum
api_check_left(FunctionCallInfo fcinfo, const char *name)
{
	queue_check_left(name, api_has_rows(fcinfo));
	return (Datum) 0;
}

/*
 * Say once in a session what does not work because no background worker runs.
 */
void
api_notice_no_worker(const char *effect)
{
	if (setting_database_workers > 0 || notice_given)
		return;
	notice_given = true;
	ereport(NOTICE,
			(errmsg("no background worker can be started: %s", effect),
			 errhint("Raise \"queue.database_workers\".")));
}

/* Raise an error unless the function was called as a trigger. */
TriggerData *
api_check_trigger(FunctionCallInfo fcinfo, const char *function)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" was not called by trigger manager",
						function)));
	return (TriggerData *) fcinfo->context;
}

/* Get an argument that must not be NULL. */
Datum
arg_required(FunctionCallInfo fcinfo, int arg, const char *argname)
{
	if (PG_ARGISNULL(arg))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("parameter \"%s\" must not be null", argname),
				 errhint("Give a value for \"%s\".", argname)));
	return PG_GETARG_DATUM(arg);
}

/* Get an integer that must not be NULL. */
int
arg_int(FunctionCallInfo fcinfo, int arg, const char *argname)
{
	return DatumGetInt32(arg_required(fcinfo, arg, argname));
}

/* Get a text; NULL for NULL. */
char *
arg_text(FunctionCallInfo fcinfo, int arg)
{
	return PG_ARGISNULL(arg) ? NULL :
		text_to_cstring(PG_GETARG_TEXT_PP(arg));
}

static const char *
get_queue_name(Datum value, const char *argname)
{
	const char *name = TextDatumGetCString(value);

	queue_check_name(name, argname);
	return name;
}

/*
 * Get the name of a queue, which must not be NULL.  As nearly all functions
 * begin with that, and read their other arguments afterwards, we raise an error
 * here if the extension is of an earlier version, whose functions have fewer.
 */
const char *
arg_queue_name(FunctionCallInfo fcinfo, int arg, const char *argname)
{
	(void) catalog_queue_oid();
	return get_queue_name(arg_required(fcinfo, arg, argname), argname);
}

/*
 * Get the name of a queue in the first argument, for a function that writes;
 * see api_check_can_write().
 */
const char *
arg_queue_to_write(FunctionCallInfo fcinfo, const char *argname,
				   const char *function)
{
	const char *name = arg_queue_name(fcinfo, 0, argname);

	api_check_can_write(function);
	return name;
}

/* Get the names in the array of a parameter "queues". */
const char **
arg_queue_names(ArrayType *array, int *n)
{
	Datum	   *elements;
	const char **names;

	*n = arg_elements("queues", array, &elements);
	names = palloc(Max(*n, 1) * sizeof(char *));
	for (int i = 0; i < *n; i++)
		names[i] = get_queue_name(elements[i], "queues");
	return names;
}

/* Get the elements of an argument "ids", and their number. */
int
arg_ids(FunctionCallInfo fcinfo, int arg, Datum **ids)
{
	Datum		array = arg_required(fcinfo, arg, "ids");

	return arg_elements("ids", DatumGetArrayTypeP(array), ids);
}

/* Get the arguments ttl, grace and "limit", which follow each other. */
void
arg_claim_terms(FunctionCallInfo fcinfo, int first, ClaimTerms *terms)
{
	int			ttl = arg_int(fcinfo, first, "ttl");
	int			grace = arg_int(fcinfo, first + 1, "grace");

	terms->ttl = arg_check_claim_ttl(ttl);
	terms->grace = arg_check_grace(grace);
	terms->until = 0;
	terms->limit = PG_ARGISNULL(first + 2) ?
		Min(setting_default_claim_limit, setting_max_claim_limit) :
		arg_check_claim_limit(PG_GETARG_INT32(first + 2));
}

/*
 * Check a result, which may be as large as a body, and that many bytes more.
 * Returns it.
 */
Jsonb *
arg_check_result(Jsonb *result, int more)
{
	if ((int64) VARSIZE(result) > (int64) setting_max_message_size + more)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("result of %d bytes is too large",
						(int) VARSIZE(result)),
				 errdetail("The setting \"queue.max_message_size\" is %d bytes.",
						   setting_max_message_size),
				 errhint("Store the large part elsewhere and refer to it, or have \"queue.max_message_size\" raised.")));
	return result;
}

/*
 * Get the claim id in an argument.  Returns false if it is NULL, malformed or
 * not one of this queue's.
 */
bool
arg_claim_id(FunctionCallInfo fcinfo, int arg, const Queue *queue,
			 ClaimId *claim)
{
	return !PG_ARGISNULL(arg) &&
		claim_id_parse(queue->id, text_to_cstring(PG_GETARG_TEXT_PP(arg)),
					   claim);
}

/* --- Rows that SQL functions return --- */

void
api_row_add(ApiRow *row, Datum value)
{
	api_row_add_or_null(row, value, false);
}

void
api_row_add_or_null(ApiRow *row, Datum value, bool isnull)
{
	Assert(row->n < API_ROW_COLUMNS);
	row->values[row->n] = value;
	row->isnull[row->n++] = isnull;
}

/* Add a text, or null for a NULL pointer. */
void
api_row_add_text(ApiRow *row, const char *text)
{
	api_row_add_or_null(row, text == NULL ? 0 : CStringGetTextDatum(text),
						text == NULL);
}

/* Add a time, or null if there is none: 0, or one that is not finite. */
void
api_row_add_time(ApiRow *row, TimestampTz time)
{
	api_row_add_or_null(row, TimestampTzGetDatum(time),
						time == 0 || !IS_VALID_TIMESTAMP(time));
}

/*
 * Add the row to the set that the function returns.  Columns at its end that
 * were not added are null.
 */
void
api_row_put(ApiRow *row, FunctionCallInfo fcinfo)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	while (row->n < rsinfo->setDesc->natts)
		api_row_add_or_null(row, (Datum) 0, true);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row->values,
						 row->isnull);
}

/* Returns the row as the result of a procedure. */
Datum
api_row_return(ApiRow *row, FunctionCallInfo fcinfo)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
											 row->values, row->isnull));
}

/* Have the SQL function return the messages that are added to the result. */
void
api_begin_messages(FunctionCallInfo fcinfo, MessageResult *result)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	memset(result, 0, sizeof(MessageResult));
	result->store = rsinfo->setResult;
	result->store_desc = rsinfo->setDesc;
}
