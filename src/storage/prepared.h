/*-------------------------------------------------------------------------
 *
 * prepared.h
 *	  What prepared transactions have changed.
 *
 * src/storage/prepared.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PREPARED_H
#define QUEUE_PREPARED_H

#include "map/lane_id.h"
#include "shmem/shmem.h"
#include "storage/counts.h"

extern const SharedArea prepared_area;

/* At the end of a transaction that is prepared */
extern void prepared_add(bool all);

/* At the end of one that has committed during a recount */
extern void prepared_add_depths(const CountRecord *record);

/* For the worker */
extern bool prepared_is_idle(void);
extern bool prepared_return(void *arg);
extern bool prepared_is_unknown(void);

/* For claims */
extern bool prepared_frees(int32 queue_id, LaneId lane);

#endif							/* QUEUE_PREPARED_H */
