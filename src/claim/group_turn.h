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

#include "utils/hsearch.h"

#include "claim/claim_scan.h"
#include "map/lane_id.h"
#include "map/message_ranges.h"
#include "storage/message_scan.h"

#define GROUP_LOCKS_OF_CLAIM	100 /* groups that one claim locks, at most */

/*
 * The messages of a group with a bound that were counted: of its lane those
 * that were delivered and may be unfinished, or all.
 */
typedef struct GroupCount
{
	const MessageRange *range;	/* what the claim has reserved of the lane;
								 * NULL if the whole queue is read */
	int			n;				/* messages that were delivered and may be
								 * unfinished */
	int64		last_id;		/* of the last one */
	int			live;			/* of these, under live claims, or may be */
	bool		is_changing;	/* another transaction has locked one, or is
								 * changing it */

	/*
	 * The head comes before all others, with a bound of 1.  With another one,
	 * has_head says that the whole queue has something free of the group.
	 */
	bool		has_head;
	bool		head_was_delivered;
	bool		head_is_locked; /* by another transaction */
	bool		is_blocked;		/* a message that was delivered is delayed or
								 * locked */
	MessageRange head;			/* this message */
} GroupCount;

/* What one pass of a claim has done with a group, or a lane */
typedef struct GroupTurn
{
	LaneId		lane;
	int			taken;			/* messages that were chosen */

	/* If the group has a bound */
	bool		is_locked;		/* this transaction has the group's lock */
	bool		is_new_lock;	/* ... and took it in this pass */
	int			room;			/* messages that may be taken yet */
	TimestampTz not_before;		/* its rate allows none before; or 0 */
	uint32		changes;		/* ReserveRequest.lane_changes */
	GroupCount	count;
} GroupTurn;

typedef struct GroupTurns
{
	int			n;
	int			size;			/* of items, allocated */
	GroupTurn  *items;
	HTAB	   *by_lane;		/* TurnEntry of group_turn.c */
} GroupTurns;

/* With a bound of 1, nothing overtakes a message that is locked or delayed. */
static inline bool
group_count_is_blocked(const GroupCount *count)
{
	return count->is_blocked || count->head_is_locked;
}

struct ScanPass;

extern GroupTurn *group_turn_find(struct ScanPass *pass, LaneId lane);
extern bool group_turn_is_bounded(const ClaimScan *scan, LaneId lane);
extern bool group_turn_lock(ClaimScan *scan, GroupTurn *turn);
extern void group_turn_unlock(ClaimScan *scan, GroupTurn *turn);
extern int	group_turn_open(ClaimScan *scan, GroupTurn *turn,
							const MessageRange *range, uint32 changes,
							int wanted);
extern void group_turn_close(ClaimScan *scan, GroupTurn *turn, bool is_full);
extern void group_turns_end(ClaimScan *scan);
extern void group_count_row(ClaimScan *scan, GroupCount *count,
							const ScanRow *row);

#endif							/* QUEUE_GROUP_TURN_H */
