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
 *	  Entries are found by their hash.  A part also has a bucket for each of its
 *	  entries, the first of a chain.  The number of buckets grows by one at a
 *	  time, as in linear hashing: the new bucket takes its share of the chain of
 *	  one other.
 *
 *	  A process has to attach to a part before it reads an entry there.  One
 *	  that holds the lock of the table, and then calls table_attach(), may read
 *	  all entries that are in use.  It needs memory for that, and so may fail.
 *	  After the end of a transaction that must not happen: so before the end
 *	  sessions attach to what there is (shmem_maps.c, lanes.c).  What is created
 *	  in the next moment takes a few bytes, and an address.
 *
 *	  A part is created before it is needed, by a session that may fail; but it
 *	  does not.  If there is no memory, the owner has to do with what there is.
 *	  That is logged, and tried again later.
 *
 * src/shmem/shmem_table.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "shmem/shmem.h"
#include "shmem/shmem_table.h"
#include "util/clock.h"

/* Pause after memory could not be allocated */
#define RETRY_GROWTH	(60 * USECS_PER_SEC)

typedef struct Growth
{
	LWLock		lock;			/* protects the rest, and all parts */
	int64		not_before;		/* after a failure; by the monotonic clock */
} Growth;

static Growth *growth = NULL;

static void init_growth(void *area);
static void attach_growth(void *area);
static Size part_size(const Table *table, int part);
static void set_part(Table *table, char *memory);
static dsm_segment * create_segment(Size size);
static void add_part(Table *table);
static EntryNumber *bucket(const Table *table, uint32 i);
static uint32 bucket_number(uint32 hash, uint32 nbuckets);
static void split_bucket(Table *table);

/* --- Setting up --- */

static void
init_growth(void *area)
{
	shmem_init_lock(&((Growth *) area)->lock, LOCK_GROWTH);
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

static Size
part_size(const Table *table, int part)
{
	Size		size = TABLE_FIRST_PART *
	(table->entry_size + sizeof(EntryNumber)) + table->extra_size;

	return size << part;
}

/* The next part of the table is here. */
static void
set_part(Table *table, char *memory)
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

	pg_read_barrier();
	while (table->nparts < n)
	{
		dsm_segment *segment =
		dsm_attach(table->shared->parts[table->nparts]);

		if (segment == NULL)
			elog(ERROR, "could not attach to a part of shared memory");
		dsm_pin_mapping(segment);
		set_part(table, dsm_segment_address(segment));
	}
}

/* NULL: there is no memory, which is logged. */
static dsm_segment *
create_segment(Size size)
{
	dsm_segment *volatile segment = NULL;
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;

	/* The process stays attached, whatever becomes of the transaction. */
	CurrentResourceOwner = NULL;
	HOLD_INTERRUPTS();
	PG_TRY();
	{
		segment = dsm_create(size, 0);
		dsm_pin_segment(segment);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		ereport(LOG,
				(errcode(error->sqlerrcode),
				 errmsg("could not allocate shared memory for queues: %s",
						error->message),
				 errdetail("Queues that find no room work without it, but slower."),
				 errhint("Make more shared memory available to the server, or lower \"queue.max_availability_maps\".")));
		FreeErrorData(error);
		segment = NULL;
	}
	PG_END_TRY();
	RESUME_INTERRUPTS();
	CurrentResourceOwner = owner;
	return segment;
}

/* Add a part; the lock is held. */
static void
add_part(Table *table)
{
	SharedTable *shared = table->shared;
	Size		size = part_size(table, table->nparts);
	dsm_segment *segment = create_segment(size);

	if (segment == NULL)
	{
		growth->not_before = clock_monotonic() + RETRY_GROWTH;
		return;
	}
	memset(dsm_segment_address(segment), 0, size);
	shared->parts[table->nparts] = dsm_segment_handle(segment);
	set_part(table, dsm_segment_address(segment));
	pg_write_barrier();
	pg_atomic_write_u32(&shared->nparts, table->nparts);
}

/*
 * Let the table grow until it has room for so many entries.  False: there is no
 * memory.  No lock is held.
 */
bool
table_grow(Table *table, uint32 size)
{
	bool		result;

	table_attach(table);
	if (table_size(table->nparts) >= size)
		return true;
	LWLockAcquire(&growth->lock, LW_EXCLUSIVE);
	table_attach(table);
	while (table_size(table->nparts) < size &&
		   table->nparts < TABLE_PARTS_MAX &&
		   growth->not_before <= clock_monotonic())
		add_part(table);
	result = table_size(table->nparts) >= size;
	LWLockRelease(&growth->lock);
	return result;
}

/* --- The index --- */

static EntryNumber *
bucket(const Table *table, uint32 i)
{
	uint32		first;
	int			part = table_part(i, &first);

	return &table->buckets[part][i - first];
}

static uint32
bucket_number(uint32 hash, uint32 nbuckets)
{
	uint32		mask = pg_nextpower2_32(nbuckets) - 1;

	return (hash & mask) < nbuckets ? hash & mask : hash & (mask >> 1);
}

/* Add a bucket, and move to it what now belongs there. */
static void
split_bucket(Table *table)
{
	uint32		new = table->shared->nbuckets++;
	uint32		old = new - pg_prevpower2_32(new);
	EntryNumber *from = bucket(table, old);
	EntryNumber *to = bucket(table, new);

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

/* The first entry of the chain to which this hash belongs; NULL: none. */
TableEntry *
table_first(Table *table, uint32 hash)
{
	EntryNumber number;

	table_attach(table);
	if (table->nparts == 0)
		return NULL;
	number = *bucket(table, bucket_number(hash, table->shared->nbuckets));
	return number == 0 ? NULL : table_entry(table, number);
}

void
table_add(Table *table, EntryNumber number, uint32 hash)
{
	TableEntry *entry = table_entry(table, number);
	EntryNumber *first;

	table_attach(table);
	if (number >= table->shared->nbuckets &&
		table->shared->nbuckets < table_size(table->nparts))
		split_bucket(table);
	first = bucket(table, bucket_number(hash, table->shared->nbuckets));
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
	link = bucket(table, bucket_number(entry->hash,
									   table->shared->nbuckets));
	while (*link != number)
		link = &((TableEntry *) table_entry(table, *link))->next;
	*link = entry->next;
}
