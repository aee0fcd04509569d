/*-------------------------------------------------------------------------
 *
 * message_end.c
 *	  What every end of a message does.
 *
 * NOTES
 *	  Each place that removes a message calls message_end(), and the table of
 *	  rules says what an end does.  Two things are left to the caller.  Under
 *	  a claim it finishes the run of the message (dedup_finish_run), when all
 *	  messages of the claim are deleted, since twins may be among them.  And
 *	  if it locks several messages that no claim holds, it drops the entries
 *	  of their keys last: a push with a key locks its message first and then
 *	  the key.
 *
 * src/push/message_end.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/tables.h"
#include "map/availability_reserve.h"
#include "push/dedup.h"
#include "push/message_end.h"
#include "queue/finished.h"
#include "queue/group.h"
#include "queue/registry.h"
#include "storage/batches.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_row.h"

/* What an end does.  A message is locked by now, but for the first two. */
#define WAITS		0x01		/* it waits for a transaction that has locked
								 * the message, before it deletes that */
#define GONE		0x02		/* the caller has deleted the message */
#define FAILS		0x04		/* a batch counts it as a failed member */
#define ROOM		0x08		/* it leaves room in its group */
#define KEY			0x10		/* its entry in the row of its key goes */

#define NOT_KEPT	FINISHED_OUTCOMES
#define NOT_COUNTED	JOB_COUNTERS

typedef struct EndRule
{
	FinishedOutcome outcome;	/* in the history, or NOT_KEPT */
	JobCounter	counter;		/* or NOT_COUNTED */
	int			does;			/* the flags above */
} EndRule;

static const EndRule rules[] = {
	[END_COMPLETED] = {FINISHED_COMPLETED, JOB_COMPLETED, WAITS | ROOM | KEY},
	[END_UNCLAIMED] = {FINISHED_COMPLETED, NOT_COUNTED, WAITS | ROOM | KEY},
	[END_POPPED] = {FINISHED_COMPLETED, JOB_COMPLETED, GONE | ROOM | KEY},
	[END_DELETED] = {FINISHED_DELETED, NOT_COUNTED, WAITS | ROOM | KEY},
	[END_REDRIVEN] = {FINISHED_DELETED, NOT_COUNTED, ROOM | KEY},
	[END_DEAD] = {FINISHED_DEAD, JOB_ABANDONED, FAILS | ROOM | KEY},
	[END_EXPIRED] = {FINISHED_EXPIRED, JOB_EXPIRED, FAILS | ROOM | KEY},
	[END_CANCELED] = {FINISHED_CANCELED, NOT_COUNTED, FAILS | ROOM | KEY},
	[END_DUPLICATE] = {FINISHED_DUPLICATE, JOB_DUPLICATES, ROOM | KEY},

	/* The caller counts those that had expired, and deletes all keys. */
	[END_PURGED] = {NOT_KEPT, NOT_COUNTED, GONE | FAILS}
};

/*
 * Delete a message, unless that is done, and do what else its end does.
 * Returns false if it was not locked, and another transaction has changed it.
 * terms: NULL for none.
 */
bool
message_end(const Queue *queue, MessageTable *table, HeapTuple tuple,
			MessageEnd end, const EndTerms *terms)
{
	static const EndTerms no_terms = {0};
	const EndRule *rule = &rules[end];
	DedupEntry *entry = NULL;

	/* Its rules and its history are those of its queue. */
	Assert(message_row_queue(tuple) == queue->id);
	if (terms == NULL)
		terms = &no_terms;
	if (rule->does & WAITS)
	{
		Assert(availability_may_wait());
		if (!message_delete(table, tuple))
			return false;
	}
	else if (!(rule->does & GONE))
		message_delete_locked(table, tuple);

	batches_record_end(table, tuple, (rule->does & FAILS) != 0);
	if (rule->does & ROOM)
		group_make_room(queue, table, tuple, true);
	if (rule->counter != NOT_COUNTED)
		counts_add(queue->id, rule->counter, 1);
	if (queue->keep_finished >= 0 && rule->outcome != NOT_KEPT &&
		!terms->not_kept)
		finished_insert(queue, table, tuple, rule->outcome, terms->error,
						terms->result);
	else if (terms->result != NULL)
		queue_notice_result(queue->name);
	if (rule->does & KEY)
		entry = dedup_entry_of(RelationGetDescr(table->heap), tuple);
	if (terms->entry != NULL)
		*terms->entry = entry;
	else if (entry != NULL)
	{
		dedup_drop_entry(entry);
		pfree(entry);
	}
	return true;
}
