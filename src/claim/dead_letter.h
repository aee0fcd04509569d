/*-------------------------------------------------------------------------
 *
 * dead_letter.h
 *	  Dead letters: messages that no worker is to try again.
 *
 * src/claim/dead_letter.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DEAD_LETTER_H
#define QUEUE_DEAD_LETTER_H

#include "access/htup.h"
#include "utils/jsonb.h"

#include "catalog/message_table.h"
#include "push/dedup.h"
#include "queue/registry.h"
#include "storage/message_scan.h"

/* A dead letter as queue_dead_letters shows it */
typedef struct DeadLetter
{
	int64		id;
	Jsonb	   *body;
	char	   *origin_queue;
	bool		has_origin_id;
	int64		origin_id;
	char	   *reason;			/* or NULL */
	char	   *last_error;		/* or NULL */
	int			claim_count;
	TimestampTz died_at;
} DeadLetter;

/* Reasons why a message becomes a dead letter */
#define DEAD_LETTER_CLAIM_COUNT	"max_claim_count"
#define DEAD_LETTER_BATCH		"batch"
#define DEAD_LETTER_BURIED		"buried"

/* Moving messages to the dead letter queue */
extern bool dead_letter_can_move(const Queue *queue);
extern bool dead_letter_move(const Queue *queue, MessageTable *table,
							 HeapTuple tuple, const char *reason, int elevel,
							 DedupEntry **entry);

/* Dead letters in their queue */
extern bool dead_letter_get(const ScanRow *row, DeadLetter *letter);
extern int64 dead_letter_redrive(const Queue *queue, const Queue *target,
								 int limit, const Datum *ids, int n);

#endif							/* QUEUE_DEAD_LETTER_H */
