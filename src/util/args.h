/*-------------------------------------------------------------------------
 *
 * args.h
 *	  Checks of the arguments of SQL functions.
 *
 * src/util/args.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_ARGS_H
#define QUEUE_ARGS_H

#include "utils/array.h"

#define CLIP_LENGTH		100		/* bytes of a user's text in a message */

/* Bounds */
extern int	arg_check_bounds(const char *arg, int64 value,
							 int min, const char *min_setting,
							 int max, const char *max_setting,
							 const char *unit);
extern int	arg_check_ttl(int64 ttl);
extern int	arg_check_delay(int64 delay);
extern int	arg_check_priority(int64 priority);
extern int	arg_check_claim_ttl(int ttl);
extern int	arg_check_grace(int grace);
extern int	arg_check_claim_limit(int limit);
extern int	arg_check_list_limit(int limit);

/* Values */
extern void arg_check_array(const char *arg, ArrayType *array);
extern int	arg_elements(const char *arg, ArrayType *array,
						 Datum **elements);
extern const char *arg_clip(const char *text, int max);

#endif							/* QUEUE_ARGS_H */
