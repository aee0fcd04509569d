/*-------------------------------------------------------------------------
 *
 * attributes.c
 *	  The attributes of a message.
 *
 * NOTES
 *	  Attributes are a jsonb object in a column that is NULL for nearly all
 *	  messages.  They say where a dead letter comes from (dead_letter.c),
 *	  hold the last error of a message that was retried (message_retry), and
 *	  count how often it was given back without having failed, so that
 *	  claim_count can go on to count all deliveries.
 *
 * src/storage/attributes.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "mb/pg_wchar.h"

#include "catalog/tables.h"
#include "storage/attributes.h"
#include "storage/message_row.h"
#include "util/compat.h"
#include "util/json.h"

#define GIVEN_BACK	"given_back"
#define ERROR_MAX	8192		/* bytes of an error that are stored */

static HeapTuple set_attribute(TupleDesc desc, HeapTuple tuple,
							   JsonbInState *state);

/* Returns the attributes of a message, or NULL. */
Jsonb *
attributes_of(TupleDesc desc, HeapTuple tuple)
{
	bool		isnull;
	Datum		attributes = heap_getattr(tuple, Anum_message_attributes, desc,
										  &isnull);

	return isnull ? NULL : DatumGetJsonbP(attributes);
}

/* Returns an attribute that is text, or NULL if there is none. */
char *
attributes_text(Jsonb *attributes, const char *key)
{
	JsonbValue	v;

	if (attributes == NULL || !json_field(attributes, key, &v) ||
		v.type != jbvString)
		return NULL;
	return pnstrdup(v.val.string.val, v.val.string.len);
}

/* Get an attribute that is an integer.  Returns false if there is none. */
bool
attributes_integer(Jsonb *attributes, const char *key, int64 *value)
{
	JsonbValue	v;

	return attributes != NULL && json_field(attributes, key, &v) &&
		json_integer(&v, value);
}

/* Returns as much of an error as is stored with a message. */
char *
attributes_clip_error(const char *error)
{
	return pnstrdup(error, pg_mbcliplen(error, strlen(error), ERROR_MAX));
}

/* Returns how many claims of a message ended without having failed. */
int
attributes_given_back(TupleDesc desc, HeapTuple tuple)
{
	int64		n;

	if (message_row_is_null(tuple, Anum_message_attributes) ||
		!attributes_integer(attributes_of(desc, tuple), GIVEN_BACK, &n))
		return 0;
	return (int) Max(0, Min(n, PG_INT32_MAX));
}

/*
 * Returns how often a message was claimed, without the claims that gave it
 * back without having failed: the claim_count that users see.
 */
int
attributes_claim_count(TupleDesc desc, HeapTuple tuple)
{
	return message_read(tuple).claim_count -
		attributes_given_back(desc, tuple);
}

/* Returns the last error of a message, or NULL if there is none. */
char *
attributes_last_error(TupleDesc desc, HeapTuple tuple)
{
	return attributes_text(attributes_of(desc, tuple), LAST_ERROR);
}

/*
 * Returns a copy of a message's row with the one attribute that was pushed to
 * *state set.
 */
static HeapTuple
set_attribute(TupleDesc desc, HeapTuple tuple, JsonbInState *state)
{
	int			column = Anum_message_attributes;
	bool		isnull = false;
	Datum		value;

	compat_push_jsonb(state, WJB_END_OBJECT, NULL);
	value = JsonbPGetDatum(json_merge(attributes_of(desc, tuple),
									  JsonbValueToJsonb(state->result)));
	return heap_modify_tuple_by_cols(tuple, desc, 1, &column, &value, &isnull);
}

/* Returns a copy of a message's row that was given back once more. */
HeapTuple
attributes_count_given_back(TupleDesc desc, HeapTuple tuple)
{
	JsonbInState state = {0};

	compat_push_jsonb(&state, WJB_BEGIN_OBJECT, NULL);
	json_add_integer(&state, GIVEN_BACK,
					 (int64) attributes_given_back(desc, tuple) + 1);
	return set_attribute(desc, tuple, &state);
}

/* Returns a copy of a message's row with this last error. */
HeapTuple
attributes_set_last_error(TupleDesc desc, HeapTuple tuple, const char *error)
{
	JsonbInState state = {0};

	compat_push_jsonb(&state, WJB_BEGIN_OBJECT, NULL);
	json_add_text(&state, LAST_ERROR, error);
	return set_attribute(desc, tuple, &state);
}
