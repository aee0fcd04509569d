/*-------------------------------------------------------------------------
 *
 * claim_scan.c
 *	  Scanning a queue for messages that can be claimed.
 *
 * NOTES
 *	  A scan makes one or more passes over the messages of a queue, highest
 *	  priority first, lowest id first.  It works in one of three modes: a
 *	  claim chooses free messages, a probe only asks whether there is one, and
 *	  a sweep of the background worker records where they are.  What is done
 *	  with each message is decided in claim_scan_row.c; where they come from
 *	  is in claim_scan_source.c.
 *
 *	  1. Locks.  A scan never waits for another transaction; it skips a
 *	  message that one has locked.  Where the availability map keeps other
 *	  claims away, a free message is only chosen, and the caller marks or
 *	  deletes it at the end of the pass, if it is still the version that the
 *	  snapshot saw and no other transaction has locked it.  So what was
 *	  decided on that version holds.  That saves the WAL record of a lock.
 *	  All other messages are locked at once, without waiting (needs_lock in
 *	  claim_scan_row.c).
 *
 *	  2. Snapshots.  Each pass takes the latest snapshot, at every isolation
 *	  level: a message that was pushed or claimed since the transaction began
 *	  is seen as it is now.  So REPEATABLE READ gets no serialization failures
 *	  from a scan; SERIALIZABLE tracks our reads and writes as any others.
 *
 *	  3. With an availability map, a pass takes one range of message numbers
 *	  after the other (claim_scan_source.c), or where groups take turns, ranges
 *	  of their lanes (lane_scan.c).
 *
 *	  4. Waiting.  A session that has something reserved waits for nothing,
 *	  because other sessions wait for the end of its reservation.  If a table
 *	  cannot be locked at once, the session returns all that it has reserved,
 *	  waits for the lock, and begins the pass again.  When messages are
 *	  chosen, the rest is given back at once, but the reservation stays open
 *	  until the caller has marked or deleted them: until then they are free.
 *	  A claim that finds nothing waits for the reservations of other sessions,
 *	  for a limited time.
 *
 *	  5. Probes reserve nothing, nor do sweeps of a queue without lanes.
 *	  Otherwise a concurrent claim would skip their ranges.  A probe scans
 *	  what the map would give to a claim, and reports nothing to the map.  One
 *	  of groups with a bound does both, as it takes lanes (lane_scan.c).  A
 *	  sweep reports what it has found, unless claims have taken the range
 *	  meanwhile.  Where there are lanes, it gives them what is free at once, as
 *	  a claim does.
 *
 *	  6. Without a map (on a standby, or when there is no room for it or it is
 *	  of no help) a pass scans all messages of the queue (whole_scan.c).
 *
 *	  7. Passes are repeated until one has found something, or it is sure that
 *	  there was a moment at which nothing was free (is_inconclusive).
 *
 * src/claim/claim_scan.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/relations.h"
#include "claim/claim_scan.h"
#include "claim/claim_scan_internal.h"
#include "claim/dead_letter.h"
#include "claim/expire.h"
#include "claim/group_rate.h"
#include "claim/lane_scan.h"
#include "claim/whole_scan.h"
#include "map/availability.h"
#include "map/availability_reserve.h"
#include "map/availability_visit.h"
#include "map/message_ranges.h"
#include "push/message_end.h"
#include "push/root_job.h"
#include "queue/registry.h"
#include "shmem/database_state.h"
#include "shmem/segment_state.h"
#include "storage/lane.h"
#include "storage/message.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"

static void begin_pass(ClaimScan *scan);
static ClaimScan *begin_sweep(const Queue *queue);
static void end_sweep(ClaimScan *scan);
static void move_exhausted(ClaimScan *scan);
static bool has_new_bound(ClaimScan *scan);
static bool is_inconclusive(ClaimScan *scan);
static bool is_subset(BusyIds *now, const BusyIds *before);
static int	compare_ids(const void *a, const void *b);

/*
 * Returns whether scans may use availability maps.  On a standby they may
 * not, because no session there returns to a map what becomes free.
 */
bool
claim_scan_uses_map(void)
{
	return !RecoveryInProgress();
}

/* --- A scan and its passes --- */

