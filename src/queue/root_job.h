/*-------------------------------------------------------------------------
 *
 * root_job.h
 *	  Root jobs: a newer one makes the leaves of older ones no-ops.
 *
 * src/queue/root_job.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_ROOT_JOB_H
#define QUEUE_ROOT_JOB_H

#include "access/htup.h"
#include "access/tupdesc.h"

#include "queue/registry.h"

extern bool root_job_is_superseded(const Queue *queue, TupleDesc desc, HeapTuple tuple);
extern void root_job_forget(void);
extern void root_job_drop_all(int32 queue_id);

#endif							/* QUEUE_ROOT_JOB_H */
