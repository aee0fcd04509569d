/*-------------------------------------------------------------------------
 *
 * walk.c
 *	  What a claim finds: walks over a queue's messages, and locks them.
 *
 * NOTES
 *	  A walk goes over the queue's messages with the latest snapshot, highest
 *	  priority and lowest id first, and locks each free one without waiting.
 *	  One that is locked is somebody else's.  A lock that we get means that
 *	  the row is still as the snapshot saw it (row.c), so it is free and stays
 *	  so.  Messages that have expired, duplicates (key.c) and those that were
 *	  claimed too often are set aside for the end of the walk, some of them.
 *
 *	  The latest snapshot is used at every isolation level: a message that was
 *	  pushed or claimed since the transaction began is seen as it is.  At
 *	  REPEATABLE READ no serialization failure comes from that; SERIALIZABLE
 *	  watches our reads and writes as it does all others.
 *
 *	  With shared memory, the queue's cursor (cursor.c) says which ranges are
 *	  to be looked at, one after the other, each with a snapshot of its own.
 *	  Parked messages that are due, and those that our own transaction has
 *	  made free, are merged into them.  An empty answer means that there was a
 *	  moment at which the cursor knew of nothing, and nobody was looking.
 *
 *	  Without, a walk goes from where the last one of this session found the
 *	  first message (place.c) to the end.  An empty answer has to mean that
 *	  there was a moment at which nothing was free.  A row that changed
 *	  between snapshot and lock may be free again; and while we find one row
 *	  after the other locked, others may be pushed that the snapshot does not
 *	  show.  So if nothing was found, we walk again from the start, until
 *	  every row that is locked was so in the walk before: then, unless one was
 *	  let go and locked again, all of them were when the last snapshot was
 *	  taken.
 *
 * src/walk.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "access/multixact.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "storage/procarray.h"
#include "utils/snapmgr.h"

/* Due messages that one walk looks at, and expired ones that it removes. */
#define DUE_AT_ONCE			1000
#define EXPIRED_AT_ONCE		1000

/* Duplicates that one walk removes */
#define DUPLICATES_AT_ONCE	1000

/* Messages that one walk sends to the dead letter queue. */
#define EXHAUSTED_AT_ONCE	100

/* Messages that the worker looks at in one transaction. */
#define SWEEP_AT_ONCE		1000

/* Ranges that one walk looks at: far more than there ever are. */
#define LOOKS_MAX			10000

/* How the numbers to look at grow while nothing is found. */
#define WIDTH_FACTOR		8
#define WIDTH_STEP			32
#define WIDTH_MAX			(PG_INT64_MAX / 16)

static void remember(TakenList *list, ScanRow *row);
static void remember_locked(LockedList *list, const MessageForm *form);
static bool is_subset(const LockedList *now, const LockedList *before);
static bool widens_too_far(const Walk *walk, const MessageForm *form);
static void pass(Walk *walk, ScanRow *row, TimestampTz due, bool doubtful);
static bool has_row(const TakenList *list, const ScanRow *row);
static bool is_ours(Walk *walk, ScanRow *row);
static bool is_exhausted(Walk *walk, ScanRow *row);
static void take_row(Walk *walk, ScanRow *row);
static LockTupleMode lock_mode(const Walk *walk, const ScanRow *row);
static void try_row(Walk *walk, ScanRow *row);
static bool is_locked(const ScanRow *row);
static bool is_changing(const ScanRow *row);
static void count_ended(Walk *walk, const ScanRow *row, int *count);
static int	compare_taken(const void *a, const void *b);
static bool wants_more(const Walk *walk);
static void push_snapshot(Walk *walk);
static bool add_parked(Walk *walk, bool doubtful);
static void close_parked(Walk *walk);
static void add_own(Walk *walk);
static void look_at_range(Walk *walk, const Reservation *reservation);
static void walk_with_cursor(Walk *walk);
static void set_place(Walk *walk);
static void walk_from_place(Walk *walk);
static void remove_all(TakenList *list);
static void begin_at_place(Walk *walk, const MessagePlace *place);