ClaimScan *
claim_scan_begin(const ClaimScanRequest *request)
{
	ClaimScan  *scan = palloc0(sizeof(ClaimScan));

	scan->request = *request;
	scan->has_groups = request->queue->has_groups;
	scan->may_move_dead = true;
	return scan;
}

/* Make one pass of a claim or a probe.  claim_scan_end_pass() ends it. */
const ClaimScanResult *
claim_scan_pass(ClaimScan *scan)
{
	bool		probes = scan->request.mode == CLAIM_SCAN_PROBE;

	Assert(!availability_is_reserving());
	begin_pass(scan);

	/* The lanes of groups with a bound may not know what was delivered. */
	scan->pass.uses_map = !scan->without_map && claim_scan_uses_map() &&
		(!scan->has_groups || lane_scan_has_lanes(scan));
	if (!scan->pass.uses_map)
		whole_scan_pass(scan);
	else
	{
		/*
		 * With the state of the segments we scan a range only in those that
		 * may hold its numbers.
		 */
		(void) segment_state_own();

		/*
		 * If groups have a bound, a message that is free may not be claimed
		 * while its group is full, so a probe has to take lanes as a claim
		 * does.  Otherwise it is enough to find anything that is free.
		 */
		if (probes && scan->request.queue->group_concurrency <= 0)
			claim_scan_probe_map(scan);
		else if (scan->has_groups)
			lane_scan_pass(scan);
		else
			claim_scan_map(scan);
	}

	/* What is marked has its range in 31 bits (ClaimId.span). */
	Assert(scan->result.chosen.n <= scan->request.limit);
	Assert(scan->result.chosen.n == 0 ||
		   (scan->result.min_number <= scan->result.max_number &&
			scan->result.max_number - scan->result.min_number <= PG_INT32_MAX));

	/* The pass may have waited for other sessions or for a table. */
	scan->result.now = scan->pass.now = GetCurrentTimestamp();
	return &scan->result;
}

static void
begin_pass(ClaimScan *scan)
{
	const Queue *queue = scan->request.queue;
	ScanPass   *pass = &scan->pass;
	Queue		dead;

	pass->now = GetCurrentTimestamp();

	/* All passes together scan what is locked once. */
	if (scan->began == 0)
		scan->began = pass->now;
	pass->moves = segment_moves();
	root_job_forget();

	/*
	 * Fill the caches now: once the pass has reserved or locked something, it
	 * must not wait for a lock on the table of queues, or of rates.
	 */
	if (scan->has_groups)
		lane_prepare(queue->id);
	if (scan->has_groups && queue->group_rate > 0 &&
		scan->request.mode != CLAIM_SCAN_SWEEP)
		group_rate_prepare();
	if (queue->dead_id != 0 && scan->request.mode != CLAIM_SCAN_PROBE)
		(void) queue_find_as(queue->dead_queue, queue->owner,
							 QUEUE_DESCRIBE, &dead);
	pass->rows = message_scan_begin(queue->id,
									scan->request.mode == CLAIM_SCAN_PROBE ?
									AccessShareLock : RowExclusiveLock,
									scan->request.tables);
}

/*
 * The caller could not mark or delete a message that was chosen but not
 * locked: another transaction has locked or changed it.  A later scan finds
 * it again, with a new snapshot.
 */
void
claim_scan_lost(ClaimScan *scan, const ChosenMessage *message)
{
	MessageRange range = {0};
	LaneId		lane = LANE_WITHOUT_KEY;

	range.first = range.last = message_id_number(message->form.id);
	range.priority = message->form.priority;

	/* No callback may report the end of the other transaction. */
	range.due = availability_recheck_at(scan->pass.now);
	range.is_locked = true;
	if (scan->request.queue->group_concurrency > 0)
	{
		/*
		 * The message goes back to its lane at once: if it were only in the
		 * map, claims would overtake it in its group.
		 */
		lane = message_lane(RelationGetDescr(message->table->heap),
							message->tuple);
		range.due = DT_NOBEGIN;
		range.is_locked = false;
	}
	availability_return(catalog_queue_oid(), scan->request.queue->id, lane,
						&range, message_expires_at(&message->form), scan->pass.now);
	scan->pass.met_locked = true;
	scan->pass.lost = true;
}

