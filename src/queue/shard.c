/*-------------------------------------------------------------------------
 *
 * shard.c
 *	  Which queues are in this database, and which on other servers.
 *
 * NOTES
 *	  A queue belongs to one of 256 shards for all time, by its project and
 *	  its name without any ".dead" at its end: so the dead letter queue that
 *	  has its name from a queue is in the same shard.  The table
 *	  queue_data.shard, the map, says which shards are here.  It is empty in a
 *	  database that is not sharded, and missing where the extension is still
 *	  of version 1.0; then all queues are here.
 *
 *	  A call that names a queue of another server raises an error.  To look up
 *	  a queue that is not here is to find none (registry.c); then queue_open
 *	  asks for the reason.  Those calls that do not open the queue that they
 *	  are given ask by themselves.  Background processes skip what is not
 *	  here.
 *
 *	  Each session caches the map.  Each change of it sends a relcache
 *	  invalidation message for the table of queues, as a change of a queue
 *	  does.  These messages are sent after a commit has become visible.  So
 *	  the cached map may be old: it is only believed where it says that a
 *	  queue is here, and the queue is found.  Otherwise the row of the shard
 *	  is read.  A call that locks the queue receives the messages, as after
 *	  any change of a queue.
 *
 *	  A session that creates a queue locks its shard first, and then reads the
 *	  map.
 *
 *	  When shards come or go, only what is known of their queues is forgotten:
 *	  nothing is known of queues that have come, queue_drop() has the maps of
 *	  those that have gone forget all, and an UPDATE of the map does so for
 *	  those that stay in the tables (shard_write).  A move writes messages by
 *	  COPY, and has them counted (shard_count_copied).  Its transaction is
 *	  prepared, so the worker adds the depths when it is committed
 *	  (prepared_counts.c).
 *
 *	  Ids of queues and messages do not clash when a shard moves to another
 *	  server, because the server's number is in each (relations.c).
 *
 * src/queue/shard.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "mb/pg_wchar.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "catalog/relations.h"
#include "queue/queue_lock.h"
#include "queue/registry.h"
#include "queue/shard.h"
#include "shmem/database_state.h"
#include "storage/message.h"
#include "storage/message_scan.h"
#include "storage/pending.h"
#include "storage/row.h"
#include "storage/segment.h"
#include "util/digest.h"
#include "util/errcodes.h"
#include "util/settings.h"

#define DEAD_SUFFIX			".dead"
#define STATE_LOCAL			"local"
#define STATE_REMOTE		"remote"

/* The session's copy of the map, and the catalog_generation() that it is of */
static uint64 map_generation = 0;
static bool map_exists;
static bool is_local[SHARDS];

/* Shards whose state the current statement has changed */
static bool changed[SHARDS];

static void read_map(void);
static bool read_shard(int shard, char **peer);
static void check_shard(const char *name, int shard);
static void read_rows(Relation rel, Oid index);
static void check_empty(void);
static void write_server(int server);
static void write_map(int server, int servers);
static void for_each_queue(const bool *shards,
						   void (*function) (int32 queue_id));

/* --- The shard of a queue --- */

int
shard_of(const char *project, const char *name)
{
	int			length = strlen(name);
	int			suffix = strlen(DEAD_SUFFIX);
	char	   *key;
	pg_uuid_t	digest;

	while (length >= suffix &&
		   memcmp(name + length - suffix, DEAD_SUFFIX, suffix) == 0)
		length -= suffix;
	project = pg_server_to_any(project, strlen(project), PG_UTF8);
	key = psprintf("%.*s %s", length, name, project);
	digest_text(key, &digest);
	pfree(key);
	return digest.data[0];
}

/* --- The map --- */

/* Read the map if it may have changed. */
static void
read_map(void)
{
	uint64		generation = catalog_generation();

	if (map_generation == generation)
		return;
	map_exists = false;
	memset(is_local, false, sizeof(is_local));
	if (OidIsValid(catalog_oid(CATALOG_SHARD)))
	{
		Oid			index;
		Relation	rel = catalog_open(CATALOG_SHARD, AccessShareLock, &index);

		if (RelationGetNumberOfBlocks(rel) > 0)
			read_rows(rel, index);
		table_close(rel, AccessShareLock);
	}
	map_generation = generation;
}

