/*-------------------------------------------------------------------------
 *
 * claim_api.h
 *	  Arguments of the SQL functions that claim; only for the files of api/.
 *
 * src/api/claim_api.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLAIM_API_H
#define QUEUE_CLAIM_API_H

#include "utils/array.h"

extern const char **arg_queue_names(ArrayType *array, int *n);

#endif							/* QUEUE_CLAIM_API_H */
