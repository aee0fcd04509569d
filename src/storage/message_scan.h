/*-------------------------------------------------------------------------
 *
 * message_scan.h
 *	  Scans of the messages of a queue, in order.
 *
 * src/storage/message_scan.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MESSAGE_SCAN_H
#define QUEUE_MESSAGE_SCAN_H

#include "access/skey.h"

#include "catalog/message_table.h"
#include "catalog/tables.h"
#include "map/message_ranges.h"
#include "storage/claim_id.h"
#include "util/compat.h"

typedef struct MessageScan MessageScan;

/* The row that a scan stands on; valid until the scan goes on. */
typedef struct ScanRow
{
	MessageTable *table;
	bool		in_range;		/* it is of the range that was added last */
	TupleTableSlot *slot;
	HeapTuple	tuple;			/* in slot */
	MessageForm form;			/* read from tuple */
} ScanRow;

/* Beginning and ending; scans for a claim and a list have all their parts */
extern MessageScan *message_scan_begin(int32 queue_id, LOCKMODE lockmode,
									   MessageTables *tables);
extern MessageScan *message_scan_begin_claim(int32 queue_id,
											 const ClaimId *claim,
											 LOCKMODE lockmode);
extern MessageScan *message_scan_begin_list(int32 queue_id, int64 low,
											LOCKMODE lockmode);
extern void message_scan_end(MessageScan *scan);

/* The snapshot that the parts which are added next are read with */
extern void message_scan_push_snapshot(MessageScan *scan);
extern bool message_scan_is_stale(const MessageScan *scan);

/* How to scan; to be called before there are parts */
extern void message_scan_no_wait(MessageScan *scan);

/* The keys of an index, for scans of other files, too */
#define MESSAGE_KEYS_MAX	4
extern int	message_scan_keys(ScanKey keys, bool is_delayed, int32 queue_id,
							  int priority, int64 low, int64 high);

/* Adding and ending parts */
extern void message_scan_add_ids(MessageScan *scan, int priority, int64 low,
								 int64 high);
extern void message_scan_add_numbers(MessageScan *scan, int priority,
									 int64 first, int64 last);
extern void message_scan_add_range(MessageScan *scan,
								   const MessageRange *range);
extern void message_scan_add_delayed(MessageScan *scan,
									 const MessageRange *range);
extern void message_scan_add_list(MessageScan *scan, int64 low);
extern void message_scan_add_delayed_list(MessageScan *scan, int64 low);
extern void message_scan_end_range(MessageScan *scan);
extern void message_scan_end_parts(MessageScan *scan);

/* Reading */
extern bool message_scan_next(MessageScan *scan, ScanRow *row);
extern bool message_scan_has_rows(MessageScan *scan, bool in_range);
extern HeapTuple message_scan_copy_row(MessageScan *scan,
									   const ScanRow *row);

/* A scan that does not wait: tables that could not be locked */
extern bool message_scan_is_blocked(const MessageScan *scan);
extern void message_scan_wait_for_lock(MessageScan *scan);
pg_noreturn extern void message_scan_lock_error(void);

#endif							/* QUEUE_MESSAGE_SCAN_H */