static void
read_rows(Relation rel, Oid index)
{
	RowScan		scan;
	HeapTuple	tuple;

	row_scan_begin(&scan, rel, index, NULL, 0);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		bool		isnull;
		int			shard =
		DatumGetInt16(heap_getattr(tuple, Anum_shard_shard,
								   RelationGetDescr(rel), &isnull));
		Datum		state = heap_getattr(tuple, Anum_shard_state,
										 RelationGetDescr(rel), &isnull);

		map_exists = true;
		if (shard >= 0 && shard < SHARDS)
			is_local[shard] =
				strcmp(TextDatumGetCString(state), STATE_LOCAL) == 0;
	}
	row_scan_end(&scan);
}

/* Returns whether the database is sharded. */
bool
shard_map_exists(void)
{
	read_map();
	return map_exists;
}

/*
 * Returns whether a shard is here, as the latest snapshot shows it.  *peer is
 * set to the server that has it, or to NULL if the map does not say.
 */
static bool
read_shard(int shard, char **peer)
{
	Oid			index;
	Relation	rel = catalog_open(CATALOG_SHARD, AccessShareLock, &index);
	TupleDesc	desc = RelationGetDescr(rel);
	ScanKeyData key;
	HeapTuple	tuple;
	bool		here = false;

	ScanKeyInit(&key, Anum_shard_shard, BTEqualStrategyNumber, F_INT2EQ,
				Int16GetDatum(shard));
	tuple = row_fetch(rel, index, &key, 1);
	*peer = NULL;
	if (HeapTupleIsValid(tuple))
	{
		bool		isnull;
		Datum		state = heap_getattr(tuple, Anum_shard_state, desc, &isnull);

		here = strcmp(TextDatumGetCString(state), STATE_LOCAL) == 0;
		*peer = TextDatumGetCString(heap_getattr(tuple, Anum_shard_peer, desc,
												 &isnull));
	}
	table_close(rel, AccessShareLock);
	return here;
}

/* Raise an error unless the shard is here; the cached map is not believed. */
static void
check_shard(const char *name, int shard)
{
	char	   *peer;

	if (read_shard(shard, &peer))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_SHARD_NOT_LOCAL),
			 errmsg("queue \"%s\" is on another server", name),
			 peer == NULL ?
			 errdetail("Shard %d is not in table \"queue_data.shard\".",
					   shard) :
			 errdetail("Shard %d is on \"%s\".", shard, peer),
			 errhint("Connect to that server. queue_shard() tells which shard a queue is in.")));
}

/* --- Whether a queue is in this database --- */

/* Returns whether a queue of this name would be in this database. */
bool
shard_is_local(const char *project, const char *name)
{
	int			shard;
	char	   *peer;

	if (!shard_map_exists())
		return true;
	shard = shard_of(project, name);

	/* The cached map may be too old to say that the shard is not here. */
	return is_local[shard] || read_shard(shard, &peer);
}

/*
 * Raise an error if a queue of the session's project is on another server.  A
 * parallel query cannot read the map.
 */
void
shard_check(const char *name)
{
	if (!IsInParallelMode() && !shard_is_local(setting_project, name))
		check_shard(name, shard_of(setting_project, name));
}

/*
 * Raise an error if a queue of the session's project, which was not found, is
 * on another server, even if the cached map says that it is here.  Returns
 * false if the database is not sharded.
 */
bool
shard_check_missing(const char *name)
{
	if (!shard_map_exists())
		return false;
	check_shard(name, shard_of(setting_project, name));
	return true;
}

/*
 * The caller is about to create a queue of the session's project, and has
 * locked the table of queues.  Have its shard stay here until the transaction
 * ends, or raise an error.
 */
void
shard_lock(const char *name)
{
	int			shard;

	if (!shard_map_exists())
		return;
	shard = shard_of(setting_project, name);
	queue_lock_shard(shard, false);
	check_shard(name, shard);
}

/* --- A new map --- */

