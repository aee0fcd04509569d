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
	count_init();
	lazy_init();
	if (process_shared_preload_libraries_in_progress)
	{
		shmem_init();
		pool_init();
		touch_init();
		launcher_init();
	}
}
