/*-------------------------------------------------------------------------
 *
 * shmem_table.c
 *	  Tables of fixed size in shared memory, with a hash index.
 *
 * NOTES
 *	  A table is an array of entries.  Its owner knows which of them are in
 *	  use.  The index finds those by their hash: each bucket is the first of a
 *	  chain of entries.
 *
 * src/shmem/shmem_table.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bitutils.h"

#include "shmem/shmem_table.h"

static uint32 count_buckets(const Table *table);
static EntryNumber *bucket_of(const Table *table, uint32 hash);

/* Returns the number of buckets, a power of two. */
static uint32
count_buckets(const Table *table)
{
	return pg_nextpower2_32(table->size);
}

/* Returns how much memory the table needs. */
Size
table_memory(const Table *table)
{
	return MAXALIGN(table->size * table->entry_size) +
		MAXALIGN(count_buckets(table) * sizeof(EntryNumber));
}

/*
 * Attach to the table in this memory.  Memory that is all zero is an empty
 * table.
 */
void
table_attach(Table *table, void *memory)
{
	table->entries = memory;
	table->buckets = (EntryNumber *)
		((char *) memory + MAXALIGN(table->size * table->entry_size));
}

/* --- The index --- */

static EntryNumber *
bucket_of(const Table *table, uint32 hash)
{
	return &table->buckets[hash & (count_buckets(table) - 1)];
}

/*
 * Returns the first entry of the chain to which this hash belongs; NULL if
 * there is none.
 */
TableEntry *
table_first(const Table *table, uint32 hash)
{
	EntryNumber number = *bucket_of(table, hash);

	return number == 0 ? NULL : table_entry(table, number);
}

void
table_add(Table *table, EntryNumber number, uint32 hash)
{
	TableEntry *entry = table_entry(table, number);
	EntryNumber *first = bucket_of(table, hash);

	entry->hash = hash;
	entry->next = *first;
	*first = number;
}

void
table_remove(Table *table, EntryNumber number)
{
	TableEntry *entry = table_entry(table, number);
	EntryNumber *link = bucket_of(table, entry->hash);

	while (*link != number)
		link = &((TableEntry *) table_entry(table, *link))->next;
	*link = entry->next;
}
