/*-------------------------------------------------------------------------
 *
 * claim_id.c
 *	  Claim ids.
 *
 * NOTES
 *	  A claim has no row of its own.  Its id says where its messages are: a
 *	  range of message numbers, a set of priorities, and the token that
 *	  distinguishes them from other messages in the range.  Each of these
 *	  messages has all of that in its row, so the claim id can be formed from
 *	  any one of them.
 *
 *	  The id ends with a signature, made with a key that only roles that may
 *	  read all tables can read.  The oldest key of queue_data.secret signs, and
 *	  each of them is valid, because a claim moves with its shard to another
 *	  server, which signs with a key of its own.  A forged id, say one with a
 *	  range as wide as the queue, is rejected before any table is read.  The
 *	  token is 64 random bits, so a claim id cannot be guessed from another one
 *	  either.
 *
 *	  The text is hexadecimal, of these bytes, each number with its highest
 *	  byte first: token (8), first (8), span (4), priorities (2), signature
 *	  (4).
 *
 *	  Where groups take turns, the messages of a claim may lie far apart, and a
 *	  call that names the claim would read all that is between.  It is mostly
 *	  the session that has made the claim that renews, releases or completes
 *	  it.  So a session keeps the ids of the messages of its last claims that
 *	  are sparse, and scans only these (message_scan_begin_claim).  A claim
 *	  never gets other messages, so the ids are complete.  The claims of a
 *	  transaction that is rolled back stay there, and are not looked for.
 *
 * src/storage/claim_id.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "port/pg_bswap.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "catalog/tables.h"
#include "storage/claim_id.h"
#include "util/compat.h"
#include "util/hash.h"

#define CLAIM_ID_BYTES			(CLAIM_ID_LENGTH / 2)
#define CLAIM_ID_SIGNED_BYTES	(offsetof(ClaimId, priorities) + sizeof(int16))
#define SIGNATURE_BYTES			(CLAIM_ID_BYTES - CLAIM_ID_SIGNED_BYTES)

StaticAssertDecl(SIGNATURE_BYTES == sizeof(uint32), "a signature is an int");

#define KEY_BYTES				32
#define KEYS_STEP				8	/* the array grows by so many */

#define TOKENS_MAX				32	/* random tokens that a session keeps */

/* A row of queue_data.secret */
typedef struct Secret
{
	TimestampTz created_at;
	unsigned char key[KEY_BYTES];
} Secret;

/* All of them, the oldest first, and in which generation they were read */
static Secret *secrets = NULL;
static int	nsecrets;
static uint64 secrets_generation = 0;

#define CLAIMS_KEPT		16

/* Numbers for each message in the range of a claim that is worth keeping */
#define SPARSE			64

typedef struct KeptClaim
{
	int64		token;
	ArrayType  *ids;			/* bigint; NULL if the entry is not used */
} KeptClaim;

static KeptClaim kept[CLAIMS_KEPT];
static int	next_kept = 0;		/* the oldest one */

static ClaimId swap_bytes(const ClaimId *claim);
static void read_secrets(void);
static void read_secret(Relation rel, HeapTuple tuple);
static void sign_claim_id(int32 queue_id, const unsigned char *bytes,
						  const unsigned char *key, unsigned char *signature);
static bool has_valid_signature(int32 queue_id, const unsigned char *bytes);

/* To network byte order, in which an id has the fields, or from it */
static ClaimId
swap_bytes(const ClaimId *claim)
{
	ClaimId		result = {
		.token = (int64) pg_hton64((uint64) claim->token),
		.first = (int64) pg_hton64((uint64) claim->first),
		.span = (int32) pg_hton32((uint32) claim->span),
		.priorities = (int16) pg_hton16((uint16) claim->priorities)
	};

	return result;
}

/*
 * Read the keys that claim ids are signed with, if they may have changed.
 * There is more than one in a restored database, and in one to which shards of
 * other servers have moved.
 */
static void
read_secrets(void)
{
	uint64		generation;

	/* This looks the tables up, if they may have changed. */
	(void) catalog_oid(CATALOG_SECRET);
	generation = catalog_generation();
	if (secrets_generation == generation)
		return;
	nsecrets = 0;
	catalog_read_table(CATALOG_SECRET, read_secret);
	if (nsecrets == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"queue_data.secret\" holds no key"),
				 errdetail("The ids of claims are signed with it: with a new key, the ids of earlier claims are not valid."),
				 errhint("As a superuser, insert a new key, and have all sessions connect again: INSERT INTO queue_data.secret (key) SELECT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid());")));
	secrets_generation = generation;
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
	if (VARSIZE_ANY_EXHDR(key) != KEY_BYTES)
		return;
	if (nsecrets % KEYS_STEP == 0)
		secrets = secrets == NULL ?
			MemoryContextAlloc(TopMemoryContext,
							   KEYS_STEP * sizeof(Secret)) :
			repalloc(secrets, (nsecrets + KEYS_STEP) * sizeof(Secret));
	for (i = nsecrets++; i > 0 && secrets[i - 1].created_at > created_at; i--)
		secrets[i] = secrets[i - 1];
	secrets[i].created_at = created_at;
	memcpy(secrets[i].key, VARDATA_ANY(key), KEY_BYTES);
}

