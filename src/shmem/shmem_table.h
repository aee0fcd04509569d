/*-------------------------------------------------------------------------
 *
 * shmem_table.h
 *	  Tables in shared memory that grow, with a hash index.
 *
 * src/shmem/shmem_table.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SHMEM_TABLE_H
#define QUEUE_SHMEM_TABLE_H

#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/dsm.h"

#define TABLE_PARTS_MAX		20
#define TABLE_FIRST_PART	64	/* entries in the first part */

/* Entries have numbers from 1 on; 0 stands for none. */
typedef uint32 EntryNumber;

/* The beginning of each entry */
typedef struct TableEntry
{
	uint32		hash;
	EntryNumber next;			/* in the chain of its bucket */
} TableEntry;

/*
 * What is shared of a table.  The lock of the table's owner protects nbuckets;
 * LOCK_GROWTH protects parts, LOCK_PARTS nparts.
 */
typedef struct SharedTable
{
	uint32		nbuckets;
	pg_atomic_uint32 nparts;	/* only grows; set after the handle */
	dsm_handle	parts[TABLE_PARTS_MAX];
} SharedTable;

/* A table, in a process */
typedef struct Table
{
	/* Set by the owner */
	Size		entry_size;		/* begins with a TableEntry */
	Size		extra_size;		/* of the owner's, for each 64 entries */

	SharedTable *shared;
	uint32		nparts;			/* to which the process has attached */
	char	   *entries[TABLE_PARTS_MAX];
	char	   *extras[TABLE_PARTS_MAX];
	EntryNumber *buckets[TABLE_PARTS_MAX];
} Table;

/*
 * Returns in which part entry i is, and sets *first to the number of the
 * first entry there.
 */
static inline int
table_part(uint32 i, uint32 *first)
{
	int			part = pg_leftmost_one_pos32(i / TABLE_FIRST_PART + 1);

	*first = (((uint32) 1 << part) - 1) * TABLE_FIRST_PART;
	return part;
}

/*
 * Returns for how many entries that many parts have room, including entry 0,
 * which is not used.
 */
static inline uint32
table_size(uint32 nparts)
{
	return (((uint32) 1 << nparts) - 1) * TABLE_FIRST_PART;
}

/* Returns an entry of a part to which the process is attached. */
static inline void *
table_entry(const Table *table, EntryNumber i)
{
	uint32		first;
	int			part = table_part(i, &first);

	return table->entries[part] + (i - first) * table->entry_size;
}

/* Setting up */
extern void table_init_growth(void);
extern void table_init(SharedTable *shared);
extern void table_attach(Table *table);
extern void table_grow(Table *table, uint32 size);

/* After the end of a transaction */
extern void table_hold_parts(void);
extern bool table_is_attached(const Table *table);
extern void table_release_parts(void);

/* The index; the owner's lock is held. */
extern TableEntry *table_first(Table *table, uint32 hash);
extern void table_add(Table *table, EntryNumber number, uint32 hash);
extern void table_remove(Table *table, EntryNumber number);

/* Returns the next entry of a chain; NULL if there is none. */
static inline TableEntry *
table_next(const Table *table, const TableEntry *entry)
{
	return entry->next == 0 ? NULL : table_entry(table, entry->next);
}

#endif							/* QUEUE_SHMEM_TABLE_H */