static void
remember(TakenList *list, ScanRow *row)
{
	if (list->n == list->size)
	{
		list->size = list->size == 0 ? 16 : list->size * 2;
		list->items = list->items == NULL ?
			palloc(list->size * sizeof(Taken)) :
			repalloc(list->items, list->size * sizeof(Taken));
	}
	list->items[list->n].table = row->table;
	list->items[list->n].tuple = heap_copytuple(row->tuple);
	list->n++;
}

static void
remember_locked(LockedList *list, const MessageForm *form)
{
	if (list->n == list->size)
	{
		list->size = list->size == 0 ? 16 : list->size * 2;
		list->items = list->items == NULL ?
			palloc(list->size * sizeof(int64)) :
			repalloc(list->items, list->size * sizeof(int64));
	}
	list->items[list->n++] = form->id;
}

/* Is everything that is locked now in the other list too? */
static bool
is_subset(const LockedList *now, const LockedList *before)
{
	int			j = 0;

	for (int i = 0; i < now->n; i++, j++)
	{
		while (j < before->n && before->items[j] != now->items[i])
			j++;
		if (j == before->n)
			return false;
	}
	return true;
}

/*
 * Would the range of the claim not fit into claim_span with this one, or is
 * it, or the first one, to be claimed alone?
 */
static bool
widens_too_far(const Walk *walk, const MessageForm *form)
{
	int64		number = id_number(form->id);

	if (walk->taken.n > 0 && walk->alone &&
		(form->claim_count > 0 ||
		 MESSAGE_FORM(walk->taken.items[0].tuple)->claim_count > 0))
		return true;
	return walk->taken.n > 0 &&
		Max(walk->max_number, number) - Min(walk->min_number, number) >
		PG_INT32_MAX;
}

/* --- One row --- */

/* The row is not for us now; whoever looks when it is due may take it. */
static void
pass(Walk *walk, ScanRow *row, TimestampTz due, bool doubtful)
{
	MessageRange range;

	if (segment_is_parked(row->table->segment))
	{
		walk->parked_again |= due == DT_NOBEGIN;
		walk->parked_doubtful |= doubtful;
		if (doubtful)
			walk->parked_next = Min(walk->parked_next, due);
		return;
	}
	if (!row->in_range)
	{
		walk->own_again = true;
		return;
	}
	range.first = range.last = id_number(row->form->id);
	range.priority = row->form->priority;
	range.due = due;
	range.looked_at = DT_NOBEGIN;	/* look_at_range() knows */
	range.doubtful = doubtful;
	ranges_add(&walk->passed, &range, walk->now);
}

static bool
is_exhausted(Walk *walk, ScanRow *row)
{
	return meta_is_exhausted(walk->queue, row->table, row->tuple);
}

/* The row is locked, and ours. */
static void
take_row(Walk *walk, ScanRow *row)
{
	int64		number = id_number(row->form->id);

	walk->min_number = walk->taken.n == 0 ? number :
		Min(walk->min_number, number);
	walk->max_number = walk->taken.n == 0 ? number :
		Max(walk->max_number, number);
	walk->priorities |= 1 << row->form->priority;
	remember(&walk->taken, row);
}

static bool
has_row(const TakenList *list, const ScanRow *row)
{
	for (int i = list->n - 1; i >= 0; i--)
		if (list->items[i].table == row->table &&
			ItemPointerEquals(&list->items[i].tuple->t_self,
							  &row->tuple->t_self))
			return true;
	return false;
}

/*
 * Has this walk locked the row before?  Ranges that it looks at may lie over
 * each other.
 */
static bool
is_ours(Walk *walk, ScanRow *row)
{
	HeapTupleHeader header = row->tuple->t_data;

	if ((header->t_infomask & HEAP_XMAX_INVALID) ||
		(!(header->t_infomask & HEAP_XMAX_IS_MULTI) &&
		 !TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmax(header))))
		return false;
	return has_row(&walk->taken, row) || has_row(&walk->expired, row) ||
		has_row(&walk->duplicates, row) || has_row(&walk->exhausted, row);
}

