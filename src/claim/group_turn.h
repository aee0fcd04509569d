/*-------------------------------------------------------------------------
 *
 * group_turn.h
 *	  Whether a claim may take something of a group.
 *
 * src/claim/group_turn.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_GROUP_TURN_H
#define QUEUE_GROUP_TURN_H

#include "claim/claim_scan.h"
#include "storage/message_scan.h"

#define GROUP_LOCKS_OF_CLAIM	100 /* groups that one claim locks, at most */

/* What one pass of a claim has done with a group */
typedef struct GroupTurn
{
	LaneId		lane;			/* the group; a key of hash tables */
	int			taken;			/* messages that were chosen */

	/* If the group has a bound */
	bool		is_locked;		/* this transaction has the group's lock */
	bool		is_new_lock;	/* ... and took it in this pass */
	int			allowance;		/* messages that its rate leaves */
	TimestampTz not_before;		/* its rate allows none before; or 0 */
} GroupTurn;

extern bool group_turn_is_bounded(const ClaimScan *scan, LaneId lane);
extern bool group_turn_lock(ClaimScan *scan, GroupTurn *turn);
extern void group_turn_unlock(ClaimScan *scan, GroupTurn *turn);
extern bool group_turn_was_delivered(const ScanRow *row);

#endif							/* QUEUE_GROUP_TURN_H */
