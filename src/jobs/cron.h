/*-------------------------------------------------------------------------
 *
 * cron.h
 *	  Jobs of pg_cron, one for each schedule.
 *
 * src/jobs/cron.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CRON_H
#define QUEUE_CRON_H

#include "datatype/timestamp.h"

extern bool cron_exists(void);
extern void cron_require(void);
extern void cron_schedule(int32 id, const char *name, const char *queue_name,
						  const char *cron, const char *schema);
extern void cron_unschedule(int32 id);

/* Jobs that fail */
extern void cron_warn(const char *schedule, const char *queue_name);
extern bool cron_failure(int32 id, Oid role, char **message,
						 TimestampTz *at);

#endif							/* QUEUE_CRON_H */
