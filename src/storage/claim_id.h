/*-------------------------------------------------------------------------
 *
 * claim_id.h
 *	  Claim ids.
 *
 * src/storage/claim_id.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLAIM_ID_H
#define QUEUE_CLAIM_ID_H

#include "utils/array.h"

/* What a claim id says */
typedef struct ClaimId
{
	int64		token;
	int64		first;			/* lowest number of its messages */
	int32		span;			/* highest number minus lowest */
	int16		priorities;		/* bit p: it has messages of priority p */
} ClaimId;

#define CLAIM_ID_LENGTH		52	/* hexadecimal digits */

extern void claim_id_print(int32 queue_id, const ClaimId *claim, char *hex);
extern bool claim_id_parse(int32 queue_id, const char *hex, ClaimId *claim);
extern int64 claim_id_new_token(void);

/* The messages of claims that this session has made */
extern void claim_id_keep_members(const ClaimId *claim, Datum *ids, int n);
extern ArrayType *claim_id_members(const ClaimId *claim);

#endif							/* QUEUE_CLAIM_ID_H */
