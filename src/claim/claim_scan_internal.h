/*-------------------------------------------------------------------------
 *
 * claim_scan_internal.h
 *	  The state of a claim scan; only for the files that make one.
 *
 * src/claim/claim_scan_internal.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLAIM_SCAN_INTERNAL_H
#define QUEUE_CLAIM_SCAN_INTERNAL_H

#include "claim/claim_scan.h"
#include "claim/group_turn.h"
#include "map/availability_reserve.h"
#include "map/message_ranges.h"
#include "storage/message_scan.h"

/* One pass removes or moves at most so many messages of each kind */
#define EXPIRED_AT_ONCE		1000
#define DUPLICATES_AT_ONCE	1000
#define EXHAUSTED_AT_ONCE	100

/*
 * So many messages are scanned by one sweep, and by one step of a claim that
 * gives them to their lanes.
 */
#define SWEEP_AT_ONCE		1000

/*
 * What other transactions had locked: the ids of messages, and for groups the
 * hashes of the transactions
 */
typedef struct BusyIds
{
	int			n;
	int			size;			/* of items, allocated */
	int64	   *items;
} BusyIds;

/* What a message is to a scan; the first that applies */
typedef enum MessageClass
{
	MESSAGE_OURS,				/* this pass has chosen or locked it before:
								 * the ranges that it scans may overlap */
	MESSAGE_CLAIMED,			/* it is in a live claim */
	MESSAGE_EXPIRED,			/* its lifetime is over */
	MESSAGE_DUPLICATE,			/* its deduplication key or its root job makes
								 * it unnecessary (dedup.c, root_job.c) */
	MESSAGE_EXHAUSTED,			/* claimed as often as its queue allows */
	MESSAGE_FREE				/* it can be claimed */
} MessageClass;

/* Free messages that one pass gives to their lanes */
typedef struct LaneRanges
{
	int			n;
	int			size;			/* of items, allocated */
	LaneRange  *items;
} LaneRanges;

/* What a pass that takes lanes in turn does with the rows that it scans */
typedef enum LaneStep
{
	LANE_STEP_NONE,				/* it reads no lane */
	LANE_STEP_GIVE,				/* free ones are given to their lanes */
	LANE_STEP_TAKE				/* those of one lane may be chosen */
} LaneStep;

/* One pass over the queue's messages */
typedef struct ScanPass
{
	TimestampTz now;			/* updated after each wait */
	bool		uses_map;		/* the availability map keeps other claims
								 * away from what this one scans */
	int64		last_chosen;	/* id of the last of result.chosen, in the
								 * order of a claim */
	MessageScan *rows;			/* the messages */
	uint64		reservations;	/* before the last one was taken */
	int			nscanned;		/* messages scanned in ranges of the map */
	int			ngiven;			/* free messages that the last range had for
								 * their lanes */
	uint32		moves;			/* segment_moves() at the beginning */

	/* Messages that are locked, to be removed or moved as the pass ends */
	ChosenMessages expired;
	ChosenMessages duplicates;
	ChosenMessages exhausted;

	/* What was not available */
	BusyIds		busy;			/* claim: locked by other transactions */
	bool		met_locked;		/* another transaction had locked a message */
	bool		met_locked_group;	/* ... or a group with a bound */
	bool		lost;			/* another transaction was the first to change
								 * a message, so that it or something else may
								 * be free again */
	bool		met_group;		/* the queue has groups, and had none when the
								 * scan began */
	bool		gave_up;		/* the map is of no help: waiting for other
								 * sessions took too long, or there was no
								 * room */

	/* What is to be returned to the availability map */
	MessageRanges skipped;		/* messages in it that may be free later */

	/* What this transaction has made free itself (pending_take_own) */
	MessageRanges own;			/* taken, to be returned */
	MessageRanges own_skipped;	/* messages in it that may be free later */
	int64		own_scanned_to; /* id of the last one that was scanned */

	/* Groups */
	GroupTurns	turns;			/* of which the pass has taken or counted
								 * anything */
	int			nlocks;			/* groups with a bound that it has locked */

	/* A queue with groups, with a map (lane_scan.c) */
	LaneStep	lane_step;
	int			space;			/* GIVE: messages that are scanned, at most; 0
								 * if no limit */
	LaneId		lane;			/* TAKE: rows of other lanes are passed over */
	int			lane_goal;		/* TAKE: until so many messages are chosen */
	bool		is_first_out;	/* TAKE: the bound is 1, so nothing is chosen
								 * beyond a locked message */
	bool		head_failed;	/* TAKE: a message could not be chosen,
								 * because it was locked or changed */
	LaneRanges	freed;
	LaneRanges	delivered;		/* GIVE, and while a lane is counted: messages
								 * that were delivered and may be unfinished */

	bool		does_not_fit;	/* the next message cannot be in the same
								 * claim, or its group is one too many */
	int			nended;			/* sweep: claims that ran out */
	int64		ended_token;	/* of the claim that was counted last */
} ScanPass;

struct ClaimScan
{
	ClaimScanRequest request;
	ClaimScanResult result;		/* of the current pass */
	ScanPass	pass;			/* all zero when a pass begins */

	/* What is kept from one pass to the next */
	Queue		current;		/* the queue, if the bound or rate of its
								 * groups has changed */
	TimestampTz began;			/* the first pass */
	bool		has_groups;		/* messages of the queue have group keys */
	bool		without_map;	/* do not use the availability map any more */
	bool		may_move_dead;	/* the dead letter queue was not found to be
								 * unusable */
	int64		wait_until;		/* deadline of waiting for other sessions; 0
								 * before the first wait */
	BusyIds		busy_before;	/* pass.busy of the previous pass */
};

/* claim_scan_row.c: what a message is, and what is done with it */
extern MessageClass scan_row_class(const ClaimScan *scan, const ScanRow *row);
extern bool scan_row_counts_as_claimed(const ScanRow *row,
									   MessageClass class);
extern bool scan_row_is_locked(const ScanRow *row);
extern bool scan_row_is_changing(const ScanRow *row);
extern bool scan_row_is_of_lane(const ScanRow *row, LaneId lane);
extern void claim_scan_row(ClaimScan *scan, ScanRow *row);

/* ... and what a pass collects */
extern void *scan_list_make_room(void *items, int n, int *size,
								 Size item_size);
extern void scan_list_add_busy(ClaimScan *scan, int64 id);
extern void scan_list_add_range(LaneRanges *list, const ScanRow *row);
extern void scan_list_add_delivered(ClaimScan *scan, const ScanRow *row);
extern void scan_list_sort_chosen(ChosenMessages *chosen, bool in_turns);

/* claim_scan_source.c: where messages come from */
extern bool claim_scan_wants_more(const ClaimScan *scan);
extern void claim_scan_push_snapshot(ClaimScan *scan);
extern void claim_scan_add_range(ClaimScan *scan, const MessageRange *range,
								 bool has_snapshot);
extern int64 claim_scan_range(ClaimScan *scan, const MessageRange *range);
extern bool claim_scan_wait(ClaimScan *scan, bool awaits_move);
extern bool claim_scan_begin_again(ClaimScan *scan);
extern void claim_scan_give_back(ClaimScan *scan, int64 scanned_to);
extern void claim_scan_widen(ReserveRequest *request, int64 width);
extern void claim_scan_map(ClaimScan *scan);
extern void claim_scan_probe_map(ClaimScan *scan);

#endif							/* QUEUE_CLAIM_SCAN_INTERNAL_H */
