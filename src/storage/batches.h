/*-------------------------------------------------------------------------
 *
 * batches.h
 *	  Batches of messages: their rows, members, and what waits for them.
 *
 * src/storage/batches.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_BATCHES_H
#define QUEUE_BATCHES_H

#include "access/htup.h"
#include "nodes/lockoptions.h"
#include "utils/timestamp.h"

#include "catalog/message_table.h"
#include "storage/segment.h"
#include "util/xact.h"

/* A batch without an end: messages of no batch, or that wait for none */
#define NO_BATCH	0

/* As the shard of a batch: the database is not sharded */
#define NO_SHARD	(-1)

/* A row of queue_data.batch */
typedef struct Batch
{
	int64		id;
	Oid			owner;
	TimestampTz created_at;
	TimestampTz closed_at;		/* DT_NOEND: it was made with keep_open, and
								 * not closed */
	TimestampTz finished_at;	/* DT_NOEND: it has not finished */
	int64		members;
	int64		completed;
	int64		failed;
	int			shard;			/* of its queues, or NO_SHARD */
	char	   *name;			/* or NULL */
	HeapTuple	tuple;			/* its row, or NULL: it is new */
} Batch;

/* What a subtransaction has done with a batch */
typedef struct BatchRecord
{
	XactRecord	xact;
	int64		batch;
	int64		first;			/* the ids of the members that it has */
	int64		last;			/* finished are between these, or 0 */
	int64		members;		/* that it has added */
	int64		failed;			/* members that have failed */
} BatchRecord;

extern XactList batch_records;

/* Rows */
extern bool batches_next(int64 id, Batch *batch);
extern bool batches_fetch(int64 id, Batch *batch);
extern void batches_write(const Batch *batch);
extern bool batches_lock(const Batch *batch, LockTupleMode mode,
						 LockWaitPolicy wait);
extern bool batches_scan_parts(Batch *batch, bool remove);
extern void batches_count(Batch *batch, int64 *unfinished, int64 *waiting);

/* What this transaction does */
extern void batches_record_changed(int64 id);
extern void batches_record_added(int64 id, int64 n);
extern void batches_record_end(MessageTable *table, HeapTuple tuple,
							   bool fails);

/* When it has ended */
extern void batches_report(const BatchRecord *record, bool commit);

/* Index entries of a message */
extern void batches_insert_entries(MessageTable *table, HeapTuple *tuples,
								   TupleTableSlot **slots, int n);

/* Messages of batches, as a scan finds them */
typedef enum BatchMessages
{
	BATCH_MEMBERS,				/* of a batch */
	BATCH_WAITING,				/* for it */
	BATCH_WAITING_ABOVE			/* for batches with higher ids */
} BatchMessages;

typedef bool (*BatchCallback) (MessageTable *table, TupleTableSlot *slot,
							   void *arg);

extern int64 batches_next_waiting(int64 id);
extern bool batches_scan(SnapshotToken token, int64 id, BatchMessages which,
						 int64 bound, LOCKMODE lockmode, bool wait,
						 BatchCallback callback, void *arg);

#endif							/* QUEUE_BATCHES_H */
