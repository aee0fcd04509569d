/*-------------------------------------------------------------------------
 *
 * row.h
 *	  Rows of the extension's tables: find, lock, insert, update and delete.
 *
 * src/storage/row.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_ROW_H
#define QUEUE_ROW_H

#include "access/genam.h"
#include "access/skey.h"
#include "access/tableam.h"
#include "nodes/lockoptions.h"
#include "storage/bufpage.h"
#include "utils/snapshot.h"

#include "catalog/message_table.h"
#include "catalog/relations.h"

/* A scan of a table's rows, as the latest snapshot shows them. */
typedef struct RowScan
{
	Snapshot	snapshot;
	SysScanDesc scan;
} RowScan;

/* Reading */
extern HeapTuple row_tuple(TupleTableSlot *slot);
extern void *row_copy_column(TupleDesc desc, HeapTuple tuple, int column);
extern void row_scan_begin(RowScan *scan, Relation rel, Oid index,
						   ScanKey keys, int nkeys);
extern void row_scan_set_pages(RowScan *scan, BlockNumber first,
							   BlockNumber n);
extern HeapTuple row_scan_next(RowScan *scan);
extern void row_scan_end(RowScan *scan);
extern HeapTuple row_fetch(Relation rel, Oid index, ScanKey keys, int nkeys);
extern HeapTuple row_fetch_valid(Relation rel, Oid index, ScanKey keys,
								 int nkeys);
extern HeapTuple row_fetch_newest(Relation rel, Relation index, ScanKey keys,
								  int nkeys, Snapshot snapshot);
extern HeapTuple row_find_unique(Relation rel, Relation index, ScanKey keys,
								 int nkeys, bool *locked, int64 *newest);

/* Writing */
extern bool row_succeeded(TM_Result result);
extern bool row_lock(Relation rel, ItemPointer tid, LockTupleMode mode,
					 LockWaitPolicy wait);
extern void row_insert(Relation rel, HeapTuple tuple);
extern bool row_insert_unique(Relation rel, Relation arbiter,
							  HeapTuple tuple);
extern bool row_update(Relation rel, ItemPointer tid, HeapTuple tuple);
extern void row_set_columns(Relation rel, HeapTuple old, int n, int *columns,
							Datum *values);
extern void row_delete_of_queue(CatalogRelation table, int32 queue_id);

/* Reading and writing a row on its page */
extern void row_on_page(Relation rel, Page page, ItemPointer tid,
						HeapTuple tuple);

typedef void (*RowPageAction) (HeapTuple tuple, void *arg);

extern void row_peek(Relation rel, ItemPointer tid, RowPageAction action,
					 void *arg);
extern bool row_act_in_place(Relation rel, ItemPointer tid, bool write,
							 RowPageAction action, void *arg);

/* For message.c, which keeps the indexes of its tables */
extern void row_insert_index_entry(Relation rel, Relation index,
								   TupleTableSlot *slot);
extern void row_insert_index_entries(Relation rel, const IndexList *indexes,
									 TupleTableSlot *slot, Relation except);

#endif							/* QUEUE_ROW_H */
