/*-------------------------------------------------------------------------
 *
 * attributes.h
 *	  The attributes of a message.
 *
 * src/storage/attributes.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_ATTRIBUTES_H
#define QUEUE_ATTRIBUTES_H

#include "access/htup.h"
#include "access/tupdesc.h"
#include "utils/jsonb.h"

/* An attribute of the same name in a message and in its dead letter */
#define LAST_ERROR	"last_error"

/* The attributes of a message's row */
extern Jsonb *attributes_of(TupleDesc desc, HeapTuple tuple);

/* A single one */
extern char *attributes_clip_error(const char *error);
extern char *attributes_text(Jsonb *attributes, const char *key);
extern bool attributes_integer(Jsonb *attributes, const char *key,
							   int64 *value);
extern int	attributes_given_back(TupleDesc desc, HeapTuple tuple);
extern HeapTuple attributes_count_given_back(TupleDesc desc, HeapTuple tuple);
extern int	attributes_claim_count(TupleDesc desc, HeapTuple tuple);
extern char *attributes_last_error(TupleDesc desc, HeapTuple tuple);
extern HeapTuple attributes_set_last_error(TupleDesc desc, HeapTuple tuple,
										   const char *error);

#endif							/* QUEUE_ATTRIBUTES_H */
