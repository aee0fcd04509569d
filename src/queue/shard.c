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
 *	  database that is not sharded; then all queues are here.
 *
 *	  A call that names a queue of another server raises an error.  A
 *	  lookup of a queue that is not here finds none (registry.c); then
 *	  queue_open checks the map for the reason.  Calls that do not open the
 *	  queue that they are given check the map themselves.  Background
 *	  processes skip what is not here.
 *
 *	  Each session caches the map.  Each change of it sends a relcache
 *	  invalidation message for the table of queues, as a change of a queue
 *	  does.  These messages are sent after a commit has become visible.  So
 *	  the cached map may be old: we rely on it only where it says that a
 *	  queue is here, and the queue is found.  Otherwise we read the row of the
 *	  shard.  A call that locks the queue receives the messages, as after
 *	  any change of a queue.
 *
 *	  A session that creates a queue locks its shard first, and then reads the
 *	  map.
 *
 *	  When shards come or go, only the availability maps of their queues begin
 *	  anew: queues that have come have none, queue_drop() clears the maps of
 *	  those that have gone, and an UPDATE of the map of shards does so for
 *	  those that stay in the tables (shard_change).  A move writes messages by
 *	  COPY, and has them counted (shard_count_copied).  Its transaction is
 *	  prepared, so the worker adds the depths when it is committed
 *	  (prepared.c).
 *
 *	  Ids of queues and messages do not clash when a shard moves to another
 *	  server, because the server's number is in each (numbers.c).
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
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "queue/queue_lock.h"
#include "queue/queue_table.h"
#include "queue/registry.h"
#include "queue/shard.h"
#include "storage/message.h"
#include "storage/message_scan.h"
#include "storage/pending.h"
#include "storage/row.h"
#include "util/errcodes.h"
#include "util/hash.h"
#include "util/limits.h"
#include "util/settings.h"

#define STATE_LOCAL			"local"
#define STATE_REMOTE		"remote"

/* The session's copy of the map, and the catalog_generation() that it is of */
static uint64 map_generation = 0;
static bool map_exists;
static bool is_local[SHARDS];

static bool row_is_local(Relation rel, HeapTuple tuple);
static void read_shard_map(void);
static bool read_shard(int shard, char **peer);
static void check_shard(const char *name, int shard);
static void check_no_queues(void);
static void insert_plain_row(Relation rel, Datum *values);

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

/* Returns whether the shard with this row of the map is here. */
static bool
row_is_local(Relation rel, HeapTuple tuple)
{
	return strcmp(TextDatumGetCString(row_getattr(rel, tuple,
												  Anum_shard_state)),
				  STATE_LOCAL) == 0;
}

/* Read the map if it may have changed. */
static void
read_shard_map(void)
{
	uint64		generation = catalog_generation();
	Relation	rel;
	RowScan		scan;
	HeapTuple	tuple;

	if (map_generation == generation)
		return;
	map_exists = false;
	memset(is_local, false, sizeof(is_local));
	rel = catalog_open(CATALOG_SHARD, AccessShareLock, NULL);
	row_scan_begin(&scan, rel, InvalidOid, NULL, 0);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		int			shard =
		DatumGetInt16(row_getattr(rel, tuple, Anum_shard_shard));

		map_exists = true;
		if (shard >= 0 && shard < SHARDS)
			is_local[shard] = row_is_local(rel, tuple);
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
	map_generation = generation;
}

/* Returns whether the database is sharded. */
bool
shard_map_exists(void)
{
	read_shard_map();
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
	ScanKeyData key;
	HeapTuple	tuple;
	bool		here = false;

	ScanKeyInit(&key, Anum_shard_shard, BTEqualStrategyNumber, F_INT2EQ,
				Int16GetDatum(shard));
	tuple = row_fetch(rel, index, &key, 1);
	*peer = NULL;
	if (HeapTupleIsValid(tuple))
	{
		here = row_is_local(rel, tuple);
		*peer = TextDatumGetCString(row_getattr(rel, tuple, Anum_shard_peer));
	}
	table_close(rel, AccessShareLock);
	return here;
}

/* Raise an error unless the shard is here; the cached map may be too old. */
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
	(void) queue_lock_part(shard, LOCK_SHARD, RowExclusiveLock, true);
	check_shard(name, shard);
}

/* --- A new map --- */

/* Raise an error if the database is sharded or has queues. */
static void
check_no_queues(void)
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

/* Insert a row without nulls into the table of servers or shards. */
static void
insert_plain_row(Relation rel, Datum *values)
{
	bool		isnull[Max(Natts_server, Natts_shard)] = {false};

	CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), values,
											isnull));
}

/*
 * Make this database, which has no queues, one of several servers.  "server"
 * is its number, "servers" how many have shards at first.  Server 0 is the
 * same as the last of these; one with a higher number has no shards.
 */
void
shard_init(int server, int servers)
{
	Relation	rel;
	Datum		number;

	if (server == 0)
		server = servers;
	check_no_queues();

	number = Int16GetDatum(server);
	rel = catalog_open(CATALOG_SERVER, RowExclusiveLock, NULL);
	insert_plain_row(rel, &number);
	table_close(rel, NoLock);

	/* The servers that have shards have the numbers 1 to "servers". */
	rel = catalog_open(CATALOG_SHARD, RowExclusiveLock, NULL);
	for (int shard = 0; shard < SHARDS; shard++)
	{
		int			owner = shard % servers == 0 ? servers : shard % servers;
		Datum		values[Natts_shard];

		values[Anum_shard_shard - 1] = Int16GetDatum(shard);
		values[Anum_shard_state - 1] =
			CStringGetTextDatum(owner == server ? STATE_LOCAL : STATE_REMOTE);
		values[Anum_shard_peer - 1] =
			CStringGetTextDatum(psprintf("server %d", owner));
		insert_plain_row(rel, values);
	}
	table_close(rel, NoLock);
	queue_invalidate();
}

/* --- Shards that come and go --- */

/*
 * The state of a shard has changed: when that commits, the availability maps
 * of its queues, of all projects, begin anew.  The maps of other queues stay.
 */
void
shard_change(int shard)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	RowScan		scan;
	HeapTuple	tuple;

	row_scan_begin(&scan, rel, InvalidOid, NULL, 0);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		QueueSummary queue;

		CHECK_FOR_INTERRUPTS();
		queue_table_summarize(rel, tuple, &queue);
		if (shard_of(queue.project, queue.name) == shard)
			pending_record_queue(queue_table_id(rel, tuple,
												Anum_queue_id),
								 TARGET_MOVE, LANE_WITHOUT_KEY);
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
}

/* Count the messages of a queue, which other SQL has written just now. */
void
shard_count_copied(int32 queue_id)
{
	MessageScan *scan = message_scan_begin_list(queue_id, PG_INT64_MIN,
												AccessShareLock);
	ScanRow		row;

	while (message_scan_next(scan, &row))
		message_count(row.table, row.tuple);
	message_scan_end(scan);
}
