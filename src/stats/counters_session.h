/*-------------------------------------------------------------------------
 *
 * counters_session.h
 *	  Counts that the session itself writes to the table.
 *
 * src/stats/counters_session.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_COUNTERS_SESSION_H
#define QUEUE_COUNTERS_SESSION_H

#include "catalog/tables.h"
#include "stats/counters_table.h"

/* Before the end of a transaction */
extern void counters_session_add(Oid extension, int32 queue_id,
								 const int64 *n);
extern void counters_session_set_error(Oid extension, int32 queue_id,
									   const char *error,
									   TimestampTz error_at);
extern void counters_session_write(bool at_once);

/* After it */
extern void counters_session_end_xact(bool commit);

extern void counters_session_read(CounterRow *row);

#endif							/* QUEUE_COUNTERS_SESSION_H */