/* Has somebody else a lock on it, as far as can be told without taking one? */
static bool
is_locked(const ScanRow *row)
{
	HeapTupleHeader header = row->tuple->t_data;
	TransactionId xmax = HeapTupleHeaderGetRawXmax(header);

	if (header->t_infomask & HEAP_XMAX_INVALID)
		return false;
	if (header->t_infomask & HEAP_XMAX_IS_MULTI)
		return MultiXactIdIsRunning(xmax, false);
	return !TransactionIdIsCurrentTransactionId(xmax) &&
		TransactionIdIsInProgress(xmax);
}

/*
 * Has somebody locked or changed the version that we see, unless that was
 * taken back?
 */
static bool
is_changing(const ScanRow *row)
{
	HeapTupleHeader header = row->tuple->t_data;

	return is_locked(row) ||
		(!(header->t_infomask & HEAP_XMAX_INVALID) &&
		 !HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) &&
		 !TransactionIdDidAbort(HeapTupleHeaderGetUpdateXid(header)));
}

/*
 * The row was under a claim that ran out; its messages follow each other.  One
 * that ran out before the range was due was met before, and lies in it only
 * because ranges that are close are made one.
 */
static void
count_ended(Walk *walk, const ScanRow *row, int *count)
{
	if (row->form->claim_token != 0 &&
		row->form->claim_token != walk->last_token &&
		row->form->claimed_until >= walk->due)
	{
		(*count)++;
		walk->last_token = row->form->claim_token;
	}
}

/*
 * How a message that is handed out has to be locked: as what follows will lock
 * it, or that would have to wait.  A pop deletes it; a delayed message moves
 * to another table; else the row is only marked.
 */
static LockTupleMode
lock_mode(const Walk *walk, const ScanRow *row)
{
	return walk->pops || segment_is_parked(row->table->segment) ?
		LockTupleExclusive : LockTupleNoKeyExclusive;
}

/*
 * Take the row that the scan stands on, if it is to be had; or do what the
 * walk is for.
 */
static void
try_row(Walk *walk, ScanRow *row)
{
	bool		expired = row_is_expired(row->form, walk->now);
	bool		unwanted;
	bool		exhausted;

	if (is_ours(walk, row))
		return;
	if (row_is_claimed(row->form, walk->now))
	{
		/* A prepared transaction may release it, or have done so just now. */
		if (is_changing(row))
			pass(walk, row, Min(cursor_doubt(walk->now),
								row->form->claimed_until), true);
		else
			pass(walk, row, row->form->claimed_until, false);
		return;
	}
	unwanted = expired ||
		key_is_duplicate(walk->queue, row->table, row->tuple);
	if (unwanted && (walk->expired.n == EXPIRED_AT_ONCE ||
					 walk->duplicates.n == DUPLICATES_AT_ONCE ||
					 walk->mode == WALK_PEEK))
	{
		pass(walk, row, cursor_doubt(walk->now), true);
		return;
	}
	exhausted = !unwanted && is_exhausted(walk, row);
	if (exhausted)
	{
		/* With a lock on the dead letter queue, before one on the message */
		if (walk->exhausted.n == 0 && walk->may_bury &&
			walk->mode != WALK_PEEK)
			walk->may_bury = dead_can_bury(walk->queue);
		if (walk->exhausted.n == EXHAUSTED_AT_ONCE || !walk->may_bury ||
			walk->mode == WALK_PEEK)
		{
			pass(walk, row, cursor_doubt(walk->now), true);
			return;
		}
	}
	else if (!unwanted && walk->mode != WALK_TAKE)
	{
		if (walk->mode == WALK_SWEEP)
			count_ended(walk, row, &walk->ended_here);
		if (is_locked(row))
		{
			walk->met_locked = true;
			pass(walk, row, cursor_doubt(walk->now), true);
		}
		else
		{
			walk->found++;
			pass(walk, row, DT_NOBEGIN, false);
		}
		return;
	}
	switch (row_lock(row->table, row->slot,
					 unwanted || exhausted ? LockTupleExclusive :
					 lock_mode(walk, row), LockWaitSkip))
	{
		case TM_Ok:
			break;
		case TM_WouldBlock:
			remember_locked(&walk->locked, row->form);
			walk->met_locked = true;
			pass(walk, row, cursor_doubt(GetCurrentTimestamp()), true);
			return;
		case TM_Updated:
		case TM_Deleted:
			walk->changed = true;
			pass(walk, row, DT_NOBEGIN, false);
			return;
		case TM_Invisible:
		case TM_SelfModified:
		case TM_BeingModified:
		default:
			elog(ERROR, "unexpected result of locking a message");
	}
	row->tuple = row_tuple(row->slot);
	row->form = MESSAGE_FORM(row->tuple);
	scan_take_due(walk->scan);
	if (walk->mode == WALK_SWEEP)
		count_ended(walk, row, &walk->ended);

	if (unwanted)
		remember(expired ? &walk->expired : &walk->duplicates, row);
	else if (is_exhausted(walk, row))
		remember(&walk->exhausted, row);
	else
		take_row(walk, row);
}

