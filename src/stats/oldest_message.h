/*-------------------------------------------------------------------------
 *
 * oldest_message.h
 *	  The oldest free message of each of many queues.
 *
 * src/stats/oldest_message.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_OLDEST_MESSAGE_H
#define QUEUE_OLDEST_MESSAGE_H

#include "datatype/timestamp.h"

typedef struct OldestScan OldestScan;

extern OldestScan *oldest_begin(void);
extern TimestampTz oldest_find(OldestScan *scan, int32 queue_id, int64 total);
extern void oldest_end(OldestScan *scan);

#endif							/* QUEUE_OLDEST_MESSAGE_H */
