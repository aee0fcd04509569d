/*-------------------------------------------------------------------------
 *
 * proxy_api.c
 *	  A function for the extension queue_proxy.
 *
 * src/api/proxy_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "util/compat.h"

PG_FUNCTION_INFO_V1(sql_queue_call_settings);

/* In the order of queue_proxy.settings() */
static const char *const call_settings[] = {
	"queue.project",
	"queue.client_id",
	"queue.durable_claims",
	"lock_timeout",
	"transaction_read_only"
};

/*
 * queue_router.call_settings(settings text[]) returns boolean
 *
 * Sets queue.project, queue.client_id, queue.durable_claims, lock_timeout and
 * transaction_read_only, in this order, until the transaction ends.  NULL
 * leaves a setting as it is.  The router calls this in the statement of a
 * call.
 *
 * Result: true.
 * Errors: those of SET; 22023 another number of values.
 */
Datum
sql_queue_call_settings(PG_FUNCTION_ARGS)
{
	Datum	   *values;
	bool	   *nulls;
	int			n;

	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false,
					  TYPALIGN_INT, &values, &nulls, &n);
	if (n != lengthof(call_settings))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must have %d elements, not %d",
						"settings", (int) lengthof(call_settings), n),
				 errhint("Update the extension queue_proxy of the router.")));
	for (int i = 0; i < n; i++)
	{
		const char *current;
		const char *value;

		if (nulls[i])
			continue;
		current = GetConfigOption(call_settings[i], true, false);
		value = TextDatumGetCString(values[i]);

		/* To set a setting to the value that it has takes longer. */
		if (current == NULL || strcmp(current, value) != 0)
			(void) set_config_option(call_settings[i], value,
									 superuser() ? PGC_SUSET : PGC_USERSET,
									 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0,
									 false);
	}
	PG_RETURN_BOOL(true);
}
