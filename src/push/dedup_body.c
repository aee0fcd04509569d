/*-------------------------------------------------------------------------
 *
 * dedup_body.c
 *	  Deduplication keys made from the bodies of messages.
 *
 * NOTES
 *	  The key is a digest of a text form of the body that is the same for all
 *	  bodies that are equal as jsonb: jsonb keeps the keys of an object in one
 *	  order, and numbers are written in their normal form, because 1.0 and 1
 *	  are equal.  The text form is never stored, but keys that clients have
 *	  stored depend on it, so it must not change between versions.
 *
 * src/push/dedup_body.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/numeric.h"

#include "push/dedup_body.h"
#include "util/compat.h"

/* Keys of a body that begin so name its root job (root_job.c). */
#define ROOT_PREFIX		"rootJob"

static bool is_ignored_key(const JsonbValue *key, Datum *ignore, int n);
static void append_json_scalar(StringInfo out, const JsonbValue *value);
static void append_body(StringInfo out, Jsonb *body, Datum *ignore, int n);

/* Returns whether to leave out this key of the body. */
static bool
is_ignored_key(const JsonbValue *key, Datum *ignore, int n)
{
	if (key->val.string.len >= (int) strlen(ROOT_PREFIX) &&
		memcmp(key->val.string.val, ROOT_PREFIX, strlen(ROOT_PREFIX)) == 0)
		return true;
	for (int i = 0; i < n; i++)
	{
		text	   *name = DatumGetTextPP(ignore[i]);

		if ((int) VARSIZE_ANY_EXHDR(name) == key->val.string.len &&
			memcmp(VARDATA_ANY(name), key->val.string.val,
				   key->val.string.len) == 0)
			return true;
	}
	return false;
}

static void
append_json_scalar(StringInfo out, const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvNull:
			appendStringInfoString(out, "null");
			break;
		case jbvBool:
			appendStringInfoString(out, value->val.boolean ? "true" : "false");
			break;
		case jbvNumeric:
			appendStringInfoString(out, numeric_normalize(value->val.numeric));
			break;
		case jbvString:
			escape_json(out, pnstrdup(value->val.string.val,
									  value->val.string.len));
			break;
		default:
			elog(ERROR, "unexpected type of a JSON value: %d",
				 (int) value->type);
	}
}

/*
 * Append the body as text, without the ignored keys.  The text is unambiguous,
 * so two bodies have the same one only if they are equal.
 */
static void
append_body(StringInfo out, Jsonb *body, Datum *ignore, int n)
{
	JsonbIterator *it = JsonbIteratorInit(&body->root);
	JsonbIteratorToken token;
	JsonbValue	v;
	int			depth = 0;

	while ((token = JsonbIteratorNext(&it, &v, false)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		switch (token)
		{
			case WJB_BEGIN_OBJECT:
				appendStringInfoChar(out, '{');
				depth++;
				break;
			case WJB_BEGIN_ARRAY:

				/*
				 * A scalar is in an array of its own, and must not look like
				 * one.
				 */
				appendStringInfoChar(out, v.val.array.rawScalar ? '=' : '[');
				depth++;
				break;
			case WJB_END_OBJECT:
			case WJB_END_ARRAY:
				appendStringInfoChar(out, token == WJB_END_OBJECT ? '}' : ']');
				depth--;
				break;
			case WJB_KEY:
				if (depth == 1 && is_ignored_key(&v, ignore, n))
				{
					(void) JsonbIteratorNext(&it, &v, true);
					break;
				}
				append_json_scalar(out, &v);
				appendStringInfoChar(out, ':');
				break;
			case WJB_VALUE:
			case WJB_ELEM:
				append_json_scalar(out, &v);
				appendStringInfoChar(out, ',');
				break;
			case WJB_DONE:
				break;
		}
	}
}

/*
 * The key of a body: a SHA-256 digest in hexadecimal digits.  Keys of the body
 * that begin with "rootJob", and the n texts in ignore, are left out.
 */
text *
dedup_body_key(Jsonb *body, Datum *ignore, int n)
{
	StringInfoData out;
	Datum		normal;
	Datum		digest;

	initStringInfo(&out);
	append_body(&out, body, ignore, n);
	normal = PointerGetDatum(cstring_to_text_with_len(out.data, out.len));
	digest = DirectFunctionCall1(sha256_bytea, normal);
	return DatumGetTextP(DirectFunctionCall2(binary_encode, digest,
											 CStringGetTextDatum("hex")));
}
