/*-------------------------------------------------------------------------
 *
 * due_messages.c
 *	  Delayed messages that are due, in the order in which they are claimed.
 *
 * NOTES
 *	  The index of delayed messages is in the order of the time when they are
 *	  due.  Claims take the highest priority first, and then the lowest id.  So
 *	  the identities of all due messages are read and sorted, up to a limit;
 *	  the rows are fetched when their turn comes.
 *
 *	  Consumed messages leave index entries behind while a snapshot may need
 *	  them.  The availability map knows the time before which there are only
 *	  such entries; due_messages_left() is that time after the caller has taken
 *	  messages.
 *
 * src/storage/due_messages.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "access/twophase.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "catalog/message_id.h"
#include "catalog/tables.h"
#include "map/availability.h"
#include "storage/due_messages.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/row.h"
#include "util/compat.h"
#include "util/limits.h"

#define FIRST_SIZE	64

static int	compare_due_messages(const void *a, const void *b);
static IndexScanDesc begin_due_scan(MessageTable *table,
									const DueRequest *request, int priority);
static bool read_due_of_priority(DueMessages *list, MessageTable *table,
								 TupleTableSlot *slot,
								 const DueRequest *request, int priority,
								 TimestampTz *next);

static int
compare_due_messages(const void *a, const void *b)
{
	return message_id_compare(((const DueMessage *) a)->id,
							  ((const DueMessage *) b)->id);
}

static IndexScanDesc
begin_due_scan(MessageTable *table, const DueRequest *request, int priority)
{
	ScanKeyData keys[3];
	IndexScanDesc scan;

	ScanKeyInit(&keys[0], Anum_delayed_due_idx_queue_id,
				BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(request->queue_id));
	ScanKeyInit(&keys[1], Anum_delayed_due_idx_priority,
				BTEqualStrategyNumber, F_INT2EQ, Int16GetDatum(priority));
	ScanKeyInit(&keys[2], Anum_delayed_due_idx_due_at,
				BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(request->from));
	scan = compat_index_beginscan(table->heap, table->due_index,
								  GetActiveSnapshot(), lengthof(keys));
	index_rescan(scan, keys, lengthof(keys), NULL, 0);
	return scan;
}

/*
 * Add the due messages of one priority, and lower *next to when the next
 * message will be due.  Returns false if the list is full, and there are
 * more.
 */
static bool
read_due_of_priority(DueMessages *list, MessageTable *table,
					 TupleTableSlot *slot, const DueRequest *request,
					 int priority, TimestampTz *next)
{
	IndexScanDesc scan = begin_due_scan(table, request, priority);
	bool		all = true;

	while (index_getnext_tid(scan, ForwardScanDirection) != NULL)
	{
		TimestampTz due_at;
		DueMessage *item;

		if (!index_fetch_heap(scan, slot))
		{
			/*
			 * If a transaction that inserts the message has been prepared, no
			 * callback reports its end.  So come back soon, and do not let
			 * later scans begin behind this entry.
			 */
			if (max_prepared_xacts > 0 && !message_entry_is_gone(scan, slot))
			{
				*next = Min(*next, availability_recheck_at(request->due));
				list->unread_from = request->from;
			}
			continue;
		}
		message_row_check(table->heap, row_tuple(slot));
		due_at = message_due_at(table, row_tuple(slot));

		/* All that follow in the index are due even later. */
		if (due_at > request->due)
		{
			*next = Min(*next, due_at);
			list->unread_from = Min(list->unread_from, due_at);
			break;
		}
		if (list->n >= request->max)
		{
			/* The caller reads nothing of lower priorities then. */
			list->unread_from = Min(list->unread_from,
									priority > 0 ? request->from : due_at);
			all = false;
			break;
		}
		if (list->n == list->size)
		{
			list->size *= 2;
			list->items = repalloc(list->items,
								   list->size * sizeof(DueMessage));
		}
		item = &list->items[list->n++];
		item->id = message_row_id(row_tuple(slot));
		item->due_at = due_at;
		item->tid = slot->tts_tid;
	}
	index_endscan(scan);
	return all;
}

/*
 * Read the messages of a table that are due, with the active snapshot.  If
 * there are more than request->max, *more is set, and of the priority at which
 * the limit is reached those are read that have been due longest.  *next is
 * lowered to when the next message will be due.
 */
DueMessages *
due_messages_read(MessageTable *table, TupleTableSlot *slot,
				  const DueRequest *request, bool *more, TimestampTz *next)
{
	DueMessages *list = palloc0(sizeof(DueMessages));
	bool		all = true;

	list->unread_from = DT_NOEND;
	list->size = FIRST_SIZE;
	list->items = palloc(list->size * sizeof(DueMessage));
	for (int priority = QUEUE_PRIORITIES - 1; priority >= 0 && all;
		 priority--)
		all = read_due_of_priority(list, table, slot, request, priority, next);
	qsort(list->items, list->n, sizeof(DueMessage), compare_due_messages);
	*more |= !all;
	return list;
}

/* Fetch the next message into the slot.  Returns false at the end. */
bool
due_messages_next(DueMessages *list, MessageTable *table,
				  TupleTableSlot *slot)
{
	while (list->next < list->n)
		if (table_tuple_fetch_row_version(table->heap,
										  &list->items[list->next++].tid,
										  GetActiveSnapshot(), slot))
			return true;
	return false;
}

/* The caller takes the message that was fetched last. */
void
due_messages_take(DueMessages *list)
{
	list->items[list->next - 1].due_at = DT_NOEND;
}

/*
 * Returns when the first message is due that was not taken; DT_NOEND if none
 * is left.
 */
TimestampTz
due_messages_left(const DueMessages *list)
{
	TimestampTz from = list->unread_from;

	for (int i = 0; i < list->n; i++)
		from = Min(from, list->items[i].due_at);
	return from;
}

void
due_messages_free(DueMessages *list)
{
	pfree(list->items);
	pfree(list);
}
