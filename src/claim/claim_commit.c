/*-------------------------------------------------------------------------
 *
 * claim_commit.c
 *	  Asynchronous commits of claims.
 *
 * NOTES
 *	  With queue.durable_claims off, a transaction that has written nothing
 *	  but claims commits as with synchronous_commit = off.  If the server
 *	  crashes before the commit record is flushed, the messages are free
 *	  again, the claim is not live (QU001), and claim_count is what it was
 *	  before.
 *
 *	  The server keeps the end of the last WAL record that the transaction has
 *	  written.  It has written nothing but claims if that is where the last
 *	  claim ended, or if there is none when the first claim begins.  (A read
 *	  before it may have pruned a page; then the commit waits.)  What writes
 *	  no WAL is not protected by a flush either: temporary and unlogged
 *	  tables, and NOTIFY.
 *
 *	  A later commit that is synchronous flushes the claim's record too, since
 *	  it comes first in the WAL.  So what a worker did under a claim is never
 *	  durable without the claim.
 *
 *	  The callback runs after those that write what a crash must not lose.
 *	  Two that write come later: that of the counters, whose last changes a
 *	  crash may lose in any case (counters.c), and that of batches, which in a
 *	  transaction of claims counts messages that the claims have removed
 *	  (batches.c): a crash that takes back the one takes back the other.
 *	  The callback of a library that was loaded before ours comes later: what
 *	  it then writes in a transaction of claims is not flushed either.
 *
 * src/claim/claim_commit.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "utils/guc.h"

#include "claim/claim_commit.h"
#include "util/settings.h"
#include "util/xact.h"

/* Where the WAL of the claims ends; InvalidXLogRecPtr if there are none */
static XLogRecPtr claims_end = InvalidXLogRecPtr;

static void make_commit_async(XactEvent event);
static void forget_claims_end(XactEvent event);

XactList	claim_callbacks = {
	.before_end = make_commit_async,
	.end = forget_claims_end
};

/*
 * Returns whether the transaction has written nothing but claims that may be
 * lost, and another one may be lost too.  To be called before that claim.
 */
bool
claim_commit_may_be_async(void)
{
	return !setting_durable_claims && XactLastRecEnd == claims_end;
}

/*
 * The claim is made.  To be called only if claim_commit_may_be_async() has
 * returned true before it.
 */
void
claim_commit_add(void)
{
	claims_end = XactLastRecEnd;
}

/* Callback before commit or prepare */
static void
make_commit_async(XactEvent event)
{
	/*
	 * If the WAL has grown since the last claim, something else was written
	 * that must not be lost.  The setting is restored when the commit record
	 * has been written (AtEOXact_GUC), or when the transaction aborts.
	 */
	if (event == XACT_EVENT_PRE_COMMIT &&
		claims_end != InvalidXLogRecPtr && claims_end == XactLastRecEnd &&
		synchronous_commit > SYNCHRONOUS_COMMIT_OFF)
		(void) set_config_option("synchronous_commit", "off", PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0,
								 false);
}

/* Callback after commit, prepare or abort. */
static void
forget_claims_end(XactEvent event)
{
	claims_end = InvalidXLogRecPtr;
}
