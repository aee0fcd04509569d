/*-------------------------------------------------------------------------
 *
 * xact.c
 *	  The transaction callbacks of the extension.
 *
 * NOTES
 *	  A file that has something to do at the end of a transaction has an
 *	  XactList: the records that a transaction makes for it, and functions to
 *	  call at the end.  They are called in the order of the array in module.c.
 *
 *	  A record belongs to the subtransaction that adds it.  When that commits,
 *	  the record passes to its parent.  When it is rolled back, the record is
 *	  removed, unless the list has a function that decides otherwise.  A
 *	  record is added at the current nesting level, which is the highest; so
 *	  levels never decrease along a list, and the records of a subtransaction
 *	  are the last ones.
 *
 *	  Records are in TopTransactionContext, and go away with it.
 *
 * src/util/xact.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/resowner.h"

#include "util/xact.h"

#define FIRST_SIZE	16			/* records that there is room for at first */

bool		xact_has_ended = false;

static XactList *const *lists;
static int	nlists = 0;

static void lists_xact_callback(XactEvent event, void *arg);
static void lists_subxact_callback(SubXactEvent event, SubTransactionId mine,
								   SubTransactionId parent, void *arg);

/* Register all lists; called when the library is loaded. */
void
xact_register(XactList *const *all, int n)
{
	lists = all;
	nlists = n;
	RegisterXactCallback(lists_xact_callback, NULL);
	RegisterSubXactCallback(lists_subxact_callback, NULL);
}

/*
 * Add a record of the current subtransaction.  All of it is zero, except for
 * the nesting level.
 */
void *
xact_add(XactList *list)
{
	XactRecord *record;

	Assert(!xact_has_ended);
	Assert(list->n == 0 ||
		   ((XactRecord *) xact_record(list, list->n - 1))->nest_level <=
		   GetCurrentTransactionNestLevel());
	if (list->n == list->size)
	{
		int			size = list->size == 0 ? FIRST_SIZE : list->size * 2;

		list->records = list->records == NULL ?
			MemoryContextAlloc(TopTransactionContext,
							   size * list->record_size) :
			repalloc_huge(list->records, size * list->record_size);
		list->size = size;
	}
	record = xact_record(list, list->n++);
	memset(record, 0, list->record_size);
	record->nest_level = GetCurrentTransactionNestLevel();
	return record;
}

static void
lists_xact_callback(XactEvent event, void *arg)
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
			xact_has_ended = true;
			for (int i = 0; i < nlists; i++)
				if (lists[i]->end != NULL)
					lists[i]->end(event);
			xact_has_ended = false;
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

/*
 * Called when the nesting level is still that of the subtransaction.  Its
 * records become those of its parent; the list's function may keep them after
 * a rollback.
 */
static void
lists_subxact_callback(SubXactEvent event, SubTransactionId mine,
					   SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB)
		return;
	xact_has_ended = event == SUBXACT_EVENT_ABORT_SUB;
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
	xact_has_ended = false;
}

/*
 * Call a function in a subtransaction.  Returns the error that has rolled it
 * back, in the current memory context, or NULL.
 */
ErrorData *
xact_try(void (*function) (void *arg), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		function(arg);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return error;
}
