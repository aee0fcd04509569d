/*-------------------------------------------------------------------------
 *
 * lane.c
 *	  The lanes of groups: the numbers that stand for group keys.
 *
 * NOTES
 *	  Where a number has to stand for a group, in shared memory, in the tag of
 *	  a lock and in queue_data.group_rate, that is its lane: a hash of the key.
 *	  Two keys with the same hash would be one group; with 64 bits that does
 *	  not happen by chance.
 *
 *	  It must not happen on purpose either.  Keys often come from strangers,
 *	  such as the names of an application's customers, and a group waits while
 *	  its lane is locked, full or has a time to wait for.  So the hash is one
 *	  with a secret key, queue_data.queue.lane_secret, which each queue has
 *	  from its creation on.  It moves and is dumped with the queue's row, and
 *	  never changes; so the rows of group_rate, which have lanes, go along as
 *	  they are.
 *
 *	  A session keeps the secrets that it has used, until an invalidation
 *	  message says that queues may have changed.
 *
 * src/storage/lane.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "common/hashfn.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/uuid.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "storage/lane.h"
#include "storage/row.h"
#include "util/hash.h"

#define SECRETS_MAX		4096	/* queues; then all are forgotten */

/* The secret of a queue */
typedef struct LaneSecret
{
	int32		queue_id;		/* hash key */
	bool		exists;
	unsigned char key[SIPHASH_KEY_BYTES];
} LaneSecret;

StaticAssertDecl(SIPHASH_KEY_BYTES == UUID_LEN, "a secret is a uuid");

static HTAB *secrets = NULL;
static uint64 secrets_generation = 0;	/* the catalog_generation() of it */
static const LaneSecret *last_secret = NULL;	/* the one used last */

static bool read_lane_secret(int32 queue_id, unsigned char *key);
static const LaneSecret *find_lane_secret(int32 queue_id);

/* Returns false if the queue does not exist. */
static bool
read_lane_secret(int32 queue_id, unsigned char *key)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	ScanKeyData scan_key;
	HeapTuple	tuple;
	bool		isnull = true;

	ScanKeyInit(&scan_key, Anum_queue_id, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	tuple = row_fetch(rel, catalog_oid(CATALOG_QUEUE_ID_INDEX), &scan_key, 1);
	if (HeapTupleIsValid(tuple))
	{
		Datum		value = heap_getattr(tuple, Anum_queue_lane_secret,
										 RelationGetDescr(rel), &isnull);

		if (!isnull)
			memcpy(key, DatumGetUUIDP(value)->data, SIPHASH_KEY_BYTES);
		heap_freetuple(tuple);
	}
	table_close(rel, AccessShareLock);
	return !isnull;
}

/* Returns the secret of a queue, from the cache or from its row. */
static const LaneSecret *
find_lane_secret(int32 queue_id)
{
	LaneSecret *secret;

	if (secrets_generation != catalog_generation() ||
		hash_get_num_entries(secrets) >= SECRETS_MAX)
	{
		/* An error in between leaves the cache invalid, not half made. */
		secrets_generation = 0;
		last_secret = NULL;
		hash_destroy(secrets);
		secrets = NULL;
		secrets = hash_create_blobs("secrets of lanes", sizeof(int32),
									sizeof(LaneSecret), CacheMemoryContext);
		secrets_generation = catalog_generation();
	}
	secret = hash_search(secrets, &queue_id, HASH_FIND, NULL);
	if (secret == NULL)
	{
		LaneSecret	new = {.queue_id = queue_id};

		/*
		 * An entry is made when it is complete, because reading may raise an
		 * error.  There is also one for a queue that does not exist yet: the
		 * first push with a group key makes it invalid (queue_data.grouped).
		 *
		 * If reading processes an invalidation message, the entry is used
		 * once, and the next call reads it again.
		 */
		new.exists = read_lane_secret(queue_id, new.key);
		secret = hash_search(secrets, &queue_id, HASH_ENTER, NULL);
		*secret = new;
	}
	return last_secret = secret;
}

/*
 * Read the secret of a queue into the cache, because the caller is about to
 * reserve a range, and must not wait for a lock on the table of queues then.
 */
void
lane_prepare(int32 queue_id)
{
	(void) find_lane_secret(queue_id);
}

/* Returns the lane of a group. */
LaneId
lane_of_key(int32 queue_id, const char *key, int length)
{
	const LaneSecret *secret = last_secret;
	LaneId		lane;

	/* A session often needs the lanes of many messages of one queue. */
	if (secret == NULL || secret->queue_id != queue_id ||
		secrets_generation != catalog_generation())
		secret = find_lane_secret(queue_id);

	/* The queue does not exist, so any number does. */
	if (!secret->exists)
		lane.hash = hash_bytes_extended((const unsigned char *) key, length,
										(uint64) queue_id);

	/* The numbers up to LANE_OF_OVERFLOW are not those of groups. */
	else
		lane.hash = Max(hash_siphash(secret->key, key, length),
						LANE_OF_OVERFLOW.hash + 1);
	return lane;
}
