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

#include "storage/counts.h"

extern void prepared_counts_write(const CountRecord *record);
extern void prepared_counts_take(Snapshot snapshot, bool count);

#endif							/* QUEUE_PREPARED_COUNTS_H */
