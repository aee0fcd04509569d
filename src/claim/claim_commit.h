/*-------------------------------------------------------------------------
 *
 * claim_commit.h
 *	  Asynchronous commits of claims.
 *
 * src/claim/claim_commit.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLAIM_COMMIT_H
#define QUEUE_CLAIM_COMMIT_H

extern bool claim_commit_may_be_async(void);
extern void claim_commit_add(void);

extern void claim_commit_init(void);

#endif							/* QUEUE_CLAIM_COMMIT_H */
