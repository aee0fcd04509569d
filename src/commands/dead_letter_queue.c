/*-------------------------------------------------------------------------
 *
 * dead_letter_queue.c
 *	  Dead letter queues that the metadata of other queues requires.
 *
 * NOTES
 *	  A queue with "_max_claim_count" in its metadata has a dead letter queue,
 *	  which is named there or by default.  It exists from the moment at which
 *	  the metadata requires it: otherwise another role could create a queue of
 *	  that name, and would receive the dead letters.  So every function that
 *	  writes metadata calls dead_letter_queue_require(), which creates it.
 *	  That waits for a transaction that is creating a queue of the same name.
 *	  A queue whose metadata requires none gets one when a message is buried,
 *	  or has waited for a batch in vain; then its metadata names that.
 *
 *	  The row of the queue in queue_data.queue has the id of its dead letter
 *	  queue.  Messages are only moved to the queue with this id, never to
 *	  another one that was given the same name later.
 *
 *	  Dead letters must not come back to the queue that they are from, also not
 *	  by way of the dead letter queues of dead letter queues.  To prevent that,
 *	  a change of a queue's dead letter queue takes an exclusive lock on the
 *	  queue's reference, and a share lock on that of each queue in the chain
 *	  that follows, until the transaction ends (LOCK_DEAD_LETTERS).  The
 *	  locks are taken in the order of the queues' ids, so that two sessions
 *	  each of which makes one half of a cycle do not deadlock.  After waiting,
 *	  the chain is read again, until it is the one that was locked.
 *
 * src/commands/dead_letter_queue.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "catalog/tables.h"
#include "commands/dead_letter_queue.h"
#include "queue/options.h"
#include "queue/queue_lock.h"
#include "queue/registry.h"

/* How many dead letter queues may follow one another */
#define CHAIN_MAX				100

pg_noreturn static void report_dead_letter_cycle(const Queue *queue,
												 const char *dead);
static void check_dead_letter_queue(const Queue *queue, const Queue *wanted,
									const Queue *dead, bool owner_may_push);
static List *read_dead_letter_chain(const Queue *queue, const Queue *dead);
static void lock_dead_letter_chain(const Queue *queue, const Queue *dead);

static void
report_dead_letter_cycle(const Queue *queue, const char *dead)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("dead letters of queue \"%s\" would come back to it",
					queue->name),
			 errdetail("\"_dead_letter_queue\" is \"%s\".", dead),
			 errhint("Name a queue whose own dead letters go elsewhere.")));
}

/*
 * Check that a queue may receive the dead letters, if it was not created for
 * that purpose.  owner_may_push says whether the owner of the queue may push
 * to it.
 */
static void
check_dead_letter_queue(const Queue *queue, const Queue *wanted,
						const Queue *dead, bool owner_may_push)
{
	Queue		again;

	if (!wanted->dead_named && dead->owner != queue->owner)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("queue \"%s\" belongs to another role", dead->name),
				 errdetail("By its name it would be the dead letter queue of \"%s\".",
						   queue->name),
				 errhint("Name another dead letter queue in the metadata: \"_dead_letter_queue\".")));

	/* A role with admin on this queue must not push where it may not. */
	if (!owner_may_push ||
		queue_find_as(dead->name, GetUserId(), QUEUE_PUSH,
					  &again) == QUEUE_DENIED)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for queue \"%s\"", dead->name),
				 owner_may_push ?
				 errdetail("Dead letters of queue \"%s\" would be pushed to it.",
						   queue->name) :
				 errdetail("The owner of queue \"%s\" may not push to it.",
						   queue->name),
				 errhint("%s Or name another dead letter queue.",
						 queue_grant_hint(dead->name, owner_may_push ?
										  GetUserId() : queue->owner,
										  QUEUE_PUSH))));

	if (queue_find_as(queue->name, dead->owner, QUEUE_CLAIM,
					  &again) == QUEUE_DENIED)
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("dead letters of queue \"%s\" go to queue \"%s\" of role \"%s\", which may not claim from \"%s\"",
						queue->name, dead->name,
						GetUserNameFromId(dead->owner, true), queue->name),
				 errhint("If that role is not meant to read them, name another dead letter queue, or none.")));
}

/*
 * List the ids of the queue, its dead letter queue, and those that follow,
 * sorted.  A cycle is an error.
 */
