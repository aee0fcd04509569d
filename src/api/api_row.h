/*-------------------------------------------------------------------------
 *
 * api_row.h
 *	  Rows that SQL functions return.
 *
 * src/api/api_row.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_API_ROW_H
#define QUEUE_API_ROW_H

#include "fmgr.h"

#include "queue/message_result.h"

#define API_ROW_COLUMNS		24	/* at most */

/* A row to which columns are added from left to right; begins as zeros. */
typedef struct ApiRow
{
	int			n;
	Datum		values[API_ROW_COLUMNS];
	bool		isnull[API_ROW_COLUMNS];
} ApiRow;

/* Adding columns */
extern void api_row_add(ApiRow *row, Datum value);
extern void api_row_add_or_null(ApiRow *row, Datum value, bool isnull);
extern void api_row_add_text(ApiRow *row, const char *text);

/* Returning the row, in a set or as the only one */
extern void api_row_put(ApiRow *row, FunctionCallInfo fcinfo);
extern Datum api_row_return(ApiRow *row, FunctionCallInfo fcinfo);

/* Messages as rows */
extern void api_begin_messages(FunctionCallInfo fcinfo,
							   MessageResult *result);

#endif							/* QUEUE_API_ROW_H */
