/*-------------------------------------------------------------------------
 *
 * hash.h
 *	  Hashes, digests, and hash tables whose keys have a fixed size.
 *
 * src/util/hash.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_HASH_H
#define QUEUE_HASH_H

#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/uuid.h"

/* Returns the hash of a number that is of this session's database. */
static inline uint32
hash_in_database(int64 number)
{
	return hash_combine(murmurhash32((uint32) number),
						hash_combine((uint32) (number >> 32), MyDatabaseId));
}

/*
 * Make a table with keys that are compared byte by byte, in a child of this
 * context.
 */
static inline HTAB *
hash_create_blobs(const char *name, Size keysize, Size entrysize,
				  MemoryContext context)
{
	HASHCTL		info = {0};

	info.keysize = keysize;
	info.entrysize = entrysize;
	info.hcxt = context;
	return hash_create(name, 64, &info,
					   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* Digests of text */
extern void digest_text(const char *string, pg_uuid_t *digest);

/* A hash with a secret key */
#define SIPHASH_KEY_BYTES	16

extern uint64 hash_siphash(const unsigned char *key, const char *data,
						   Size length);

#endif							/* QUEUE_HASH_H */