static List *
read_dead_letter_chain(const Queue *queue, const Queue *dead)
{
	List	   *ids = list_make1_int(queue->id);
	Queue		next = *dead;

	for (;;)
	{
		if (next.id == queue->id)
			report_dead_letter_cycle(queue, dead->name);
		if (list_length(ids) > CHAIN_MAX)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("dead letters of queue \"%s\" would go through more than %d queues",
							queue->name, CHAIN_MAX),
					 errhint("Name a queue that has no dead letter queue.")));
		ids = lappend_int(ids, next.id);
		if (next.dead_id == 0 || !queue_by_id(next.dead_id, &next))
			break;
	}
	list_sort(ids, list_int_cmp);
	return ids;
}

/* Lock the chain, so that it has no cycle until the transaction ends. */
static void
lock_dead_letter_chain(const Queue *queue, const Queue *dead)
{
	List	   *ids = read_dead_letter_chain(queue, dead);
	List	   *locked;
	Queue		current;

	do
	{
		ListCell   *cell;

		locked = ids;
		foreach(cell, ids)
			(void) queue_lock_part(lfirst_int(cell), LOCK_DEAD_LETTERS,
								   lfirst_int(cell) == queue->id ?
								   ExclusiveLock : ShareLock, true);
		if (!queue_by_id(dead->id, &current))
			queue_missing_error(dead->name);
		ids = read_dead_letter_chain(queue, &current);
	} while (!equal(ids, locked));
}

/*
 * Find or create the dead letter queue that the metadata requires of a queue
 * whose row the caller has locked.  Returns its id; 0 when none is required.
 *
 * If the queue has it already, nothing is checked again.  In particular, if
 * the dead letter queue was dropped, another one of the same name does not
 * take its place, unless a change of the metadata names it anew.
 *
 * is_default: the metadata names it only because the queue has got its default
 * one now, so that of another role is refused.
 */
int32
dead_letter_queue_require(const Queue *queue, Jsonb *metadata, bool is_default)
{
	Queue		wanted = *queue;
	Queue		dead;
	QueueResult found;
	bool		created = false;
	int32		id;

	options_parse(metadata, &wanted, false);
	if (is_default)
		wanted.dead_named = false;
	if (wanted.dead_queue[0] == '\0')
		return 0;
	if (strcmp(wanted.dead_queue, queue->name) == 0)
		report_dead_letter_cycle(queue, wanted.dead_queue);
	if (queue->dead_id != 0 &&
		strcmp(wanted.dead_queue, queue->dead_queue) == 0)
		return queue->dead_id;

	do
	{
		/* If another session creates it meanwhile, it is checked below. */
		while ((found = queue_find_as(wanted.dead_queue, queue->owner,
									  QUEUE_PUSH, &dead)) == QUEUE_MISSING)
			created = queue_insert(wanted.dead_queue, NULL, queue->owner,
								   queue->id);
		if (dead.source_id != queue->id)
			check_dead_letter_queue(queue, &wanted, &dead, found == QUEUE_OK);
		id = dead.id;
	} while (queue_open_as(wanted.dead_queue, queue->owner, QUEUE_PUSH, true,
						   &dead) != QUEUE_OK || dead.id != id);

	/* The dead letters of a queue that was just created go nowhere. */
	if (!created)
		lock_dead_letter_chain(queue, &dead);
	return id;
}

/*
 * Refuse to drop a queue that is the dead letter queue of another one, unless
 * the owner of that one may not push to it any more.
 */
void
dead_letter_queue_check_drop(const Queue *queue)
{
	ListCell   *cell;

	foreach(cell, queue_referring(Anum_queue_dead_queue_id, queue->id))
	{
		Queue		source;
		Queue		dead;

		if (queue_by_id(lfirst_int(cell), &source) &&
			queue_find_as(queue->name, source.owner, QUEUE_PUSH,
						  &dead) == QUEUE_OK)
			ereport(ERROR,
					(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
					 errmsg("cannot drop queue \"%s\": it is the dead letter queue of \"%s\"",
							queue->name, source.name),
					 errhint("Have the metadata of \"%s\" name another one, or no \"_max_claim_count\" and no \"_dead_letter_queue\". If it is not yours, narrow push on \"%s\" first.",
							 source.name, queue->name)));
	}
}
