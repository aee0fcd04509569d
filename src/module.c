/*-------------------------------------------------------------------------
 *
 * module.c
 *	  Loading of the library.
 *
 * src/module.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"

#include "bgworker/hooks.h"
#include "bgworker/launcher.h"
#include "catalog/relations.h"
#include "claim/cancel.h"
#include "claim/claim_commit.h"
#include "claim/group_rate.h"
#include "commands/queue_cmds.h"
#include "jobs/handler.h"
#include "jobs/runner_pool.h"
#include "map/lanes_table.h"
#include "map/shmem_maps.h"
#include "push/lazy_push.h"
#include "queue/group.h"
#include "queue/queue_table.h"
#include "queue/role.h"
#include "shmem/await_state.h"
#include "shmem/batch_state.h"
#include "shmem/database_state.h"
#include "shmem/depth_state.h"
#include "shmem/error_state.h"
#include "shmem/shmem.h"
#include "stats/counters.h"
#include "storage/batches.h"
#include "storage/counts.h"
#include "storage/pending.h"
#include "storage/prepared.h"
#include "util/compat.h"
#include "util/settings.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	/*
	 * First what fails where there is no shared memory: then each call of a
	 * function loads the library again.  The settings say how large the areas
	 * are.
	 */
	shmem_check_preloaded();
	settings_define(shmem_is_preloaded());
	database_init();
	depth_init();
	batch_state_init();
	await_state_init();
	error_state_init();
	prepared_init();
	shmem_maps_init();
	lanes_init();
	pool_init();
	shmem_init();

	catalog_init();
	queue_table_init();

	/*
	 * At the end of a transaction, the callbacks of the modules run in this
	 * order (xact.c).  Lazy pushes come first, since they create queues,
	 * change messages and are counted.  Messages are counted before they are
	 * reported (pending.c): where the depths are known, a queue with messages
	 * that were reported has a map, which is not taken for that of a queue
	 * without messages (shmem_maps.c).  Sessions in queue_await are woken
	 * when the maps have what was reported, since they may claim next.
	 * claim_commit.c comes after all that write what a crash must not lose.
	 */
	lazy_push_init();
	counts_init();
	database_register_callbacks();
	pending_init();
	await_state_register_callbacks();
	hooks_init();
	launcher_init();
	queue_cmds_init();
	handler_init();
	role_init();
	group_rate_init();
	claim_commit_init();
	cancel_init(pool_cancel_message);
	counters_init();
	batches_init();
	group_init();
}