static bool
wants_more(const Walk *walk)
{
	switch (walk->mode)
	{
		case WALK_PEEK:
			return walk->found == 0;
		case WALK_SWEEP:
			return walk->looked < SWEEP_AT_ONCE &&
				walk->exhausted.n < EXHAUSTED_AT_ONCE && !walk->voided;
		case WALK_TAKE:
		default:
			return walk->taken.n < walk->limit && !walk->full;
	}
}

static void
push_snapshot(Walk *walk)
{
	ring_push_snapshot();
	walk->nsnapshots++;
}

/* --- With shared memory --- */

/*
 * Add the parked messages that are due, if any; "doubtful": also when one
 * may have been let go.  True: the scan has them.
 */
static bool
add_parked(Walk *walk, bool doubtful)
{
	TimestampTz from;
	TimestampTz own_from;
	bool		own;
	int			n;

	if (walk->parked_open)
		return false;
	own = touch_has_own_parked(walk->queue->id, walk->now, &own_from);
	walk->parked_open = cursor_reserve_parked(walk->queue->id, walk->now,
											  doubtful,
											  walk->mode != WALK_TAKE, &from);
	if (!walk->parked_open && !own)
		return false;
	if (own)
		from = walk->parked_open ? Min(from, own_from) : own_from;
	do
	{
		push_snapshot(walk);
		n = scan_add_due(walk->scan, from, walk->now, walk->max_due,
						 &walk->more_due, &walk->parked_next);
	} while (ring_snapshot_is_stale());
	walk->parked_again = walk->more_due;
	if (n == 0)
		close_parked(walk);
	return n > 0;
}

/* All of them that we shall look at were looked at. */
static void
close_parked(Walk *walk)
{
	if (walk->parked_open)
		cursor_close_parked(scan_due_left(walk->scan),
							walk->parked_again ? DT_NOBEGIN :
							walk->parked_next, walk->parked_doubtful);
	walk->parked_open = false;
}

/* Add what this transaction has made free, of which no cursor knows. */
static void
add_own(Walk *walk)
{
	MessageRange range;

	/* A row that is found twice is taken once. */
	while (touch_next_own(walk->queue->id, walk->now, &range))
		do
		{
			push_snapshot(walk);
			scan_add_numbers(walk->scan, range.priority, range.first,
							 range.last);
		} while (ring_snapshot_is_stale());
}

