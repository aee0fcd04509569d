/*-------------------------------------------------------------------------
 *
 * shmem_table.c
 *	  Tables in shared memory that grow, with a hash index.
 *
 * NOTES
 *	  A table is an array of entries in parts, each of which is a segment of
 *	  dynamic shared memory and has room for twice as many entries as the one
 *	  before.  So memory is allocated as entries are used, and an entry never
 *	  moves.  Parts are never given back.
 *
 *	  Entries are found by their hash.  A part also has a bucket for each of
 *	  its entries, the first of a chain.  The number of buckets grows by one at
 *	  a time, as in linear hashing: the new bucket takes its share of the chain
 *	  of one other.
 *
 *	  A process has to attach to a part before it reads an entry there.  One
 *	  that holds the lock of the table, and then calls table_attach(), may read
 *	  all entries that are in use.  It needs memory for that, a descriptor and
 *	  an address, and so may fail.
 *
 *	  After the end of a transaction that must not happen.  So sessions attach
 *	  to what there is before the end (shmem_maps_attach()).  Then they make
 *	  sure that no part is added for a moment (table_hold_parts()).  If one
 *	  was added just before, table_is_attached() returns false, and the
 *	  session uses no table; see shmem_hold_maps().
 *
 *	  A part is created before it is needed, by a session that may fail; but
 *	  it does not.  If there is no memory, the owner of the table has to do
 *	  with the entries that there are.
 *
 * src/shmem/shmem_table.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/lwlock.h"

#include "shmem/shmem.h"
#include "shmem/shmem_table.h"
#include "util/clock.h"

/* Pause after memory could not be allocated */
#define RETRY_GROWTH	(60 * USECS_PER_SEC)

typedef struct Growth
{
	LWLock		lock;			/* of sessions that create parts; also
								 * protects not_before */
	LWLock		parts_lock;		/* while it is held, no part is added */
	int64		not_before;		/* after a failure; by the monotonic clock */
} Growth;

static Growth *growth = NULL;

static void init_growth(void *area);
static void attach_growth(void *area);
static void set_table_part(Table *table, char *memory);
static void *create_part_segment(void *size);
static void add_table_part(Table *table);
static EntryNumber *bucket_at(const Table *table, uint32 i);
static uint32 bucket_number(uint32 hash, uint32 nbuckets);
static void split_bucket(Table *table);

/* --- Setting up --- */

static void
init_growth(void *area)
{
	shmem_init_lock(&((Growth *) area)->lock, LOCK_GROWTH);
	shmem_init_lock(&((Growth *) area)->parts_lock, LOCK_PARTS);
}

static void
attach_growth(void *area)
{
	growth = area;
}

/* To be called once, when the library is loaded. */
void
table_init_growth(void)
{
	shmem_add_area(sizeof(Growth), 0, init_growth, attach_growth);
}

/* Initialize an empty table, in memory that is all zero. */
void
table_init(SharedTable *shared)
{
	shared->nbuckets = TABLE_FIRST_PART;
	pg_atomic_init_u32(&shared->nparts, 0);
}

/* --- Parts --- */

/* The process has attached to the next part of the table, which is here. */
static void
set_table_part(Table *table, char *memory)
{
	uint32		part = table->nparts;
	Size		entries = TABLE_FIRST_PART * table->entry_size;

	table->entries[part] = memory;
	table->extras[part] = memory + (entries << part);
	table->buckets[part] = (EntryNumber *)
		(memory + ((entries + table->extra_size) << part));
	table->nparts++;
}

/* Attach to all parts that there are. */
void
table_attach(Table *table)
{
	uint32		n = pg_atomic_read_u32(&table->shared->nparts);

	/* The handle of a part is written before the number of parts. */
	pg_read_barrier();
	while (table->nparts < n)
	{
		dsm_segment *segment;

		/* This may fail, which a transaction that has ended must not. */
		Assert(!LWLockHeldByMe(&growth->parts_lock));
		segment = dsm_attach(table->shared->parts[table->nparts]);
		if (segment == NULL)
			elog(ERROR, "could not attach to a part of shared memory");
		dsm_pin_mapping(segment);
		set_table_part(table, dsm_segment_address(segment));
	}
}

static void *
create_part_segment(void *size)
{
	dsm_segment *segment = dsm_create(*(Size *) size, 0);

	dsm_pin_segment(segment);
	dsm_pin_mapping(segment);
	return segment;
}

/*
 * Add a part, unless there is no memory, which is logged, and tried again
 * later.  LOCK_GROWTH is held.
 */
