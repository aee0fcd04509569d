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

static void set_for_call(const char *name, const char *value);

/*
 * Set a setting for a call.  If it has the value already, we leave it alone,
 * because to set it again takes longer.
 */
static void
set_for_call(const char *name, const char *value)
{
	const char *current = GetConfigOption(name, true, false);

	if (current != NULL && strcmp(current, value) == 0)
		return;
	(void) set_config_option(name, value,
							 superuser() ? PGC_SUSET : PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

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
		if (!nulls[i])
			set_for_call(call_settings[i], TextDatumGetCString(values[i]));
	PG_RETURN_BOOL(true);
}
