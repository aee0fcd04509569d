/*-------------------------------------------------------------------------
 *
 * json.h
 *	  Fields of JSON objects.
 *
 * src/util/json.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_JSON_H
#define QUEUE_JSON_H

#include "util/compat.h"
#include "utils/jsonb.h"

extern bool json_integer(const JsonbValue *value, int64 *integer);
extern bool json_is_null(Jsonb *value);
extern bool json_field(Jsonb *object, const char *key, JsonbValue *value);
extern Jsonb *json_merge(Jsonb *object, Jsonb *fields);
extern void json_add_text(JsonbInState *state, const char *key,
						  const char *value);
extern void json_add_jsonb(JsonbInState *state, const char *key,
						   Jsonb *value);
extern void json_add_integer(JsonbInState *state, const char *key,
							 int64 value);

#endif							/* QUEUE_JSON_H */
