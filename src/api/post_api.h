/*-------------------------------------------------------------------------
 *
 * post_api.h
 *	  Arrays of messages as JSON.
 *
 * src/api/post_api.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_POST_API_H
#define QUEUE_POST_API_H

#include "util/compat.h"
#include "utils/jsonb.h"

extern void post_of_step(Jsonb *array, const char *name);

#endif							/* QUEUE_POST_API_H */
