/*-------------------------------------------------------------------------
 *
 * numbers.c
 *	  Numbers from the extension's sequences.
 *
 * NOTES
 *	  Where several servers share the queues, the numbers of a server differ
 *	  from those of the others: they have its number in them.
 *
 *	  That number is read from its table, and kept until an invalidation
 *	  message says that the extension's tables, or a role, have changed
 *	  (catalog_generation()).
 *
 * src/catalog/numbers.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/sequence.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"

#include "catalog/message_id.h"
#include "catalog/numbers.h"
#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "catalog/tables.h"
#include "util/compat.h"

#define NO_SERVER		(-1)

/* The number of this server, and in which generation it was read */
static int	server;				/* NO_SERVER if the database is not sharded */
static uint64 server_generation = 0;

static int	server_number(void);
static void read_server(Relation rel, HeapTuple tuple);
pg_noreturn static void numbers_error(CatalogRelation sequence);

/* Returns the number of this server among several, or NO_SERVER. */
static int
server_number(void)
{
	/* This looks the tables up, if they may have changed. */
	(void) catalog_oid(CATALOG_SERVER);
	if (server_generation != catalog_generation())
	{
		uint64		before = catalog_generation();

		server = NO_SERVER;
		catalog_read_table(CATALOG_SERVER, read_server);
		server_generation = before;
	}
	return server;
}

/* Callback of catalog_read_table */
static void
read_server(Relation rel, HeapTuple tuple)
{
	/* The number SERVERS_MAX is the same as 0. */
	server = DatumGetInt16(row_getattr(rel, tuple, Anum_server_number)) &
		(SERVERS_MAX - 1);
}

/*
 * Raise an error because the numbers of this server are used up, which
 * happens before the sequence ends.
 */
static void
numbers_error(CatalogRelation sequence)
{
	ereport(ERROR,
			(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
			 errmsg("sequence \"%s.%s\" has no more numbers for this server",
					CATALOG_SCHEMA, get_rel_name(catalog_oid(sequence))),
			 errhint("Move the shards to a server with a new number.")));
}

/*
 * Take the next block of MESSAGE_ID_BLOCK message numbers.  Returns the first
 * of them.
 */
int64
numbers_next_block(void)
{
	int64		block = nextval_internal(catalog_oid(CATALOG_MESSAGE_ID), false);
	int			number = server_number();

	if (number != NO_SERVER)
	{
		if (block >= MESSAGE_ID_BLOCKS / SERVERS_MAX)
			numbers_error(CATALOG_MESSAGE_ID);
		block = message_id_block_of_server(block, number);
	}
	return block << MESSAGE_ID_BLOCK_BITS;
}

int32
numbers_next_queue_id(void)
{
	int64		id = nextval_internal(catalog_oid(CATALOG_QUEUE_ID), false);
	int			number = server_number();

	if (number != NO_SERVER)
	{
		id = id * SERVERS_MAX + number;
		if (id > PG_INT32_MAX)
			numbers_error(CATALOG_QUEUE_ID);
	}
	return (int32) id;
}

/*
 * Returns whether the sequence has passed the id of a batch; true if that has
 * come from another server.
 */
bool
numbers_batch_id_is_used(int64 id)
{
	int			number = server_number();

	LOCAL_FCINFO(fcinfo, 1);
	int64		last;

	InitFunctionCallInfoData(*fcinfo, NULL, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = ObjectIdGetDatum(catalog_oid(CATALOG_BATCH_ID));
	fcinfo->args[0].isnull = false;
	last = DatumGetInt64(pg_sequence_last_value(fcinfo));
	if (fcinfo->isnull)
		last = 0;
	return number == NO_SERVER ? id <= last :
		id % SERVERS_MAX != number || id / SERVERS_MAX <= last;
}

/*
 * Returns the id of a new batch.  The ids of a server grow; those of several
 * servers differ.
 */
int64
numbers_next_batch_id(void)
{
	int64		id = nextval_internal(catalog_oid(CATALOG_BATCH_ID), false);
	int			number = server_number();

	return number == NO_SERVER ? id : id * SERVERS_MAX + number;
}
