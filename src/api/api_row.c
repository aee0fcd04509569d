/*-------------------------------------------------------------------------
 *
 * api_row.c
 *	  Rows that SQL functions return.
 *
 * src/api/api_row.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "api/api_row.h"
#include "queue/message_result.h"
#include "util/compat.h"

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

/* Add the row to the set that the function returns. */
void
api_row_put(ApiRow *row, FunctionCallInfo fcinfo)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	/* An extension that is older than the library may have fewer columns. */
	Assert(row->n >= rsinfo->setDesc->natts);
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
	message_result_to_store(result, rsinfo->setResult, rsinfo->setDesc);
}
