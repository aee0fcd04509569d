/*-------------------------------------------------------------------------
 *
 * claim_id.h
 *	  Message ids and claim ids.
 *
 * src/storage/claim_id.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLAIM_ID_H
#define QUEUE_CLAIM_ID_H

/* A claim id taken apart. */
typedef struct ClaimId
{
	int64		token;
	int64		first;			/* lowest sequence number of its messages */
	int32		span;			/* the highest one is that much above */
	int16		priorities;		/* which ones they have */
} ClaimId;

#define CLAIM_ID_LENGTH		52	/* hexadecimal digits */

extern void claim_id_print(int32 queue_id, const ClaimId *claim, char *text);
extern bool claim_id_parse(int32 queue_id, const char *text, ClaimId *claim);
extern int64 claim_id_new_token(void);

#endif							/* QUEUE_CLAIM_ID_H */
