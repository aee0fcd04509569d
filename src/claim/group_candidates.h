/*-------------------------------------------------------------------------
 *
 * group_candidates.h
 *	  The groups that a pass over the whole queue has met, and what is free.
 *
 * src/claim/group_candidates.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_GROUP_CANDIDATES_H
#define QUEUE_GROUP_CANDIDATES_H

#include "utils/hsearch.h"

#include "claim/claim_scan_internal.h"

/* A free message that is kept */
typedef struct Candidate
{
	ChosenMessage message;		/* "locked": by another transaction */
	bool		was_delivered;	/* in this queue; only if the bound is 1 */
} Candidate;

typedef struct ClaimGroup
{
	GroupTurn	turn;			/* begins with the hash key */
	int			live;			/* messages under live claims */
	bool		is_blocked;		/* if the bound is 1: a message that comes
								 * first is delayed or locked */

	/* The first free messages, in the order in which they are handed out */
	int			n;
	int			size;			/* allocated */
	int			next;			/* the next one to be chosen */
	Candidate  *candidates;
} ClaimGroup;

struct ClaimGroups
{
	MemoryContext context;		/* of all of this */
	MemoryContext candidates;	/* its child; of one reading */
	HTAB	   *table;
	bool		only_locked;	/* the second reading, only of groups that are
								 * locked or have no bound */
	uint32		changes;		/* availability_begin_groups() at the
								 * beginning */
	int			n;				/* groups in "order" */
	ClaimGroup **order;			/* by lane, from the one whose turn it is */
};

extern void group_candidates_begin(ClaimScan *scan);
extern void group_candidates_forget(ClaimScan *scan);
extern void group_candidates_add_claimed(ClaimScan *scan,
										 const ScanRow *row);
extern void group_candidates_add_free(ClaimScan *scan, const ScanRow *row,
									  bool locked);
extern bool group_candidates_has_turn(const ClaimScan *scan,
									  const ClaimGroup *group);

#endif							/* QUEUE_GROUP_CANDIDATES_H */
