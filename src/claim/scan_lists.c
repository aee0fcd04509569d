/*-------------------------------------------------------------------------
 *
 * scan_lists.c
 *	  What a pass of a claim scan collects.
 *
 * src/claim/scan_lists.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"

#include "catalog/message_id.h"
#include "catalog/tables.h"
#include "claim/claim_scan_internal.h"
#include "claim/scan_lists.h"
#include "claim/scan_row.h"
#include "storage/message_row.h"

#define LIST_SIZE		16		/* of a new list */

static int	compare_in_lane(const void *a, const void *b);
static int	compare_places(const void *a, const void *b);

/* Returns the items of a list, enlarged if there is no room for one more. */
void *
scan_list_make_room(void *items, int n, int *size, Size item_size)
{
	if (n < *size)
		return items;
	*size = *size == 0 ? LIST_SIZE : *size * 2;
	return items == NULL ? palloc(*size * item_size) :
		repalloc(items, *size * item_size);
}

/* Add a copy of a message, which lasts until the pass ends. */
void
scan_list_add_message(ClaimScan *scan, ChosenMessages *list,
					  const ScanRow *row, bool locked)
{
	ChosenMessage *message;

	list->items = scan_list_make_room(list->items, list->n, &list->size,
									  sizeof(ChosenMessage));
	message = &list->items[list->n++];
	message->table = row->table;
	message->tuple = message_scan_copy_row(scan->pass.rows, row);
	message->form = row->form;
	message->locked = locked;
}

/* Add something that another transaction has locked to pass.busy. */
void
scan_list_add_busy(ClaimScan *scan, int64 id)
{
	BusyIds    *list = &scan->pass.busy;

	list->items = scan_list_make_room(list->items, list->n, &list->size,
									  sizeof(int64));
	list->items[list->n++] = id;
}

/* Add a message to a list of what belongs to lanes. */
void
scan_list_add_range(LaneRanges *list, const ScanRow *row)
{
	LaneRange  *new;

	list->items = scan_list_make_room(list->items, list->n, &list->size,
									  sizeof(LaneRange));
	new = &list->items[list->n++];
	memset(new, 0, sizeof(LaneRange));
	new->lane = message_lane(RelationGetDescr(row->table->heap), row->tuple);
	new->range.first = new->range.last = message_id_number(row->form.id);
	new->range.priority = row->form.priority;
	new->range.due = DT_NOBEGIN;
}

/*
 * Add a message to those that were delivered and may be unfinished, if it is
 * one, and of a group with a bound.
 */
void
scan_list_add_delivered(ClaimScan *scan, const ScanRow *row)
{
	if (scan->request.queue->group_concurrency > 0 &&
		!heap_attisnull(row->tuple, Anum_message_group_key, NULL) &&
		(row->form.claim_count > 0 || scan_row_may_be_claimed(row)))
		scan_list_add_range(&scan->pass.delivered, row);
}

/*
 * Sort what was chosen: one message of each lane, then the second ones, and
 * so on.  Those of one lane need sorting too, because an earlier one may have
 * become free after later ones were chosen.
 */
void
scan_list_sort_chosen(ChosenMessages *chosen)
{
	ChosenMessage *items = chosen->items;

	qsort(items, chosen->n, sizeof(ChosenMessage), compare_in_lane);
	items[0].place = 0;
	for (int i = 1; i < chosen->n; i++)
		items[i].place = items[i].lane == items[i - 1].lane ?
			items[i - 1].place + 1 : 0;
	qsort(items, chosen->n, sizeof(ChosenMessage), compare_places);
}

static int
compare_in_lane(const void *a, const void *b)
{
	const ChosenMessage *x = a;
	const ChosenMessage *y = b;

	return x->lane != y->lane ? x->lane - y->lane :
		message_id_compare(x->form.id, y->form.id);
}

static int
compare_places(const void *a, const void *b)
{
	const ChosenMessage *x = a;
	const ChosenMessage *y = b;

	return x->place != y->place ? x->place - y->place : x->lane - y->lane;
}