/* Look at a range that is reserved, and close it. */
static void
look_at_range(Walk *walk, const Reservation *reservation)
{
	MessageRange range = reservation->range;
	int64		looked_to = range.first - 1;
	int			found_before = walk->found;
	ScanRow		row;

	walk->due = range.due;
	walk->ended_here = 0;
	for (;;)
	{
		walk->passed.n = 0;
		push_snapshot(walk);
		scan_add_range(walk->scan, &range,
					   range.doubtful ? &walk->passed : NULL);
		if (!ring_snapshot_is_stale())
			break;
		scan_end_range(walk->scan);
	}
	while (wants_more(walk))
	{
		if (!scan_range_has_rows(walk->scan))
		{
			looked_to = range.last;
			break;
		}
		scan_next(walk->scan, &row);
		walk->full = widens_too_far(walk, row.form);
		if (walk->full)
			break;
		walk->looked++;
		if (row.in_range)
			looked_to = id_number(row.form->id);
		try_row(walk, &row);
	}

	/* What was only found is still to be looked at, by whoever claims it. */
	if (walk->mode == WALK_PEEK && walk->found > 0)
	{
		looked_to = range.first - 1;
		walk->passed.n = 0;
	}
	scan_end_range(walk->scan);

	/* Who has begun since our snapshot has to look at the doubtful himself. */
	for (int i = 0; i < walk->passed.n; i++)
		walk->passed.items[i].looked_at = walk->now;

	if (cursor_close(looked_to, &walk->passed,
					 walk->mode == WALK_SWEEP ? walk->found - found_before : 0,
					 walk->now))
		walk->ended += walk->ended_here;
	else
		walk->voided = true;
}

/* Highest priority first, oldest first */
static int
compare_taken(const void *a, const void *b)
{
	const MessageForm *x = MESSAGE_FORM(((const Taken *) a)->tuple);
	const MessageForm *y = MESSAGE_FORM(((const Taken *) b)->tuple);

	if (x->priority != y->priority)
		return x->priority > y->priority ? -1 : 1;
	return x->id < y->id ? -1 : (x->id > y->id);
}

static void
walk_with_cursor(Walk *walk)
{
	CursorWish	wish = {0};
	ScanRow		row;

	wish.queue_id = walk->queue->id;
	wish.began = walk->began;
	wish.width = walk->limit;
	wish.only_looks = walk->mode != WALK_TAKE;
	wish.only_overdue = walk->mode == WALK_SWEEP;
	if (!wish.only_overdue)
	{
		add_parked(walk, false);
		add_own(walk);
	}
	for (int looks = 0; wants_more(walk) && looks < LOOKS_MAX; looks++)
	{
		const Reservation *reservation;
		bool		in_hand = scan_has_rows(walk->scan);

		/* Who waits for others must not have anything open. */
		if (!in_hand)
			close_parked(walk);
		if (wish.now == 0)
			wish.now = walk->now;
		else
			wish.now = walk->now = GetCurrentTimestamp();
		wish.has_more = in_hand || walk->taken.n > 0;
		reservation = cursor_reserve(&wish);
		if (reservation != NULL)
		{
			int			before = walk->taken.n;

			look_at_range(walk, reservation);
			if (walk->taken.n == before && wish.width < WIDTH_MAX)
				wish.width = wish.width * WIDTH_FACTOR + WIDTH_STEP;
		}
		else if (in_hand)
			while (wants_more(walk) && scan_next(walk->scan, &row))
			{
				walk->full = widens_too_far(walk, row.form);
				if (!walk->full)
					try_row(walk, &row);
			}
		else if (wish.only_overdue || walk->taken.n > 0)
			break;
		else if (wish.parked_is_due && !walk->more_due)
		{
			/* If somebody else gets them first, we wait for him. */
			add_parked(walk, false);
		}
		else
		{
			if (walk->parked_doubted || !add_parked(walk, true))
				break;
			walk->parked_doubted = true;
		}
	}

	/* What came free meanwhile, or is overdue, may have come late. */
	if (walk->taken.n > 1)
		qsort(walk->taken.items, walk->taken.n, sizeof(Taken),
			  compare_taken);

	/* There may be some that we have not come to. */
	if (walk->own_again || !wants_more(walk))
		touch_look_again(walk->queue->id);
	walk->parked_again |= !wants_more(walk);
	close_parked(walk);
}

