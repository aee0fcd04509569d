/*-------------------------------------------------------------------------
 *
 * xact.c
 *	  The transaction callbacks of the extension.
 *
 * NOTES
 *	  A file that has something to do when a transaction ends registers an
 *	  XactList: the records that the transaction makes for it, and what to call
 *	  at the end.  Lists are called in the order of their registration.
 *
 *	  A record belongs to the subtransaction that adds it.  When that commits,
 *	  the record becomes its parent's; when it rolls back, the record is removed
 *	  unless the list has a function that decides.  Levels never decrease along a
 *	  list, since a record is added at the current level, which is the highest.
 *	  So the records of a subtransaction are the last ones.
 *
 *	  The records are in TopTransactionContext, and forgotten with it.
 *
 * src/util/xact.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "util/xact.h"

#define LISTS_MAX	5
#define FIRST_SIZE	16			/* records */

static XactList *lists[LISTS_MAX];
static int	nlists = 0;

static void end_transaction(XactEvent event, void *arg);
static void end_subtransaction(SubXactEvent event, SubTransactionId mine,
							   SubTransactionId parent, void *arg);

/* To be called as the library is loaded. */
void
xact_register(XactList *list)
{
	Assert(nlists < LISTS_MAX);
	if (nlists == 0)
	{
		RegisterXactCallback(end_transaction, NULL);
		RegisterSubXactCallback(end_subtransaction, NULL);
	}
	lists[nlists++] = list;
}

/* Add a record of the current subtransaction, all zero but for its level. */
void *
xact_add(XactList *list)
{
	XactRecord *record;

	if (list->n == list->size)
	{
		int			size = list->size == 0 ? FIRST_SIZE : list->size * 2;

		if (list->records == NULL)
			list->records = MemoryContextAlloc(TopTransactionContext,
											   size * list->record_size);
		else
			list->records = repalloc_huge(list->records,
										  size * list->record_size);
		list->size = size;
	}
	record = xact_record(list, list->n++);
	memset(record, 0, list->record_size);
	record->nest_level = GetCurrentTransactionNestLevel();
	return record;
}

static void
end_transaction(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			for (int i = 0; i < nlists; i++)
				if (lists[i]->before_end != NULL)
					lists[i]->before_end(event);
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			for (int i = 0; i < nlists; i++)
				if (lists[i]->end != NULL)
					lists[i]->end(event);
			for (int i = 0; i < nlists; i++)
			{
				lists[i]->records = NULL;
				lists[i]->n = lists[i]->size = 0;
			}
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			break;
	}
}

static void
end_subtransaction(SubXactEvent event, SubTransactionId mine,
				   SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB)
		return;
	for (int i = 0; i < nlists; i++)
	{
		XactList   *list = lists[i];
		int			first = list->n;
		XactRecord *record;

		while (first > 0 &&
			   (record = xact_record(list, first - 1))->nest_level >= level)
		{
			record->nest_level = level - 1;
			first--;
		}
		if (event == SUBXACT_EVENT_COMMIT_SUB)
			continue;
		if (list->roll_back != NULL)
			list->roll_back(first);
		else
			list->n = first;
	}
}