/* Raise an error if the database is sharded or has queues. */
static void
check_empty(void)
{
	RowScan		scan;
	bool		is_empty;

	/* No session creates a queue until this transaction ends. */
	Relation	rel = catalog_open_queues(ShareRowExclusiveLock);

	row_scan_begin(&scan, rel, InvalidOid, NULL, 0);
	is_empty = !HeapTupleIsValid(row_scan_next(&scan));
	row_scan_end(&scan);
	table_close(rel, NoLock);
	if (shard_map_exists())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database is sharded already"),
				 errhint("The table \"queue_data.shard\" has its map.")));
	if (!is_empty)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this database has queues"),
				 errhint("Call queue_shard_init in a database without queues; push their messages there.")));
}

/* Write the number of this server. */
static void
write_server(int server)
{
	Relation	rel = catalog_open(CATALOG_SERVER, RowExclusiveLock, NULL);
	Datum		values[Natts_server];
	bool		isnull[Natts_server] = {false};

	values[Anum_server_number - 1] = Int16GetDatum(server);
	CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), values,
											isnull));
	table_close(rel, NoLock);
}

/* Write the map of a server.  Servers have the numbers 1 to "servers". */
static void
write_map(int server, int servers)
{
	Relation	rel = catalog_open(CATALOG_SHARD, RowExclusiveLock, NULL);

	for (int shard = 0; shard < SHARDS; shard++)
	{
		int			owner = shard % servers == 0 ? servers : shard % servers;
		Datum		values[Natts_shard];
		bool		isnull[Natts_shard] = {false};

		values[Anum_shard_shard - 1] = Int16GetDatum(shard);
		values[Anum_shard_state - 1] =
			CStringGetTextDatum(owner == server ? STATE_LOCAL : STATE_REMOTE);
		values[Anum_shard_peer - 1] =
			CStringGetTextDatum(psprintf("server %d", owner));
		CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), values,
												isnull));
	}
	table_close(rel, NoLock);
}

/*
 * Make this database, which has no queues, one of several servers.  "server"
 * is its number, "servers" how many have shards at first.  Server 0 is the
 * same as the last of these; one with a higher number has no shards.
 */
void
shard_init(int server, int servers)
{
	if (server == 0)
		server = servers;
	check_empty();
	write_server(server);
	write_map(server, servers);
	queue_invalidate();
}

/* --- Shards that come and go --- */

/* Call a function for each queue of these shards, of all projects. */
static void
for_each_queue(const bool *shards, void (*function) (int32 queue_id))
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	TupleDesc	desc = RelationGetDescr(rel);
	RowScan		scan;
	HeapTuple	tuple;

	row_scan_begin(&scan, rel, InvalidOid, NULL, 0);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		bool		isnull;
		char	   *project =
		TextDatumGetCString(heap_getattr(tuple, Anum_queue_project, desc,
										 &isnull));
		char	   *name =
		TextDatumGetCString(heap_getattr(tuple, Anum_queue_name, desc,
										 &isnull));

		CHECK_FOR_INTERRUPTS();
		if (shards[shard_of(project, name)])
			function(DatumGetInt32(heap_getattr(tuple, Anum_queue_id, desc,
												&isnull)));
		pfree(project);
		pfree(name);
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
}

/* A statement changes the state of a shard, for shard_write() at its end. */
void
shard_change(int shard)
{
	changed[shard] = true;
}

/*
 * A statement has updated the map.  When that commits, sessions and the worker
 * learn which queues are here; nothing that is known of others is forgotten.
 */
void
shard_write(void)
{
	bool		shards[SHARDS];
	bool		any = false;

	memcpy(shards, changed, sizeof(shards));
	memset(changed, false, sizeof(changed));
	for (int i = 0; i < SHARDS; i++)
		any |= shards[i];
	if (any)
		for_each_queue(shards, pending_record_move);
	database_record_change(CHANGE_HANDLERS);
}

/* Count the messages of a queue, which other SQL has written just now. */
void
shard_count_copied(int32 queue_id)
{
	MessageScan *scan;
	ScanRow		row;

	segment_push_snapshot();
	scan = message_scan_begin_list(queue_id, PG_INT64_MIN, AccessShareLock,
								   true);
	while (message_scan_next(scan, &row))
		message_count(row.table, row.tuple);
	message_scan_end(scan);
	PopActiveSnapshot();
}
