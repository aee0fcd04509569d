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

/* What is shown of a schedule */
typedef struct Schedule
{
	const char *name;
	const char *cron;
	const char *queue;
	Datum		body;
	TimestampTz pushed_at;		/* DT_NOBEGIN if never */
	char	   *error;			/* with which the latest run has failed, or
								 * NULL */
} Schedule;

typedef void (*ScheduleAction) (const Schedule *schedule, void *arg);

extern void schedule_create(const char *name, const char *cron,
							const char *queue_name, Jsonb *body,
							const char *schema);
extern bool schedule_drop(const char *name);
extern bool schedule_push(int32 id);
extern void schedule_list(ScheduleAction action, void *arg);
extern bool schedule_failure(const char *queue_name, char **error,
							 TimestampTz *at);

#endif							/* QUEUE_SCHEDULE_H */
