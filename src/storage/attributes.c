/*-------------------------------------------------------------------------
 *
 * attributes.c
 *	  JSON objects, and notes: what is rarely to be known of a message.
 *
 * NOTES
 *	  A note is a jsonb object in a column that is NULL for nearly all
 *	  messages.  It has what a dead letter tells of its origin (dead_letter.c), and
 *	  the last error of a message that was retried (claim_message.c).
 *
 * src/storage/attributes.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/numeric.h"

#include "catalog/tables.h"
#include "storage/attributes.h"
#include "util/json.h"

/* The note of a message, or NULL. */
Jsonb *
attributes_of(TupleDesc desc, HeapTuple tuple)
{
	bool		isnull;
	Datum		attributes = heap_getattr(tuple, Anum_message_attributes, desc, &isnull);

	return isnull ? NULL : DatumGetJsonbP(attributes);
}

/* The text under a key of a note, or NULL. */
char *
attributes_text(Jsonb *attributes, const char *key)
{
	JsonbValue	v;

	if (attributes == NULL || !json_field(attributes, key, &v) || v.type != jbvString)
		return NULL;
	return pnstrdup(v.val.string.val, v.val.string.len);
}

/* The integer under a key of a note; false when there is none. */
bool
attributes_integer(Jsonb *attributes, const char *key, int64 *value)
{
	JsonbValue	v;

	return attributes != NULL && json_field(attributes, key, &v) &&
		json_integer(&v, value);
}

/* The note (NULL: an empty one) with this text under the key. */
Jsonb *
attributes_set_text(Jsonb *attributes, const char *key, const char *value)
{
	JsonbParseState *state = NULL;
	Jsonb	   *field;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	json_add_text(&state, key, value);
	field = JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
	if (attributes == NULL)
		return field;
	return DatumGetJsonbP(DirectFunctionCall2(jsonb_concat,
											  JsonbPGetDatum(attributes),
											  JsonbPGetDatum(field)));
}

/* A copy of the message's row, with this note. */
HeapTuple
attributes_replace(TupleDesc desc, HeapTuple tuple, Jsonb *attributes)
{
	Datum		values[Natts_delayed] = {0};
	bool		isnull[Natts_delayed] = {false};
	bool		replace[Natts_delayed] = {false};

	values[Anum_message_attributes - 1] = JsonbPGetDatum(attributes);
	replace[Anum_message_attributes - 1] = true;
	return heap_modify_tuple(tuple, desc, values, isnull, replace);
}
