/*-------------------------------------------------------------------------
 *
 * ring.h
 *	  Rings of tables: switching to the next table, and truncating.
 *
 * src/storage/ring.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_RING_H
#define QUEUE_RING_H

#include "datatype/timestamp.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#include "catalog/tables.h"
#include "shmem/segment_state.h"

#define RING_PAUSE_MAX	(60 * USECS_PER_SEC)	/* between two visits, besides
												 * keep_max of the ring */

/* What the rings of messages, and those of the history, differ in */
typedef struct RingKind
{
	RingKindId	id;
	RingId		first;			/* of these rings */
	int			n;				/* how many there are */
	LOCKMODE	lock;			/* on a table that is visited */

	/*
	 * Prepare for a step; is_new: what was remembered holds no more.  Returns
	 * false if there is nothing to do before *again.
	 */
	bool		(*begin) (bool is_new, RingState *state, TimestampTz *again);

	/*
	 * Returns when the ring has to switch, DT_NOEND if nothing was written
	 * that asks for it.
	 */
	TimestampTz (*switch_at) (RingId ring, int active,
							  TimestampTz switched_at, RingState *state);

	/*
	 * Survey a table, and truncate it if no row is to be kept.  Returns false
	 * if something is left to be done at *again, which is now if it is not
	 * set.
	 */
	bool		(*recycle) (RingId ring, int table, TimestampTz began,
							TimestampTz *again);
} RingKind;

/* For the worker */
extern bool ring_step(const RingKind *kind, TimestampTz *again);

/* For the kinds */
extern const char *ring_table_name(int table);
extern double ring_relation_size(Relation rel);
extern void ring_log_kept(int table, const char *reason);
extern bool ring_lock_table(int table, bool wait, Relation *rel);
extern void ring_truncate(int table, Relation rel);
extern void ring_visit_soon(int table);

/* Truncations, for triggers and dumps */
extern bool ring_is_truncating(void);
extern bool ring_is_whole(int segment, Snapshot snapshot);

#endif							/* QUEUE_RING_H */
