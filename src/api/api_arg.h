/*-------------------------------------------------------------------------
 *
 * api_arg.h
 *	  What several SQL functions do: checks, and names of queues.
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
#include "storage/claim_id.h"

extern void api_check_can_write(const char *function);
extern bool api_has_rows(FunctionCallInfo fcinfo);
extern void api_check_left(FunctionCallInfo fcinfo, const char *name);
extern void api_notice_no_worker(const char *effect);
extern TriggerData *api_check_trigger(FunctionCallInfo fcinfo,
									  const char *function);
extern Datum arg_required(FunctionCallInfo fcinfo, int arg,
						  const char *argname);
extern int	arg_int(FunctionCallInfo fcinfo, int arg, const char *argname);
extern char *arg_text(FunctionCallInfo fcinfo, int arg);
extern void arg_texts(ArrayType *array, const char *argname, Datum **elements,
					  int *n);
extern const char *arg_queue_name(FunctionCallInfo fcinfo, int arg,
								  const char *argname);
extern const char **arg_queue_names(ArrayType *array, int *n);
extern void arg_claim_terms(FunctionCallInfo fcinfo, int first,
							ClaimTerms *terms);
extern Jsonb *arg_check_result(Jsonb *result, int more);
extern bool arg_claim_id(FunctionCallInfo fcinfo, int arg, const Queue *queue,
						 ClaimId *claim);

#endif							/* QUEUE_API_ARG_H */
