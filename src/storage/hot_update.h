/*-------------------------------------------------------------------------
 *
 * hot_update.h
 *	  Updating a row on its page, if no other transaction is changing it.
 *
 * src/storage/hot_update.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_HOT_UPDATE_H
#define QUEUE_HOT_UPDATE_H

#include "access/htup.h"
#include "storage/itemptr.h"
#include "utils/relcache.h"

extern bool hot_update(Relation rel, ItemPointer tid, HeapTuple new);

#endif							/* QUEUE_HOT_UPDATE_H */
