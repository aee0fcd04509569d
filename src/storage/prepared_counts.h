/*-------------------------------------------------------------------------
 *
 * prepared_counts.h
 *	  Changes of depths by prepared transactions.
 *
 * src/storage/prepared_counts.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PREPARED_COUNTS_H
#define QUEUE_PREPARED_COUNTS_H

#include "utils/snapshot.h"

#include "shmem/depth_state.h"
#include "storage/counts.h"

extern void prepared_counts_write(const CountRecord *record);
extern void prepared_counts_take(Snapshot snapshot,
								 const DepthCursor *passed);

#endif							/* QUEUE_PREPARED_COUNTS_H */
