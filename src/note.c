/*-------------------------------------------------------------------------
 *
 * note.c
 *	  JSON objects, and notes: what is rarely to be known of a message.
 *
 * NOTES
 *	  A note is a jsonb object in a column that is NULL for nearly all
 *	  messages.  It has what a dead letter tells of its origin (dead.c), and
 *	  the last error of a message that was retried (lease.c).
 *
 * src/note.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/numeric.h"

static void add_field(JsonbParseState **state, const char *key,
					  JsonbValue *value);

/* The integer that a JSON value is; false when it is none. */
bool
json_integer(const JsonbValue *value, int64 *integer)
{
	char	   *text;
	char	   *end;

	if (value->type != jbvNumeric)
		return false;
	text = DatumGetCString(DirectFunctionCall1(numeric_out,
											   NumericGetDatum(value->val.numeric)));
	errno = 0;
	*integer = strtoll(text, &end, 10);
	if (errno != 0 || end == text)
		return false;
	if (*end == '.')			/* 60.0 is an integer */
		end += 1 + strspn(end + 1, "0");
	return *end == '\0';
}

/* The value of a key; false when the object has no such key. */
bool
json_field(Jsonb *object, const char *key, JsonbValue *value)
{
	JsonbValue	wanted;
	JsonbValue *found;

	wanted.type = jbvString;
	wanted.val.string.val = unconstify(char *, key);
	wanted.val.string.len = strlen(key);
	found = findJsonbValueFromContainer(&object->root, JB_FOBJECT, &wanted);
	if (found == NULL)
		return false;
	*value = *found;
	return true;
}

/* The note of a message, or NULL. */
Jsonb *
note_of(TupleDesc desc, HeapTuple tuple)
{
	bool		isnull;
	Datum		note = heap_getattr(tuple, Anum_message_note, desc, &isnull);

	return isnull ? NULL : DatumGetJsonbP(note);
}

/* The text under a key of a note, or NULL. */
char *
note_text(Jsonb *note, const char *key)
{
	JsonbValue	v;

	if (note == NULL || !json_field(note, key, &v) || v.type != jbvString)
		return NULL;
	return pnstrdup(v.val.string.val, v.val.string.len);
}

/* The integer under a key of a note; false when there is none. */
bool
note_integer(Jsonb *note, const char *key, int64 *value)
{
	JsonbValue	v;

	return note != NULL && json_field(note, key, &v) &&
		json_integer(&v, value);
}

static void
add_field(JsonbParseState **state, const char *key, JsonbValue *value)
{
	JsonbValue	k;

	k.type = jbvString;
	k.val.string.val = unconstify(char *, key);
	k.val.string.len = strlen(key);
	pushJsonbValue(state, WJB_KEY, &k);
	pushJsonbValue(state, WJB_VALUE, value);
}

/* Add a field to an object that is being made. */
void
json_add_text(JsonbParseState **state, const char *key, const char *value)
{
	JsonbValue	v;

	v.type = jbvString;
	v.val.string.val = unconstify(char *, value);
	v.val.string.len = strlen(value);
	add_field(state, key, &v);
}

void
json_add_integer(JsonbParseState **state, const char *key, int64 value)
{
	JsonbValue	v;

	v.type = jbvNumeric;
	v.val.numeric = int64_to_numeric(value);
	add_field(state, key, &v);
}

/* The note (NULL: an empty one) with this text under the key. */
Jsonb *
note_set_text(Jsonb *note, const char *key, const char *value)
{
	JsonbParseState *state = NULL;
	Jsonb	   *field;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	json_add_text(&state, key, value);
	field = JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
	if (note == NULL)
		return field;
	return DatumGetJsonbP(DirectFunctionCall2(jsonb_concat,
											  JsonbPGetDatum(note),
											  JsonbPGetDatum(field)));
}

/* A copy of the message's row, with this note. */
HeapTuple
note_replace(TupleDesc desc, HeapTuple tuple, Jsonb *note)
{
	Datum		values[Natts_parked] = {0};
	bool		isnull[Natts_parked] = {false};
	bool		replace[Natts_parked] = {false};

	values[Anum_message_note - 1] = JsonbPGetDatum(note);
	replace[Anum_message_note - 1] = true;
	return heap_modify_tuple(tuple, desc, values, isnull, replace);
}
