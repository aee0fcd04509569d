/*-------------------------------------------------------------------------
 *
 * api_arg.h
 *	  What SQL functions share: checks, arguments, and the rows that they
 *	  return.
 *
 * src/api/api_arg.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_API_ARG_H
#define QUEUE_API_ARG_H

#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/array.h"
#include "utils/jsonb.h"

#include "claim/claim.h"
#include "queue/message_result.h"
#include "storage/claim_id.h"

/* Checks */
extern void api_check_can_write(const char *function);
extern bool api_has_rows(FunctionCallInfo fcinfo);
extern Datum api_check_left(FunctionCallInfo fcinfo, const char *name);
extern void api_notice_no_worker(const char *effect);
extern TriggerData *api_check_trigger(FunctionCallInfo fcinfo,
									  const char *function);

/* Arguments; see also util/args.h */
extern Datum arg_required(FunctionCallInfo fcinfo, int arg,
						  const char *argname);
extern int	arg_int(FunctionCallInfo fcinfo, int arg, const char *argname);
extern char *arg_text(FunctionCallInfo fcinfo, int arg);
extern const char *arg_queue_name(FunctionCallInfo fcinfo, int arg,
								  const char *argname);
extern const char *arg_queue_to_write(FunctionCallInfo fcinfo,
									  const char *argname, const char *function);
extern const char **arg_queue_names(ArrayType *array, int *n);
extern int	arg_ids(FunctionCallInfo fcinfo, int arg, Datum **ids);
extern void arg_claim_terms(FunctionCallInfo fcinfo, int first,
							ClaimTerms *terms);
extern Jsonb *arg_check_result(Jsonb *result, int more);
extern bool arg_claim_id(FunctionCallInfo fcinfo, int arg, const Queue *queue,
						 ClaimId *claim);

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
extern void api_row_add_time(ApiRow *row, TimestampTz time);

/* Returning the row, in a set or as the only one */
extern void api_row_put(ApiRow *row, FunctionCallInfo fcinfo);
extern Datum api_row_return(ApiRow *row, FunctionCallInfo fcinfo);

/* Messages as rows */
extern void api_begin_messages(FunctionCallInfo fcinfo,
							   MessageResult *result);

#endif							/* QUEUE_API_ARG_H */