/* --- Without --- */

/* The next walk may begin at the first message of this one. */
static void
set_place(Walk *walk)
{
	MessagePlace place;

	if (!scan_first(walk->scan, &place) || place.segment != ring_only_segment())
		return;
	if (walk->from_place)
		place_move(walk->queue->id, &place);
	else
		place_set(walk->queue->id, &place, walk->now);
}

/* Add the messages from the place on, but not those of lower priorities. */
static void
begin_at_place(Walk *walk, const MessagePlace *place)
{
	if (place->priority < QUEUE_PRIORITIES - 1)
		scan_add_segments(walk->scan, place->priority + 1,
						  QUEUE_PRIORITIES - 1, PG_INT64_MIN, PG_INT64_MAX);
	scan_add_segments(walk->scan, place->priority, place->priority,
					  place->id, PG_INT64_MAX);
}

/*
 * Begins where the place says, if there is one; but then finding nothing
 * means nothing.
 */
static void
walk_from_place(Walk *walk)
{
	MessagePlace place = {0};
	int			only = ring_only_segment();
	int			below = 0;		/* priorities still to be looked at */
	TimestampTz next;
	ScanRow		row;

	walk->from_place = !walk->no_place && only >= 0 &&
		place_get(walk->queue->id, walk->now, &place) &&
		place.segment == only;
	push_snapshot(walk);
	scan_watch(walk->scan, walk->from_place);
	if (walk->from_place)
	{
		begin_at_place(walk, &place);
		below = place.priority;
	}
	else
		scan_add_segments(walk->scan, 0, QUEUE_PRIORITIES - 1, PG_INT64_MIN,
						  PG_INT64_MAX);

	/* Due messages have all priorities; they must not overtake others. */
	if (scan_add_due(walk->scan, DT_NOBEGIN, walk->now, walk->max_due,
					 &walk->more_due, &next) > 0 && below > 0)
	{
		scan_add_segments(walk->scan, 0, below - 1, PG_INT64_MIN,
						  PG_INT64_MAX);
		below = 0;
	}

	/* Each part has found its first row by now. */
	set_place(walk);
	while (wants_more(walk))
	{
		if (scan_next(walk->scan, &row))
		{
			walk->full = widens_too_far(walk, row.form);
			if (!walk->full)
				try_row(walk, &row);
		}
		else if (below > 0)
		{
			scan_add_segments(walk->scan, 0, below - 1, PG_INT64_MIN,
							  PG_INT64_MAX);
			below = 0;
		}
		else
			break;
	}
}

/* --- Both --- */

/* Is there a cursor to go by?  On a standby nobody tells it anything. */
bool
walk_uses_cursor(void)
{
	return cursor_is_shared() && !RecoveryInProgress();
}

void
walk_init(Walk *walk, const Queue *queue, int limit)
{
	memset(walk, 0, sizeof(Walk));
	walk->queue = queue;
	walk->limit = limit;
	walk->max_due = Max(DUE_AT_ONCE, limit);
	walk->may_bury = true;
}

/* Lock up to limit free messages. */
void
walk_queue(Walk *walk)
{
	Queue		dead;
	bool		may;

	walk->now = walk->walk_began = GetCurrentTimestamp();
	walk->moves = ring_moves();
	walk->met_locked = false;
	if (walk->began == 0)
		walk->began = walk->now;
	root_forget();

	/* What is not known yet of the dead letter queue is read before. */
	if (walk->queue->dead_id != 0)
		(void) queue_peek(walk->queue->dead_queue, walk->queue->owner,
						  QUEUE_LOOK, &dead, &may);
	walk->scan = scan_begin(walk->queue->id, true,
							walk->mode == WALK_PEEK ?
							AccessShareLock : RowExclusiveLock);
	if (walk->relooks)
		scan_everywhere(walk->scan);
	if (walk_uses_cursor())
		walk_with_cursor(walk);
	else
		walk_from_place(walk);
}

