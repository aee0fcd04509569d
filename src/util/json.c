/*-------------------------------------------------------------------------
 *
 * json.c
 *	  Fields of JSON objects.
 *
 * src/util/json.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/fmgrprotos.h"
#include "utils/numeric.h"

#include "util/json.h"

static void add_json_field(JsonbInState *state, const char *key,
						   JsonbValue *value);

/*
 * Get the integer that a JSON value is.  Returns false if it is not an
 * integer.
 */
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
	if (*end == '.')			/* 60.0 is an integer, too */
		end += 1 + strspn(end + 1, "0");
	return *end == '\0';
}

/* Returns whether a value is the JSON null. */
bool
json_is_null(Jsonb *value)
{
	JsonbValue	v;

	return JB_ROOT_IS_SCALAR(value) && JsonbExtractScalar(&value->root, &v) &&
		v.type == jbvNull;
}

/*
 * Get the value of a key of an object.  Returns false if it has no such key.
 */
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

/* Returns an object, which may be NULL, with these fields set. */
Jsonb *
json_merge(Jsonb *object, Jsonb *fields)
{
	if (object == NULL)
		return fields;
	return DatumGetJsonbP(DirectFunctionCall2(jsonb_concat,
											  JsonbPGetDatum(object),
											  JsonbPGetDatum(fields)));
}

static void
add_json_field(JsonbInState *state, const char *key, JsonbValue *value)
{
	JsonbValue	k;

	k.type = jbvString;
	k.val.string.val = unconstify(char *, key);
	k.val.string.len = strlen(key);
	compat_push_jsonb(state, WJB_KEY, &k);
	compat_push_jsonb(state, WJB_VALUE, value);
}

/* Add a string to an object that is being built. */
void
json_add_text(JsonbInState *state, const char *key, const char *value)
{
	JsonbValue	v;

	v.type = jbvString;
	v.val.string.val = unconstify(char *, value);
	v.val.string.len = strlen(value);
	add_json_field(state, key, &v);
}

/* Add a value to an object that is being built; NULL: a JSON null. */
void
json_add_jsonb(JsonbInState *state, const char *key, Jsonb *value)
{
	JsonbValue	v;

	v.type = value == NULL ? jbvNull : jbvBinary;
	if (value != NULL)
	{
		v.val.binary.data = &value->root;
		v.val.binary.len = VARSIZE(value) - VARHDRSZ;
	}
	add_json_field(state, key, &v);
}

/* Add an integer to an object that is being built. */
void
json_add_integer(JsonbInState *state, const char *key, int64 value)
{
	JsonbValue	v;

	v.type = jbvNumeric;
	v.val.numeric = int64_to_numeric(value);
	add_json_field(state, key, &v);
}
