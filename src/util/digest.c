/*-------------------------------------------------------------------------
 *
 * digest.c
 *	  Digests of text.
 *
 * NOTES
 *	  Keys and definitions are stored and compared as the first 16 bytes of
 *	  their SHA-256.
 *
 * src/util/digest.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "util/digest.h"

static void digest_bytes(const char *data, int len, unsigned char *digest,
						 int digest_len);

/* The first bytes of the SHA-256 of data. */
static void
digest_bytes(const char *data, int len, unsigned char *digest, int digest_len)
{
	bytea	   *input = palloc(VARHDRSZ + len);
	bytea	   *output;

	SET_VARSIZE(input, VARHDRSZ + len);
	memcpy(VARDATA(input), data, len);
	output = DatumGetByteaPP(DirectFunctionCall1(sha256_bytea,
												 PointerGetDatum(input)));
	Assert((int) VARSIZE_ANY_EXHDR(output) >= digest_len);
	memcpy(digest, VARDATA_ANY(output), digest_len);
	pfree(input);
	pfree(output);
}

/* What is stored of a deduplication key. */
void
digest_text(const char *key, pg_uuid_t *digest)
{
	digest_bytes(key, strlen(key), digest->data, UUID_LEN);
}