/*
 * Sign the bytes of a claim id, and the queue that it belongs to.
 * PostgreSQL's own SHA-256 takes two microseconds for that, with memory
 * allocated for it, which is a good part of a claim of one message.
 */
static void
sign_claim_id(int32 queue_id, const unsigned char *bytes,
			  const unsigned char *key, unsigned char *signature)
{
	unsigned char input[4 + CLAIM_ID_SIGNED_BYTES];
	uint32		value = pg_hton32((uint32) queue_id);

	memcpy(input, &value, 4);
	memcpy(input + 4, bytes, CLAIM_ID_SIGNED_BYTES);
	value = pg_hton32((uint32) hash_siphash(key, (const char *) input,
											sizeof(input)));
	memcpy(signature, &value, SIGNATURE_BYTES);
}

/* Returns whether the bytes end with a signature made with any of the keys. */
static bool
has_valid_signature(int32 queue_id, const unsigned char *bytes)
{
	read_secrets();
	for (int i = 0; i < nsecrets; i++)
	{
		unsigned char expected[SIGNATURE_BYTES];

		sign_claim_id(queue_id, bytes, secrets[i].key, expected);
		if (memcmp(bytes + CLAIM_ID_SIGNED_BYTES, expected,
				   SIGNATURE_BYTES) == 0)
			return true;
	}
	return false;
}

/* Write the text of a claim id, CLAIM_ID_LENGTH characters and a NUL. */
void
claim_id_print(int32 queue_id, const ClaimId *claim, char *hex)
{
	unsigned char bytes[CLAIM_ID_BYTES];
	ClaimId		fields = swap_bytes(claim);

	memcpy(bytes, &fields, CLAIM_ID_SIGNED_BYTES);
	read_secrets();
	sign_claim_id(queue_id, bytes, secrets[0].key,
				  bytes + CLAIM_ID_SIGNED_BYTES);

	hex_encode((const char *) bytes, CLAIM_ID_BYTES, hex);
	hex[CLAIM_ID_LENGTH] = '\0';
}

/*
 * Parse the text of a claim id.  Returns false if it is not one of this
 * queue.
 */
bool
claim_id_parse(int32 queue_id, const char *hex, ClaimId *claim)
{
	static const char digits[] = "0123456789abcdef";
	unsigned char bytes[CLAIM_ID_BYTES] = {0};
	ClaimId		fields;

	if (strlen(hex) != CLAIM_ID_LENGTH)
		return false;
	for (int i = 0; i < CLAIM_ID_LENGTH; i++)
	{
		const char *digit = strchr(digits, hex[i]);

		if (digit == NULL)
			return false;
		bytes[i / 2] = bytes[i / 2] << 4 | (digit - digits);
	}

	if (!has_valid_signature(queue_id, bytes))
		return false;

	memcpy(&fields, bytes, CLAIM_ID_SIGNED_BYTES);
	*claim = swap_bytes(&fields);
	return true;
}

/*
 * Returns a random token for a new claim; not 0, which stands for no claim.
 * The random number generator takes some microseconds for a call, whether it
 * is for one token or many, so each session keeps some.
 */
int64
claim_id_new_token(void)
{
	static int64 tokens[TOKENS_MAX];
	static int	ntokens = 0;
	int64		token;

	do
	{
		if (ntokens == 0)
		{
			if (!pg_strong_random(tokens, sizeof(tokens)))
				ereport(ERROR,
						(errcode(ERRCODE_INTERNAL_ERROR),
						 errmsg("could not generate a random claim token")));
			ntokens = TOKENS_MAX;
		}
		token = tokens[--ntokens];
	} while (token == 0);
	return token;
}

/* --- The messages of claims of this session --- */

/* This session has made a claim of these messages. */
void
claim_id_keep_members(const ClaimId *claim, Datum *ids, int n)
{
	KeptClaim  *entry = &kept[next_kept];
	MemoryContext old;

	/* If they lie close together, it costs little to read what is between. */
	if (claim->span / SPARSE < n)
		return;

	/* It stays unused if there is no memory for the array. */
	if (entry->ids != NULL)
		pfree(entry->ids);
	entry->ids = NULL;
	old = MemoryContextSwitchTo(TopMemoryContext);
	entry->ids = construct_array(ids, n, INT8OID, sizeof(int64),
								 FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
	MemoryContextSwitchTo(old);
	entry->token = claim->token;
	next_kept = (next_kept + 1) % CLAIMS_KEPT;
}

/* Returns the ids of the messages of a claim; NULL if they are not known. */
ArrayType *
claim_id_members(const ClaimId *claim)
{
	for (int i = 0; i < CLAIMS_KEPT; i++)
		if (kept[i].ids != NULL && kept[i].token == claim->token)
			return kept[i].ids;
	return NULL;
}