/*
 * The caller has marked or deleted what was chosen.  Close the reservation,
 * remove and move the messages that were set aside for that, and close the
 * tables.
 */
void
claim_scan_end_pass(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;

	availability_close();
	Assert(!availability_is_reserving());
	group_turns_end(scan);
	for (int i = 0; i < pass->expired.n; i++)
		expire_remove(scan->request.queue, pass->expired.items[i].table,
					  pass->expired.items[i].tuple);
	for (int i = 0; i < pass->duplicates.n; i++)
		(void) message_end(scan->request.queue,
						   pass->duplicates.items[i].table,
						   pass->duplicates.items[i].tuple, END_DUPLICATE,
						   NULL);
	CommandCounterIncrement();
	move_exhausted(scan);
	message_scan_end(pass->rows);
}

/* Move messages that were claimed too often to the dead letter queue. */
static void
move_exhausted(ClaimScan *scan)
{
	const ChosenMessages *list = &scan->pass.exhausted;

	for (int i = 0; i < list->n; i++)
	{
		ChosenMessage *message = &list->items[i];

		/* What keeps us from moving one message holds for the others too. */
		scan->may_move_dead = scan->may_move_dead &&
			dead_letter_move(scan->request.queue, message->table,
							 message->tuple, DEAD_LETTER_CLAIM_COUNT,
							 WARNING, NULL);

		/* Other claims skip one that stays until our lock on it ends. */
		if (!scan->may_move_dead)
			message_return_at_commit(message->table, message->tuple);
	}
}

/*
 * The pass has found nothing.  Returns whether another one is needed to be
 * sure that nothing is free, and if so, prepares it.
 */
bool
claim_scan_needs_pass(ClaimScan *scan)
{
	if (!is_inconclusive(scan) && !has_new_bound(scan))
		return false;

	if (scan->busy_before.items != NULL)
		pfree(scan->busy_before.items);
	scan->busy_before = scan->pass.busy;
	memset(&scan->pass, 0, sizeof(ScanPass));
	memset(&scan->result, 0, sizeof(ClaimScanResult));
	return true;
}

/*
 * Returns whether the bound or the rate of the groups has changed, and adopts
 * the new ones.  A session that is woken because of such a change may not
 * have received the invalidation message yet.
 */
static bool
has_new_bound(ClaimScan *scan)
{
	const Queue *queue = scan->request.queue;

	/* A scan adopts one change, so that it ends however often they change. */
	if (!scan->has_groups || queue == &scan->current ||
		!queue_by_id(queue->id, &scan->current) ||
		(scan->current.group_concurrency == queue->group_concurrency &&
		 scan->current.group_rate == queue->group_rate))
		return false;
	scan->request.queue = &scan->current;
	return true;
}

/*
 * Returns whether something may have been free throughout the pass, although
 * it has found nothing.  Then this decides how the next pass is made.
 */
static bool
is_inconclusive(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;

	/*
	 * The map did not help: there was no room in shared memory, or sessions
	 * that have much to scan or to mark, or are stopped, kept their
	 * reservations open for too long.  So we read all rows.
	 */
	if (pass->gave_up)
	{
		scan->without_map = true;
		return true;
	}

	/*
	 * What we have met locked may be free, because the worker locks messages
	 * that it moves.
	 */
	if (pass->met_locked && segment_wait_for_move(pass->moves))
		return true;

	/* The queue had no groups when it was opened: take them in turn now. */
	if (pass->met_group)
	{
		scan->has_groups = true;
		return true;
	}

	/*
	 * A row that was changed between snapshot and lock may be free again, and
	 * while we met one locked row after the other, others may have been
	 * pushed that the snapshot does not show.  So we repeat the pass until
	 * each row that it finds locked was locked in the previous pass too: then
	 * all of them were locked when the last snapshot was taken, unless one
	 * was unlocked and locked again.
	 */
	if (!pass->uses_map)
		return !is_subset(&pass->busy, &scan->busy_before) || pass->lost;

	/* Something came free, or was taken by another session, meanwhile. */
	if (pass->lost)
		return true;

	/*
	 * We have passed over groups that other transactions had locked.  A
	 * holder that the previous pass has not met may have locked a group that
	 * had something free in between.
	 */
	return pass->met_locked_group && !is_subset(&pass->busy, &scan->busy_before);
}

