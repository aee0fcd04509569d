/*-------------------------------------------------------------------------
 *
 * args.c
 *	  Checks of the arguments of SQL functions.
 *
 * NOTES
 *	  Each function named arg_check_ returns the value if it is within its
 *	  bounds.  Otherwise it raises an error that names the argument, the bound
 *	  and the setting that the bound comes from.
 *
 * src/util/args.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"

#include "util/args.h"
#include "util/limits.h"
#include "util/settings.h"

/*
 * Check a value against two bounds.  The name of a setting is NULL if the
 * bound is fixed.  The unit is a symbol with a space before it, or empty.
 */
int
arg_check_bounds(const char *arg, int64 value, int min,
				 const char *min_setting, int max, const char *max_setting,
				 const char *unit)
{
	bool		low = value < min;
	const char *setting = low ? min_setting : max_setting;

	if (value >= min && value <= max)
		return (int) value;

	/* Two settings contradict each other, so no value fits. */
	if (min > max && min_setting != NULL && max_setting != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("\"%s\" is above \"%s\"", min_setting, max_setting),
				 errdetail("They are %d%s and %d%s, so no value of parameter \"%s\" is accepted.",
						   min, unit, max, unit, arg),
				 errhint("Have \"%s\" lowered, or \"%s\" raised; pg_settings shows where each is set.",
						 min_setting, max_setting)));
	if (setting == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be between %d and %d%s, not %lld",
						arg, min, max, unit, (long long) value),
				 errhint("Give a value between %d and %d.", min, max)));

	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 low ?
			 errmsg("parameter \"%s\" must be at least %d%s (%s), not %lld",
					arg, min, unit, setting, (long long) value) :
			 errmsg("parameter \"%s\" must be at most %d%s (%s), not %lld",
					arg, max, unit, setting, (long long) value),
			 low ?
			 errhint("Give a higher value, or have \"%s\" lowered.", setting) :
			 errhint("Give a lower value, or have \"%s\" raised.", setting)));
}

int
arg_check_ttl(int64 ttl)
{
	return arg_check_bounds("ttl", ttl,
							setting_min_message_ttl, "queue.min_message_ttl",
							setting_max_message_ttl, "queue.max_message_ttl",
							" s");
}

int
arg_check_delay(int64 delay)
{
	return arg_check_bounds("delay", delay, 0, NULL,
							setting_max_message_delay,
							"queue.max_message_delay", " s");
}

int
arg_check_priority(int64 priority)
{
	return arg_check_bounds("priority", priority, 0, NULL,
							QUEUE_PRIORITIES - 1, NULL, "");
}

int
arg_check_claim_ttl(int ttl)
{
	return arg_check_bounds("ttl", ttl,
							setting_min_claim_ttl, "queue.min_claim_ttl",
							setting_max_claim_ttl, "queue.max_claim_ttl",
							" s");
}

int
arg_check_grace(int grace)
{
	return arg_check_bounds("grace", grace,
							setting_min_claim_grace, "queue.min_claim_grace",
							setting_max_claim_grace, "queue.max_claim_grace",
							" s");
}

int
arg_check_claim_limit(int limit)
{
	return arg_check_bounds("limit", limit, 1, NULL,
							setting_max_claim_limit,
							"queue.max_claim_limit", "");
}

int
arg_check_list_limit(int limit)
{
	return arg_check_bounds("limit", limit, 1, NULL, QUEUE_LIST_MAX, NULL, "");
}

/* Arrays of more dimensions are refused, not read as one. */
void
arg_check_array(const char *arg, ArrayType *array)
{
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be a one-dimensional array",
						arg),
				 errhint("Pass one array after the other.")));
}

/*
 * Get the elements of an array of ids or of texts, and their number; none may
 * be NULL.  Texts are names, and it does no harm if a caller nests these.
 */
int
arg_elements(const char *arg, ArrayType *array, Datum **elements)
{
	bool	   *nulls;
	int			n;

	if (ARR_ELEMTYPE(array) == INT8OID)
	{
		arg_check_array(arg, array);
		deconstruct_array(array, INT8OID, sizeof(int64), FLOAT8PASSBYVAL,
						  TYPALIGN_DOUBLE, elements, &nulls, &n);
	}
	else
		deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, elements,
						  &nulls, &n);
	for (int i = 0; i < n; i++)
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("element %d of parameter \"%s\" must not be null",
							i + 1, arg),
					 errhint("Leave it out.")));
	return n;
}

/* Returns at most so many bytes of a text, with dots if some is left out. */
const char *
arg_clip(const char *text, int max)
{
	int			length = strlen(text);
	int			clipped = pg_mbcliplen(text, length, max);

	return clipped == length ? text :
				psprintf("%.*s...", clipped, text);
}
