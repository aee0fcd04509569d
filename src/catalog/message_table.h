/*-------------------------------------------------------------------------
 *
 * message_table.h
 *	  Opening a segment and its indexes.
 *
 * src/catalog/message_table.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_MESSAGE_TABLE_H
#define QUEUE_MESSAGE_TABLE_H

#include "executor/tuptable.h"
#include "storage/lockdefs.h"
#include "utils/rel.h"

#include "catalog/tables.h"

/* The indexes of a table that get an entry for each of its rows */
typedef struct IndexList
{
	int			nlive;			/* with those that are not built yet */
	int			n;
	Relation   *relations;
	bool		has_partial;	/* some leave out rows, see index_list_open() */
} IndexList;

/* An open segment */
typedef struct MessageTable
{
	int			segment;		/* its number */
	Relation	heap;			/* NULL if it is closed */
	Relation	index;			/* (queue_id, priority desc, id); of delayed
								 * messages (queue_id, id) */
	Relation	due_index;		/* of delayed messages: (queue_id, priority
								 * desc, due_at); else NULL */
	LOCKMODE	lockmode;

	/* Unless it was opened for reading */
	TupleTableSlot *out;		/* for rows to be written; else NULL */
	IndexList	all;
} MessageTable;

/* The segments that a scan has open, or several scans in turn */
typedef struct MessageTables
{
	MessageTable items[ALL_SEGMENTS];
} MessageTables;

extern void message_table_open(MessageTable *table, int segment,
							   LOCKMODE lockmode);
extern bool message_table_try_open(MessageTable *table, int segment,
								   LOCKMODE lockmode);
extern void message_table_close(MessageTable *table, bool keep_lock);
extern void message_tables_close(MessageTables *tables, bool keep_locks);

/* The indexes of any table of the extension */
extern void index_list_open(Relation rel, int segment, IndexList *indexes);
extern void index_list_close(IndexList *indexes);

#endif							/* QUEUE_MESSAGE_TABLE_H */
