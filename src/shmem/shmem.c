/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  Shared memory: creating it, and finding it.
 *
 * NOTES
 *	  Shared memory begins with a block of fixed size: a header, and an area of
 *	  each file that shares something.  What depends on the number of queues in
 *	  use is in tables that grow (shmem_table.c); their areas say where.
 *
 *	  If the library is in shared_preload_libraries, the block is a part of the
 *	  server's main shared memory.  Otherwise, from PostgreSQL 17 on, it is a
 *	  segment of dynamic shared memory that is found by its name.  The first
 *	  process that loads the library creates it.  Each process that loads the
 *	  library attaches to it at once, so all that change messages share the
 *	  maps.  Before PostgreSQL 17 there is no shared memory then; everything
 *	  works, but slower.
 *
 *	  While the server runs, the file of the library may be replaced by that of
 *	  another version.  A process that loads the new one must not read the old
 *	  one's memory, so the header identifies the layout.
 *
 * src/shmem/shmem.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "shmem/shmem.h"
#include "util/compat.h"

#define AREAS_MAX		8

/*
 * To be increased when the meaning of something shared changes, and no size
 * does.
 */
#define LAYOUT_VERSION	1

/*
 * The size of the named segment.  It stays the same in all versions of the
 * library: PostgreSQL raises an error of its own if it does not.
 */
#define SEGMENT_SIZE	(1024 * 1024)

/* All fields are set once. */
typedef struct Header
{
	uint32		layout;			/* of the areas */
	TimestampTz started_at;		/* when this memory was initialized */
	int			tranches[LOCK_KINDS];
} Header;

typedef struct Area
{
	Size		offset;
	Size		entry_size;
	void		(*init) (void *area);
	void		(*attach) (void *area);
} Area;

static const char *const tranche_names[LOCK_KINDS] = {
	[LOCK_GROWTH] = "QueueGrowth",
	[LOCK_DATABASES] = "QueueDatabases",
	[LOCK_MAPS] = "QueueMaps",
	[LOCK_MAP] = "QueueMap",
	[LOCK_LANES] = "QueueLanes",
	[LOCK_RUNNERS] = "QueueRunners",
	[LOCK_RECOUNT] = "QueueRecount",
};

static Header *header = NULL;
static bool is_preloaded = false;

static Area areas[AREAS_MAX];
static int	nareas = 0;
static Size total = MAXALIGN(sizeof(Header));

static shmem_request_hook_type previous_request = NULL;
static shmem_startup_hook_type previous_startup = NULL;

static uint32 layout(void);
static void initialize(void *memory);
static void attach(void *memory);
static void request(void);
static void startup(void);
static void find_segment(void);

/*
 * Reserve an area for a file.  init is called once, with memory that is all
 * zero; attach in each process.  entry_size: of the table whose parts belong to
 * the area; 0: none do.  To be called before shmem_init().
 */
void
shmem_add_area(Size size, Size entry_size, void (*init) (void *area),
			   void (*attach_area) (void *area))
{
	/* After an error the library is loaded again. */
	for (int i = 0; i < nareas; i++)
		if (areas[i].init == init)
			return;
	Assert(nareas < AREAS_MAX);
	areas[nareas].offset = total;
	areas[nareas].entry_size = entry_size;
	areas[nareas].init = init;
	areas[nareas].attach = attach_area;
	nareas++;
	total += MAXALIGN(size);
}

/* A number that differs if the areas do */
static uint32
layout(void)
{
	uint32		result = LAYOUT_VERSION;

	for (int i = 0; i < nareas; i++)
	{
		result = hash_combine(result, (uint32) areas[i].offset);
		result = hash_combine(result, (uint32) areas[i].entry_size);
	}
	return hash_combine(result, (uint32) total);
}

static void
initialize(void *memory)
{
	memset(memory, 0, total);
	header = memory;
	header->layout = layout();
	header->started_at = GetCurrentTimestamp();
	for (int i = 0; i < LOCK_KINDS; i++)
		header->tranches[i] = compat_new_tranche(tranche_names[i]);
	for (int i = 0; i < nareas; i++)
		areas[i].init((char *) memory + areas[i].offset);
}

static void
attach(void *memory)
{
	header = memory;
	for (int i = 0; i < LOCK_KINDS; i++)
		compat_register_tranche(header->tranches[i], tranche_names[i]);
	for (int i = 0; i < nareas; i++)
		areas[i].attach((char *) memory + areas[i].offset);
}

static void
request(void)
{
	if (previous_request != NULL)
		previous_request();
	RequestAddinShmemSpace(total);
}

static void
startup(void)
{
	void	   *memory;
	bool		found;

	if (previous_startup != NULL)
		previous_startup();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	memory = ShmemInitStruct("queue", total, &found);
	if (!found)
		initialize(memory);
	attach(memory);
	LWLockRelease(AddinShmemInitLock);
}

/* Without preloading: attach to the segment, which is created if need be. */
static void
find_segment(void)
{
	Header	   *memory;

	Assert(total <= SEGMENT_SIZE);
	memory = compat_named_segment("queue", SEGMENT_SIZE, initialize);
	if (memory->layout != layout())
	{
		header = NULL;
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("another version of the library \"queue\" is in use"),
				 errdetail("It was replaced while the server was running."),
				 errhint("Restart the server.")));
	}
	attach(memory);
}

/*
 * To be called once, when the library is loaded: request shared memory, or
 * attach to it.
 */
void
shmem_init(void)
{
	is_preloaded = process_shared_preload_libraries_in_progress;
	if (is_preloaded)
	{
		previous_request = shmem_request_hook;
		shmem_request_hook = request;
		previous_startup = shmem_startup_hook;
		shmem_startup_hook = startup;
	}
	else if (compat_has_named_segments() && IsUnderPostmaster &&
			 !IsBinaryUpgrade)
		find_segment();
}

bool
shmem_exists(void)
{
	return header != NULL;
}

/* Will there be shared memory?  For use while the library is loaded */
bool
shmem_is_wanted(void)
{
	return is_preloaded || shmem_exists();
}

/* Do all sessions have the library from their start? */
bool
shmem_is_preloaded(void)
{
	return is_preloaded;
}

TimestampTz
shmem_started_at(void)
{
	return header->started_at;
}

void
shmem_init_lock(LWLock *lock, LockKind kind)
{
	LWLockInitialize(lock, header->tranches[kind]);
}
