/*-------------------------------------------------------------------------
 *
 * shmem_table.h
 *	  Tables of fixed size in shared memory, with a hash index.
 *
 * src/shmem/shmem_table.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SHMEM_TABLE_H
#define QUEUE_SHMEM_TABLE_H

/* Entries have numbers from 1 on; 0 stands for none. */
typedef uint32 EntryNumber;

/* The beginning of each entry */
typedef struct TableEntry
{
	uint32		hash;
	EntryNumber next;			/* in the chain of its bucket */
} TableEntry;

/*
 * A table, in a process.  The lock of its owner protects the index: the
 * buckets, and the beginning of each entry.
 */
typedef struct Table
{
	/* Set by the owner */
	Size		entry_size;		/* begins with a TableEntry */
	uint32		size;			/* number of entries */

	char	   *entries;
	EntryNumber *buckets;
} Table;

static inline void *
table_entry(const Table *table, EntryNumber i)
{
	Assert(i > 0 && i <= table->size);
	return table->entries + (i - 1) * table->entry_size;
}

/* Returns the number of an entry. */
static inline EntryNumber
table_number(const Table *table, const void *entry)
{
	return ((const char *) entry - table->entries) / table->entry_size + 1;
}

/* Setting up */
extern Size table_memory(const Table *table);
extern void table_attach(Table *table, void *memory);

/* The index; the owner's lock is held. */
extern TableEntry *table_first(const Table *table, uint32 hash);
extern void table_add(Table *table, EntryNumber number, uint32 hash);
extern void table_remove(Table *table, EntryNumber number);

/* Returns the next entry of a chain; NULL if there is none. */
static inline TableEntry *
table_next(const Table *table, const TableEntry *entry)
{
	return entry->next == 0 ? NULL : table_entry(table, entry->next);
}

#endif							/* QUEUE_SHMEM_TABLE_H */