static void
remove_all(TakenList *list)
{
	for (int i = 0; i < list->n; i++)
	{
		row_delete_locked(list->items[i].table, list->items[i].tuple);
		key_drop(list->items[i].table, list->items[i].tuple);
	}
}

/*
 * The caller is done with what was taken: do what was set aside, and let go
 * of the tables.
 */
void
walk_end(Walk *walk)
{
	remove_all(&walk->expired);
	remove_all(&walk->duplicates);
	job_count(walk->queue->id, JOB_EXPIRED, walk->expired.n);
	job_count(walk->queue->id, JOB_DUPLICATES, walk->duplicates.n);
	CommandCounterIncrement();
	for (int i = 0; i < walk->exhausted.n; i++)
	{
		Taken	   *dead = &walk->exhausted.items[i];

		walk->may_bury = walk->may_bury &&
			dead_bury(walk->queue, dead->table, dead->tuple);

		/* One that stays is locked by us until the transaction ends. */
		if (!walk->may_bury)
			touch_message(MESSAGE_FORM(dead->tuple),
						  segment_is_parked(dead->table->segment),
						  DT_NOBEGIN, true);
	}
	scan_end(walk->scan);
	if (walk->relooks)
		cursor_relooked(walk->queue->id, walk->walk_began);
	for (; walk->nsnapshots > 0; walk->nsnapshots--)
		PopActiveSnapshot();
}

/* The walk found nothing.  Is another one needed to say so? */
bool
walk_again(Walk *walk)
{
	bool		again;

	if (walk_uses_cursor())
	{
		again = walk->more_due ||
			(walk->met_locked && ring_wait_for_move(walk->moves));
		if (!again && !walk->relooks &&
			cursor_relook(walk->queue->id, walk->now))
		{
			walk->relooks = again = true;
			ring_refresh();
		}
	}
	else
		again = walk->changed || walk->more_due || walk->from_place ||
			!is_subset(&walk->locked, &walk->locked_before) || ring_refresh();
	if (!again)
		return false;

	if (walk->more_due && walk->max_due < INT_MAX / 10)
		walk->max_due *= 10;
	walk->no_place = true;
	if (walk->locked_before.items != NULL)
		pfree(walk->locked_before.items);
	walk->locked_before = walk->locked;
	memset(&walk->locked, 0, sizeof(LockedList));
	walk->expired.n = walk->duplicates.n = walk->exhausted.n = 0;
	walk->changed = walk->more_due = false;
	walk->parked_again = walk->parked_doubtful = false;
	walk->parked_doubted = false;
	walk->own_again = false;
	return true;
}

/* Is there anything to claim?  Takes nothing. */
bool
walk_peek(const Queue *queue)
{
	Walk		walk;

	walk_init(&walk, queue, 1);
	walk.mode = WALK_PEEK;
	do
	{
		walk_queue(&walk);
		walk_end(&walk);
	} while (walk.found == 0 && walk_again(&walk));
	return walk.found > 0;
}

/*
 * See to some of what is overdue: claims that have run out, and rows of which
 * nobody tells.  Returns how many messages came free; *more: it was not all;
 * *disturbed: nor can it be now, since claims are made of these messages.  Only
 * where there is shared memory.
 */
int
walk_sweep(const Queue *queue, bool *more, bool *disturbed)
{
	Walk		walk;

	walk_init(&walk, queue, 1);
	walk.mode = WALK_SWEEP;
	walk_queue(&walk);
	*more = !wants_more(&walk) && !walk.voided;
	*disturbed = walk.voided;
	database_count(COUNT_EXPIRED_CLAIMS, walk.ended);
	database_count(COUNT_REMOVED, walk.expired.n);
	database_count(COUNT_DEAD_LETTERS, walk.exhausted.n);
	walk_end(&walk);
	return walk.found;
}
