/*-------------------------------------------------------------------------
 *
 * module.c
 *	  Loading of the library.
 *
 * src/module.c
 *
 *-------------------------------------------------------------------------
 */
#include "queue.h"

#include "fmgr.h"
#include "miscadmin.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

void
_PG_init(void)
{
	queue_define_gucs();
	queue_catalog_init();

	/*
	 * This is the order at the end of a transaction: counts come last, since
	 * a lazy push is counted.
	 */
	if (process_shared_preload_libraries_in_progress)
	{
		shmem_init();
		pool_init();
		touch_init();
		launcher_init();
	}
	lazy_init();
	role_init();
	count_init();
}
