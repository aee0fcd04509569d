/*-------------------------------------------------------------------------
 *
 * message_pass.c
 *	  One pass over the messages of all queues.
 *
 * NOTES
 *	  The segments are read one after the other, those of delayed messages
 *	  first, from their first page to the last one, and only the columns of
 *	  fixed width.  That costs as much as the messages take, whatever the
 *	  number of queues.
 *
 *	  All segments are locked before the caller takes its snapshot.  So none is
 *	  truncated that the snapshot shows messages in, and a message that the
 *	  worker moves from one to another is read exactly once.
 *
 * src/storage/message_pass.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "storage/message_pass.h"
#include "storage/message_row.h"
#include "storage/row.h"

#define PAGES_FEW	2048		/* read within some 50 ms */

/*
 * Open all segments.  Returns false if one cannot be locked at once, and
 * "wait" is not set.
 */
bool
message_pass_open(MessagePass *pass, bool wait)
{
	memset(pass, 0, sizeof(MessagePass));
	for (int i = 0; i < ALL_SEGMENTS; i++)
	{
		Oid			relid = catalog_segment_oid(i);

		if (wait)
			LockRelationOid(relid, AccessShareLock);
		else if (!ConditionalLockRelationOid(relid, AccessShareLock))
		{
			message_pass_close(pass);
			return false;
		}
		pass->segments[i] = catalog_open_locked(relid);
	}
	return true;
}

/* Returns whether reading them takes longer than a process should be busy. */
bool
message_pass_is_long(const MessagePass *pass)
{
	BlockNumber n = 0;

	for (int i = 0; i < ALL_SEGMENTS; i++)
		n += RelationGetNumberOfBlocks(pass->segments[i]);
	return n > PAGES_FEW;
}

/*
 * Call the callback for each message that the snapshot shows, which the
 * caller has taken and registered since message_pass_open().
 */
void
message_pass_read(MessagePass *pass, Snapshot snapshot,
				  MessagePassCallback callback, void *arg)
{
	for (int i = 0; i < ALL_SEGMENTS; i++)
	{
		int			segment = (FIRST_DELAYED_SEGMENT + i) % ALL_SEGMENTS;
		Relation	rel = pass->segments[segment];
		TableScanDesc scan = table_beginscan_strat(rel, snapshot, 0, NULL,
												   true, false);
		TupleTableSlot *slot = table_slot_create(rel, NULL);

		while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
		{
			MessageForm form;
			TimestampTz due_at = 0;
			bool		isnull;

			CHECK_FOR_INTERRUPTS();

			/* A malformed row must not keep others from being counted. */
			if (!message_row_is_valid(rel, row_tuple(slot)))
				continue;
			form = message_read(row_tuple(slot));
			if (segment_is_delayed(segment))
				due_at = DatumGetTimestampTz(slot_getattr(slot,
														  Anum_message_due_at,
														  &isnull));
			callback(&form, due_at, arg);
		}
		ExecDropSingleTupleTableSlot(slot);
		table_endscan(scan);
	}
}

/* Close the segments that are open; message_pass_open() may have failed. */
void
message_pass_close(MessagePass *pass)
{
	for (int i = 0; i < ALL_SEGMENTS; i++)
		if (pass->segments[i] != NULL)
			table_close(pass->segments[i], AccessShareLock);
}
