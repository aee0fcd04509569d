/*-------------------------------------------------------------------------
 *
 * finished.h
 *	  The history: what became of messages.
 *
 * src/queue/finished.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_FINISHED_H
#define QUEUE_FINISHED_H

#include "access/htup.h"
#include "datatype/timestamp.h"
#include "utils/jsonb.h"

#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "queue/queue_table.h"

/* A row of the history */
typedef struct Finished
{
	int64		id;
	TimestampTz pushed_at;
	TimestampTz finished_at;
	int			attempts;
	FinishedOutcome outcome;

	/* All columns; they may point into the row in its table. */
	Datum		values[Natts_finished];
	bool		isnull[Natts_finished];
} Finished;

/* So many seconds a queue without a history keeps the errors of attempts. */
#define FINISHED_ERRORS_KEPT	SECS_PER_DAY

typedef void (*FinishedCallback) (const Finished *row, void *arg);

extern const char *const finished_outcomes[FINISHED_OUTCOMES];

/* Writing */
extern RingKind finished_ring_of(int64 seconds);
extern void finished_insert(const Queue *queue, MessageTable *table,
							HeapTuple tuple, FinishedOutcome outcome,
							const char *error, Jsonb *result);

/* Reading */
extern bool finished_open(const char *name, Queue *queue);
extern bool finished_fetch(const Queue *queue, int64 id, Finished *row);
extern void finished_list(const Queue *queue, int64 marker, int limit,
						  int outcome, FinishedCallback callback, void *arg);
extern void finished_errors(const Queue *queue, TimestampTz before, int limit,
							FinishedCallback callback, void *arg);

#endif							/* QUEUE_FINISHED_H */
