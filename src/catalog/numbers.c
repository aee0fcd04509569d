/*-------------------------------------------------------------------------
 *
 * numbers.c
 *	  Numbers from the extension's sequences, and the keys of claim ids.
 *
 * NOTES
 *	  Where several servers share the queues, the numbers of a server differ
 *	  from those of the others: they have its number in them.
 *
 *	  The number of the server and the keys are read from their tables, and
 *	  kept until an invalidation message says that the extension's tables, or
 *	  a role, have changed (catalog_generation()).
 *
 * src/catalog/numbers.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/sequence.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/numbers.h"
#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "catalog/tables.h"
#include "util/compat.h"

#define NO_SERVER		(-1)
#define SECRET_BYTES	32
#define SECRETS_STEP	8		/* the array grows by so many */

/* A row of queue_data.secret */
typedef struct Secret
{
	TimestampTz created_at;
	unsigned char key[SECRET_BYTES];
} Secret;

/* What was read from tables, and in which generation */
static uint64 server_generation = 0;
static int	server;				/* NO_SERVER if the database is not sharded */
static uint64 secrets_generation = 0;
static Secret *secrets = NULL;	/* by age, the oldest first */
static int	nsecrets;

static int	server_number(void);
static void read_server(Relation rel, HeapTuple tuple);
pg_noreturn static void numbers_error(CatalogRelation sequence);
static void read_secret(Relation rel, HeapTuple tuple);

/* --- Numbers --- */

/* Returns the number of this server among several, or NO_SERVER. */
static int
server_number(void)
{
	/* This looks the tables up, if they may have changed. */
	Oid			table = catalog_oid(CATALOG_SERVER);

	if (server_generation != catalog_generation())
	{
		uint64		before = catalog_generation();

		server = NO_SERVER;

		/* Version 1.0 does not have the table. */
		if (OidIsValid(table))
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

int32
numbers_next_schedule_id(void)
{
	return (int32) nextval_internal(catalog_oid(CATALOG_SCHEDULE_ID), false);
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

/* --- Keys --- */

/*
 * Returns key number i of those that claim ids are signed with, the oldest
 * first, or NULL if there are no more.  There is more than one in a restored
 * database, and in one to which shards of other servers have moved: claims
 * were signed with the key of the server on which they were made.
 */
const unsigned char *
numbers_secret(int i)
{
	/* This looks the tables up, if they may have changed. */
	(void) catalog_oid(CATALOG_SECRET);
	if (secrets_generation != catalog_generation())
	{
		uint64		before = catalog_generation();

		nsecrets = 0;
		catalog_read_table(CATALOG_SECRET, read_secret);
		if (nsecrets == 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"queue_data.secret\" holds no key"),
					 errdetail("The ids of claims are signed with it: with a new key, the ids of earlier claims are not valid."),
					 errhint("As a superuser, insert a new key, and have all sessions connect again: INSERT INTO queue_data.secret (key) SELECT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid());")));
		secrets_generation = before;
	}
	return i < nsecrets ? secrets[i].key : NULL;
}

/* Callback of catalog_read_table: add a key to the sorted array. */
static void
read_secret(Relation rel, HeapTuple tuple)
{
	TimestampTz created_at =
	DatumGetTimestampTz(row_getattr(rel, tuple, Anum_secret_created_at));
	bytea	   *key = DatumGetByteaPP(row_getattr(rel, tuple, Anum_secret_key));
	int			i;

	/* Other SQL has written it. */
	if (VARSIZE_ANY_EXHDR(key) != SECRET_BYTES)
		return;
	if (nsecrets % SECRETS_STEP == 0)
		secrets = secrets == NULL ?
			MemoryContextAlloc(TopMemoryContext,
							   SECRETS_STEP * sizeof(Secret)) :
			repalloc(secrets, (nsecrets + SECRETS_STEP) * sizeof(Secret));
	for (i = nsecrets++; i > 0 && secrets[i - 1].created_at > created_at; i--)
		secrets[i] = secrets[i - 1];
	secrets[i].created_at = created_at;
	memcpy(secrets[i].key, VARDATA_ANY(key), SECRET_BYTES);
}
