/*-------------------------------------------------------------------------
 *
 * schedule.h
 *	  Schedules: messages that pg_cron has pushed at given times.
 *
 * src/jobs/schedule.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SCHEDULE_H
#define QUEUE_SCHEDULE_H

#include "datatype/timestamp.h"
#include "utils/jsonb.h"

extern void schedule_create(const char *name, const char *cron,
							const char *queue_name, Jsonb *body,
							const char *schema);
extern bool schedule_drop(const char *name);
extern bool schedule_push(int32 id);
extern bool schedule_failure(const char *queue_name, char **error,
							 TimestampTz *at);

#endif							/* QUEUE_SCHEDULE_H */
