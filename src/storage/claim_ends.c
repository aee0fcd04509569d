/*-------------------------------------------------------------------------
 *
 * claim_ends.c
 *	  Counting messages as ready whose claims have run out.
 *
 * NOTES
 *	  A claim ends by the clock, and nothing writes its messages then.  But the
 *	  depths of a queue are counted where rows are written (counts.c).  So the
 *	  first scan that meets the message afterwards counts it as ready instead
 *	  of claimed: the worker's sweep of the ranges that are due, a claim, or a
 *	  probe that gives it to its lane.  They take such a range out of the
 *	  availability map, so that no sweep would meet the message later.
 *
 *	  The row is marked, or it would be counted again.  The mark is set in
 *	  place, under the lock of the page: it is no new version, and no claim
 *	  meets a lock.  It takes effect at once, and so does the count, whatever
 *	  becomes of the transaction.  It is set only if no other transaction has
 *	  locked the row or is changing it; one that changes it later finds the
 *	  mark (depth_of_old_row in message.c).
 *
 * src/storage/claim_ends.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "shmem/depth_state.h"
#include "storage/claim_ends.h"
#include "storage/counts.h"
#include "storage/message_row.h"
#include "storage/row.h"

static void mark_end_counted(HeapTuple tuple, void *arg);

/*
 * If the claim of a message has ended, count that, unless it was counted.  A
 * snapshot of the session has kept the row in its place since it was found.
 *
 * Returns false if that has to be done later, because another transaction has
 * locked the row or is changing it, or a recount may be reading it.
 */
bool
claim_end_count(MessageTable *table, HeapTuple tuple, const MessageForm *form,
				TimestampTz now)
{
	uint64		generation;
	bool		is_first = false;
	bool		marked;
	bool		adds;

	if (form->claim_token == 0 || form->end_counted ||
		form->claimed_until > now || form->is_delayed)
		return true;
	if (!depth_begin_end_of_claim(form->claimed_until))
		return false;
	marked = row_change_in_place(table->heap, &tuple->t_self,
								 mark_end_counted, &is_first);
	adds = depth_finish_end_of_claim(form->queue_id, form->id, &generation);

	/* Another scan may have met and marked it since we have read it. */
	if (is_first && adds)
		counts_end_claim(form->queue_id, generation);
	return marked;
}

/* Callback of row_change_in_place */
static void
mark_end_counted(HeapTuple tuple, void *arg)
{
	*(bool *) arg = message_row_count_end(tuple);
}
