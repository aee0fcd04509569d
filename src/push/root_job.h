/*-------------------------------------------------------------------------
 *
 * root_job.h
 *	  Root jobs: a newer one supersedes the leaf jobs of older ones.
 *
 * src/push/root_job.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_ROOT_JOB_H
#define QUEUE_ROOT_JOB_H

#include "access/htup.h"
#include "access/tupdesc.h"
#include "datatype/timestamp.h"
#include "utils/jsonb.h"

#include "queue/registry.h"

/* Root jobs */
extern Jsonb *root_job_register(const Queue *queue, const char *signature,
								const TimestampTz *at);

/* Their leaf jobs */
extern bool root_job_is_superseded(const Queue *queue, TupleDesc desc,
								   HeapTuple tuple);
extern void root_job_forget(void);

#endif							/* QUEUE_ROOT_JOB_H */
