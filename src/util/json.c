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

#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/numeric.h"

#include "util/json.h"

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