static void
add_table_part(Table *table)
{
	SharedTable *shared = table->shared;
	Size		first_size = TABLE_FIRST_PART *
	(table->entry_size + sizeof(EntryNumber)) + table->extra_size;
	Size		size = first_size << table->nparts;
	ErrorData  *error;
	dsm_segment *segment = shmem_allocate(create_part_segment, &size, &error);

	if (segment == NULL)
	{
		growth->not_before = clock_monotonic() + RETRY_GROWTH;
		ereport(LOG,
				(errcode(error->sqlerrcode),
				 errmsg("could not allocate shared memory for queues: %s",
						error->message),
				 errdetail("Queues that find no room work without it, but slower."),
				 errhint("Make more shared memory available to the server, or lower \"queue.max_availability_maps\".")));
		FreeErrorData(error);
		return;
	}
	memset(dsm_segment_address(segment), 0, size);
	shared->parts[table->nparts] = dsm_segment_handle(segment);
	set_table_part(table, dsm_segment_address(segment));

	/*
	 * Only now others attach.  A transaction that has ended, and returns to
	 * maps what it has changed, must not see a part appear meanwhile.
	 */
	LWLockAcquire(&growth->parts_lock, LW_EXCLUSIVE);
	pg_atomic_write_u32(&shared->nparts, table->nparts);
	LWLockRelease(&growth->parts_lock);
}

/*
 * A transaction that has ended is about to use tables: no part is added until
 * table_release_parts().
 */
void
table_hold_parts(void)
{
	LWLockAcquire(&growth->parts_lock, LW_SHARED);
}

/* Returns whether the session is attached to all parts, which are held. */
bool
table_is_attached(const Table *table)
{
	Assert(LWLockHeldByMe(&growth->parts_lock));
	return table->nparts == pg_atomic_read_u32(&table->shared->nparts);
}

void
table_release_parts(void)
{
	LWLockRelease(&growth->parts_lock);
}

/*
 * Let the table grow until it has room for "size" entries, or until there is
 * no memory.  No lock is held.
 */
void
table_grow(Table *table, uint32 size)
{
	table_attach(table);
	if (table_size(table->nparts) >= size)
		return;
	LWLockAcquire(&growth->lock, LW_EXCLUSIVE);

	/* While we waited, another session may have added a part. */
	table_attach(table);
	while (table_size(table->nparts) < size &&
		   table->nparts < TABLE_PARTS_MAX &&
		   growth->not_before <= clock_monotonic())
		add_table_part(table);
	LWLockRelease(&growth->lock);
}

/* --- The index --- */

static EntryNumber *
bucket_at(const Table *table, uint32 i)
{
	uint32		first;
	int			part = table_part(i, &first);

	return &table->buckets[part][i - first];
}

static uint32
bucket_number(uint32 hash, uint32 nbuckets)
{
	uint32		mask = pg_nextpower2_32(nbuckets) - 1;

	/* If that bucket does not exist yet: the one from which it will split */
	return (hash & mask) < nbuckets ? hash & mask : hash & (mask >> 1);
}

/* Add a bucket, and move to it what now belongs there. */
static void
split_bucket(Table *table)
{
	uint32		new = table->shared->nbuckets++;
	uint32		old = new - pg_prevpower2_32(new);
	EntryNumber *from = bucket_at(table, old);
	EntryNumber *to = bucket_at(table, new);

	while (*from != 0)
	{
		TableEntry *entry = table_entry(table, *from);

		if (bucket_number(entry->hash, new + 1) == old)
			from = &entry->next;
		else
		{
			*to = *from;
			*from = entry->next;
			entry->next = 0;
			to = &entry->next;
		}
	}
}

/*
 * Returns the first entry of the chain to which this hash belongs; NULL if
 * there is none.
 */
TableEntry *
table_first(Table *table, uint32 hash)
{
	EntryNumber number;

	table_attach(table);
	if (table->nparts == 0)
		return NULL;
	number = *bucket_at(table, bucket_number(hash, table->shared->nbuckets));
	return number == 0 ? NULL : table_entry(table, number);
}

void
table_add(Table *table, EntryNumber number, uint32 hash)
{
	TableEntry *entry = table_entry(table, number);
	EntryNumber *first;

	table_attach(table);

	/* One bucket for each entry, as far as the parts have buckets */
	if (number >= table->shared->nbuckets &&
		table->shared->nbuckets < table_size(table->nparts))
		split_bucket(table);
	first = bucket_at(table, bucket_number(hash, table->shared->nbuckets));
	entry->hash = hash;
	entry->next = *first;
	*first = number;
}

void
table_remove(Table *table, EntryNumber number)
{
	TableEntry *entry = table_entry(table, number);
	EntryNumber *link;

	table_attach(table);
	link = bucket_at(table, bucket_number(entry->hash,
										  table->shared->nbuckets));
	while (*link != number)
		link = &((TableEntry *) table_entry(table, *link))->next;
	*link = entry->next;
}
