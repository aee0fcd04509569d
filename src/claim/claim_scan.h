/*-------------------------------------------------------------------------
 *
 * claim_scan.h
 *	  Scanning a queue for messages that can be claimed.
 *
 * src/claim/claim_scan.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLAIM_SCAN_H
#define QUEUE_CLAIM_SCAN_H

#include "access/htup.h"
#include "datatype/timestamp.h"

#include "catalog/message_table.h"
#include "queue/registry.h"

/* What a scan does with the messages that are free */
typedef enum ClaimScanMode
{
	CLAIM_SCAN_CLAIM,			/* choose them, for the caller */
	CLAIM_SCAN_PROBE,			/* find out whether there is one; change
								 * nothing */
	CLAIM_SCAN_SWEEP			/* record where they are; for the worker */
} ClaimScanMode;

/* What a scan is to find.  It does not change once the scan has begun. */
typedef struct ClaimScanRequest
{
	const Queue *queue;
	ClaimScanMode mode;
	int			limit;			/* claim: messages wanted */
	bool		deletes;		/* claim: the caller will delete them */
	bool		isolates;		/* claim: one that was claimed before is
								 * claimed alone */
	MessageTables *tables;		/* probe: shared by several; or NULL */
} ClaimScanRequest;

/*
 * A message that the scan has chosen.  If it is not locked, other
 * transactions may lock or change it until the caller does.
 */
typedef struct ChosenMessage
{
	MessageTable *table;		/* open until the pass ends */
	HeapTuple	tuple;			/* a copy */
	MessageForm form;			/* read from tuple */
	bool		locked;			/* by this transaction */
	int			lane;			/* where lanes take turns: its index in
								 * ScanPass.turns; else 0 */
	int			place;			/* among those of its lane */
} ChosenMessage;

typedef struct ChosenMessages
{
	int			n;
	int			size;			/* of items, allocated */
	ChosenMessage *items;
} ChosenMessages;

/* What one pass of a scan has found; good until the pass ends */
typedef struct ClaimScanResult
{
	ChosenMessages chosen;		/* claim: in the order of the claim */
	int64		min_number;		/* of these messages */
	int64		max_number;
	int16		priorities;		/* bit p: one has priority p */
	int			nfree;			/* probe and sweep: free messages met */
	TimestampTz now;			/* the time when the pass was done */
} ClaimScanResult;

typedef struct ClaimScan ClaimScan;

/*
 * A claim: passes over the queue, until something was found or is known not
 * to be there.
 *
 *	scan = claim_scan_begin(&request);
 *	do
 *	{
 *		result = claim_scan_pass(scan);
 *		... mark or delete what is chosen; claim_scan_lost() if another
 *			transaction was first ...
 *		found = ... any was left ...;
 *		claim_scan_end_pass(scan);
 *	} while (!found && claim_scan_needs_pass(scan));
 */
extern ClaimScan *claim_scan_begin(const ClaimScanRequest *request);
extern const ClaimScanResult *claim_scan_pass(ClaimScan *scan);
extern void claim_scan_lost(ClaimScan *scan, const ChosenMessage *message);
extern void claim_scan_end_pass(ClaimScan *scan);
extern bool claim_scan_needs_pass(ClaimScan *scan);

/* A probe and a sweep, with all their passes */
extern bool claim_scan_probe(const Queue *queue, MessageTables *tables);
extern bool claim_scan_sweep(const Queue *queue, bool *disturbed);

extern bool claim_scan_uses_map(void);

#endif							/* QUEUE_CLAIM_SCAN_H */
