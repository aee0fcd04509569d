/*-------------------------------------------------------------------------
 *
 * message_end.h
 *	  What every end of a message does.
 *
 * src/push/message_end.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MESSAGE_END_H
#define QUEUE_MESSAGE_END_H

#include "access/htup.h"
#include "utils/jsonb.h"

#include "catalog/message_table.h"
#include "push/dedup.h"
#include "queue/queue_table.h"

/* Why a message is removed */
typedef enum MessageEnd
{
	END_COMPLETED,				/* deleted under its claim */
	END_UNCLAIMED,				/* deleted by pgmq, without a live claim */
	END_POPPED,					/* handed out and deleted at once */
	END_DELETED,				/* deleted by an id, without a claim */
	END_REDRIVEN,				/* a dead letter that was sent back */
	END_DEAD,					/* it became a dead letter */
	END_EXPIRED,
	END_CANCELED,
	END_DUPLICATE,				/* another run has made it unnecessary */
	END_PURGED					/* with all messages of its queue */
} MessageEnd;

/* What only some ends have */
typedef struct EndTerms
{
	const char *error;			/* for the history; NULL for the last one that
								 * the message has */
	Jsonb	   *result;			/* for the history, or NULL */
	bool		not_kept;		/* the history does not get it */
	DedupEntry **entry;			/* if not NULL, set to the entry of its key,
								 * which the caller drops then, or to NULL */
} EndTerms;

extern bool message_end(const Queue *queue, MessageTable *table,
						HeapTuple tuple, MessageEnd end,
						const EndTerms *terms);

#endif							/* QUEUE_MESSAGE_END_H */
