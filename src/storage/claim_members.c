/*-------------------------------------------------------------------------
 *
 * claim_members.c
 *	  The messages of claims that this session has made, and that lie far
 *	  apart.
 *
 * NOTES
 *	  A claim id has the range of numbers in which the messages of the claim
 *	  are (claim_id.c).  Where groups take turns, they may lie far apart, and
 *	  a call that names the claim would read all that is between.  It is
 *	  mostly the session that has made the claim that renews, releases or
 *	  completes it.  So a session keeps the ids of the messages of its last
 *	  claims that are sparse, and scans only these (message_scan_begin_claim).
 *
 *	  A claim never gets other messages, so the ids are complete.  The claims
 *	  of a transaction that is rolled back stay here, and are not looked for.
 *
 * src/storage/claim_members.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/memutils.h"

#include "storage/claim_members.h"

#define CLAIMS_KEPT		16

/* Numbers for each message in the range of a claim that is worth keeping */
#define SPARSE			64

typedef struct KeptClaim
{
	int64		token;
	ArrayType  *ids;			/* bigint; NULL if the entry is not used */
} KeptClaim;

static KeptClaim kept[CLAIMS_KEPT];
static int	next_kept = 0;		/* the oldest one */

/* This session has made a claim of these messages. */
void
claim_members_keep(const ClaimId *claim, Datum *ids, int n)
{
	KeptClaim  *entry = &kept[next_kept];
	MemoryContext old;

	/* If they lie close together, it costs little to read what is between. */
	if (claim->span / SPARSE < n)
		return;

	/* It stays unused if there is no memory for the array. */
	if (entry->ids != NULL)
		pfree(entry->ids);
	entry->ids = NULL;
	old = MemoryContextSwitchTo(TopMemoryContext);
	entry->ids = construct_array(ids, n, INT8OID, sizeof(int64),
								 FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
	MemoryContextSwitchTo(old);
	entry->token = claim->token;
	next_kept = (next_kept + 1) % CLAIMS_KEPT;
}

/* Returns the ids of the messages of a claim; NULL if they are not known. */
ArrayType *
claim_members_find(const ClaimId *claim)
{
	for (int i = 0; i < CLAIMS_KEPT; i++)
		if (kept[i].ids != NULL && kept[i].token == claim->token)
			return kept[i].ids;
	return NULL;
}
