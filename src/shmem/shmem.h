/*-------------------------------------------------------------------------
 *
 * shmem.h
 *	  Shared memory: creating it, and finding it.
 *
 * src/shmem/shmem.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SHMEM_H
#define QUEUE_SHMEM_H

#include "datatype/timestamp.h"
#include "storage/lwlock.h"

/*
 * What a lock in shared memory protects; each has a name in pg_stat_activity.
 * They are taken in this order.
 */
typedef enum LockKind
{
	LOCK_PREPARED,				/* what prepared transactions have changed */
	LOCK_DATABASES,				/* the array of databases */
	LOCK_RECOUNT,				/* the snapshot of the last recount */
	LOCK_MAPS,					/* the table of availability maps */
	LOCK_MAP,					/* one availability map */
	LOCK_LANES,					/* the table of lanes */
	LOCK_RUNNERS,				/* the array of runners */
	LOCK_BATCHES,				/* which batches may have finished */
	LOCK_ERRORS,				/* the last errors of queues */
	LOCK_KINDS,					/* number of kinds */
	LOCK_NONE = LOCK_KINDS
} LockKind;

/*
 * An area of shared memory, to which a pointer of the file that shares it
 * points in each process.  It is all zero at first, but for the lock at its
 * beginning.  Then init is called once, and attach in each process, unless
 * they are NULL.
 */
typedef struct SharedArea
{
	void	   *pointer;		/* to that pointer */
	Size		size;
	LockKind	lock;			/* or LOCK_NONE */
	void		(*init) (void *area);
	void		(*attach) (void *area);
} SharedArea;

extern void shmem_check_preloaded(void);
extern void shmem_init(const SharedArea *const *list);
extern bool shmem_is_preloaded(void);
extern TimestampTz shmem_started_at(void);
extern void shmem_init_lock(LWLock *lock, LockKind kind);
extern bool shmem_may_lock(LWLock *lock);

/* Take a lock in shared memory. */
static inline void
shmem_lock(LWLock *lock, LWLockMode mode)
{
	Assert(shmem_may_lock(lock));
	LWLockAcquire(lock, mode);
}

#endif							/* QUEUE_SHMEM_H */
