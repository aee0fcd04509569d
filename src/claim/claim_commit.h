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

#include "util/xact.h"

extern XactList claim_callbacks;

extern bool claim_commit_may_be_async(void);
extern void claim_commit_add(void);

#endif							/* QUEUE_CLAIM_COMMIT_H */
