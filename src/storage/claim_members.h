/*-------------------------------------------------------------------------
 *
 * claim_members.h
 *	  The messages of claims that this session has made, and that lie far
 *	  apart.
 *
 * src/storage/claim_members.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CLAIM_MEMBERS_H
#define QUEUE_CLAIM_MEMBERS_H

#include "utils/array.h"

#include "storage/claim_id.h"

extern void claim_members_keep(const ClaimId *claim, Datum *ids, int n);
extern ArrayType *claim_members_find(const ClaimId *claim);

#endif							/* QUEUE_CLAIM_MEMBERS_H */
