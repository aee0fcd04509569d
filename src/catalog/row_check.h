/*-------------------------------------------------------------------------
 *
 * row_check.h
 *	  Rows that no function of the extension has written.
 *
 * src/catalog/row_check.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_ROW_CHECK_H
#define QUEUE_ROW_CHECK_H

#include "access/htup.h"
#include "utils/rel.h"

extern void row_report_malformed(int elevel, Relation rel, HeapTuple tuple,
								 const char *problem);
extern bool row_check(int elevel, Relation rel, HeapTuple tuple);
extern bool row_array_is_plain(Datum value);
extern Datum row_getattr(Relation rel, HeapTuple tuple, int attribute);

#endif							/* QUEUE_ROW_CHECK_H */
