/*-------------------------------------------------------------------------
 *
 * lanes_table.h
 *	  The memory of lanes: their entries, and the lists of their pieces.
 *
 * src/map/lanes_table.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_LANES_TABLE_H
#define QUEUE_LANES_TABLE_H

#include "datatype/timestamp.h"

#include "map/availability.h"
#include "map/message_ranges.h"
#include "shmem/shmem.h"
#include "shmem/shmem_table.h"

/* Pieces in the order of their numbers, or of what was delivered */
typedef struct PieceList
{
	EntryNumber first;
	EntryNumber last;
} PieceList;

/* The states of a lane; see the NOTES of lanes.c */
typedef enum LaneState
{
	LANE_NO_ENTRY,				/* it has none, or the one that it was just
								 * given is in no ring */
	LANE_TAKEN,					/* a claim reads a range of it: others must
								 * not overtake that */
	LANE_FULL,					/* its group has no room for a message */
	LANE_EMPTY,					/* nothing is free in it */
	LANE_WAITS,					/* its rate allows nothing before a time */
	LANE_HAS_TURN
} LaneState;

/* The entry of a lane.  The lock of its queue's map protects it. */
typedef struct Lane
{
	TableEntry	entry;			/* protected by the lock of all lanes */
	EntryNumber number;			/* of the lane; never changes */

	/* The key */
	EntryNumber map;			/* number of the queue's map */
	LaneId		lane;

	LaneState	state;
	EntryNumber previous;		/* in a ring; in the heap: the left child */
	EntryNumber next;			/* in a ring; in the heap: the right child;
								 * or, if unused, the next unused one */
	EntryNumber parent;			/* in the heap; 0: it is the first */
	PieceList	pieces[QUEUE_PRIORITIES];	/* something may be free there */

	/* Groups with a bound, or a rate */
	bool		is_full;		/* a claim has found the group full */
	uint32		changed;		/* map->lane_changes, when something may have
								 * made room */
	PieceList	delivered;		/* what was delivered and may be unfinished */
	TimestampTz not_before;		/* its rate allows nothing earlier, or 0 */
} Lane;

extern SharedArea lanes_area;
extern void lanes_init(void);

/* Entries */
extern int	lanes_space(const AvailabilityMap *map);
extern Size lane_piece_size(void);
extern void lanes_count(uint32 *nlanes, uint32 *npieces, uint32 *max_pieces);
extern Lane *lane_at(EntryNumber number);
extern Lane *lane_find(const AvailabilityMap *map, LaneId lane);
extern Lane *lane_make(AvailabilityMap *map, LaneId lane, bool reserve);
extern void lane_free(const AvailabilityMap *map, Lane *entry);

/* Lists of pieces */
extern bool lane_add_piece(const AvailabilityMap *map, PieceList *list, const MessageRange *range,
						   bool reserve);
extern bool lane_append_delivered(const AvailabilityMap *map, PieceList *list, const MessageRange *range);
extern void lane_take_pieces(const AvailabilityMap *map, PieceList *list, int64 width,
							 MessageRange *range);
extern void lane_cut_pieces(const AvailabilityMap *map, PieceList *list, const MessageRange *range);
extern void lane_free_pieces(const AvailabilityMap *map, PieceList *list);
extern int	lane_list_pieces(const PieceList *list, MessageRange *ranges,
							 int max);
extern bool lane_includes(const PieceList *list, const MessageRange *range);
extern int64 lane_first_number(const PieceList *list);
extern int64 lane_last_number(const PieceList *list);

#endif							/* QUEUE_LANES_TABLE_H */
