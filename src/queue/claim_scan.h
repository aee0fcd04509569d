/*-------------------------------------------------------------------------
 *
 * claim_scan.h
 *	  What a claim finds: walks over a queue's messages, and locks them.
 *
 * src/queue/claim_scan.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLAIM_SCAN_H
#define QUEUE_CLAIM_SCAN_H

#include "access/htup.h"
#include "datatype/timestamp.h"

#include "catalog/relations.h"
#include "queue/registry.h"
#include "shmem/message_ranges.h"
#include "storage/message_scan.h"

/* A message that this transaction has locked. */
typedef struct LockedMessage
{
	MessageTable *table;
	HeapTuple	tuple;			/* a copy */
} LockedMessage;

typedef struct LockedMessages
{
	int			n;
	int			size;
	LockedMessage	   *items;
} LockedMessages;

/* Ids of messages that others had locked, in the order of the walk. */
typedef struct BusyIds
{
	int			n;
	int			size;
	int64	   *items;
} BusyIds;

typedef enum ClaimScanMode
{
	CLAIM_SCAN_LOCK,					/* lock what is free */
	CLAIM_SCAN_PROBE,					/* find out whether something is */
	CLAIM_SCAN_SWEEP					/* see to what is overdue */
} ClaimScanMode;

/* Walks over a queue until something, or nothing, is found. */
typedef struct ClaimScan
{
	const Queue *queue;
	ClaimScanMode	mode;
	int			limit;			/* messages wanted */
	TimestampTz began;			/* the first walk */
	int			max_due;		/* delayed messages to look at */
	bool		pops;			/* what is taken will be deleted */
	bool		alone;			/* what was tried before goes by itself */
	bool		may_move_dead;		/* the queue's dead letters go somewhere */
	bool		full_scan;		/* at all of the queue */
	bool		hasty;			/* a probe does not wait for others */
	bool		plain;			/* without the availability map */
	int64		wait_until;		/* for others; 0: not yet */
	BusyIds	locked_before;	/* by others, in the last walk */

	/* of this walk */
	TimestampTz scan_began;
	TimestampTz now;
	MessageScan *scan;
	int			nsnapshots;		/* that it pushed */
	int			found;			/* free messages, unless they are taken */
	int			looked;			/* messages that were looked at */
	TimestampTz due;			/* when the range was that it looks at */
	int			ended;			/* claims that have run out */
	int			ended_free;		/* those whose messages are only found */
	int64		last_token;		/* of the last one of them */
	LockedMessages	taken;
	LockedMessages	expired;
	LockedMessages	duplicates;
	LockedMessages	exhausted;
	BusyIds	locked;
	int64		min_number;		/* of the taken ones */
	int64		max_number;
	int16		priorities;
	MessageRanges passed;		/* what may be claimed later */
	uint32		moves;			/* of the worker, when it began */
	bool		met_locked;		/* messages, by others */
	bool		full;			/* the claim's range cannot get wider */
	bool		gave_up;		/* waiting for others */
	bool		changed;		/* a row did, and may be free now */
	bool		more_due;		/* delayed ones that we did not look at */
	bool		own_again;		/* messages of our own may be free yet */
	bool		delayed_open;	/* a reservation */
	bool		delayed_again;	/* look at delayed ones at once */
	bool		delayed_uncertain_done; /* those that may be let go were looked at */
	bool		delayed_uncertain;	/* one was locked */
	TimestampTz delayed_next;	/* when the next one is due */
} ClaimScan;

extern void claim_scan_init(ClaimScan *walk, const Queue *queue, int limit);
extern void claim_scan_run(ClaimScan *walk);
extern void claim_scan_end(ClaimScan *walk);
extern bool claim_scan_again(ClaimScan *walk);
extern bool claim_scan_uses_map(void);
extern bool claim_scan_probe(const Queue *queue, bool hasty);
extern bool claim_scan_sweep(const Queue *queue, bool *disturbed);

#endif							/* QUEUE_CLAIM_SCAN_H */