/*
 * Returns whether each item of the first list is in the second one too.
 * Sorts the first.  The second was sorted when it was the first, unless its
 * pass was inconclusive for another reason; then the result may be false
 * without need, which costs a pass.
 */
static bool
is_subset(BusyIds *now, const BusyIds *before)
{
	int			j = 0;

	if (now->n > 1)
		qsort(now->items, now->n, sizeof(int64), compare_ids);
	for (int i = 0; i < now->n; i++)
	{
		while (j < before->n && before->items[j] < now->items[i])
			j++;
		if (j == before->n || before->items[j] != now->items[i])
			return false;
	}
	return true;
}

static int
compare_ids(const void *a, const void *b)
{
	int64		x = *(const int64 *) a;
	int64		y = *(const int64 *) b;

	return x < y ? -1 : (x > y);
}

/* --- A probe --- */

/*
 * Returns whether there is anything to claim.  Changes no message.  Probes of
 * many queues may share the open tables, zeroed before the first; else
 * "tables" is NULL.
 */
bool
claim_scan_probe(const Queue *queue, MessageTables *tables)
{
	ClaimScanRequest request = {.queue = queue,.mode = CLAIM_SCAN_PROBE,
	.limit = 1,.tables = tables};
	ClaimScan  *scan = claim_scan_begin(&request);
	bool		found;

	(void) has_new_bound(scan);
	do
	{
		found = claim_scan_pass(scan)->nfree > 0;
		claim_scan_end_pass(scan);
	} while (!found && claim_scan_needs_pass(scan));
	return found;
}

/* --- A sweep --- */

/*
 * Scan some of what is overdue in a queue: claims that ran out, what was
 * locked, and all of a queue of which the map knows nothing.  Only for the
 * worker, which calls this again in another transaction, for the rest.
 * Returns false if there is nothing to sweep.  Sets *disturbed if concurrent
 * claims have taken what was scanned.
 */
bool
claim_scan_sweep(const Queue *queue, bool *disturbed)
{
	ClaimScan  *scan;
	ScanPass   *pass;
	MessageRange range;
	int64		scanned_to;
	int			nscanned = 0;
	bool		found = false;

	/* What is free is given to its lane at once. */
	if (queue->has_groups)
	{
		scan = begin_sweep(queue);
		found = lane_scan_give_due(scan);
		end_sweep(scan);
		return found;
	}

	/* A map that knows nothing has a range of each priority. */
	while (nscanned < SWEEP_AT_ONCE &&
		   availability_begin_sweep(queue->id, GetCurrentTimestamp(), &range))
	{
		scan = begin_sweep(queue);
		pass = &scan->pass;
		scanned_to = claim_scan_range(scan, &range);

		/* The worker does not wait for a lock that a user may hold. */
		if (message_scan_is_blocked(pass->rows))
			message_scan_lock_error();
		nscanned += pass->nscanned;
		found = true;

		/*
		 * What is set aside is removed before the map learns of the sweep: if
		 * that fails, the range stays due.
		 */
		end_sweep(scan);
		*disturbed = !availability_end_sweep(queue->id, scanned_to,
											 &pass->skipped,
											 scan->result.nfree, pass->now);
		if (*disturbed || pass->expired.n > 0 || pass->duplicates.n > 0 ||
			pass->exhausted.n > 0)
			break;
	}
	return found;
}

static ClaimScan *
begin_sweep(const Queue *queue)
{
	ClaimScanRequest request = {.queue = queue,.mode = CLAIM_SCAN_SWEEP};
	ClaimScan  *scan = claim_scan_begin(&request);

	begin_pass(scan);
	(void) segment_state_own();
	message_scan_no_wait(scan->pass.rows);
	return scan;
}

static void
end_sweep(ClaimScan *scan)
{
	ScanPass   *pass = &scan->pass;

	database_count(COUNT_EXPIRED_CLAIMS, pass->nended);
	database_count(COUNT_REMOVED, pass->expired.n);
	database_count(COUNT_DEAD_LETTERS, pass->exhausted.n);
	claim_scan_end_pass(scan);
}
