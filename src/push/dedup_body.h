/*-------------------------------------------------------------------------
 *
 * dedup_body.h
 *	  Deduplication keys made from the bodies of messages.
 *
 * src/push/dedup_body.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DEDUP_BODY_H
#define QUEUE_DEDUP_BODY_H

#include "utils/jsonb.h"

extern text *dedup_body_key(Jsonb *body, Datum *ignore, int n);

#endif							/* QUEUE_DEDUP_BODY_H */
