/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  Shared memory: creating it, and finding it.
 *
 * NOTES
 *	  Shared memory is one block: a header, and an area of each file that shares
 *	  something.  Its size is fixed when the server starts, by
 *	  queue.max_active_queues and queue.max_active_groups.
 *
 *	  If the library is in shared_preload_libraries, the block is a part of the
 *	  server's main shared memory.  Otherwise, from PostgreSQL 17 on, it is a
 *	  segment of dynamic shared memory that is found by its name.  The first
 *	  process that loads the library creates it.  It is smaller then
 *	  (settings.c), so that it fits where memory of this kind is scarce, as in
 *	  containers.  Before PostgreSQL 17 the library has to be preloaded.
 *
 *	  A process that gets no shared memory cannot load the library: shmem_init()
 *	  raises the error, and each call of a function raises it again.  So all
 *	  other code finds shared memory.
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
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "shmem/shmem.h"
#include "util/compat.h"

/*
 * To be increased when the meaning of something shared changes, and no size
 * does.
 */
#define LAYOUT_VERSION	8

/*
 * The size of the named segment.  It stays the same in all versions of the
 * library: PostgreSQL raises an error of its own if it does not.
 */
#define SEGMENT_SIZE	(10 * 1024 * 1024)

/* All fields are set once. */
typedef struct Header
{
	uint32		layout;			/* of the areas */
	TimestampTz started_at;		/* when this memory was initialized */
	int			tranches[LOCK_KINDS];
} Header;

static const char *const tranche_names[LOCK_KINDS] = {
	[LOCK_DATABASES] = "QueueDatabases",
	[LOCK_MAPS] = "QueueMaps",
	[LOCK_MAP] = "QueueMap",
	[LOCK_LANES] = "QueueLanes",
	[LOCK_RUNNERS] = "QueueRunners",
	[LOCK_RECOUNT] = "QueueRecount",
	[LOCK_BATCHES] = "QueueBatches",
	[LOCK_ERRORS] = "QueueErrors",
	[LOCK_PREPARED] = "QueuePrepared",
};

static Header *header = NULL;
static bool is_preloaded = false;

static const SharedArea *const *areas = NULL;	/* NULL is behind the last one */
static Size total = 0;

static shmem_request_hook_type previous_request = NULL;
static shmem_startup_hook_type previous_startup = NULL;

static uint32 memory_layout(void);
static void initialize_memory(void *memory);
static void attach_to_memory(void *memory);
static void request_memory(void);
static void set_up_memory(void);
static void find_memory_segment(void);

/* Returns a number that differs if the areas do. */
static uint32
memory_layout(void)
{
	uint32		result = LAYOUT_VERSION;

	for (int i = 0; areas[i] != NULL; i++)
		result = hash_combine(result, (uint32) areas[i]->size);
	return result;
}

static void
initialize_memory(void *memory)
{
	char	   *area = (char *) memory + MAXALIGN(sizeof(Header));

	memset(memory, 0, total);
	header = memory;
	header->layout = memory_layout();
	header->started_at = GetCurrentTimestamp();
	for (int i = 0; i < LOCK_KINDS; i++)
		header->tranches[i] = compat_new_tranche(tranche_names[i]);
	for (int i = 0; areas[i] != NULL; i++)
	{
		if (areas[i]->lock != LOCK_NONE)
			shmem_init_lock((LWLock *) area, areas[i]->lock);
		if (areas[i]->init != NULL)
			areas[i]->init(area);
		area += MAXALIGN(areas[i]->size);
	}
}

static void
attach_to_memory(void *memory)
{
	char	   *area = (char *) memory + MAXALIGN(sizeof(Header));

	header = memory;
	for (int i = 0; i < LOCK_KINDS; i++)
		compat_register_tranche(header->tranches[i], tranche_names[i]);
	for (int i = 0; areas[i] != NULL; i++)
	{
		*(void **) areas[i]->pointer = area;
		if (areas[i]->attach != NULL)
			areas[i]->attach(area);
		area += MAXALIGN(areas[i]->size);
	}
}

static void
request_memory(void)
{
	if (previous_request != NULL)
		previous_request();
	RequestAddinShmemSpace(total);
}

static void
set_up_memory(void)
{
	void	   *memory;
	bool		found;

	if (previous_startup != NULL)
		previous_startup();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	memory = ShmemInitStruct("queue", total, &found);
	if (!found)
		initialize_memory(memory);
	attach_to_memory(memory);
	LWLockRelease(AddinShmemInitLock);
}

/*
 * Without preloading: attach to the segment, which is created if need be.
 */
static void
find_memory_segment(void)
{
	MemoryContext context = CurrentMemoryContext;
	Header	   *memory;

	if (total > SEGMENT_SIZE)
		elog(ERROR, "shared memory needs %zu bytes", total);
	PG_TRY();
	{
		memory = compat_named_segment("queue", SEGMENT_SIZE,
									  initialize_memory);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		/* The server's own message does not say what to do. */
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("there is no shared memory for queues: %s",
						error->message),
				 errhint("Make more shared memory available to the server, for example in /dev/shm, or set shared_preload_libraries = 'queue', and restart it.")));
	}
	PG_END_TRY();

	/* The file of the library was replaced; see NOTES. */
	if (memory->layout != memory_layout())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("another version of the library \"queue\" is in use"),
				 errdetail("It was replaced while the server was running."),
				 errhint("Restart the server.")));
	attach_to_memory(memory);
}

/*
 * To be called first, when the library is loaded: raise an error if it cannot
 * get shared memory in the way in which it is loaded.
 */
void
shmem_check_preloaded(void)
{
	is_preloaded = process_shared_preload_libraries_in_progress;

	/* A stand-alone backend has no sessions to share memory with. */
	if (!is_preloaded &&
		(!compat_has_named_segments() || !IsUnderPostmaster))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the library \"queue\" must be loaded via \"shared_preload_libraries\""),
				 errhint("Add it to the line in postgresql.conf, as in shared_preload_libraries = 'queue', and restart the server.")));
}

/*
 * To be called once, when the library is loaded: request shared memory of
 * these areas, which end with NULL, or attach to it.  Raises an error if there
 * is none.
 */
void
shmem_init(const SharedArea *const *list)
{
	areas = list;
	total = MAXALIGN(sizeof(Header));
	for (int i = 0; areas[i] != NULL; i++)
		total += MAXALIGN(areas[i]->size);
	if (!is_preloaded)
	{
		find_memory_segment();
		return;
	}
	previous_request = shmem_request_hook;
	shmem_request_hook = request_memory;
	previous_startup = shmem_startup_hook;
	shmem_startup_hook = set_up_memory;
}

/* Returns whether all sessions have the library from their start. */
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

#ifdef USE_ASSERT_CHECKING
/*
 * Returns whether the session may take a lock: it holds none that comes later
 * in the order, nor another one of this kind.
 */
bool
shmem_may_lock(LWLock *lock)
{
	static LWLock *held[LOCK_KINDS];
	int			kind = 0;

	while (header->tranches[kind] != lock->tranche)
		kind++;

	/* A lock that was taken before may have been released since. */
	for (int i = kind; i < LOCK_KINDS; i++)
		if (held[i] != NULL && LWLockHeldByMe(held[i]))
			return false;
	held[kind] = lock;
	return true;
}
#endif
