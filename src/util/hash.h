/*-------------------------------------------------------------------------
 *
 * hash.h
 *	  Hash tables whose keys have a fixed size.
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

#endif							/* QUEUE_HASH_H */
